"""Brings rows from wherever they come, in a thread of its own, because the url list may make us wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from any2ds.core.rows import Row
from any2ds.fetch.policy.schedule import Schedule

ROWS_AHEAD = 100_000  # rows that may wait for busy hosts while others are looked for


class Feeder:
    """Pulls rows into a schedule, in a thread of its own because `next(rows)` may wait for the url list."""

    def __init__(self, rows: Iterable[Row], schedule: Schedule, stock: int, wake: Callable[[], None]) -> None:
        self._rows = rows
        self._schedule, self._fresh = schedule, schedule.fresh
        self.stock = stock  # rows in reserve below which more are pulled, up to twice as many
        self._wake = wake
        self._wanted = threading.Event()
        self._wanted.set()
        self._stopped = False
        self._error: Exception | None = None
        self.exhausted = False

    def __enter__(self) -> Feeder:
        threading.Thread(target=self._run, name="any2ds-feeder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: it may be waiting for rows that never come, and ends with the process then.
        self._stopped = True
        self._wanted.set()

    @property
    def waits(self) -> bool:
        """Whether rows were asked for, and have not come."""
        return not (self.exhausted or self._fresh) and self._wanted.is_set()

    def refill(self) -> None:
        """To be called now and then: asks for more rows when few are left, or all there are wait for their hosts."""
        few = len(self._fresh) < self.stock and self._schedule.queued + self._schedule.deferred < ROWS_AHEAD
        if few and not self._wanted.is_set():
            self._wanted.set()

    def check(self) -> None:
        """Raise what went wrong while pulling rows, if anything did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        fresh = self._fresh
        try:
            for row in self._rows:
                fresh.append(row)
                if len(fresh) == 1:  # the other side may be asleep, without rows
                    self._wake()
                elif len(fresh) >= 2 * self.stock:
                    self._wanted.clear()
                    if not self._stopped:  # set before the other side sets `_wanted` for the last time
                        self._wanted.wait()
                if self._stopped:
                    return
        except Exception as error:  # handed to the thread that can deal with it
            self._error = error
        finally:
            self.exhausted = True
            self._wake()
