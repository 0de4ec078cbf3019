"""Runs a command, waits for all that came of it, daemons included, and prints the CPU seconds of it all.

    python benchmarks/whole.py COMMAND ...

Linux only, in a control group of its own (cgroups(7), version 2), because what the kernel adds up for a parent leaves
out children whose end it ignores, as Spark's does. It has to be allowed to make one: as root, or in a shell of
`systemd-run --user --scope -p Delegate=yes bash`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

_LOOK = 0.05  # seconds between two looks whether anything is left


def main() -> int:
    group = _own_group() / f"any2ds-bench-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise SystemExit(f"no control group can be made ({error}): be root, or have one delegated") from error
    try:
        join = f"echo $$ > '{group}/cgroup.procs' && exec \"$@\""
        done = subprocess.run(["sh", "-c", join, "sh", *sys.argv[1:]], stdout=sys.stderr, check=False)
        while "populated 1" in (group / "cgroup.events").read_text():
            time.sleep(_LOOK)
        usage = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    finally:
        with contextlib.suppress(OSError):  # something still runs in it
            group.rmdir()
    print(int(usage["usage_usec"]) / 1e6)
    return abs(done.returncode)


def _own_group() -> Path:
    """The folder of the group that this process is in."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    top = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if top is None or own is None:
        raise SystemExit("there are no control groups of version 2 here")
    return top / own.lstrip("/")


if __name__ == "__main__":
    sys.exit(main())
