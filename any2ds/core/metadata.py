"""The metadata table of a shard: the columns of the list, typed as they were, and what became of each row."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import redacted
from any2ds.core.failures import SUCCESS, failure_code
from any2ds.core.samples import Sample, member_column, member_value
from any2ds.core.tables import array_of, take, to_json
from any2ds.core.wide_columns import WideColumns, is_wide

HASHES = ("md5", "sha256", "sha512")

OUTCOME_FIELDS: Mapping[str, pa.DataType] = {
    "status": pa.string(),  # success, failed_to_download, failed_to_subsample, dropped, filtered or duplicate
    "error_code": pa.string(),  # of failures.FAILURE_CODES; null on success
    "error_message": pa.string(),  # also of what was dropped or filtered
    "http_status": pa.int32(),
    "mime_type": pa.string(),  # as recognised from the bytes, else as the server said
    "ext": pa.string(),  # the stored file is <key>.<ext>; null where none is stored
    "bytes": pa.int64(),  # size of the file that arrived
    "final_url": pa.string(),  # only where redirects led elsewhere
    "etag": pa.string(),  # validators, as the server gave them
    "last_modified": pa.string(),
    "attempts": pa.int32(),  # made for this row, or for the one whose outcome it shares
}

DUPLICATE_OF = pa.field("duplicate_of", pa.string())
"""With dedupe=run: the key of the first row with the same URL, null in that one. It comes with the rows of a job."""

EXPECTED_HASH = pa.field("expected_hash", pa.string())
"""With verify_hash: what the list says, null or blank where it says nothing. It comes with the rows of a job."""

HASH_MATCHES = pa.field("hash_matches", pa.bool_())
"""Goes with it: whether what arrived has that hash; null where there was nothing to compare."""

STORED_BYTES = pa.field("stored_bytes", pa.int64())
"""Size of the stored file, where a transform has changed it; null where it is as it came."""

STORED_CRC32 = pa.field("stored_crc32", pa.int64())
"""Goes with it: the CRC-32 (as of zlib) of the stored file; hashes are those of what arrived. `verify` compares it."""

SPLIT = "split"
"""The column, of the list or of a step, that says to which part of the dataset a sample belongs, such as `train`."""

MOST_SPLITS = 100
"""A column with more values than these names no splits."""

RECIPE_KEY = "recipe_key"
"""The column with the keys of a recipe, which only its dataset has."""

RESERVED_COLUMNS = frozenset(
    {
        "key",
        "data",
        DUPLICATE_OF.name,
        EXPECTED_HASH.name,
        HASH_MATCHES.name,
        STORED_BYTES.name,
        STORED_CRC32.name,
        *OUTCOME_FIELDS,
        *HASHES,
    }
)
"""Names of columns that any2ds writes itself; those of hashes only if they are computed."""


def reserved_columns(hashes: Collection[str]) -> frozenset[str]:
    """Names that an additional column cannot have in a dataset with these hashes."""
    return RESERVED_COLUMNS - (set(HASHES) - set(hashes))


_LIST_BYTES_AT_ONCE = 64 << 20  # bytes of the columns of the list in one table, where their rows are alike
_LONGEST_EXAMPLE = 300  # characters of a URL that stands in figures

# Also where browsers' rules allow fewer slashes, and where a password has characters in it that end a host, which makes
# the URL a bad one. RE2 takes it as well. No character is in two repeated classes in a row, so the time is linear.
_CREDENTIALS = re.compile(
    r"^([^A-Za-z]*(?:[A-Za-z][A-Za-z0-9+.-]*://|(?i:https?|ftps?):(?:[/\\\s]*[/\\])?))"
    r"(?:[^/\\?#]*@|[^/\\?#:@\[]*:[0-9]*[^0-9/\\?#][^/\\?#]*[/\\?#][^@]*@)"
)


def without_credentials(url: str) -> str:
    """The URL as it may be shown: user name and password are for the server alone."""
    return _CREDENTIALS.sub(r"\1", url) if "@" in url else url


def stored_rows(table: pa.Table) -> pa.Table:
    """The rows that have a sample."""
    return table.filter(pc.equal(table["status"], SUCCESS))  # a filter leaves out rows for which it is null


def shown_urls(urls: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of URLs without credentials."""
    return pc.replace_substring_regex(urls, _CREDENTIALS.pattern, r"\1")


