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


BAD_ROW_COLUMN = "any2ds.bad_row"
"""In the rows of a job: why a row could not be read; null for the others."""

KEY_COLUMN = "any2ds.key"
"""In the rows of a job of a retry: the keys of the rows, which stand in earlier shards."""

REPLACES_COLUMN = "any2ds.replaces"
"""Goes with it: how each row failed in the earlier shard, as `stage:code`."""

MEMBERS_COLUMN = "any2ds.replaced_members"
"""Goes with it where rows have several URLs: member -> what had become of it, as JSON."""

SETTLED_COLUMN = "any2ds.settled"
"""In the rows of a job: how a row had failed that a later retry has taken over; null for the others."""

JOB_COLUMNS = (BAD_ROW_COLUMN, KEY_COLUMN, REPLACES_COLUMN, MEMBERS_COLUMN, SETTLED_COLUMN)
"""Columns of the rows of a job that do not come from the list."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What a worker needs to make one shard; small enough to send to any cluster."""

    shard_id: int
    # Arrow IPC stream: `url`, `caption` if there is one, the additional columns, with dedupe=run `duplicate_of`, and
    # those of JOB_COLUMNS that the rows need
    rows: bytes
    count: int  # rows in it
    attempt: int = 0  # how often it was tried before, in this run
    record_as_failed: bool = False  # its rows are recorded as failed, not fetched
    size: int = 0  # bytes of its rows in memory, where `rows` are compressed
    fingerprint: str = ""  # of its URLs as they stand in the list, `manifest.urls_sha256`
