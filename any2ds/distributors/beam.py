"""Runs workers as the elements of Beam pipelines, on whatever runner `beam_options` ask for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, error_text
from any2ds.core.processes.resources import cores
from any2ds.distributors._beam_options import (
    DIRECT_RUNNER,
    DebugOptions,
    DirectOptions,
    PipelineOptions,
    PipelineState,
    StandardOptions,
    beam,
    pipeline_options,
    refusals,
)
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._task import Task

_MANY = 64  # tasks at a time where it is the cluster that finds machines for them


class BeamDistributor(ClusterDistributor):
    """`processes_count` is the number of tasks of a pipeline."""

    slots, machines = 0, 0

    def __init__(self, options: RunOptions) -> None:
        """Raises OptionError for `beam_options` of which there can be no pipeline."""
        super().__init__(options)
        self.task_limit = math.inf  # a pipeline for each task would cost more than tasks that wait
        self.beam_options = pipeline_options(options.beam_options or ())
        is_direct = self.beam_options.view_as(StandardOptions).runner == DIRECT_RUNNER
        if is_direct:
            # Each task has a worker process anyway; and the runner would wait for ever for one of its own that died.
            direct = self.beam_options.view_as(DirectOptions)
            direct.direct_running_mode = "multi_threading"
            direct.direct_num_workers = options.processes_count or cores()
        self.slots = options.processes_count or (cores() if is_direct else _MANY)
        self.machines = 1 if is_direct else self.slots  # services do not say how many they have
        debug = self.beam_options.view_as(DebugOptions)
        debug.number_of_worker_harness_threads = debug.number_of_worker_harness_threads or 1
        self._results: list[Any] = []
        with refusals():  # what the runner itself checks, such as that the project is missing
            beam.Pipeline(options=self.beam_options)

    @staticmethod
    def check(options: RunOptions) -> None:
        """As the constructor."""
        BeamDistributor(options)

    def run(self, tasks: Sequence[Task]) -> None:
        try:
            result = graph(self.beam_options, tasks).run()
            self._results.append(result)
            state = result.wait_until_finish()
        except Exception as error:
            raise RunError(_innermost(error)) from error
        if state not in (PipelineState.DONE, None):
            raise RunError(f"the pipeline has ended as {state}")

    def cancel(self) -> None:
        for result in self._results:
            with contextlib.suppress(Exception):  # a local runner cannot, and its tasks end by themselves
                result.cancel()


def graph(options: PipelineOptions, tasks: Sequence[Task]) -> beam.Pipeline:
    """The pipeline, which holds of each task no more than what it differs in: services limit how large it may be."""
    pipeline = beam.Pipeline(options=options)
    numbers = pipeline | "Tasks" >> beam.Create([(task.number, task.digest) for task in tasks], reshuffle=False)
    _ = numbers | "One by one" >> beam.Reshuffle() | "Perform" >> beam.ParDo(_Perform(tasks[0]))
    return pipeline


class _Perform(beam.DoFn):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        """`task` is one of them."""
        self._task = task

    def process(self, element: tuple[int, str]) -> None:
        number, digest = element
        replace(self._task, number=number, digest=digest)()


def _innermost(error: Exception) -> str:
    """The message of the innermost exception: runners put tracebacks of their workers into their own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if ": " in line and line.split(":")[0].replace(".", "").isidentifier()]
    return named[-1].partition(" [while running")[0] if named else error_text(error)


PART = BeamDistributor
