"""Samples on their way through the steps of a pipeline, some at a time, and batches that fill on the way.

    submit ─▶ waiting ─▶ threads ─▶ next group, or batch ─▶ threads ─▶ done

All of it belongs to the worker's thread, which owns the bodies; threads are given copies of what is in them.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from any2ds.config.media import TransformLimits
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32
from any2ds.core.samples import Sample, Samples, free_extension, in_parts, release, taken_extensions
from any2ds.transforms.chain import BatchGroup, Made, Pipeline
from any2ds.transforms.contract import BatchTransform
from any2ds.transforms.threads import Budget, Task, ThreadPool, WorkerThread

_QUEUED_BYTES = 32 << 20  # of files that wait for a thread in memory of its own
_QUEUED = 256  # of them for each thread: what small ones take while the worker's thread waits for sockets
_HELD_BACK = 2  # times as many: beyond that no new transfer begins, as one batch fills while another is at work
_SUPPLY = 8  # the part of them that is to wait, so that steps do not wait for rows
_HELD_BACK_BYTES = 128 << 20  # of files that wait for their turn
_BATCH_WAIT = 1.0  # seconds that a batch waits to become full while nothing comes

Runner = Callable[[int, Sequence[Sample], Callable[[int], None]], Made]
"""Takes samples, one or a batch, through the group of that number: what becomes of each.

