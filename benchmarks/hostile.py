"""The command: fetches lists in which many servers misbehave, and says what that costs the rows that are good.

    python benchmarks/hostile.py [--rows N] [--pairs N] [--by_kind] [--thread_count N] [MIX ...]

The figures against their targets are in `run.py hostile`; this is a look at single runs. Each run is `download()` in
a process of its own, in pairs with a run of the good rows alone. `--by_kind` takes each kind by itself instead: its
CPU, and for how long it holds the place of a transfer. Exit code 1 if a row has no outcome or a wrong one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import certifi
import pyarrow.parquet as pq
from hostile_server import BAD_CERTIFICATES, HOSTS, address

TIMEOUT = 10  # seconds, any2ds's default
THREADS = "auto"  # any2ds's default
_OPTIONS = {"timeout": TIMEOUT, "max_file_bytes": 1_000_000, "number_sample_per_shard": 1000}
_GOOD_HOSTS = 200
_RSS_EVERY = 0.05  # seconds
_HANGS = ("timeout_total", "timeout_stalled", "host_down")


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to misbehave, and the outcomes that are right for it."""

    name: str
    codes: Sequence[str]
    share: float = 1.0  # of what every kind gets


KINDS = (
    Kind("404", ["http_404"]),
    Kind("429", ["http_429", "host_down"]),
    Kind("reset", ["reset"]),
    Kind("truncated", ["truncated"]),
    Kind("bad-chunk", ["protocol"]),
    Kind("endless", ["too_large"]),
    Kind("drip", _HANGS),
    Kind("never", _HANGS),
    Kind("gzip-bomb", ["too_large"]),
    Kind("loop", ["too_many_redirects"]),
    Kind("to-metadata", ["blocked_address"]),
    Kind("huge-headers", ["protocol", "headers_too_large"]),
    Kind("not-http", ["protocol"]),
    Kind("empty", ["empty_body"]),
    Kind("204", ["http_204"]),
    # A wrong length is two kinds: more is announced than comes, or less, which no client can tell from a good answer.
    Kind("length-too-long", _HANGS, 0.5),
    Kind("length-too-short", ["success"], 0.5),
    *(Kind(name, ["tls"]) for name in BAD_CERTIFICATES),
)
_NAMES = [kind.name for kind in KINDS]


@dataclass(frozen=True, slots=True)
class Mix:
    """How much of a list is bad."""

    name: str
    each: float  # share of each kind
    one_host: bool = False  # all of it at one host and port, without the kinds of TLS
    most_rows: int = 1_000_000
    goodput: float | None = None  # of the good rows, times that without the bad ones: the target


MIXES = (
    Mix("5 % of each kind", 0.05),
    Mix("a third bad", 1 / 3 / 19, goodput=0.8),
    Mix("a third bad, one host", 1 / 3 / 16, one_host=True, most_rows=1_000),
)
SHORT = {"literal": MIXES[0], "third": MIXES[1], "one-host": MIXES[2]}


class Server:
    """`hostile_server.py` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("hostile_server.py")), str(folder)]
        self._process = subprocess.Popen(
            [*command, json.dumps({kind: _hosts(kind) for kind in BAD_CERTIFICATES})], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._ports = json.loads(self._process.stdout.readline())
        self.bundle = folder / "bundle.pem"
        self.bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + (folder / "ca.pem").read_bytes())

    def url(self, kind: str, row: int, one_host: bool = False) -> str:
        hosts = _hosts(kind)
        host = address(0, 0) if one_host else hosts[row % len(hosts)]
        scheme = "https" if kind in BAD_CERTIFICATES else "http"
        return f"{scheme}://{host}:{self._ports.get(kind, self._ports['http'])}/{kind}/{row}.jpg"

    def stats(self) -> dict[str, float]:
        """What was seen since the last call: when the first good request came, when the last was answered, CPU."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._ports['http']}/stats", timeout=60) as answer:
            return dict(json.load(answer))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def start(scratch: Path) -> Iterator[Server]:
    folder = scratch / "certificates"
    folder.mkdir(exist_ok=True)
    server = Server(folder)
    try:
        yield server
    finally:
        server.close()


def _hosts(kind: str) -> list[str]:
    if kind == "good":
        return [address(0, number) for number in range(_GOOD_HOSTS)]
    return [address(1 + _NAMES.index(kind), number) for number in range(HOSTS)]


