"""The rows of one shard job as Python values, some of them or all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice, repeat
from typing import Any

import orjson
import pyarrow as pa

from any2ds.core.failures import BAD_ROW, DUPLICATE, Failure
from any2ds.core.layout import Layout
from any2ds.core.members import Members
from any2ds.core.metadata import DUPLICATE_OF, EXPECTED_HASH
from any2ds.core.on_disk import deserialized
from any2ds.core.rows import BAD_ROW_COLUMN, JOB_COLUMNS, KEY_COLUMN, MEMBERS_COLUMN, REPLACES_COLUMN, Row, ShardJob
from any2ds.core.samples import Sample
from any2ds.core.tables import rows_of, take
from any2ds.readers.dedupe import expected_hashes

_ROWS_AT_ONCE = 1000  # turned into Python objects in one go
_OWN = frozenset({"url", "caption", EXPECTED_HASH.name, DUPLICATE_OF.name})  # columns that are not additional ones


class JobRows:
    """The rows of `job`; `table` holds them as Arrow does."""

    def __init__(self, job: ShardJob, layout: Layout, table: pa.Table | None = None) -> None:
        self._settled: dict[int, Failure] = {}  # position of a row that is not fetched, and is no duplicate -> why
        self.replaces: Counter[str] = Counter()  # failure code of rows in earlier shards -> those that are tried again
        self.replaced_members: defaultdict[str, Counter[str]] = defaultdict(Counter)  # of these rows: member -> outcome
        self._retried_keys: list[str] | None = None  # in a retry
        if table is None:
            table = self._without_job_columns(deserialized(job.rows, job.size))
        self.table = table
        self._shard_id, self._layout = job.shard_id, layout

    def _without_job_columns(self, table: pa.Table) -> pa.Table:
        for name in set(JOB_COLUMNS).intersection(table.schema.names):
            values = table.column(name).to_pylist()
            if name == KEY_COLUMN:
                self._retried_keys = values
            elif name == REPLACES_COLUMN:
                self.replaces.update(value.partition(":")[2] for value in values)
            elif name == MEMBERS_COLUMN:
                for member, outcome in (pair for value in values for pair in orjson.loads(value).items()):
                    self.replaced_members[member][outcome] += 1
            else:
                failure = _unreadable if name == BAD_ROW_COLUMN else _taken_over
                self._settled |= {n: failure(value) for n, value in enumerate(values) if value is not None}
            table = table.drop_columns(name)
        return table

    def __iter__(self) -> Iterator[Row]:
        return self._rows(self.table, count())

    def at(self, positions: list[int]) -> Iterator[Row]:
        """Those at `positions`, in that order."""
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            some = positions[start : start + _ROWS_AT_ONCE]
            yield from self._rows(take(self.table, some), some)

    def bare(self, position: int) -> Row:
        """The row at `position` without what the list says of it."""
        (key,), (member,) = self._keys([position]), self._members([position])
        return Row(self._shard_id, position, key, None, member=member)

    def url(self, position: int, column: str = "url") -> str | None:
        """Of the row at `position`, as it stands in the list; of several URLs that in `column`."""
        url: str | None = self.table.column(column)[position].as_py()
        return url

    def duplicates(self) -> frozenset[int]:
        """Positions of those that are not to be fetched: their URL stands in an earlier row of the run."""
        if DUPLICATE_OF.name not in self.table.schema.names:
            return frozenset()
        known = self.table.column(DUPLICATE_OF.name).is_valid().to_pylist()
        return frozenset(position for position, is_known in enumerate(known) if is_known)

    def not_fetched(self) -> dict[int, str]:
        """Position of each row that has its outcome without being fetched -> the code of this outcome."""
        failed = {position: failure.code for position, failure in self._settled.items()}
        return {**dict.fromkeys(self.duplicates(), DUPLICATE), **failed}

    def outcome(self, position: int) -> Sample:
        """That of a row that is not fetched."""
        row = self.bare(position)
        failure = self._settled.get(position)
        if failure is None:
            return Sample(row, None, "", {"status": DUPLICATE, "attempts": 0})
        fields = {"status": failure.status, "error_code": failure.code, "error_message": failure.detail, "attempts": 0}
        return Sample(row, None, "", fields, failure)

    def _rows(self, table: pa.Table, numbers: Iterable[int]) -> Iterator[Row]:
        """Without a call of a function in Python for each of them."""
        return chain.from_iterable(self._batches(table, iter(numbers)))

    def _keys(self, positions: list[int]) -> Iterable[str]:
        if self._retried_keys is not None:
            return map(self._retried_keys.__getitem__, positions)
        return map(self._layout.keys(self._shard_id), positions)

    def _extras(self, rows: pa.RecordBatch, positions: list[int]) -> Sequence[Mapping[str, Any]]:
        """The additional columns of each row."""
        return rows_of(rows)

    def _members(self, positions: list[int]) -> Iterable[str]:
        """Of which member the URL of each row is."""
        return repeat("", len(positions))

    def _batches(self, table: pa.Table, positions: Iterator[int]) -> Iterator[Iterator[Row]]:
        extra = [name for name in table.schema.names if name not in _OWN]
        has_captions = "caption" in table.schema.names
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            urls = batch.column("url").to_pylist()
            captions = batch.column("caption").to_pylist() if has_captions else [None] * len(urls)
            hashes = expected_hashes(batch)
            expected = [None] * len(urls) if hashes is None else hashes.to_pylist()
            some = list(islice(positions, len(urls)))
            extras = self._extras(batch.select(extra), some) if extra else [None] * len(urls)
            shard, members = repeat(self._shard_id, len(urls)), self._members(some)
            fields = zip(shard, some, self._keys(some), urls, captions, extras, expected, members, strict=True)
            yield map(partial(tuple.__new__, Row), fields)


def _unreadable(reason: str) -> Failure:
    return Failure("read", BAD_ROW, reason)


def _taken_over(failed: str) -> Failure:
    """The failure with which a row was left to a retry."""
    stage, _, code = failed.partition(":")
    message = "a later shard has what became of it when it was tried again"
    return Failure("transform" if stage == "transform" else "fetch", code, message)


class SlotRows(JobRows):
    """The URLs of the rows of a job, of which each is a row here; its position is its slot, see `core.members`."""

    def __init__(self, job: ShardJob, layout: Layout, members: Members, rows: JobRows) -> None:
        table = rows.table
        width, count = len(members), table.num_rows
        self._names = members.names
        self._urls = [table.column(name) for name in members.url_columns]
        across = [row + number * count for row in range(count) for number in range(width)]
        slots = take(table, [row for row in range(count) for _ in range(width)])
        slots = slots.set_column(slots.schema.get_field_index("url"), "url", _one_by_one(self._urls, across))
        there = [name for name in members.hash_columns if name in table.schema.names]
        if there:
            nothing = pa.nulls(count, pa.string())
            hashes = [table.column(name) if name in there else nothing for name in members.hash_columns]
            slots = slots.append_column(EXPECTED_HASH, _one_by_one(hashes, across))
        super().__init__(job, layout, slots)
        self._retried_keys = rows._retried_keys
        self._count, self._members_of_row = count, members

    def to_fetch(self) -> dict[int, list[int]]:
        """Position -> the numbers of the members to fetch, of each row."""
        whole = list(range(len(self._names)))
        columns = [urls.to_pylist() for urls in self._urls]
        if all(None not in urls and all(map(str.strip, urls)) for urls in columns):
            return dict.fromkeys(range(self._count), whole)
        rows = zip(*columns, strict=True)
        return {position: self._members_of_row.to_fetch(urls) for position, urls in enumerate(rows)}

    def table_at(self, slots: list[int]) -> pa.Table:
        """What the list says of these."""
        return take(self.table, slots)

    def _keys(self, positions: list[int]) -> Iterable[str]:
        width = len(self._names)
        return super()._keys([slot // width for slot in positions])

    def _extras(self, rows: pa.RecordBatch, positions: list[int]) -> Sequence[Mapping[str, Any]]:
        """Those of a row are the same object for all of its URLs that are next to each other here."""
        width = len(self._names)
        of = [slot // width for slot in positions]
        firsts = [place for place, row in enumerate(of) if not place or row != of[place - 1]]
        found, ends = rows_of(rows.take(pa.array(firsts, pa.int64()))), [*firsts[1:], len(of)]
        spans = zip(found, firsts, ends, strict=True)
        return [extra for extra, first, end in spans for _ in range(first, end)]

    def _members(self, positions: list[int]) -> Iterable[str]:
        width = len(self._names)
        return [self._names[slot % width] for slot in positions]


def _one_by_one(columns: Sequence[pa.ChunkedArray | pa.Array], across: Sequence[int]) -> pa.ChunkedArray:
    """The values of the columns of all members in the order of their slots, which `across` has."""
    chunks = [chunk for each in columns for chunk in (each.chunks if isinstance(each, pa.ChunkedArray) else [each])]
    return take(pa.chunked_array(chunks, pa.string()), across)
