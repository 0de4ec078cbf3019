"""Samples of a store, read before they are wanted, so that its answers are not waited for one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

Stored = tuple[int, dict[str, Any] | Exception]
"""The number of a shard, and a sample as it lies in it, neither compared with its hash nor decoded; or why it cannot be
read."""
Read = Callable[[Sequence[int]], list[Stored]]
"""The samples of these numbers, in this order."""

# As much in flight as hides the latency (measured: 30 ms, 500 MB/s), and no more: bytes that come over many connections
# at once come in small pieces, which take twice the CPU.
_CHUNKS = 2  # that are read at once
_CHUNK_BYTES = 24 << 20
_READ_AT_ONCE = 1024  # samples of a chunk, at most


def chunk_size(sample_bytes: int) -> int:
    """How many samples of this size are read at once."""
    return max(1, min(_READ_AT_ONCE, _CHUNK_BYTES // max(1, sample_bytes)))


def in_order(read: Read, numbers: Iterable[Sequence[int]]) -> Generator[Stored]:
    """The samples of each chunk of numbers, of which some are read ahead."""
    with _threads() as threads:
        coming: deque[Future[list[Stored]]] = deque()
        for chunk in numbers:
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
    orders: deque[Sequence[int]] = deque()  # windows whose chunks are known
    chunks = _chunks(windows, orders, block_of, size)
    with _threads() as threads:
        coming: deque[tuple[Future[list[Stored]], list[int]]] = deque()
        ready: dict[int, Stored] = {}
        held = 0  # samples that are ready or coming

        def submit(most: int) -> bool:
            """Whether there was another chunk, if fewer samples than this are held."""
            nonlocal held
            if held >= most or (chunk := next(chunks, None)) is None:
                return False
            coming.append((threads.submit(read, chunk), chunk))
            held += len(chunk)
            return True

        while submit(1) or orders:
            order = orders.popleft()
            most = len(order) + _CHUNKS * size
            for number in order:
                while number not in ready:
                    while len(coming) < _CHUNKS and submit(most):
                        continue
                    if not coming:
                        submit(held + 1)
                    future, chunk = coming.popleft()
                    ready.update(zip(chunk, future.result(), strict=True))
                yield ready.pop(number)
                held -= 1
                if len(coming) < _CHUNKS:
                    submit(most)


def _chunks(
    windows: Iterable[Sequence[int]], orders: deque[Sequence[int]], block_of: Callable[[int], int], size: int
) -> Iterator[list[int]]:
    """The numbers of each window, by blocks in the order of their first use; `orders` gets the windows."""
    for window in windows:
        orders.append(window)
        blocks: dict[int, list[int]] = {}
        for number in window:
            blocks.setdefault(block_of(number), []).append(number)
        chunk: list[int] = []
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
