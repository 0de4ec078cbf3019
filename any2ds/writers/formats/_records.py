"""What formats of `tf.train.Example` records have in common: samples become records in batches, and come back."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import orjson
import pyarrow as pa

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.members import files_of
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import CAPTION, METADATA, Sample, StoredSample
from any2ds.core.tables import take, value_of_text
from any2ds.writers.formats._builder import Builder
from any2ds.writers.formats._example import DATA, Encoder, Feature, bytes_value, feature_kind, features, parse
from any2ds.writers.formats._nested import encoders, nested_columns

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Body
    from any2ds.writers.contract import Fields

_ROWS_AT_ONCE = 1024  # encoded in one go
_HELD = 8 << 20  # bytes of files that wait for that
_TEXT = pa.field("txt", pa.string())
_LARGE = 1 << 20  # files from here on do not wait, and need not be in memory as a whole
# Readers of protobuf parse no message of 2 GiB or more, and the metadata of a sample need some room beside its files.
_MOST_RECORD_BYTES = 2**31 - (64 << 20)
_FILES_OF_TOOLS = ("jpg", "png", "webp", "flac")  # the feature of the file in records of img2dataset and any2dataset


class ExampleWriter(ABC):
    """A `ShardWriter` but for where its records go: to `_put`, in order.

    What a record says of its row comes from the metadata table, as Arrow has it, and is encoded column by column.
    """

    holds_metadata = False
    has_members = False
    sidecars: ClassVar[tuple[str, ...]] = ()
    most_bytes: ClassVar[int | None] = None
    most_sample_bytes: ClassVar[int | None] = _MOST_RECORD_BYTES

    def __init__(self, metadata: MetadataTable, data: str = DATA) -> None:
        """`data` is the feature of the file, where a sample has one."""
        self._metadata, self._members = metadata, metadata.members
        self._further = [Feature(name, "bytes") for name in self._members[1:]]
        self._has_texts = metadata.hides and metadata.has_captions  # img2dataset has the caption twice
        schema = metadata.schema_in_sight
        first = self._members[0] if self._members else data
        types = dict(zip(schema.names, schema.types, strict=True))
        self._encoder = Encoder(schema.append(_TEXT) if self._has_texts else schema, first, encoders(types))
        self._rows: list[int] = []  # of the metadata, in the order of `_files`
        self._files: list[list[bytes]] = []  # in pieces as they came: to join them would be one copy more
        self._firsts: list[int] = []  # bytes of the first file of each, where a sample has several
        self.held = 0

    @abstractmethod
    def _put(self, head: bytes, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a record: `head`, and behind it a file of `size` bytes, in pieces."""

    def write(self, sample: Sample) -> None:
        if sample.body is None:
            return
        body: Body | StoredBody | _FileFeatures = sample.body
        firsts: list[int] | None = None
        if self._members:
            body = _FileFeatures(files_of(sample, self._members), self._members, self._further)
            firsts = [body.first]
        row = len(self._metadata) - 1
        if body.size >= _LARGE:
            self.flush()
            (head,) = self._heads([row], [body.size], firsts)
            self._put(head, body.size, body.chunks())
            return
        self._rows.append(row)
        self._firsts += firsts or ()
        self._files.append([bytes(chunk) for chunk in body.chunks()])  # no copy of what is bytes already
        self.held += body.size + self._metadata.added
        if self.held >= _HELD or len(self._rows) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            sizes = [sum(map(len, file)) for file in self._files]
            heads = self._heads(self._rows, sizes, self._firsts or None)
            for head, size, file in zip(heads, sizes, self._files, strict=True):
                self._put(head, size, file)
        self._rows.clear()
        self._firsts.clear()
        self._files.clear()
        self.held = 0

    def _heads(self, rows: list[int], sizes: list[int], firsts: list[int] | None) -> list[bytes]:
        first, stop = rows[0], rows[-1] + 1
        table = self._metadata.table_in_sight(first, stop)
        if self._has_texts:
            table = table.append_column(_TEXT, table["caption"])
        if stop - first != len(rows):  # some have failed
            table = take(table, [row - first for row in rows])
        return self._encoder.heads(table, sizes, firsts)


_Bodies: TypeAlias = "Mapping[str, Body | StoredBody]"


class _FileFeatures:
    """The files of a sample as they follow each other in a record: the first one, then a feature for each further one.

    One that is not there is empty: records know no null.
    """

    def __init__(self, files: _Bodies, names: Sequence[str], further: Sequence[Feature]) -> None:
        self._bodies = [files.get(name) for name in names]
        sizes = [0 if body is None else body.size for body in self._bodies]
        self._heads = [b"", *(feature.head_of_bytes(size) for feature, size in zip(further, sizes[1:], strict=True))]
        self.first = sizes[0]
        self.size = sum(sizes) + sum(map(len, self._heads))

    def chunks(self) -> Iterator[bytes | memoryview]:
        for head, body in zip(self._heads, self._bodies, strict=True):
            yield head
            if body is not None:
                yield from body.chunks()


