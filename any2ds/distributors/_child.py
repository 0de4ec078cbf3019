"""A worker process as its parent sees it: the jobs that it has, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from any2ds.childprocess import start
from any2ds.distributors import _process
from any2ds.distributors._process import ALIVE, END, STOP
from any2ds.protocols import Worker
from any2ds.types import Event, Progress, ShardError, ShardJob, ShardReport
from any2ds.watchdog import Watch

GONE = "gone"  # what a listener says when its process has ended, after everything that it had said
Inbox = SimpleQueue[tuple["Child | None", str, Any]]
"""What happens to the parent: of which process, what, and its content."""

FAREWELL = 1.0  # seconds that a process has to end after its last word
_LONGEST_START = 120.0  # seconds until a process asks for its first job; imports may come over a network
_OUT_OF_MEMORY = (
    "most often because memory has run out; a smaller --processes_count, --thread_count or --max_buffered_bytes helps"
)


class Child:
    """A worker process, and the jobs that it has not reported on."""

    def __init__(self, worker: Worker, inbox: Inbox) -> None:
        # In a session of its own Ctrl-C does not reach it: the parent decides how a run ends.
        own: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            own = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        said = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in (sys.path, worker)]
        self._process = start(_process.__name__, **own)
        self._inbox = inbox
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.jobs: dict[int, ShardJob] = {}
        self._told: Counter[str] = Counter()  # rows by outcome, of shards that it has not reported on
        self._told_bytes = 0
        self.started = False  # it has asked for a job
        self.released = False  # it was told that there are no more
        self.last_words = ""
        self._messages = 0  # from it; counted as they arrive, whatever else we are doing
        self.watch = Watch(_LONGEST_START, time.monotonic())
        for part in said:
            self._outbox.put(part)
        threading.Thread(target=self._listen, name="any2ds-listener", daemon=True).start()
        threading.Thread(target=self._talk, name="any2ds-talker", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_started(self, patience: float) -> None:
        """It has asked for a job; from now on it may say nothing for `patience` seconds."""
        self.started = True
        self.watch.limit = patience

    def is_stuck(self, now: float) -> bool:
        """Whether it has said nothing for too long, although it has something to do."""
        return self.watch.look(now, self._messages, bool(self.jobs) or self.released or not self.started)

    def give(self, job: ShardJob) -> None:
        self.jobs[job.shard_id] = job
        self._send(job)

    def release(self) -> None:
        self.released = True
        self._send(END)

    def stop(self) -> None:
        self.released = True
        self._send(STOP)

    def note(self, event: Event) -> None:
        if isinstance(event, (ShardReport, ShardError)):
            self.jobs.pop(event.shard_id, None)
        if isinstance(event, Progress):
            self._told.update(event.outcomes)
            self._told_bytes += event.bytes
        elif isinstance(event, ShardReport):
            self._told.subtract(event.status_dict)
            self._told_bytes -= event.bytes

    def withdrawn(self) -> Iterator[Progress]:
        """Takes back what it has told of shards that it is not going to finish: others begin them anew."""
        told = {code: -count for code, count in self._told.items() if count}
        if told:
            yield Progress(told, -self._told_bytes)
        self._told.clear()
        self._told_bytes = 0

    @property
    def was_killed(self) -> bool:
        """Whether it has ended by a signal, and so by no decision of its own."""
        code = self._process.returncode
        return not self.last_words and code is not None and not 0 <= code <= 2

    def farewell(self) -> str:
        """How it ended, in words."""
        if self.last_words:
            return self.last_words
        code = self._process.returncode
        if code is None or code >= 0:
            return f"the worker process {self.pid} ended early, with {code}"
        if code == -getattr(signal, "SIGKILL", 9):
            return f"the worker process {self.pid} was killed (SIGKILL), {_OUT_OF_MEMORY}"
        with contextlib.suppress(ValueError):
            return f"the worker process {self.pid} was ended by {signal.Signals(-code).name}"
        return f"the worker process {self.pid} was ended by signal {-code}"

    def end(self, words: str = "") -> None:
        """Kill it, without waiting: a process that waits for a dead disk ends only when that answers."""
        self.last_words = self.last_words or words
        self._process.kill()
        self._outbox.put(None)

    def wait(self, until: float) -> None:
        """For its end, up to a time of `time.monotonic()`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))

    def _send(self, message: Any) -> None:
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _talk(self) -> None:
        """In a thread of its own: a process that is stuck does not read, and a job is more than a pipe holds."""
        pipe = self._process.stdin
        assert pipe is not None
        # If the process is gone its listener says so, and with it the fate of the message.
        with contextlib.suppress(BrokenPipeError, OSError), pipe:
            while (said := self._outbox.get()) is not None:
                pipe.write(said)
                pipe.flush()

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
                self.last_words = self.last_words or f"its message is not readable: {error}"
        finally:
            self.wait(time.monotonic() + FAREWELL)
            self.end()
            self.wait(time.monotonic() + FAREWELL)
            self._inbox.put((self, GONE, None))
