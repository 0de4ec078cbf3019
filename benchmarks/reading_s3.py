"""How fast a dataset in an S3 store is read for training, beside other libraries that read the same files.

    python benchmarks/reading.py s3 [--samples=20000] [--bytes=50000] [--latency=0.03] [--rounds=3] [--seconds=90]
                                    [--environments=DIR] [--readers=any2ds,webdataset,…] [--page=benchmarks/README.md]

The store is `distant.py` on loopback, whose answers wait for `--latency` seconds; the dataset lies in a RAM disk, if
there is one. A reader is a process of its own, with one consumer, and takes an epoch, or what it gets of it in
`--seconds`: if that is too short, what a shuffle buffer takes in counts, and not what it gives. The time begins when
the dataset is open, so that it includes the wait for the first sample. Readers take turns; figures are medians of the
rounds, and ratios are taken within a round. They run in the environments of `reading.py`, below `--environments`; one
that cannot be had is left out. `--page` replaces the tables in that page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import reading
from distant import served

WINDOW = 10_000
_BEGIN = "<!-- made by benchmarks/reading.py s3 -->"
GOALS = (
    ("any2ds tar, window", "webdataset, window", 2.0),
    ("any2ds tar, window", "wids, window", 1.2),
    ("any2ds tar, global", "any2ds tar, window", 0.3),
)
BATCH = 256


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=50_000)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="at most, for each figure")
    parser.add_argument("--readers", default=",".join(READERS), help="those whose names begin so")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "any2ds-peers")
    parser.add_argument("--page", type=Path, help="whose tables are replaced")
    parser.add_argument("--child", nargs=2, metavar=("READER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        name, folder = options.child
        print(json.dumps(measured(READERS[name](Path(folder)), options.seconds)))
        sys.stdout.flush()
        os._exit(0)  # pools and programs that others leave behind
    wanted = [name for name in READERS if name.startswith(tuple(options.readers.split(",")))]
    reading.report(tables(run(options, wanted), options), options.page, _BEGIN)


def run(options: argparse.Namespace, wanted: list[str]) -> dict[str, list[tuple[float, float] | str]]:
    """By reader samples per second and microseconds of CPU in each round, or why there are none."""
    needed = {"torch", *(_OTHERS.get(name, "torch") for name in wanted)}
    pythons = {name: reading.environment(options.environments, name) for name in needed}
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    found: dict[str, list[tuple[float, float] | str]] = {name: [] for name in wanted}
    with tempfile.TemporaryDirectory(prefix="any2ds-reading-s3-", dir=root) as made:
        folder = Path(made)
        for output_format in ("webdataset", "parquet"):
            reading.make(folder / output_format, output_format, options.samples, options.bytes)
        for name in _OTHERS.keys() & wanted:
            reading.asked(pythons[_OTHERS[name]], folder, options, name.partition(",")[0], "convert")
        with served(folder, options.latency) as url:
            for number in range(options.rounds):
                for name in wanted if number % 2 == 0 else wanted[::-1]:
                    if (python := pythons[_OTHERS.get(name, "torch")]) is None:
                        found[name].append("its environment cannot be made")
                    else:
                        found[name].append(one_run(str(python), name, folder, url, options))
                    print(f"round {number + 1} of {options.rounds}: {name}: {found[name][-1]}", file=sys.stderr)
    return found


def one_run(python: str, name: str, folder: Path, url: str, options: argparse.Namespace) -> tuple[float, float] | str:
    with tempfile.TemporaryDirectory(prefix="any2ds-reading-s3-") as home:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
            "S3_ENDPOINT_URL": url,  # for MosaicML's streaming
            "ANY2DS_CACHE": f"{home}/any2ds",
            "HF_HOME": f"{home}/hf",
            "WIDS_CACHE": f"{home}/wids",
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
        }
        command = [python, __file__, "--child", name, str(folder), f"--seconds={options.seconds}"]
        try:
            done = subprocess.run(
                command, env=environment, cwd=home, capture_output=True, text=True, timeout=60 + options.seconds
            )
        except subprocess.TimeoutExpired:
            return "no end"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:150]}"
    rate, cpu = json.loads(done.stdout.splitlines()[-1])
    return rate, cpu


def measured(samples: Iterator[Any], seconds: float) -> tuple[float, float]:
    """Samples per second and microseconds of CPU, of all processes, for each. The first thing it gives is None, when
    the dataset is open."""
    if next(samples) is not None:
        raise ValueError("it gives a sample before it is open")
    count, wall, cpu = 0, time.perf_counter(), spent()
    for _ in samples:
        count += 1
        if time.perf_counter() - wall > seconds:
            break
    took = time.perf_counter() - wall
    return count / took, (spent() - cpu) / count * 1e6


def spent() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def tables(found: dict[str, list[tuple[float, float] | str]], options: argparse.Namespace) -> str:
    """In Markdown: the figures, and the goals."""
    lines = [
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {options.samples:,} samples of {options.bytes:,} bytes,"
        f" {options.latency * 1000:.0f} ms; medians of {options.rounds} rounds.",
        "",
        "| reader | samples/s | µs of CPU each |",
        "|---|---|---|",
    ]
    for name, runs in found.items():
        good = [each for each in runs if not isinstance(each, str)]
        if good:
            rate, cpu = (statistics.median(each[n] for each in good) for n in (0, 1))
            lines.append(f"| {name} | {rate:,.0f} | {cpu:.0f} |")
        else:
            lines.append(f"| {name} | {runs[0]} | |")
    lines += ["", "| rate | by that of | goal | median | rounds |", "|---|---|---|---|---|"]
    for one, other, goal in GOALS:
        pairs = zip(found.get(one, ()), found.get(other, ()), strict=False)
        ratios = [a[0] / b[0] for a, b in pairs if not isinstance(a, str) and not isinstance(b, str)]
        if ratios:
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"| {one} | {other} | {goal} | {statistics.median(ratios):.2f} | {shown} |")
    return "\n".join(lines) + "\n"


# --- readers: each gives None when the dataset is open, and then the samples of an epoch ---


def _any2ds(output_format: str, how: str) -> Callable[[Path], Iterator[Any]]:
    def samples(folder: Path) -> Iterator[Any]:
        import any2ds

        ds = any2ds.load(f"s3://bucket/{output_format}")
        chance = random.Random(1)
        yield None
        if how == "window":
            yield from ds.stream(shuffle=True, seed=1, window=WINDOW)
        elif how == "global":
            order = chance.sample(range(len(ds)), len(ds))
            for start in range(0, len(ds), BATCH):
                yield from ds[order[start : start + BATCH]]
        else:
            yield from ds

    return samples


def _tars(folder: Path) -> list[str]:
    url = os.environ["AWS_ENDPOINT_URL"]
    return [f"{url}/bucket/webdataset/{tar.name}" for tar in sorted((folder / "webdataset").glob("*.tar"))]


def _webdataset(folder: Path) -> Iterator[Any]:
    import webdataset

    tars = [f"pipe:curl -s -f {url}" for url in _tars(folder)]
    samples = webdataset.WebDataset(tars, shardshuffle=len(tars), empty_check=False).shuffle(WINDOW)
    yield None
    yield from samples.decode()


def _wids(folder: Path) -> Iterator[Any]:
    import wids

    shards = [{"url": url, "nsamples": 1000} for url in _tars(folder)]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    Path("shards.json").write_text(json.dumps(index))
    samples = wids.ShardListDataset("shards.json", transformations=[], lru_size=2 * WINDOW // 1000)
    yield None
    for number in wids.ChunkedSampler(samples, chunksize=WINDOW, shuffle=True):
        sample = samples[number]
        yield sample[".jpg"].read(), json.load(sample[".json"])


def _pyarrow(folder: Path) -> Iterator[Any]:
    import pyarrow.dataset
    from pyarrow.fs import S3FileSystem

    store = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], scheme="http", region="us-east-1")
    files = [f"bucket/parquet/{file.name}" for file in sorted((folder / "parquet").glob("*.parquet"))]
    chance, held = random.Random(1), list[Any]()
    chance.shuffle(files)
    dataset = pyarrow.dataset.dataset(files, filesystem=store)
    yield None
    for batch in dataset.to_batches(batch_size=256, fragment_readahead=8):
        held += batch.to_pylist()
        if len(held) >= WINDOW:
            chance.shuffle(held)
        while len(held) >= WINDOW:
            yield held.pop()
    chance.shuffle(held)
    yield from held


def _huggingface(kind: str) -> Callable[[Path], Iterator[Any]]:
    def samples(folder: Path) -> Iterator[Any]:
        import datasets

        if kind == "webdataset":
            files: Any = _tars(folder)
        else:
            files = [f"s3://bucket/parquet/{file.name}" for file in sorted((folder / "parquet").glob("*.parquet"))]
        stream = datasets.load_dataset(kind, data_files=files, split="train", streaming=True)
        if "jpg" in (stream.features or ()):
            stream = stream.cast_column("jpg", datasets.Image(decode=False))
        yield None
        yield from stream.shuffle(seed=1, buffer_size=WINDOW)

    return samples


def _s3fs(folder: Path) -> Iterator[Any]:
    """Ranges of 64 samples at random, where the indexes say they lie; nothing is parsed."""
    import numpy
    import s3fs

    store, spans = s3fs.S3FileSystem(), []
    for index in sorted((folder / "webdataset").glob("*.tar.idx")):
        offsets = numpy.fromfile(index, "<u8").tolist()
        spans += [(f"bucket/webdataset/{index.stem}", *span) for span in pairwise(offsets)]
    random.Random(1).shuffle(spans)
    yield None
    for start in range(0, len(spans), 64):
        yield from store.cat_ranges(*map(list, zip(*spans[start : start + 64], strict=True)))


def _streaming(folder: Path) -> Iterator[Any]:
    dataset = reading.import_streaming().StreamingDataset(
        remote="s3://bucket/streaming", local="copies", shuffle=True, shuffle_block_size=WINDOW, batch_size=1
    )
    yield None
    yield from dataset


def _energon(folder: Path) -> Iterator[Any]:
    """Its paths are those of NVIDIA's multi-storage-client, which takes the store from a file."""
    where = {"base_path": "bucket", "endpoint_url": os.environ["AWS_ENDPOINT_URL"], "region_name": "us-east-1"}
    Path("msc.json").write_text(
        json.dumps({"profiles": {"store": {"storage_provider": {"type": "s3", "options": where}}}})
    )
    os.environ["MSC_CONFIG"] = str(Path("msc.json").resolve())
    loader = reading.energon_loader("msc://store/energon", WINDOW, 100)
    yield None
    yield from loader


_OTHERS = {"MosaicML streaming, window": "streaming", "Megatron-Energon, window": "torch"}
"""What reads a dataset of its own, which is converted first: its environment."""
READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "any2ds tar, window": _any2ds("webdataset", "window"),
    "any2ds tar, global": _any2ds("webdataset", "global"),
    "any2ds tar, in order": _any2ds("webdataset", "in order"),
    "any2ds parquet, window": _any2ds("parquet", "window"),
    "webdataset, window": _webdataset,
    "wids, window": _wids,
    "pyarrow parquet, window": _pyarrow,
    "s3fs, cat_ranges of 64": _s3fs,
    "Hugging Face datasets tar, window": _huggingface("webdataset"),
    "Hugging Face datasets parquet, window": _huggingface("parquet"),
    "MosaicML streaming, window": _streaming,
    "Megatron-Energon, window": _energon,
}


if __name__ == "__main__":
    main()
