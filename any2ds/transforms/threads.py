"""The threads that run steps, with limits on their number, memory and time.

    put ─▶ inbox ═ threads ═▶ outbox ─▶ take

A thread that takes too long is abandoned and replaced.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from any2ds.core.errors import BrokenStep
from any2ds.core.samples import Sample
from any2ds.transforms.chain import Made
from any2ds.transforms.contract import GivenUp

_MOST_LEFT_BEHIND = 100  # threads that hang; beyond that the process gives up


@dataclass(eq=False, slots=True)
class Task:
    """Samples that are to go through a group of steps together."""

    group: int
    samples: list[Sample]  # with bodies of their own, that no buffer knows of
    of: Any = None  # for the caller
    isolated: bool = False  # it is done in a process of its own, which keeps to a limit of time by itself
    memory: int = 0  # bytes of the budget that it has

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(sample.size for sample in self.samples)


class Budget:
    """Bytes that threads may use together; one that needs more than the limit runs alone.

    First come, first served: otherwise a large file would wait as long as small ones arrive.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # of waiting threads
        self._is_closed = False

    def take(self, count: int) -> int:
        """`count`, as soon as there is room for it. Raises GivenUp if the budget is closed."""
        ticket = object()
        with self._changed:
            self._line.append(ticket)
            self._changed.wait_for(lambda: self._is_closed or (self._line[0] is ticket and self._has_room(count)))
            self._line.remove(ticket)
            if self._is_closed:  # else all that wait would decode at once
                raise GivenUp
            self._used += count
            self._changed.notify_all()
        return count

    def change(self, before: int, after: int) -> None:
        """A holder of `before` bytes holds `after` from now on, even beyond the limit."""
        with self._changed:
            self._used += after - before
            self._changed.notify_all()

    def close(self) -> None:
        """End all threads that wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_room(self, count: int) -> bool:
        return not self._used or self._used + count <= self._limit


@dataclass(eq=False, slots=True)
class WorkerThread:
    """A thread and its task."""

    number: int  # from 0; those beyond the size of the pool rest
    thread: threading.Thread | None = None
    task: Task | None = None  # since `began`
    began: float = 0.0
    step: str = ""  # that is being made ready
    is_left: bool = False  # it was given up

    def begin(self) -> None:
        """The clock of its timeout starts now."""
        self.began = time.monotonic()


Work = Callable[[Task, WorkerThread], Made]
"""Does a task in a thread. Raises what concerns all rows."""


@dataclass(eq=False, slots=True)
class _Done:
    task: Task | None  # None: a thread cannot work at all
    made: Made | BaseException
    held: int = 0  # bytes of the budget that what was made has


class ThreadPool:
    """Up to `most` threads at work, which are started as they are needed.

    All methods but `pause` belong to one thread.
    """

    def __init__(self, most: int, budget: Budget, timeout: float, work: Work) -> None:
        """`work` is called in the threads. `timeout` is in seconds, 0 for none."""
        self.most = most
        self.queued = 0  # tasks that were put and not taken
        self.queued_bytes = 0
        self._budget, self._timeout, self._work = budget, timeout, work
        self._inbox: SimpleQueue[Task | None] = SimpleQueue()
        self._outbox: SimpleQueue[_Done] = SimpleQueue()
        self._threads: list[WorkerThread] = []
        self._left: list[threading.Thread] = []  # that were given up, and may still run
        self._ending = threading.Lock()  # its holder decides how a task ends
        self._resized = threading.Condition()
        self._is_closed = False

    def resize(self, most: int) -> None:
        """So many threads are to work from now on; of more each ends its task, and rests."""
        if most != self.most:
            with self._resized:
                self.most = most
                self._resized.notify_all()
            self._start_missing()

    def put(self, task: Task) -> None:
        self.queued += 1
        self.queued_bytes += task.size
        self._start_missing()
        self._inbox.put(task)

    def _start_missing(self) -> None:
        while len(self._threads) < min(self.most, self.queued):
            self._start(len(self._threads))

    def take(self, seconds: float = 0.0) -> Iterator[tuple[Task, Made | None]]:
        """Finished tasks with their results, None for one that took too long; waits up to `seconds` if there is none.

        Raises what concerns all rows: BrokenStep, DiskFull, and whatever keeps a thread from working at all.
        """
        if seconds and self.queued and self._outbox.empty():
            with contextlib.suppress(Empty):
                yield self._taken(self._outbox.get(timeout=seconds))
        while not self._outbox.empty():
            yield self._taken(self._outbox.get())
        yield from self._late()

    def close(self) -> None:
        """Abandon running tasks without waiting for them."""
        with self._resized:
            self._is_closed = True
            self._resized.notify_all()
        self._budget.close()
        for _ in self._threads:
            self._inbox.put(None)

    def _taken(self, done: _Done) -> tuple[Task, Made]:
        if done.task is not None:
            self._budget.change(done.held, 0)
            self._forget(done.task)
        if isinstance(done.made, BaseException):
            raise done.made
        assert done.task is not None
        return done.task, done.made

    def _forget(self, task: Task) -> None:
        self.queued -= 1
        self.queued_bytes -= task.size

    def _late(self) -> Iterator[tuple[Task, None]]:
        now = time.monotonic()
        for worker_thread in list(self._threads):
            task, began = worker_thread.task, worker_thread.began
            if task is None or task.isolated or not (began and self._timeout) or now - began <= self._timeout:
                continue
            with self._ending:
                if worker_thread.task is not task or worker_thread.began != began:
                    continue  # it has ended, or gone on, in this very moment
                if worker_thread.step:
                    raise BrokenStep(
                        f"transform={worker_thread.step} was not ready within {self._timeout:g} s (--transform_timeout)"
                    )
                worker_thread.is_left = True
                _interrupt(worker_thread)
            self._budget.change(task.memory, 0)  # else one that never ends would hold up the others for ever
            self._leave(worker_thread)
            self._forget(task)
            yield task, None

    def _leave(self, worker_thread: WorkerThread) -> None:
        self._threads.remove(worker_thread)
        assert worker_thread.thread is not None
        self._left = [*(one for one in self._left if one.is_alive()), worker_thread.thread]
        if len(self._left) > _MOST_LEFT_BEHIND:
            raise RuntimeError(f"{len(self._left)} files have taken longer than --transform_timeout, and still do")
        self._start(worker_thread.number)

    def _start(self, number: int) -> None:
        worker_thread = WorkerThread(number)
        worker_thread.thread = threading.Thread(
            target=self._run, args=(worker_thread,), name="any2ds-transform", daemon=True
        )
        self._threads.append(worker_thread)
        worker_thread.thread.start()

    # --- in the threads ---

    def pause(self, worker_thread: WorkerThread) -> None:
        """Its clock stands still until it begins again. Raises GivenUp if it was given up."""
        with self._ending:
            if worker_thread.is_left:
                raise GivenUp
            worker_thread.began = 0.0

    def _run(self, worker_thread: WorkerThread) -> None:
        try:
            while (task := self._next_for(worker_thread)) is not None:
                if self._is_closed or not self._do(task, worker_thread):
                    return
        except GivenUp:
            return
        except BaseException as error:
            self._outbox.put(_Done(None, error))

    def _next_for(self, worker_thread: WorkerThread) -> Task | None:
        """None: the pool is closed."""
        if worker_thread.number >= self.most:
            with self._resized:
                self._resized.wait_for(lambda: self._is_closed or worker_thread.number < self.most)
        return None if self._is_closed else self._inbox.get()

    def _do(self, task: Task, worker_thread: WorkerThread) -> bool:
        """Whether this thread is to go on."""
        worker_thread.began, worker_thread.task = 0.0, task
        made: Made | BaseException
        try:
            made = self._work(task, worker_thread)
        except GivenUp:
            return False
        except BaseException as error:
            made = error
        with self._ending:
            if worker_thread.is_left:
                return False
            worker_thread.task, worker_thread.step = None, ""
        # The result counts against the budget until the other thread takes it.
        held = 0 if isinstance(made, BaseException) else _new_bytes(task, made)
        self._budget.change(task.memory, held)
        self._outbox.put(_Done(task, made, held))
        return True


def _new_bytes(task: Task, made: Made) -> int:
    given = {id(sample.body) for sample in task.samples}
    files = [sample for samples in made for sample in samples]
    return sum(sample.size for sample in files if id(sample.body) not in given) + sum(
        len(data) for sample in files for data in sample.members.values()
    )


def _interrupt(worker_thread: WorkerThread) -> None:
    """End the thread of a step that hangs in Python code, which would use the CPU for ever.

    One that waits in a library is not reached.
    """
    thread = worker_thread.thread
    if thread is None or thread.ident is None:
        return
    with contextlib.suppress(Exception):  # not every Python has it
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(GivenUp))
