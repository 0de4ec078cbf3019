"""The web as it is: lists with bad, busy, slow and silent servers, and names that are looked up in vain."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.case import Bench, Figures, Side, missing, open_shards, python_of
from benchmarks.servers import Server
from tests.support.dns import serve_dns
from tests.support.pictures import jpeg_of, photograph

# --- a messy list, with img2dataset ---

_SHARES = {"404": 0.107, "page": 0.049, "once503": 0.018, "never": 17 / 3000, "slow": 0.04}


def messy_paths(rows: int, seed: int = 1) -> list[tuple[int, str]]:
    """Host and path of each row."""
    chance = random.Random(seed)
    kinds = [kind for kind, share in _SHARES.items() for _ in range(round(share * rows))]
    kinds += ["ok"] * (rows - len(kinds))
    chance.shuffle(kinds)
    paths = []
    for number, kind in enumerate(kinds):
        host = 0 if chance.random() < 0.61 else chance.randrange(1, 8)
        milliseconds = chance.randrange(1000, 5000) if kind == "slow" else chance.randrange(20, 150)
        paths.append((host, f"{'ok' if kind == 'slow' else kind}/{milliseconds}/0/{number}"))
    return paths


def messy(bench: Bench) -> list[Side]:
    photo = bench.scratch / "photo.jpg"
    photo.write_bytes(jpeg_of(photograph(320, 240, 1), 20_000))
    paths, theirs = messy_paths(bench["rows"]), python_of("img2dataset")
    options = ["--output_format=webdataset", "--image_size=256", "--processes_count=2", f"--retries={bench['retries']}"]
    tools = {
        "img2dataset": [str(Path(theirs).with_name("img2dataset"))],
        "any2ds": [sys.executable, "-m", "any2ds", "--preset=img2dataset"],
    }
    kept: dict[str, set[str]] = {}  # tool -> paths that it stored in its last run

    def compare(name: str, server: Server) -> dict[str, float]:
        server.stats()  # forgets which paths have answered 503
        kept[name] = stored_paths(bench.output)
        has_both = name == "any2ds" and "img2dataset" in kept
        return {"lost": len(kept["img2dataset"] - kept["any2ds"])} if has_both else {}

    sides = []
    for name, command in tools.items():
        server = bench.server(photo=photo)
        urls = bench.urls(f"{name}-messy", (server.url(path, host) for host, path in paths))
        whole = [*command, f"--url_list={urls}", f"--output_folder={bench.output}", *options]
        side = Side(name=name, command=whole, output=bench.output, missing=missing(name * (name != "any2ds")))
        lost = lambda _, name=name, server=server: compare(name, server)  # noqa: E731
        sides.append(replace(side, stored=lambda: len(stored_paths(bench.output)), figures=lost))
    return sides


def stored_paths(dataset: Path) -> set[str]:
    """The paths of the URLs that are stored, in img2dataset's metadata and in ours."""
    stored: set[str] = set()
    for file in dataset.glob("*.parquet"):
        table = pq.read_table(file, columns=["url"], filters=[("status", "=", "success")])
        stored |= {url.split("/", 3)[3] for url in table["url"].to_pylist()}
    return stored


def hosts(bench: Bench) -> list[Side]:
    sides = []
    for name, (usual, rows, odd, options) in bench.data.items():
        kinds = [kind for kind, count in odd.items() for _ in range(count)]
        kinds = [usual] * (int(rows * bench["share"]) - len(kinds)) + kinds
        if "then" not in name:
            random.Random(1).shuffle(kinds)
        server = bench.server()
        side = bench.any2ds(name, [server.url(f"{kind}/{n}") for n, kind in enumerate(kinds)], **options)
        sides.append(replace(side, rows=0, start=(), figures=host_figures(server, len(kinds))))
    return sides


def host_figures(server: Server, rows: int) -> Callable[[Figures], Figures]:
    """Asking the server makes it forget which paths have answered 503."""
    return lambda _: {"listed": rows, "requests": server.stats()["requests"]}


# --- bad servers ---

_LIMITS = {"timeout": 10, "max_file_bytes": 1_000_000, "number_sample_per_shard": 1000}


def bad_urls(server: Server, kind: str, number: int, rows: int) -> list[str]:
    """On 50 hosts of their own; good ones, which are number 0, on 200."""
    path, hosts = ("ok/100/10000", 200) if kind == "good" else (f"{kind}/0/0", 50)
    return [server.url(f"{path}/{n}", 250 * number + n % hosts, tls=kind == "tls") for n in range(rows)]


