"""Whether a long run stays flat: memory, open files and logs of one process, by the shards that it has made.

    python benchmarks/long_run.py [--shards=2000] [--rows=50] [--points=10] [--threads=32]

A week of a crawl is thousands of shards in one process. Here they are small and come over loopback, so that what grows
with shards, rows or hosts shows in minutes: most rows have an address of their own in 127.0.0.0/8, a tenth fails, and
some are asked again. What is remembered of hosts has bounds that are reached after some 20,000 of them
(`rules.refuses`, `profiles`, the origins of `curl.py`, 50,000 in `robots.py` and 100,000 names in `dns.py`); the growth
is that from the second sample to the last. `--threads=auto` adds what the window of `auto` grows: idle connections are
kept, as many as may be in flight. The server is a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from any2ds.config.options import Config
from any2ds.core.reports import ShardError, ShardReport
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Reporter

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILES = 50  # on the server


@dataclass(frozen=True, slots=True)
class Sample:
    """The process after so many shards."""

    shards: int
    memory: int  # bytes that are resident
    files: int  # open
    objects: int  # that the garbage collector knows
    log: int  # bytes of the log of the reporter jsonl
    state: int  # bytes of what else is in .any2ds, without the list of shards


class Sampler(Reporter):
    """Takes a sample when there are `every` shards more."""

    def __init__(self, output: Path, every: int) -> None:
        self._output, self._every = output, every
        self._shards = 0
        self.samples: list[Sample] = []

    def on_shard(self, event: ShardReport | ShardError) -> None:
        self._shards += 1
        if self._shards % self._every == 0:
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        sizes = {"log": 0, "state": 0}
        for path in (self._output / ".any2ds").rglob("*"):
            with contextlib.suppress(OSError):  # it is there for a moment only
                if path.is_file() and path.name != "shards":
                    sizes["log" if path.suffix == ".log" else "state"] += path.stat().st_size
        objects = len(gc.get_objects())
        return Sample(self._shards, pages * _PAGE, len(os.listdir("/proc/self/fd")), objects, **sizes)


def rows(urls: list[str], count: int) -> Iterator[str]:
    for number in range(count):
        host = f"127.{1 + number // 64516 % 250}.{1 + number // 254 % 254}.{1 + number % 254}"
        yield urls[number % len(urls)].replace("127.0.0.1", host if number % 5 else "127.0.0.1")


@contextmanager
def served(media: Path) -> Iterator[str]:
    """The beginning of the URLs of its files, on all addresses of 127.0.0.0/8."""
    script = media.parent / "script.json"
    script.write_text(json.dumps({"7.bin": ["503", "ok"], "11.bin": ["reset", "ok"]}), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "any2ds.testing.server", str(media), "--host=0.0.0.0"]
    command += [f"--script={script}", f"--port={port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def run(folder: Path, shards: int, size: int, points: int, threads: str) -> list[Sample]:
    """Make `shards` shards of `size` rows in this process, and return `points` samples."""
    media = folder / "media"
    media.mkdir()
    for number in range(_FILES):
        if number % 10:
            (media / f"{number}.bin").write_bytes(b"a file of some bytes %d" % number)
    output = folder / "dataset"
    sampler = Sampler(output, max(1, shards // points))
    with served(media) as base, (folder / "urls.txt").open("w", encoding="ascii") as file:
        urls = [f"{base}{number}.bin" for number in range(_FILES)]
        file.writelines(f"{url}\n" for url in rows(urls, shards * size))
        file.flush()
        config = Config.from_options(
            {
                "url_list": str(folder / "urls.txt"),
                "output_folder": output,
                "number_sample_per_shard": size,
                "output_format": "webdataset",
                "distributor": "inline",
                "thread_count": threads,
                "retries": 1,
                "fsync": False,
                "quiet": True,
                "report": False,
                "reporters": "jsonl",
            }
        )
        make_dataset(config, more=[sampler])
    return sampler.samples


def main() -> None:
    parser = argparse.ArgumentParser(description="Says what grows in a process that makes very many shards.")
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=50, help="of a shard")
    parser.add_argument("--points", type=int, default=10, help="samples")
    parser.add_argument("--threads", default="32", help="transfers in flight, or auto")
    parser.add_argument("--folder", default=None, help="for the dataset; the system's temporary one")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="any2ds-long-", dir=arguments.folder))
    try:
        began = time.process_time()
        samples = run(folder, arguments.shards, arguments.rows, arguments.points, arguments.threads)
        print(f"{'shards':>8} {'MB':>8} {'open files':>11} {'objects':>10} {'KB of log':>10} {'KB of state':>12}")
        for each in samples:
            memory, log, state = each.memory / 1e6, each.log / 1e3, each.state / 1e3
            print(f"{each.shards:8,} {memory:8.1f} {each.files:11,} {each.objects:10,} {log:10,.0f} {state:12,.1f}")
        if len(samples) > 2:
            first, last = samples[1], samples[-1]
            by = last.shards - first.shards
            print(
                f"per shard: {(last.memory - first.memory) / by:,.0f} bytes,"
                f" {(last.files - first.files) / by:.4f} files,"
                f" {(last.objects - first.objects) / by:.2f} objects, {(last.log - first.log) / by:,.0f} bytes of log,"
                f" {(last.state - first.state) / by:,.0f} of state; {time.process_time() - began:.0f} s of CPU"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
