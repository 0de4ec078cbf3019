"""The shards that are open in one process: takes outcomes, writes, publishes, and reports what happened."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import islice

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import DiskFull, error_text, is_full
from any2ds.core.reports import Event, Progress, RobotsCost, ShardError, ShardReport
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Samples, code_of, outcome_of, release
from any2ds.core.stats import as_written
from any2ds.storage.folders import OutputFolder
from any2ds.worker.context import ShardContext
from any2ds.worker.rows import ShardRows
from any2ds.worker.shard import OpenShard
from any2ds.worker.worker_metrics import LONG_WRITE, MetricsCollector

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.5  # between two events of this kind
# Rows without an outcome that one process may look at ahead: as many as fast hosts deliver while a slow one times out.
_ROWS_AHEAD = 200_000
_MOST_OPEN_SHARDS = 512
_MOST_LIST_BYTES = 256 << 20  # of the rows of open shards; one shard may have more
_ROWS_AT_ONCE = 64  # rows that the feeder's thread takes from the list in one go
_MOST_UNPUBLISHED = 4  # complete shards that may wait for the disk or the upload
_LOOK_SECONDS = 0.25  # between two looks at the room on the disk
_LOOK_BYTES = 32 << 20  # and bytes
_LAST_PUBLISH = 0.5  # seconds that a shard may still take to be published when the run is broken off


class _Bytes:
    """What open shards have of the list; one thread waits here until others are done."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[int, int] = {}
        self._released = threading.Condition()

    def acquire(self, shard_id: int, size: int, blocking: bool = True) -> bool:
        def has_room() -> bool:
            return not self._held or sum(self._held.values()) + size <= self._most

        with self._released:
            if not self._released.wait_for(has_room, timeout=None if blocking else 0):
                return False
            self._held[shard_id] = size
            return True

    def release(self, shard_id: int) -> None:
        with self._released:
            self._held.pop(shard_id, None)
            self._released.notify()

    def open(self) -> None:
        """Nobody waits any more."""
        with self._released:
            self._most = sys.maxsize
            self._released.notify()


