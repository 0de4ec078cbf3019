"""Beam itself, in a child process of the run: there its pipelines, its threads and whatever it says can be ended.

Local runners cannot cancel a pipeline, and hang for ever when a process of theirs dies. And what Beam does to a process
on the way, such as to set its logging up, is not done to that of the user.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineState, create_runner

from any2ds.core import suggestions
from any2ds.core.errors import OptionError, error_text
from any2ds.core.processes.resources import cores
from any2ds.distributors._beam_options import dask_cluster_flag, full_name, has_flag, names_dask_cluster
from any2ds.distributors._beam_protocol import CANCEL, Asked, Pipeline, State, Terms
from any2ds.distributors._task import Task

log = logging.getLogger(__name__)

_MANY = 64  # tasks at a time where it is the cluster that finds machines for them
_PATIENCE = 60.0  # seconds of silence, where nobody else notices that a process is gone
_EMBEDDED = "embed"  # the job endpoint of PortableRunner that is in this process
_LOCAL = ("BundleBasedDirectRunner", "PrismRunner")  # further runners that nobody but this machine knows of
_LOST = "Worker subprocess exited"  # what the thread raises that waits for a process of multi_processing


class Runs:
    """Answers Asked with Terms, or the OptionError that it makes; begins a Pipeline; STATE; CANCEL."""

    def __init__(self) -> None:
        if hasattr(os, "setsid"):
            os.setsid()  # so that all that Beam starts can be ended at once
        self._run: _Run | None = None

    def __call__(self, question: Asked | Pipeline | str) -> Any:
        if isinstance(question, Asked):
            logging.getLogger("any2ds").setLevel(question.log_level)
            try:
                return _Wanted(question).terms
            except OptionError as error:
                return error
            except Exception as error:  # whatever a runner of somebody else's says
                return OptionError(f"beam_options: {error_text(error)}")
        if isinstance(question, Pipeline):
            self._run = _Run(question)
            return None
        assert self._run is not None
        if question == CANCEL:
            return self._run.cancel()
        return self._run.state


class _Wanted:
    """The options of PipelineOptions, with defaults that suit tasks of minutes."""

    def __init__(self, asked: Asked, tasks: int = 0) -> None:
        """Raises OptionError."""
        flags = [*asked.flags]
        runner = _options(flags).view_as(StandardOptions).runner or StandardOptions.DEFAULT_RUNNER
        flags.append(f"--runner={full_name(runner)}")
        try:
            self.runner = create_runner(_options(flags).view_as(StandardOptions).runner)
        except Exception as error:  # ValueError, ImportError, AttributeError, and what imports raise
            raise OptionError(f"beam_options: {error_text(error)}") from error
        self.is_dask = type(self.runner).__name__ == "DaskRunner"
        options = _options(flags)
        is_embedded = type(self.runner) is PortableRunner and (
            options.view_as(PortableOptions).job_endpoint == _EMBEDDED
        )
        is_direct = isinstance(self.runner, FnApiRunner) or is_embedded
        if not isinstance(self.runner, PortableRunner) or is_embedded:
            _check(flags)  # job servers have further options, which they are asked for
        is_local = is_direct or type(self.runner).__name__ in _LOCAL
        slots = asked.slots or (cores() if is_local else _MANY)
        if is_direct:
            slots = self._direct(flags, options, asked.slots)
        elif self.is_dask:
            slots = asked.slots or cores()
            if not names_dask_cluster(flags):
                is_local = True
                if tasks:
                    flags.append(dask_cluster_flag(slots))
            if tasks and not has_flag(flags, "dask_npartitions", "dask_partition_size"):
                flags.append(f"--dask_npartitions={tasks}")
        elif isinstance(self.runner, DataflowRunner) and not has_flag(flags, "number_of_worker_harness_threads"):
            flags.append("--number_of_worker_harness_threads=1")
        self.options = _options(flags)
        self.is_multiprocess = self.options.view_as(DirectOptions).direct_running_mode == "multi_processing"
        self.terms = Terms(slots, is_local, _PATIENCE if is_direct else 0.0)
        try:
            beam.Pipeline(self.runner, self.options)
        except ValueError as error:  # such as that the project is missing
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise OptionError(f"beam_options: {' '.join(lines[1:] or lines)}") from error

    @staticmethod
    def _direct(flags: list[str], options: PipelineOptions, slots: int | None) -> int:
        """How many tasks run at a time; the worker processes of tasks are what takes cores, so that threads do here."""
        if not has_flag(flags, "direct_running_mode"):
            flags.append("--direct_running_mode=multi_threading")
        elif options.view_as(DirectOptions).direct_running_mode == "in_memory":
            return slots or 1
        if not has_flag(flags, "direct_num_workers"):
            flags.append(f"--direct_num_workers={slots or cores()}")
        return slots or _options(flags).view_as(DirectOptions).direct_num_workers or cores()


def _options(flags: Sequence[str]) -> PipelineOptions:
    """Raises OptionError for a value that cannot be."""
    options = PipelineOptions(list(flags))
    with _no_exit():
        for kind in (StandardOptions, DirectOptions, PortableOptions):
            options.view_as(kind)
    return options


class _no_exit:  # noqa: N801 - used as a function
    """argparse ends the process; here it raises OptionError instead."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SystemExit):
            cause = error.__context__
            raise OptionError(f"beam_options: {cause or 'Beam would end here'}") from error


