"""What a worker has reported of rows of shards that are not complete, to be taken back if they never are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from any2ds.core.reports import Event, Progress, ShardReport


class ReportedProgress:
    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._bytes = 0

    def note(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._outcomes.update(event.outcomes)
            self._bytes += event.bytes
        elif isinstance(event, ShardReport):
            self._outcomes.subtract(event.status_dict)
            self._bytes -= event.bytes

    def withdrawn(self) -> Iterator[Progress]:
        """Takes back what it has reported of shards that it is not going to finish: others begin them anew."""
        reported = {code: -count for code, count in self._outcomes.items() if count}
        if reported:
            yield Progress(reported, -self._bytes)
        self._outcomes.clear()
        self._bytes = 0
