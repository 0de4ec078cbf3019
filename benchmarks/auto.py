"""What `thread_count=auto` finds: held against the best fixed number, and before servers that do not bear a crowd.

    python benchmarks/auto.py                    # everything, about 20 minutes
    python benchmarks/auto.py latency crowds     # some of it: latency, processor, losses, crowds, changes

any2ds runs as a command, one process, against `crowded.py` on loopback; rates are stored files per second from the
first row's start to the last file's end, the time in which auto finds its number included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Bench, Broken, _janitor

_DELAY = 0.2  # seconds
_FIXED = (64, 256, 1000, 2000, 3000)
_SECONDS = 25  # of a run, about
_PAIRS = 3
_BEARS = 50


@dataclass(frozen=True, slots=True)
class Found:
    """One run."""

    rate: float  # files stored per second
    failed: int  # rows
    cpu: float  # seconds for each row, of all processes


class Crowded:
    """The server as a process of its own."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, str(Path(__file__).with_name("crowded.py"))]
        command += [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def url(self, number: int, hosts: int, path: str = "file") -> str:
        host = "127.0.0.1" if hosts == 1 else f"127.0.1.{number % hosts + 1}"
        return f"http://{host}:{self._port}/{path}/{number}"

    def ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}") as answer:
            return bytes(answer.read())

    def crowd(self) -> dict[str, Any]:
        return dict(json.loads(self.ask("crowd")))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def crowded(**options: Any) -> Iterator[Crowded]:
    server = Crowded(**options)
    try:
        yield server
    finally:
        server.close()


def run(bench: Bench, server: Crowded, rows: int, hosts: int, thread_count: str, hanging: float = 0.0) -> Found:
    """Fetch `rows` files, of which a share hangs."""
    urls = bench.scratch / "urls.txt"
    every = round(1 / hanging) if hanging else 0
    with urls.open("w", encoding="ascii") as file:
        for number in range(rows):
            file.write(server.url(number, hosts, "never" if every and number % every == 7 else "file") + "\n")
    shutil.rmtree(bench.output, ignore_errors=True)
    command = bench.any2ds_command(urls, thread_count=thread_count, processes_count=1, number_sample_per_shard=1000)
    try:
        with _janitor(bench.output) as stats:
            ran = bench._run(command, 0)
        stored = sum(report["successes"] for report in stats)
        failed = sum(report["count"] for report in stats) - stored
        seconds = max(report["end_time"] for report in stats) - min(report["start_time"] for report in stats)
        return Found(stored / seconds, failed, ran.cpu / rows)
    finally:
        shutil.rmtree(bench.output, ignore_errors=True)


def compare(bench: Bench, server: Crowded, name: str, fixed: dict[str, int], hanging: float = 0.0) -> None:
    """`fixed` tells how many rows each thread_count gets. The best one and auto then run in pairs that take turns in
    coming first: a machine changes by the minute, the ratio within a pair less."""

    def rate(thread_count: str, rows: int) -> float:
        found = run(bench, server, rows, 1, thread_count, hanging)
        say(f"{name}, thread_count={thread_count}: {found.rate:,.0f}/s, {1e6 * found.cpu:.0f} µs CPU per row")
        return found.rate

    rates = {thread_count: rate(thread_count, rows) for thread_count, rows in fixed.items()}
    best = max(rates, key=lambda thread_count: rates[thread_count])
    ratios = []
    for turn in range(_PAIRS):
        pair = ["auto", best] if turn % 2 else [best, "auto"]
        found = {thread_count: rate(thread_count, fixed[best]) for thread_count in pair}
        ratios.append(found["auto"] / found[best])
    said = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    say(f"{name}: auto {statistics.median(ratios):.2f} x the best fixed ({best}), of {said}")


