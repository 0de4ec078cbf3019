"""The metadata table of a shard: the columns of the list, typed as they were, and what became of each row."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa

from any2ds.types import SUCCESS, Sample

HASHES = ("md5", "sha256", "sha512")

OUTCOME_FIELDS: Mapping[str, pa.DataType] = {
    "status": pa.string(),  # success, failed_to_download or failed_to_subsample
    "error_code": pa.string(),  # of types.FAILURE_CODES; null on success
    "error_message": pa.string(),
    "http_status": pa.int32(),
    "mime_type": pa.string(),  # as recognised from the bytes, else as the server said
    "ext": pa.string(),  # the stored file is <key>.<ext>
    "bytes": pa.int64(),  # size of the stored file
    "final_url": pa.string(),  # only where redirects led elsewhere
}

RESERVED_COLUMNS = frozenset({"key", *OUTCOME_FIELDS, *HASHES})
"""Names that an additional column cannot have, because any2ds writes them itself."""


class MetadataTable:
    """Grows by one row per outcome. `rows` are the job's own, in order; `hashes` names the hash columns."""

    def __init__(self, rows: pa.Table, hashes: tuple[str, ...]) -> None:
        self._rows = rows
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

    def table(self, start: int = 0, stop: int | None = None) -> pa.Table:
        """The outcomes from `start` up to `stop`, as a table of `schema`."""
        picked = self._rows.take(pa.array(self._positions[start:stop], pa.int64()))
        own = [pa.array(self._columns[name][start:stop], type) for name, type in self._types.items()]
        keys = pa.array(self._keys[start:stop], pa.string())
        return pa.Table.from_arrays([keys, *picked.columns, *own], schema=self.schema)


def outcome_fields(sample: Sample) -> Iterator[tuple[str, Any]]:
    """Name and value of all that the metadata says of one sample."""
    row = sample.row
    yield "key", row.key
    yield "url", row.url
    if row.caption is not None:
        yield "caption", row.caption
    yield from row.extra.items()
    yield from sample.fields.items()


def to_json(sample: Sample) -> bytes:
    """The metadata of one sample as the JSON object that lies beside the file."""
    return orjson.dumps(dict(outcome_fields(sample)), default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return str(value)


__all__ = ["HASHES", "OUTCOME_FIELDS", "RESERVED_COLUMNS", "SUCCESS", "MetadataTable", "to_json"]
