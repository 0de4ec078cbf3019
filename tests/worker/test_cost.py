"""What a sample costs on the plain path, counted instead of timed: Python calls, and memory that it keeps.

Plain is what most runs are: http over kept connections, one hash, webdataset, no steps. The time of a small file is
mostly that of the calls made for it, so that a call too many for each row is seen here and nowhere else.
"""

import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from any2ds.config.options import Config
from any2ds.core.reports import ShardReport
from any2ds.readers.plan import cuts
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan

ROWS = 2000
# Both are what was counted, and a twentieth more for turns in which little was ready. To raise one is a decision:
# the commit that does so says what every row gets for it.
MOST_CALLS = 106  # Python functions called, or generators resumed, for each sample, in all threads
MOST_BYTES = 740  # kept for each sample until its shard is complete: what the list says of it, and its metadata

# In a process of its own, since the calls and the memory of this one are counted; answers cost it next to nothing.
SERVER = r"""
import asyncio
ANSWER = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: image/jpeg\r\nLast-Modified: Tue, 01 Jul 2025 10:00:00 GMT\r\n"
ANSWER += b'ETag: "5-1"\r\nContent-Length: 2000\r\n\r\n\xff\xd8\xff\xe0\0\x10JFIF\0' + bytes(1989)
class Http(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data.count(b"\r\n\r\n") * ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Http, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def work(base: str, output: Path, rows: int) -> None:
    """Fetch so many small files into one shard, in this process."""
    output.mkdir()
    table = pa.table({"url": [f"{base}/{row}.jpg" for row in range(rows)]})
    config = Config.from_options({"url_list": "-", "output_folder": output, "output_format": "webdataset"})
    worker = ShardWorker(config.output, config.fetch)
    jobs = plan(cuts(table.to_batches(), rows), table.schema)
    reports = [event for event in worker(jobs) if isinstance(event, ShardReport)]
    assert [report.successes for report in reports] == [rows]


def test_a_sample_takes_so_many_python_calls_at_most(base: str, tmp_path: Path) -> None:
    work(base, tmp_path / "first", 10)  # what is imported and made once does not count
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    found = []
    while len(found) < 3 and (not found or found[-1] > MOST_CALLS):  # another program may have disturbed it
        calls = 0
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            work(base, tmp_path / f"out{len(found)}", ROWS)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        found.append(calls / ROWS)
    assert min(found) <= MOST_CALLS


def test_a_sample_keeps_so_many_bytes_at_most(base: str, tmp_path: Path) -> None:
    """By how much more the memory grows with twice the rows: what is in flight at a time is the same."""
    work(base, tmp_path / "first", 10)
    peaks: dict[int, list[int]] = {ROWS: [], 2 * ROWS: []}

    def growth() -> float:
        """Of the lowest peaks: how much is in flight when the last rows are kept differs from run to run."""
        return (min(peaks[2 * ROWS]) - min(peaks[ROWS])) / ROWS

    while len(peaks[ROWS]) < 5 and (not peaks[ROWS] or growth() > MOST_BYTES):
        for rows, found in peaks.items():
            tracemalloc.start()
            try:
                work(base, tmp_path / f"out{rows}-{len(found)}", rows)
                found.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    assert growth() <= MOST_BYTES
