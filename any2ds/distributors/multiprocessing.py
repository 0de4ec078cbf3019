"""Runs workers in processes of this machine; each asks for a job when it has room for one."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from any2ds.config import RunOptions
from any2ds.distributors._process import BOOTSTRAP, CRASHED, END, EVENT, FATAL, WANT_JOB
from any2ds.errors import RunError
from any2ds.protocols import Worker
from any2ds.types import Event, ShardError, ShardJob, ShardReport

log = logging.getLogger(__name__)

_FAREWELL = 1.0  # seconds that a process has to end after its last word
_CRASHES_IN_A_ROW = 3  # processes that may end early before the run gives up

# What the threads around the main loop say to it, beside the messages of the children.
_JOB, _NO_MORE_JOBS, _BROKEN, _GONE = "job", "no_more_jobs", "broken", "gone"
Inbox = SimpleQueue[tuple["_Child | None", str, Any]]


class MultiprocessingDistributor:
    def __init__(self, options: RunOptions) -> None:
        self.processes_count = options.processes_count or _cores()

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        inbox: Inbox = SimpleQueue()
        puller = _Puller(jobs, inbox, self.processes_count)
        ready: deque[ShardJob] = deque()
        children: set[_Child] = set()
        hungry: deque[_Child] = deque()
        more, crashes = True, 0
        try:
            while more or ready or children:
                child, kind, content = inbox.get()
                if kind == _JOB:
                    ready.append(content)
                elif kind == _NO_MORE_JOBS:
                    more = False
                elif kind in (_BROKEN, FATAL):
                    raise content
                elif child is not None and kind == WANT_JOB:
                    child.started = True
                    hungry.append(child)
                elif child is not None and kind == EVENT:
                    crashes = 0 if isinstance(content, ShardReport) else crashes
                    child.note(content)
                    yield content
                elif child is not None and kind == CRASHED:
                    child.last_words = content.strip().splitlines()[-1]
                    log.info("worker process %d crashed:\n%s", child.pid, content)
                elif child is not None and kind == _GONE:
                    children.discard(child)
                    with contextlib.suppress(ValueError):
                        hungry.remove(child)
                    if child.jobs or not child.released:
                        crashes += 1
                        yield from child.unfinished()
                        if crashes >= _CRASHES_IN_A_ROW:
                            raise RunError(f"worker processes end at once, the last one with: {child.farewell()}")
                while ready and hungry:
                    hungry.popleft().give(ready.popleft())
                    puller.allow_another()
                starting = sum(not c.started for c in children)
                while starting < len(ready) and len(children) < self.processes_count:
                    children.add(_Child(worker, inbox))
                    starting += 1
                if not (more or ready):
                    while hungry:
                        hungry.popleft().release()
        finally:
            puller.stop()
            for child in children:
                child.kill()


class _Puller:
    """Pulls jobs in a thread, because the url list may make us wait, and not further ahead than is useful."""

    def __init__(self, jobs: Iterator[ShardJob], inbox: Inbox, ahead: int) -> None:
        self._jobs, self._inbox = jobs, inbox
        self._room = threading.Semaphore(ahead)
        self._stopped = False
        threading.Thread(target=self._run, name="any2ds-puller", daemon=True).start()

    def allow_another(self) -> None:
        self._room.release()

    def stop(self) -> None:
        self._stopped = True
        self._room.release()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                self._room.acquire()
                if self._stopped:
                    return
                self._inbox.put((None, _JOB, job))
        except BaseException as error:  # raised again in the thread that runs `map`
            self._inbox.put((None, _BROKEN, error))
        else:
            self._inbox.put((None, _NO_MORE_JOBS, None))


class _Child:
    """A worker process, and the jobs that it has not reported on."""

    def __init__(self, worker: Worker, inbox: Inbox) -> None:
        # In a session of its own Ctrl-C does not reach it: the parent decides how a run ends.
        own: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            own = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **own
        )
        self._inbox = inbox
        self.jobs: dict[int, ShardJob] = {}
        self.started = False  # it has asked for a job
        self.released = False  # it was told that there are no more
        self.last_words = ""
        self._send(sys.path)
        self._send(worker)
        threading.Thread(target=self._listen, name="any2ds-listener", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, job: ShardJob) -> None:
        self.jobs[job.shard_id] = job
        self._send(job)

    def release(self) -> None:
        self.released = True
        self._send(END)

    def note(self, event: Event) -> None:
        if isinstance(event, (ShardReport, ShardError)):
            self.jobs.pop(event.shard_id, None)

    def unfinished(self) -> Iterator[ShardError]:
        """An error for each shard that went down with the process."""
        for shard_id in sorted(self.jobs):
            yield ShardError(shard_id, self.farewell())
        self.jobs.clear()

    def farewell(self) -> str:
        code = self._process.returncode
        return self.last_words or f"the worker process {self.pid} ended early, with {code}"

    def kill(self) -> None:
        """End it at once if it has not ended."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError, OSError):
            self._process.stdin.close()  # type: ignore[union-attr]

    def _send(self, message: Any) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # If the process is gone its listener says so, and with it the fate of the message.
        with contextlib.suppress(BrokenPipeError, OSError):
            pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
            pipe.flush()

    def _listen(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        try:
            with pipe, contextlib.suppress(EOFError, OSError):
                while True:
                    kind, content = pickle.load(pipe)
                    self._inbox.put((self, kind, content))
        except Exception as error:  # half a message, or one that cannot be understood
            self.last_words = self.last_words or f"its message is not readable: {error}"
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL)
            self.kill()
            self._inbox.put((self, _GONE, None))


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


PART = MultiprocessingDistributor