def example_of(url: str | None) -> str:
    """The URL as figures name it: without credentials, and no longer than a person looks at; "" if there is none."""
    shown = redacted(without_credentials((url or "").strip()))
    return shown if len(shown) <= _LONGEST_EXAMPLE else f"{shown[: _LONGEST_EXAMPLE - 1]}…"


def splits_of(values: Iterable[Any]) -> dict[str, int]:
    """Split -> samples, by their values in the column `split`; "" for null. Empty where these are no names of splits:
    no texts, or too many."""
    counts = Counter("" if value is None else value for value in values)
    is_split = len(counts) <= MOST_SPLITS and all(isinstance(value, str) for value in counts)
    return dict(counts) if is_split else {}


class MetadataTable:
    """Grows by one row per outcome. `rows` are the job's own, in order; `hashes` names the hash columns,
    `columns` are those that transforms add. With `explains`, no failure is without an `error_message`. Without
    `has_members` further files of a sample are columns. What may be large waits in a file in `folder`.

    Those of `columns` that are `short` have texts that are no longer than those of the table's own columns.
    `in_sight` says which columns are in sight, of those of the list and of its own: all, if it is None.

    A row that became several samples has one row here for each of them, under the key of the sample."""

    def __init__(  # eight parameters, of which a run names the last six: each comes from another of its parts
        self,
        rows: pa.Table,
        hashes: tuple[str, ...],
        columns: Mapping[str, pa.DataType] | None = None,
        *,
        explains: bool = False,
        has_members: bool = True,
        folder: Path | None = None,
        in_sight: Callable[[Sequence[str], Sequence[str]], Sequence[str]] | None = None,
        short: Collection[str] = (),
    ) -> None:
        urls = rows.schema.get_field_index("url")
        if pc.any(pc.match_substring(rows.column(urls), "@")).as_py():
            rows = rows.set_column(urls, rows.schema.field(urls), shown_urls(rows.column(urls)))
        self._rows = rows
        self.has_captions = "caption" in rows.schema.names
        self.has_duplicates = DUPLICATE_OF.name in rows.schema.names
        self.has_expected_hashes = EXPECTED_HASH.name in rows.schema.names
        self._explains, self._has_members = explains, has_members
        self._positions: list[int] = []
        self._keys: list[str] = []
        self._types = {**OUTCOME_FIELDS, **dict.fromkeys(hashes, pa.string())}
        if self.has_expected_hashes:
            self._types[HASH_MATCHES.name] = HASH_MATCHES.type
        self._types.update(columns or {})
        wide = {name: type for name, type in (columns or {}).items() if is_wide(type) and name not in short}
        self._wide = WideColumns(wide, folder or Path(tempfile.gettempdir())) if wide else None
        self._names = tuple(self._types)
        self._narrow = tuple(name for name in self._types if name not in wide)
        self._values: list[tuple[Any, ...]] = []  # of these, for each row
        self.hides = in_sight is not None
        self._shown = list(in_sight(self._rows.schema.names, tuple(self._types))) if in_sight is not None else None
        self.members: tuple[str, ...] = ()  # the files of a sample, where a row has several; see `core.members`
        self.added = 0  # bytes that the last row has in columns whose values may be large

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def schema(self) -> pa.Schema:
        own = [pa.field(name, type) for name, type in self._types.items()]
        return pa.schema([pa.field("key", pa.string()), *self._rows.schema.remove_metadata(), *own])

    @property
    def schema_in_sight(self) -> pa.Schema:
        """The schema of the files that other tools read."""
        return self.schema if self._shown is None else pa.schema([self.schema.field(name) for name in self._shown])

    @property
    def own_columns(self) -> tuple[str, ...]:
        """Columns of the outcome of a row."""
        return tuple(self._types)

    @property
    def splits(self) -> dict[str, int]:
        """Value of the column `split` -> stored samples with it, "" for null; empty if there is no such column.

        Where nothing is stored: the one that all rows have, if they do.
        """
        status = self._narrow.index("status")
        stored = [number for number, values in enumerate(self._values) if values[status] == SUCCESS]
        numbers = stored or range(len(self._values))
        if SPLIT in self._narrow:
            place = self._narrow.index(SPLIT)
            found = splits_of(self._values[number][place] for number in numbers)
        elif SPLIT in self._rows.schema.names:
            found = splits_of(take(self._rows.column(SPLIT), [self._positions[n] for n in numbers]).to_pylist())
        else:
            return {}
        return found if stored else dict.fromkeys(found, 0) if len(found) == 1 else {}

    def add(self, sample: Sample) -> None:
        """Raises OSError if there is no room for what is large in it."""
        self._positions.append(sample.row.position)
        self._keys.append(sample.key)
        fields = sample.fields
        if self._explains and fields.get("error_code") and not fields.get("error_message"):
            fields = {**fields, "error_message": failure_code(fields["error_code"]).meaning}
        self._values.append(tuple(map(fields.get, self._narrow)))
        if self._wide is not None:
            self.added = self._wide.add(fields if self._has_members else {**fields, **self._beside(sample)})

    def to_json(self, sample: Sample) -> bytes:
        """The row of one sample, as the JSON object that lies beside its file (bytes as base64)."""
        row, url = sample.row, sample.row.url
        known: dict[str, Any] = {"key": sample.key, "url": without_credentials(url) if url and "@" in url else url}
        if self.has_captions:
            known["caption"] = row.caption
        if self.has_expected_hashes:
            known[EXPECTED_HASH.name] = row.expected_hash
        if row.extra:
            known.update(row.extra)
        if self.has_duplicates:  # which are not stored
            known[DUPLICATE_OF.name] = None
        fields = sample.fields
        if tuple(fields) == self._names:  # as they are, but for what steps have added
            known.update(fields)
        else:
            known.update((name, fields.get(name)) for name in self._names)
        return to_json(known if self._shown is None else {name: known[name] for name in self._shown})

    def table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """The outcomes from `start` up to `stop`, as a table of `schema`."""
        picked = take(self._rows, self._positions[start:stop])
        last = len(self) if stop is None else stop
        wide = self._wide.columns(start, last) if self._wide is not None else {}
        columns = zip(*self._values[start:stop], strict=True) if last > start else [()] * len(self._narrow)
        narrow = dict(zip(self._narrow, columns, strict=True))
        own = [wide[name] if name in wide else array_of(narrow[name], type) for name, type in self._types.items()]
        keys = pa.array(self._keys[start:stop], pa.string())
        return pa.Table.from_arrays([keys, *picked.columns, *own], schema=self.schema)

    def table_in_sight(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """`table`, as a table of `schema_in_sight`."""
        table = self.table(start, stop)
        return table if self._shown is None else table.select(self._shown)

    def pieces_in_sight(self) -> Iterator[pa.Table]:
        """As `pieces`."""
        for table in self.pieces():
            yield table if self._shown is None else table.select(self._shown)

    def pieces(self) -> Iterator[pa.Table]:
        """All outcomes, in one table, or in several where they are too large for that."""
        for rows in self._wide.pieces() if self._wide is not None else [range(len(self))]:
            for part in self.parts(rows.start, rows.stop):
                yield self.table(part.start, part.stop)

    def parts(self, start: int, stop: int) -> Iterator[range]:
        """The rows from `start` up to `stop`, in as few ranges as there can be without much of the list in one."""
        most = max(1, _LIST_BYTES_AT_ONCE * self._rows.num_rows // max(1, self._rows.nbytes))
        for first in range(start, stop, most) or [start]:
            yield range(first, min(first + most, stop))

    def close(self) -> None:
        """Let go of the file, if there is one."""
        if self._wide is not None:
            self._wide.close()

    def _beside(self, sample: Sample) -> dict[str, str | bytes]:
        """The further files that are columns."""
        found = {member_column(ext): (ext, body) for ext, body in sample.extra_files.items()}
        return {
            name: member_value(ext, bytes(body.read())) for name, (ext, body) in found.items() if name in self._types
        }
