"""Rows of the url list, and the jobs that carry those of one shard to a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

RENAMED = "list_"
"""Before the name of a column of the list, in the dataset, where any2ds has one of that name itself."""


class Row(NamedTuple):
    """One line of the url list, in its place in a shard. A frozen dataclass would take seven times as long."""

    shard_id: int
    position: int  # in the shard, from 0
    key: str  # unique in the dataset, sorts as the rows of a shard do
    url: str | None  # as it stands in the list
    caption: str | None = None
    extra: Mapping[str, Any] | None = None  # the columns of save_additional_columns
    expected_hash: str | None = None  # as it stands in the list
    member: str = ""  # which of the files of its row this URL is, where a row has several; see `members`

    def of_list(self, column: str, default: Any = None) -> Any:
        """The value of an additional column by its name in the list, also where any2ds has one of that name itself."""
        extra = self.extra or {}
        return extra.get(column, extra.get(RENAMED + column, default))


BAD_ROW_COLUMN = "any2ds.bad_row"
"""In the rows of a job: why a row could not be read; null for the others."""

KEY_COLUMN = "any2ds.key"
"""In the rows of a job: the keys that do not follow from shard and position, as a column of the list gives them
(`key_col`), or as they stand in earlier shards (in a retry). Null for a row that could not be read."""

REPLACES_COLUMN = "any2ds.replaces"
"""In the rows of a job of a retry: how each row failed in the earlier shard, as `stage:code`."""

MEMBERS_COLUMN = "any2ds.replaced_members"
"""Goes with it where rows have several URLs: member -> what had become of it, as JSON."""

SETTLED_COLUMN = "any2ds.settled"
"""In the rows of a job: how a row had failed that a later retry has taken over; null for the others."""

JOB_COLUMNS = (BAD_ROW_COLUMN, KEY_COLUMN, REPLACES_COLUMN, MEMBERS_COLUMN, SETTLED_COLUMN)
"""Columns of the rows of a job that do not come from the list."""

MOST_HANGS = 3
"""Times that fetching may get stuck over a shard before none of its rows is fetched any more."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The work of making one shard; small enough to send to any cluster."""

    shard_id: int
    # Arrow IPC stream: `url`, `caption` if there is one, the additional columns, with dedupe=run `duplicate_of`, and
    # those of JOB_COLUMNS that the rows need
    rows: bytes
    count: int  # rows in it
    attempt: int = 0  # how often it was tried before, in this run
    # For each time that fetching got stuck over it in this run, the positions of the rows that were under way, or could
    # be: of all rows where the process did not say so.
    hangs: tuple[Collection[int], ...] = ()
    size: int = 0  # bytes of its rows in memory, where `rows` are compressed
    fingerprint: str = ""  # of its URLs as they stand in the list, `manifest.urls_sha256`

    def after_hang(self, under_way: Collection[int] | None = None) -> ShardJob:
        """The next try at a shard over which fetching has got stuck, with the rows at these positions `under_way`."""
        hang = range(self.count) if under_way is None else under_way
        return replace(self, attempt=self.attempt + 1, hangs=(*self.hangs, hang))

    def given_up(self) -> dict[int, str]:
        """Position of each row that is not to be fetched any more -> why: it was under way in two hangs, or there were
        too many of them."""
        times = Counter(position for hang in self.hangs for position in hang)
        rows = {n: f"{many} processes that were to fetch it got stuck" for n, many in times.items() if many > 1}
        if len(self.hangs) < MOST_HANGS:
            return rows
        not_tried = f"not tried again: {len(self.hangs)} processes that made its shard got stuck"
        return {**dict.fromkeys(range(self.count), not_tried), **rows}
