"""The shards that are open in one process: adds outcomes, writes, publishes, and reports what happened."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import islice

from any2ds.core.admission import Admission
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import DiskFull, error_text, is_full
from any2ds.core.reports import Event, Progress, RobotsCost, ShardError, ShardReport
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Samples, code_of, outcome_of, release
from any2ds.core.stats import as_written
from any2ds.storage.folders import OutputFolder
from any2ds.worker.context import ShardContext
from any2ds.worker.shard import OpenShard
from any2ds.worker.worker_metrics import LONG_WRITE, MetricsCollector

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.5  # between two events of this kind
# Rows without an outcome that one process may look at ahead: as many as fast hosts deliver while a slow one times out.
_ROWS_AHEAD = 200_000
_MOST_OPEN_SHARDS = 512
_MOST_LIST_BYTES = 256 << 20  # of the rows of open shards; one shard may have more
_ROWS_AT_ONCE = 64  # rows that the feeder's thread takes from a shard in one go
_MOST_UNPUBLISHED = 4  # complete shards that may wait for the disk or the upload
_LOOK_SECONDS = 0.25  # between two looks at the room on the disk, and for rows under way
_LOOK_BYTES = 32 << 20  # bytes that arrive between two looks at most
_LAST_PUBLISH = 0.5  # seconds that a shard may still take to be published when the run is broken off


class OpenShards:
    """The shards that are open in this process. `rows` runs in the feeder's thread, all else in the worker's."""

    def __init__(
        self,
        context: ShardContext,
        output: OutputFolder,
        buffer: Buffer,
        metrics: MetricsCollector,
        *,
        most_open: int,
        most_staged: int,
    ) -> None:
        """`most_staged`: bytes of shards on the staging disk, beyond which the next rows wait for the store."""
        options = context.options
        self._context, self._output, self._buffer, self.metrics = context, output, buffer, metrics
        self._fetch_once = options.dedupe == "shard"
        self._open: dict[int, OpenShard] = {}
        self._stopping = False
        self.outcomes = 0  # of rows, or of the URLs of rows that have several
        self.robots = RobotsCost()  # since the last shard was complete

        # Set by the feeder's thread:
        self.waits_for_jobs = False  # for the next one, or for room for its shard
        self._has_all_jobs = False
        self._handed = 0  # rows that the fetcher has taken
        ahead = max(4, min(most_open, _MOST_OPEN_SHARDS, _ROWS_AHEAD // options.number_sample_per_shard))
        self._admission = Admission(ahead, _MOST_LIST_BYTES)
        self._unreadable: deque[tuple[ShardJob, Exception]] = deque()
        self._already_published: deque[ShardReport] = deque()  # by another process, whose report got lost
        self._begun: deque[OpenShard] = deque()

        self.unwritten: deque[OpenShard] = deque()  # that can go on without another outcome
        self.is_writing = False  # the worker's thread is at the mercy of the disk
        self._publisher = ThreadPoolExecutor(1, thread_name_prefix="any2ds-publisher")
        self._publishing: list[tuple[OpenShard, Future[ShardReport]]] = []
        self._errors: list[ShardError] = []
        self._most_staged = most_staged
        self._rows_flow = threading.Event()  # cleared while the next rows wait for the store
        self._rows_flow.set()
        self._most_rows: float = math.inf  # under way, beyond which no further job is asked for
        self._are_steps_supplied = False  # and therefore no further job is asked for
        self._limits_changed = threading.Event()
        self._held_back = 0  # grows while they wait, which is on purpose
        self._next_look = 0.0  # at the room on the disk, by the clock
        self._next_look_at = 0.0  # by the bytes that have arrived

        self._progress_outcomes: Counter[str] = Counter()  # since the last Progress
        self._progress_bytes = 0
        self._progress_at = time.monotonic()

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    @property
    def activity(self) -> int:
        """Grows with every sign of life: an outcome, a byte of a file, rows that wait for the store."""
        return self.outcomes + self._buffer.received + self._held_back

    @property
    def are_finished(self) -> bool:
        """Whether there are no more jobs, and each shard is complete or given up."""
        return self._has_all_jobs and not self._open

    @property
    def any_retried(self) -> bool:
        """Whether a shard is open over which a process may have died: another death would cost it all of them."""
        return any(shard.job.attempt for shard in list(self._open.values()))

    # --- rows, in the feeder's thread ---

    def rows(self, jobs: Iterable[ShardJob]) -> Iterator[Row]:
        """The rows to fetch of all jobs. A shard is opened when its first row is asked for."""
        self.waits_for_jobs = True
        source = iter(jobs)
        while (job := self._next_job(source)) is not None:
            self.metrics.is_crowded = True
            is_admitted = self._admission.acquire(job.shard_id, max(job.size, len(job.rows)))
            self.metrics.is_crowded = False
            self.waits_for_jobs = False
            if not is_admitted or self._stopping:
                return
            try:
                if (shard := self._begin(job)) is not None:
                    rows = shard.rows()
                    while self._wants_rows_of(shard) and (batch := list(islice(rows, _ROWS_AT_ONCE))):
                        self._handed += len(batch)
                        for row in batch:
                            shard.handed = row.position + 1
                            yield row
            except Exception as error:  # rows that cannot be read concern this shard alone
                self._unreadable.append((job, error))
            self.waits_for_jobs = True
        self.waits_for_jobs, self._has_all_jobs = False, True

    def _next_job(self, jobs: Iterator[ShardJob]) -> ShardJob | None:
        """The next job, which is asked for when this process can use it: another one may have nothing to do."""
        while self._handed - self.outcomes >= self._most_rows and not self._stopping:
            self.metrics.is_supplied = self._are_steps_supplied
            self.metrics.is_crowded = not self._are_steps_supplied
            self._limits_changed.clear()
            self._limits_changed.wait(_LOOK_SECONDS)
        self.metrics.is_supplied = self.metrics.is_crowded = False
        return None if self._stopping else next(jobs, None)

    def limit_rows(self, most: int, are_steps_supplied: bool) -> None:
        """Have a further job asked for only while fewer rows are under way; in the worker's thread."""
        self._most_rows, self._are_steps_supplied = most, are_steps_supplied
        self._limits_changed.set()

    def _begin(self, job: ShardJob) -> OpenShard | None:
        """Open a shard; None if none of its rows is to be fetched."""
        if job.attempt and (report := self._published(job)):
            self._already_published.append(report)
            return None
        shard = OpenShard(job, self._context, self._buffer, self._fetch_once)
        self._open[job.shard_id] = shard
        self._begun.append(shard)
        return shard

    def _published(self, job: ShardJob) -> ShardReport | None:
        """The figures of a shard that was finished by an earlier attempt of this run, whose report got lost.

        Statistics of another shard are removed: as long as they are there, no data may be replaced.
        """
        name = self._context.layout.stats_name(job.shard_id)
        if (content := self._output.read(name)) is None:
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            report = ShardReport.from_json(as_written(content))
            if (report.shard_id, report.count) == (job.shard_id, job.count):
                return report
        self._output.remove(name)
        return None

    def _wants_rows_of(self, shard: OpenShard) -> bool:
        """Whether more rows of a shard are to be fetched; waits while too much waits for the store."""
        self._rows_flow.wait()
        return not (shard.is_discarded or self._stopping)

    # --- outcomes ---

    def add(self, samples: Samples) -> None:
        """Add the outcome of one row, or of one of its URLs where it has several."""
        self.outcomes += 1
        row = samples[0].row
        shard = self._open.get(row.shard_id)
        if shard is None:  # given up before this row came back
            release(samples)
        elif shard.joined is not None:
            try:
                rows = shard.join(samples)
            except Exception as error:  # this shard is lost, the others are not
                self._give_up(shard.job, error)
                return
            for joined in rows:
                if self._is_open(shard):
                    self._add_row(shard, joined)
                else:
                    release(joined)
        else:
            self._add_row(shard, samples)

    def _add_row(self, shard: OpenShard, samples: Samples) -> None:
        """Write the samples of a row, and count them for Progress."""
        if self._context.bounds_files:
            samples = self._context.storable(samples)
        rows = shard.rows_with(samples[0].row.position)
        code = code_of(outcome_of(samples))
        size = 0
        for sample in samples:
            if sample.body is not None:
                size += rows * sample.body.size
                if shard.joined is not None:
                    size += sum(body.size for body in sample.extra_files.values())
        self._progress_outcomes[code] += rows
        self._progress_bytes += size
        shard.reported[code] += rows
        shard.reported_bytes += size
        self._write(shard, samples)

    def _write(self, shard: OpenShard, samples: Samples = ()) -> None:
        """Write the samples of a row; without them, more of those that were waiting."""
        self.is_writing = True
        since = time.monotonic()
        try:
            if not (shard.add(samples) if samples else shard.write_pending()):
                self.unwritten.append(shard)
        except Exception as error:  # this shard is lost, the others are not
            self._give_up(shard.job, error)
            return
        finally:
            self.is_writing = False
            if (seconds := time.monotonic() - since) > LONG_WRITE:
                self.metrics.wrote(seconds)
        if self._buffer.used > self._buffer.half and shard.held:
            self._relieve()
        if shard.complete:
            self._publish(shard)

    def _relieve(self) -> None:
        """Make the writer that holds the most let go of it; the formats that write at once hold nothing."""
        shards = list(self._open.values())
        fullest = max(shards, key=lambda shard: shard.held, default=None)
        if fullest is not None and self._buffer.is_short(fullest.held, len(shards)):
            try:
                fullest.flush()
            except Exception as error:
                self._give_up(fullest.job, error)

    def _publish(self, shard: OpenShard) -> None:
        """Have a complete shard published, unless it was given up."""
        if self._is_open(shard):
            del self._open[shard.job.shard_id]
            shard.settle()
            shard.stats.robots, self.robots = self.robots, RobotsCost()
            shard.stats.process = self.metrics.cost_of_shard()
            self._publishing.append((shard, self._publisher.submit(shard.publish, self._output)))

    # --- shards that are not finished here ---

    def under_way(self) -> dict[int, list[int]]:
        """Number of each open shard with rows that the fetcher has taken and said nothing of -> their positions.

        A shard without such rows is not what the fetcher is stuck with: a hang must not count against it.
        """
        positions = {shard.job.shard_id: shard.under_way() for shard in list(self._open.values())}
        return {shard_id: rows for shard_id, rows in positions.items() if rows}

    def abandon_unfetched_shards(self) -> None:
        """Discard the shards of which rows are left that the fetcher has not taken. No shard is begun any more."""
        self._end_feeding()
        for shard in list(self._open.values()):
            if not (shard.all_handed or shard.complete):
                self._discard(shard)

    def break_off(self) -> Iterator[Event]:
        """Publish what is complete, as far as there is room, and discard the rest without a word."""
        self._next_look = self._next_look_at = math.inf
        for shard in list(self._open.values()):
            self._discard(shard)
        self._unreadable.clear()
        self._errors.clear()
        if any(self._progress_outcomes.values()):
            yield self._progress()
        while self._publishing:
            with contextlib.suppress(DiskFull):
                yield from self.events(wait=True)

    def _give_up(self, job: ShardJob, error: Exception) -> None:
        """Raises DiskFull if that is what is wrong: it is not this shard's matter."""
        if shard := self._open.get(job.shard_id):
            self._discard(shard)
        self._admission.release(job.shard_id)
        self._errors.append(self._error_of(job, error))

    def _discard(self, shard: OpenShard) -> None:
        """Forget an open shard; what Progress has said of its rows is taken back."""
        del self._open[shard.job.shard_id]
        self._retract(shard)
        shard.discard()

    def _is_open(self, shard: OpenShard) -> bool:
        return self._open.get(shard.job.shard_id) is shard

    def _retract(self, shard: OpenShard) -> None:
        self._progress_outcomes.subtract(shard.reported)
        self._progress_bytes -= shard.reported_bytes

    def _error_of(self, job: ShardJob, error: Exception) -> ShardError:
        """Raises DiskFull if that is what is wrong: it is not this shard's matter."""
        if is_full(error):
            raise self._output.staging_room.full(error) from error
        return ShardError(job.shard_id, error_text(error), "".join(traceback.format_exception(error)), job.attempt)

    # --- events ---

    def events(self, wait: bool = False) -> Iterator[Event]:
        """Events since the last call. With `wait`, until all shards are published.

        Whenever it waits, for a disk or an upload, there is Progress all the same: the process is alive.
        """
        self._check_room()
        for _ in range(len(self.unwritten)):
            shard = self.unwritten.popleft()
            if self._is_open(shard):
                self._write(shard)
        while self._begun:
            self._count_settled(self._begun.popleft())
        if wait or time.monotonic() - self._progress_at >= _PROGRESS_SECONDS:
            yield self._progress()
        while self._unreadable:
            self._give_up(*self._unreadable.popleft())
        while self._already_published:
            yield self._counted(self._already_published.popleft())
        if self._publishing:
            yield from self._published_shards(wait)
        self._hold_back()
        yield from self._errors
        self._errors.clear()
        if wait:  # none is open any more, and rows of a shard that could not be published are taken back
            yield self._progress()

    def _count_settled(self, shard: OpenShard) -> None:
        """Count the rows of a shard that are not fetched."""
        if not self._is_open(shard):
            return
        self._progress_outcomes.update(shard.settled)
        shard.reported.update(shard.settled)
        if shard.complete:
            self._publish(shard)

    def _counted(self, report: ShardReport) -> ShardReport:
        """The report of a shard whose progress was taken back when its process died, counted again."""
        self._admission.release(report.shard_id)
        self._progress_outcomes.update(report.status_dict)
        self._progress_bytes += report.bytes
        return report

    def _published_shards(self, wait: bool) -> Iterator[Event]:
        while self._publishing:
            shard, future = self._publishing[0]
            if not future.done():
                if not wait:
                    return
                since = time.monotonic()
                wait_for([future], _PROGRESS_SECONDS)
                self.metrics.waited_to_publish(since)
                yield self._progress()
                continue
            self._publishing.pop(0)
            self._admission.release(shard.job.shard_id)
            try:
                yield future.result()
            except Exception as error:
                self._retract(shard)
                shard.discard()
                yield self._error_of(shard.job, error)

    def _hold_back(self) -> None:
        """Let the next rows wait while more would only fill the disk. What is under way comes to its end meanwhile."""
        waiting = len(self._publishing)
        shards = (*self._open.copy().values(), *(shard for shard, _ in self._publishing)) if waiting else ()
        if waiting <= _MOST_UNPUBLISHED and (not waiting or sum(shard.staged for shard in shards) <= self._most_staged):
            self._rows_flow.set()
            self.metrics.is_held_back = False
            return
        self.metrics.is_held_back = True
        if self._rows_flow.is_set():
            log.info("%d shards wait for the store, or the disk: fetching waits, too", waiting)
        self._rows_flow.clear()
        self._held_back += 1

    def _check_room(self) -> None:
        """Raises DiskFull if the disk of the staged files is about to be full."""
        if not self._open:
            return
        now = time.monotonic()
        if now < self._next_look and self._buffer.received < self._next_look_at:
            return
        self._next_look = now + _LOOK_SECONDS
        self._next_look_at = self._buffer.received + _LOOK_BYTES
        self.is_writing = True
        try:
            self._output.staging_room.check()
        finally:
            self.is_writing = False
            self.metrics.wrote(time.monotonic() - now)

    def _progress(self) -> Progress:
        progress = Progress(dict(self._progress_outcomes), self._progress_bytes, self.metrics.drain())
        self._progress_outcomes.clear()
        self._progress_bytes = 0
        self._progress_at = time.monotonic()
        return progress

    def _end_feeding(self) -> None:
        """Begin no more shards, and let go the threads that wait to."""
        self._stopping = True
        self._rows_flow.set()
        self._limits_changed.set()

    def close(self) -> None:
        """Give up whatever is not published."""
        self._end_feeding()
        self._admission.close()
        self._output.stop.set()
        self._publisher.shutdown(wait=False, cancel_futures=True)
        # One may be at it, and should not make files in a folder that is being removed.
        wait_for([future for _, future in self._publishing if not future.cancelled()], _LAST_PUBLISH)
        unpublished = [shard for shard, future in self._publishing if future.cancelled()]
        for shard in [*self._open.values(), *unpublished]:
            shard.discard()
