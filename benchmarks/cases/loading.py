"""How fast a finished dataset is read for training, beside other libraries: from this machine, and from a store."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import any2ds
from benchmarks.case import ANY2DS, Bench, Side, clean_environment

FORMATS = ("webdataset", "parquet", "tfrecord", "arrayrecord", "files")
SHARD = 1000
WINDOW = 10_000
BATCH = 64
COLUMNS = ["data", "caption", "key"]
Reads = dict[str, Callable[[], Iterable[Any]]]
"""How to read it in order, shuffled in a window, by number at random one by one, and in batches."""


class Source:
    """Where the datasets lie: a folder with one of each format, and the URL of the store that has the same, if any."""

    def __init__(self, folder: str, store: str = "") -> None:
        self.folder, self.store = Path(folder), store

    def dataset(self, name: str) -> str:
        return f"s3://bucket/{name}" if self.store else str(self.folder / name)

    def files(self, name: str, ext: str, form: str = "{}") -> list[str]:
        """Paths, or http URLs in a form such as `pipe:curl -s -f {}`."""
        found = sorted((self.folder / name).glob(f"*.{ext}"))
        return [form.format(f"{self.store}/bucket/{name}/{each.name}") if self.store else str(each) for each in found]


def numbers(dataset: Any) -> list[int]:
    return random.Random(1).sample(range(len(dataset)), len(dataset))


def by_number(dataset: Any, order: Sequence[int]) -> Reads:
    return {
        "sequential": lambda: map(dataset.__getitem__, range(len(dataset))),
        "random": lambda: map(dataset.__getitem__, order),
    }


# --- readers: what each is opened with, and how it reads ---


def any2ds_in(source: Source, output_format: str) -> Reads:
    ds = any2ds.load(source.dataset(output_format), columns=COLUMNS)
    order, size = numbers(ds), 256 if source.store else BATCH
    return {
        "sequential": lambda: ds,
        "window": lambda: ds.stream(shuffle=True, seed=1, window=WINDOW),
        "random": lambda: map(ds.__getitem__, order),
        "batches": lambda: (ds[order[start : start + size]] for start in range(0, len(order), size)),
    }


def map_dataset(source: Source) -> Reads:
    shuffled = any2ds.load(source.dataset("webdataset"), columns=COLUMNS).to_grain().seed(1).shuffle()
    batches = shuffled.batch(BATCH, batch_fn=list)
    return {
        "random": lambda: map(shuffled.__getitem__, range(len(shuffled))),
        "batches": lambda: map(batches.__getitem__, range(len(batches))),
    }


def iter_dataset(source: Source) -> Reads:
    import grain

    ds = any2ds.load(source.dataset("webdataset"), columns=COLUMNS)
    shuffled = ds.to_grain().seed(1).shuffle()
    chosen = grain.MapDataset.range(len(ds)).seed(1).shuffle().batch(BATCH, batch_fn=list)
    return {
        "random": lambda: shuffled.to_iter_dataset(ds.read_options(num_threads=0)),
        "batches": lambda: chosen.map(ds.__getitem__).to_iter_dataset(ds.read_options(num_threads=0)),
    }


def data_loader(source: Source) -> Reads:
    from torch.utils.data import DataLoader

    ds = any2ds.load(source.dataset("webdataset"), columns=COLUMNS)
    several: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "collate_fn": list}
    return {
        "window": lambda: DataLoader(ds.stream(shuffle=True, window=WINDOW), **several),
        "batches": lambda: DataLoader(ds, shuffle=True, **several),
    }


def arrow(source: Source) -> Reads:
    import datasets

    if not (folder := source.folder / "arrow").exists():
        samples = any2ds.load(source.dataset("webdataset"), columns=COLUMNS)
        datasets.Dataset.from_generator(samples.__iter__).save_to_disk(str(folder))
    ds = datasets.load_from_disk(str(folder))
    order = numbers(ds)
    batches = lambda: (ds[order[start : start + BATCH]]["key"] for start in range(0, len(order), BATCH))  # noqa: E731
    return {"sequential": lambda: ds, "random": lambda: map(ds.__getitem__, order), "batches": batches}


def huggingface(source: Source, kind: str) -> Reads:
    import datasets

    files = source.files(kind, "tar" if kind == "webdataset" else "parquet")
    stream = datasets.load_dataset(kind, data_files=files, split="train", streaming=True)
    if "jpg" in (stream.features or ()):
        stream = stream.cast_column("jpg", datasets.Image(decode=False))
    return {"window": lambda: stream.shuffle(seed=1, buffer_size=WINDOW)}


def webdataset(source: Source) -> Reads:
    import webdataset as wds

    tars = source.files("webdataset", "tar", "pipe:curl -s -f {}")
    return {
        "sequential": lambda: wds.WebDataset(tars, shardshuffle=False).decode(),
        "window": lambda: wds.WebDataset(tars, shardshuffle=len(tars), empty_check=False).shuffle(WINDOW).decode(),
    }


def webdataset_loader(source: Source) -> Reads:
    import webdataset as wds

    tars = source.files("webdataset", "tar")

    def read(window: int) -> Any:
        pipeline = wds.WebDataset(tars, shardshuffle=len(tars) if window else False, workersplitter=wds.split_by_worker)
        pipeline = (pipeline.shuffle(window) if window else pipeline).decode().batched(BATCH, collation_fn=list)
        return iter(wds.WebLoader(pipeline, batch_size=None, num_workers=2))

    return {"window": lambda: read(WINDOW), "batches": lambda: read(0)}


def wids(source: Source) -> Reads:
    import wids

    shards = [{"url": url, "nsamples": SHARD} for url in source.files("webdataset", "tar")]
    Path("wids.json").write_text(
        json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards})
    )
    ds = wids.ShardListDataset("wids.json", transformations=[], lru_size=2 * WINDOW // SHARD)
    window = lambda: map(ds.__getitem__, wids.ChunkedSampler(ds, chunksize=WINDOW, shuffle=True))  # noqa: E731
    return {**({} if source.store else by_number(ds, numbers(ds))), "window": window}


def array_record(source: Source) -> Reads:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    ds = ArrayRecordDataSource(source.files("arrayrecord", "arrayrecord"))
    order = numbers(ds)
    batches = lambda: (ds.__getitems__(order[start : start + BATCH]) for start in range(0, len(order), BATCH))  # noqa: E731
    return {**by_number(ds, order), "batches": batches}


def tfds_source(source: Source) -> Reads:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(source.dataset("arrayrecord"))
    ds = builder.as_data_source("train", decoders={"data": tfds.decode.SkipDecoding()})  # it takes no fewer features
    return by_number(ds, numbers(ds))


def tf_data(source: Source) -> Reads:
    import tensorflow as tf

    wanted = {name: tf.io.FixedLenFeature([], tf.string) for name in COLUMNS}
    files = source.files("tfrecord", "tfrecord")
    ds = tf.data.TFRecordDataset(files).map(lambda record: tf.io.parse_single_example(record, wanted))
    return {
        "sequential": lambda: ds.prefetch(BATCH).as_numpy_iterator(),
        "window": lambda: ds.shuffle(WINDOW).prefetch(BATCH).as_numpy_iterator(),
    }


def pyarrow_window(source: Source) -> Reads:
    import pyarrow.dataset
    from pyarrow.fs import S3FileSystem

    store = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], scheme="http", region="us-east-1")
    files = [url.partition("//")[2].partition("/")[2] for url in source.files("parquet", "parquet")]
    chance = random.Random(1)

    def window() -> Iterator[Any]:
        held = list[Any]()
        dataset = pyarrow.dataset.dataset(chance.sample(files, len(files)), filesystem=store)
        for batch in dataset.to_batches(batch_size=256, fragment_readahead=8):
            held += batch.to_pylist()
            if len(held) >= WINDOW:
                chance.shuffle(held)
            while len(held) >= WINDOW:
                yield held.pop()
        chance.shuffle(held)
        yield from held

    return {"window": window}


def litdata(source: Source) -> Reads:
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter  # `optimize` starts processes for it

    folder = source.folder / "litdata"
    if not folder.exists():
        folder.mkdir()
        writer = BinaryWriter(str(folder), chunk_bytes="64MB")
        for number, sample in enumerate(any2ds.load(source.dataset("webdataset"), columns=COLUMNS)):
            writer[number] = sample
        writer.done()
        writer.merge()
    ds = StreamingDataset(str(folder))
    return {**by_number(ds, numbers(ds)), "window": lambda: StreamingDataset(str(folder), shuffle=True)}


def streaming(source: Source) -> Reads:
    from streaming import MDSWriter, StreamingDataset

    if not (folder := source.folder / "streaming").exists():
        with MDSWriter(out=str(folder), columns={"data": "bytes", "caption": "str", "key": "str"}) as out:
            for sample in any2ds.load(str(source.folder / "webdataset"), columns=COLUMNS):
                out.write(sample)
    place: dict[str, Any] = (
        {"remote": source.dataset("streaming"), "local": "copies"} if source.store else {"local": str(folder)}
    )
    place |= {"shuffle_block_size": WINDOW, "batch_size": 1}
    return {
        "sequential": partial(StreamingDataset, **place),
        "window": partial(StreamingDataset, shuffle=True, **place),
    }


# --- measuring ---


def read(reader: Sequence[str], folder: str, seconds: float, store: str = "") -> dict[str, float]:
    """An epoch in each way, or what it gives in some seconds. From a folder the first run warms up, and the clock
    starts with the first sample; from a store there is one run, and the wait for the first sample is in it."""
    figures: dict[str, float] = {}
    for way, opened in globals()[reader[1]](Source(folder, store), *reader[2:]).items():
        if store and (way == "random" or (reader[-1] == "parquet" and way != "window")):
            continue
        for limit in (seconds,) if store else (seconds / 3, seconds):
            cpu, count, began = spent(), 0, time.perf_counter()
            samples = iter(opened())
            if not store:
                next(samples)
                began = time.perf_counter()
            for each in samples:
                count += len(each) if isinstance(each, list) else 1
                if time.perf_counter() - began > limit:
                    break
            took = time.perf_counter() - began
            del samples
        figures |= {way: count / took, f"{way}_cpu": (spent() - cpu) / max(1, count)}
    return figures


def spent() -> float:
    """CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def make_datasets(bench: Bench, formats: Sequence[str]) -> Path:
    """By runs of any2ds, in a folder of the disk, from which they are read through the memory of the system."""
    folder, server, count = bench.folder("datasets"), bench.server(), bench["samples"]
    listed = bench.scratch / "samples.jsonl"
    rows = ({"url": server.url(f"ok/0/{bench['bytes']}/{n}"), "caption": "a photo"} for n in range(count))
    listed.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for output_format in formats:
        options = [
            f"--output_format={output_format}",
            f"--number_sample_per_shard={SHARD}",
            "--quiet",
            "--report=false",
        ]
        command = [*ANY2DS, str(listed), str(folder / output_format), "--caption_col=caption", *options]
        subprocess.run(command, check=True, env=clean_environment(bench.scratch))
    return folder


