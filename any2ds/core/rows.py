"""Rows of the url list, and the jobs that carry those of one shard to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of the url list, in its place in a shard. A frozen dataclass would take seven times as long."""

    shard_id: int
    position: int  # in the shard, from 0
    key: str  # unique in the dataset, sorts as the list does
    url: str | None  # as it stands in the list
    caption: str | None = None
    extra: Mapping[str, Any] | None = None  # the columns of save_additional_columns
    expected_hash: str | None = None  # as it stands in the list
    member: str = ""  # which of the files of its row this URL is, where a row has several; see `members`


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What a worker needs to make one shard; small enough to send to any cluster."""

    shard_id: int
    # Arrow IPC stream: `url`, `caption` if there is one, the additional columns, with dedupe=run `duplicate_of`, and
    # if some rows could not be read `bad_rows.COLUMN`
    rows: bytes
    count: int  # rows in it
    attempt: int = 0  # how often it was tried before, in this run
    record_as_failed: bool = False  # its rows are recorded as failed, not fetched
    # None: it is made from nothing. Else it is there already: the outcomes that it has are kept, but for failures with
    # these codes, which are fetched again as are rows that it lacks.
    redo: tuple[str, ...] | None = None
    size: int = 0  # bytes of its rows in memory, where `rows` are compressed
    fingerprint: str = ""  # of its URLs as they stand in the list, `manifest.urls_sha256`
