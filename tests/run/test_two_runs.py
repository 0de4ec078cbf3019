"""Two runs on one folder, and runs that were killed: real processes, real signals."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from any2ds.testing.processes import LONG, wait_until
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in

COUNT = 8


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(COUNT):
        (folder / str(n)).write_bytes(b"file %d" % n)
    return folder


@contextmanager
def held(media: Path, tmp_path: Path, name: str = "7") -> Iterator[Server]:
    """A server that holds back one file, and a list of all of them."""
    with serve(media, {name: ["hold"]}) as server:
        (tmp_path / "urls.txt").write_text("".join(f"{server.url(str(n))}\n" for n in range(COUNT)))
        yield server


def begin(tmp_path: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "any2ds", "--url_list=urls.txt", "--output_folder=out", "--timeout=0"]
    command += ["--output_format=webdataset", "--number_sample_per_shard=2", "--processes_count=1", "--quiet"]
    command += ["--report=false", *more]
    return subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)


def names(out: Path) -> list[str]:
    return sorted(names_in(out))


def expect_whole(out: Path) -> None:
    """Each row has one outcome, data and metadata are of the same making, and nothing else lies there."""
    shards = range(COUNT // 2)
    ends = (".parquet", ".tar", ".tar.idx", "_stats.json")
    own = [".any2ds/run", ".any2ds/segments", ".any2ds/shards"]
    assert names(out) == own + [f"{n:05d}{end}" for n in shards for end in ends]
    for n in shards:
        rows = pq.read_table(out / f"{n:05d}.parquet").to_pylist()
        assert [row["key"] for row in rows] == [f"{n:05d}{position}" for position in range(2)]
        with tarfile.open(fileobj=io.BytesIO((out / f"{n:05d}.tar").read_bytes())) as tar:
            sums = [
                hashlib.md5(tar.extractfile(member).read()).hexdigest()  # type: ignore[union-attr]
                for member in tar
                if not member.name.endswith(".json")
            ]
        assert sums == [row["md5"] for row in rows]


OUTLIVES_ITS_RUN = """
import fcntl, sys

with open(sys.argv[1] + "/.any2ds/workers") as workers:
    fcntl.flock(workers, fcntl.LOCK_SH)
    print(flush=True)
    sys.stdin.read()
"""


def test_a_worker_that_outlives_its_killed_run_is_waited_for(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with held(media, tmp_path) as server:
        first = begin(tmp_path)
        server.wait_for("7")
        # Linux kills our own workers with their parent; this one is as they are where the system does not.
        command = [sys.executable, "-c", OUTLIVES_ITS_RUN, str(out)]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        worker.stdout.readline()
        try:
            run = json.loads((out / ".any2ds/lock").read_text())["any2ds_lock"]["run"]
            first.kill()
            first.wait(LONG)
            server.release()
            second = begin(tmp_path)
            wait_until(lambda: (content := (out / ".any2ds/lock").read_text().strip()) and run not in content)
            before = names(out)
            assert second.stderr is not None
            assert "waiting for processes of a dead run" in second.stderr.readline()
            assert names(out) == before
        finally:
            worker.communicate(timeout=LONG)
        _, said = second.communicate(timeout=LONG)
        assert second.returncode == 0, said
        first.communicate()
    expect_whole(out)
