"""A worker process as its parent sees it: its jobs, its messages, and how it ended."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from any2ds.core.processes.child_process import ForkedProcess, how_it_ended, start
from any2ds.core.processes.watchdog import Watch
from any2ds.core.rows import ShardJob
from any2ds.distributors import _process
from any2ds.distributors._contract import Worker
from any2ds.distributors._jobs import Assignment
from any2ds.distributors._process import ALIVE, JOB, SHARE

GONE = "gone"  # the process has ended, and all of its messages were read
Inbox = SimpleQueue[tuple["Child", str, Any] | None]
"""What happens to the parent: of which process, what, and its content; None where it is to look for itself."""

Process = subprocess.Popen[bytes] | ForkedProcess
END_TIMEOUT = 1.0  # seconds that a process has to end after its last message
_LONGEST_START = 120.0  # seconds until a process asks for its first job; imports may come over a network
_OUT_OF_MEMORY = (
    ", most often because memory has run out; a smaller --processes_count, --thread_count or --max_buffered_bytes helps"
)


def start_process(modules: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A process that loads `modules`, and then waits for its worker."""
    # In a session of its own Ctrl-C does not reach it: the parent decides how a run ends.
    how: dict[str, Any] = {"start_new_session": sys.platform != "win32"}
    if sys.platform == "win32":
        how["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
    process = start(_process.__name__, *modules, **how)
    with contextlib.suppress(OSError):  # if it is gone, its listener reports that; a pipe holds more than this
        _write(process, pickle.dumps(sys.path, pickle.HIGHEST_PROTOCOL))
    return process


_waiting: list[Process] = []


def start_ahead(modules: Sequence[str], fork: bool = False) -> None:
    """Start a process that loads `modules` and waits for a `Child`; `fork` as `ForkedProcess` can. To be called by the
    thread that begins the run: Linux ends the process with it."""
    _waiting.append(ForkedProcess(_process.main, modules) if fork else start_process(modules))


def end_waiting() -> None:
    """End the process that was started ahead, if nobody has wanted it."""
    while _waiting:
        process = _waiting.pop()
        process.kill()
        _close_input(process)
        _wait(process, END_TIMEOUT)


def _write(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()


def _close_input(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _wait(process: Process, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


class Child(Assignment):
    """A worker process, and the jobs that it has not reported on."""

    def __init__(self, worker: Worker, inbox: Inbox) -> None:
        """The process that was started ahead, or a new one."""
        super().__init__()
        first_message = pickle.dumps(worker, pickle.HIGHEST_PROTOCOL)
        self._process: Process = _waiting.pop() if _waiting else start_process()
        self._inbox = inbox
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.started = False  # it has asked for a job
        self.is_alone = False  # nothing is to be made beside its job
        self.released = False  # it knows that there are no more
        self._sharing = 1  # processes that it knows to have jobs
        self.reason = ""  # why it ends, where its exit code does not say so
        self._messages = 0  # from it; counted as they arrive, whatever else we are doing
        self.watch = Watch(_LONGEST_START, time.monotonic())
        self._outbox.put(first_message)
        threading.Thread(target=self._listen, name="any2ds-listener", daemon=True).start()
        threading.Thread(target=self._talk, name="any2ds-talker", daemon=True).start()

    @property
    def name(self) -> str:
        return f"worker process {self.pid}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_started(self, patience: float) -> None:
        """Note that it has asked for a job; from now on it may send nothing for `patience` seconds."""
        self.started = True
        self.watch.limit = patience

    def is_stuck(self, now: float) -> bool:
        """Whether it has sent nothing for too long, although it has something to do."""
        is_busy = bool(self.jobs) or self.released or not self.started
        return self.watch.look(now, self._messages, is_busy)

    def give(self, job: ShardJob, alone: bool = False) -> None:
        self.is_alone = alone
        self.jobs[job.shard_id] = job
        self._send(JOB, job)

    def share(self, processes: int) -> None:
        """Send it, if it has changed, how many processes of its machine have jobs."""
        if processes != self._sharing:
            self._sharing = processes
            self._send(SHARE, processes)

    def release(self, kind: str = JOB) -> None:
        """Tell it that there are no more jobs; with STOP also that it is to end soon."""
        self.released = True
        self._send(kind)

    @property
    def was_killed(self) -> bool:
        """Whether it has ended by a signal, and so by no decision of its own."""
        code = self._process.returncode
        return not self.reason and code is not None and not 0 <= code <= 2

    def how_it_ended(self) -> str:
        if self.reason:
            return self.reason
        code = self._process.returncode
        advice = _OUT_OF_MEMORY if code == -getattr(signal, "SIGKILL", 9) else ""
        return f"the {self.name} {'does not end' if code is None else how_it_ended(code)}{advice}"

    def end(self, reason: str = "") -> None:
        """Kill it, without waiting: a process that waits for a dead disk ends only when that answers."""
        self.reason = self.reason or reason
        self._process.kill()
        self._outbox.put(None)

    def wait(self, until: float) -> None:
        """For its end, up to a time of `time.monotonic()`."""
        _wait(self._process, max(0.0, until - time.monotonic()))

    def _send(self, kind: str, content: Any = None) -> None:
        self._outbox.put(pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL))

    def _talk(self) -> None:
        """In a thread of its own: a process that is stuck does not read, and a job is more than a pipe holds."""
        # If the process is gone, its listener reports that.
        with contextlib.suppress(OSError):
            while (data := self._outbox.get()) is not None:
                _write(self._process, data)
        _close_input(self._process)

    def _listen(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        try:
            with pipe, contextlib.suppress(EOFError, OSError):
                while True:
                    kind, content = pickle.load(pipe)
                    self._messages += 1
                    if kind != ALIVE:
                        self._inbox.put((self, kind, content))
        except Exception as error:
            if "truncated" not in str(error):  # half a message: it has ended in the middle of it
                self.reason = self.reason or f"its message is not readable: {error}"
        finally:
            try:
                self.wait(time.monotonic() + END_TIMEOUT)
                self.end()
                self.wait(time.monotonic() + END_TIMEOUT)
            finally:
                self._inbox.put((self, GONE, None))
