"""The command: fetches from 10 000 hosts whose names a lossy server resolves, and prints the rates and what was lost.

    python benchmarks/dns.py [--hosts N] [--json FILE]

Name server and web server are processes of their own on loopback. Exit code 1 if a row was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

from rich.console import Console
from rich.table import Table

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.fetch.engines.dns import IN_FLIGHT, Resolver
from any2ds.fetch.fetcher import UrlFetcher

_DROPS = (0.0, 0.2)  # shares of the questions that get no answer
_REPEATS = 100_000  # look-ups of a known name


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures name resolution over a lossy name server, on loopback.")
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="where the figures go beside the table")
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory(prefix="any2ds-bench-") as www, _server("any2ds.testing.server", www) as web:
        (Path(www) / "a").write_bytes(b"x" * 1000)
        base = web.rstrip("/").rpartition(":")[2]
        for drop in _DROPS:
            with _server("tests.support.dns", "--drop", str(drop)) as names:
                figures.append({"what": "look-ups", "drop": drop, **_resolve(arguments.hosts, names)})
            with _server("tests.support.dns", "--drop", str(drop)) as names:
                figures.append({"what": "files", "drop": drop, **_fetch(arguments.hosts, names, base)})
    table = Table("what", "questions lost", "count", "seconds", "per second", "CPU µs each", "lost", "known name, µs")
    for figure in figures:
        table.add_row(
            figure["what"],
            f"{figure['drop']:.0%}",
            str(arguments.hosts),
            f"{figure['seconds']:.1f}",
            f"{arguments.hosts / figure['seconds']:.0f}",
            f"{figure['cpu'] / arguments.hosts * 1e6:.0f}",
            str(sum(figure["failures"].values())),
            f"{figure['known'] * 1e6:.2f}" if "known" in figure else "",
        )
    Console(highlight=False).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if any(figure["failures"] for figure in figures) else 0


def _resolve(count: int, nameserver: str) -> dict[str, Any]:
    """Names alone, as many waiting as the resolver takes at once."""
    rang = threading.Event()
    resolver = Resolver((nameserver,), rang.set)
    failures: Counter[str] = Counter()
    started, cpu = time.monotonic(), time.process_time()
    left, waiting = iter(range(count)), 0
    done = 0
    while done < count:
        while waiting < IN_FLIGHT and (number := next(left, None)) is not None:
            resolver.lookup(f"h{number}.example.test")
            waiting += 1
        rang.wait(1)
        rang.clear()
        for _, outcome in resolver.finished():
            done, waiting = done + 1, waiting - 1
            if isinstance(outcome, Failure):
                failures[outcome.detail] += 1
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    started = time.perf_counter()
    for _ in range(_REPEATS):
        resolver.lookup("h0.example.test")
    known = (time.perf_counter() - started) / _REPEATS
    resolver.close()
    return {"seconds": seconds, "cpu": cpu, "failures": dict(failures), "known": known}


def _fetch(count: int, nameserver: str, port: str) -> dict[str, Any]:
    """A file from each host, with the options that a user has by default."""
    options = Config.from_options({"url_list": "-", "nameservers": nameserver}).fetch
    rows = (Row(0, n, f"{n:09d}", f"http://h{n}.example.test:{port}/a") for n in range(count))
    failures: Counter[str] = Counter()
    started, cpu = time.monotonic(), time.process_time()
    with contextlib.closing(UrlFetcher(options, Buffer(1 << 28, options.most_transfers))) as fetcher:
        done = 0
        for batch in fetcher.fetch(rows):
            for fetched in batch:
                done += 1
                if isinstance(fetched.outcome, Failure):
                    failures[f"{fetched.outcome.code}: {fetched.outcome.detail}"] += 1
                else:
                    fetched.outcome.body.release()
    if done != count:
        failures["no outcome"] = count - done
    return {
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
        "failures": dict(failures),
    }


@contextlib.contextmanager
def _server(module: str, *arguments: str) -> Iterator[str]:
    """The first line that it writes: its address."""
    command = [sys.executable, "-m", module, *arguments]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())
