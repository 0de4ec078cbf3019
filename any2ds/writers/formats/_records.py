"""Common parts of formats of `tf.train.Example` records: samples become records in batches, and come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message  # noqa: F401 - of an extra, which is missing now or never

from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.members import files_of
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import CAPTION, METADATA, Sample
from any2ds.core.tables import take
from any2ds.writers.contract import Fields, ShardWriter
from any2ds.writers.formats._example import DATA, Encoder, columns_of, feature_kind, file_head, parse, with_file

_ROWS_AT_ONCE = 1024  # encoded in one go
_HELD = 8 << 20  # bytes of files that wait for that
_TEXT = pa.field("txt", pa.string())
_LARGE = 1 << 20  # files from here on do not wait, and need not be in memory as a whole
# Readers of protobuf parse no message of 2 GiB or more, and the metadata of a sample need some room beside its files.
_MOST_RECORD_BYTES = 2**31 - (64 << 20)
_FILES_OF_TOOLS = ("jpg", "png", "webp", "flac")  # the feature of the file in records of img2dataset and any2dataset


class ExampleWriter(ShardWriter, ABC):
    """A writer but for where its records go: to `_put`, in order.

    What a record says of its row comes from the metadata table, as Arrow has it.
    """

    most_sample_bytes = _MOST_RECORD_BYTES

    def __init__(self, metadata: MetadataTable, data: str = DATA) -> None:
        """`data` is the feature of the file, where a sample has one."""
        self._metadata, self._members, self._names = metadata, metadata.members, metadata.members or (data,)
        self._has_texts = metadata.hides and metadata.has_captions  # img2dataset has the caption twice
        schema = metadata.schema_in_sight
        self._encoder = Encoder(schema.append(_TEXT) if self._has_texts else schema)
        # Rows of the metadata that wait, and the file features of each: the head of the first, and all in pieces as
        # they came, since to join them would be one copy more.
        self._waiting: list[tuple[int, bytes, int, Iterable[bytes | memoryview]]] = []
        self.held = 0

    @abstractmethod
    def _put(self, head: bytes, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a record: `head`, and behind it the files, `size` bytes in pieces."""

    def write(self, sample: Sample) -> None:
        if sample.body is None:
            return
        files = files_of(sample, self._members) if self._members else {self._names[0]: sample.body}
        bodies = [files.get(name) for name in self._names]
        sizes = [0 if body is None else body.size for body in bodies]  # a file that is not there is empty
        heads = [file_head(name, size) for name, size in zip(self._names, sizes, strict=True)]
        size = sum(sizes) + sum(map(len, heads[1:]))
        pieces = (
            chunk
            for head, body in zip([b"", *heads[1:]], bodies, strict=True)
            for chunk in (head, *(() if body is None else body.chunks()))
        )
        row = len(self._metadata) - 1
        if size >= _LARGE:
            self.flush()
            self._waiting.append((row, heads[0], size, pieces))
            self.flush()
            return
        self._waiting.append((row, heads[0], size, [bytes(piece) for piece in pieces]))
        self.held += size + self._metadata.added
        if self.held >= _HELD or len(self._waiting) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            rows = [row for row, _, _, _ in self._waiting]
            for features, (_, head, size, pieces) in zip(self._features(rows), self._waiting, strict=True):
                self._put(with_file(features, head, size), size, pieces)
        self._waiting.clear()
        self.held = 0

    def _features(self, rows: Sequence[int]) -> list[bytes]:
        first, stop = rows[0], rows[-1] + 1
        table = self._metadata.table_in_sight(first, stop)
        if self._has_texts:
            table = table.append_column(_TEXT, table["caption"])
        if stop - first != len(rows):  # some have failed
            table = take(table, [row - first for row in rows])
        return self._encoder.encode(table)


