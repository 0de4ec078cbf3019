"""What it takes to cut a huge list into jobs: memory and CPU of the process that does it, and rows per second.

    python benchmarks/planning.py [--rows=100000000] [--shard=10000] [--format=parquet] [--repeats=0] [--dedupe=run ...]

It is the command `any2ds` itself, with the further options of the command line, but for its workers: `Scripted`, a
distributor, reports at once that each job is done, and leaves its `_stats.json`. The CPU of that is counted apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import RunOptions
from any2ds.core.reports import Event, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Worker

_MOST_MEMORY = 400_000_000  # bytes that the driver may take
_HEAD, _RANDOM, _END = b"https://images.example.org/media/full/", 14, b".jpg"  # with two digits a byte, 70 bytes
_PART = 1_000_000  # rows made at once, which are a row group
_TEXT = {  # format -> what begins the file, and what stands before and after a URL
    "txt": (b"", b"", b"\n"),
    "csv": (b"url\n", b"", b"\n"),
    "tsv": (b"url\n", b"", b"\n"),
    "jsonl": (b"", b'{"url": "', b'"}\n'),
}
_FAILING = "ANY2DS_BENCH_FAILING"  # of so many shards one fails whenever it is tried; 0: none does
_OUTPUT = "ANY2DS_BENCH_OUTPUT"
_TOLD = "ANY2DS_BENCH_TOLD"  # where the distributor leaves what it saw
_CODES = ("http_404", "connect", "dns", "timeout_total")


class Scripted:
    """The distributor: takes a job, and reports it."""

    def __init__(self, options: RunOptions) -> None:
        """Takes no option."""
        self._failing = int(os.environ[_FAILING])
        self._jobs = self._rows = self._bytes = 0
        self._began = self._own = 0.0

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        folder = Path(os.environ[_OUTPUT])
        self._began = self._began or time.monotonic()
        for job in jobs:
            self._jobs += 1
            if self._failing and job.shard_id % self._failing == 0:
                yield ShardError(job.shard_id, "it was scripted to fail", attempt=job.attempt)
                continue
            self._rows += job.count
            self._bytes += len(job.rows)
            began = time.thread_time()
            report = _report(job)
            (folder / f"{job.shard_id:05d}_stats.json").write_bytes(json.dumps(report.to_json()).encode())
            self._own += time.thread_time() - began
            yield report
        reported = {
            "jobs": self._jobs,
            "rows": self._rows,
            "bytes": self._bytes,
            "seconds": time.monotonic() - self._began,
            "own": self._own,
        }
        Path(os.environ[_TOLD]).write_text(json.dumps(reported), encoding="utf-8")

    def stop(self, grace: float) -> None:
        """It does not take long."""


PART = Scripted


def _report(job: ShardJob) -> ShardReport:
    """As of a list of which a tenth fails, in some ways."""
    lost = job.count // 10
    each = lost // len(_CODES)
    statuses = {"success": job.count - each * len(_CODES), **dict.fromkeys(_CODES, each)}
    return ShardReport(
        shard_id=job.shard_id,
        count=job.count,
        successes=statuses["success"],
        failed_to_download=job.count - statuses["success"],
        samples=statuses["success"],
        bytes=100_000 * statuses["success"],
        start_time=time.time() - 60,
        end_time=time.time(),
        status_dict=statuses,
        urls_sha256=job.fingerprint,
        exts={"jpg": statuses["success"]},
        attempts=job.count + 3 * each,
        examples={code: f"https://images.example.org/{code}" for code in _CODES},
        latencies=dict.fromkeys(range(20), job.count // 20),
    )


def make_list(
    folder: Path, rows: int, files: int, format: str = "parquet", repeats: float = 0, compression: str = "snappy"
) -> None:
    """URLs of 70 bytes in `files` files, of which a share `repeats` stands in earlier rows; memory holds a million."""
    random = np.random.default_rng(0)
    before = 0
    for number in range(files):
        end = rows * (number + 1) // files
        path = folder / f"list-{number:03d}.{format}"
        schema = pa.schema([("url", pa.string())])
        with ExitStack() as stack:
            if format == "parquet":
                parquet = pq.ParquetWriter(path, schema, compression=compression, use_dictionary=False)
                stack.enter_context(parquet)
            else:
                text = stack.enter_context(open(path, "wb"))
                text.write(_TEXT[format][0])
            while before < end:
                count = min(_PART, end - before)
                numbers = np.arange(before, before + count, dtype=np.uint64)
                are_repeats = random.random(count) < repeats
                numbers[are_repeats] = random.integers(0, numbers[are_repeats] + 1)
                if format == "parquet":
                    urls = _lines(numbers, b"", b"")
                    ends = np.arange(count + 1, dtype=np.int32) * urls.shape[1]
                    array = pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(urls))
                    parquet.write_batch(pa.record_batch([array], schema=schema))
                else:
                    text.write(_lines(numbers, *_TEXT[format][1:]))
                before += count


def _lines(numbers: np.ndarray, before: bytes, after: bytes) -> np.ndarray:
    """The URL of each number, as bytes, between `before` and `after`."""
    words = np.empty((len(numbers), 2), np.uint64)
    for place in range(2):  # SplitMix64
        bits = (numbers * np.uint64(2) + np.uint64(place)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[:, place] = bits ^ (bits >> np.uint64(31))
    random = words.view(np.uint8)[:, :_RANDOM].tobytes()
    digits = np.frombuffer(random.hex().encode(), np.uint8).reshape(len(numbers), 2 * _RANDOM)
    head, end = before + _HEAD, _END + after
    lines = np.empty((len(numbers), len(head) + 2 * _RANDOM + len(end)), np.uint8)
    lines[:, : len(head)] = np.frombuffer(head, np.uint8)
    lines[:, len(head) : -len(end)] = digits
    lines[:, -len(end) :] = np.frombuffer(end, np.uint8)
    return lines


def _with_distributor(scratch: Path) -> dict[str, str]:
    """An environment in which any2ds finds `--distributor=scripted`, as that of another package."""
    about = scratch / "packages" / "any2ds_benchmark-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: any2ds-benchmark\nVersion: 0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[any2ds.distributors]\nscripted = planning:PART\n", encoding="utf-8")
    here = Path(__file__).resolve().parent
    paths = [str(about.parent), str(here), str(here.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}


def measure(scratch: Path, urls: Path, shard: int, failing: int, options: Sequence[str]) -> None:
    """Run it, and say what it took."""
    reported, output = scratch / "told.json", scratch / "output"
    command = [
        *(sys.executable, "-m", "any2ds", f"--url_list={urls}", f"--input_format={next(urls.iterdir()).suffix[1:]}"),
        *(f"--output_folder={output}", "--output_format=dummy", "--distributor=scripted"),
        *(f"--number_sample_per_shard={shard}", "--quiet=True", "--report=False", *options),
    ]
    environment = {**_with_distributor(scratch), _FAILING: str(failing), _OUTPUT: str(output), _TOLD: str(reported)}
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, cwd=scratch)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode, wall = os.waitstatus_to_exitcode(status), time.monotonic() - began
    if process.returncode != (1 if failing else 0):
        raise SystemExit(f"any2ds ended with {process.returncode}")
    found = json.loads(reported.read_text(encoding="utf-8"))
    cpu, memory = usage.ru_utime + usage.ru_stime - found["own"], usage.ru_maxrss * 1024
    print(
        f"{' '.join([urls.name, *options])}: {found['rows']:,} rows in {found['jobs']:,} jobs of "
        f"{found['bytes'] / found['jobs'] / 1e3:,.0f} KB: {found['rows'] / found['seconds']:,.0f} rows/s "
        f"({found['seconds']:.1f} s; {wall:.1f} s from start to exit, {cpu:.1f} s of CPU, that is "
        f"{cpu / found['rows'] * 1e6:.2f} us a row, and {found['own']:.1f} s for the workers), "
        f"at most {memory / 1e6:,.0f} MB in memory (wanted {_MOST_MEMORY / 1e6:,.0f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cuts a huge list into jobs.")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shard", type=int, default=10_000, help="rows of a job")
    parser.add_argument("--files", type=int, default=8, help="of the list")
    parser.add_argument("--format", choices=["parquet", *_TEXT], default="parquet", help="of the list")
    parser.add_argument("--compression", default="snappy", help="of a parquet list; zstd takes a quarter of the room")
    parser.add_argument("--repeats", type=float, default=0, help="share of the rows with a URL of earlier rows, 0 to 1")
    parser.add_argument("--failing", type=int, default=0, help="one shard of so many fails, whenever it is tried")
    parser.add_argument("--folder", default=None, help="for the list, 6 GB; the system's temporary one")
    parser.add_argument("--list", type=Path, default=None, help="a list that is there already, and stays")
    arguments, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="any2ds-planning-", dir=arguments.folder) as name:
        scratch, urls = Path(name), arguments.list
        if urls is None:
            urls = scratch / "list"
            urls.mkdir()
            began = time.monotonic()
            make_list(urls, arguments.rows, arguments.files, arguments.format, arguments.repeats, arguments.compression)
            size = sum(file.stat().st_size for file in urls.iterdir())
            print(f"the list: {size / 1e9:.1f} GB, made in {time.monotonic() - began:.0f} s", flush=True)
        measure(scratch, urls, arguments.shard, arguments.failing, options)


if __name__ == "__main__":
    main()
