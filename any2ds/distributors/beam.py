"""Runs workers as the elements of Beam pipelines, on whatever runner `beam_options` ask for."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, UsageError, error_text
from any2ds.core.processes import quieting
from any2ds.core.processes.child_process import Answering, ChildEnded
from any2ds.core.processes.pool import Children, NotStarted
from any2ds.distributors import _process
from any2ds.distributors._beam_protocol import CANCEL, STATE, Asked, Pipeline, State, Terms
from any2ds.distributors._engine import EngineDistributor, ThreadBatch
from any2ds.distributors._task import Task

log = logging.getLogger(__name__)

if find_spec("apache_beam") is None:  # which only the child process imports
    raise ModuleNotFoundError("No module named 'apache_beam'", name="apache_beam")

_LONGEST_START = 300.0  # seconds for a process that imports Beam, which takes it three where nobody else is at work
_NEAR, _FAR = 0.1, 5.0  # seconds between two looks at a pipeline
# Seconds for processes that were killed, and for a service to hear that a pipeline is cancelled.
_END_TIMEOUT, _REMOTE_END_TIMEOUT = 10.0, 60.0


class BeamDistributor(EngineDistributor):
    @staticmethod
    def check(options: RunOptions) -> None:
        """Raises OptionError for `beam_options` that Beam does not take."""
        _terms(_asked(options))

    @contextmanager
    def engine(self) -> Iterator[_Beam]:
        asked = _asked(self._options)
        yield _Beam(asked, _terms(asked))


def _new_runs() -> Callable[[Any], Any]:
    """In the child, where nothing but our own log reaches the terminal: Beam, Dask and gRPC each log in ways of their
    own, and from the import on."""
    _process.log_to_parent(logging.WARNING)
    if quieting.is_wanted():
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    try:
        from any2ds.distributors._beam import Runs
    except Exception as error:  # whatever is wrong with an installation
        refusal = UsageError(f"Beam cannot be imported: {error_text(error)}")
        return lambda _: refusal
    return Runs()


def _asked(options: RunOptions) -> Asked:
    return Asked(options.beam_options or (), options.processes_count, logging.getLogger("any2ds").getEffectiveLevel())


# Beam takes seconds to be imported: a process that has is used again, and ends when nobody has for a minute.
children: Children[Any, Any] = Children(_new_runs, _LONGEST_START)


def _terms(asked: Asked) -> Terms:
    try:
        terms: Terms | Exception = children.answer(asked, _LONGEST_START)
    except (ChildEnded, NotStarted) as error:
        raise RunError(f"the process that runs Beam {str(error).removeprefix('it ')}") from error
    if isinstance(terms, Exception):
        raise terms
    return terms


class _Beam:
    """A runner."""

    def __init__(self, asked: Asked, terms: Terms) -> None:
        self._asked, self._terms = asked, terms
        self.slots, self.patience = terms.slots, terms.patience
        self.machines = 1 if terms.is_local else terms.slots  # services do not say how many they have
        self.end_timeout = _END_TIMEOUT if terms.is_local else _REMOTE_END_TIMEOUT
        self.most = math.inf  # a pipeline for each task would cost more than tasks beyond the slots do

    def begin(self, tasks: Sequence[Task]) -> _Pipeline:
        return _Pipeline(self._asked, self._terms, tasks)


class _Pipeline(ThreadBatch):
    def __init__(self, asked: Asked, terms: Terms, tasks: Sequence[Task]) -> None:
        self._asked, self._terms, self._tasks = asked, terms, tasks
        self._child: Answering[Any, Any] | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        super().__init__("any2ds-beam")

    def cancel(self) -> None:
        """Local runners cannot do that: their processes are ended."""
        self._cancelled.set()
        if self._terms.is_local:
            with self._lock:
                if self._child is not None:
                    _end_group(self._child)

    def _run(self) -> None:
        numbers = tuple(task.number for task in self._tasks)
        try:
            if self._cancelled.is_set():
                return
            self._child, _ = children.ask(Pipeline(self._asked, numbers, self._tasks[0]), 0)
        except (ChildEnded, NotStarted) as error:
            self._message = f"the process that runs Beam {str(error).removeprefix('it ')}"
            return
        state = State(False)
        try:
            state = self._watched(self._child)
            self._message = state.message
        except ChildEnded as error:
            self._message = f"the process that runs Beam {str(error).removeprefix('it ')}"
        finally:
            with self._lock:
                child, self._child = self._child, None
            if state.message or not state.has_ended:
                _end_group(child)
                child.end()
            children.give_back(child)

    def _watched(self, child: Answering[Any, Any]) -> State:
        """How it has come to its end."""
        has_cancelled = False
        while True:
            state: State = child.ask(STATE)
            if state.has_ended or (self._cancelled.is_set() and self._terms.is_local):
                return state
            if self._cancelled.wait(_NEAR if self._terms.is_local else _FAR) and not has_cancelled:
                has_cancelled = True
                child.ask(CANCEL)
            elif has_cancelled:
                time.sleep(_NEAR)


def _end_group(child: Answering[Any, Any]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()


PART = BeamDistributor
