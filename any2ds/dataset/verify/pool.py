"""Does the same thing with many items in child processes, and outlives whatever an item does to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from any2ds.core.errors import RunError
from any2ds.core.processes.child_process import Answering, ChildEnded

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_SECONDS = 0.5  # between two chances to be interrupted, where waiting cannot be (Windows)


def each(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
    lost: Callable[[Item, str], Result],
) -> Iterator[Result]:
    """`work(item)` for all items, in any order; where a process died over one, `lost(item, why)`.

    With `processes` 0 it is done here, one after the other. `work`, items and results are pickled. Closing the
    iterator ends the processes at once. Raises RunError if they cannot be started.
    """
    if not processes:
        yield from map(work, items)
        return
    pool = _Pool(work, iter(items), lost)
    try:
        yield from pool.results(processes)
    finally:
        pool.stop()


class _Pool:
    """A thread for each child: gives it an item, waits for the result."""

    def __init__(self, work: Any, items: Iterator[Any], lost: Callable[[Any, str], Any]) -> None:
        self._work, self._items, self._lost = work, items, lost
        self._lock = threading.Lock()
        self._children: list[Answering[Any, Any]] = []
        self._stopped = threading.Event()
        self._said: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def results(self, processes: int) -> Iterator[Any]:
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(processes)]
        for thread in threads:
            thread.start()
        working = processes
        while working:
            try:
                what, value = self._said.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue
            if what == "error":
                raise value
            if what == "end":
                working -= 1
            else:
                yield value

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            children = list(self._children)
        for child in children:
            child.kill()
        for child in children:
            child.wait()

    def _serve(self) -> None:
        child = None
        try:
            while (found := self._next()) is not None:
                child = child or self._start()
                if child is None:
                    return
                try:
                    done = child.ask(found[0])
                except ChildEnded as error:
                    self._forget(child)
                    child = None
                    done = self._lost(found[0], f"the process that read it {error}")
                self._said.put(("result", done))
        except Exception as error:
            self._said.put(("error", error))
        finally:
            if child is not None:
                self._forget(child)
                child.end()
            self._said.put(("end", None))

    def _next(self) -> tuple[Any] | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            return next(((item,) for item in self._items), None)

    def _start(self) -> Answering[Any, Any] | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            child = Answering[Any, Any](partial(partial, self._work))
            self._children.append(child)
        try:
            child.begin()
        except ChildEnded as error:
            self._forget(child)
            if self._stopped.is_set():
                return None
            raise RunError(f"a process that is to check shards could not be started: it {error}") from error
        return child

    def _forget(self, child: Answering[Any, Any]) -> None:
        with self._lock:
            self._children.remove(child)
