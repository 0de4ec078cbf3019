"""Samples on their way through the steps of a pipeline, some at a time; batches that fill on the way.

    submit ─▶ waiting ─▶ crew of threads ─▶ next stretch, or batch ─▶ crew of threads ─▶ done

All of it belongs to the worker's thread, which owns the bodies; threads are given copies of what is in them.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import WrongResult
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32
from any2ds.core.samples import Sample, Samples, free_extension, in_parts, release, taken_extensions
from any2ds.transforms.chain import OF_THE_RUN, Pipeline, Stretch, failed
from any2ds.transforms.contract import BatchTransform
from any2ds.transforms.threads import Budget, Crew, Made, Seat, Task

_QUEUED_BYTES = 32 << 20  # of files that wait for a thread in memory of its own
_QUEUED = 256  # of them for each thread: what small ones take while the worker's thread waits for sockets
_HELD_BACK = 2  # times as many: beyond that no new transfer begins
_HELD_BACK_BYTES = 128 << 20  # of files that wait for their turn
_BATCH_WAIT = 1.0  # seconds that a batch waits to become full while nothing comes

Runner = Callable[[int, Sequence[Sample], Callable[[int], None]], Made]
"""Takes samples, one or a batch, through the stretch of that number: what becomes of each.

Before it decodes anything it says how many bytes that is going to take, and has to wait. Never raises for what is wrong
with a sample.
"""


class NotApart(Exception):
    """Raised by the runner for what may crash, before anything else: it cannot be done there, so it is done here."""


@dataclass(eq=False, slots=True)
class _Way:
    """One row on its way."""

    sample: Sample  # as it was submitted
    buffer: Buffer
    samples: list[Sample]  # what it has become so far, with bodies of the buffer
    apart: bool = False  # it may crash or hang
    made: dict[int, list[Sample]] = field(default_factory=dict)  # place -> what a batch has made of the sample there
    stretch: int = -1  # that it has been through
    open: int = 0  # samples of it that wait for a batch, or are in one


@dataclass(eq=False, slots=True)
class _Batch:
    """What waits to become one."""

    step: BatchTransform
    waiting: deque[tuple[_Way, int]] = field(default_factory=deque)  # with the place of a sample in its way
    size: int = 0  # bytes of these
    since: float = 0.0  # when the first of them came, or the others went
    is_busy: bool = False

    def add(self, way: _Way, place: int) -> None:
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting.append((way, place))
        self.size += way.samples[place].size

    def pick(self, most_bytes: int) -> list[tuple[_Way, int]]:
        """The next ones, at least one, with files of no more than so many bytes in all."""
        picked: list[tuple[_Way, int]] = []
        size = 0
        while self.waiting and len(picked) < self.step.batch_size:
            way, place = self.waiting[0]
            size += way.samples[place].size
            if picked and size > most_bytes:
                break
            picked.append(self.waiting.popleft())
            self.size -= way.samples[place].size
        self.since = time.monotonic()
        return picked


class Transforming:
    """Takes samples through `pipeline`, on `threads` threads."""

    def __init__(
        self,
        pipeline: Pipeline,
        threads: int,
        max_decoded_bytes: int,
        timeout: float,
        has_members: bool,
        ext: str | None = None,
        apart: Runner | None = None,
    ) -> None:
        """`has_members`: whether the format has files beside that of a sample; `ext` is that of all files, if one is.

        `apart` takes those through that may crash or hang, and keeps to the limit of time by itself.
        """
        self.pending = 0  # rows
        self._pipeline, self._timeout = pipeline, timeout
        self._has_members, self._ext = has_members, ext
        self._apart = apart
        self._most_bytes = max_decoded_bytes
        self._budget = Budget(max_decoded_bytes)
        self._crew = Crew(threads, self._budget, timeout, self._work)
        self._waiting: deque[_Way] = deque()
        self._waiting_bytes = 0
        self._ready: deque[tuple[_Way, int]] = deque()  # samples that wait for a thread, with their places in the ways
        self._batches = {
            number: _Batch(step) for number, step in enumerate(pipeline.stretches) if not isinstance(step, Stretch)
        }
        # Beyond so many no new transfer begins; batches must be able to fill, one while the one before is at work.
        self._most = _HELD_BACK * (_QUEUED * threads + sum(batch.step.batch_size for batch in self._batches.values()))
        self._done: deque[_Way] = deque()

    @property
    def signs(self) -> int:
        """Grows with every sign of life."""
        return self._crew.signs

    @property
    def holds_back(self) -> bool:
        """Whether so much is waiting that no new transfer should begin."""
        return self._waiting_bytes > _HELD_BACK_BYTES or self.pending > self._most

    def wants(self, sample: Sample) -> bool:
        """Whether some step is going to look at it."""
        return self._pipeline.wants(sample)

    def submit(self, sample: Sample, buffer: Buffer, apart: bool = False) -> None:
        """To be called with what it `wants`; `buffer` is the one of its body. `apart`: it may crash or hang."""
        self.pending += 1
        self._waiting.append(_Way(sample, buffer, [sample], apart and self._apart is not None))
        self._waiting_bytes += sample.size

    def turn(self, is_ending: bool = False, seconds: float = 0.0) -> Iterator[Samples]:
        """What has become of rows since the last turn, in any order; to be called often.

        `is_ending`: nothing more is going to be submitted, as far as one knows, and batches that are not full have
        nothing to wait for. Waits up to `seconds` for something to happen. Raises what concerns all rows.
        """
        self._give_out(is_ending)
        for task, made in self._crew.take(0.0 if self._done else seconds):
            self._take_back(task, self._too_late(task) if made is None else made)
        self._give_out(is_ending)
        while self._done:
            self.pending -= 1
            yield self._finished(self._done.popleft())

    def close(self) -> None:
        """Give up what is under way."""
        self._crew.close()
        self._waiting.clear()
        self._ready.clear()

    def _give_out(self, is_ending: bool) -> None:
        """Give the threads what they can take."""
        crew = self._crew
        while (self._ready or self._waiting) and (
            crew.queued <= crew.most or (crew.queued < _QUEUED * crew.most and crew.queued_bytes < _QUEUED_BYTES)
        ):
            if self._ready:
                way, place = self._ready.popleft()
                self._put(way.stretch, [way.samples[place]], [(way, place)])
                continue
            way = self._waiting.popleft()
            self._waiting_bytes -= way.sample.size
            self._go_on(way)
        for number, batch in self._batches.items():
            while batch.waiting and not batch.is_busy and self._is_ripe(batch, is_ending):
                batch.is_busy = True
                picked = batch.pick(self._most_bytes)
                self._put(number, [way.samples[place] for way, place in picked], picked)

    def _is_ripe(self, batch: _Batch, is_ending: bool) -> bool:
        if len(batch.waiting) >= batch.step.batch_size or batch.size >= self._most_bytes:
            return True
        if self._crew.queued or self._waiting or self._ready:  # of which some may come here
            return False
        is_short = batch.waiting[0][0].buffer.full  # of memory: nothing new arrives before something has gone
        return is_ending or is_short or time.monotonic() - batch.since > _BATCH_WAIT

    def _put(self, stretch: int, samples: Sequence[Sample], of: list[tuple[_Way, int]]) -> None:
        """Have samples done by a thread, which may read what it is given for as long as it likes."""
        apart = any(way.apart for way, _ in of)
        self._crew.put(Task(stretch, [replace(sample, body=_copied(sample)) for sample in samples], of, apart))

    def _go_on(self, way: _Way) -> None:
        """To the next stretch that has anything to do with it, or to the end."""
        stretches = self._pipeline.stretches
        while (number := way.stretch + 1) < len(stretches):
            way.stretch = number
            stretch = stretches[number]
            places = [place for place, sample in enumerate(way.samples) if sample.body is not None]
            way.open = len(places)
            if (batch := self._batches.get(number)) is not None and places:
                for place in places:
                    batch.add(way, place)
                    _make_room(way.samples[place], way.buffer)
                return
            if isinstance(stretch, Stretch) and (
                taken := [place for place in places if stretch.takes(way.samples[place])]
            ):
                way.open = len(taken)
                self._ready.extend((way, place) for place in taken)
                for place in places[1:]:
                    _make_room(way.samples[place], way.buffer)
                return
        self._done.append(way)

    def _take_back(self, task: Task, made: Made) -> None:
        of: list[tuple[_Way, int]] = task.of
        if (batch := self._batches.get(task.stretch)) is not None:
            batch.is_busy = False
        for (way, place), given, samples in zip(of, task.samples, made, strict=True):
            way.made[place] = self._owned(way, way.samples[place], given, samples)
        for way in dict.fromkeys(way for way, _ in of):
            if len(way.made) == way.open:
                way.samples, way.made = _laid_out(way), {}
                self._go_on(way)

    def _owned(self, way: _Way, before: Sample, given: Sample, made: list[Sample]) -> list[Sample]:
        """What a thread has made of a sample, with bodies that the buffer accounts for."""
        owned, is_kept = [], False
        for sample in made:
            if sample.body is not None:
                if sample.body is given.body and not is_kept:
                    is_kept = True
                    sample = replace(sample, body=before.body)
                else:
                    sample = replace(sample, body=way.buffer.hold(sample.data))
            owned.append(sample)
        if not is_kept:
            release((before,))
        return owned

    def _too_late(self, task: Task) -> Made:
        step = self._pipeline.stretches[task.stretch]
        if hasattr(step, "renew"):
            step.renew()
        return [[sample.failed("transform_timeout", f"after {self._timeout:g} s")] for sample in task.samples]

    def _finished(self, way: _Way) -> Samples:
        """Its samples as they are to be written."""
        samples = way.samples or [way.sample.filtered("no sample is left of it")]
        return [sample if sample.body is None else self._stored(way, sample) for sample in samples]

    def _stored(self, way: _Way, sample: Sample) -> Sample:
        # As it may be called in the end. A further file .txt or .json is never called as the file of the sample.
        ext = free_extension(sample.ext, taken_extensions(True, True)) if self._ext is None else self._ext
        # Readers take `a.PNG` and `a.png` for one, and so do some file systems.
        if self._has_members and any(further.lower() == ext.lower() for further in sample.members):
            release((sample,))
            words = f"a step adds a file .{ext}, as the file of the sample is called itself: give it another extension"
            return sample.failed("transform_error", words)
        if sample.body is not way.sample.body:
            sample = sample.with_fields(**{STORED_BYTES.name: sample.size, STORED_CRC32.name: _crc32(sample)})
        if self._ext is not None and sample.ext != self._ext:
            sample = replace(sample, ext=self._ext, fields={**sample.fields, "ext": self._ext})
        if sample.members:
            held = {ext: way.buffer.hold(data) for ext, data in sample.members.items()}
            return replace(sample, members={}, beside=held)
        return sample

    # --- in the threads ---

    def _work(self, task: Task, seat: Seat) -> Made:
        if task.apart:
            try:
                return self._done_apart(task)
            except NotApart:
                self._budget.change(task.memory, 0)  # it may have been given some before
                task.memory, task.apart = 0, False
        stretch = self._pipeline.stretches[task.stretch]
        seat.begin()  # whoever says what a file needs may have to read all of it
        need = memory_for(stretch, task.samples)
        self._crew.pause(seat)
        task.memory = self._budget.take(need)
        prepare(stretch, seat)
        return through(stretch, task.samples, seat.begin)

    def _done_apart(self, task: Task) -> Made:
        def take(memory: int) -> None:
            self._budget.change(task.memory, 0)
            task.memory = 0
            task.memory = self._budget.take(memory)

        assert self._apart is not None
        return self._apart(task.stretch, task.samples, take)


def _crc32(sample: Sample) -> int:
    found = 0
    for piece in sample.body.chunks() if sample.body is not None else ():
        found = zlib.crc32(piece, found)
    return found


def memory_for(stretch: Stretch | BatchTransform, samples: Sequence[Sample]) -> int:
    """Bytes that it is going to take for these, in one thread."""
    if isinstance(stretch, Stretch):
        return max(map(stretch.memory, samples))
    return sum(sample.size for sample in samples)


def through(stretch: Stretch | BatchTransform, samples: Sequence[Sample], begin: Callable[[], None]) -> Made:
    """What becomes of each of `samples` in it; `begin` is called before each call of a step that takes several."""
    if isinstance(stretch, Stretch):
        return [_begun(stretch, sample, begin) for sample in samples]
    return batched(stretch, samples, begin)


def _begun(stretch: Stretch, sample: Sample, begin: Callable[[], None]) -> list[Sample]:
    begin()
    return stretch(sample)


def prepare(stretch: Stretch | BatchTransform, seat: Seat | None = None) -> None:
    """Steps of the user's own may have a model to load; `seat` is told which."""
    for step in stretch.steps if isinstance(stretch, Stretch) else (stretch,):
        if hasattr(step, "prepare"):
            if seat is not None:
                seat.step = step.name
                seat.begin()
            step.prepare()
    if seat is not None:
        seat.step = ""


