"""A fetcher that gets stuck as it is told, for tests of whatever has to cope with that."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.metrics import Traffic
from any2ds.core.reports import RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched
from any2ds.fetch.fetcher import UrlFetcher


@dataclass(frozen=True)
class StuckFetchers:
    """Makes fetchers for `ShardWorker`; each word stands for the rows whose URL contains it."""

    loses: str | None = None  # their outcomes never come
    ends_at: str | None = None  # as soon as one of them has come, the fetcher ends
    mutes_at: str | None = None  # as soon as one of them is pulled, no row is pulled and no outcome comes any more
    raises_at: str | None = None  # when one of them has come
    kills_at: str | None = None  # when one of them is pulled, the process is killed, as for want of memory

    def __call__(self, options: FetchOptions, buffer: Buffer) -> _StuckFetcher:
        return _StuckFetcher(self, options, buffer)


class _StuckFetcher:
    def __init__(self, reported: StuckFetchers, options: FetchOptions, buffer: Buffer) -> None:
        self._reported = reported
        self._fetcher = UrlFetcher(options, buffer)
        self._muted = self._has_lost = False

    @property
    def activity(self) -> int:
        return self._fetcher.activity

    def traffic(self) -> Traffic:
        return self._fetcher.traffic()

    def robots_cost(self) -> RobotsCost:
        return self._fetcher.robots_cost()

    def fetch(self, rows: Iterable[Row]) -> Iterator[list[Fetched]]:
        reported = self._reported
        for batch in self._fetcher.fetch(self._pulled(rows)):
            if any(_of(fetched, reported.raises_at) for fetched in batch):
                raise OSError("the fetcher has had enough")
            kept = [fetched for fetched in batch if not _of(fetched, reported.loses)]
            self._has_lost |= len(kept) < len(batch)
            yield [] if self._muted else kept
            if any(_of(fetched, reported.ends_at) for fetched in batch):
                return
        while self._muted or self._has_lost:
            threading.Event().wait(0.05)
            yield []

    def close(self) -> None:
        self._fetcher.close()

    def _pulled(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if _is(row, self._reported.mutes_at):
                self._muted = True
                threading.Event().wait()
            if _is(row, self._reported.kills_at):
                os.kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
            yield row


def _of(fetched: Fetched, word: str | None) -> bool:
    return _is(fetched.row, word)


def _is(row: Row, word: str | None) -> bool:
    return word is not None and word in (row.url or "")
