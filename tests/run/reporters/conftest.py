"""A terminal for the tests: a program runs in a pty, and an emulator says what a person sees."""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

ROOT = Path(__file__).parents[3]
_PATIENCE = 120.0  # seconds for anything to appear


class Terminal:
    """A program whose terminal is emulated. Its standard input is a pipe, so that `tell` can say when to go on."""

    def __init__(
        self, command: list[str], columns: int, lines: int, stdout: Any = None, session: bool = True, **env: str
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._master, slave = os.openpty()
        self.resize(columns, lines)
        ours = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env={**environment, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **env},
            start_new_session=session,
        )
        os.close(slave)

    def resize(self, columns: int, lines: int, emulated: bool = True) -> None:
        """Without `emulated` it only says so."""
        if emulated:
            self.screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def shown(self) -> list[str]:
        """What stands on the screen, without the empty end."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().split("\n")

    @property
    def everything(self) -> list[str]:
        """The same, with what has left the screen above."""
        gone = ["".join(line[x].data for x in range(self.screen.columns)).rstrip() for line in self.screen.history.top]
        return [*gone, *self.shown]

    def until(self, locks: Callable[[list[str]], bool]) -> list[str]:
        """Read until that holds for what stands on the screen, which is returned."""
        end = time.monotonic() + _PATIENCE
        while not locks(self.shown):
            if time.monotonic() > end or not self._read(end):
                raise AssertionError("it did not appear:\n" + "\n".join(self.everything))
        return self.shown

    def tell(self) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        """Read to the end; everything that there is to be seen then."""
        end = time.monotonic() + _PATIENCE
        while self._read(end):
            pass
        self.process.wait(_PATIENCE)
        return self.everything

    def _read(self, until: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        try:
            found = os.read(self._master, 1 << 16)
        except OSError:  # Linux says so when the last process has gone
            return False
        self.raw += found
        self._stream.feed(found)
        return bool(found)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """`terminal(code_or_arguments, columns=80, lines=24, NAME="value")` runs that."""
    opened: list[Terminal] = []

    def run(what: str | list[str], columns: int = 80, lines: int = 24, **how: Any) -> Terminal:
        command = [sys.executable, "-c", what] if isinstance(what, str) else [sys.executable, "-m", "any2ds", *what]
        opened.append(Terminal(command, columns, lines, **how))
        return opened[-1]

    yield run
    for each in opened:
        each.close()
