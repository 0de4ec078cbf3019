"""Starting real servers for tests: a process that ends with the test, and what it said if it does not start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_SOON = 30.0  # seconds, within which any server is up
_LOOK = 0.02  # seconds between two looks

# It becomes what it is to start, with the system's word that this ends with us: however we do, `kill -9` included. To
# ask for that between fork and exec would be Python's code in a process that may have lost its locks to other threads.
_TIE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]), 0, 0, 0)
if os.getppid() != int(sys.argv[2]):
    sys.exit("whoever started it is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


def tied(command: Sequence[str], how: int = signal.SIGTERM) -> list[str]:
    """The command of a process that gets signal `how` when the thread ends that starts it; as it was but on Linux."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(int(how)), str(os.getpid()), *command]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process, once it listens on `port` of this machine. It is ended at the end, whatever happens.

    Raises RuntimeError with the end of its log if it does not come up.
    """
    with log.open("wb") as said:
        process = subprocess.Popen(
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that Ctrl-C is for the tests, which end it
        )
    try:
        until = time.monotonic() + _SOON
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not come up: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(_LOOK)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