def latency(bench: Bench) -> None:
    with crowded(delay=_DELAY) as server:
        limit = run(bench, server, 60_000, 1, "2000").rate
        rows = {str(n): round(min(n / _DELAY, limit) * _SECONDS) for n in _FIXED}
        compare(bench, server, "0.2 s latency", rows)
        # The rows that hang end the run 10 s later than the others, for both.
        compare(bench, server, "3 % hang", dict.fromkeys(("1000", "2000"), 60000), hanging=0.03)


def processor(bench: Bench) -> None:
    with crowded(delay=0) as server:
        rows = round(run(bench, server, 30_000, 1, "256").rate * _SECONDS / 2)
        compare(bench, server, "no latency", dict.fromkeys(("64", "256"), rows))


def losses(bench: Bench) -> None:
    """What it loses to servers that bear less than it tries, and what a fixed number loses there."""
    for beyond in ("503", "reset", "hang"):
        for hosts in (1, 100):
            for bears in (_BEARS, 300):
                for thread_count in ("256", "auto"):
                    with crowded(delay=0.1, bears=bears, beyond=beyond) as server:
                        found = run(bench, server, 40 * bears + 4000, hosts, thread_count)
                    say(
                        f"{beyond} beyond {bears}, {hosts} host{'s' * (hosts > 1)}, thread_count={thread_count}: "
                        f"{found.rate:.0f}/s, {found.failed} of {40 * bears + 4000} rows failed"
                    )


def crowds(bench: Bench) -> None:
    """Where it settles, as the server sees it."""
    for beyond in ("503", "reset", "fall", "explode", "hang"):
        for hosts in (1, 100):
            after = 60 if beyond == "hang" else 10
            with crowded(delay=0.1, bears=_BEARS, beyond=beyond) as server:
                with watched(server) as seen:
                    found = run(bench, server, 20_000 if beyond == "hang" else 12_000, hosts, "auto")
                # Not the beginning, and not the end of the list.
                settled = [crowd for crowd in seen if crowd["at"] > after][:-2]
                say(
                    f"{beyond} beyond {_BEARS}, {hosts} host{'s' * (hosts > 1)}: from {after} s on "
                    f"{statistics.fmean(crowd['mean'] for crowd in settled):.0f} in flight, at most "
                    f"{max(crowd['most'] for crowd in settled)}, "
                    f"{sum(c['answered'] for c in settled) / sum(c['seconds'] for c in settled):.0f}/s; "
                    f"over all {found.rate:.0f}/s, {found.failed} rows failed"
                )


def changes(bench: Bench) -> None:
    """A server that answers after 0.1 s, then 0.6 s, then 0.1 s."""
    with crowded(delay=0.1) as server:
        plan = [threading.Timer(15, server.ask, ["delay/0.6"]), threading.Timer(40, server.ask, ["delay/0.1"])]
        with watched(server) as seen:
            for timer in plan:
                timer.start()
            run(bench, server, 250_000, 1, "auto")
            for timer in plan:
                timer.cancel()
        for crowd in seen:
            rate = crowd["answered"] / crowd["seconds"]
            say(f"changes, {crowd['at']:3.0f} s: {crowd['mean']:5.0f} in flight, {rate:6,.0f}/s")


@contextmanager
def watched(server: Crowded) -> Iterator[list[dict[str, Any]]]:
    """What the server has seen in every 2.5 s; `at` is in seconds."""
    seen: list[dict[str, Any]] = []
    stopped = threading.Event()
    start = time.monotonic()

    def work() -> None:
        while not stopped.wait(2.5):
            seen.append({**server.crowd(), "at": time.monotonic() - start})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> int:
    parts = {part.__name__: part for part in (latency, processor, losses, crowds, changes)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(parts))
    wanted = parser.parse_args().parts or list(parts)
    if unknown := set(wanted) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        bench = Bench(Path(scratch), False, lambda: None, None)
        try:
            for name in wanted:
                parts[name](bench)
        except Broken as error:
            say(f"broken: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
