"""Runs one command and writes what it took to a file: seconds, CPU seconds and memory of all its processes.

    python benchmarks/process.py RESULT.json COMMAND …

A process of its own, and a small one: Linux starts the peak memory of a child at the memory of its parent. CPU is that
of a control group (cgroups(7), version 2) where one can be made, and else that of the processes which were waited for;
the second leaves out daemons, and children whose end their parent ignores, as Spark's does.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

_POLL = 0.05  # seconds between two looks whether a daemon still runs
_DAEMONS_END = 60.0  # seconds after the command, at most


def main(result: str, *command: str) -> int:
    group = new_group()
    try:
        began = time.monotonic()
        join = None if group is None else lambda: (group / "cgroup.procs").write_text("0")
        code = subprocess.Popen(command, preexec_fn=join).wait()
        ended = time.monotonic()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime if group is None else cpu_of(group)
    finally:
        if group is not None:
            with contextlib.suppress(OSError):  # a daemon still runs in it
                group.rmdir()
    figures = {"wall": ended - began, "ended": ended, "cpu": cpu, "memory": used.ru_maxrss * 1024}
    Path(result).write_text(json.dumps({"code": code, "cpu_by": "rusage" if group is None else "cgroup", **figures}))
    return 0


def new_group() -> Path | None:
    """The folder of a control group below the one of this process; None where none can be made."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        top = next(mount[1] for mount in mounts if mount[2] == "cgroup2")
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = Path(top, own.lstrip("/"), f"any2ds-benchmark-{os.getpid()}")
        group.mkdir()
        (group / "cpu.stat").read_text()
    except (OSError, StopIteration):
        return None
    return group


def cpu_of(group: Path) -> float:
    """CPU seconds of all that ran in the group, when it is empty."""
    ends = time.monotonic() + _DAEMONS_END
    while "populated 1" in (group / "cgroup.events").read_text() and time.monotonic() < ends:
        time.sleep(_POLL)
    usage = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(usage["usage_usec"]) / 1e6


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
