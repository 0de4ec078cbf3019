"""Whole commands: how a run starts and ends, what recipes, clusters and estimates cost or promise."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.case import ANY2DS, Bench, Figures, Side, missing, python_of
from benchmarks.cases.download import make_files, urls_of
from benchmarks.cases.peers import photographs
from benchmarks.servers import Server
from tests.support.pictures import encoded, photograph

# --- the start and the end ---


def start(bench: Bench) -> list[Side]:
    server = bench.server()
    url = server.url("ok/0/5/1")
    lists = {name: bench.scratch / f"one.{name}" for name in ("txt", "csv", "parquet")}
    lists["txt"].write_text(f"{url}\n")
    lists["csv"].write_text(f"url\n{url}\n")
    pq.write_table(pa.table({"url": [url]}), lists["parquet"])
    base = Side(name="import", command=[sys.executable, "-c", "import pyarrow.parquet"])
    sides = [base]
    for kind, *options in (("txt",), ("txt", "--report=false"), ("csv",), ("parquet",)):
        command = [*ANY2DS, str(lists[kind]), str(bench.output), "--output_format=webdataset", *options]
        side = Side(name=" ".join([kind, *options]), command=command, output=bench.output)
        sides.append(replace(side, figures=lambda run: {"first": server.stats()["first"] - run["ended"] + run["wall"]}))
    return sides


def end(bench: Bench) -> list[Side]:
    rows, www = bench["rows"], bench.folder("www")
    for number, photo in enumerate(photographs(17_000, [(320, 240)], 8)):
        (www / f"{number}.jpg").write_bytes(photo)
    server = bench.server(folder=www)
    urls = bench.urls("end", (f"{server.url('')}{n % 8}.jpg?{n}" for n in range(rows)))
    sides = []
    for name, options in (("with the report", []), ("--report=false", ["--report=false"])):
        command = [*ANY2DS, f"--url_list={urls}", f"--output_folder={bench.output}", *options]
        side = Side(name=name, command=command, output=bench.output)
        sides.append(replace(side, figures=lambda run: {"after": run["ended"] - server.stats()["last_ok"]}))
    return sides


# --- recipes ---


def recipes(bench: Bench) -> list[Side]:
    images, rows, server = [encoded(photograph(8, 8, n)) for n in range(10)], bench["rows"], bench.server()
    listed = bench.scratch / "rows.jsonl"
    urls = [server.url(f"ok/0/80/{n}") for n in range(2 * rows)]
    lines = ({"url": urls[n], "second": urls[rows + n], "label": n, "text": f"row {n}"} for n in range(rows))
    listed.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    values = {"SAMPLES": bench["samples"], "IMAGES": images, "LIST": str(listed), "OUTPUT": str(bench.output)}
    head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    sides = []
    for number, (name, tasks) in enumerate(bench.data["sides"].items()):
        environment, code = ("tensorflow", "tfds") if name == "tfds build" else ("", "any2ds")
        script = bench.folder(f"script{number}") / "small.py"
        script.write_text("\n".join([head, bench.data[code], *(f"    {task}" for task in tasks[1:]), ""]))
        command = [python_of(environment), str(script)]
        side = Side(name=name, group=tasks[0], command=command, output=bench.output, missing=missing(environment))
        sides.append(side)
    return sides


# --- clusters ---


def clusters(bench: Bench) -> list[Side]:
    """A list of `rows` and one of three times as many tell what a sample costs; the rest is starting."""
    rows, server, sides = bench["rows"], bench.files(make_files(bench.folder("www"), 20_000)), list[Side]()
    few = bench.urls("few", urls_of(server.http, 20_000, rows))
    for name in ("multiprocessing", "pyspark", "ray", "beam"):
        options: dict[str, Any] = {
            "distributor": name,
            "processes_count": 2,
            "number_sample_per_shard": 1000,
            "fsync": False,
        }
        side = bench.any2ds(name, urls_of(server.http, 20_000, 3 * rows), report=False, **options)
        command = [python_of("cluster"), *side.command[1:]]
        start = [*command[:3], f"--url_list={few}", *command[4:]]
        side = replace(side, command=command, start=start, start_rows=rows, missing=missing("cluster"))
        sides.append(replace(side, environment={"SPARK_LOCAL_IP": "127.0.0.1"}, figures=starting(rows)))
    return sides


def starting(rows: int) -> Callable[[Figures], Figures]:
    return lambda run: {"starting": run["start_cpu"] - rows * run["cpu_each"]}


# --- estimates ---


@dataclass(frozen=True, slots=True)
class Listed:
    """A list over hosts in turns, or by Zipf's law; `answer` is what they give, or the function that chooses it."""

    rows: int
    hosts: int
    answer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    line: float = 0.0  # bytes per second
    is_zipf: bool = False
    ranks: int = 1

    def urls(self, server: Server, share: float) -> list[str]:
        chance, rows = random.Random(11), max(50, int(self.rows * share))
        weights = [1 / (host + 1) for host in range(self.hosts)]
        hosts = chance.choices(range(self.hosts), weights, k=rows) if self.is_zipf else range(rows)
        chosen = [number % self.hosts for number in hosts]
        choose = globals().get(self.answer, lambda host, chance: self.answer)
        answers = [choose(host, chance) for host in chosen]
        return [server.url(f"{answers[n]}/{n}", host) for n, host in enumerate(chosen)]


