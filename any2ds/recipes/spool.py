"""The samples of a build before they are written: an Arrow file for each split, of which shards take their rows.

Rows lie there as they came, in batches. Of all of them only the `order` is in memory, a hash of the key and the key
itself, or the key alone: sorted, it divides the rows into shards. So shards are made at the same time, in any order.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import UsageError, printable
from any2ds.core.manifest import urls_sha256
from any2ds.core.tables import take
from any2ds.dataset.features import KEY_COLUMN, SPLIT_COLUMN
from any2ds.storage.disk import durable

_PREFIX = "any2ds."  # of the columns that are no feature
_ORDER, _KEY, _ORIGIN, _FILE, _EXT = (f"{_PREFIX}{name}" for name in ("order", "key", "origin", "file", "ext"))
_OWN = [pa.field(_ORDER, pa.large_binary()), pa.field(_KEY, pa.string()), pa.field(_ORIGIN, pa.string())]
_ROWS_AT_ONCE = 256  # that are Python's objects at a time
_BATCH_BYTES = 64 << 20  # of a batch, and of the files among Python's objects
_BATCH_ROWS = 50_000
_SIGN = 1 << 63


def _file_columns(count: int) -> list[pa.Field]:
    """The columns with the files of a sample, and with the extensions of their names."""
    kinds = {_FILE: pa.large_binary(), _EXT: pa.string()}
    return [pa.field(f"{kind}{n}", type) for n in range(count) for kind, type in kinds.items()]


def key_text(key: object) -> str:
    """A key as it is stored. Raises UsageError for what cannot be one."""
    if key.__class__ is int or (key.__class__ is str and key):
        return str(key)
    if isinstance(key, bytes):
        key = key.decode("utf-8", "backslashreplace")
    if isinstance(key, bool) or not isinstance(key, (str, int)) or key == "":
        if hasattr(key, "__index__") and not isinstance(key, bool):  # of NumPy
            return str(key.__index__())
        raise UsageError(f"invalid key {key!r}: expected a text or a number")
    return str(key)


def order_of(key: object, is_sorted: bool) -> bytes:
    """By what samples are sorted: the hash of the key that splits go by, or the key if `is_sorted`."""
    text = key_text(key)
    encoded = text.encode("utf-8", "surrogatepass")
    if not is_sorted:
        return blake2b(encoded, digest_size=8).digest() + encoded
    if not isinstance(key, (str, bytes)) and -_SIGN <= (number := int(text)) < _SIGN:
        return b"\x00" + (number + _SIGN).to_bytes(8, "big")  # numbers stand before texts, in their own order
    return b"\x01" + encoded


class Spool:
    """Takes the samples of one split in any order, and writes them to a file; it is whole when it is closed."""

    def __init__(self, path: Path, schema: pa.Schema, files: int, is_sorted: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._is_sorted = is_sorted
        self._schema = pa.schema([*_OWN, *schema, *_file_columns(files)])
        self._rows: list[tuple[Any, ...]] = []
        self._file_bytes = 0  # of these
        self._batches: list[pa.RecordBatch] = []  # that are one in the file
        self._batch_bytes = self._batch_rows = 0  # of all these
        self.count = 0
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, self._schema)

    def add(
        self, key: object, values: Sequence[Any], files: Sequence[bytes | None], exts: Sequence[str], origin: str
    ) -> None:
        """Add a sample: the values of its columns, its files, the extensions of their names, and where it is from."""
        own = [part for pair in zip(files, exts, strict=True) for part in pair]
        self._rows.append((order_of(key, self._is_sorted), key_text(key), origin, *values, *own))
        self._file_bytes += sum(map(len, filter(None, files)))
        self.count += 1
        if len(self._rows) >= _ROWS_AT_ONCE or self._file_bytes >= _BATCH_BYTES:
            self._convert()

    def _convert(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._batch_bytes += self._batches[-1].nbytes
        self._batch_rows += len(self._rows)
        self._rows, self._file_bytes = [], 0
        if self._batch_bytes >= _BATCH_BYTES or self._batch_rows >= _BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._batches, self._schema).combine_chunks())
        self._batches, self._batch_bytes, self._batch_rows = [], 0, 0

    def close(self) -> None:
        """Write what is in memory, and the end of the file."""
        if self._rows:
            self._convert()
        if self._batches:
            self._write()
        self._writer.close()
        self._file.close()


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one shard."""

    numbers: pa.Array  # of its rows in the file, in their order
    fingerprint: str  # of their keys


