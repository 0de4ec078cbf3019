"""The worker process of the multiprocessing distributor: jobs come in over stdin, events go out over stdout."""

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
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any

from any2ds.core import plain_arrow
from any2ds.core.errors import ENDS_THE_RUN, StuckFetcher, harmless
from any2ds.core.processes.child_process import answer_parent
from any2ds.core.rows import ShardJob

WANT_JOB = "want_job"  # child to parent: one more, please
EVENT = "event"  # child to parent, with the event
JOB = "job"  # parent to child, with the job
END = "end"  # parent to child: there are no more
STOP = "stop"  # parent to child: finish what can be finished soon, and end
SHARE = "share"  # parent to child, with the number of processes that have jobs
FATAL = "fatal"  # child to parent, with an error that ends the run
ALIVE = "alive"  # child to parent: held up by a disk, and nothing worse
STUCK = "stuck"  # child to parent, with a StuckFetcher: the process ends
CRASHED = "crashed"  # child to parent, with a traceback: the worker raised

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
    log_to_parent(getattr(worker, "log_level", logging.WARNING))
    # Rows by the ten thousand are alive at a time, none of them in a cycle: looking for cycles less often saves 5 %.
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()
    jobs: SimpleQueue[ShardJob | None] = SimpleQueue()
    stopping = threading.Event()

    def stop() -> None:
        stopping.set()
        worker.stop()

    threading.Thread(target=_receive, args=(inlet, jobs, stop, worker.share), daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pickle.dump(message, outlet, pickle.HIGHEST_PROTOCOL)
            outlet.flush()

    def wanted_jobs() -> Iterator[ShardJob]:
        while True:
            send((WANT_JOB, None))
            job = jobs.get()
            if job is None or stopping.is_set():
                return
            yield job

    def beat() -> None:
        with contextlib.suppress(BrokenPipeError):
            while True:
                time.sleep(_BEAT)
                if worker.waiting:
                    send((ALIVE, None))

    threading.Thread(target=beat, daemon=True).start()
    code = 0
    try:
        for event in worker(wanted_jobs()):
            send((EVENT, event))
    except BrokenPipeError:
        code = 1
    except ENDS_THE_RUN as error:
        code = 1
        send((FATAL, error))
    except StuckFetcher as error:
        code = 1
        send((STUCK, error))
    except BaseException:
        import traceback

        code = 1
        send((CRASHED, traceback.format_exc()))
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


def log_to_parent(level: int) -> None:
    """Log what the parent logs, to the standard error that it has as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Harmless("%(message)s"))
    logging.getLogger("any2ds").addHandler(handler)
    logging.getLogger("any2ds").setLevel(level)


def _receive(
    inlet: IO[bytes],
    jobs: SimpleQueue[ShardJob | None],
    stop: Callable[[], None],
    share: Callable[[int], None],
) -> None:
    try:
        while True:
            kind, content = pickle.load(inlet)
            if kind == SHARE:
                share(content)
                continue
            if kind == STOP:
                stop()
            jobs.put(content)
    finally:  # the pipe ended, perhaps in the middle of a message: the parent is gone, and nobody wants our work
        os._exit(1)
