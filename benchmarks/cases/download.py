"""How fast files are fetched and packed: against the least that Python can do, by several processes, with bad luck."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bare import fetch_into_tar
from benchmarks.case import ANY2DS, Bench, Side, open_shards

FILES = 1000


def make_files(www: Path, size: int) -> Path:
    """FILES files of lognormal sizes around a mean, random bytes behind the first ones of a JPEG."""
    chance = random.Random(0)
    lengths = [chance.lognormvariate(0, 0.5) for _ in range(FILES)]
    for number, length in enumerate(lengths):
        body = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + chance.randbytes(int(length * size * FILES / sum(lengths)))
        (www / f"{size}-{number}.jpg").write_bytes(body)
    return www


def urls_of(base: str, size: int, rows: int) -> list[str]:
    """No two rows have the same URL, which would be fetched once."""
    return [f"{base}/{size}-{row % FILES}.jpg?{row}" for row in range(rows)]


def bare(bench: Bench) -> list[Side]:
    rows, www = bench["rows"], bench.folder("www")
    server = bench.files(make_files(make_files(www, 100_000), 2_000))
    trusting = dict(server.environment or {})
    lists = {
        "100 KB, sha256": (urls_of(server.http, 100_000, rows), "sha256"),
        "100 KB, md5": (urls_of(server.http, 100_000, rows), "md5"),
        "2 KB, md5": (urls_of(server.http, 2_000, 2 * rows), "md5"),
        "HTTPS, new connections": (urls_of(server.https, 100_000, rows // 5), "sha256"),
    }
    sides = []
    for group, (urls, name) in lists.items():
        hashes = {"compute_hash": "sha256", "compute_md5": False} if name == "sha256" else {}
        ours = bench.any2ds("any2ds", urls, group=group, processes_count=1, **hashes)
        arguments: dict[str, Any] = {
            "tar": bench.scratch / "bare.tar",
            "hash": name,
            "ca_file": trusting.get("SSL_CERT_FILE", ""),
        }
        many, one = (
            bench.call("bare loop", fetch_into_tar, list=bench.urls(f"{group}-{len(some)}", some), **arguments)
            for some in (urls, urls[:1])
        )
        theirs = replace(many, group=group, start=one.command)
        sides += [replace(side, environment=trusting) for side in (ours, theirs)]
    return sides if server.https else sides[:-2]


def processes(bench: Bench) -> list[Side]:
    rows = bench["rows"]
    server, slow = bench.files(make_files(bench.folder("www"), 100_000)), bench.server()
    late = [slow.url(f"ok/200/100000/{n}") for n in range(rows)]
    lists: dict[str, tuple[list[str], dict[str, Any]]] = {
        "the processor is the limit": (urls_of(server.http, 100_000, rows), {"compute_hash": "sha512"}),
        "0.2 s of latency are the limit": (late, {"thread_count": 256}),
    }
    return [
        bench.any2ds(name, urls, group=group, processes_count=count, number_sample_per_shard=500, **options)
        for group, (urls, options) in lists.items()
        for count, name in ((1, "one process"), (2, "two processes"))
    ]


def hanging(bench: Bench) -> list[Side]:
    rows, timeout = bench["rows"], 2 if bench.quick else 10
    server, silent = bench.files(make_files(bench.folder("www"), 20_000)), bench.server()
    # A row that hangs holds its place for the whole timeout: at 12,000 rows/s so many do at a time.
    places = 256 + int(12_000 * 0.03 * timeout)
    fine = urls_of(server.http, 20_000, rows)
    hangs = set(random.Random(1).sample(range(rows), int(0.03 * rows)))
    mixed = [silent.url(f"never/0/0/{n}", 1 + n % 100) if n in hangs else url for n, url in enumerate(fine)]
    options: dict[str, Any] = {"processes_count": 1, "number_sample_per_shard": 1000}
    options |= {"thread_count": places, "timeout": timeout}

    def steady(seconds: float) -> dict[str, float]:
        found = open_shards(bench.output)
        return {**found, "steady_rate": found["open_rate"] * found["open"] / (found["open"] - seconds)}

    without, some = bench.any2ds("none hangs", fine, **options), bench.any2ds("3 % hang", mixed, **options)
    some = replace(some, rows=rows - len(hangs), start=without.start, figures=lambda _: steady(timeout))
    return [replace(without, figures=lambda _: steady(0.0)), some]


def fsync(bench: Bench) -> list[Side]:
    disk = Path(bench.stack.enter_context(tempfile.TemporaryDirectory(prefix="any2ds-benchmark-", dir="/var/tmp")))
    urls = urls_of(bench.files(make_files(bench.folder("www"), 100_000)).http, 100_000, bench["rows"])
    options: dict[str, Any] = {"output_folder": disk / "out", "processes_count": 1, "number_sample_per_shard": 1000}
    return [bench.any2ds("fsync", urls, **options), bench.any2ds("--fsync=false", urls, fsync=False, **options)]


def interrupt(bench: Bench) -> list[Side]:
    rows, server = bench["rows"], bench.server()
    base = server.url("ok/0/20000/")
    text, parquet = bench.scratch / "long.txt", bench.scratch / "long.parquet"
    with text.open("w") as file, pq.ParquetWriter(parquet, pa.schema([("url", pa.string())])) as writer:
        for start in range(0, rows, 1_000_000):
            urls = [f"{base}{row}" for row in range(start, min(rows, start + 1_000_000))]
            file.writelines(f"{url}\n" for url in urls)
            writer.write_table(pa.table({"url": urls}))
    return [
        bench.call(
            path.suffix[1:],
            interrupted,
            command=[*ANY2DS, path, bench.scratch / f"out-{path.suffix[1:]}", "--output_format=dummy", "--quiet"],
            seconds=bench["seconds"],
            stats=server.url("")[:-1] + "/stats",
        )
        for path in (text, parquet)
    ]


def interrupted(command: Sequence[str], seconds: float, stats: str) -> dict[str, float]:
    """Start a command, press Ctrl-C after some seconds, and say what was seen."""
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    ask(stats).read()  # forgets what came before
    began, seen = time.monotonic(), dict[str, float]()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while process.poll() is None and (time.monotonic() - began < seconds or "first" not in seen):
            time.sleep(0.1)
            seen = {**json.load(ask(stats)), **seen}  # the first of all first requests
        stopped = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=100)
        took = time.monotonic() - stopped
    if process.returncode != 130:
        raise RuntimeError(f"exit code {process.returncode} after Ctrl-C: {messages.decode()[-1000:]}")
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return {"first_request": seen["first"] - began, "stop": took, "left": 0.0}
    return {"first_request": seen["first"] - began, "stop": took, "left": 1.0}