def rows_of(mix: Mix, rows: int, server: Server) -> list[tuple[str, str]]:
    """Kind and URL of each row, in random order."""
    found: list[tuple[str, str]] = []
    for kind in KINDS:
        if not (mix.one_host and kind.name in BAD_CERTIFICATES):
            count = round(rows * mix.each * kind.share)
            found += [(kind.name, server.url(kind.name, row, mix.one_host)) for row in range(count)]
    found += [("good", server.url("good", row, mix.one_host)) for row in range(rows - len(found))]
    random.Random(7).shuffle(found)
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """One list from start to end."""

    rows: int
    good: int
    good_seconds: float  # from the first good request to the last good answer
    seconds: float  # from the start of `download()` to its end
    cpu: float  # seconds
    server_cpu: float  # seconds
    files: tuple[int, int]  # descriptors that are open before and after
    rss: Mapping[str, int]  # bytes: at the start, in the second and in the last quarter (medians), and the peak
    outcomes: Mapping[str, Mapping[str, int]]  # kind -> code -> rows
    wrong: Mapping[str, Mapping[str, int]]  # the same, of those that are not as they should be

    @property
    def goodput(self) -> float:
        """Good rows per second, from the first request for one to the last answer."""
        return self.good / self.good_seconds


def run(rows: list[tuple[str, str]], server: Server, scratch: Path, threads: str = THREADS) -> Run:
    """Fetches rows in a process of its own."""
    output, urls = scratch / "output", scratch / "urls.txt"
    shutil.rmtree(output, ignore_errors=True)
    urls.write_text("".join(f"{url}\n" for _, url in rows), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= {"no_proxy": "*", "SSL_CERT_FILE": str(server.bundle), "TMPDIR": str(scratch)}
    options = {**_OPTIONS, "url_list": str(urls), "output_folder": str(output), "thread_count": threads}
    command = [sys.executable, __file__, "--client", json.dumps(options)]
    before = server.stats()["cpu"]
    samples: list[int] = []
    stopped = threading.Event()
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has warmed up
        samples.append(_rss(process.pid))

        def watch() -> None:
            while not stopped.wait(_RSS_EVERY):
                samples.append(_rss(process.pid))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            said = process.stdout.readline()
        except BaseException:
            process.kill()
            raise
        finally:
            stopped.set()
            thread.join()
    if process.returncode or not said:
        raise RuntimeError(f"the client ended with {process.returncode}")
    figures = json.loads(said)
    seen = server.stats()
    outcomes = _outcomes(rows, output)
    right = {"good": ["success"], **{kind.name: kind.codes for kind in KINDS}}
    wrong = {
        kind: found
        for kind, codes in outcomes.items()
        if (found := {code: count for code, count in codes.items() if code not in right[kind]})
    }
    samples = [sample for sample in samples if sample]
    quarter = max(1, len(samples) // 4)
    return Run(
        len(rows),
        sum(kind == "good" for kind, _ in rows),
        seen["last"] - seen["first"],
        figures["seconds"],
        figures["cpu"],
        seen["cpu"] - before,
        (figures["files_before"], figures["files_after"]),
        {
            "start": samples[0],
            "second quarter": int(statistics.median(samples[quarter : 2 * quarter] or samples)),
            "last quarter": int(statistics.median(samples[-quarter:])),
            "peak": max(samples),
        },
        outcomes,
        wrong,
    )


def _outcomes(rows: list[tuple[str, str]], output: Path) -> dict[str, dict[str, int]]:
    """Kind -> outcome -> rows, as the dataset says; `none` for rows that it does not have, and `twice`."""
    found: dict[str, Counter[str]] = {}
    left = {url: kind for kind, url in rows}
    for file in sorted(output.glob("*.parquet")):
        table = pq.read_table(file, columns=["url", "error_code"])
        for url, code in zip(table["url"].to_pylist(), table["error_code"].to_pylist(), strict=True):
            kind = left.pop(url, None)
            found.setdefault(kind or "good", Counter())["twice" if kind is None else code or "success"] += 1
    for kind in left.values():
        found.setdefault(kind, Counter())["none"] += 1
    return {kind: dict(codes) for kind, codes in found.items()}


def _rss(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _client(options: dict[str, Any]) -> None:
    """What runs in the process that is measured."""
    from any2ds import download

    options |= {"output_format": "webdataset", "distributor": "inline", "quiet": True}
    warm = {**options, "output_folder": options["output_folder"] + "-warm", "url_list": ["http://127.0.0.1:1/"]}
    download(**warm)  # imports, and what libraries open once
    files = _open_files()
    print("ready", flush=True)
    started, cpu = time.monotonic(), time.process_time()
    download(**options)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    settled = time.monotonic() + 5  # libcurl is closed in a thread of its own
    while _open_files() > files and time.monotonic() < settled:
        time.sleep(0.05)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "files_before": files, "files_after": _open_files()}), flush=True)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True, slots=True)
class Pair:
    """A mix, and its good rows alone."""

    mixed: Run
    alone: Run

    @property
    def goodput(self) -> float:
        return self.mixed.goodput / self.alone.goodput

    @property
    def over(self) -> float:
        """Seconds that the mix takes longer than its good rows alone."""
        return self.mixed.seconds - self.alone.seconds


def pairs(mix: Mix, rows: int, count: int, server: Server, scratch: Path, threads: str = THREADS) -> Iterator[Pair]:
    """Runs with and without the bad rows, which take turns in coming first."""
    mixed = rows_of(mix, rows, server)
    alone = [row for row in mixed if row[0] == "good"]
    for number in range(count):
        found = {}
        for side in sorted(("mixed", "alone"), reverse=bool(number % 2)):
            found[side] = run(mixed if side == "mixed" else alone, server, scratch, threads)
        yield Pair(found["mixed"], found["alone"])


