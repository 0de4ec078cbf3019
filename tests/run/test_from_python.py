"""Where `download()` may be called from Python, beside the main program of a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.testing.processes import LONG
from any2ds.testing.server import serve

ROOT = Path(__file__).parents[2]
PLACES = {
    "a script": "any2ds.download('urls.txt', 'out')",
    "twice in a process": "any2ds.download('urls.txt', 'first'); any2ds.download('urls.txt', 'out')",
    "a running event loop": """
import asyncio
async def main():
    return any2ds.download('urls.txt', 'out')
asyncio.run(main())""",
    "a thread": """
import threading
thread = threading.Thread(target=any2ds.download, args=('urls.txt', 'out'))
thread.start()
thread.join()""",
    "two threads at once": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    runs = [pool.submit(any2ds.download, 'urls.txt', name) for name in ('first', 'out')]
assert [run.result().successes for run in runs] == [2, 2]""",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.slow
def test_it_works_there_and_python_warns_of_nothing(tmp_path: Path, place: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "script.py").write_text(f"import any2ds\n{PLACES[place]}\nprint(any2ds.verify('out', quiet=True))\n")
    with serve(tmp_path) as server:
        (tmp_path / "urls.txt").write_text(f"{server.url('a.txt')}\n{server.url('b.txt')}\n")
        ran = subprocess.run(
            [sys.executable, "-W", "error", "script.py"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=LONG,
        )
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stderr
    assert "2 rows, no problems" in ran.stdout
