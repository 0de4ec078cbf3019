"""The worker process of the multiprocessing distributor: jobs come in over stdin, events go out over stdout.

Messages are pairs of a kind and a content; `_child.py` is the other end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any

from any2ds.core import plain_arrow
from any2ds.core.errors import ENDS_THE_RUN, StuckFetcher, harmless
from any2ds.core.processes.child_process import answer_parent
from any2ds.core.rows import ShardJob

# From the child: it wants a job; an event; it is held up by a disk, and nothing worse; why it ends, which is a
# StuckFetcher, an error of ENDS_THE_RUN, or the traceback of what the worker has raised.
WANT_JOB, EVENT, ALIVE, ENDS = "want_job", "event", "alive", "ends"
# From the parent: a job, or None if there are no more; the number of processes that have jobs; finish what can be
# finished soon, and end.
JOB, SHARE, STOP = "job", "share", "stop"

PLAIN = "plain"  # as the first of the modules that a process is to load: pyarrow, by `plain_arrow`

_BEAT = 1.0  # seconds between two of ALIVE


def main(inlet: IO[bytes]) -> None:
    """`inlet` is where jobs come from."""
    outlet = answer_parent()
    gc.disable()  # until all is loaded: nothing of that is garbage
    _load(sys.argv[4:])
    try:
        worker = pickle.load(inlet)
    except (EOFError, pickle.UnpicklingError):
        if not inlet.read(1):  # the parent is gone
            os._exit(1)
        raise
    _log_to_parent(getattr(worker, "log_level", logging.WARNING))
    # Rows by the ten thousand are alive at a time, none of them in a cycle: looking for cycles less often saves 5 %.
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()
    code = 1
    try:
        code = _Conversation(inlet, outlet, worker).run()
    finally:
        sys.stderr.flush()
        os._exit(code)  # not waiting for threads that hang in the system's resolver


def _load(modules: Sequence[str]) -> None:
    """Import what the worker is going to need, while its parent is still at finding out what it is to do."""
    if modules[:1] == [PLAIN]:
        plain_arrow.load()
        modules = modules[1:]
    for module in modules:
        with contextlib.suppress(ImportError):  # the worker says what it lacks
            importlib.import_module(module)


class _Harmless(logging.Formatter):
    """Without credentials, and without what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def _log_to_parent(level: int) -> None:
    """Log what the parent logs, to the standard error that it has as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless("%(message)s"))
    logging.getLogger("any2ds").addHandler(handler)
    logging.getLogger("any2ds").setLevel(level)


class _Conversation:
    """The messages between the worker and the parent."""

    def __init__(self, inlet: IO[bytes], outlet: IO[bytes], worker: Any) -> None:
        self._inlet, self._outlet, self._worker = inlet, outlet, worker
        self._jobs: SimpleQueue[ShardJob | None] = SimpleQueue()
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> int:
        """The exit code."""
        for target in (self._receive, self._beat):
            threading.Thread(target=target, daemon=True).start()
        try:
            for event in self._worker(self._wanted_jobs()):
                self._send(EVENT, event)
        except BrokenPipeError:
            return 1
        except (StuckFetcher, *ENDS_THE_RUN) as error:
            self._send(ENDS, error)
            return 1
        except BaseException:
            self._send(ENDS, traceback.format_exc())
            return 1
        return 0

    def _send(self, kind: str, content: Any = None) -> None:
        with self._lock:
            pickle.dump((kind, content), self._outlet, pickle.HIGHEST_PROTOCOL)
            self._outlet.flush()

    def _wanted_jobs(self) -> Iterator[ShardJob]:
        while True:
            self._send(WANT_JOB)
            job = self._jobs.get()
            if job is None or self._is_stopping.is_set():
                return
            yield job

    def _receive(self) -> None:
        try:
            while True:
                kind, content = pickle.load(self._inlet)
                if kind == SHARE:
                    self._worker.share(content)
                    continue
                if kind == STOP:
                    self._is_stopping.set()
                    self._worker.stop()
                self._jobs.put(content)
        finally:  # the pipe ended, perhaps in the middle of a message: the parent is gone, and nobody wants our work
            os._exit(1)

    def _beat(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                time.sleep(_BEAT)
                if self._worker.waiting:
                    self._send(ALIVE)