class Timed:
    """A transport that notes how long each attempt holds its place."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._since: dict[Any, float] = {}
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start(self, attempt: Any, url: str) -> None:
        self._since[attempt] = time.monotonic()
        self._transport.start(attempt, url)

    def poll(self, wait: float) -> list[Any]:
        ended = self._transport.poll(wait)
        for attempt, _ in ended:
            self._note(attempt)
        return list(ended)

    def cancel(self, attempt: Any) -> Any:
        self._note(attempt)
        return self._transport.cancel(attempt)

    def _note(self, attempt: Any) -> None:
        self.seconds.append(time.monotonic() - self._since.pop(attempt))


def by_kind(kind: str, rows: int, server: Server) -> dict[str, Any]:
    """One kind alone, in this process: the fetcher without what writes."""
    from any2ds.config.options import Config
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.core.failures import Failure
    from any2ds.core.rows import Row
    from any2ds.fetch.fetcher import UrlFetcher

    os.environ["SSL_CERT_FILE"] = str(server.bundle)
    options = Config.from_options({"url_list": "-", "timeout": TIMEOUT, "max_file_bytes": 1_000_000}).fetch
    codes: Counter[str] = Counter()
    with contextlib.closing(UrlFetcher(options, Buffer(1 << 28, options.most_transfers))) as fetcher:
        timed: Any = Timed(fetcher._transport)
        fetcher._transport = timed
        before, started, cpu = server.stats()["cpu"], time.monotonic(), time.process_time()
        for batch in fetcher.fetch(Row(0, n, f"{n:09d}", server.url(kind, n)) for n in range(rows)):
            for fetched in batch:
                if isinstance(fetched.outcome, Failure):
                    codes[fetched.outcome.code] += 1
                else:
                    codes["success"] += 1
                    fetched.outcome.body.release()
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    return {
        "kind": kind,
        "cpu": cpu / rows,
        "server_cpu": (server.stats()["cpu"] - before) / rows,
        "place": sum(timed.seconds) / rows,
        "attempts": len(timed.seconds) / rows,
        "seconds": seconds,
        "codes": dict(codes),
    }


def _print_kinds(console: Any, server: Server, rows: int = 500) -> int:
    from rich.table import Table

    table = Table("kind", "CPU µs", "server's µs", "place held, s", "attempts", "all, s", "outcomes")
    by_kind("good", rows, server)  # imports
    for kind in ["good", *_NAMES]:
        found = by_kind(kind, rows, server)
        table.add_row(
            kind,
            f"{found['cpu'] * 1e6:.0f}",
            f"{found['server_cpu'] * 1e6:.0f}",
            f"{found['place']:.3f}",
            f"{found['attempts']:.2f}",
            f"{found['seconds']:.1f}",
            ", ".join(f"{code} {count}" for code, count in found["codes"].items()),
        )
    console.print(table)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what bad servers cost the good rows, on loopback.")
    parser.add_argument("mixes", nargs="*", metavar="mix", help=f"of {', '.join(SHORT)}; all of them by default")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--thread_count", default=THREADS)
    parser.add_argument("--by_kind", action="store_true", help="each kind by itself")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        _client(json.loads(arguments.client))
        return 0
    if unknown := set(arguments.mixes) - set(SHORT):
        parser.error(f"no such mix: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of what ends the other processes
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    broken = False
    with tempfile.TemporaryDirectory(prefix="any2ds-bench-") as folder, start(Path(folder)) as server:
        if arguments.by_kind:
            return _print_kinds(console, server)
        for name in arguments.mixes or SHORT:
            mix = SHORT[name]
            rows = min(arguments.rows, mix.most_rows)
            console.print(f"{mix.name}, {rows:,} rows:")
            for pair in pairs(mix, rows, arguments.pairs, server, Path(folder), arguments.thread_count):
                console.print(f"  {_said(pair)}", markup=False)
                broken |= bool(pair.mixed.wrong or pair.alone.wrong)
    return 1 if broken else 0


def _said(pair: Pair) -> str:
    mixed, alone = pair.mixed, pair.alone
    return (
        f"goodput {mixed.goodput:.0f}/s : {alone.goodput:.0f}/s = {pair.goodput:.2f}; "
        f"good {mixed.good_seconds:.1f} s : {alone.good_seconds:.1f} s, "
        f"all {mixed.seconds:.1f} s : {alone.seconds:.1f} s; CPU {mixed.cpu:.1f} s : {alone.cpu:.1f} s, "
        f"server {mixed.server_cpu:.1f} s : {alone.server_cpu:.1f} s; files {mixed.files}; "
        f"RSS { ({k: v // 1_000_000 for k, v in mixed.rss.items()}) }; wrong {mixed.wrong} {alone.wrong}"
    )


if __name__ == "__main__":
    sys.exit(main())
