"""How fast a finished dataset on this machine is read for training, beside other libraries.

    python benchmarks/reading.py [--samples=20000] [--bytes=50000] [--rounds=3] [--seconds=1.5] [--readers=any2ds,…]
                                 [--environments=DIR] [--folder=FOLDER] [--page=benchmarks/README.md]
    python benchmarks/reading.py s3 …         # the same from a store: reading_s3.py
    python benchmarks/reading.py --opening    # opening 10,000,000 samples, searching them, and parsing records
    python benchmarks/reading.py --opening --shards=100000    # the same of 10^9 samples: links to 1,000 shards

It makes a dataset in each format without the network, and what others read (8 GB), in the folder for temporary files,
or in `--folder`, and reads them from the memory in which the system keeps them. A reader is a process of its own, which
takes an epoch, or what it gets of it in `--seconds`, once to warm up and once measured. Readers take turns; figures are
medians of the rounds, and ratios are taken within a round. The other libraries are installed into environments of their
own below `--environments`; one that cannot be had is left out, and the terminal says so. `--page` replaces the tables
in that page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

import any2ds
from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.layout import RUN_FILE, STATE_FOLDER, Layout
from any2ds.core.manifest import Beginning, Manifest, Segment
from any2ds.core.metadata import OUTCOME_FIELDS, MetadataTable
from any2ds.core.plugins import load as load_part
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.dataset import tfds
from any2ds.dataset.shard_list import ShardEntry

_BEGIN, _END = "<!-- made by benchmarks/reading.py -->", "<!-- end -->"
_BEGIN_OPENING = "<!-- made by benchmarks/reading.py --opening -->"
ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("webdataset", "parquet", "tfrecord", "arrayrecord", "files")
SHARD = 1000
WINDOW = 10_000
BATCH = 64
COLUMNS = ["data", "caption", "key"]
WAYS = "sequential", "window", "random", "batches"
"""In order; shuffled in a window; by number at random, one by one; the same in batches of 64."""

Reads = dict[str, Callable[[], Iterable[Any]]]
"""How a library reads, by one of `WAYS`; batches count as one each."""

OURS = "google-crc32c", "array_record==0.8.6"
TORCH = "torch==2.13.0"
"""The build for CPUs, where pip finds that."""
ENVIRONMENTS = {
    "numpy": (*OURS, "datasets==5.2.0", "grain==0.2.18"),
    "torch": (
        TORCH,
        "webdataset==1.0.2",
        "wids==0.1.11",
        "litdata==0.2.76",
        "datasets==5.2.0",
        "s3fs==2026.9.0",
        "megatron-energon==7.4.1",
        "boto3",  # with which it reads from S3
    ),
    "tensorflow": (*OURS, "tensorflow-cpu==2.21.0", "tensorflow_datasets==4.9.10", "requests"),
    "streaming": (
        TORCH,
        "transformers<5",
        "numpy<2.2",
        "xxhash<4",
        "Brotli",
        "catalogue",
        "pillow",
        "python-snappy",
        "zstd",
        "boto3",
    ),
}
ALONE = {"streaming": ("mosaicml-streaming==0.13.0",)}
"""What is installed without its dependencies: those for clouds would take hundreds of MB."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A library and what it reads. `open` and `convert` run in its environment."""

    name: str
    environment: str
    open: Callable[[Path], Reads]  # in the folder that holds the datasets
    convert: Callable[[Path], None] | None = None  # what it needs, once


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that any2ds should reach: its rate in a way, by that of another reader."""

    ours: tuple[str, str]  # reader and way
    theirs: tuple[Sequence[str], str]  # the best of these
    least: float


def main() -> None:
    if sys.argv[1:2] == ["s3"]:
        import reading_s3

        reading_s3.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="at most, for each figure")
    parser.add_argument("--readers", help="those whose names begin so")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "any2ds-peers")
    parser.add_argument("--folder", type=Path, help="for the datasets, which are kept there")
    parser.add_argument("--page", type=Path, help="whose tables are replaced")
    parser.add_argument("--opening", action="store_true")
    parser.add_argument("--shards", type=int, default=1000, help="of 10,000 samples each, to be opened")
    parser.add_argument("--child", nargs=2, metavar=("READER", "TASK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options, *options.child)
        return
    folder = options.folder or Path(tempfile.mkdtemp(prefix="any2ds-reading-"))
    os.environ.update(ANY2DS_CACHE=str(folder / "cache"), HF_HOME=str(folder / "huggingface"))
    try:
        if options.opening:
            figures = [*opening(folder / "many", options.shards), *parsing(folder / "records", options.bytes)]
            report(figures_table(figures, options), options.page, _BEGIN_OPENING)
            return
        wanted = tuple(re.split(",(?! )", options.readers or ""))  # a name may have a comma and a space
        runs = run(folder, options, [reader for reader in READERS if reader.name.startswith(wanted)])
        report(tables(runs, options), options.page, _BEGIN)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def report(text: str, page: Path | None, begin: str) -> None:
    """Prints it, and puts it into the page between this line and the next `_END`."""
    print(text)
    if page:
        content, made = page.read_text(encoding="utf-8"), f"{begin}\n\n{text}\n{_END}"
        content, count = re.subn(f"{re.escape(begin)}.*?{re.escape(_END)}", lambda _: made, content, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{page} has no place for the tables: {begin}")
        page.write_text(content, encoding="utf-8")


# --- readers ---


def ours(output_format: str) -> Reader:
    def open(folder: Path) -> Reads:
        ds = any2ds.load(folder / output_format, columns=COLUMNS)
        order = random.Random(1).sample(range(len(ds)), len(ds))
        return {
            "sequential": lambda: ds,
            "window": lambda: ds.stream(shuffle=True, window=WINDOW),
            "random": lambda: map(ds.__getitem__, order),
            "batches": lambda: (ds[order[start : start + BATCH]] for start in range(0, len(order), BATCH)),
        }

    return Reader(f"any2ds, {output_format}", "numpy", open)


def map_dataset(folder: Path) -> Reads:
    """By number, as a `MapDataset` is read."""
    ds = any2ds.load(folder / "webdataset", columns=COLUMNS)
    shuffled = ds.to_grain().seed(1).shuffle()
    batches = shuffled.batch(BATCH, batch_fn=list)
    return {
        "random": lambda: map(shuffled.__getitem__, range(len(shuffled))),
        "batches": lambda: map(batches.__getitem__, range(len(batches))),
    }


def iter_dataset(folder: Path) -> Reads:
    import grain

    ds = any2ds.load(folder / "webdataset", columns=COLUMNS)
    shuffled = ds.to_grain().seed(1).shuffle()
    numbers = grain.MapDataset.range(len(ds)).seed(1).shuffle().batch(BATCH, batch_fn=list)
    return {
        "random": lambda: shuffled.to_iter_dataset(ds.read_options(num_threads=0)),
        "batches": lambda: numbers.map(ds.__getitem__).to_iter_dataset(ds.read_options(num_threads=0)),
    }


def data_loader(folder: Path) -> Reads:
    from torch.utils.data import DataLoader

    ds = any2ds.load(folder / "webdataset", columns=COLUMNS)
    several: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "collate_fn": list}
    return {
        "window": lambda: DataLoader(ds.stream(shuffle=True, window=WINDOW), **several),
        "batches": lambda: DataLoader(ds, shuffle=True, **several),
    }


def arrow(folder: Path) -> Reads:
    import datasets

    ds = datasets.load_from_disk(str(folder / "arrow"))
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: ds,
        "random": lambda: map(ds.__getitem__, order),
        "batches": lambda: (ds[order[start : start + BATCH]]["key"] for start in range(0, len(order), BATCH)),
    }


def to_arrow(folder: Path) -> None:
    import datasets

    samples = any2ds.load(folder / "webdataset", columns=COLUMNS)
    datasets.Dataset.from_generator(samples.__iter__).save_to_disk(str(folder / "arrow"))


def webdataset(folder: Path) -> Reads:
    import webdataset as wds

    tars = sorted(map(str, folder.glob("webdataset/*.tar")))
    return {
        "sequential": lambda: wds.WebDataset(tars, shardshuffle=False).decode(),
        "window": lambda: wds.WebDataset(tars, shardshuffle=len(tars)).shuffle(WINDOW).decode(),
    }


def webdataset_loader(folder: Path) -> Reads:
    import webdataset as wds

    tars = sorted(map(str, folder.glob("webdataset/*.tar")))

    def read(window: int) -> Iterable[Any]:
        pipeline = wds.WebDataset(tars, shardshuffle=len(tars) if window else False, workersplitter=wds.split_by_worker)
        pipeline = (pipeline.shuffle(window) if window else pipeline).decode().batched(BATCH, collation_fn=list)
        return wds.WebLoader(pipeline, batch_size=None, num_workers=2)

    return {"window": lambda: read(WINDOW), "batches": lambda: read(0)}


def wids(folder: Path) -> Reads:
    import wids

    shards = [{"url": str(tar), "nsamples": SHARD} for tar in sorted(folder.glob("webdataset/*.tar"))]
    listed = folder / "wids.json"
    listed.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}))
    ds = wids.ShardListDataset(str(listed), transformations=[])
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: map(ds.__getitem__, range(len(ds))),
        "window": lambda: map(ds.__getitem__, wids.ShardedSampler(ds)),
        "random": lambda: map(ds.__getitem__, order),
    }


def array_record(folder: Path) -> Reads:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    ds = ArrayRecordDataSource(sorted(map(str, folder.glob("arrayrecord/*.arrayrecord"))))
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: map(ds.__getitem__, range(len(ds))),
        "random": lambda: map(ds.__getitem__, order),
        "batches": lambda: (ds.__getitems__(order[start : start + BATCH]) for start in range(0, len(order), BATCH)),
    }


def grain_records(folder: Path) -> Reads:
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("arrayrecord/*.arrayrecord"))))
    ds = grain.MapDataset.source(source).seed(1).shuffle().map(lambda record: any2ds.parse_example(record, COLUMNS))
    return {"random": lambda: ds.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=64))}


def tfds_source(folder: Path) -> Reads:
    import tensorflow_datasets as theirs

    builder = theirs.builder_from_directory(str(folder / "arrayrecord"))
    ds = builder.as_data_source("train", decoders={"data": theirs.decode.SkipDecoding()})  # it takes no fewer features
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: map(ds.__getitem__, range(len(ds))),
        "random": lambda: map(ds.__getitem__, order),
    }


def tf_data(folder: Path) -> Reads:
    import tensorflow as tf

    files = sorted(map(str, folder.glob("tfrecord/*.tfrecord")))
    wanted = {name: tf.io.FixedLenFeature([], tf.string) for name in COLUMNS}
    ds = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, wanted))
    return {
        "sequential": lambda: ds.prefetch(BATCH).as_numpy_iterator(),
        "window": lambda: ds.shuffle(WINDOW).prefetch(BATCH).as_numpy_iterator(),
    }


def litdata(folder: Path) -> Reads:
    from litdata import StreamingDataset

    ds = StreamingDataset(str(folder / "litdata"))
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: ds,
        "window": lambda: StreamingDataset(str(folder / "litdata"), shuffle=True),
        "random": lambda: map(ds.__getitem__, order),
    }


def to_litdata(folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter  # `optimize` starts processes for it

    (folder / "litdata").mkdir()
    writer = BinaryWriter(str(folder / "litdata"), chunk_bytes="64MB")
    for number, sample in enumerate(any2ds.load(folder / "webdataset", columns=COLUMNS)):
        writer[number] = sample
    writer.done()
    writer.merge()


def import_streaming() -> Any:
    for part in ("text", "vision"):  # they need torchvision, whose wheels fit the builds of PyTorch for GPUs
        sys.modules[f"streaming.{part}"] = ModuleType(part)
    import streaming

    return streaming


def streaming(folder: Path) -> Reads:
    dataset_class = import_streaming().StreamingDataset

    def opened(shuffle: bool) -> Any:
        local = str(folder / "streaming")
        return dataset_class(local=local, shuffle=shuffle, shuffle_block_size=WINDOW, batch_size=1)

    ds = opened(False)
    order = random.Random(1).sample(range(len(ds)), len(ds))
    return {
        "sequential": lambda: ds,
        "window": lambda: opened(True),
        "random": lambda: map(ds.__getitem__, order),
    }


def to_streaming(folder: Path) -> None:
    columns = {"data": "bytes", "caption": "str", "key": "str"}
    with import_streaming().MDSWriter(out=str(folder / "streaming"), columns=columns) as out:
        for sample in any2ds.load(folder / "webdataset", columns=COLUMNS):
            out.write(sample)


def energon(folder: Path) -> Reads:
    """A window as its documentation has it: of 10,000 samples, from slices of 100; a slice of one is at random."""
    own = folder / "energon"
    return {
        "sequential": lambda: energon_loader(own, None, None),
        "window": lambda: energon_loader(own, WINDOW, 100),
        "random": lambda: energon_loader(own, None, 1),
    }


def energon_loader(folder: Path | str, window: int | None, slices: int | None) -> Iterable[Any]:
    """In order without `slices`."""
    from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless

    class Files(DefaultTaskEncoder):  # type: ignore[misc]  # which is not there for the type checker
        decoder: ClassVar[Any] = None
        cookers: ClassVar[Any] = [Cooker(stateless(lambda sample: sample))]

    one = WorkerConfig(rank=0, world_size=1, num_workers=0)
    own = {} if slices else {"shuffle_over_epochs_multiplier": None, "parallel_shard_iters": 1}
    options = {"shuffle_buffer_size": window, "max_samples_per_sequence": slices, "batch_size": None, **own}
    loader: Iterable[Any] = get_loader(get_train_dataset(folder, worker_config=one, task_encoder=Files(), **options))
    return loader


def to_energon(folder: Path) -> None:
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    own = folder / "energon"
    own.mkdir()
    tars = sorted(folder.glob("webdataset/*.tar"))
    for tar in tars:
        os.link(tar, own / tar.name)
    names = [tar.name for tar in tars]
    WebdatasetPreparator.prepare_dataset(own, names, split_parts_ratio=[("train", 1.0)], workers=2)
    described = "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {}\n"
    (own / ".nv-meta" / "dataset.yaml").write_text(described)


READERS = (
    *map(ours, FORMATS),
    Reader("any2ds, Grain's MapDataset", "numpy", map_dataset),
    Reader("any2ds, Grain's IterDataset", "numpy", iter_dataset),
    Reader("any2ds, DataLoader of 2 workers", "torch", data_loader),
    Reader("HF datasets, Arrow", "numpy", arrow, to_arrow),
    Reader("webdataset", "torch", webdataset),
    Reader("webdataset, WebLoader of 2 workers", "torch", webdataset_loader),
    Reader("wids", "torch", wids),
    Reader("ArrayRecord, records unparsed", "numpy", array_record),
    Reader("Grain over arrayrecord, parse_example", "numpy", grain_records),
    Reader("tfds.data_source", "tensorflow", tfds_source),
    Reader("tf.data, TFRecord", "tensorflow", tf_data),
    Reader("litdata", "torch", litdata, to_litdata),
    Reader("MosaicML streaming", "streaming", streaming, to_streaming),
    Reader("Megatron-Energon", "torch", energon, to_energon),
)
TAR, LOADER = "any2ds, webdataset", "any2ds, DataLoader of 2 workers"
GOALS = (
    Goal((TAR, "random"), (["HF datasets, Arrow"], "random"), 1.8),
    Goal((TAR, "sequential"), (["webdataset"], "sequential"), 3.0),
    Goal(("any2ds, Grain's MapDataset", "random"), ([TAR], "random"), 0.45),
    Goal(("any2ds, Grain's MapDataset", "batches"), ([TAR], "random"), 0.45),
    Goal(("any2ds, Grain's IterDataset", "random"), ([TAR], "random"), 0.45),
    Goal(("any2ds, Grain's IterDataset", "batches"), ([TAR], "random"), 0.45),
    Goal((LOADER, "batches"), (["webdataset", "webdataset, WebLoader of 2 workers"], "best"), 0.9),
    Goal(("any2ds, tfrecord", "random"), (["tfds.data_source"], "random"), 2.0),
    Goal(("any2ds, tfrecord", "sequential"), (["tfds.data_source"], "sequential"), 2.0),
    Goal(("any2ds, arrayrecord", "random"), (["tfds.data_source"], "random"), 2.0),
    Goal(("any2ds, arrayrecord", "sequential"), (["tfds.data_source"], "sequential"), 2.0),
)


# --- measuring ---

Figure = tuple[float, float]
"""Samples per second, and microseconds of CPU for each, those of workers included."""
Run = dict[str, dict[str, Figure]]
"""By reader and way."""


def run(folder: Path, options: argparse.Namespace, readers: Sequence[Reader]) -> list[Run]:
    """One for each round."""
    needed = {"numpy", *(reader.environment for reader in readers)}
    pythons = {name: environment(options.environments, name) for name in ENVIRONMENTS if name in needed}
    if asked(pythons["numpy"], folder, options, "datasets", "make") is None:
        raise SystemExit("the datasets could not be made")
    able = [
        reader
        for reader in readers
        if (python := pythons[reader.environment]) is not None
        and (reader.convert is None or asked(python, folder, options, reader.name, "convert") is not None)
    ]
    if hasattr(os, "sync"):
        os.sync()  # else the disk is written to meanwhile
    found: list[Run] = []
    for number in range(options.rounds):
        results = {
            reader.name: asked(pythons[reader.environment], folder, options, reader.name, "read")
            for reader in (able if number % 2 else able[::-1])
        }
        found.append({name: figures for name, figures in results.items() if figures})
    return found


def environment(folder: Path, name: str) -> Path | None:
    """Its Python; None if it cannot be installed."""
    home = folder / f"reading-{name}"
    python = home / "bin" / "python"
    packages = " ".join((*ENVIRONMENTS[name], *ALONE.get(name, ())))
    if not (home / "installed").exists() or (home / "installed").read_text() != packages:
        print(f"installing {packages} into {home}", file=sys.stderr)
        install = [str(python), "-m", "pip", "install", "-q"]
        wanted = ["-r", str(ROOT / "requirements.txt"), *ENVIRONMENTS[name]]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, timeout=_INSTALLING)
            subprocess.run([*install, *wanted], check=True, timeout=_INSTALLING)
            if name in ALONE:
                subprocess.run([*install, "--no-deps", *ALONE[name]], check=True, timeout=_INSTALLING)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            return None
        (home / "installed").write_text(packages)
    return python


_INSTALLING = 1800  # seconds
_READING = 600  # seconds


def asked(python: Path | None, folder: Path, options: argparse.Namespace, name: str, task: str) -> Any:
    """What a child says; None, and a line on the terminal, where it fails."""
    command = [
        str(python),
        __file__,
        f"--folder={folder}",
        *(f"--{name}={getattr(options, name)}" for name in ("samples", "bytes", "seconds")),
        "--child",
        name,
        task,
    ]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_READING, env={**os.environ, **quiet}, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"{name}, {task}: not done in {_READING} seconds", file=sys.stderr)
        return None
    last = done.stdout.strip().rpartition("\n")[2]
    if not last.startswith("{"):
        print(f"{name}, {task}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return None
    print(f"{name}, {task}: {last}", file=sys.stderr)
    return json.loads(last)


def child(options: argparse.Namespace, name: str, task: str) -> None:
    """Prints its figures as the last line."""
    found: dict[str, Figure] = {}
    if task == "make":
        for output_format in FORMATS:
            if not (options.folder / output_format).exists():
                make(options.folder / output_format, output_format, options.samples, options.bytes)
    else:
        reader = next(each for each in READERS if each.name == name)
        if task == "read":
            found = {way: measured(read, options.seconds) for way, read in reader.open(options.folder).items()}
        elif reader.convert is not None and not (done := options.folder / f"{name}.converted").exists():
            reader.convert(options.folder)
            done.touch()
    print(flush=True)
    print(json.dumps(found), flush=True)
    os._exit(0)  # without waiting for the threads of others


def measured(read: Callable[[], Iterable[Any]], seconds: float) -> Figure:
    """The first run warms up. The clock starts with the first sample: workers take long to start, once in an epoch."""
    for limit in (seconds / 3, seconds):
        cpu, count = spent(), 0
        samples = iter(read())
        next(samples)
        wall = time.perf_counter()
        for each in samples:
            count += len(each) if isinstance(each, list) else 1
            if time.perf_counter() - wall > limit:
                break
        elapsed = time.perf_counter() - wall
        del samples
    return round(count / elapsed, 1), round((spent() - cpu) / count * 1e6, 1)


def spent() -> float:
    """CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


