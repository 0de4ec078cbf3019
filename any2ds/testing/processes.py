"""Processes as Linux shows them in /proc: children, which of them have ended, and waiting for what must come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PROC = Path("/proc")
LONG = 200.0  # seconds, for what takes few: a bound on waiting that no machine is too busy for


def state(pid: int) -> str:
    """R, S, D, T, Z …; X for one that is no more."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_running(pid: int) -> bool:
    """Whether it has not ended; one that has, and that nobody has waited for yet, is not running."""
    return state(pid) not in "ZX"


def children(pid: int) -> list[int]:
    """The children of all threads of a process: a child belongs to the thread that started it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return [child for child in found if is_running(child)]


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on, as far as they are running; those whose parent has ended are nobody's."""
    found = children(pid)
    return [*found, *(below for child in found for below in descendants(child))]


def wait_until(condition: Callable[[], object], within: float = LONG) -> None:
    """Returns once `condition` holds. Raises TimeoutError after `within` seconds."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"still not so after {within:g} s")
        time.sleep(0.01)


def wait_until_gone(pids: Iterable[int], within: float = LONG) -> None:
    """Returns once all these have ended. Raises TimeoutError after `within` seconds."""
    wait_until(lambda: not any(map(is_running, pids)), within)
