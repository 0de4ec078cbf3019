"""How much memory a command takes: the peak of a process of its own, since the program in it began.

`ru_maxrss` would not do: a process has that of the one which it was forked from, before it became another program.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """
import sys
from pathlib import Path
from any2ds.cli import run
run(sys.argv[1:])
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(f"peak {line.split()[1]}")
"""


def peak(words: Sequence[str], folder: Path) -> int:
    """Bytes that a command line takes at most, in `folder`; all of it in one process, if that is what it says."""
    run = [sys.executable, "-c", _PROGRAM, *words]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
    return int(done.stdout.rpartition("peak ")[2]) * 1024
