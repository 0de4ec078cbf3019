"""Runs a command, waits for all that came of it, daemons included, and prints the CPU seconds of it all.

    python benchmarks/whole.py COMMAND ...

Linux only: whatever loses its parent becomes this process's child (prctl(2), PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
    code = None
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == command.pid:
                code = command.returncode = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(usage.ru_utime + usage.ru_stime)
    return 1 if code is None else abs(code)


if __name__ == "__main__":
    sys.exit(main())
