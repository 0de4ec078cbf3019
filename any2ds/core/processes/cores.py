"""Cores that this process may use, which in a container are fewer than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from functools import cache
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of cgroup v2: `quota period`, in microseconds, or `max period`."""


def cores() -> int:
    """Whole ones, at least one: how many processes are worth starting."""
    return max(1, math.ceil(share()))


@cache
def share() -> float:
    """Those that the system gives it, or what its container is bounded to, which may be less than one."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = CPU_MAX.read_text().split()
        if quota != "max":
            count = min(count, float(quota) / float(period))
    return count