def _check(flags: Sequence[str]) -> None:
    """Raises OptionError for what Beam does not know, which PipelineOptions passes over, or cannot be."""

    def look(parser: Any) -> None:
        def refuse(message: str) -> NoReturn:
            raise OptionError(f"beam_options: {message}")

        parser.error = refuse
        unknown = parser.parse_known_args(list(flags))[1]
        if unknown:
            raise OptionError(f"beam_options: Beam knows no {', '.join(unknown)}: {_hint(unknown[0], parser)}")

    with _no_exit():
        PipelineOptions(list(flags)).get_all_options(add_extra_args_fn=look)


def _hint(flag: str, parser: Any) -> str:
    import re

    known = re.findall(r"--\w+", parser.format_usage())
    near = suggestions.for_name(flag.partition("=")[0], known)
    return near or "its options are in apache_beam/options/pipeline_options.py"


def graph(wanted: _Wanted, numbers: Sequence[int], task: Task) -> beam.Pipeline:
    """The pipeline, which holds no more of tasks than their numbers: services limit how large it may be."""
    pipeline = beam.Pipeline(wanted.runner, wanted.options)
    tasks = pipeline | "Tasks" >> beam.Create(list(numbers), reshuffle=False)
    if not wanted.is_dask:  # it has partitions instead
        tasks = tasks | "One by one" >> beam.Reshuffle()
    _ = tasks | "Perform" >> beam.ParDo(_Perform(task))
    return pipeline


class _Perform(beam.DoFn):  # type: ignore[misc]
    def __init__(self, task: Task) -> None:
        """`task` is one of them."""
        self._task = task

    def process(self, number: int) -> None:
        replace(self._task, number=number)()


class _Run:
    """A pipeline, which is waited for in a thread of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._message = ""
        self._result: Any = None
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._has_ended = threading.Event()
        threading.excepthook = self._thread_has_raised
        threading.Thread(target=self._perform, name="any2ds-pipeline", daemon=True).start()

    @property
    def state(self) -> State:
        return State(self._has_ended.is_set(), self._message)

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            result = self._result
        if result is not None:
            _quietly(result.cancel)

    def _perform(self) -> None:
        result: Any = None
        try:
            wanted = _Wanted(self._pipeline.asked, len(self._pipeline.numbers))
            if wanted.is_multiprocess:  # its processes find modules where this one does
                os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
            result = graph(wanted, self._pipeline.numbers, self._pipeline.task).run()
            with self._lock:
                self._result = result
            if self._is_cancelled:
                result.cancel()
            state = result.wait_until_finish()
            if state not in (PipelineState.DONE, None):
                self._message = self._message or f"the pipeline has ended as {state}"
        except BaseException as error:
            log.debug("the pipeline has failed: %s", traceback.format_exc())
            self._message = self._message or _message(error)
        finally:
            if hasattr(result, "client"):  # of Dask, which leaves it open
                _quietly(result.client.close)
            self._has_ended.set()

    def _thread_has_raised(self, args: Any) -> None:
        """A process of the runner has died: the pipeline never ends then."""
        if _LOST in str(args.exc_value):
            self._message = self._message or f"a process of Beam has died ({error_text(args.exc_value)})"
            self._has_ended.set()
        else:
            threading.__excepthook__(args)


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:  # the run is over for us, whatever a service says
        log.info("Beam: %s", error_text(error))


def _message(error: BaseException) -> str:
    """The message of the innermost exception: runners put tracebacks of their workers into their own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if ": " in line and line.split(":")[0].replace(".", "").isidentifier()]
    return (named[-1].partition(" [while running")[0] if named else error_text(error)) or type(error).__name__