def batched(
    step: BatchTransform, samples: Sequence[Sample], begin: Callable[[], None], wrong: WrongResult | None = None
) -> Made:
    """What `step` makes of each; if it raises, it is asked for halves of them, down to a single one, so that one bad
    file is one failure. `begin` is called before each call.

    `wrong` is what it has returned for all of them, which says more than what it returns for one alone.
    """
    begin()
    try:
        found = step(samples)
    except OF_THE_RUN:
        raise
    except BaseException as error:
        if isinstance(error, WrongResult):
            wrong = wrong or error
        if len(samples) == 1:
            return [[failed(samples[0], wrong if wrong is not None and isinstance(error, WrongResult) else error)]]
        half = len(samples) // 2
        return [*batched(step, samples[:half], begin, wrong), *batched(step, samples[half:], begin, wrong)]
    return [[one] if isinstance(one, Sample) else in_parts(one) for one in found]


def _copied(sample: Sample) -> StoredBody:
    """Its file in memory, which stays as it is whatever becomes of the body."""
    body = sample.body
    assert isinstance(body, Body)
    return StoredBody.of(body.joined())


def _make_room(sample: Sample, buffer: Buffer) -> None:
    """It is going to wait, on disk if memory is short."""
    if sample.body is not None and buffer.used > buffer.half:
        sample.body.spill()


def _laid_out(way: _Way) -> list[Sample]:
    """Its samples with those in their places that a step has made of them."""
    found = [made for place, sample in enumerate(way.samples) for made in way.made.get(place, [sample])]
    return _numbered(found)


def _numbered(samples: list[Sample]) -> list[Sample]:
    """With parts, if there are several or could have been."""
    if len(samples) == 1 and samples[0].part is None:
        return samples
    return in_parts(samples)
