"""What runs on a node of a cluster beside a worker process: starts it there, and passes on what it and its parent say.

A process of its own, rather than a worker in the cluster's: signals, the standard streams, crashes of C libraries and
what is left in memory are then the same as on one machine.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from any2ds.core.processes.child_process import start
from any2ds.core.version import __version__
from any2ds.distributors import _process

_MOST_KEPT = 8 << 20  # bytes that nobody has asked for yet; then the process has to wait
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Hello:
    """Who it is that is relayed."""

    pid: int
    node: str  # its address, as the cluster has it
    version: str  # of any2ds there


@dataclass(frozen=True, slots=True)
class Heard:
    """Messages of a process since it was last asked."""

    answers: bytes
    complaints: bytes  # on standard error, whole lines
    code: int | None  # its return code, once it has ended and all messages are read


class Relay:
    """One worker process. Its methods are called in threads of their own: send, hear and kill do not wait for each
    other."""

    def __init__(self, path: Sequence[str], folder: str, log_level: int) -> None:
        """`path` and `folder` are what the driver has as `sys.path` and as its folder at hand: for what is also here.

        Raises OSError if no process can be started.
        """
        logging.getLogger("any2ds").setLevel(log_level)  # it says how quiet the process is
        known = [*sys.path, *(place for place in path if place not in sys.path and os.path.exists(place))]
        self._first_message = pickle.dumps(known, pickle.HIGHEST_PROTOCOL)
        self._folder = folder if os.path.isdir(folder) else None
        self._process: subprocess.Popen[bytes]
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        self._answers, self._complaints = bytearray(), bytearray()
        self._code: int | None = None
        started = threading.Event()
        # Linux ends a child with the thread that has started it, and this one lasts.
        threading.Thread(target=self._run, args=(started,), name="any2ds-relay", daemon=True).start()
        started.wait()
        if self._failure is not None:
            raise self._failure

    def hello(self) -> Hello:
        import ray.util

        util: Any = ray.util
        return Hello(self._process.pid, util.get_node_ip_address(), __version__)

    def send(self, data: bytes) -> None:
        """Raises OSError if it is gone."""
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(self._first_message + data)
        self._first_message = b""
        pipe.flush()

    def hear(self, patience: float) -> Heard:
        """Waits until there is something, but no longer than `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._complaints or self._code is not None, patience)
            heard = Heard(bytes(self._answers), bytes(self._complaints), self._code)
            self._answers.clear()
            self._complaints.clear()
            self._changed.notify_all()
            return heard

    def kill(self) -> None:
        """Returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _run(self, started: threading.Event) -> None:
        try:
            # As on one machine: signals are for whoever started the run.
            self._process = start(
                _process.__name__, cwd=self._folder, stderr=subprocess.PIPE, start_new_session=sys.platform != "win32"
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            started.set()
        answers, complaints = self._process.stdout, self._process.stderr
        assert answers is not None
        assert complaints is not None
        hearing = threading.Thread(target=self._hear_complaints, args=(complaints,), daemon=True)
        hearing.start()
        while data := os.read(answers.fileno(), _PIECE):
            self._keep(self._answers, data)
        code = self._process.wait()
        hearing.join(1.0)  # a program that a step has started may have it, and live on
        with self._changed:
            self._code = code
            self._changed.notify_all()

    def _hear_complaints(self, stream: IO[bytes]) -> None:
        while line := stream.readline(_PIECE):
            self._keep(self._complaints, line)

    def _keep(self, where: bytearray, data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(where) < _MOST_KEPT)
            where += data
            self._changed.notify_all()
