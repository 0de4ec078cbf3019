"""Lends the rows of all jobs to one fetcher after the other."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from any2ds.core.rows import Row

if TYPE_CHECKING:
    from any2ds.worker.shard import OpenShard

ShardRows: TypeAlias = "tuple[OpenShard, list[Row]]"


class Rows:
    """The rows of all jobs, for one fetcher after the other.

    A fetcher's feeder thread may be anywhere when the fetcher is given up, most of all waiting for the next job. What
    it gets then is kept for the next fetcher: each row has surely been handed out or surely not.
    """

    def __init__(self, rows: Iterator[ShardRows]) -> None:
        self._rows = rows
        self._kept: deque[ShardRows | Exception | None] = deque()  # came for a fetcher that was given up
        self._lent: deque[Row] | None = None  # what the present fetcher is taking from, one row at a time
        self._shard: OpenShard | None = None  # theirs
        self._pulling = threading.Lock()  # held while a thread waits for rows
        self._handing = threading.Lock()  # never held for long
        self.handed = 0  # rows
        self.ended = False  # and the fetcher knows
        self.error: Exception | None = None  # that ended them

    @property
    def pulling(self) -> bool:
        """Whether a fetcher waits for rows."""
        return self._pulling.locked()

    def lend(self) -> Iterator[Row]:
        """The rows from here on, until they are taken back."""
        lent: deque[Row] = deque()
        self._lent = lent
        return self._take(lent)

    def requeue(self) -> None:
        """From now on no row is handed out."""
        with self._handing:
            lent, self._lent = self._lent, None
            left: deque[Row] = deque()
            while lent:
                with contextlib.suppress(IndexError):  # the fetcher takes from the other end
                    left.appendleft(lent.pop())
            if left and self._shard is not None:
                self._shard.handed = left[0].position
                self.handed -= len(left)
                self._kept.appendleft((self._shard, list(left)))

    def end(self) -> None:
        """From now on nobody gets rows that no fetcher has; those that one was lent it may still take."""
        with self._handing:
            self.ended = True

    def _take(self, lent: deque[Row]) -> Iterator[Row]:
        while self._refill(lent):
            while lent:
                try:
                    row = lent.popleft()
                except IndexError:  # it was taken back at this very moment
                    break
                yield row

    def _refill(self, lent: deque[Row]) -> bool:
        with self._pulling:
            if self._lent is not lent:
                return False
            found = self._kept.popleft() if self._kept else self._next()
            with self._handing:
                if self._lent is not lent:
                    self._kept.append(found)
                    return False
                if self.ended:
                    return False
                if found is None:
                    self.ended = True
                    return False
                if isinstance(found, Exception):
                    self.ended, self.error = True, found
                    raise found
                self._shard, rows = found
                if not self._shard.closed:
                    self._shard.handed = rows[-1].position + 1
                    self.handed += len(rows)
                    lent.extend(rows)
                return True

    def _next(self) -> ShardRows | Exception | None:
        try:
            return next(self._rows, None)
        except Exception as error:
            return error