class RecordDecoder:
    """Makes of a record what `load` gives of a sample.

    Records know no null: a null text is "", a number 0 or NaN, and what is written as JSON or text is None again.
    """

    def __init__(self, fields: Fields) -> None:
        self._wanted, self._members = fields.columns, frozenset(fields.members)
        self._data = fields.data_column  # the feature of the file; None where that is named by its extension
        schema = fields.schema if fields.schema is not None else pa.schema([])
        self._columns = columns_of(schema)
        self._of_features = {name: own for own, column in self._columns.items() for name, _ in column.features}
        kinds = {field.name: feature_kind(field.type) for field in schema}
        self._no_texts = [name for name, kind in kinds.items() if kind.kind != "bytes" or kind.is_list]
        self._no_files = {*self._columns, CAPTION, METADATA}
        self._parsed = self._features_to_parse()

    def row(self, record: bytes) -> dict[str, Any]:
        """Raises DamagedShard."""
        wanted = self._wanted
        try:
            found = parse(record, self._parsed)
            data = "" if self._members else self._data or self._file_of(found)
            sample: dict[str, Any] = {}
            for name, values in found.items():
                if name == data:
                    sample["data"] = values[0]
                elif name in self._members:
                    sample[name] = values[0] or None
                elif (column := self._of_features.get(name)) is None:
                    sample[name] = values[0] if len(values) == 1 else values
                elif column not in sample:
                    sample[column] = self._columns[column].decode(found)
        except (ValueError, LookupError) as error:
            raise DamagedShard(f"a record is no sample: {error_text(error)}") from error
        if self._members:
            sample["data"] = sample.get(str(sample.get("ext") or "").partition(".")[0])
        elif self._data is None:
            self._complete(sample, data)
        return sample if wanted is None else {name: sample.get(name) for name in wanted}

    def _complete(self, sample: dict[str, Any], ext: str) -> None:
        """Complete what img2dataset and any2dataset write otherwise: the caption twice, and nulls as texts."""
        sample.setdefault("ext", ext)
        if CAPTION not in self._columns and (text := sample.pop(CAPTION, None)) is not None:
            sample.setdefault("caption", text.decode("utf-8", "replace"))
        for name in self._no_texts:
            if sample.get(name) in (b"", [b""]):
                sample[name] = None

    def _features_to_parse(self) -> set[str] | None:
        """None: all."""
        if self._wanted is None or self._data is None:
            return None
        files = ("ext", *self._members) if self._members else (self._data,)
        names = {*self._wanted, *(files if "data" in self._wanted else ())}
        return names.union(*([name for name, _ in self._columns[own].features] for own in names & self._columns.keys()))

    def _file_of(self, features: Mapping[str, Any]) -> str:
        """In datasets of other tools, the feature that is no column of the metadata."""
        return next((name for name in reversed([*features]) if name not in self._no_files), "")


def files_in(record: bytes) -> tuple[str, dict[str, bytes]]:
    """Key and files, by extension, of a record of ours or of img2dataset. Raises DamagedShard."""
    try:
        found = parse(record)
        key = _text(found, "key")
        if DATA not in found and (members := _members_in(found)):
            there = [name for name in members if _text(found, f"{name}_status") == SUCCESS]
            return key, {f"{name}.{_text(found, f'{name}_ext')}": _value(found, name) for name in there}
        if DATA in found or "ext" in found:  # of recipes, the last feature
            return key, {_text(found, "ext"): _value(found, DATA if DATA in found else next(reversed(found)))}
        # Its name is the extension, and other tools have their features in any order.
        candidates = [*_FILES_OF_TOOLS, *(name for name in reversed(found) if name != "key")]
        ext = next((name for name in candidates if name in found), None)
        if ext is None:
            raise KeyError(f"a file: none of {', '.join(_FILES_OF_TOOLS)}")
        return key, {ext: _value(found, ext)}
    except KeyError as error:
        raise DamagedShard(f"a record without {error.args[0]}") from error
    except ValueError as error:
        raise DamagedShard(f"a record is no tf.train.Example: {error}") from error


def key_of(record: bytes) -> str:
    """The key of the sample in a record. Raises DamagedShard."""
    try:
        return _text(parse(record, {"key"}), "key")
    except (ValueError, KeyError) as error:
        raise DamagedShard(f"a record has no key: {error_text(error)}") from error


def _members_in(found: Mapping[str, Any]) -> list[str]:
    """The features of files in a record of a sample that has several: the last ones, of which columns tell."""
    own = takewhile(lambda name: f"{name}_status" in found and f"{name}_ext" in found, list(found)[::-1])
    return list(own)[::-1]


def _value(found: Mapping[str, list[Any]], name: str) -> bytes:
    """The only value of a feature of bytes. Raises KeyError, ValueError."""
    values = found[name]
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ValueError(f"{name} is not one value of bytes")
    return values[0]


def _text(found: Mapping[str, list[Any]], name: str) -> str:
    return _value(found, name).decode()