def one_in_eight_is_silent(host: int, chance: random.Random) -> str:
    return "never/0/0" if host % 8 == 3 else "ok/400/5000"


def mixture(host: int, chance: random.Random) -> str:
    """A fifth is gone, one in twenty hangs, the others come after 0.3 to 1.5 s."""
    kind = chance.random()
    return "404/300/0" if kind < 0.2 else "never/0/0" if kind < 0.25 else f"ok/{chance.randrange(300, 1500)}/8000"


def latency_of_host(host: int, chance: random.Random) -> str:
    """Half of the hosts below 0.4 s, one in ten above 1.2 s."""
    return f"ok/{int(1000 * min(3.0, random.Random(host).lognormvariate(-0.9, 0.8)))}/5000"


def heavy_tail(host: int, chance: random.Random) -> str:
    """Half of the rows below 0.5 s, one in a hundred above 3."""
    return f"ok/{int(1000 * min(6.0, chance.lognormvariate(-0.7, 0.8)))}/5000"


def sizes(host: int, chance: random.Random) -> str:
    """From some KB to some MB, 60 KB on average."""
    return f"ok/400/{int(min(3e6, chance.lognormvariate(10.5, 1.0)))}"


def estimates(bench: Bench) -> list[Side]:
    sides = []
    for name, described in bench.data.items():
        if name.startswith(tuple(bench["lists"].split("/"))):
            listed = Listed(**described)
            urls = bench.urls(name, listed.urls(bench.server(line=listed.line), bench["share"]))
            arguments = {"urls": urls, "output": bench.output, "sample": bench["sample"], "ranks": listed.ranks}
            arguments |= {"options": listed.options, "bandwidth": int(listed.line * 8) or 10**10}
            sides.append(replace(bench.call(name, estimate_and_run, **arguments), output=bench.output))
    return sides


def estimate_and_run(
    urls: str, output: str, sample: int, options: Mapping[str, Any], bandwidth: int, ranks: int
) -> Figures:
    """`any2ds estimate` knows nothing of the server but its sample and the bandwidth; then the run."""
    flags = ["--output_format=webdataset", *(f"--{name}={value}" for name, value in options.items()), "--quiet"]
    asked = [f"--sample={sample}", f"--bandwidth={bandwidth}", f"--machines={ranks}", "--format=json"]
    done = subprocess.run([*ANY2DS, "estimate", urls, *flags, *asked], check=True, stdout=subprocess.PIPE)
    seconds = json.loads(done.stdout)["predictions"][0]["seconds"]
    began = time.monotonic()
    command = [*ANY2DS, urls, output, *flags, "--report=false"]
    own = [[f"--rank={n}", f"--world_size={ranks}"] if ranks > 1 else [] for n in range(ranks)]
    running = [subprocess.Popen([*command, *rank]) for rank in own]
    if codes := [code for process in running if (code := process.wait())]:
        raise RuntimeError(f"exit codes {codes}")
    took = time.monotonic() - began
    ratio = seconds["value"] / took
    return {"estimate": seconds["value"], "low": seconds["low"], "high": seconds["high"], "took": took, "ratio": ratio}