class OpenShards:
    """The shards that are open in this process. `open` runs in the feeder's thread, all else in the worker's."""

    def __init__(
        self,
        context: ShardContext,
        output: OutputFolder,
        publisher: ThreadPoolExecutor,
        most_open: int,
        most_staged: int,
    ) -> None:
        """`most_staged`: bytes of shards on the staging disk, beyond which the next rows wait for the store."""
        self.buffer: Buffer  # of the present fetcher
        self.taken = 0  # outcomes
        self.writing = False  # the worker's thread is at the mercy of the disk
        self.record_as_failed: deque[OpenShard] = deque()  # from the feeder's thread: not to be fetched
        options = context.options
        self._context, self._layout = context, context.layout
        self._fetch_once = options.dedupe == "shard"
        self._output, self._publisher = output, publisher
        self._most_staged = most_staged
        self._flows = threading.Event()  # while rows may be given out
        self._flows.set()
        self.activity = 0  # grows while they may not, which is on purpose
        self.metrics = MetricsCollector(is_remote=not output.is_local)
        self._open: dict[int, OpenShard] = {}
        self._tried_before: set[int] = set()  # those of them
        self._publishing: list[tuple[OpenShard, Future[ShardReport]]] = []
        self._errors: list[ShardError] = []
        self.unwritten: deque[OpenShard] = deque()  # those that can go on without another outcome
        # From the feeder's thread:
        self._unreadable: deque[tuple[ShardJob, Exception]] = deque()
        self._found: deque[ShardReport] = deque()  # of shards that somebody had published
        self._settled: deque[OpenShard] = deque()  # rows are not fetched: nobody else says so if none is
        ahead = max(4, min(most_open, _MOST_OPEN_SHARDS, _ROWS_AHEAD // options.number_sample_per_shard))
        self._room = threading.Semaphore(ahead)
        self._list_bytes = _Bytes(_MOST_LIST_BYTES)
        self._admitted: set[int] = set()  # shards that are open, or to be given up
        self._closed = False
        self._stopping = False
        self._outcomes: Counter[str] = Counter()  # since the last Progress
        self._bytes = 0
        self.robots = RobotsCost()  # since the last shard was complete
        self._reported = time.monotonic()
        self._next_look = 0.0  # at the room on the disk, by the clock
        self._next_look_at = 0.0  # and by the bytes that have arrived

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    @property
    def any_tried_before(self) -> bool:
        """Whether a shard is open over which a process may have died: another death would cost it all of them."""
        for shard_id in tuple(self._tried_before):
            if shard_id not in self._open:
                self._tried_before.discard(shard_id)
        return bool(self._tried_before)

    def open(self, jobs: Iterable[ShardJob]) -> Iterator[ShardRows]:
        """The rows of all jobs, some at a time; a shard is opened when its first row is asked for."""
        for job in jobs:
            size = max(job.size, len(job.rows))
            if not self._room.acquire(blocking=False):
                self.metrics.crowded.begin()
                self._room.acquire()
                self.metrics.crowded.end()
            self._admitted.add(job.shard_id)
            if not self._list_bytes.acquire(job.shard_id, size, blocking=False):
                self.metrics.crowded.begin()
                self._list_bytes.acquire(job.shard_id, size)
                self.metrics.crowded.end()
            if self._closed or self._stopping:
                return
            try:
                if job.attempt and (report := self._published(job)):
                    self._found.append(report)
                    continue
                shard = OpenShard(job, self._context, self.buffer, self._fetch_once)
                self._open[job.shard_id] = shard
                if job.attempt:
                    self._tried_before.add(job.shard_id)
                if shard.settled or shard.complete:
                    self._settled.append(shard)
                if job.record_as_failed:
                    self.record_as_failed.append(shard)
                    continue
                rows = shard.rows()
                while self._may_go_on(shard) and (some := list(islice(rows, _ROWS_AT_ONCE))):
                    yield shard, some
            except Exception as error:  # rows that cannot be read concern this shard alone
                self._unreadable.append((job, error))

    def _may_go_on(self, shard: OpenShard) -> bool:
        """Whether the next rows of a shard are wanted; waits while too much waits for the store."""
        self._flows.wait()
        return not (shard.closed or self._closed or self._stopping)

    def _hold_back(self) -> None:
        """Let the next rows wait while more would only fill the disk. What is under way comes to its end meanwhile."""
        waiting = len(self._publishing)
        shards = (*self._open.copy().values(), *(shard for shard, _ in self._publishing)) if waiting else ()
        if waiting <= _MOST_UNPUBLISHED and (not waiting or sum(shard.staged for shard in shards) <= self._most_staged):
            self._flows.set()
            self.metrics.held_back.end()
            return
        self.metrics.held_back.begin()
        if self._flows.is_set():
            log.info("%d shards wait for the store, or the disk: fetching waits, too", waiting)
        self._flows.clear()
        self.activity += 1

    def _published(self, job: ShardJob) -> ShardReport | None:
        """The figures of a shard that was finished by an earlier attempt of this run, whose report got lost.

        Statistics of another shard are removed: as long as they are there, no data may be replaced.
        """
        name = self._layout.stats_name(job.shard_id)
        if (content := self._output.read(name)) is None:
            return None
        try:
            report = ShardReport.from_json(as_written(content))
        except (KeyError, TypeError, ValueError):
            report = None
        if report is None or (report.shard_id, report.count) != (job.shard_id, job.count):
            self._output.remove(name)
            return None
        return report

    def leave_unfinishable(self, most: float = math.inf) -> None:
        """Begin no shard any more, and discard those of which no fetcher has taken all the rows, or of which more than
        `most` have no outcome when this is called first: they wait for their hosts."""
        if self._stopping:
            most = math.inf
        self._stopping = True
        self._flows.set()
        for shard_id, shard in list(self._open.items()):
            waits = most < math.inf and len(shard.rows_without_outcome(shard.handed)) > most
            if not (shard.all_handed or shard.complete) or waits:
                del self._open[shard_id]
                self._retract(shard)
                shard.discard()

    def _give_up(self, job: ShardJob, error: Exception) -> None:
        """Raises DiskFull if that is what is wrong: it is not this shard's matter."""
        if shard := self._open.pop(job.shard_id, None):
            self._retract(shard)
            shard.discard()
        self._leave(job.shard_id)
        self._errors.append(self._error_of(job, error))

    def _retract(self, shard: OpenShard) -> None:
        """Its rows are reported once more, or do not count."""
        self._outcomes.subtract(shard.reported)
        self._bytes -= shard.reported_bytes

    def _error_of(self, job: ShardJob, error: Exception) -> ShardError:
        """Raises DiskFull if that is what is wrong: it is not this shard's matter."""
        if is_full(error):
            raise self._output.staging_room.full(error) from error
        return ShardError(job.shard_id, error_text(error), "".join(traceback.format_exception(error)), job.attempt)

    def _leave(self, shard_id: int) -> None:
        if shard_id in self._admitted:
            self._admitted.discard(shard_id)
            self._room.release()
            self._list_bytes.release(shard_id)

    def take(self, samples: Samples) -> None:
        """What has become of one row, or of one of its URLs where it has several."""
        row = samples[0].row
        self.taken += 1
        shard = self._open.get(row.shard_id)
        if shard is None:  # given up before this row came back
            release(samples)
            return
        if shard.joined is not None and row.member:
            self._take_joined(shard, samples)
            return
        samples = self._context.storable(samples)
        rows = shard.rows_with(row.position)
        code = code_of(outcome_of(samples))
        self._outcomes[code] += rows
        shard.reported[code] += rows
        size = 0
        for sample in samples:
            if sample.body is not None:
                size += rows * sample.body.size
                if shard.joined is not None:
                    size += sum(body.size for body in sample.extra_files.values())
        self._bytes += size
        shard.reported_bytes += size
        self._write(shard, samples)

    def _take_joined(self, shard: OpenShard, samples: Samples) -> None:
        """Take the rows of which all is known with this."""
        try:
            found = shard.join(samples)
        except Exception as error:  # this shard is lost, the others are not
            self._give_up(shard.job, error)
            return
        for each in found:
            self.take(each)
            self.taken -= 1

    def _write(self, shard: OpenShard, samples: Samples = ()) -> None:
        """Write the samples of a row; without them, more of those that were waiting."""
        self.writing = True
        since = time.monotonic()
        try:
            if not (shard.take(samples) if samples else shard.write_pending()):
                self.unwritten.append(shard)
        except Exception as error:  # this shard is lost, the others are not
            self._give_up(shard.job, error)
            return
        finally:
            self.writing = False
            if (seconds := time.monotonic() - since) > LONG_WRITE:
                self.metrics.wrote(seconds)
        if self.buffer.used > self.buffer.half and shard.held:
            self._relieve()
        if shard.complete:
            self._publish(shard)

    def _publish(self, shard: OpenShard) -> None:
        """It is complete, unless it was given up."""
        shard_id = shard.job.shard_id
        if self._open.get(shard_id) is shard:
            del self._open[shard_id]
            shard.settle()
            shard.stats.robots, self.robots = self.robots, RobotsCost()
            self._publishing.append((shard, self._publisher.submit(shard.publish, self._output)))

    def rows_to_record_as_failed(self) -> list[list[Row]]:
        """The rows, by shard, of the shards that came since the last call and are not to be fetched."""
        found = []
        while self.record_as_failed:
            found.append(self.record_as_failed.popleft().rows_without_outcome())
        return found

    def lost_rows(self, fetched: bool = True) -> list[list[Row]]:
        """The rows, by shard, that a fetcher has taken and said nothing of; without `fetched`, the others as well."""
        shards = list(self._open.values())
        found = [shard.rows_without_outcome(shard.handed if fetched else None) for shard in shards]
        return [rows for rows in found if rows]

    def lose(self, error: Exception) -> Iterator[Event]:
        """Publish what is complete, and report the rest as lost by `error`."""
        for shard in list(self._open.values()):
            self._give_up(shard.job, error)
        yield from self.events(wait=True)

    def break_off(self) -> Iterator[Event]:
        """Publish what is complete, as far as there is room, and discard the rest."""
        self._next_look = self._next_look_at = math.inf
        for shard in list(self._open.values()):
            self._retract(shard)
            shard.discard()
        self._open.clear()
        self._unreadable.clear()
        self._errors.clear()
        if any(self._outcomes.values()):
            yield self._progress()
        while self._publishing:
            with contextlib.suppress(DiskFull):
                yield from self.events(wait=True)

    def _relieve(self) -> None:
        """Make the writer that holds the most let go of it; the formats that write at once hold nothing."""
        shards = list(self._open.values())
        fullest = max(shards, key=lambda shard: shard.held, default=None)
        if fullest is not None and self.buffer.is_short(fullest.held, len(shards)):
            try:
                fullest.flush()
            except Exception as error:
                self._give_up(fullest.job, error)

    def events(self, wait: bool = False) -> Iterator[Event]:
        """What happened since the last call. With `wait`, until all shards are published.

        Whenever it waits, for a disk or an upload, there is Progress all the same: the process is alive.
        """
        self._look_at_room()
        for _ in range(len(self.unwritten)):
            shard = self.unwritten.popleft()
            if self._open.get(shard.job.shard_id) is shard:  # it was not given up meanwhile
                self._write(shard)
        while self._settled:
            shard = self._settled.popleft()
            self._outcomes.update(shard.settled)
            shard.reported.update(shard.settled)
            if shard.complete:
                self._publish(shard)
        if time.monotonic() - self._reported >= _PROGRESS_SECONDS or wait:
            yield self._progress()
        while self._unreadable:
            self._give_up(*self._unreadable.popleft())
        while self._found:
            report = self._found.popleft()
            self._leave(report.shard_id)
            self._outcomes.update(report.status_dict)  # what its process had reported was taken back
            self._bytes += report.bytes
            yield report
        while self._publishing:
            shard, future = self._publishing[0]
            if not future.done():
                if not wait:
                    break
                since = time.monotonic()
                wait_for([future], _PROGRESS_SECONDS)
                self.metrics.waited_to_publish(since)
                yield self._progress()
                continue
            self._publishing.pop(0)
            self._leave(shard.job.shard_id)
            try:
                yield future.result()
            except Exception as error:
                self._retract(shard)
                shard.discard()
                yield self._error_of(shard.job, error)
        self._hold_back()
        yield from self._errors
        self._errors.clear()
        if wait:  # none is open any more, and rows of a shard that could not be published are taken back
            yield self._progress()

    def _look_at_room(self) -> None:
        """Raises DiskFull if the disk of the staged files is about to be full."""
        if not self._open:
            return
        now = time.monotonic()
        if now < self._next_look and self.buffer.received < self._next_look_at:
            return
        self._next_look = now + _LOOK_SECONDS
        self._next_look_at = self.buffer.received + _LOOK_BYTES
        self.writing = True
        try:
            self._output.staging_room.check()
        finally:
            self.writing = False
            self.metrics.wrote(time.monotonic() - now)

    def _progress(self) -> Progress:
        metrics = self.metrics.take()
        progress = Progress(dict(self._outcomes), self._bytes, metrics)
        self._outcomes.clear()
        self._bytes = 0
        self._reported = time.monotonic()
        return progress

    def close(self) -> None:
        """Give up whatever is not published."""
        self._closed = True
        self._flows.set()
        self._room.release()
        self._output.stop.set()
        self._list_bytes.open()
        self._publisher.shutdown(wait=False, cancel_futures=True)
        # One may be at it, and should not make files in a folder that is being removed.
        wait_for([future for _, future in self._publishing if not future.cancelled()], _LAST_PUBLISH)
        unpublished = [shard for shard, future in self._publishing if future.cancelled()]
        for shard in [*self._open.values(), *unpublished]:
            shard.discard()
