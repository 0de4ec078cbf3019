"""Finds rows with the same URL, within a shard or a run, and copies the result of one row to others.

URLs are compared without surrounding blanks and without the fragment, which is not sent to servers; nothing else is
normalised. Rows without a URL are never duplicates. Rows are duplicates only if their expected hashes and the columns
that transforms read (boxes to blur, clips to cut) are equal too, and all their URLs, if they have several.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.media import MediaOptions
from any2ds.core.layout import Layout
from any2ds.core.manifest import key_format
from any2ds.core.metadata import DUPLICATE_OF, EXPECTED_HASH
from any2ds.core.on_disk import held
from any2ds.core.rows import BAD_ROW_COLUMN as BAD_ROWS
from any2ds.core.rows import KEY_COLUMN, Row
from any2ds.core.samples import Samples, release
from any2ds.core.tables import values
from any2ds.readers.seen_texts import SeenTexts
from any2ds.storage.disk.space import Room

_BYTES_AT_ONCE = 1 << 22  # of URLs that are compared
_LONGEST_HELD = 256  # characters; of a longer one its hash

Urls = Any  # an Arrow array of strings, in one piece or several


def comparable(urls: Urls, expected: Urls | None = None, also: Urls | None = None) -> Urls:
    """Strings that are equal where the URLs, the `expected` hashes and the texts in `also` are equal."""
    urls = pc.ascii_trim_whitespace(urls)
    if any(b"#" in _characters(chunk) for chunk in (urls.chunks if isinstance(urls, pa.ChunkedArray) else [urls])):
        urls = pc.replace_substring_regex(urls, "(?s)#.*", "")
    if expected is not None:
        hashes = pc.coalesce(pc.ascii_lower(pc.ascii_trim_whitespace(expected)), "")
        joined = pc.binary_join_element_wise(urls, hashes, "#")  # which is in none of the URLs now
        urls = pc.if_else(pc.equal(urls, ""), urls, joined)
    if also is not None:
        urls = pc.if_else(pc.equal(urls, ""), urls, pc.binary_join_element_wise(urls, also, "#"))
    return urls


def _characters(texts: pa.Array) -> bytes:
    """The characters of an array that is no slice; a tenth of the time of `match_substring`."""
    buffer = texts.buffers()[2]
    return b"" if buffer is None else buffer.to_pybytes()


def also_the_same(rows: pa.Table | pa.RecordBatch, media: MediaOptions, of_members: bool = True) -> Urls | None:
    """For each row a text of the columns that transforms read, and of those of its further URLs, unless each row is
    one URL of several (not `of_members`); None if there are no such columns."""
    own = {"url", EXPECTED_HASH.name, DUPLICATE_OF.name, BAD_ROWS, KEY_COLUMN}
    members = media.members if of_members else None
    further = (*members.url_columns[1:], *members.hash_columns) if members is not None else ()
    columns = [name for name in rows.schema.names if name not in own and (media.looks_at(name) or name in further)]
    if not columns:
        return None
    rows_of_values = zip(*(values(rows.column(name)) for name in columns), strict=True)
    return pa.array([repr(row) for row in rows_of_values], pa.string())


def expected_hashes(rows: pa.Table | pa.RecordBatch) -> Urls | None:
    """The column of expected hashes, or None."""
    return rows.column(EXPECTED_HASH.name) if EXPECTED_HASH.name in rows.schema.names else None


def repeated(urls: Urls, expected: Urls | None = None, also: Urls | None = None) -> dict[int, int]:
    """Maps the position of each duplicate to the position of the first row with its URL."""
    firsts: dict[str | bytes, int] = {}
    found = {}
    at_once = max(1, _BYTES_AT_ONCE * len(urls) // max(1, urls.nbytes))
    for start in range(0, len(urls), at_once):
        columns = (None if column is None else _piece(column, start, at_once) for column in (urls, expected, also))
        for position, text in enumerate(comparable(*columns).to_pylist(), start):
            if text:
                is_long = len(text) > _LONGEST_HELD
                known = hashlib.blake2b(text.encode(), digest_size=16).digest() if is_long else text
                if (first := firsts.setdefault(known, position)) != position:
                    found[position] = first
    return found


def _piece(column: Urls, start: int, length: int) -> pa.Array:
    piece = column.slice(start, length)
    return pa.concat_arrays(piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])


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


def mark_duplicates(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    layout: Layout,
    shard_at: Callable[[int], int] = int,
    media: MediaOptions | None = None,
) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """The rows of a list with the column `DUPLICATE_OF`, and their schema. `shard_at` gives the number of the n-th
    shard, from 0; an empty batch ends a shard. `media` determines which columns transforms read."""
    schema = schema.append(DUPLICATE_OF)
    return _marked(batches, layout, shard_at, media or MediaOptions()), schema


def _marked(
    batches: Iterable[pa.RecordBatch], layout: Layout, shard_at: Callable[[int], int], media: MediaOptions
) -> Iterator[pa.RecordBatch]:
    """All rows are read first, and wait on disk if they are many."""
    key, starts, failure = key_format(layout).format, list[int](), None
    room = Room(Path(tempfile.gettempdir()), 0, "set TMPDIR to a folder with more room")

    def added_to(seen: SeenTexts) -> Iterator[pa.RecordBatch]:
        nonlocal failure
        row = 0
        iterator = iter(batches)
        while True:
            try:
                batch = next(iterator, None)
            except Exception as error:  # what was read before is used first
                failure, batch = error, None
            if batch is None:
                return
            if not batch.num_rows:
                row += -row % layout.rows_per_shard
            seen.add(comparable(batch.column("url"), expected_hashes(batch), also_the_same(batch, media)), row)
            starts.append(row)
            row += batch.num_rows
            yield batch

    with room.watched(), closing(SeenTexts()) as seen:
        rows, duplicates = held(added_to(seen)), seen.duplicates()
        row, first = next(duplicates, (-1, -1))
        names = {first: "" for _, first in seen.duplicates()} if layout.has_names else {}  # row -> its name
        for start, batch in zip(starts, rows, strict=True):
            if names:
                own = enumerate(batch[KEY_COLUMN].to_pylist(), start)
                names.update((number, name) for number, name in own if number in names)
            keys: list[str | None] = [None] * batch.num_rows
            while start <= row < start + batch.num_rows:
                shard, place = divmod(first, layout.rows_per_shard)
                keys[row - start] = names.get(first) or key(shard=shard_at(shard), position=place)
                row, first = next(duplicates, (-1, -1))
            yield batch.append_column(DUPLICATE_OF, pa.array(keys, DUPLICATE_OF.type))
    if failure is not None:
        raise failure