class Spooled:
    """The samples of a split that were spooled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        orders = [batch.column(_ORDER) for batch in _batches_of(path)]
        # In memory of their own: the file is not kept open.
        self.orders = pa.concat_arrays([*orders, pa.array([], pa.large_binary())])

    def slices(self, rows_per_shard: int) -> list[Slice]:
        """The shards."""
        numbers = pc.sort_indices(self.orders)
        own = [numbers.slice(first, rows_per_shard) for first in range(0, len(numbers), rows_per_shard)]
        return [Slice(some, urls_sha256([self.orders.take(some).cast(pa.binary())])) for some in own]

    def with_order(self, order: bytes) -> Iterator[tuple[int, str, str]]:
        """The samples of this order: the number of each, its key, and where it is from."""
        start = 0
        for batch in _batches_of(self.path):
            for row in pc.indices_nonzero(pc.equal(batch.column(_ORDER), pa.scalar(order, pa.large_binary()))):
                number = row.as_py()
                yield start + number, batch.column(_KEY)[number].as_py(), batch.column(_ORIGIN)[number].as_py()
            start += batch.num_rows


def _batches_of(path: Path) -> list[pa.RecordBatch]:
    """The rows of a file, which stay on disk until they are used."""
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def check_keys(splits: Mapping[str, Spooled]) -> None:
    """Raises UsageError if a key comes twice, in one split or in two; the message names both samples."""
    orders = pa.concat_arrays([*(split.orders for split in splits.values()), pa.array([], pa.large_binary())])
    orders = orders.take(pc.sort_indices(orders))
    if len(orders) < 2:
        return
    same = pc.indices_nonzero(pc.equal(orders.slice(1), orders.slice(0, len(orders) - 1)))
    if not len(same):
        return
    order = orders[same[0].as_py()].as_py()
    samples = [(name, *sample) for name, split in splits.items() for sample in split.with_order(order)]
    where = [f"sample {n:,}{f' ({printable(origin)})' if origin else ''} of {name}" for name, n, _, origin in samples]
    more = f", and {len(same) - 1:,} more keys come twice" if len(same) > 1 else ""
    raise UsageError(f"the key {samples[0][2]!r} comes twice: {' and '.join(where[:3])}{more}")


class ShardRows:
    """The rows of one shard, in order: the columns in one table, the files one by one."""

    def __init__(self, batches: Sequence[pa.RecordBatch], numbers: Sequence[int], split: str) -> None:
        """`numbers`: those of its rows among the rows of all batches."""
        self._batches, self.split = batches, split
        starts = [0, *accumulate(batch.num_rows for batch in batches)]
        in_batches = [bisect_right(starts, number) - 1 for number in numbers]
        self._places = [(place, number - starts[place]) for place, number in zip(in_batches, numbers, strict=True)]
        self._table = self._taken([name for name in batches[0].schema.names if not name.startswith(_FILE)])

    @classmethod
    def of(cls, path: Path, numbers: Sequence[int], split: str) -> ShardRows:
        """Those rows of the file of a split that have these numbers."""
        return cls(_batches_of(path), numbers, split)

    @classmethod
    def of_job(cls, rows: bytes) -> ShardRows:
        """The rows of which a job carries the place (`place_of`), or themselves (`to_bytes`)."""
        if rows[:1] == b"{":
            place = orjson.loads(rows)
            return cls.of(Path(place["path"]), place["numbers"], place["split"])
        with pa.ipc.open_stream(rows) as stream:
            batches = list(stream)
            split = stream.schema.metadata[b"split"].decode()
        return cls(batches, range(sum(batch.num_rows for batch in batches)), split)

    def to_bytes(self) -> bytes:
        """The rows with their files, for a worker that does not see the spool."""
        table = self._taken(self._batches[0].schema.names)
        return to_stream(table.replace_schema_metadata({b"split": self.split.encode()}))

    def as_listed(self) -> pa.Table:
        """The rows as a list has them: `url`, other columns, the key and the split."""
        table = self._table
        columns = {"url": pa.nulls(table.num_rows, pa.string())}
        columns |= {name: table[name] for name in table.schema.names if not name.startswith(_PREFIX)}
        columns |= {KEY_COLUMN: table[_KEY], SPLIT_COLUMN: pa.repeat(pa.scalar(self.split), table.num_rows)}
        return pa.table(columns)

    def files(self, count: int) -> Iterator[tuple[tuple[bytes | None, str], ...]]:
        """For each row its files, with the extensions that their names have."""
        columns = [self._files(n) for n in range(count)]
        return zip(*columns, strict=True)

    def _files(self, n: int) -> Iterator[tuple[bytes | None, str]]:
        in_batches = [batch.column(f"{_FILE}{n}") for batch in self._batches]
        exts = self._table[f"{_EXT}{n}"].to_pylist()
        for (place, row), ext in zip(self._places, exts, strict=True):
            yield in_batches[place][row].as_py(), ext or ""

    def _taken(self, names: Sequence[str]) -> pa.Table:
        """The columns of these names; of a batch nothing is read but the rows of the shard."""
        by_place = sorted(range(len(self._places)), key=self._places.__getitem__)
        rows_of: dict[int, list[int]] = {}
        for number in by_place:
            place, row = self._places[number]
            rows_of.setdefault(place, []).append(row)
        taken = [self._batches[place].select(names).take(pa.array(rows)) for place, rows in rows_of.items()]
        in_order = sorted(range(len(by_place)), key=by_place.__getitem__)
        return take(pa.Table.from_batches(taken), in_order)


def place_of(path: Path, rows: Slice, split: str) -> bytes:
    """The place of the rows of a shard, for workers that see the spool."""
    return orjson.dumps({"path": str(path), "numbers": rows.numbers.to_pylist(), "split": split})


def to_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def record(folder: Path, splits: Mapping[str, Any]) -> None:
    """Record that the samples of all splits are there: `splits` is what `recorded` returns."""
    durable.flush(folder)  # before the record, which else might survive a power failure alone
    temporary = folder / "done.tmp"
    temporary.write_text(json.dumps(splits), encoding="utf-8")
    temporary.replace(folder / "done")


def recorded(folder: Path) -> dict[str, Any] | None:
    """The record that `record` has written, if the files of all splits are there, and whole."""
    try:
        found: dict[str, Any] = json.loads((folder / "done").read_text(encoding="utf-8"))
        for name in found["splits"]:
            with pa.OSFile(str(path_of(folder, name))) as file:
                pa.ipc.open_file(file)  # reads its end, which a file that was cut lacks
    except (OSError, ValueError, KeyError, TypeError):  # ArrowInvalid is a ValueError
        return None
    return found


def path_of(folder: Path, split: str) -> Path:
    return folder / f"{split}.arrow"