# --- tables ---


def tables(runs: Sequence[Run], options: argparse.Namespace) -> str:
    """In Markdown: the figures, and the goals."""
    lines = [
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {options.samples:,} samples of {options.bytes:,} bytes,"
        f" {SHARD:,} to a shard, warm; samples per second (µs of CPU), medians of {options.rounds} rounds.",
        "",
        f"| reader | {' | '.join(WAYS)} |",
        "|---|" + "---|" * len(WAYS),
    ]
    for reader in READERS:
        cells = []
        for way in WAYS:
            figures = [each[reader.name][way] for each in runs if way in each.get(reader.name, {})]
            rate, cpu = (statistics.median(part) for part in zip(*figures, strict=True)) if figures else (0, 0)
            cells.append(f"{rate:,.0f} ({cpu:.0f})" if figures else "-")
        if set(cells) != {"-"}:
            lines.append(f"| {reader.name} | {' | '.join(cells)} |")
    lines += ["", "| rate | by that of | goal | median | rounds |", "|---|---|---|---|---|"]
    for goal in GOALS:
        if ratios := [ratio for each in runs if (ratio := ratio_in(each, goal)) is not None]:
            (reader, way), (others, their_way) = goal.ours, goal.theirs
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(
                f"| {reader}: {way} | {' or '.join(others)}: {their_way} | {goal.least} |"
                f" {statistics.median(ratios):.2f} | {shown} |"
            )
    return "\n".join(lines) + "\n"