Before it decodes anything it calls the function with the bytes that decoding is going to take, which may block.
It never raises for what is wrong with a sample.
"""


class NotIsolated(Exception):
    """Raised by the isolated runner before anything else: it cannot run these samples, so a thread does."""


@dataclass(eq=False, slots=True)
class _RowState:
    """A row in the pipeline."""

    sample: Sample  # as it was submitted
    buffer: Buffer
    samples: list[Sample]  # what it has become so far, with bodies of the buffer
    isolated: bool = False  # it may crash or hang
    made: dict[int, list[Sample]] = field(default_factory=dict)  # place -> what a batch has made of the sample there
    group: int = -1  # that it has been through
    open: int = 0  # samples of it that wait for a batch, or are in one


@dataclass(eq=False, slots=True)
class _Batch:
    """The samples that wait for a step that takes several."""

    step: BatchTransform
    waiting: deque[tuple[_RowState, int]] = field(default_factory=deque)  # with the place of a sample in its way
    size: int = 0  # bytes of these
    since: float = 0.0  # when the first of them came, or the others went
    is_busy: bool = False

    def add(self, state: _RowState, place: int) -> None:
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting.append((state, place))
        self.size += state.samples[place].size

    def pick(self, most_bytes: int) -> list[tuple[_RowState, int]]:
        """The next ones, at least one, with files of no more than so many bytes in all."""
        picked: list[tuple[_RowState, int]] = []
        size = 0
        while self.waiting and len(picked) < self.step.batch_size:
            state, place = self.waiting[0]
            size += state.samples[place].size
            if picked and size > most_bytes:
                break
            picked.append(self.waiting.popleft())
            self.size -= state.samples[place].size
        self.since = time.monotonic()
        return picked


class PipelineRunner:
    """Takes samples through `pipeline`, in threads."""

    def __init__(  # the last two, where steps run, by keyword
        self,
        pipeline: Pipeline,
        limits: TransformLimits,
        has_members: bool,
        ext: str | None = None,
        *,
        isolated: Runner | None = None,
        threads: Callable[[], int] | None = None,
    ) -> None:
        """`has_members`: whether the format has extra files for a sample; `ext` is that of all files, if one is.

        `isolated` runs the samples that may crash or hang, and keeps to the limit of time by itself. `threads` tells
        how many threads there are to be, at any time; without it they are those of `limits`.
        """
        self.pending = 0  # rows
        self._pipeline, self._timeout = pipeline, limits.timeout
        self._has_members, self._ext = has_members, ext
        self._isolated = isolated
        self._most_bytes = limits.max_decoded_bytes
        self._budget = Budget(limits.max_decoded_bytes)
        self._threads = threads or (lambda: limits.threads)
        self._pool = ThreadPool(self._threads(), self._budget, limits.timeout, self._work)
        self._waiting: deque[_RowState] = deque()
        self._waiting_bytes = 0
        self._ready: deque[tuple[_RowState, int]] = deque()  # samples that wait for a thread, with their places
        self._batches = {
            number: _Batch(group.step) for number, group in enumerate(pipeline.groups) if isinstance(group, BatchGroup)
        }
        self._done: deque[_RowState] = deque()

    @property
    def holds_back(self) -> bool:
        """Whether too much is waiting for new transfers to begin."""
        return self._waiting_bytes > _HELD_BACK_BYTES or self.pending > _HELD_BACK * self.enough

    @property
    def is_supplied(self) -> bool:
        """Whether rows wait for the steps, and not steps for rows."""
        return self.pending > self.enough // _SUPPLY

    @property
    def enough(self) -> int:
        """Rows that keep the threads busy, and fill batches."""
        return _QUEUED * self._pool.most + sum(batch.step.batch_size for batch in self._batches.values())

    def wants(self, sample: Sample) -> bool:
        """Whether some step is going to look at it."""
        return self._pipeline.wants(sample)

    def submit(self, sample: Sample, buffer: Buffer, isolated: bool = False) -> None:
        """To be called with what it `wants`; `buffer` is the one of its body. `isolated`: it may crash or hang."""
        self.pending += 1
        self._waiting.append(_RowState(sample, buffer, [sample], isolated and self._isolated is not None))
        self._waiting_bytes += sample.size

    def turn(self, is_ending: bool = False, seconds: float = 0.0) -> Iterator[Samples]:
        """The rows that were finished since the last call, in any order; to be called often.

        `is_ending`: nothing more is going to be submitted, and batches that are not full do not wait. Waits up to
        `seconds` for a result. Raises errors that concern all rows.
        """
        self._pool.resize(self._threads())
        self._give_out(is_ending)
        for task, made in self._pool.take(0.0 if self._done else seconds):
            self._collect(task, self._too_late(task) if made is None else made)
        self._give_out(is_ending)
        while self._done:
            self.pending -= 1
            yield self._finished(self._done.popleft())

    def close(self) -> None:
        """Abandon all rows."""
        self._pool.close()
        self._waiting.clear()
        self._ready.clear()

    def _give_out(self, is_ending: bool) -> None:
        """Give samples and full batches to the threads, as many as they can take."""
        pool = self._pool
        while (self._ready or self._waiting) and (
            pool.queued <= pool.most or (pool.queued < _QUEUED * pool.most and pool.queued_bytes < _QUEUED_BYTES)
        ):
            if self._ready:
                state, place = self._ready.popleft()
                self._put(state.group, [state.samples[place]], [(state, place)])
                continue
            state = self._waiting.popleft()
            self._waiting_bytes -= state.sample.size
            self._advance(state)
        for number, batch in self._batches.items():
            while batch.waiting and not batch.is_busy and self._is_ripe(batch, is_ending):
                batch.is_busy = True
                picked = batch.pick(self._most_bytes)
                self._put(number, [state.samples[place] for state, place in picked], picked)

    def _is_ripe(self, batch: _Batch, is_ending: bool) -> bool:
        if len(batch.waiting) >= batch.step.batch_size or batch.size >= self._most_bytes:
            return True
        if self._pool.queued or self._waiting or self._ready:  # of which some may come here
            return False
        is_short = batch.waiting[0][0].buffer.full  # of memory: nothing new arrives before something has gone
        return is_ending or is_short or time.monotonic() - batch.since > _BATCH_WAIT

    def _put(self, group: int, samples: Sequence[Sample], of: list[tuple[_RowState, int]]) -> None:
        """Give copies of samples to a thread."""
        isolated = any(state.isolated for state, _ in of)
        self._pool.put(Task(group, [replace(sample, body=_copied(sample)) for sample in samples], of, isolated))

    def _advance(self, state: _RowState) -> None:
        """To the next group that has anything to do with it, or to the end."""
        while state.group + 1 < len(self._pipeline.groups):
            state.group += 1
            group, batch = self._pipeline.groups[state.group], self._batches.get(state.group)
            places = [place for place, one in enumerate(state.samples) if one.body is not None and group.wants(one)]
            state.open = len(places)
            for number, place in enumerate(places):
                if batch is not None:
                    batch.add(state, place)
                else:
                    self._ready.append((state, place))
                body = state.samples[place].body
                is_waiting = batch is not None or number > 0
                if is_waiting and body is not None and state.buffer.used > state.buffer.half:
                    body.spill()
            if places:
                return
        self._done.append(state)

    def _collect(self, task: Task, made: Made) -> None:
        of: list[tuple[_RowState, int]] = task.of
        if (batch := self._batches.get(task.group)) is not None:
            batch.is_busy = False
        for (state, place), given, samples in zip(of, task.samples, made, strict=True):
            state.made[place] = self._owned(state, state.samples[place], given, samples)
        for state in dict.fromkeys(state for state, _ in of):
            if len(state.made) == state.open:
                samples = [made for place, one in enumerate(state.samples) for made in state.made.get(place, [one])]
                is_alone = len(samples) == 1 and samples[0].part is None
                state.samples, state.made = samples if is_alone else in_parts(samples), {}
                self._advance(state)

    def _owned(self, state: _RowState, before: Sample, given: Sample, made: list[Sample]) -> list[Sample]:
        """The samples that a thread has made of one, with bodies that the buffer accounts for."""
        owned, is_kept = [], False
        for sample in made:
            if sample.body is not None:
                if sample.body is given.body and not is_kept:
                    is_kept = True
                    sample = replace(sample, body=before.body)
                else:
                    sample = replace(sample, body=state.buffer.hold(sample.data))
            owned.append(sample)
        if not is_kept:
            release((before,))
        return owned

    def _too_late(self, task: Task) -> Made:
        group = self._pipeline.groups[task.group]
        if isinstance(group, BatchGroup) and hasattr(group.step, "renew"):
            group.step.renew()
        return [[sample.failed("transform_timeout", f"after {self._timeout:g} s")] for sample in task.samples]

    def _finished(self, state: _RowState) -> Samples:
        """Its samples as they are to be written."""
        samples = state.samples or [state.sample.filtered("no sample is left of it")]
        return [sample if sample.body is None else self._stored(state, sample) for sample in samples]

    def _stored(self, state: _RowState, sample: Sample) -> Sample:
        # As it may be called in the end. An extra file .txt or .json never has the extension of the sample.
        ext = free_extension(sample.ext, taken_extensions(True, True)) if self._ext is None else self._ext
        # Readers take `a.PNG` and `a.png` for one, and so do some file systems.
        if self._has_members and any(further.lower() == ext.lower() for further in sample.members):
            release((sample,))
            message = f"a step adds a file .{ext}, which is the extension of the sample's own file: give it another one"
            return sample.failed("transform_error", message)
        if sample.body is not state.sample.body:
            sample = sample.with_fields(**{STORED_BYTES.name: sample.size, STORED_CRC32.name: _crc32(sample)})
        if self._ext is not None and sample.ext != self._ext:
            sample = replace(sample, ext=self._ext, fields={**sample.fields, "ext": self._ext})
        if sample.members:
            held = {ext: state.buffer.hold(data) for ext, data in sample.members.items()}
            return replace(sample, members={}, extra_files=held)
        return sample

    # --- in the threads ---

    def _work(self, task: Task, worker_thread: WorkerThread) -> Made:
        if task.isolated:
            try:
                return self._run_isolated(task)
            except NotIsolated:
                self._budget.change(task.memory, 0)  # it may have been given some before
                task.memory, task.isolated = 0, False
        group = self._pipeline.groups[task.group]
        worker_thread.begin()  # to know what a file needs a step may have to read all of it
        plan = group.plan(task.samples)
        self._pool.pause(worker_thread)
        task.memory = self._budget.take(plan.memory)
        for step in group.steps:
            if hasattr(step, "prepare"):  # steps of the user's own may have a model to load
                worker_thread.step = step.name
                worker_thread.begin()
                step.prepare()
        worker_thread.step = ""
        return plan.run(worker_thread.begin)

    def _run_isolated(self, task: Task) -> Made:
        def take(memory: int) -> None:
            self._budget.change(task.memory, 0)
            task.memory = 0
            task.memory = self._budget.take(memory)

        assert self._isolated is not None
        return self._isolated(task.group, task.samples, take)


def _crc32(sample: Sample) -> int:
    found = 0
    for piece in sample.body.chunks() if sample.body is not None else ():
        found = zlib.crc32(piece, found)
    return found


def _copied(sample: Sample) -> StoredBody:
    """Its file in memory, which stays as it is whatever becomes of the body."""
    body = sample.body
    assert isinstance(body, Body)
    return StoredBody.of(body.joined())
