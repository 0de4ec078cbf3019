"""A run that is stopped (Ctrl-Z, a laptop that sleeps) for longer than --timeout goes on where it was."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from any2ds.testing.processes import LONG
from any2ds.testing.server import serve


def test_no_row_fails_because_its_process_was_stopped(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    names = [str(number) for number in range(12)]
    for name in names:
        (media / name).write_bytes(name.encode())
    with serve(media, {name: ["hold"] for name in names}) as server:
        (tmp_path / "urls.txt").write_text("".join(f"{server.url(name)}\n" for name in names))
        command = [sys.executable, "-m", "any2ds", "urls.txt", "ds", "--timeout=6", "--quiet", "--distributor=inline"]
        command += ["--retries=0"]
        with subprocess.Popen(command, cwd=tmp_path) as running:
            for name in names:
                server.wait_for(name)
            running.send_signal(signal.SIGSTOP)
            time.sleep(8)  # longer than the timeout
            running.send_signal(signal.SIGCONT)
            server.release()
            assert running.wait(LONG) == 0
    stats = json.loads((tmp_path / "ds" / "00000_stats.json").read_text())
    assert stats["status_dict"] == {"success": 12}
