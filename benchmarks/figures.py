"""The figures: what each one runs, in pairs that alternate, and the target it is held against."""

from __future__ import annotations

import os
import random
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hostile as bad_servers
import pyarrow as pa
import pyarrow.parquet as pq
from measure import Bench, Broken, Run, interrupt
from servers import DELAY, Server
from slow import other_hosts

from any2ds.config.options import declared

FILES = 1000
SIZES = {"100 KB": 100_000, "20 KB": 20_000, "2 KB": 2_000}
HASHES = {"sha256": {"compute_md5": False, "compute_hash": "sha256"}, "md5": {}}  # md5 is any2ds's default
TIMEOUT = 10  # seconds, any2ds's default
_WGET_THREADS = 16
HANGING = 0.03  # share of URLs that never answer


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a benchmark may take."""

    pairs: int
    rows: int  # of the lists over keep-alive HTTP
    https_rows: int
    process_rows: int
    hanging_pairs: int
    hanging_rows: Mapping[str, int]  # by size of file
    timeout: int  # seconds, where URLs hang
    hostile_pairs: int
    hostile_rows: int
    memory_rows: int
    memory_seconds: float
    safety_rounds: int
    safety_rows: int


FULL = Effort(
    5, 10_000, 2_000, 16_000, 1, {"20 KB": 450_000, "100 KB": 100_000}, TIMEOUT, 3, 20_000, 10_000_000, 20.0, 9, 10_000
)
QUICK = Effort(1, 2_000, 300, 2_000, 1, {"20 KB": 10_000}, 2, 1, 2_000, 300_000, 3.0, 1, 2_000)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `spread` is the value in each pair; `value` their median."""

    name: str
    value: float
    unit: str
    said: str = ""  # the values behind it
    note: str = ""  # what else belongs to it
    at_least: float | None = None
    at_most: float | None = None
    spread: Sequence[float] = ()
    runs: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def met(self) -> bool | None:
        """None where nothing is asked."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "target": self.target, "met": self.met}


@dataclass(frozen=True, slots=True)
class Stage:
    """What the figures are measured on."""

    bench: Bench
    server: Server
    slow: str  # base of the URLs that come after DELAY, or never
    lists: Path  # folder for url lists
    effort: Effort
    tell: Callable[[str], None]

    def url_list(self, name: str, base: str, rows: int, size: str = "100 KB") -> Path:
        return self.write_list(name, (url(base, size, row) for row in range(rows)))

    def write_list(self, name: str, urls: Iterator[str]) -> Path:
        path = self.lists / f"{name}.txt"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in urls)
        return path


def make_files(www: Path) -> None:
    """FILES files of each size: lognormal sizes around a mean, random bytes behind the first ones of a JPEG."""
    for size, mean in SIZES.items():
        rng = random.Random(0)
        folder = www / _folder(size)
        folder.mkdir(parents=True)
        lengths = [rng.lognormvariate(0, 0.5) for _ in range(FILES)]
        scale = mean * FILES / sum(lengths)
        for number, length in enumerate(lengths):
            body = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + rng.randbytes(int(length * scale))
            (folder / f"{number:04d}.jpg").write_bytes(body)


def url(base: str, size: str, row: int) -> str:
    """Of one of the files; no two rows have the same URL, which would be fetched once."""
    return f"{base}/{_folder(size)}/{row % FILES:04d}.jpg?{row}"


def _folder(size: str) -> str:
    return size.replace(" ", "").lower()


def keepalive(stage: Stage) -> Iterator[Figure]:
    """Rate and CPU against the bare loop, over connections that are kept."""
    effort = stage.effort
    urls = stage.url_list("keepalive", stage.server.http, effort.rows)
    for hash, cpu_at_most in (("sha256", 1.25), ("md5", 1.15)):
        yield from _against_bare(stage, f"HTTP, {hash}", urls, effort.rows, hash, 0.8, cpu_at_most)


def small(stage: Stage) -> Iterator[Figure]:
    """The same with files of 2 KB, of which the time is that of the calls made for each."""
    rows = 2 * stage.effort.rows
    urls = stage.url_list("small", stage.server.http, rows, "2 KB")
    yield from _against_bare(stage, "HTTP, 2 KB, md5", urls, rows, "md5", None, cpu_at_most=1.8)


def peers(stage: Stage) -> Iterator[Figure]:
    """Two processes against wget2 over the same list, from the start of the command to its exit."""
    if shutil.which("wget2") is None:
        stage.tell("wget2 is not installed")
        return
    bench, effort = stage.bench, stage.effort
    for size, rows, at_least in (("100 KB", 2 * effort.rows, 0.5), ("2 KB", 10 * effort.rows, 1.0)):
        urls = stage.url_list("peers", stage.server.http, rows, size)
        sides: Mapping[str, Callable[[], Run]] = {
            "any2ds": lambda urls=urls, rows=rows: bench.any2ds(  # type: ignore[misc]
                urls, rows, processes_count=2, number_sample_per_shard=1000
            ),
            "wget2": lambda urls=urls, rows=rows: bench.wget2(urls, rows, threads=_WGET_THREADS),  # type: ignore[misc]
        }
        pairs: list[dict[str, Run]] = []
        for number in range(effort.pairs):
            stage.tell(f"wget2, {size}: pair {number + 1} of {effort.pairs}")
            pairs.append({side: sides[side]() for side in sorted(sides, reverse=bool(number % 2))})
        ratios = [pair["wget2"].wall / pair["any2ds"].wall for pair in pairs]
        rates = {side: _median(rows / pair[side].wall for pair in pairs) for side in sides}
        cpu = {side: _median(pair[side].cpu for pair in pairs) for side in sides}
        yield Figure(
            f"two processes, {size}: rate of the whole run",
            _median(ratios),
            "x wget2",
            f"{rates['any2ds']:,.0f}/s : {rates['wget2']:,.0f}/s",
            f"{rows:,} files, start-up included; {_WGET_THREADS} threads of wget2. CPU {cpu['any2ds']:.1f} s : "
            f"{cpu['wget2']:.1f} s",
            at_least=at_least,
            spread=ratios,
            runs=[{"side": side, **run.to_json()} for pair in pairs for side, run in pair.items()],
        )


def crash_safety(stage: Stage) -> Iterator[Figure]:
    """What it costs that nothing is lost, against a variant that writes under the final names; and what fsync costs."""
    has_fsync = any(info.name == "fsync" for info in declared())
    safe: dict[str, Any] = {"fsync": False} if has_fsync else {}
    yield from _crash_safety(stage, "crash safety", stage.bench, safe, {"careless": True}, "careless", 0.97, 1.03)
    if has_fsync:
        disk = stage.bench.on_disk(stage.lists / "output")
        yield from _crash_safety(stage, "fsync, on a disk", disk, {}, safe, "without", None, None)


def _crash_safety(
    stage: Stage,
    name: str,
    bench: Bench,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    other: str,
    rate_at_least: float | None,
    cpu_at_most: float | None,
) -> Iterator[Figure]:
    """any2ds with the options `ours` against it with `theirs`, which `other` calls."""
    effort = stage.effort
    rows = effort.safety_rows
    urls = stage.url_list("safety", stage.server.http, rows)
    one_row = stage.url_list("one", stage.server.http, 1)
    options = {"processes_count": 1, "number_sample_per_shard": 1000, **HASHES["sha256"]}
    sides = {"ours": {**options, **ours}, "theirs": {**options, **theirs}}
    tries = min(3, effort.safety_rounds)
    start_ups = {side: [bench.any2ds(one_row, 1, **sides[side]).cpu for _ in range(tries)] for side in sides}
    start_up = {side: _median(cpu) for side, cpu in start_ups.items()}
    pairs: list[dict[str, Run]] = []
    for number in range(effort.safety_rounds):
        stage.tell(f"{name}: pair {number + 1} of {effort.safety_rounds}")
        order = sorted(sides, reverse=bool(number % 2))
        pairs.append({side: bench.any2ds(urls, rows, **sides[side]) for side in order})
    rates = [pair["ours"].rate / pair["theirs"].rate for pair in pairs]
    rate = {side: _median(pair[side].rate for pair in pairs) for side in sides}
    yield Figure(
        f"{name}: rate",
        _median(rates),
        f"x {other}",
        f"{rate['ours']:,.0f}/s : {rate['theirs']:,.0f}/s",
        f"{rows:,} rows of about 100 KB, 1 000 in a shard",
        at_least=rate_at_least,
        spread=rates,
        runs=[{"side": side, **run.to_json()} for pair in pairs for side, run in pair.items()],
    )
    cpu = {side: [(pair[side].cpu - start_up[side]) / rows for pair in pairs] for side in sides}
    costs = [ours / theirs for ours, theirs in zip(cpu["ours"], cpu["theirs"], strict=True)]
    yield Figure(
        f"{name}: CPU per sample",
        _median(costs),
        f"x {other}",
        f"{_median(cpu['ours']) * 1e6:,.0f} µs : {_median(cpu['theirs']) * 1e6:,.0f} µs",
        f"without start-up: {start_up['ours']:.2f} s : {start_up['theirs']:.2f} s",
        at_most=cpu_at_most,
        spread=costs,
    )


def https(stage: Stage) -> Iterator[Figure]:
    """CPU against the bare loop, with a TLS connection for each file."""
    server, effort = stage.server, stage.effort
    if server.https is None:
        stage.tell("HTTPS is not measured: it needs nginx and the library cryptography")
        return
    urls = stage.url_list("https", server.https, effort.https_rows)
    yield from _against_bare(stage, "HTTPS, new connections", urls, effort.https_rows, "sha256", None, cpu_at_most=1.15)


def _against_bare(
    stage: Stage, name: str, urls: Path, rows: int, hash: str, rate_at_least: float | None, cpu_at_most: float
) -> Iterator[Figure]:
    bench = stage.bench
    one_row = stage.write_list("one", iter(urls.read_text(encoding="utf-8").split("\n", 1)[:1]))
    options = {"processes_count": 1, **HASHES[hash]}
    sides: Mapping[str, Callable[[Path, int], Run]] = {
        "any2ds": lambda urls, rows: bench.any2ds(urls, rows, **options),
        "bare": lambda urls, rows: bench.bare(urls, rows, hash),
    }
    pairs: list[dict[str, Run]] = []
    start_ups: dict[str, list[Run]] = {side: [] for side in sides}
    for number in range(stage.effort.pairs):
        stage.tell(f"{name}: pair {number + 1} of {stage.effort.pairs}")
        pair = {}
        for side in sorted(sides, reverse=bool(number % 2)):
            start_ups[side].append(sides[side](one_row, 1))
            pair[side] = sides[side](urls, rows)
        pairs.append(pair)
    start_up = {side: statistics.median(run.cpu for run in runs) for side, runs in start_ups.items()}
    cpu = {side: [(pair[side].cpu - start_up[side]) / rows for pair in pairs] for side in sides}
    rate = {side: [pair[side].rate for pair in pairs] for side in sides}
    whole = {side: _median(rows / pair[side].wall for pair in pairs) for side in sides}
    runs = [{"side": side, **run.to_json()} for pair in pairs for side, run in pair.items()]
    runs += [{"side": side, "start_up": True, **run.to_json()} for side, some in start_ups.items() for run in some]
    rates = [ours / theirs for ours, theirs in zip(rate["any2ds"], rate["bare"], strict=True)]
    yield Figure(
        f"{name}: rate",
        _median(rates),
        "x bare",
        f"{_median(rate['any2ds']):,.0f}/s : {_median(rate['bare']):,.0f}/s",
        f"start-up included: {whole['any2ds']:,.0f}/s : {whole['bare']:,.0f}/s",
        at_least=rate_at_least,
        spread=rates,
        runs=runs,
    )
    costs = [ours / theirs for ours, theirs in zip(cpu["any2ds"], cpu["bare"], strict=True)]
    yield Figure(
        f"{name}: CPU per sample",
        _median(costs),
        "x bare",
        f"{_median(cpu['any2ds']) * 1e6:,.0f} µs : {_median(cpu['bare']) * 1e6:,.0f} µs",
        f"without start-up: {start_up['any2ds']:.2f} s : {start_up['bare']:.2f} s" + _server_share(pairs, rows),
        at_most=cpu_at_most,
        spread=costs,
    )


def _server_share(pairs: Sequence[Mapping[str, Run]], rows: int) -> str:
    shares = [run.server_cpu / rows for pair in pairs for run in pair.values() if run.server_cpu is not None]
    return f"; the server spent {_median(shares) * 1e6:,.0f} µs a sample" if shares else ""


def processes(stage: Stage) -> Iterator[Figure]:
    """Two processes against one: where the processor is the limit, and where all wait for the server."""
    bench, server, effort = stage.bench, stage.server, stage.effort
    cores = len(os.sched_getaffinity(0))
    # Two processes and the server: with fewer cores than three they take from each other.
    where_cores_are_left = 1.7 if cores >= 3 else None
    costly = {"compute_md5": True, "compute_hash": "sha512"}  # so that the server's part is small
    rows = effort.process_rows
    variants: list[tuple[str, str, int, Mapping[str, Any], float | None]] = [
        ("CPU the limit, md5", server.http, rows, HASHES["md5"], where_cores_are_left),
        ("CPU the limit, md5 and sha512", server.http, rows, costly, where_cores_are_left),
        (f"{DELAY:g} s of latency the limit", stage.slow, rows // 2, {**HASHES["sha256"], "thread_count": 256}, 1.7),
    ]
    for name, base, rows, options, target in variants:
        urls = stage.url_list("processes", base, rows)
        one_row = stage.url_list("one", base, 1)
        pairs: list[dict[int, Run]] = []
        start_ups: list[Run] = []
        for number in range(effort.pairs):
            stage.tell(f"two processes, {name}: pair {number + 1} of {effort.pairs}")
            start_ups.append(bench.any2ds(one_row, 1, processes_count=1, **options))
            pair = {}
            for count in sorted((1, 2), reverse=bool(number % 2)):
                pair[count] = bench.any2ds(urls, rows, processes_count=count, number_sample_per_shard=500, **options)
            pairs.append(pair)
        ratios = [pair[2].rate / pair[1].rate for pair in pairs]
        rates = {count: _median(pair[count].rate for pair in pairs) for count in (1, 2)}
        note = ""
        if base != stage.slow and cores < 3:
            note = _ceiling(pairs, _median(run.cpu for run in start_ups), rows, cores)
        yield Figure(
            f"two processes, {name}",
            _median(ratios),
            "x one",
            f"{rates[2]:,.0f}/s : {rates[1]:,.0f}/s",
            note,
            at_least=target,
            spread=ratios,
            runs=[{"processes": count, **run.to_json()} for pair in pairs for count, run in pair.items()],
        )


def _ceiling(pairs: Sequence[Mapping[int, Run]], start_up: float, rows: int, cores: int) -> str:
    """What the cores allow if client and server keep all of them busy, by what a sample costs with one process."""
    ceilings = []
    for one in (pair[1] for pair in pairs):
        if one.server_cpu is not None:
            per_sample = (one.cpu - start_up + one.server_cpu) / rows
            ceilings.append(cores / per_sample / one.rate)
    room = f"allow {_median(ceilings):.2f} x" if ceilings else "are too few"
    return f"no target, as the server leaves no core: {cores} cores {room}"


def hanging(stage: Stage) -> Iterator[Figure]:
    """The rate with a few URLs that hang until the timeout, against that without them."""
    yield from _hanging(stage, "20 KB", expected_rate=12_000)


def hanging_large(stage: Stage) -> Iterator[Figure]:
    """The same with larger files, so that more bytes wait for the rows that hang."""
    yield from _hanging(stage, "100 KB", expected_rate=6_000)


def never(slow: str, row: int) -> str:
    """A URL that is never answered; of many hosts, as in real lists, where a machine has as many addresses."""
    hosts = other_hosts()
    return f"{slow.replace('127.0.0.1', hosts[row % len(hosts)]) if hosts else slow}/never/{row}"


def _hanging(stage: Stage, size: str, expected_rate: int) -> Iterator[Figure]:
    effort = stage.effort
    rows = effort.hanging_rows.get(size)
    if rows is None:
        stage.tell(f"{size}: not in a quick run")
        return
    # A hanging row holds its place for the whole timeout: there are rate * share * timeout of them at a time.
    places = 256 + int(expected_rate * HANGING * effort.timeout)
    hangs = set(random.Random(1).sample(range(rows), int(rows * HANGING)))
    fine = stage.url_list("fine", stage.server.http, rows, size)
    mixed = stage.write_list(
        "mixed",
        (never(stage.slow, row) if row in hangs else url(stage.server.http, size, row) for row in range(rows)),
    )
    options = {
        "processes_count": 1,
        "number_sample_per_shard": 1000,
        "thread_count": places,
        "timeout": effort.timeout,
        **HASHES["sha256"],
    }
    pairs = []
    for number in range(effort.hanging_pairs):
        stage.tell(f"hanging URLs, {size}: pair {number + 1} of {effort.hanging_pairs}")
        pair = {}
        for side in sorted(("without", "with"), reverse=bool(number % 2)):
            if side == "with":
                pair[side] = stage.bench.any2ds(mixed, rows, hanging=len(hangs), **options)
            else:
                pair[side] = stage.bench.any2ds(fine, rows, **options)
        pairs.append(pair)
    runs = [{"side": side, **run.to_json()} for pair in pairs for side, run in pair.items()]
    whole = [pair["with"].rate / pair["without"].rate for pair in pairs]
    # The last rows that hang take the whole timeout, however long the list is; nothing is left to do meanwhile.
    steady = [pair["with"].samples / (pair["with"].window - effort.timeout) / pair["without"].rate for pair in pairs]
    seconds = {side: _median(pair[side].window for pair in pairs) for side in ("with", "without")}
    stored = {side: _median(pair[side].rate for pair in pairs) for side in ("with", "without")}
    peak = {side: max(pair[side].peak_rss for pair in pairs) / 1e6 for side in ("with", "without")}
    yield Figure(
        f"{HANGING:.0%} hanging, {size}",
        _median(steady),
        "x without",
        f"{seconds['without']:.1f} s : {seconds['with']:.1f} s",
        f"{rows:,} rows; of the time with hanging ones the last {effort.timeout} s are left out, in which only the "
        f"timeout is waited for (with them: {_median(whole):.2f}, {stored['with']:,.0f}/s stored : "
        f"{stored['without']:,.0f}/s). thread_count={places}: 256, and {expected_rate:,}/s * {HANGING:g} * "
        f"{effort.timeout} s that hang. Largest process {peak['with']:,.0f} MB : {peak['without']:,.0f} MB",
        at_least=0.8,
        spread=steady,
        runs=runs,
    )


def hostile(stage: Stage) -> Iterator[Figure]:
    """Lists in which many servers misbehave: what the good rows lose, how long it takes, and what is left behind."""
    effort = stage.effort
    with bad_servers.start(stage.bench.scratch) as server:
        for mix in bad_servers.MIXES:
            found = []
            rows, count = min(effort.hostile_rows, mix.most_rows), 1 if mix.one_host else effort.hostile_pairs
            for pair in bad_servers.pairs(mix, rows, count, server, stage.bench.scratch):
                stage.tell(f"{mix.name}: pair {len(found) + 1} of {count} is done")
                found.append(pair)
            yield from _hostile(mix, found)


def _hostile(mix: bad_servers.Mix, pairs: Sequence[bad_servers.Pair]) -> Iterator[Figure]:
    mixed, alone = [pair.mixed for pair in pairs], [pair.alone for pair in pairs]
    runs = [{"side": side, **asdict(getattr(pair, side))} for pair in pairs for side in ("mixed", "alone")]
    yield Figure(
        f"{mix.name}: goodput",
        _median(pair.goodput for pair in pairs),
        "x without",
        f"{_median(run.goodput for run in mixed):,.0f}/s : {_median(run.goodput for run in alone):,.0f}/s",
        f"{mixed[0].rows:,} rows, {mixed[0].good:,} of them good; CPU {_median(run.cpu for run in mixed):.1f} s : "
        f"{_median(run.cpu for run in alone):.1f} s, the server's {_median(run.server_cpu for run in mixed):.1f} s : "
        f"{_median(run.server_cpu for run in alone):.1f} s",
        at_least=mix.goodput,
        spread=[pair.goodput for pair in pairs],
        runs=runs,
    )
    yield Figure(
        f"{mix.name}: end after the last good answer",
        _median(run.seconds - run.good_seconds for run in mixed),
        "s",
        f"{_median(run.seconds for run in mixed):.1f} s in all",
        f"the good rows alone take {_median(run.seconds for run in alone):.1f} s",
        at_most=None if mix.one_host else 2 * bad_servers.TIMEOUT,
        spread=[run.seconds - run.good_seconds for run in mixed],
    )
    yield Figure(
        f"{mix.name}: end after that of the good rows alone",
        _median(pair.over for pair in pairs),
        "s",
        at_most=None if mix.one_host else 2 * bad_servers.TIMEOUT,
        spread=[pair.over for pair in pairs],
    )
    growth = [run.rss["last quarter"] / run.rss["second quarter"] for run in mixed]
    yield Figure(
        f"{mix.name}: memory, last quarter of the run",
        _median(growth),
        "x second",
        f"peak {max(run.rss['peak'] for run in mixed) / 1e6:.0f} MB",
        at_most=1.2,
        spread=growth,
    )
    left = [run.files[1] - run.files[0] for run in mixed]
    yield Figure(f"{mix.name}: descriptors left open", max(left), "", at_most=0, spread=left)
    wrong = [sum(sum(codes.values()) for codes in run.wrong.values()) for run in mixed + alone]
    yield Figure(f"{mix.name}: rows without their right outcome", max(wrong), "", at_most=0, spread=wrong)


def memory(stage: Stage) -> Iterator[Figure]:
    """Memory and the first request on a long list, and how a run ends that is interrupted."""
    server, effort, bench = stage.server, stage.effort, stage.bench
    for input_format in ("txt", "parquet"):
        stage.tell(f"making a {input_format} list of {effort.memory_rows:,} rows")
        path = _long_list(stage, input_format)
        stage.tell(f"memory, {input_format}: {effort.memory_seconds:g} s, then Ctrl-C")
        server.forget()
        shutil.rmtree(bench.output, ignore_errors=True)  # of the run before
        command = bench.any2ds_command(path, output_format="dummy", compute_md5=False)
        seen = interrupt(bench, command, effort.memory_seconds, server.first_request)
        if seen.first_request is None:
            raise Broken(f"any2ds asked for nothing in {effort.memory_seconds} s")
        if seen.exit_code != 130:
            raise Broken(f"any2ds ended with {seen.exit_code} after Ctrl-C: {bench.last_words()}")
        name = f"{effort.memory_rows // 1_000_000} million rows, {input_format}"
        megabytes = path.stat().st_size / 1e6
        path.unlink()
        yield Figure(
            f"{name}: memory of the parent",
            seen.parent_rss / 1e6,
            "MB",
            note=f"the list has {megabytes:,.0f} MB; output_format=dummy, stopped after {effort.memory_seconds:g} s; "
            f"largest worker {seen.worker_rss / 1e6:,.0f} MB",
            at_most=400,
            runs=[asdict(seen)],
        )
        yield Figure(f"{name}: first request", seen.first_request, "s", note="from the start of the command", at_most=3)
        yield Figure(f"{name}: Ctrl-C to exit", seen.stop_seconds, "s", at_most=2)
        yield Figure(f"{name}: processes left after it", seen.left_over, "", at_most=0)


def _long_list(stage: Stage, input_format: str) -> Path:
    """A list in which every URL is another one, written in parts."""
    rows, part = stage.effort.memory_rows, 1_000_000
    path = stage.lists / f"long.{input_format}"
    base = stage.server.logged
    starts = range(0, rows, part)
    if input_format == "txt":
        with path.open("w", encoding="utf-8") as file:
            for start in starts:
                file.writelines(f"{url(base, '20 KB', row)}\n" for row in range(start, start + part))
    else:
        with pq.ParquetWriter(path, pa.schema([("url", pa.string())])) as writer:
            for start in starts:
                column = pa.array([url(base, "20 KB", row) for row in range(start, start + part)])
                writer.write_table(pa.table({"url": column}))
    return path


def _median(values: Any) -> float:
    return statistics.median(list(values))


ALL: Mapping[str, Callable[[Stage], Iterator[Figure]]] = {
    "keepalive": keepalive,
    "small": small,
    "peers": peers,
    "crash-safety": crash_safety,
    "https": https,
    "processes": processes,
    "hanging": hanging,
    "hanging-large": hanging_large,
    "hostile": hostile,
    "memory": memory,
}
