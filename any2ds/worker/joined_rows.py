"""Joins the files of a row, which are fetched one by one, into one sample; see `core.members`.

What has arrived of a row waits until there is an outcome for each of its URLs, on disk where memory is short, as bodies
do whose turn has not come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.failures import SUCCESS
from any2ds.core.members import Members, column
from any2ds.core.metadata import without_credentials
from any2ds.core.rows import Row
from any2ds.core.samples import Sample, Samples, release
from any2ds.readers.dedupe import also_the_same, repeated

if TYPE_CHECKING:
    from any2ds.worker.job_rows import JobRows
    from any2ds.worker.shard_stats import ShardStats


class JoinedRows:
    """The rows of one shard while their files are fetched, of which each is a row to the fetcher; see `core.members`.

    The position of such a row is its slot.
    """

    def __init__(
        self,
        members: Members,
        rows: JobRows,
        settled: Collection[int],
        own_columns: Sequence[str],
        stats: ShardStats,
    ) -> None:
        """The rows at positions `settled` are not fetched. `own_columns`: columns of the metadata that tell of a row or
        a member; those of members left out. `stats` counts transfers."""
        self._members, self._rows, self._stats = members, rows, stats
        self._own_columns = tuple(own_columns)  # what the metadata tell of a row, and of each member
        self._columns = {name: [column(name, own) for own in own_columns] for name in members.names}  # of each member
        width = len(members)
        urls_of_rows = zip(*(rows.table.column(name).to_pylist() for name in members.url_columns), strict=True)
        to_fetch = {n: members.to_fetch(urls) for n, urls in enumerate(urls_of_rows) if n not in settled}
        self._asked = [position * width + number for position, own in to_fetch.items() for number in own]  # slots
        self._open = set(self._asked)  # slots without an outcome
        self._missing = {position: len(own) for position, own in to_fetch.items()}  # outcomes that each row lacks
        self._parts: dict[int, dict[str, Sample]] = {}  # position of an unfinished row -> outcomes of its members
        self._copies: dict[int, list[int]] = {}  # slot -> others with the same URL, which get its outcome

    def fetch_once(self, media: MediaOptions) -> None:
        """Fetch no URL twice, unless its file goes through other steps there."""
        table, names = self._rows.table, self._members.names

        def by_slot(columns: Sequence[Sequence[str | None]]) -> pa.Array:
            """The values of the columns of all members, of the slots to fetch."""
            places = (divmod(slot, len(names)) for slot in self._asked)
            return pa.array([columns[number][position] for position, number in places], pa.string())

        def of_list(names: Sequence[str]) -> pa.Array:
            nothing = [None] * table.num_rows
            return by_slot([table[name].to_pylist() if name in table.schema.names else nothing for name in names])

        also = None
        if media.asked() or media.files.transform:
            read = also_the_same(table, media, of_members=False)
            texts = [""] * table.num_rows if read is None else read.to_pylist()
            also = by_slot([[f"{name} {text}" for text in texts] for name in names])
        first_of = repeated(of_list(self._members.url_columns), of_list(self._members.hash_columns), also)
        for place, first in first_of.items():
            self._copies.setdefault(self._asked[first], []).append(self._asked[place])
        self._asked = [slot for place, slot in enumerate(self._asked) if place not in first_of]

    def rows(self) -> Iterator[Row]:
        """The URLs to fetch."""
        return self._at(self._asked)

    def _at(self, slots: Sequence[int]) -> Iterator[Row]:
        """The URLs of these slots, which are in order."""
        width = len(self._members)
        names, urls, hashes = self._members.names, self._members.url_columns, self._members.hash_columns
        numbers = {position: [slot % width for slot in own] for position, own in groupby(slots, lambda n: n // width)}
        for row in self._rows.at(list(numbers)):
            extra = row.extra or {}
            for n in numbers[row.position]:
                slot = row.position * width + n
                url, expected = extra[urls[n]], extra.get(hashes[n])
                yield Row(row.shard_id, slot, row.key, url, row.caption, extra, expected, names[n])

    def all_handed(self, handed: int) -> bool:
        """Whether a fetcher has taken all of them, if it has those of the slots before `handed`."""
        return not self._asked or handed > self._asked[-1]

    def under_way(self, handed: int) -> list[int]:
        """Positions of the rows with a URL that has no outcome, of those of the slots before `handed`."""
        copies = {slot for own in self._copies.values() for slot in own}
        return sorted({slot // len(self._members) for slot in self._open - copies if slot < handed})

    def add(self, samples: Samples) -> list[Samples]:
        """Keep what has become of one URL: the rows of which all is known now."""
        sample = samples[0] if len(samples) == 1 else _one_of(samples)
        slot = sample.row.position
        self._stats.add_transfer(sample.fields.get("attempts"), sample.seconds)
        found: list[Samples] = []
        if copies := self._copies.pop(slot, None):
            for body in sample.bodies:
                body.share(len(copies))
            for row in self._at(copies):
                found += self._put(row.position, replace(sample, row=row))
        found += self._put(slot, sample)
        return found

    def discard(self) -> None:
        """Release what is kept."""
        for parts in self._parts.values():
            release(parts.values())
        self._parts.clear()

    def _put(self, slot: int, sample: Sample) -> list[Samples]:
        position, number = divmod(slot, len(self._members))
        self._open.discard(slot)
        self._parts.setdefault(position, {})[self._members.names[number]] = sample
        self._missing[position] -= 1
        if self._missing[position]:
            return []
        del self._missing[position]
        return [(self._joined(position, self._parts.pop(position)),)]

    def _joined(self, position: int, outcomes: Mapping[str, Sample]) -> Sample:
        """The sample of a row, by the outcomes of its members; one that was not fetched has none."""
        names = self._members.names
        parts = {name: outcomes[name] for name in names if name in outcomes}
        statuses = [parts[name].fields.get("status") if name in parts else None for name in names]
        deciding = names[self._members.decides(statuses)]
        outcome = parts[deciding]
        fields = dict(zip(self._own_columns, self._values(outcome), strict=True))
        fields["attempts"] = sum((part.fields.get("attempts") or 0) for part in parts.values())
        for name, columns in self._columns.items():
            values = self._values(parts[name]) if name in parts else repeat(None, len(columns))
            fields.update(zip(columns, values, strict=True))
        known: dict[str, Any] = {
            "not_processed": {name: why for name, part in parts.items() for why in (part.not_processed or {}).values()},
            "seconds": outcome.seconds,
        }
        row = self._row(position, outcome.row)
        if outcome.fields.get("status") != SUCCESS:
            why = (outcome.fields.get(each) for each in ("error_message", "error_code", "status"))
            fields["error_message"] = f"{deciding}: {next(filter(None, why), '')}"
            release(parts.values())
            return Sample(row, None, "", fields, outcome.failure, **known)
        fields["ext"] = f"{deciding}.{outcome.fields.get('ext')}"
        stored = {name: part for name, part in parts.items() if part.body is not None}
        files: dict[str, Any] = {f"{name}.{part.ext}": part.body for name, part in stored.items()}
        further = {f"{name}.{ext}": body for name, part in stored.items() for ext, body in part.extra_files.items()}
        (ext, body), *others = {**files, **further}.items()
        return Sample(row, body, ext, fields, extra_files=dict(others), **known)

    def _row(self, position: int, row: Row) -> Row:
        """The row of which `row` is one URL."""
        extra = dict(row.extra or {})
        url = extra.get(self._members.url_columns[0])
        for name in self._members.url_columns:
            if "@" in (extra[name] or ""):
                extra[name] = without_credentials(extra[name])
        return Row(row.shard_id, position, row.key, url, row.caption, extra)

    def _values(self, sample: Sample) -> Iterable[Any]:
        """Values of a member in the own columns of the metadata."""
        fields = sample.fields
        return fields.values() if tuple(fields) == self._own_columns else map(fields.get, self._own_columns)


def _one_of(samples: Samples) -> Sample:
    """A step has made several of a file that is to be one of several of its sample."""
    release(samples)
    whole = replace(samples[0], part=None, parts=1)
    return whole.failed("transform_error", "a step made several samples of it, and it is one file of a sample")