class RecordBuilder(Builder):
    """Makes what `load` gives of a record.

    Records know no null: a null text is "", a number 0 or NaN, and what is written as JSON or text is None again.
    """

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._data = (
            fields.data_column
        )  # the feature of the file; None where it is the last one, named by its extension
        self._members = frozenset(fields.members)
        self._types = {field.name: field.type for field in fields.schema or ()}
        self._read = {name: make for name, type in self._types.items() if (make := _from_values(type)) is not None}
        self._nested = nested_columns(self._types)
        self._of_nested = frozenset(name for form in self._nested.values() for name in form.names)
        kinds = {name: feature_kind(type) for name, type in self._types.items()}
        self._no_texts = [name for name, kind in kinds.items() if kind.kind != "bytes" or kind.is_list]

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Raises DamagedShard."""
        wanted = self._fields.columns
        try:
            if wanted is None or self._data is None:
                found = parse(record)
            elif self._members:
                found = parse(record, {*wanted, *(("ext", *self._members) if "data" in wanted else ())})
            else:
                found = parse(record, self._names(wanted, self._data))
            data = "" if self._members else self._data or self._file_of(found)
            sample: dict[str, Any] = {}
            for name, values in found.items():
                if name == data:
                    sample["data"] = values[0]
                elif name in self._of_nested:
                    continue
                elif name in self._members:
                    sample[name] = values[0] or None
                elif (read := self._read.get(name)) is not None:
                    sample[name] = read(values)
                else:
                    sample[name] = values[0] if len(values) == 1 else values
            for name, form in self._nested.items():
                if wanted is None or name in wanted:
                    sample[name] = form.decode(found)
        except (ValueError, IndexError, KeyError, struct.error) as error:
            raise DamagedShard(f"a record is no sample: {error_text(error)}") from error
        if self._members:
            sample["data"] = sample.get(str(sample.get("ext") or "").partition(".")[0])
        elif self._data is None:
            self._as_ours(sample, data)
        return sample if wanted is None else {name: sample.get(name) for name in wanted}

    def _as_ours(self, sample: dict[str, Any], ext: str) -> None:
        """What img2dataset and any2dataset have in other ways: the caption twice, and a null of any type as a text."""
        sample.setdefault("ext", ext)
        if CAPTION not in self._types and (text := sample.pop(CAPTION, None)) is not None:
            sample.setdefault("caption", text.decode("utf-8", "replace"))
        for name in self._no_texts:
            if sample.get(name) in (b"", [b""]):
                sample[name] = None

    def _names(self, wanted: Sequence[str], data: str) -> set[str]:
        """The features in which these columns stand."""
        names = {data if name == "data" else name for name in wanted}
        return names.union(*(form.names for name, form in self._nested.items() if name in names))

    def _file_of(self, features: dict[str, Any]) -> str:
        """In datasets of other tools, the feature that is no column of the metadata."""
        return next((name for name in reversed(features) if name not in {*self._types, CAPTION, METADATA}), "")


def _from_values(type: pa.DataType) -> Callable[[list[Any]], Any] | None:
    """How the value of a column is made of those in its feature; None if it is the only one as it is."""
    of = pa.types
    if of.is_dictionary(type):
        type = type.value_type
    kind = feature_kind(type)
    if kind.is_list:
        is_text = of.is_string(type.value_type) or of.is_large_string(type.value_type)
        return (lambda values: [value.decode() for value in values]) if is_text else list
    if of.is_string(type) or of.is_large_string(type):
        return lambda values: values[0].decode()
    if of.is_boolean(type):
        return lambda values: bool(values[0])
    if of.is_nested(type):
        return lambda values: orjson.loads(values[0]) if values[0] else None
    if kind.kind == "bytes" and not (of.is_binary(type) or of.is_large_binary(type) or of.is_fixed_size_binary(type)):
        return lambda values: value_of_text(values[0].decode(), type) if values[0] else None
    return None


def stored_sample(read: Callable[[int, int], bytes], size: int) -> StoredSample:
    """The sample in a record of `size` bytes; its file is read by `read` when it is asked for. Raises DamagedShard."""
    places: dict[str, tuple[int, int]] = {}
    last = "", 0, 0
    try:
        found = {name: (name, start, stop) for name, start, stop in features(read, size)}
        for last in found.values():
            name, start, stop = last
            if name in ("key", "ext", DATA):
                places[name] = bytes_value(read, start, stop)
        key = _text(read, *places["key"])
        if DATA not in places and (members := _members_in(found)):
            files = {}
            for name in members:
                ext = _text(read, *bytes_value(read, *found[f"{name}_ext"][1:]))
                status = _text(read, *bytes_value(read, *found[f"{name}_status"][1:]))
                if status == SUCCESS:
                    files[f"{name}.{ext}"] = _body(read, *bytes_value(read, *found[name][1:]))
            return StoredSample(key, files)
        file = last  # of recipes and others, the last feature
        if DATA in places or "ext" in places:
            ext = _text(read, *places["ext"])
        else:  # Its name is the extension, and other tools have their features in any order.
            ext = next((name for name in _FILES_OF_TOOLS if name in found), last[0])
            file = found.get(ext, last)
        start, stop = places.get(DATA) or bytes_value(read, *file[1:])
    except ValueError as error:
        raise DamagedShard(f"a record is no tf.train.Example: {error}") from error
    except KeyError as error:
        raise DamagedShard(f"a record without {error.args[0]}") from error
    return StoredSample(key, {ext: _body(read, start, stop)})


def key_of(record: bytes) -> str:
    """That of the sample in a record. Raises DamagedShard."""
    try:
        return str(parse(record, {"key"})["key"][0].decode())
    except (ValueError, LookupError, struct.error) as error:
        raise DamagedShard(f"a record has no key: {error_text(error)}") from error


def _members_in(found: Mapping[str, Any]) -> list[str]:
    """The features of files in a record of a sample that has several: the last ones, of which columns tell."""
    own = takewhile(lambda name: f"{name}_status" in found and f"{name}_ext" in found, list(found)[::-1])
    return list(own)[::-1]


def _body(read: Callable[[int, int], bytes], start: int, stop: int) -> StoredBody:
    return StoredBody(stop - start, lambda offset, size: read(start + offset, size))


def _text(read: Callable[[int, int], bytes], start: int, stop: int) -> str:
    return read(start, stop - start).decode()
