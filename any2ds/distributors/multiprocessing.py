"""Runs workers in processes of this machine; each asks for a job when it has room for one."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from any2ds.config import RunOptions
from any2ds.distributors._process import ALIVE, BOOTSTRAP, CRASHED, END, EVENT, FATAL, WANT_JOB
from any2ds.errors import RunError
from any2ds.protocols import Worker
from any2ds.types import Event, ShardError, ShardJob, ShardReport
from any2ds.watchdog import LOOK_SECONDS, Watch

log = logging.getLogger(__name__)

_FAREWELL = 1.0  # seconds that a process has to end after its last word
_CRASHES_IN_A_ROW = 3  # processes that may end early before the run gives up
_LONGEST_START = 120.0  # seconds until a process asks for its first job; imports may come over a network
# Processes that may be killed over one shard before its rows are recorded as failed; if that is too much for a further
# one, the shard is not what is wrong.
_MOST_KILLS = 2

# What the threads around the main loop say to it, beside the messages of the children.
_JOB, _NO_MORE_JOBS, _BROKEN, _GONE = "job", "no_more_jobs", "broken", "gone"
Inbox = SimpleQueue[tuple["_Child | None", str, Any]]


class MultiprocessingDistributor:
    def __init__(self, options: RunOptions) -> None:
        self.processes_count = options.processes_count or _cores()

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        run = _Run(worker, jobs, self.processes_count)
        try:
            while run.unfinished:
                yield from run.step()
        finally:
            run.stop()


class _Run:
    """The processes of one run, and the jobs that wait for one."""

    def __init__(self, worker: Worker, jobs: Iterator[ShardJob], most: int) -> None:
        self._worker = worker
        self._most = most  # processes
        self._inbox: Inbox = SimpleQueue()
        self._puller = _Puller(jobs, self._inbox, most)
        self._more = True  # jobs to be pulled
        self._ready: deque[ShardJob] = deque()
        self._suspects: deque[ShardJob] = deque()  # whose process was stuck; they get one of their own
        self._children: set[_Child] = set()
        self._hungry: deque[_Child] = deque()
        self._crashes = 0  # in a row
        self._next_look = 0.0

    @property
    def unfinished(self) -> bool:
        return bool(self._more or self._ready or self._suspects or self._children)

    def step(self) -> Iterator[Event]:
        """Wait until something happens, and deal with it."""
        try:
            message = self._inbox.get(timeout=LOOK_SECONDS if self._worker.patience else None)
        except Empty:
            pass
        else:
            yield from self._take(*message)
        if self._worker.patience and (now := time.monotonic()) >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            for child in [child for child in self._children if child.is_stuck(now)]:
                yield from self._cut_off(child)
        self._share_out()

    def stop(self) -> None:
        self._puller.stop()
        for child in self._children:
            child.kill()

    def _take(self, child: _Child | None, kind: str, content: Any) -> Iterator[Event]:
        if kind == _JOB:
            self._ready.append(content)
        elif kind == _NO_MORE_JOBS:
            self._more = False
        elif kind in (_BROKEN, FATAL):
            raise content
        elif child not in self._children:
            return  # it was cut off, and others have its jobs
        elif kind == WANT_JOB:
            child.has_started(self._worker.patience)
            self._hungry.append(child)
        elif kind == EVENT:
            self._crashes = 0 if isinstance(content, ShardReport) else self._crashes
            child.note(content)
            yield content
        elif kind == CRASHED:
            child.last_words = content.strip().splitlines()[-1]
            log.info("worker process %d crashed:\n%s", child.pid, content)
        elif kind == _GONE:
            self._forget(child)
            if child.jobs or not child.released:
                yield from child.unfinished()
                self._note_crash(child)

    def _cut_off(self, child: _Child) -> Iterator[ShardError]:
        """Kill a process that is stuck, and have its jobs done by others."""
        words = f"the worker process {child.pid} had said nothing for {child.watch.silent:.0f} s and was killed"
        log.warning("%s; others go on with its %d shards", words, len(child.jobs))
        self._forget(child)
        child.end(words)
        for job in child.jobs.values():
            if job.attempt < _MOST_KILLS:
                kills = job.attempt + 1
                self._suspects.append(replace(job, attempt=kills, hopeless=kills == _MOST_KILLS))
            else:
                yield ShardError(job.shard_id, words)
        if not child.started:
            self._note_crash(child)

    def _forget(self, child: _Child) -> None:
        self._children.discard(child)
        with contextlib.suppress(ValueError):
            self._hungry.remove(child)

    def _note_crash(self, child: _Child) -> None:
        self._crashes += 1
        if self._crashes >= _CRASHES_IN_A_ROW:
            raise RunError(f"worker processes end at once, the last one with: {child.farewell()}")

    def _share_out(self) -> None:
        """Give jobs to those who want one, and start processes for jobs that nobody is going to want."""
        for child in list(self._hungry) if self._suspects or self._ready else ():
            if self._suspects and not child.jobs:
                child.give(self._suspects.popleft())
            elif self._ready and not child.has_suspect:
                child.give(self._ready.popleft())
                self._puller.allow_another()
            else:
                continue
            self._hungry.remove(child)
        waiting = len(self._ready) + len(self._suspects)
        starting = sum(not c.started for c in self._children)
        while starting < waiting and len(self._children) < self._most:
            self._children.add(_Child(self._worker, self._inbox))
            starting += 1
        if not (self._more or waiting):
            while self._hungry:
                self._hungry.popleft().release()


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
        said = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in (sys.path, worker)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **own
        )
        self._inbox = inbox
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self.jobs: dict[int, ShardJob] = {}
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

    @property
    def has_suspect(self) -> bool:
        return any(job.attempt for job in self.jobs.values())

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

    def end(self, words: str) -> None:
        """Kill it, without waiting: a process that waits for a dead disk ends only when that answers."""
        self.last_words = words
        self._process.kill()
        self._outbox.put(None)

    def kill(self) -> None:
        """End it at once if it has not ended."""
        self._process.kill()
        self._outbox.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL)

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
