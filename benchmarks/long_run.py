"""Whether a long run stays flat: memory, open files and logs of one process, by the shards that it has made.

    python benchmarks/long_run.py [--shards=2000] [--rows=50] [--points=10]

A week of a crawl is thousands of shards in one process. Here they are small and come over loopback, so that what grows
with shards, rows or hosts shows in minutes: each row has a host of its own (`n.localhost`), a tenth fails, and some are
asked again. A thread takes the samples, after garbage was collected; the growth is that from the second sample to the
last. The server is a process of its own.
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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import any2ds

_PAGE = os.sysconf("SC_PAGE_SIZE")
_FILES = 50  # on the server


@dataclass(frozen=True, slots=True)
class Sample:
    """The process after so many shards."""

    shards: int
    memory: int  # bytes that are resident
    files: int  # open
    objects: int  # that the garbage collector knows
    state: int  # bytes in .any2ds, without the list of shards


class Sampler(threading.Thread):
    """Takes a sample when there are `every` shards more."""

    def __init__(self, output: Path, every: int) -> None:
        super().__init__(name="sampler", daemon=True)
        self._output, self._every = output, every
        self._ended = threading.Event()
        self.samples: list[Sample] = []
        self.start()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            names = os.listdir(self._output) if self._output.is_dir() else []
            shards = sum(name.endswith("_stats.json") for name in names)
            if shards >= self._every * (len(self.samples) + 1):
                self.samples.append(self._sample(shards))

    def _sample(self, shards: int) -> Sample:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        state = 0
        for path in (self._output / ".any2ds").rglob("*"):
            with contextlib.suppress(OSError):  # it is there for a moment only
                state += path.stat().st_size if path.is_file() and path.name != "shards" else 0
        return Sample(shards, pages * _PAGE, len(os.listdir("/proc/self/fd")), len(gc.get_objects()), state)


def rows(urls: list[str], count: int) -> Iterator[str]:
    for number in range(count):
        yield urls[number % len(urls)].replace("127.0.0.1", f"{number}.localhost" if number % 5 else "127.0.0.1")


@contextmanager
def served(media: Path) -> Iterator[str]:
    """The beginning of the URLs of its files."""
    script = media.parent / "script.json"
    script.write_text(json.dumps({"7.bin": ["503", "ok"], "11.bin": ["reset", "ok"]}), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "any2ds.testing.server", str(media), f"--script={script}", f"--port={port}"]
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


def run(folder: Path, shards: int, size: int, points: int) -> list[Sample]:
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
        any2ds.download(
            str(folder / "urls.txt"),
            output,
            number_sample_per_shard=size,
            output_format="webdataset",
            distributor="inline",
            retries=1,
            fsync=False,
            quiet=True,
            report=False,
            reporters="jsonl",
        )
        sampler.end()
    return sampler.samples


def main() -> None:
    parser = argparse.ArgumentParser(description="Says what grows in a process that makes very many shards.")
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=50, help="of a shard")
    parser.add_argument("--points", type=int, default=10, help="samples")
    parser.add_argument("--folder", default=None, help="for the dataset; the system's temporary one")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="any2ds-long-", dir=arguments.folder))
    try:
        began = time.process_time()
        samples = run(folder, arguments.shards, arguments.rows, arguments.points)
        print(f"{'shards':>8} {'MB':>8} {'open files':>11} {'objects':>10} {'KB of state':>12}")
        for each in samples:
            memory, state = each.memory / 1e6, each.state / 1e3
            print(f"{each.shards:8,} {memory:8.1f} {each.files:11,} {each.objects:10,} {state:12,.0f}")
        if len(samples) > 2:
            first, last = samples[1], samples[-1]
            by = last.shards - first.shards
            print(
                f"per shard: {(last.memory - first.memory) / by:,.0f} bytes,"
                f" {(last.files - first.files) / by:.4f} files,"
                f" {(last.objects - first.objects) / by:.2f} objects, {(last.state - first.state) / by:,.0f} bytes of"
                f" state; {time.process_time() - began:.0f} s of CPU"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
