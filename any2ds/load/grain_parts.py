"""The samples as the first step of a pipeline of Grain, and how it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grain

if TYPE_CHECKING:
    from any2ds.load.source import Sample, Source

_THREADS = 16  # which wait for a store, in one process
_THREADS_OF_ALL = 64  # of all workers


def read_options(is_local: bool, num_workers: int, num_threads: int | None) -> Any:
    """How many threads of Grain read ahead, and how far, in each process.

    A local sample takes less time than threads take from each other: one thread, or none in a worker, which is ahead
    of the process that trains anyway. Each time that Grain gives a sample it looks at those that are ready, a
    microsecond each: its default of 500 costs more than to read them.
    """
    if num_threads is None and is_local:
        num_threads = 0 if num_workers else 1
    elif num_threads is None:
        num_threads = max(1, min(_THREADS, _THREADS_OF_ALL // max(1, num_workers)))
    ahead = max(2 * num_threads, 16) if num_threads and is_local else 2 * num_threads
    return grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=ahead)


class Samples(grain.MapDataset):  # type: ignore[misc]  # Grain is not there for the type checker
    """`MapDataset.source` without its counters, for which Grain adds up the sizes of all columns of a sample."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._count = source, len(source)

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return repr(self._source)

    def __getitem__(self, item: Any) -> Any:
        return self.slice(item) if isinstance(item, slice) else self._source[item % self._count]

    def _getitems(self, items: Sequence[int]) -> Sequence[Sample]:
        return self._source.__getitems__([item % self._count for item in items])
