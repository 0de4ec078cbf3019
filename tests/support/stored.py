"""Reads what a run has stored, with tarfile, pyarrow, protobuf, array_record and plain files, but nothing of any2ds.

It takes the files of a dataset as a mapping of name to content, so that one can be looked at after it has changed.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.records import examples

Files = Mapping[str, bytes]
"""Name relative to the dataset's folder, with `/` -> content."""

_STATS = re.compile(r"(\d+)_stats\.json")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a dataset."""

    key: str
    files: Mapping[str, bytes]  # extension -> content: `jpg`, `txt`, `json` …; in record formats, `json` is of columns

    @property
    def data(self) -> bytes:
        """The content of its only file beside caption and metadata. Raises ValueError if there are several."""
        (content,) = [content for ext, content in self.files.items() if ext not in ("json", "txt")] or [
            self.files["txt"]
        ]
        return content


def shards(files: Files) -> list[str]:
    """The names of the finished shards, in order: those with statistics."""
    return sorted(match[1] for match in map(_STATS.fullmatch, files) if match)


def stats(files: Files) -> dict[str, dict[str, Any]]:
    """Name of a finished shard -> its `_stats.json`."""
    return {shard: json.loads(files[f"{shard}_stats.json"]) for shard in shards(files)}


def metadata(files: Files) -> list[dict[str, Any]]:
    """The rows of the metadata of all finished shards, by key; of parquet datasets without the files.

    A row that was tried again stands in several shards: the last one has its outcome.
    """
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for shard in shards(files):
        in_shard: dict[str, list[dict[str, Any]]] = {}
        for row in _table(files[f"{shard}.parquet"]):
            in_shard.setdefault(row["key"].partition("_")[0], []).append(row)
        rows_of.update(in_shard)
    return [row for _, rows in sorted(rows_of.items()) for row in rows]


def csv_metadata(files: Files) -> list[dict[str, str]]:
    """The same of the metadata in csv."""
    tables = (files[f"{shard}.csv"].decode() for shard in shards(files))
    return [row for table in tables for row in csv.DictReader(io.StringIO(table))]


def samples(files: Files) -> list[Sample]:
    """The samples of all finished shards, by key. Raises ValueError where two have one key."""
    found = sorted(
        (sample for shard in shards(files) for sample in _samples_of(files, shard)), key=lambda each: each.key
    )
    if len({sample.key for sample in found}) < len(found):
        raise ValueError(f"a key is there twice: {[sample.key for sample in found]}")
    return found


def _samples_of(files: Files, shard: str) -> Iterator[Sample]:
    if (content := files.get(f"{shard}.tar")) is not None:
        yield from _grouped(_in_tar(content))
    elif (content := files.get(f"{shard}.tfrecord")) is not None:
        yield from _in_records(content, ".tfrecord")
    elif (content := files.get(f"{shard}.arrayrecord")) is not None:
        yield from _in_records(content, ".arrayrecord")
    elif "data" in pq.read_schema(io.BytesIO(files[f"{shard}.parquet"])).names:
        yield from _in_parquet(files[f"{shard}.parquet"])
    else:
        yield from _grouped(
            (name.partition("/")[2], files[name]) for name in sorted(files) if name.startswith(f"{shard}/")
        )


def _grouped(members: Iterator[tuple[str, bytes]]) -> Iterator[Sample]:
    """Members of a tar file or a folder as samples; each file once, and those of a sample beside each other."""
    found: dict[str, dict[str, bytes]] = {}
    for name, content in members:
        key, _, ext = name.partition(".")
        if key in found and (key != next(reversed(found)) or ext in found[key]):
            raise ValueError(f"sample {key} is there twice")
        found.setdefault(key, {})[ext] = content
    return (Sample(key, files) for key, files in found.items())


def _in_tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                raise ValueError(f"{member.name} is no file")
            yield member.name, file.read()


def _in_records(content: bytes, suffix: str) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"shard{suffix}")
        path.write_bytes(content)
        for example in examples(path):
            (data,), (key,), (ext,) = example.pop("data"), example["key"], example["ext"]
            columns = {name: [_plain(value) for value in values] for name, values in example.items()}
            described = {name: values[0] if len(values) == 1 else values for name, values in columns.items()}
            yield Sample(key.decode(), {ext.decode(): data, "json": json.dumps(described).encode()})


def _in_parquet(content: bytes) -> Iterator[Sample]:
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        if (data := row.pop("data")) is not None:
            yield Sample(row["key"], {row["ext"]: data, "json": json.dumps(row, default=str).encode()})


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _table(content: bytes) -> list[dict[str, Any]]:
    file = pq.ParquetFile(io.BytesIO(content))
    rows: list[dict[str, Any]] = file.read([name for name in file.schema_arrow.names if name != "data"]).to_pylist()
    return rows
