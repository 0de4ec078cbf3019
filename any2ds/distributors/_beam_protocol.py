"""Messages between a run and the child process that runs Beam for it."""

from __future__ import annotations

from dataclasses import dataclass

from any2ds.distributors._task import Task


@dataclass(frozen=True, slots=True)
class Asked:
    """What the run asks Beam for."""

    flags: tuple[str, ...]
    slots: int | None  # tasks at a time
    log_level: int


@dataclass(frozen=True, slots=True)
class Terms:
    """How the runner is used that the flags ask for."""

    slots: int  # tasks that are given to it at a time
    is_local: bool  # its processes are children of this one
    patience: float  # seconds, as `Engine.patience`


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Tasks that lie in the output folder, to be performed."""

    asked: Asked
    numbers: tuple[int, ...]
    task: Task  # one of them


@dataclass(frozen=True, slots=True)
class State:
    has_ended: bool
    message: str = ""  # why it could not do what it was to


STATE, CANCEL = "state", "cancel"
