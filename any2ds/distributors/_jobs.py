"""Jobs of a plan on their way to a worker: pulled ahead in a thread, because the list may make us wait; and those that
a process, or a task of a cluster, is at work on."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

from any2ds.core.reports import Event, Progress, ShardReport
from any2ds.core.rows import ShardJob


class JobQueue:
    """Jobs that nobody has yet: no more of them than are useful, and no more bytes than memory is for."""

    def __init__(
        self, jobs: Iterator[ShardJob], most: int, most_bytes: int, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """`on_change` is called in the thread that pulls, when a job has come and at the end of the plan."""
        self._jobs, self._most, self._most_bytes, self._on_change = jobs, most, most_bytes, on_change
        self._waiting: deque[ShardJob] = deque()
        self._bytes = 0  # of the rows of these
        self._error: BaseException | None = None  # how the plan has broken off
        self._is_read = False  # to the end of the plan
        self._is_stopped = False
        self._changed = threading.Condition()
        threading.Thread(target=self._pull, name="any2ds-puller", daemon=True).start()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Rows of the jobs that wait."""
        with self._changed:
            return sum(job.count for job in self._waiting)

    @property
    def has_ended(self) -> bool:
        """Whether there are no more jobs, and no error to be raised."""
        return self._is_stopped or (self._is_read and not self._waiting and self._error is None)

    def wait(self, seconds: float) -> bool:
        """Wait for the first job, or the end of the plan. Returns whether one of them has come."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting) or self._is_read or self._is_stopped, seconds)

    def take(self, count: int) -> list[ShardJob]:
        """The next jobs, as soon as there are `count`, or no more are coming before these are taken; else none.

        Raises what the plan has raised, after the jobs before that.
        """
        with self._changed:
            self.check()
            if self._has_room() and len(self._waiting) < count and not self._is_read:
                return []
            jobs = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            self._bytes -= sum(len(job.rows) for job in jobs)
            self._changed.notify_all()
            return jobs

    def check(self) -> None:
        """Raise what the plan has raised, once the jobs before that are taken."""
        if self._error is not None and self._is_read and not (self._waiting or self._is_stopped):
            raise self._error

    def stop(self) -> None:
        """Pull and give out no more."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._waiting) < self._most and self._bytes < self._most_bytes

    def _pull(self) -> None:
        try:
            for job in self._jobs:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_stopped or self._has_room())
                    if self._is_stopped:
                        return
                    self._waiting.append(job)
                    self._bytes += len(job.rows)
                    self._changed.notify_all()
                self._on_change()
        except BaseException as error:  # raised again in the thread that takes the jobs
            self._error = error
        finally:
            with self._changed:
                self._is_read = True
                self._changed.notify_all()
            self._on_change()


class Assignment:
    """The jobs that a process, or a task, has not reported on, and what it has reported of their rows."""

    def __init__(self, jobs: Iterable[ShardJob] = ()) -> None:
        self.jobs = {job.shard_id: job for job in jobs}
        self._outcomes: Counter[str] = Counter()  # of rows of shards that are not complete
        self._bytes = 0

    def record(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._outcomes.update(event.outcomes)
            self._bytes += event.bytes
            return
        self.jobs.pop(event.shard_id, None)
        if isinstance(event, ShardReport):
            self._outcomes.subtract(event.status_dict)
            self._bytes -= event.bytes

    def withdraw(self) -> Iterator[Progress]:
        """A Progress that takes back what was reported of shards that are not complete: others begin them anew."""
        reported = {code: -count for code, count in self._outcomes.items() if count}
        if reported:
            yield Progress(reported, -self._bytes)
        self._outcomes.clear()
        self._bytes = 0
