"""The rows of one shard job as Python values, some of them or all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count, islice, repeat

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.failures import BAD_ROW, DUPLICATE, Failure
from any2ds.core.layout import Layout
from any2ds.core.metadata import DUPLICATE_OF, EXPECTED_HASH
from any2ds.core.on_disk import deserialized
from any2ds.core.rows import BAD_ROW_COLUMN, JOB_COLUMNS, KEY_COLUMN, MEMBERS_COLUMN, REPLACES_COLUMN, Row, ShardJob
from any2ds.core.samples import Sample
from any2ds.core.tables import rows_of, take
from any2ds.readers.dedupe import expected_hashes

_ROWS_AT_ONCE = 1000  # turned into Python objects in one go
_OWN = frozenset({"url", "caption", EXPECTED_HASH.name, DUPLICATE_OF.name})  # columns that are not additional ones


class JobRows:
    """The rows of `job`; its `table` holds them as Arrow does."""

    def __init__(self, job: ShardJob, layout: Layout) -> None:
        self._settled: dict[int, Failure] = {}  # position of a row that is not fetched, and is no duplicate -> why
        self.replaces: Counter[str] = Counter()  # failure code of rows in earlier shards -> those that are tried again
        self.replaced_members: defaultdict[str, Counter[str]] = defaultdict(Counter)  # of these rows: member -> outcome
        self._shard_id, self._layout = job.shard_id, layout
        self._given_keys: list[str] | None = None
        table = deserialized(job.rows, job.size)
        if layout.has_names:  # a folder has its files in no other order
            table = take(table, pc.sort_indices(table[KEY_COLUMN]).to_pylist())
        self.table = self._without_job_columns(table)
        if given_up := job.given_up():
            settled = self._settled.keys() | self.duplicates()
            self._settled |= {n: Failure("fetch", "watchdog", why) for n, why in given_up.items() if n not in settled}

    def _without_job_columns(self, table: pa.Table) -> pa.Table:
        for name in set(JOB_COLUMNS).intersection(table.schema.names):
            values = table.column(name).to_pylist()
            if name == KEY_COLUMN:
                numbered = map(self._layout.keys(self._shard_id), range(len(values)))
                self._given_keys = [key or f"~{number}" for key, number in zip(values, numbered, strict=True)]
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
        """The rows at `positions`, in that order."""
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            some = positions[start : start + _ROWS_AT_ONCE]
            yield from self._rows(take(self.table, some), some)

    def url(self, position: int, column: str = "url") -> str | None:
        """URL of the row at `position` as it stands in the list; of several URLs the one in `column`."""
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
        """Outcome of a row that is not fetched."""
        (key,) = self._keys([position])
        row = Row(self._shard_id, position, key, None)
        failure = self._settled.get(position)
        if failure is None:
            return Sample(row, None, "", {"status": DUPLICATE, "attempts": 0})
        fields = {"status": failure.status, "error_code": failure.code, "error_message": failure.detail, "attempts": 0}
        return Sample(row, None, "", fields, failure)

    def _rows(self, table: pa.Table, numbers: Iterable[int]) -> Iterator[Row]:
        """Without a call of a function in Python for each of them."""
        return chain.from_iterable(self._batches(table, iter(numbers)))

    def _keys(self, positions: list[int]) -> Iterable[str]:
        if self._given_keys is not None:
            return map(self._given_keys.__getitem__, positions)
        return map(self._layout.keys(self._shard_id), positions)

    def _batches(self, table: pa.Table, positions: Iterator[int]) -> Iterator[Iterator[Row]]:
        extra = [name for name in table.schema.names if name not in _OWN]
        has_captions = "caption" in table.schema.names
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            urls = batch.column("url").to_pylist()
            captions = batch.column("caption").to_pylist() if has_captions else [None] * len(urls)
            hashes = expected_hashes(batch)
            expected = [None] * len(urls) if hashes is None else hashes.to_pylist()
            some = list(islice(positions, len(urls)))
            extras = rows_of(batch.select(extra)) if extra else [None] * len(urls)
            shard, members = repeat(self._shard_id, len(urls)), repeat("", len(urls))
            fields = zip(shard, some, self._keys(some), urls, captions, extras, expected, members, strict=True)
            yield map(partial(tuple.__new__, Row), fields)


def _unreadable(reason: str) -> Failure:
    return Failure("read", BAD_ROW, reason)


def _taken_over(failed: str) -> Failure:
    """The failure with which a row was left to a retry."""
    stage, _, code = failed.partition(":")
    message = "a later shard has what became of it when it was tried again"
    return Failure("transform" if stage == "transform" else "fetch", code, message)
