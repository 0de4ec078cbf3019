"""Lists that are small as files and large as rows: a process holds no more of them than it says."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_MOST = 1536 << 20  # bytes of private memory that the command may ask for
_ROWS, _TEXT = 12_000, "x" * 60_000  # 720 MB as rows


def run(folder: Path, *arguments: str) -> str:
    """The output of the command, which has a limit of memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))  # of each thread, which counts as well
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST, _MOST))

    plain = {
        **os.environ,
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "2",
    }  # others reserve memory that they do not use
    command = [sys.executable, "-m", "any2ds", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, preexec_fn=limit, env=plain)
    assert done.returncode == 0, done.stderr
    return done.stdout


def repeated(text: str) -> pa.Array:
    """Many rows that refer to one text."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * _ROWS, pa.int32()), pa.array([text]))


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
@pytest.mark.parametrize(
    "option",
    ["--dedupe=shard", *(pytest.param(each, marks=pytest.mark.slow) for each in ("--dedupe=run", "--shuffle=1"))],
)
def test_a_parquet_list_of_one_long_text(option: str, tmp_path: Path) -> None:
    urls = pa.array([f"data:,{n}" for n in range(_ROWS)])
    table = pa.table({"url": urls, "caption": repeated(_TEXT)})
    pq.write_table(table, tmp_path / "list.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "list.parquet").stat().st_size < 1 << 20
    options = ["--number_sample_per_shard=6000", "--output_format=dummy", "--report=False", "--quiet"]
    run(tmp_path, "list.parquet", "out", "--caption_col=caption", "--distributor=inline", option, *options)
    lengths = [
        len(text)
        for name in ("00000.parquet", "00001.parquet")
        for batch in pq.ParquetFile(tmp_path / "out" / name).iter_batches(500, columns=["caption"])
        for text in batch["caption"].to_pylist()
    ]
    assert lengths == [len(_TEXT)] * _ROWS