def hostile(bench: Bench) -> list[Side]:
    server, rows, sides = bench.server(tls=True), bench["rows"], list[Side]()
    for group, share in (("5 % of each kind", 0.05), ("a third bad", 1 / 3 / len(bench.data))):
        count = round(rows * share)
        good = [("good", url) for url in bad_urls(server, "good", 0, rows - count * len(bench.data))]
        bad = [(kind, url) for n, kind in enumerate(bench.data, 1) for url in bad_urls(server, kind, n, count)]
        for name, some in (("the good rows alone", good), ("with the bad ones", good + bad)):
            listed = bench.scratch / f"{group}-{name}.json"
            listed.write_text(json.dumps(random.Random(7).sample(some, len(some))), encoding="utf-8")
            call = bench.call(name, run_hostile, listed=listed, output=bench.output, right=dict(bench.data))
            sides.append(replace(call, group=group, output=bench.output, figures=lambda _: goodput(server)))
    return sides


def goodput(server: Server) -> dict[str, float]:
    """Good answers per second, from the first request to the last of them."""
    seen = server.stats()
    return {"goodput": seen["ok"] / (seen["last_ok"] - seen["first"])}


def run_hostile(listed: str, output: str, right: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """A run in this process, whose memory and outcomes are looked at."""
    from any2ds import download

    rows = json.loads(Path(listed).read_bytes())
    options: dict[str, Any] = {**_LIMITS, "output_format": "webdataset", "distributor": "inline", "quiet": True}
    download(["http://127.0.0.1:1/"], f"{output}-warm", **options)  # imports, and what libraries open once
    memory, stopped = list[int](), threading.Event()

    def watch() -> None:
        while not stopped.wait(0.05):
            memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    threading.Thread(target=watch, daemon=True).start()
    began = time.monotonic()
    download([url for _, url in rows], output, **options)
    seconds = time.monotonic() - began
    stopped.set()
    quarter = max(1, len(memory) // 4)
    middle, last = memory[quarter : 2 * quarter] or memory, memory[-quarter:]
    return {
        "seconds": seconds,
        "growth": statistics.median(last) / statistics.median(middle),
        "peak": max(memory),
        "wrong": wrong_outcomes(rows, Path(output), right),
    }


def wrong_outcomes(rows: Sequence[Sequence[str]], output: Path, right: Mapping[str, Sequence[str]]) -> int:
    """Rows without an outcome, with two, or with one that is not right for their kind."""
    kinds, wrong = {url: kind for kind, url in rows}, 0
    for file in output.glob("*.parquet"):
        table = pq.read_table(file, columns=["url", "error_code"]).to_pydict()
        for url, code in zip(table["url"], table["error_code"], strict=True):
            wrong += (code or "success") not in right.get(kinds.pop(url, "twice"), ["success"])
    return wrong + len(kinds)


# --- how many transfers at once ---


def auto(bench: Bench) -> list[Side]:
    """Fixed numbers get as many rows as they can fetch in half a minute."""
    server, sides, seconds = bench.server(), list[Side](), bench["seconds"]
    for count in ("64", "256", "1000", "2000", "auto"):
        rows = int(min(int(count) if count != "auto" else 2000, 1600) / 0.2 * seconds)
        urls = [server.url(f"ok/200/10000/{n}") for n in range(rows)]
        sides.append(bench.any2ds(count, urls, thread_count=count, processes_count=1))
    return sides


def crowded(bench: Bench) -> list[Side]:
    sides = []
    for beyond in ("503", "reset"):
        for many in (1, 100):
            for count in ("256", "auto"):
                server = bench.server(bears=50, beyond=beyond)
                urls = [server.url(f"ok/100/10000/{n}", n % many) for n in range(bench["rows"])]
                group = f"{beyond} beyond 50 at once, {many} host{'s' * (many > 1)}"
                side = bench.any2ds(count, urls, group=group, thread_count=count, processes_count=1)
                seen = lambda _, server=server: {**open_shards(bench.output), "most": server.stats()["most"]}  # noqa: E731
                sides.append(replace(side, rows=0, start=(), figures=seen))
    return sides


# --- names ---


def names(bench: Bench) -> list[Side]:
    port, sides = bench.server().ports[0], list[Side]()
    urls = [f"http://h{n}.example.test:{port}/ok/0/1000/{n}" for n in range(bench["hosts"])]
    for loss in (0.0, 0.2):
        address = bench.stack.enter_context(serve_dns(drop=loss)).address
        name = f"{100 * loss:.0f} % of the questions lost"
        sides.append(bench.any2ds(name, urls, nameservers=address, processes_count=1, report=False))
    return [replace(side, rows=0) for side in sides]
