"""Steps in child processes, which may crash, hang or take all memory over a file without anything else being lost."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from any2ds.config.media import MediaOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.processes.child_process import ChildEnded
from any2ds.core.processes.pool import Children, NotStarted
from any2ds.core.processes.resources import end_first_when_memory_is_short
from any2ds.core.samples import Sample
from any2ds.transforms.chain import GroupPlan, Pipeline, last_line
from any2ds.transforms.pipeline import NotIsolated

log = logging.getLogger(__name__)

_LONGEST_START = 600.0  # seconds until a child has made its steps; models may come over a network
_MOST_FAILURES = 3  # to start a child, after which it is not tried any more
_MOST_LATE = 2  # samples of a batch that may take too long each by itself before the others are not tried any more
_GO_ON = None  # sent to a child when there is memory for its samples

_Packed = tuple[Sample, bytes | int | None]
"""A sample without its body, and that: bytes, or whose of the samples it was among those that were given."""


class Isolation:
    """A `pipeline.Runner` in child processes."""

    def __init__(self, media: MediaOptions, timeout: float) -> None:
        """`timeout`: seconds for one file, or one batch; 0 for no limit."""
        self._timeout = timeout
        self._children: Children[Any, Any] = Children(partial(_new_steps, media), _LONGEST_START)
        self._failures = 0  # to start a child, one after the other

    def __call__(self, number: int, samples: Sequence[Sample], begin: Callable[[int], None]) -> list[list[Sample]]:
        if self._failures >= _MOST_FAILURES:
            raise NotIsolated
        try:
            child, memory = self._children.ask((number, [_packed(sample, ()) for sample in samples]), self._timeout)
        except ChildEnded as error:
            begin(0)
            return self._after(error, number, samples)
        except NotStarted as error:
            self._failures += 1
            log.info("cannot start a process for files that may crash: %s", error)
            raise NotIsolated from error
        except Exception as error:  # it cannot be pickled
            raise NotIsolated from error
        self._failures = 0
        try:
            begin(memory)
            answer = child.ask(_GO_ON, self._timeout)
        except ChildEnded as error:
            return self._after(error, number, samples)
        finally:
            self._children.give_back(child)
        made = pickle.loads(answer)
        if isinstance(made, Exception):
            raise made
        return [[_unpacked(one, samples) for one in ones] for ones in made]

    def _after(self, error: ChildEnded, number: int, samples: Sequence[Sample]) -> list[list[Sample]]:
        """The only one is to blame. Of several each is tried by itself, so that the one to blame shows."""
        if len(samples) == 1:
            return [[self._failed(samples[0], error)]]
        made: list[list[Sample]] = []
        late = 0
        for sample in samples:
            if late >= _MOST_LATE:
                made.append([self._failed(sample, error)])
                continue
            try:
                found = self(number, [sample], lambda memory: None)
            except NotIsolated:  # one of them has ended a process, and is not to end this one
                found = [[self._failed(sample, error)]]
            failure = found[0][0].failure if found[0] else None
            late += failure is not None and failure.code == "transform_timeout"
            made += found
        return made

    def _failed(self, sample: Sample, error: ChildEnded) -> Sample:
        if error.late:
            return sample.failed("transform_timeout", f"after {self._timeout:g} s")
        return sample.failed("transform_crash", f"its process {error}")

    def close(self) -> None:
        """End all children, whatever they are at."""
        self._children.close()


def _new_steps(media: MediaOptions) -> _Steps:
    """Called in the child."""
    end_first_when_memory_is_short()
    pipeline = Pipeline(media)
    for group in pipeline.groups:
        for step in group.steps:
            if hasattr(step, "prepare"):
                step.prepare()
    return _Steps(pipeline)


class _Steps:
    """Answers samples with the memory that they are going to take, and the go-ahead with what became of them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._planned: tuple[list[Sample], GroupPlan] | None = None

    def __call__(self, asked: tuple[int, list[_Packed]] | None) -> int | bytes:
        if asked is not None:
            number, packed = asked
            samples = [_unpacked(one, ()) for one in packed]
            plan = self._pipeline.groups[number].plan(samples)
            self._planned = samples, plan
            return plan.memory
        assert self._planned is not None  # the go-ahead follows the samples
        (samples, plan), self._planned = self._planned, None
        try:
            made = plan.run(lambda: None)
        except Exception as error:  # of no sample's
            return _pickled(error)
        try:
            return _pickled([[_packed(one, samples) for one in ones] for ones in made])
        except Exception as error:  # a step has put something into a sample that cannot be pickled
            message = f"its result cannot be pickled: {last_line(error)}"
            return _pickled([[_packed(one.failed("transform_error", message), ())] for one in samples])


def _packed(sample: Sample, given: Sequence[Sample]) -> _Packed:
    body = sample.body
    if body is None:
        return sample, None
    whose = next((place for place, one in enumerate(given) if one.body is body), None)
    return replace(sample, body=None), body.read() if whose is None else whose


def _unpacked(packed: _Packed, given: Sequence[Sample]) -> Sample:
    sample, body = packed
    if body is None:
        return sample
    return replace(sample, body=given[body].body if isinstance(body, int) else StoredBody.of(body))


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
