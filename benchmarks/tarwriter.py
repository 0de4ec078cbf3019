"""Shards of image, caption and json: CPU seconds of any2ds's tar writer, and of webdataset's own.

    python benchmarks/tarwriter.py [--samples 2000] [--rounds 9] [--folder /dev/shm]

Both write the same samples of 50 KB to the same folder, in one process, taking turns in coming first. The figure is the
median of the ratios within each round. Ours makes its index of the samples as well. First the members of both are
compared, to the byte.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import orjson
import pyarrow as pa
import webdataset

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.writers.formats.webdataset import WebdatasetWriter

_SIZE = 50_000
_CAPTION = "a photograph of a brown dog that runs over a wet beach in the evening, its reflection in the sand"

Task = Callable[[Path], None]


class Samples:
    """The same ones for both, in the form that each is given them in."""

    def __init__(self, count: int) -> None:
        urls = [f"https://images.example.com/{n}/full/image.jpg" for n in range(count)]
        rows = pa.table({"url": urls, "caption": [f"{_CAPTION} {n}" for n in range(count)]})
        self.metadata = MetadataTable(rows, ("md5",))
        image = os.urandom(_SIZE)
        self.ours: list[Sample] = []
        self.theirs: list[dict[str, Any]] = []
        for n in range(count):
            fields = dict.fromkeys(("error_code", "error_message", "final_url", "etag", "last_modified"))
            fields |= {"status": "success", "http_status": 200, "mime_type": "image/jpeg", "ext": "jpg"}
            fields |= {"bytes": _SIZE, "attempts": 1, "md5": f"{n:032x}"}
            row = Row(0, n, f"{n:09d}", urls[n], f"{_CAPTION} {n}")
            self.ours.append(Sample(row, StoredBody.of(image), "jpg", fields))
            described = {"key": row.key, "url": row.url, "caption": row.caption, **fields}
            self.theirs.append({"__key__": row.key, "jpg": image, "txt": row.caption, "json": described})

    def by_any2ds(self, path: Path) -> None:
        writer = WebdatasetWriter(path, self.metadata, OutputOptions())
        for sample in self.ours:
            writer.write(sample)
        writer.close()

    def by_webdataset(self, path: Path) -> None:
        """As its users do: the caption as text, the metadata as a dict."""
        with webdataset.TarWriter(str(path)) as writer:
            for sample in self.theirs:
                writer.write(sample)

    def by_webdataset_with_bytes(self, path: Path) -> None:
        """Its json made by orjson as ours is, so that members are the same to the byte."""
        with webdataset.TarWriter(str(path), encoder=False) as writer:
            for sample in self.theirs:
                texts = {"txt": sample["txt"].encode(), "json": orjson.dumps(sample["json"])}
                writer.write({**sample, **texts})


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]


def cpu(task: Task, path: Path) -> float:
    began = time.process_time()
    task(path)
    return time.process_time() - began


def expect_same_members(samples: Samples, folder: Path) -> None:
    tasks: Sequence[Task] = (samples.by_any2ds, samples.by_webdataset_with_bytes, samples.by_webdataset)
    ours, theirs, usual = ({}, {}, {})
    for found, task in zip((ours, theirs, usual), tasks, strict=True):
        task(folder / "same.tar")
        found.update(members(folder / "same.tar"))
    assert ours == theirs, "members differ"
    assert list(ours) == [f"{sample.row.key}.{ext}" for sample in samples.ours for ext in ("jpg", "txt", "json")]
    assert {name: json.loads(data) for name, data in ours.items() if name.endswith("json")} == {
        name: json.loads(data) for name, data in usual.items() if name.endswith("json")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="any2ds's tar writer against webdataset.TarWriter.")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", default="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    given = parser.parse_args()
    samples = Samples(given.samples)
    with tempfile.TemporaryDirectory(prefix="any2ds-bench-", dir=given.folder) as folder:
        path = Path(folder) / "00000.tar"
        expect_same_members(samples, Path(folder))
        print(f"members byte-identical: {3 * given.samples:,}")
        sides: dict[str, Task] = {
            "any2ds": samples.by_any2ds,
            "webdataset.TarWriter": samples.by_webdataset,
            "the same with bytes, json by orjson": samples.by_webdataset_with_bytes,
        }
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(given.rounds):
            for name, task in list(sides.items())[:: 1 if turn % 2 else -1]:
                path.unlink(missing_ok=True)
                taken[name].append(cpu(task, path) / given.samples)
        for name, seconds in taken.items():
            ratios = [theirs / ours for theirs, ours in zip(seconds, taken["any2ds"], strict=True)]
            print(
                f"{name}: {statistics.median(seconds) * 1e6:.0f} µs of CPU per sample; any2ds writes "
                f"{statistics.median(ratios):.2f} x as many ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
