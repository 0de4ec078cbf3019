"""The metadata table of a shard: the columns of the list, typed as they were, and what became of each row."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from any2ds.types import Sample

HASHES = ("md5", "sha256", "sha512")

OUTCOME_FIELDS: Mapping[str, pa.DataType] = {
    "status": pa.string(),  # success, failed_to_download, failed_to_subsample or duplicate
    "error_code": pa.string(),  # of types.FAILURE_CODES; null on success
    "error_message": pa.string(),
    "http_status": pa.int32(),
    "mime_type": pa.string(),  # as recognised from the bytes, else as the server said
    "ext": pa.string(),  # the stored file is <key>.<ext>
    "bytes": pa.int64(),  # size of the stored file
    "final_url": pa.string(),  # only where redirects led elsewhere
    "etag": pa.string(),  # validators, as the server gave them
    "last_modified": pa.string(),
    "attempts": pa.int32(),  # made for this row, or for the one whose outcome it shares
}

DUPLICATE_OF = pa.field("duplicate_of", pa.string())
"""With dedupe=run: the key of the first row with the same URL, null in that one. It comes with the rows of a job."""

RESERVED_COLUMNS = frozenset({"key", "data", DUPLICATE_OF.name, *OUTCOME_FIELDS, *HASHES})
"""Names that an additional column cannot have, because any2ds writes them itself."""


# Also where browsers' rules allow fewer slashes, and where a password has characters in it that end a host, which makes
# the URL a bad one. RE2 takes it as well.
_CREDENTIALS = re.compile(
    r"^([^A-Za-z]*(?:[A-Za-z][A-Za-z0-9+.-]*://|(?i:https?|ftps?):[/\\\s]*))"
    r"(?:[^/\\?#]*@|[^/\\?#:@\[]*:[^/\\?#]*[^0-9/\\?#][^/\\?#]*[/\\?#][^@]*@)"
)


def without_credentials(url: str) -> str:
    """The URL as it may be shown: user name and password are for the server alone."""
    return _CREDENTIALS.sub(r"\1", url) if "@" in url else url


class MetadataTable:
    """Grows by one row per outcome. `rows` are the job's own, in order; `hashes` names the hash columns."""

    def __init__(self, rows: pa.Table, hashes: tuple[str, ...]) -> None:
        urls = rows.schema.get_field_index("url")
        shown = pc.replace_substring_regex(rows.column(urls), _CREDENTIALS.pattern, r"\1")
        self._rows = rows.set_column(urls, rows.schema.field(urls), shown)
        self.has_captions = "caption" in rows.schema.names
        self.has_duplicates = DUPLICATE_OF.name in rows.schema.names
        self._positions: list[int] = []
        self._keys: list[str] = []
        self._types = {**OUTCOME_FIELDS, **dict.fromkeys(hashes, pa.string())}
        self._columns: dict[str, list[Any]] = {name: [] for name in self._types}
        self._appends = [(name, column.append) for name, column in self._columns.items()]

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def schema(self) -> pa.Schema:
        own = [pa.field(name, type) for name, type in self._types.items()]
        return pa.schema([pa.field("key", pa.string()), *self._rows.schema.remove_metadata(), *own])

    def add(self, sample: Sample) -> None:
        self._positions.append(sample.row.position)
        self._keys.append(sample.row.key)
        fields = sample.fields
        for name, append in self._appends:
            append(fields.get(name))

    def to_json(self, sample: Sample) -> bytes:
        """What the table says of one sample, as the JSON object that lies beside its file (bytes as base64)."""
        row = sample.row
        known: dict[str, Any] = {"key": row.key, "url": row.url and without_credentials(row.url)}
        if self.has_captions:
            known["caption"] = row.caption
        if row.extra:
            known.update(row.extra)
        if self.has_duplicates:  # which are not stored
            known[DUPLICATE_OF.name] = None
        known.update(sample.fields)
        return orjson.dumps(known, default=_plain, option=orjson.OPT_NON_STR_KEYS)

    def table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """The outcomes from `start` up to `stop`, as a table of `schema`."""
        picked = self._rows.take(pa.array(self._positions[start:stop], pa.int64()))
        own = [pa.array(self._columns[name][start:stop], type) for name, type in self._types.items()]
        keys = pa.array(self._keys[start:stop], pa.string())
        return pa.Table.from_arrays([keys, *picked.columns, *own], schema=self.schema)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return str(value)
