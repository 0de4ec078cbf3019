"""Runs a function on many items in child processes; a process that dies costs its own item only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import TypeVar

from any2ds.core.errors import RunError
from any2ds.core.processes.child_process import ChildEnded
from any2ds.core.processes.pool import Children, NotStarted

Item = TypeVar("Item")
Result = TypeVar("Result")

_START_TIMEOUT = 600.0  # seconds; a loaded machine takes long to import Arrow


def map_in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, lost: Callable[[Item, str], Result]
) -> Iterator[Result]:
    """Yield `work(item)` for all items, in any order; `lost(item, why)` where a process died over one.

    With `processes` 0, `work` is called in this process. `work`, items and results are pickled. Closing the iterator
    kills the processes. Raises RunError if they cannot be started.
    """
    if not processes:
        yield from map(work, items)
        return
    children = Children[Item, Result](partial(partial, work), _START_TIMEOUT)
    threads = ThreadPoolExecutor(processes)

    def ask(item: Item) -> Result:
        try:
            return children.answer(item, 0)
        except ChildEnded as error:
            return lost(item, f"the process that read it {error}")
        except NotStarted as error:
            raise RunError(f"a process to check shards could not be started: {error}") from error

    try:
        items = iter(items)
        pending = {threads.submit(ask, item) for item in islice(items, 2 * processes)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            pending |= {threads.submit(ask, item) for item in islice(items, len(done))}
            for future in done:
                yield future.result()
    finally:
        children.close()
        threads.shutdown(cancel_futures=True)  # returns when the processes are gone
