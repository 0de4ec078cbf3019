"""A worker process as its parent sees it: the jobs that it has, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import IO, Any, Protocol

from any2ds.core.processes.child_process import ForkedProcess, start
from any2ds.core.processes.watchdog import Watch
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors import _process
from any2ds.distributors._contract import Worker
from any2ds.distributors._process import ALIVE, END, JOB, SHARE, STOP
from any2ds.distributors._reported import ReportedProgress

GONE = "gone"  # what a listener says when its process has ended, after all of its messages
Inbox = SimpleQueue[tuple["Child | None", str, Any]]
"""What happens to the parent: of which process, what, and its content."""

END_TIMEOUT = 1.0  # seconds that a process has to end after its last message
_LONGEST_START = 120.0  # seconds until a process asks for its first job; imports may come over a network
_OUT_OF_MEMORY = (
    "most often because memory has run out; a smaller --processes_count, --thread_count or --max_buffered_bytes helps"
)


class Link(Protocol):
    """A process that runs `_process`, and the ways to it and back."""

    @property
    def name(self) -> str:
        """What it is called, such as `worker process 17`."""
        ...

    @property
    def pid(self) -> int: ...

    @property
    def is_up(self) -> bool:
        """Whether there is such a process; until then it waits for room somewhere, which may take any time."""
        ...

    @property
    def returncode(self) -> int | None:
        """As Popen has it, once it is known to have ended."""
        ...

    @property
    def lost(self) -> str:
        """If it went with the machine that it was on, or whatever carried its messages: what happened."""
        ...

    @property
    def fault(self) -> str:
        """If there can be no such process, or none that is of use: why."""
        ...

    @property
    def answers(self) -> IO[bytes]:
        """What it says; it ends with the process."""
        ...

    def send(self, data: bytes) -> None:
        """Waits until it is on its way. Raises OSError if the process is gone."""
        ...

    def close_input(self) -> None:
        """There is nothing more to be sent."""
        ...

    def kill(self) -> None:
        """Without waiting for its end. Called again, by harsher means if there are any."""
        ...

    def wait(self, seconds: float) -> None:
        """For its end, up to so long."""
        ...


class LocalLink:
    """A process of this machine, and two pipes."""

    is_up = True
    lost = fault = ""

    def __init__(self, modules: Sequence[str] = (), fork: bool = False) -> None:
        """`modules` are what the process loads while it waits for the worker; `fork` as `ForkedProcess` can."""
        self._process: subprocess.Popen[bytes] | ForkedProcess
        if fork:
            self._process = ForkedProcess(_process.main, modules)
            return
        # In a session of its own Ctrl-C does not reach it: the parent decides how a run ends.
        own: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            own = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = start(_process.__name__, *modules, **own)
        with contextlib.suppress(OSError):  # if it is gone, its listener reports that; a pipe holds more than this
            self.send(pickle.dumps(sys.path, pickle.HIGHEST_PROTOCOL))

    @property
    def name(self) -> str:
        return f"worker process {self.pid}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    @property
    def answers(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def send(self, data: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(data)
        pipe.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


_waiting: list[LocalLink] = []


def start_ahead(modules: Sequence[str], fork: bool = False) -> None:
    """Start a process that loads `modules` and waits for `local_link`; `fork` as `LocalLink` has it. To be called by
    the thread that begins the run: Linux ends the process with it."""
    _waiting.append(LocalLink(modules, fork))


def local_link() -> LocalLink:
    """The process that was started ahead, or a new one."""
    return _waiting.pop() if _waiting else LocalLink()


def end_waiting() -> None:
    """End the process that was started ahead, if nobody has wanted it."""
    while _waiting:
        link = _waiting.pop()
        link.kill()
        link.close_input()
        link.wait(END_TIMEOUT)


class Child:
    """A worker process, and the jobs that it has not reported on."""

    def __init__(self, worker: Worker, inbox: Inbox, new_link: Callable[[], Link] = LocalLink) -> None:
        first_message = pickle.dumps(worker, pickle.HIGHEST_PROTOCOL)
        self._link = new_link()
        self._inbox = inbox
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.jobs: dict[int, ShardJob] = {}
        self._reported = ReportedProgress()
        self.started = False  # it has asked for a job
        self.released = False  # it knows that there are no more
        self._sharing = 1  # processes that it knows to have jobs
        self.reason = ""
        self._messages = 0  # from it; counted as they arrive, whatever else we are doing
        self.watch = Watch(_LONGEST_START, time.monotonic())
        self._outbox.put(first_message)
        threading.Thread(target=self._listen, name="any2ds-listener", daemon=True).start()
        threading.Thread(target=self._talk, name="any2ds-talker", daemon=True).start()

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def pid(self) -> int:
        return self._link.pid

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    def has_started(self, patience: float) -> None:
        """It has asked for a job; from now on it may say nothing for `patience` seconds."""
        self.started = True
        self.watch.limit = patience

    def is_stuck(self, now: float) -> bool:
        """Whether it has sent nothing for too long, although it has something to do."""
        is_busy = bool(self.jobs) or self.released or not self.started
        return self.watch.look(now, self._messages, self.is_up and is_busy)

    def give(self, job: ShardJob) -> None:
        self.jobs[job.shard_id] = job
        self._send(JOB, job)

    def share(self, processes: int) -> None:
        """Tell it, unless it knows, that so many processes of its machine have jobs."""
        if processes != self._sharing:
            self._sharing = processes
            self._send(SHARE, processes)

    def release(self) -> None:
        self.released = True
        self._send(END)

    def stop(self) -> None:
        self.released = True
        self._send(STOP)

    def end_before_start(self) -> None:
        """End it before it has begun."""
        self.released = True
        self.end()

    def note(self, event: Event) -> None:
        if isinstance(event, (ShardReport, ShardError)):
            self.jobs.pop(event.shard_id, None)
        self._reported.note(event)

    def withdrawn(self) -> Iterator[Progress]:
        """Takes back what it has reported of shards that it is not going to finish: others begin them anew."""
        return self._reported.withdrawn()

    @property
    def was_killed(self) -> bool:
        """Whether it has ended by a signal, or with its machine, and so by no decision of its own."""
        code = self._link.returncode
        if self.reason or self._link.fault:
            return False
        return bool(self._link.lost) or (code is not None and not 0 <= code <= 2)

    def how_it_ended(self) -> str:
        """How it ended."""
        if self.reason or self._link.fault:
            return self.reason or self._link.fault
        if self._link.lost:
            return f"the {self.name} was lost: {self._link.lost}"
        code = self._link.returncode
        if code is None or code >= 0:
            return f"the {self.name} ended early, with {code}"
        if code == -getattr(signal, "SIGKILL", 9):
            return f"the {self.name} was killed (SIGKILL), {_OUT_OF_MEMORY}"
        with contextlib.suppress(ValueError):
            return f"the {self.name} was ended by {signal.Signals(-code).name}"
        return f"the {self.name} was ended by signal {-code}"

    def end(self, reason: str = "") -> None:
        """Kill it, without waiting: a process that waits for a dead disk ends only when that answers."""
        self.reason = self.reason or reason
        self._link.kill()
        self._outbox.put(None)

    def wait(self, until: float) -> None:
        """For its end, up to a time of `time.monotonic()`."""
        self._link.wait(max(0.0, until - time.monotonic()))

    def _send(self, kind: str, content: Any = None) -> None:
        self._outbox.put(pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL))

    def _talk(self) -> None:
        """In a thread of its own: a process that is stuck does not read, and a job is more than a pipe holds."""
        # If the process is gone, its listener reports that.
        with contextlib.suppress(OSError):
            while (data := self._outbox.get()) is not None:
                self._link.send(data)
        self._link.close_input()

    def _listen(self) -> None:
        pipe = self._link.answers
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
            self.wait(time.monotonic() + END_TIMEOUT)
            self.end()
            self.wait(time.monotonic() + END_TIMEOUT)
            self._inbox.put((self, GONE, None))
