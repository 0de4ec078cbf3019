"""Finds rows with the same URL, within a shard or a run, and copies the result of one row to others.

URLs are compared without surrounding blanks and without the fragment, which is not sent to servers; nothing else is
normalised. Rows without a URL are never duplicates. Rows are duplicates only if their expected hashes and the columns
that transforms read (boxes to blur, clips to cut) are equal too.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.media import MediaOptions
from any2ds.core.layout import Layout
from any2ds.core.metadata import DUPLICATE_OF, EXPECTED_HASH
from any2ds.core.rows import Row
from any2ds.core.samples import Samples, release
from any2ds.core.tables import values
from any2ds.readers.bad_rows import COLUMN as BAD_ROWS

Urls = Any  # an Arrow array of strings, in one piece or several


def comparable(urls: Urls, expected: Urls | None = None, also: Urls | None = None) -> Urls:
    """Strings that are equal where the URLs, the `expected` hashes and the texts in `also` are equal."""
    urls = pc.ascii_trim_whitespace(urls)
    if pc.any(pc.match_substring(urls, "#")).as_py():
        urls = pc.replace_substring_regex(urls, "(?s)#.*", "")
    if expected is not None:
        hashes = pc.coalesce(pc.ascii_lower(pc.ascii_trim_whitespace(expected)), "")
        joined = pc.binary_join_element_wise(urls, hashes, "#")  # which is in none of the URLs now
        urls = pc.if_else(pc.equal(urls, ""), urls, joined)
    if also is not None:
        urls = pc.if_else(pc.equal(urls, ""), urls, pc.binary_join_element_wise(urls, also, "#"))
    return urls


def also_the_same(rows: pa.Table | pa.RecordBatch, media: MediaOptions) -> Urls | None:
    """For each row a text of the columns that transforms read; None if they read no column."""
    own = {"url", EXPECTED_HASH.name, DUPLICATE_OF.name, BAD_ROWS}
    columns = [name for name in rows.schema.names if name not in own and media.looks_at(name)]
    if not columns:
        return None
    rows_of_values = zip(*(values(rows.column(name)) for name in columns), strict=True)
    return pa.array([repr(row) for row in rows_of_values], pa.string())


def expected_hashes(rows: pa.Table | pa.RecordBatch) -> Urls | None:
    """The column of expected hashes, or None."""
    return rows.column(EXPECTED_HASH.name) if EXPECTED_HASH.name in rows.schema.names else None


def repeated(urls: Urls, expected: Urls | None = None, also: Urls | None = None) -> dict[int, int]:
    """Maps the position of each duplicate to the position of the first row with its URL."""
    urls = comparable(urls, expected, also)
    if len(pc.unique(urls)) == len(urls):
        return {}
    firsts: dict[str, int] = {}
    found = {}
    for position, url in enumerate(urls.to_pylist()):
        if url and (first := firsts.setdefault(url, position)) != position:
            found[position] = first
    return found


class Copies:
    """The rows of a shard that get the result of an earlier row; they are taken in the order of the shard.

    `first_of` is the result of `repeated`; `rows` are the rows at its positions, in order. A body is held and counted
    once; the receiver of a sample releases its body.
    """

    def __init__(self, first_of: dict[int, int], rows: Iterator[Row]) -> None:
        self._first_of = first_of
        self._rows = rows
        self._wanted = Counter(first_of.values())  # first row -> copies of it that are still to be made
        self._results: dict[int, Samples] = {}  # of first rows of which copies are still to be made

    def of(self, position: int) -> int:
        """The number of copies still to be made of the row at `position`."""
        return self._wanted.get(position, 0)

    def keep(self, samples: Samples) -> bool:
        """Keep the samples of a row, before they are written, if copies are to be made. Returns whether they are."""
        position = samples[0].row.position
        count = self._wanted.get(position)
        if count is None:
            return False
        self._results[position] = samples
        for sample in samples:
            for body in sample.bodies:
                body.share(count)
        return True

    def at(self, position: int) -> Samples | None:
        """The copies for the row at `position`, or None if it is no duplicate; call `keep` with the original first."""
        first = self._first_of.get(position)
        if first is None:
            return None
        row = next(self._rows)
        copies = [replace(sample, row=row) for sample in self._results[first]]
        self._wanted[first] -= 1
        if not self._wanted[first]:
            del self._wanted[first], self._results[first]
        return copies

    def discard(self) -> None:
        """Release what is kept; no more copies are made."""
        for first, samples in self._results.items():
            for _ in range(self._wanted[first]):
                release(samples)
        self._results.clear()


class SeenUrls:
    """The URLs of a run, with the number of the first row of each: 31 to 38 bytes for each URL, and 1.6 µs of CPU.

    URLs are compared by 128 bits of hash: among a billion of them the chance of one mistake is below 1 in 10^20. This
    is an open hash table on arrays of the standard library, because numpy is not in the core install.
    """

    def __init__(self) -> None:
        self._count = 0  # rows added
        # Python's own hash is SipHash with a key that is random in each process.
        self._hashes = array("q")  # of each distinct URL, in order of appearance
        self._others = array("q")  # the other 64 bits
        self._rows = array("q")  # number of its first row
        self._bits = 10
        self._slots = _slots(self._bits)  # number of the distinct URL, from 1; 0 is free

    def look_up(self, urls: Urls, expected: Urls | None = None, also: Urls | None = None) -> dict[int, int]:
        """Add the next rows. Maps the position of each duplicate in `urls` to the number, from 0, of the first row with
        its URL."""
        urls = comparable(urls, expected, also)
        hashes = map(hash, urls.to_pylist())
        others = list(map(hash, pc.binary_join_element_wise(urls, "", "\n").to_pylist()))
        while 3 * (len(self._hashes) + len(urls)) > 2 * len(self._slots):
            self._grow()
        slots, mask, start = self._slots, len(self._slots) - 1, self._count
        known, known_others, rows = self._hashes, self._others, self._rows
        nothing = {hash(None), hash("")}
        number = len(known)
        found = {}
        for position, hashed in enumerate(hashes):
            slot = hashed & mask
            while entry := slots[slot]:
                if known[entry - 1] == hashed and known_others[entry - 1] == others[position]:
                    found[position] = rows[entry - 1]
                    break
                slot = (slot + 1) & mask
            else:
                if hashed in nothing:
                    continue
                number += 1
                slots[slot] = number
                known.append(hashed)
                known_others.append(others[position])
                rows.append(start + position)
        self._count += len(urls)
        return found

    def fill_up(self, rows: int) -> None:
        """Continue counting at the next multiple of `rows`."""
        self._count += -self._count % rows

    def _grow(self) -> None:
        self._bits += 1
        self._slots = array("B")  # given back before twice as much is taken
        slots = self._slots = _slots(self._bits)
        mask = len(slots) - 1
        for number, hashed in enumerate(self._hashes, 1):
            slot = hashed & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = number


def _slots(bits: int) -> array[int]:
    code = "I" if bits <= 32 else "Q"
    return array(code, [0]) * (1 << bits)


def mark_duplicates(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    layout: Layout,
    first_shard: int = 0,
    media: MediaOptions | None = None,
) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """The rows of a list with the column `DUPLICATE_OF`, and their schema. Shards are numbered from `first_shard`; an
    empty batch ends a shard. `media` determines which columns transforms read."""
    schema = schema.append(DUPLICATE_OF)
    return _marked(batches, layout, first_shard, media or MediaOptions()), schema


def _marked(
    batches: Iterable[pa.RecordBatch], layout: Layout, first_shard: int, media: MediaOptions
) -> Iterator[pa.RecordBatch]:
    seen = SeenUrls()
    for batch in batches:
        if not batch.num_rows:
            seen.fill_up(layout.rows_per_shard)
        keys: list[str | None] = [None] * batch.num_rows
        for position, row in seen.look_up(
            batch.column("url"), expected_hashes(batch), also_the_same(batch, media)
        ).items():
            shard, place = divmod(row, layout.rows_per_shard)
            keys[position] = layout.key(first_shard + shard, place)
        yield batch.append_column(DUPLICATE_OF, pa.array(keys, DUPLICATE_OF.type))
