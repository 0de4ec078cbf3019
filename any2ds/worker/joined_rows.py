"""Joins the files of a row, which are fetched one by one, into one sample; see `core.members`.

What has arrived of a row waits until there is an outcome for each of its URLs, on disk where memory is short, as bodies
do whose turn has not come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.failures import SUCCESS
from any2ds.core.members import Members, column
from any2ds.core.metadata import without_credentials
from any2ds.core.rows import Row
from any2ds.core.samples import Sample, Samples, release
from any2ds.readers.dedupe import also_the_same, expected_hashes, repeated

if TYPE_CHECKING:
    from any2ds.worker.job_rows import SlotRows


class JoinedRows:
    """The rows of one shard while their files are fetched."""

    def __init__(
        self,
        members: Members,
        slots: SlotRows,
        to_fetch: Mapping[int, Sequence[int]],
        own_columns: Sequence[str],
    ) -> None:
        """`to_fetch`: position of a row -> the numbers of its members to fetch.

        `own_columns` are the columns of the metadata that tell of a row or a member, those of members left out.
        """
        self._members, self._slots = members, slots
        self._columns = _Columns.of(members, own_columns)
        width = len(members)
        self._to_fetch = [position * width + number for position, own in to_fetch.items() for number in own]
        self._open = set(self._to_fetch)  # slots without an outcome
        self._missing = {position: len(own) for position, own in to_fetch.items()}  # outcomes that each row lacks
        self._parts: dict[int, list[Sample | None]] = {}  # of unfinished rows, by member
        self._copies: dict[int, list[int]] = {}  # slot -> others with the same URL, which get its outcome
        self._asked = self._to_fetch
        self.transfers: list[tuple[int | None, float]] = []  # attempts and seconds of each, since they were taken

    def fetch_once(self, media: MediaOptions) -> None:
        """Fetch no URL twice, unless its file goes through other steps there."""
        table = self._slots.table_at(self._to_fetch)
        also = also_the_same(table, media, of_members=False)
        if media.asked() or media.files.transform:
            names = [self._members.names[slot % len(self._members)] for slot in self._to_fetch]
            texts = also.to_pylist() if also is not None else [""] * len(names)
            also = pa.array([f"{name} {text}" for name, text in zip(names, texts, strict=True)], pa.string())
        first_of = repeated(table["url"], expected_hashes(table), also)
        if not first_of:
            return
        for place, first in first_of.items():
            self._copies.setdefault(self._to_fetch[first], []).append(self._to_fetch[place])
        copies = {self._to_fetch[place] for place in first_of}
        self._asked = [slot for slot in self._to_fetch if slot not in copies]

    def rows(self) -> Iterator[Row]:
        """The URLs to fetch."""
        return self._slots.at(self._asked)

    def all_handed(self, handed: int) -> bool:
        """Whether a fetcher has taken all of them, if it has those of the slots before `handed`."""
        return not self._asked or handed > self._asked[-1]

    def without_outcome(self, among: int | None) -> list[Row]:
        """Those without an outcome, of the slots before `among`, bare of what the list says of them."""
        copies = {slot for own in self._copies.values() for slot in own}
        return [self._slots.bare(slot) for slot in sorted(self._open - copies) if among is None or slot < among]

    @property
    def is_complete(self) -> bool:
        return not self._open

    def take(self, samples: Samples) -> list[Samples]:
        """Keep what has become of one URL: the rows of which all is known now."""
        sample = samples[0] if len(samples) == 1 else _one_of(samples)
        slot = sample.row.position
        self.transfers.append((sample.fields.get("attempts"), sample.seconds))
        found: list[Samples] = []
        if copies := self._copies.pop(slot, None):
            for body in sample.bodies:
                body.share(len(copies))
            for row in self._slots.at(copies):
                found += self._put(row.position, replace(sample, row=row))
        found += self._put(slot, sample)
        return found

    def discard(self) -> None:
        """Release what is kept."""
        for parts in self._parts.values():
            release(part for part in parts if part is not None)
        self._parts.clear()

    def _put(self, slot: int, sample: Sample) -> list[Samples]:
        position, number = divmod(slot, len(self._members))
        self._open.discard(slot)
        parts = self._parts.setdefault(position, [None] * len(self._members))
        parts[number] = sample
        self._missing[position] -= 1
        if self._missing[position]:
            return []
        del self._parts[position], self._missing[position]
        return [(self._columns.joined(position, parts),)]


@dataclass(frozen=True)
class _Columns:
    """How the metadata tell of the members of a row."""

    members: Members
    own: tuple[str, ...]  # what they tell of a row, and of each member
    of_member: tuple[tuple[str, ...], ...]  # how these are called, for each

    @classmethod
    def of(cls, members: Members, own: Sequence[str]) -> _Columns:
        return cls(members, tuple(own), tuple(tuple(column(name, each) for each in own) for name in members.names))

    def joined(self, position: int, parts: Sequence[Sample | None]) -> Sample:
        """The sample of a row, of which `parts` is all that is known."""
        statuses = [None if part is None else part.fields.get("status") for part in parts]
        number = self.members.decides(statuses)
        outcome = parts[number]
        assert outcome is not None
        row = next((part.row for part in parts if part is not None and part.row.extra), outcome.row)
        extra, urls = row.extra or {}, self.members.url_columns
        url = extra.get(urls[0])
        if with_names := [name for name in urls if "@" in (extra.get(name) or "")]:
            extra = {**extra, **{name: without_credentials(extra[name]) for name in with_names}}
        row = Row(row.shard_id, position, row.key, url, row.caption, extra)
        fields = dict(zip(self.own, self._values(outcome), strict=True))
        fields["attempts"] = sum((part.fields.get("attempts") or 0) for part in parts if part is not None)
        for part, columns in zip(parts, self.of_member, strict=True):
            if part is None:
                fields.update(dict.fromkeys(columns))
            else:
                fields.update(zip(columns, self._values(part), strict=True))
        is_stored = outcome.fields.get("status") == SUCCESS
        name = self.members.names[number]
        if is_stored:
            fields["ext"] = f"{name}.{outcome.fields.get('ext')}"
        else:
            why = (outcome.fields.get(each) for each in ("error_message", "error_code", "status"))
            fields["error_message"] = f"{name}: {next(filter(None, why), '')}"
        files = self._files(parts)
        seconds = outcome.seconds
        left = {
            name: reason
            for name, part in zip(self.members.names, parts, strict=True)
            if part is not None and part.not_processed
            for reason in part.not_processed.values()
        }
        processed = frozenset[str]().union(*(part.processed for part in parts if part is not None))
        told: dict[str, Any] = {"not_processed": left, "processed": processed, "seconds": seconds}
        if not is_stored:
            release(part for part in parts if part is not None)
            return Sample(row, None, "", fields, outcome.failure, **told)
        (ext, body), *others = files.items()
        return Sample(row, body, ext, fields, extra_files=dict(others), **told)

    def _values(self, sample: Sample) -> Iterable[Any]:
        """What it has in the columns `own`."""
        fields = sample.fields
        return fields.values() if tuple(fields) == self.own else map(fields.get, self.own)

    def _files(self, parts: Sequence[Sample | None]) -> dict[str, Any]:
        """Those that are at hand, by extension: first the file of each member, then the further ones of steps."""
        files, further = dict[str, Any](), dict[str, Any]()
        for name, part in zip(self.members.names, parts, strict=True):
            if part is not None and part.body is not None:
                files[f"{name}.{part.ext}"] = part.body
                further.update({f"{name}.{ext}": body for ext, body in part.extra_files.items()})
        return {**files, **further}


def _one_of(samples: Samples) -> Sample:
    """A step has made several of a file that is to be one of several of its sample."""
    release(samples)
    whole = replace(samples[0], part=None, parts=1)
    return whole.failed("transform_error", "a step made several samples of it, and it is one file of a sample")
