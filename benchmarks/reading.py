"""How fast a finished dataset is read for training, beside other libraries that read the same files.

python benchmarks/reading.py [--samples=20000] [--bytes=50000] [--folder=FOLDER] [--seconds=5]

It makes a dataset in each format without the network, reads it in order, shuffled in a window, and at random, warm, in
one process, and prints samples per second and microseconds of CPU for each sample. Libraries that are not installed are
left out: run it in .venv-reading and .venv-torch as well. `--opening` measures how long it takes to open 10,000,000
samples and to search their metadata. `reading.py s3` measures reading from a store (`reading_s3.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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

FORMATS = ("webdataset", "parquet", "tfrecord", "arrayrecord", "files")
SHARD = 1000
WINDOW = 10_000
READ = "in order", "window", "random"


def main() -> None:
    if sys.argv[1:2] == ["s3"]:
        import reading_s3

        reading_s3.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="at most, for each figure")
    parser.add_argument("--opening", action="store_true")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="any2ds-reading-"))
    try:
        os.environ.setdefault("ANY2DS_CACHE", str(folder / "cache"))
        if options.opening:
            measure_opening(folder / "many")
            return
        print(f"{options.samples:,} samples of {options.bytes:,} bytes; samples per second (µs of CPU)\n")
        print(f"{'':36}" + "".join(f"{how:>20}" for how in READ))
        for output_format in FORMATS:
            dataset = folder / output_format
            if not available(output_format):
                continue
            if not dataset.exists():
                make(dataset, output_format, options.samples, options.bytes)
            for name, reads in readers(dataset, output_format):
                show(name, [measured(reads.get(how), options.seconds) for how in READ])
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def available(output_format: str) -> bool:
    library = {"tfrecord": "google_crc32c", "arrayrecord": "array_record"}.get(output_format, "pyarrow")
    return importlib.util.find_spec(library) is not None


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
    bodies = [b"\xff\xd8\xff\xe0" + random.Random(n).randbytes(size - 4) for n in range(64)]
    for shard in range(-(-samples // SHARD)):
        count = min(SHARD, samples - shard * SHARD)
        rows = pa.table({"url": [f"http://host/{shard}/{n}.jpg" for n in range(count)], "caption": ["a photo"] * count})
        metadata = MetadataTable(rows, ())
        writer = writer_class(folder / str(layout.data_name(shard, writer_class.extension)), metadata, options)
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
        stats = {"count": count, "successes": count, "samples": count, "shard_id": shard, "any2ds": any2ds.__version__}
        (folder / layout.stats_name(shard)).write_bytes(orjson.dumps(stats))


def readers(folder: Path, output_format: str) -> Iterator[tuple[str, dict[str, Callable[[], Iterable[Any]]]]]:
    ds = any2ds.load(folder)
    order = random.Random(1).choices(range(len(ds)), k=len(ds))
    yield (
        f"any2ds, {output_format}",
        {
            "in order": lambda: ds,
            "window": lambda: ds.stream(shuffle=True, window=WINDOW),
            "random": lambda: map(ds.__getitem__, order),
        },
    )
    three = any2ds.load(folder, columns=["data", "caption", "key"])
    yield (
        f"any2ds, {output_format}, three columns",
        {"in order": lambda: three, "random": lambda: map(three.__getitem__, order)},
    )
    if has("grain"):
        import grain

        yield (
            f"Grain over any2ds, {output_format}",
            {"random": lambda: grain.MapDataset.source(ds).seed(1).shuffle().to_iter_dataset(ds.read_options())},
        )
    if has("torch"):
        from torch.utils.data import DataLoader

        yield (
            f"DataLoader of 2 workers, {output_format}",
            {
                "random": lambda: itertools.chain.from_iterable(
                    DataLoader(ds, batch_size=64, shuffle=True, num_workers=2, collate_fn=list)
                )
            },
        )
    if output_format == "webdataset":
        yield from others(folder, order)


def others(folder: Path, order: list[int]) -> Iterator[tuple[str, dict[str, Callable[[], Iterable[Any]]]]]:
    tars = sorted(map(str, folder.glob("*.tar")))
    if has("webdataset"):
        import webdataset

        yield (
            "webdataset",
            {
                "in order": lambda: webdataset.WebDataset(tars, shardshuffle=False).decode(),
                "window": lambda: webdataset.WebDataset(tars, shardshuffle=len(tars)).shuffle(WINDOW).decode(),
            },
        )
    if has("wids") and has("torch"):
        import wids

        shards = [{"url": tar, "nsamples": SHARD} for tar in tars]
        listed = folder.parent / "wids.json"
        listed.write_text(json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}))
        samples = wids.ShardListDataset(str(listed))
        yield "wids", {"in order": lambda: map(samples.__getitem__, range(len(samples)))}
    if has("datasets"):
        os.environ["HF_HOME"] = str(folder.parent / "huggingface")
        import datasets

        copied = any2ds.load(folder).to_hf().cast_column("data", datasets.Image(decode=False))
        yield (
            "Hugging Face datasets, converted",
            {
                "in order": lambda: copied,
                "random": lambda: map(copied.__getitem__, order),
            },
        )


def has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def measured(read: Callable[[], Iterable[Any]] | None, seconds: float) -> tuple[float, float] | None:
    """Samples per second, and microseconds of CPU for each, workers included; the first run only warms up."""
    if read is None:
        return None
    for is_warm in (False, True):
        wall, cpu, count = time.perf_counter(), spent(), 0
        samples = iter(read())
        for _ in samples:
            count += 1
            if time.perf_counter() - wall > seconds * (1 if is_warm else 0.3):
                break
        elapsed = time.perf_counter() - wall
        del samples
    return count / elapsed, (spent() - cpu) / count * 1e6


def spent() -> float:
    """CPU seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def show(name: str, figures: list[tuple[float, float] | None]) -> None:
    cells = ("-" if each is None else f"{each[0]:,.0f} ({each[1]:.0f})" for each in figures)
    print(f"{name:36}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def measure_opening(folder: Path, shards: int = 1000, rows: int = 10_000) -> None:
    """Of a dataset whose tar files are empty: neither opening nor searching reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = Layout(rows, 5)
    numbers = range(rows)
    columns = {
        "url": [f"http://host/{n}" for n in numbers],
        "status": ["success"] * rows,
        "width": [n % 2000 for n in numbers],
        "similarity": [n / rows for n in numbers],
    }
    for shard in range(shards):
        keys = list(map(layout.keys(shard), numbers))
        pq.write_table(pa.table({"key": keys, **columns}), folder / layout.metadata_name(shard))
        (folder / f"{layout.shard_name(shard)}.tar").touch()
        stats = {"count": rows, "successes": rows, "shard_id": shard, "any2ds": any2ds.__version__}
        (folder / layout.stats_name(shard)).write_bytes(orjson.dumps(stats))
    for what, options in (
        ("opened", {}),
        ("opened once more", {}),
        ("searched", {"where": "width >= 512 and similarity > 0.3"}),
        ("split by hashes", {"split": "hash[:80%]"}),
    ):
        wall, cpu = time.perf_counter(), spent()
        ds = any2ds.load(folder, **options)  # type: ignore[arg-type]
        took, used = time.perf_counter() - wall, spent() - cpu
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{what}: {len(ds):,} samples in {took:.2f} s ({used:.2f} s of CPU; at most {memory:,.0f} MB of memory)")


if __name__ == "__main__":
    main()
