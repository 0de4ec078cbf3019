"""A standard error that nobody reads."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

F_SETPIPE_SZ = 1031  # of Linux


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe")
def test_a_command_ends_though_nobody_reads_its_standard_error(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"data:,{n}\n" for n in range(60)))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    os.write(writing, bytes(4096))  # it is full from the start
    os.set_blocking(writing, True)
    words = ["rows.txt", "made", "--log_format=json", "--log_interval=0.1", "--number_sample_per_shard=20"]
    ended = subprocess.run([sys.executable, "-m", "any2ds", *words], cwd=tmp_path, stderr=writing, timeout=120)
    os.close(reading)
    os.close(writing)
    assert ended.returncode == 0
    assert len([*(tmp_path / "made").glob("*.parquet")]) == 3
    assert not (tmp_path / "made" / ".any2ds" / "lock").exists()