def ratio_in(run: Run, goal: Goal) -> float | None:
    (reader, way), (others, their_way) = goal.ours, goal.theirs
    found = [run.get(other, {}) for other in others]
    rates = [rate for each in found for name, (rate, _) in each.items() if their_way in (name, "best")]
    return run[reader][way][0] / max(rates) if rates and way in run.get(reader, {}) else None


# --- datasets ---


def make(folder: Path, output_format: str, samples: int, size: int) -> None:
    """As a run would have written it: the same writers, without fetching."""
    (folder / STATE_FOLDER).mkdir(parents=True)
    options = OutputOptions(output_folder=str(folder), output_format=output_format, number_sample_per_shard=SHARD)
    made_with = {
        "output_format": output_format,
        "number_sample_per_shard": SHARD,
        "oom_shard_count": 5,
    }
    (folder / RUN_FILE).write_bytes(Manifest(made_with, "", {}, (Segment(0, (), Beginning(0, "")),)).to_json())
    layout, writer_class = Layout(SHARD, 5), load_part("writers", output_format)
    entries: list[ShardEntry] = []
    bodies = [b"\xff\xd8\xff\xe0" + random.Random(n).randbytes(size - 4) for n in range(64)]
    for shard in range(-(-samples // SHARD)):
        count = min(SHARD, samples - shard * SHARD)
        rows = pa.table({"url": [f"http://host/{shard}/{n}.jpg" for n in range(count)], "caption": ["a photo"] * count})
        metadata = MetadataTable(rows, ())
        path = folder / str(layout.data_name(shard, writer_class.extension))
        writer = writer_class(path, metadata, options)
        for n in range(count):
            body = StoredBody.of(bodies[n % len(bodies)])
            row = Row(shard, n, layout.key(shard, n), rows["url"][n].as_py(), "a photo")
            known: dict[str, Any] = dict.fromkeys(OUTCOME_FIELDS)
            known.update(status="success", ext="jpg", mime_type="image/jpeg", bytes=size, attempts=1)
            sample = Sample(row, body, "jpg", known)
            metadata.add(sample)
            writer.write(sample)
        writer.close()
        if not writer_class.holds_metadata:
            pq.write_table(metadata.table_in_sight(), folder / layout.metadata_name(shard))
        entries.append(ShardEntry(shard, count, count, count * size, path.stat().st_size if path.is_file() else 0))
        stats = {
            "count": count,
            "successes": count,
            "samples": count,
            "shard_id": shard,
            "data_bytes": entries[-1].data_bytes,
        }
        (folder / layout.stats_name(shard)).write_bytes(orjson.dumps(stats))
    for name, content in tfds.files(entries, options, metadata.schema_in_sight).items():
        (folder / name).write_bytes(content)


@dataclass(frozen=True, slots=True)
class Measured:
    """Something that any2ds does by itself, and what it may take at most."""

    what: str
    shown: str
    value: float
    goal: float | None = None
    unit: str = "s"


def figures_table(figures: Sequence[Measured], options: argparse.Namespace) -> str:
    """In Markdown."""
    lines = [
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {options.shards:,} tar shards of 10,000 samples, warm.",
        "",
        "| | took | goal | |",
        "|---|---|---|---|",
    ]
    for each in figures:
        goal, verdict = "", ""
        if each.goal is not None and options.shards <= 1000:  # the goals are for 10,000,000 samples
            goal, verdict = f"at most {each.goal:g} {each.unit}", "reached" if each.value <= each.goal else "missed"
        lines.append(f"| {each.what} | {each.shown} | {goal} | {verdict} |")
    return "\n".join(lines) + "\n"


def parsing(folder: Path, size: int, count: int = 1000) -> list[Measured]:
    """What `parse_example` takes for a record of `size` bytes with three columns: the least of several times."""
    make(folder, "tfrecord", count, size)
    content, records, at = next(folder.glob("*.tfrecord")).read_bytes(), [], 0
    while at < len(content):  # length, its checksum, the record, its checksum
        length = int.from_bytes(content[at : at + 8], "little")
        records.append(content[at + 12 : at + 12 + length])
        at += length + 16
    times = []
    for _ in range(7):
        cpu = spent()
        for record in records:
            any2ds.parse_example(record, COLUMNS)
        times.append((spent() - cpu) / len(records) * 1e6)
    what = f"`any2ds.parse_example` of a record of {size:,} bytes, three columns"
    return [Measured(what, f"{min(times):.0f} µs of CPU", min(times), 60, "µs")]


def opening(folder: Path, shards: int, rows: int = 10_000, real: int = 1000) -> list[Measured]:
    """Of a dataset whose tar files are empty: neither opening nor searching reads them.

    `real` shards are made; the others are links to these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = Layout(rows, max(5, len(str(shards - 1))))
    numbers = range(rows)
    columns = {
        "url": [f"http://host/{n}" for n in numbers],
        "status": ["success"] * rows,
        "width": [n % 2000 for n in numbers],
        "similarity": [n / rows for n in numbers],
    }
    for shard in range(min(shards, real)):
        keys = list(map(layout.keys(shard), numbers))
        pq.write_table(pa.table({"key": keys, **columns}), folder / layout.metadata_name(shard))
        (folder / f"{layout.shard_name(shard)}.tar").touch()
        stats = {"count": rows, "successes": rows, "shard_id": shard, "any2ds": any2ds.__version__}
        (folder / layout.stats_name(shard)).write_bytes(orjson.dumps(stats))
    for shard in range(real, shards):
        for name in (layout.metadata_name, layout.stats_name, lambda number: f"{layout.shard_name(number)}.tar"):
            os.link(folder / name(shard % real), folder / name(shard))
    found = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for what, options, goal in (
        ("opened", {}, None),
        ("opened once more", {}, 1),
        ("searched for few", {"where": "width = 7"}, 3),
        ("searched", {"where": "width >= 512 and similarity > 0.3"}, 3),
        ("split by hashes", {"split": "hash[:80%]"}, None),
    ):
        wall, cpu = time.perf_counter(), spent()
        ds = any2ds.load(folder, **options)  # type: ignore[arg-type]
        took, used = time.perf_counter() - wall, spent() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        shown = f"{took:.2f} s ({used:.2f} s of CPU; at most {memory / 1024:,.0f} MB of memory)"
        found.append(Measured(f"{what}: {len(ds):,} samples", shown, took, goal))
        if what == "opened":
            each = memory * 1024 / (shards * rows)
            found.append(Measured("its memory", f"{each:.1f} bytes a sample", each, 24, "bytes"))
        print(found[-1], file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
