"""Use and limits of the machine by this process and its children: cores, memory, processor."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from functools import cache
from pathlib import Path

from any2ds.core.processes import child_process

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Of cgroup v2: `quota period`, in microseconds, or `max period`."""
_PROC = Path("/proc")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def cores() -> int:
    """Usable CPU cores, rounded up: how many processes are worth starting."""
    return max(1, math.ceil(share()))


@cache
def share() -> float:
    """Cores that the system gives this process, or the quota of its container, which may be less than one."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = CPU_MAX.read_text(encoding="ascii").split()
        if quota != "max":
            count = min(count, float(quota) / float(period))
    return count


def name() -> str:
    """The name of this process among all of a run: host and process id."""
    return f"{_host()}:{os.getpid()}"


def memory(children: bool = True) -> int:
    """Bytes in memory now. Where nobody tells but what the most ever was (macOS), it is that; 0 where nobody does.

    What processes share is counted for each of them.
    """
    if (own := _resident("self")) is not None:
        return own + (sum(_resident(str(pid)) or 0 for pid in child_process.running()) if children else 0)
    return _most_ever()


def cpu() -> float:
    """Seconds of the processor since this process began, those of children that have ended included."""
    ended = os.times()
    living = sum(_seconds(pid) for pid in child_process.running()) if sys.platform == "linux" else 0.0
    return time.process_time() + ended.children_user + ended.children_system + living


@cache
def _host() -> str:
    import platform  # a hundredth of the start of a run

    return platform.node() or "localhost"


def _resident(process: str) -> int | None:
    try:
        return int((_PROC / process / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _seconds(pid: int) -> float:
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        # utime, stime and those of its own children that have ended, by proc(5): fields 14 to 17
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _most_ever() -> int:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def keep_freed_memory() -> None:
    """Have glibc keep memory that is freed, for the next file: else each image begins with hundreds of page faults.

    The values are those that it adopts by itself once a block of 32 MiB was freed (mallopt(3)).
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            import ctypes

            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, 32 << 20)
            mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def end_first_when_memory_is_short() -> None:
    """Limit the private memory of this process, and have the kernel choose it first when memory runs short."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit_memory(_kilobytes("/proc/meminfo", "MemAvailable") // 2)


def limit_memory(more: int) -> None:
    """Limit the private memory of this process to so many bytes more than it has, on Linux; it leaves no core file."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, ValueError, KeyError):
        import resource

        # Private memory that can be written to, and not addresses: libraries reserve more of those than they ever use.
        most = _kilobytes("/proc/self/status", "VmData") + more
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # it takes time
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or most < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _kilobytes(path: str, name: str) -> int:
    """Such a line of a file of /proc, in bytes. Raises KeyError if there is none."""
    for line in Path(path).read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise KeyError(name)
