"""The processes of a run: finding them, freezing them to look around, killing them, seeing that none outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from any2ds.testing.processes import children, is_running, state

_PROC = Path("/proc")
MARK = "ANY2DS_CRASH_TEST"  # a variable in the environment of every process of a story
_FREEZES_WITHIN = 1.0  # seconds


def marked(mark: str) -> list[int]:
    """Every process with this mark, whoever its parent is."""
    wanted = f"{MARK}={mark}\0".encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
                if wanted in (entry / "environ").read_bytes() and is_running(int(entry.name)):
                    found.append(int(entry.name))
    return found


def freeze(pid: int, workers: Iterable[int] = ()) -> list[int]:
    """Stop a process and its children where they are, and return them all, itself first.

    `workers` are those that are known already: they are stopped before anything else is asked for.
    """
    frozen = [pid]
    new = [*workers, pid]
    while new:
        send(new, signal.SIGSTOP)
        frozen += [one for one in new if one != pid]
        until = time.monotonic() + _FREEZES_WITHIN
        while any(state(one) not in "TtZX" for one in new) and time.monotonic() < until:
            time.sleep(0.0001)
        new = [one for one in children(pid) if one not in frozen]
    return [one for one in frozen if is_running(one)]


def thaw(pids: Iterable[int]) -> None:
    send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def seconds_until_gone(mark: str, within: float) -> float | None:
    """How long it takes until no process with this mark is left; None if it takes longer than `within`."""
    started = time.monotonic()
    while marked(mark):
        if time.monotonic() - started > within:
            return None
        time.sleep(0.02)
    return time.monotonic() - started
