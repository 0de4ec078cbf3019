"""The samples of a build before they are written: sorted runs on disk, from which shards are cut.

A run is an Arrow file of one batch, sorted by `order`: a hash of the key and the key itself, or the key alone. The rows
of a shard are one slice of each run, so that shards are made at the same time, in any order, and in bounded memory.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import UsageError, printable
from any2ds.core.manifest import urls_sha256
from any2ds.core.tables import take

ORDER, KEY, NUMBER, ORIGIN = "_order", "_key", "_number", "_origin"
_RUN_BYTES = 64 << 20  # of files and values in a run
_RUN_ROWS = 50_000
_OWN = pa.schema([(ORDER, pa.large_binary()), (KEY, pa.string()), (NUMBER, pa.int64()), (ORIGIN, pa.string())])
_SIGN = 1 << 63


def file_columns(count: int) -> list[pa.Field]:
    """The columns of a run that hold the files of a sample, and the extensions of their names."""
    return [
        field
        for n in range(count)
        for field in (pa.field(f"_file{n}", pa.large_binary()), pa.field(f"_ext{n}", pa.string()))
    ]


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


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a run."""

    run: str  # file name
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows of one shard."""

    pieces: tuple[Piece, ...]
    count: int
    fingerprint: str  # of their keys


class Spool:
    """Takes the samples of one split in any order, and sorts them into runs in `folder`."""

    def __init__(self, folder: Path, schema: pa.Schema, files: int, is_sorted: bool) -> None:
        self._folder, self._schema, self._files, self._is_sorted = folder, schema, files, is_sorted
        folder.mkdir(parents=True, exist_ok=True)
        self._all = pa.schema([*_OWN, *schema, *file_columns(files)])
        self._orders: list[bytes] = []
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self.count = 0
        self.runs: list[str] = []

    def add(
        self, key: object, values: Sequence[Any], files: Sequence[bytes | None], exts: Sequence[str], origin: str
    ) -> None:
        """A sample: the values of its columns, its files, the extensions of their names, and where it comes from."""
        own = [part for pair in zip(files, exts, strict=True) for part in pair]
        self._orders.append(order_of(key, self._is_sorted))
        self._rows.append((key_text(key), self.count, origin, *values, *own))
        self._bytes += sum(map(len, filter(None, files))) + 200
        self.count += 1
        if self._bytes >= _RUN_BYTES or len(self._rows) >= _RUN_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a run."""
        if not self._rows:
            return
        orders, rows = self._orders, self._rows
        by_order = sorted(range(len(orders)), key=orders.__getitem__)
        columns = list(zip(*[rows[number] for number in by_order], strict=True))
        found = [pa.array([orders[number] for number in by_order], pa.large_binary())]
        found += [pa.array(column, field.type) for column, field in zip(columns, list(self._all)[1:], strict=True)]
        batch = pa.RecordBatch.from_arrays(found, schema=self._all)
        name = f"{uuid.uuid4().hex}.run"
        with pa.OSFile(str(self._folder / name), "wb") as file, pa.ipc.new_file(file, self._all) as writer:
            writer.write_batch(batch)
        self.runs.append(name)
        self._orders, self._rows, self._bytes = [], [], 0


class Runs:
    """The sorted runs of a split."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder, self.names = folder, tuple(names)
        self._orders = [_orders(folder / name) for name in self.names]
        self.count = sum(map(len, self._orders))

    @property
    def orders(self) -> pa.Array:
        """The orders of all samples, sorted."""
        joined = pa.concat_arrays([*self._orders, pa.array([], pa.large_binary())])
        return joined.take(pc.sort_indices(joined))

    def slices(self, rows_per_shard: int) -> list[Slice]:
        """The shards."""
        orders = self.orders
        found: list[Slice] = []
        starts = [0] * len(self._orders)
        for first in range(0, len(orders), rows_per_shard):
            own = orders.slice(first, rows_per_shard)
            stops = [len(each) for each in self._orders]
            if first + rows_per_shard < len(orders):
                bound = orders[first + rows_per_shard].as_py()
                stops = [
                    bisect_left(_Values(each), bound, start) for each, start in zip(self._orders, starts, strict=True)
                ]
            pieces = zip(self.names, starts, stops, strict=True)
            found.append(
                Slice(
                    tuple(Piece(name, start, stop) for name, start, stop in pieces if stop > start),
                    len(own),
                    urls_sha256([own.cast(pa.binary())]),
                )
            )
            starts = stops
        return found

    def _with_order(self, order: bytes) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The samples of this order: a run and a row in it."""
        for name in self.names:
            batch = read_run(self.folder / name)
            same = pc.equal(batch.column(ORDER), pa.scalar(order, pa.large_binary()))
            for row in pc.indices_nonzero(same).to_pylist():
                yield batch, row

    def key(self, order: bytes) -> str | None:
        """The key of the samples of this order; None if there is none."""
        return next((batch.column(KEY)[row].as_py() for batch, row in self._with_order(order)), None)

    def origins(self, order: bytes) -> list[str]:
        """Where the samples of this order come from, as text: the number of each, and its file."""
        found = []
        for batch, row in self._with_order(order):
            origin, number = batch.column(ORIGIN)[row].as_py(), batch.column(NUMBER)[row].as_py()
            found.append(f"sample {number:,}" + (f" ({printable(origin)})" if origin else ""))
        return found


