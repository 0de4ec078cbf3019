"""The process in which the wandb library is at work for `reporters/wandb.py`, which tells it what to record.

A process of its own keeps its hooks, its threads and the helper that it starts away from the run and from its terminal;
it can be ended if it hangs; and wandb, which writes down how its process was called, does not see our command line,
where passwords may stand.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import IO, Any

_FAREWELL = 10.0  # seconds to finish after the run's process is gone


@dataclass(frozen=True, slots=True)
class Begin:
    """The first that it is told."""

    init: Mapping[str, Any]  # arguments of `wandb.init`
    settings: Mapping[str, Any]  # of `wandb.Settings`
    default_folder: str | None  # for wandb's files, where nobody has asked for one


@dataclass(frozen=True, slots=True)
class Begun:
    """The answer to it."""

    mode: str  # online, offline or disabled
    step: int = 0  # the next one, as far as wandb knows
    folder: str = ""  # of the files of this run
    url: str = ""
    failure: str = ""  # why there is no run; the process ends then


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be logged as one step."""

    step: int
    figures: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # a Picture becomes an image


@dataclass(frozen=True, slots=True)
class Picture:
    data: bytes
    ext: str  # jpeg, png, gif or webp


@dataclass(frozen=True, slots=True)
class Finish:
    """The last; answered with None when everything is sent, or stored where it is offline."""

    exit_code: int


def main(inlet: IO[bytes]) -> None:
    """Until it is told to finish, or nobody is left to tell it anything."""
    outlet = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # which leads nowhere: nothing that wandb or its helper says may get between the answers
    told: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(inlet, told), daemon=True).start()
    if isinstance(begin := told.get(), Begin):
        run, begun = _begun(begin)
        _answer(outlet, begun)
        if run is not None:
            _follow(run, told, outlet)
    os._exit(0)


def _listen(inlet: IO[bytes], told: SimpleQueue[Any]) -> None:
    """In a thread: wandb may be waiting for its server when the run's process goes, and is not to stay for long."""
    with contextlib.suppress(Exception):  # it may go in the middle of a word
        while True:
            told.put(pickle.load(inlet))
    told.put(Finish(1))
    time.sleep(_FAREWELL)
    os._exit(1)


def _begun(begin: Begin) -> tuple[Any, Begun]:
    try:
        import wandb

        settings = wandb.Settings(**_known(wandb.Settings, begin.settings))
        folder = os.environ.get("WANDB_DIR") or begin.default_folder
        if folder:
            with contextlib.suppress(OSError):
                os.makedirs(folder, exist_ok=True)  # where it cannot be, wandb takes the temporary folder
        run = wandb.init(**begin.init, settings=settings, dir=folder)
        settings = run.settings
        mode = "disabled" if run.disabled else "offline" if settings.mode == "offline" else "online"
        url = run.url or ""
        for of in ("total", "retry", "live"):
            run.define_metric(f"{of}/*", step_metric="seconds")
        return run, Begun(mode, int(run.step), os.path.dirname(run.dir), url)
    except Exception as error:  # no login, no network, a server that does not want us, or whatever wandb may raise
        return None, Begun("failed", failure=" ".join(f"{type(error).__name__}: {error}".split()))


def _known(settings: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Those that this version of wandb has."""
    return {name: value for name, value in wanted.items() if name in settings.model_fields}


def _follow(run: Any, told: SimpleQueue[Any], outlet: IO[bytes]) -> None:
    import wandb

    def shown(value: Any, folder: str) -> Any:
        if not isinstance(value, Picture):
            return value
        number, path = tempfile.mkstemp(f".{value.ext}", dir=folder)
        with os.fdopen(number, "wb") as file:
            file.write(value.data)
        try:
            return wandb.Image(path)  # a file is taken as it is
        except Exception:  # without Pillow, or a picture that it does not read
            return None

    while True:
        said: Record | Finish = told.get()
        if isinstance(said, Finish):
            run.finish(exit_code=said.exit_code)
            _answer(outlet, None)
            return
        with tempfile.TemporaryDirectory(prefix="any2ds-wandb-") as folder:
            tables = {
                name: wandb.Table(
                    columns=list(table.columns), data=[[shown(value, folder) for value in row] for row in table.rows]
                )
                for name, table in said.tables.items()
            }
            run.log({**said.figures, **tables}, step=said.step)


def _answer(outlet: IO[bytes], answer: Any) -> None:
    with contextlib.suppress(OSError):
        outlet.write(pickle.dumps(answer))
        outlet.flush()


if sys.platform == "win32":
    _FLAGS = {"creationflags": 0x00000200}  # subprocess.CREATE_NEW_PROCESS_GROUP: Ctrl-C is not for it
else:
    _FLAGS = {"start_new_session": True}  # nor are the terminal and what it sends
ALONE: Mapping[str, Any] = _FLAGS
"""How Popen is to start it."""
