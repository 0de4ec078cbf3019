"""What grows: with the rows of a list, with the shards of a dataset, with the time that a run takes, with a store."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.case import ANY2DS, Bench, Side, clean_environment
from benchmarks.servers import ROOT, Store

# --- planning ---

_LINE = {"csv": "{}", "txt": "{}", "jsonl": '{{"url": "{}"}}'}
_PART = 1_000_000  # rows made at once, which are a row group


def make_list(folder: Path, input_format: str, rows: int, repeats: float) -> Path:
    """URLs of 70 bytes in eight files, of which a share stands in earlier rows."""
    chance, place = np.random.default_rng(0), folder / f"{input_format}-{rows}-{repeats}"
    if place.exists():
        return place
    place.mkdir()
    for number, start in enumerate(range(0, rows, -(-rows // 8))):
        path, end = place / f"{number}.{input_format}", min(rows, start + -(-rows // 8))
        with ExitStack() as stack:
            if input_format == "parquet":
                schema = pa.schema([("url", pa.string())])
                table = stack.enter_context(pq.ParquetWriter(path, schema, use_dictionary=False))
            else:
                text = stack.enter_context(path.open("w"))
                text.write("url\n" * (input_format == "csv"))
            for first in range(start, end, _PART):
                numbers = np.arange(first, min(end, first + _PART), dtype=np.uint64)
                again = chance.random(len(numbers)) < repeats
                numbers[again] = chance.integers(0, numbers[again] + 1)
                digits = pc.cast(pa.array(scattered(numbers)), pa.string())
                urls = pc.binary_join_element_wise("https://images.example.org/media/full/picture/", digits, ".jpg", "")
                if input_format == "parquet":
                    table.write_table(pa.table({"url": urls}, schema=schema))
                else:
                    text.writelines(f"{_LINE[input_format].format(url)}\n" for url in urls.to_pylist())
    return place


def scattered(numbers: Any) -> Any:
    """Each number as another one of 20 digits, as by chance (SplitMix64)."""
    bits = numbers * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB) | np.uint64(1 << 63)


def planning(bench: Bench) -> list[Side]:
    """The command itself but for its workers: `benchmarks.planner` reports at once that each job is done."""
    about, said, sides = bench.folder("packages/any2ds_benchmark-0.dist-info"), bench.scratch / "planned.json", []
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: any2ds-benchmark\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[any2ds.distributors]\nscripted = benchmarks.planner:PART\n")
    environment = {
        "PYTHONPATH": f"{about.parent}{os.pathsep}{ROOT}",
        "ANY2DS_BENCHMARK": json.dumps({"output": str(bench.output), "said": str(said)}),
    }
    for name, (input_format, part, repeats, options) in bench.data.items():
        listed = make_list(bench.scratch, input_format, int(bench["rows"] * part), repeats)
        command = [*ANY2DS, f"--url_list={listed}", f"--input_format={input_format}", *options, "--quiet"]
        command += [f"--output_folder={bench.output}", "--output_format=dummy", "--distributor=scripted"]
        side = Side(name=name, command=[*command, "--report=False"], output=bench.output, environment=environment)
        sides.append(replace(side, figures=lambda run: planned(run["cpu"], json.loads(said.read_text()))))
    return sides


def planned(cpu: float, said: dict[str, float]) -> dict[str, float]:
    """Without the CPU of the workers' stand-in."""
    own = cpu - said["workers_cpu"]
    return {"planning": own, "jobs": said["jobs"], "planned": said["rows"], "speed": said["rows"] / own}


# --- many shards ---

_REAL = 200  # shards that a run makes
_LOAD = "import any2ds, sys; found = any2ds.load(sys.argv[1]); print(len(found), found[0]['key'])"


def make_shards(bench: Bench) -> list[str]:
    """A dataset whose first shards a run makes; the others are links to them, with statistics of their own rows.

    Returns the command that resumes it."""
    from any2ds.core.manifest import urls_sha256

    shards, dataset = bench["shards"], bench.scratch / "dataset"
    url = "data:text/plain,{:09d}".format
    urls = bench.urls("shards", map(url, range(2 * shards)))
    options = [str(urls), str(dataset), "--number_sample_per_shard=2", "--output_format=webdataset"]
    command = [*ANY2DS, *options, "--distributor=inline", "--quiet", "--report=false"]
    subprocess.run([*command, f"--limit={2 * _REAL}"], check=True, env=clean_environment(bench.scratch))
    models = [(dataset / f"{number:05d}_stats.json").read_text() for number in range(_REAL)]
    endings = sorted(path.name[5:] for path in dataset.glob("00000.*"))
    for number in range(_REAL, shards):
        model = number % _REAL  # ext4 allows 65,000 links to a file
        for ending in endings:
            os.link(dataset / f"{model:05d}{ending}", dataset / f"{number:05d}{ending}")
        rows = urls_sha256([pa.array([url(2 * number), url(2 * number + 1)])])
        text = models[model].replace(f'"shard_id": {model},', f'"shard_id": {number},', 1)
        text = text.replace(json.loads(models[model])["urls_sha256"], rows, 1)
        (dataset / f"{number:05d}_stats.json").write_text(text)
    return command


def shards(bench: Bench) -> list[Side]:
    return commands(make_shards(bench), str(bench.scratch / "dataset"), None)


def shards_s3(bench: Bench) -> list[Side]:
    resume, dataset, distant = make_shards(bench), bench.scratch / "dataset", "s3://bucket/dataset"
    dataset.rename(bench.folder("objects") / "dataset")
    store = bench.store(folder=bench.scratch / "objects")
    return commands([distant if word == str(dataset) else word for word in resume], distant, store)


def commands(resume: Sequence[str], dataset: str, store: Store | None) -> list[Side]:
    opened = {
        "the same download again, no list of shards": resume,
        "the same download again": resume,
        "inspect": [*ANY2DS, "inspect", dataset],
        "report": [*ANY2DS, "report", dataset],
        "card": [*ANY2DS, "card", dataset],
        "verify --sample=20": [*ANY2DS, "verify", dataset, "--sample=20", "--quiet"],
        "load, and one sample": [sys.executable, "-c", _LOAD, dataset],
    }
    environment, codes = store.environment if store else {}, (0, 1)  # verify finds that links have the rows of others
    sides = [Side(name=name, command=command, codes=codes, environment=environment) for name, command in opened.items()]
    return [replace(side, figures=lambda _: requests_of(store)) for side in sides]


def requests_of(store: Store | None) -> dict[str, float]:
    return {"requests": store.stats()["requests"]} if store else {}


# --- a store ---


def store(bench: Bench) -> list[Side]:
    server, environment = bench.server(), bench.store().environment
    urls = [server.url(f"ok/500/100000/{n}") for n in range(bench["rows"])]
    options: dict[str, Any] = {
        "processes_count": 1,
        "number_sample_per_shard": 200,
        "thread_count": 64,
        "report": False,
    }
    disk = bench.any2ds("a disk", urls, **options)
    # Each run has a folder of its own: the store keeps them.
    distant = ["sh", "-c", shlex.join(map(str, disk.command)).replace(str(bench.output), "s3://bucket/run-$$")]
    s3 = replace(disk, name="S3", command=distant, stored=None, figures=None, output=None, environment=environment)
    return [replace(disk, start=()), replace(s3, start=())]