class _Values:
    """The values of an Arrow array as Python has them, for bisection."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, number: int) -> bytes:
        value: bytes = self._array[number].as_py()
        return value


def _orders(path: Path) -> pa.Array:
    """In memory of their own: the run itself is not kept open."""
    return pa.concat_arrays([read_run(path).column(ORDER), pa.array([], pa.large_binary())])


def read_run(path: Path) -> pa.RecordBatch:
    """The rows of a run, which stay on disk until they are used."""
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return reader.get_batch(0)


def check_keys(splits: dict[str, Runs]) -> None:
    """Raises UsageError if a key comes twice, in one split or in two; the message names both samples."""
    orders = pa.concat_arrays([*(runs.orders for runs in splits.values()), pa.array([], pa.large_binary())])
    if len(splits) > 1:
        orders = orders.take(pc.sort_indices(orders))
    if len(orders) < 2:
        return
    same = pc.indices_nonzero(pc.equal(orders.slice(1), orders.slice(0, len(orders) - 1)))
    if not len(same):
        return
    order = orders[same[0].as_py()].as_py()
    found = [f"{origin} of {name}" for name, runs in splits.items() for origin in runs.origins(order)]
    key = next(filter(None, (runs.key(order) for runs in splits.values())))
    more = f", and {len(same) - 1:,} more keys come twice" if len(same) > 1 else ""
    raise UsageError(f"the key {key!r} comes twice: {' and '.join(found[:3])}{more}")


class ShardRows:
    """The rows of one shard, in order: the columns in one table, the files one by one."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        """`batches` are slices of runs, as `pieces` cuts them."""
        self.batches = batches
        orders = [order for batch in batches for order in batch.column(ORDER).to_pylist()]
        places = [(number, row) for number, batch in enumerate(batches) for row in range(batch.num_rows)]
        self._order = sorted(range(len(orders)), key=orders.__getitem__)
        self._places = [places[number] for number in self._order]

    @classmethod
    def of(cls, folder: Path, pieces: Iterable[Piece]) -> ShardRows:
        return cls(list(cut(folder, pieces)))

    def table(self, schema: pa.Schema) -> pa.Table:
        """The columns of `schema` as a table."""
        names = schema.names
        joined = pa.Table.from_batches([batch.select(names) for batch in self.batches]).combine_chunks()
        return take(joined, self._order)

    def keys(self) -> list[str]:
        found = [key for batch in self.batches for key in batch.column(KEY).to_pylist()]
        return [found[number] for number in self._order]

    def files(self, count: int) -> Iterator[tuple[tuple[bytes | None, str], ...]]:
        """For each row its files, with the extensions that their names have."""
        columns = [
            [(batch.column(f"_file{n}"), batch.column(f"_ext{n}").to_pylist()) for n in range(count)]
            for batch in self.batches
        ]
        if count == 1:
            alone = [of_batch[0] for of_batch in columns]
            for number, row in self._places:
                files, exts = alone[number]
                yield ((files[row].as_py(), exts[row] or ""),)
            return
        for number, row in self._places:
            yield tuple((files[row].as_py(), exts[row] or "") for files, exts in columns[number])


def cut(folder: Path, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """The rows of `pieces`."""
    for piece in pieces:
        yield read_run(folder / piece.run).slice(piece.start, piece.stop - piece.start)


def pieces_to_json(pieces: Iterable[Piece]) -> list[list[Any]]:
    return [[piece.run, piece.start, piece.stop] for piece in pieces]


def pieces_of(found: Iterable[Sequence[Any]]) -> list[Piece]:
    return [Piece(str(run), int(start), int(stop)) for run, start, stop in found]


def record(folder: Path, splits: dict[str, Any]) -> None:
    """Record that the samples of all splits are there: `splits` is what `recorded` returns."""
    temporary = folder / "done.tmp"
    temporary.write_text(json.dumps(splits), encoding="utf-8")
    temporary.replace(folder / "done")


def recorded(folder: Path) -> dict[str, Any] | None:
    """The record that `record` has written, if all runs that it names are there."""
    try:
        found: dict[str, Any] = json.loads((folder / "done").read_text(encoding="utf-8"))
        runs = [folder / name / run for name, split in found["splits"].items() for run in split["runs"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if all(run.is_file() for run in runs) else None
