"""Servers of tests do not outlive them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.testing.processes import is_running, wait_until_gone
from tests.support.servers import free_port, running

SCRIPT = """
import sys
from pathlib import Path
from tests.support.servers import free_port, running
port = free_port()
command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
with running(command, port, Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_server_ends_with_whoever_started_it(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    tests = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert is_running(pid)
        if how == "killed":
            tests.send_signal(signal.SIGKILL)
    wait_until_gone([pid])
    assert tests.returncode == (-signal.SIGKILL if how == "killed" else 0)


def test_one_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    with pytest.raises(RuntimeError, match="no such luck"), running(command, free_port(), tmp_path / "log"):
        pass
