"""The command in many processes at little cost: forked off from one that has imported it, where each start takes 1 s.

with commands(folder) as start:
    run = start("--url_list=urls.txt", "--rank=0", "--world_size=8")
    assert run.ended() == 0, run.said
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from any2ds.testing.processes import LONG

_IMPORTED = (
    "any2ds.run.download",
    "any2ds.cli",
    "any2ds.worker.worker",
    "any2ds.fetch.engines.curl",
    "any2ds.distributors.inline",
)
_PARTS = (
    "any2ds.readers.text",
    "any2ds.writers.formats.webdataset",
    "any2ds.run.reporters.console",
    "any2ds.describe.report",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A command that was started."""

    process: BaseProcess
    words: Path  # what it says, on either stream

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def said(self) -> str:
        return self.words.read_text(encoding="utf-8", errors="replace")

    def ended(self) -> int:
        """Its exit code. Raises TimeoutError if it does not end."""
        self.process.join(LONG)
        if self.process.exitcode is None:
            raise TimeoutError(f"it has not ended within {LONG:g} s, and said: {self.said}")
        return self.process.exitcode

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.join()


@contextmanager
def commands(folder: Path) -> Iterator[Callable[..., Run]]:
    """What starts any2ds with arguments, in `folder`, and with `env` over the variables of this process.

    Whatever is still at work in the end is killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED, *_PARTS])
    runs: list[Run] = []

    def start(*arguments: str, env: Mapping[str, str] | None = None, stdin: Path | None = None) -> Run:
        words = folder / f"said-{len(runs)}"
        words.touch()
        variables = {**os.environ, **(env or {})}
        process = context.Process(target=_main, args=(arguments, folder, words, variables, stdin))
        process.start()
        runs.append(Run(process, words))
        return runs[-1]

    try:
        yield start
    finally:
        for run in runs:
            if run.process.exitcode is None:
                run.send(signal.SIGCONT)
                run.kill()


def _main(
    arguments: tuple[str, ...], folder: Path, words: Path, variables: Mapping[str, str], stdin: Path | None
) -> None:
    from any2ds.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with words.open("ab") as said, open(stdin or os.devnull, "rb") as given:
        for stream, source in enumerate((given, said, said)):
            os.dup2(source.fileno(), stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing has put another in its place
    main(arguments)
