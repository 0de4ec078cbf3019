"""Samples of a store, read before they are wanted, so that its answers are not waited for one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Stored = tuple[int, dict[str, Any] | Exception]
"""The number of a shard, and a sample as it lies in it, neither compared with its hash nor decoded; or why it cannot be
read."""
Read = Callable[[Sequence[int]], list[Stored]]
"""The samples of these numbers, in this order."""
Chunk = TypeVar("Chunk")
Found = TypeVar("Found")
_Place = tuple[int, int]
"""The number of a window, and that of a sample in it: an epoch that is padded has some samples in two windows."""

# As much in flight as hides the latency (measured: 30 ms, 500 MB/s), and no more: bytes that come over many connections
# at once come in small pieces, which take twice the CPU.
_CHUNKS = 2  # that are read at once
_CHUNK_BYTES = 24 << 20
_READ_AT_ONCE = 1024  # samples of a chunk, at most


def chunk_size(sample_bytes: int) -> int:
    """How many samples of this size are read at once."""
    return max(1, min(_READ_AT_ONCE, _CHUNK_BYTES // max(1, sample_bytes)))


def in_order(read: Callable[[Chunk], list[Found]], chunks: Iterable[Chunk]) -> Generator[Found]:
    """What is read of each chunk, of which some are read ahead."""
    with _threads() as threads:
        coming: deque[Future[list[Found]]] = deque()
        for chunk in chunks:
            coming.append(threads.submit(read, chunk))
            if len(coming) > _CHUNKS:
                yield from coming.popleft().result()
        while coming:
            yield from coming.popleft().result()


def in_windows(
    read: Read, windows: Iterable[Sequence[int]], block_of: Callable[[int], int], size: int
) -> Iterator[Stored]:
    """The samples of each window, which are read block by block, `size` of them at once.

    `block_of` numbers the blocks, of neighbouring samples, which a store gives in one range. So up to a window of
    samples is in memory, and twice `size`: the next one is read while one is used.
    """
    order: deque[_Place] = deque()  # of the windows whose chunks are known
    ready: dict[_Place, Stored] = {}

    def read_chunk(chunk: Sequence[_Place]) -> list[dict[_Place, Stored]]:
        return [dict(zip(chunk, read([number for _, number in chunk]), strict=True))]

    for found in in_order(read_chunk, _chunks(windows, order, block_of, size)):
        ready.update(found)
        for _ in found:  # as many are given as came
            if order[0] not in ready:
                break
            yield ready.pop(order.popleft())
    for place in order:
        yield ready.pop(place)


def _chunks(
    windows: Iterable[Sequence[int]], order: deque[_Place], block_of: Callable[[int], int], size: int
) -> Iterator[list[_Place]]:
    """The samples of each window, by blocks in the order of their first use; `order` gets them as they are wanted."""
    for turn, window in enumerate(windows):
        blocks: dict[int, list[_Place]] = {}
        places = [(turn, number) for number in window]
        order.extend(places)
        for place in places:
            blocks.setdefault(block_of(place[1]), []).append(place)
        chunk: list[_Place] = []
        for own in blocks.values():
            chunk += own
            if len(chunk) >= size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    threads = ThreadPoolExecutor(_CHUNKS, thread_name_prefix="any2ds-ahead")
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # what is read now may take its time, and is not wanted