def sides_of(bench: Bench, environment: Mapping[str, str], **arguments: Any) -> list[Side]:
    cached = {name: str(bench.folder("cache")) for name in ("ANY2DS_CACHE", "HF_HOME", "WIDS_CACHE")}
    environment = {**cached, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    wanted = tuple(bench["readers"].split("/"))
    return [
        replace(bench.call(name, read, reader[0], reader=reader, **arguments), environment=environment)
        for name, reader in bench.data.items()
        if name.startswith(wanted)
    ]


def reading(bench: Bench) -> list[Side]:
    return sides_of(bench, {}, folder=make_datasets(bench, FORMATS), seconds=bench["seconds"])


def reading_s3(bench: Bench) -> list[Side]:
    folder = make_datasets(bench, ("webdataset", "parquet"))
    store = bench.store(folder=folder, latency=0.03).environment
    return sides_of(bench, store, folder=folder, seconds=bench["seconds"], store=store["AWS_ENDPOINT_URL"])


def opening(bench: Bench) -> list[Side]:
    """Of a dataset whose tar files are empty: neither opening nor searching reads them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, shards, folder = range(10_000), bench["shards"], bench.folder("many")
    table: dict[str, list[Any]] = {"url": [f"http://host/{n}" for n in rows], "status": ["success" for _ in rows]}
    table |= {"width": [n % 2000 for n in rows], "similarity": [n / len(rows) for n in rows]}
    names = [f"{shard:0{max(5, len(str(shards - 1)))}d}" for shard in range(shards)]
    for number, name in enumerate(names[:1000]):
        pq.write_table(pa.table({"key": [f"{name}{n:04d}" for n in rows], **table}), folder / f"{name}.parquet")
        (folder / f"{name}.tar").touch()
        stats = {"count": len(rows), "successes": len(rows), "shard_id": number}
        (folder / f"{name}_stats.json").write_text(json.dumps(stats))
    for number, name in enumerate(names[1000:]):
        for ending in (".parquet", ".tar", "_stats.json"):
            os.link(folder / f"{names[number % 1000]}{ending}", folder / f"{name}{ending}")
    cache, few = {"ANY2DS_CACHE": str(bench.folder("cache"))}, bench.folder("few")
    for path in folder.glob(f"{names[0]}*"):
        os.link(path, few / path.name)
    arguments: dict[str, Any] = {"folder": folder, "few": few}
    calls = [bench.call(name, open_dataset, **arguments, options=options) for name, options in bench.data.items()]
    return [replace(call, environment=cache) for call in calls]


def open_dataset(folder: str, few: str, options: dict[str, Any]) -> dict[str, float]:
    len(any2ds.load(few, **options))  # imports
    before, cpu, wall = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, spent(), time.perf_counter()
    found: Any = any2ds.load(folder, **options)
    took, used = time.perf_counter() - wall, spent() - cpu
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return {"took": took, "used": used, "added": memory, "samples": len(found)}
