"""What the start of a run takes: one row as a whole process, and the time until the first request.

    python benchmarks/start.py [--pairs=9] [--any2ds="python -m any2ds"]

Each is held against `python -c "import pyarrow.parquet"`, in pairs that take turns in coming first.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.testing.server import Server, serve

_IMPORT = [sys.executable, "-c", "import pyarrow.parquet"]


class Took(NamedTuple):
    wall: float  # seconds, as are the others
    cpu: float  # of all processes
    first: float = 0.0  # until the first request


def took(command: Sequence[str], server: Server) -> Took:
    """Raises CalledProcessError if it fails."""
    server.requests.clear()
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    first = server.requests[0].at - began if server.requests else 0.0
    return Took(wall, used.ru_utime + used.ru_stime, first)


def pairs(one: Callable[[], Took], other: Callable[[], Took], count: int) -> list[tuple[Took, Took]]:
    """After one pair for the caches of the disk."""
    found = []
    for number in range(count + 1):
        first = one() if number % 2 else None
        second = other()
        found.append((first or one(), second))
    return found[1:]


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def write_lists(folder: Path, url: str) -> dict[str, Path]:
    lists = {kind: folder / f"urls.{kind}" for kind in ("txt", "csv", "parquet")}
    lists["txt"].write_text(f"{url}\n", encoding="utf-8")
    lists["csv"].write_text(f"url\n{url}\n", encoding="utf-8")
    pq.write_table(pa.table({"url": [url]}), lists["parquet"])
    return lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--any2ds", default=f"{sys.executable} -m any2ds", help="the command")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, serve(name) as server:
        (Path(name) / "a").write_bytes(b"hello")
        lists = write_lists(Path(name), server.url("a"))
        number = 0

        def run(kind: str, *options: str) -> Took:
            nonlocal number
            number += 1
            output = f"{name}/out{number}"
            command = [*shlex.split(given.any2ds), str(lists[kind]), output, "--output_format=webdataset", *options]
            return took(command, server)

        print("| one row | wall : import | CPU : import | first request : import | wall | CPU | first |")
        print("|---|---|---|---|---|---|---|")
        for kind, *options in [("txt",), ("txt", "--report=false"), ("csv",), ("parquet",)]:
            found = pairs(lambda: took(_IMPORT, server), lambda: run(kind, *options), given.pairs)  # noqa: B023
            ratios = [(own.wall / base.wall, own.cpu / base.cpu, own.first / base.wall) for base, own in found]
            shown = [f"{value:.2f}" for value in medians(ratios)]
            shown += [f"{value:.2f} s" for value in medians([own for _, own in found])]
            print(f"| {' | '.join([' '.join([kind, *options]), *shown])} |")


if __name__ == "__main__":
    main()
