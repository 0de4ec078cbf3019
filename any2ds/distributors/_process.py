"""The worker process of the multiprocessing distributor: jobs come in over stdin, events go out over stdout.

A plain child process and two pipes, rather than the `multiprocessing` module, whose children import the user's main
module again: a script or notebook that calls `download()` at top level would start itself over and over.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import IO, Any

from any2ds.errors import NetworkDown
from any2ds.types import ShardJob

WANT_JOB = "want_job"  # child to parent: one more, please
EVENT = "event"  # child to parent, with the event
END = "end"  # parent to child: there are no more
FATAL = "fatal"  # child to parent, with an error that ends the run
ALIVE = "alive"  # child to parent: held up by a disk, and nothing worse
CRASHED = "crashed"  # child to parent, with a traceback: the worker raised

_BEAT = 1.0  # seconds between two of ALIVE

# What the child runs first, so that it finds the modules that the parent has found.
BOOTSTRAP = """
import sys
sys.path[:] = filter(None, sys.path)  # a pickle.py in the folder at hand is none of ours
import pickle
sys.path[:] = pickle.load(sys.stdin.buffer)
from any2ds.distributors._process import main
main()
"""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who ends us
    inlet, outlet = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get between the events
    worker = pickle.load(inlet)
    # Rows by the ten thousand are alive at a time, none of them in a cycle: looking for cycles less often saves 5 %.
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    jobs: SimpleQueue[ShardJob | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(inlet, jobs), daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pickle.dump(message, outlet, pickle.HIGHEST_PROTOCOL)
            outlet.flush()

    def wanted_jobs() -> Iterator[ShardJob]:
        while True:
            send((WANT_JOB, None))
            job = jobs.get()
            if job is None:
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
    except NetworkDown as error:
        code = 1
        send((FATAL, error))
    except BaseException:
        import traceback

        code = 1
        send((CRASHED, traceback.format_exc()))
    finally:
        sys.stderr.flush()
        os._exit(code)  # not waiting for threads that hang in the system's resolver


def _receive(inlet: IO[bytes], jobs: SimpleQueue[ShardJob | None]) -> None:
    try:
        while True:
            message = pickle.load(inlet)
            jobs.put(None if message == END else message)
    finally:  # the pipe ended, perhaps in the middle of a message: the parent is gone, and nobody wants our work
        os._exit(1)
