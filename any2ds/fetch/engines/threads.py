"""Moves bytes with threads, for libraries that wait: each thread reads one URL at a time, by a function of all.

The threads are daemons of our own: an executor would wait for those that hang when the process ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.errors import error_text
from any2ds.core.failures import Failure
from any2ds.core.processes import open_files
from any2ds.core.samples import Payload
from any2ds.fetch.engines.transport import WITHOUT_FILES, Phases
from any2ds.fetch.policy.hosts import Attempt


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts about a body that has arrived whole, which the transfer has."""

    media_type: str | None = None
    etag: str | None = None
    last_modified: str | None = None


class Refused(Exception):
    """Ends a fetch from within, with `failure` as its outcome."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure("fetch", code, detail)


class Abandoned(Exception):
    """Ends a fetch whose outcome nobody waits for any more."""


class ThreadTransfer:
    """One attempt on its way, between the thread that fetches and the thread that polls."""

    def __init__(self, attempt: Attempt, url: str, body: Body, options: FetchOptions) -> None:
        self.attempt, self.url = attempt, url
        self.body = body
        self.outcome: Answer | Failure
        self.seconds = 0.0  # that it took
        self.stage = "waiting for a thread"  # what it is busy with, in words
        self.abandoned = False
        self.disk_error: OSError | None = None  # the body could not be buffered
        self._most = options.max_file_bytes
        self._started = time.monotonic()

    def run(self, fetch: Fetch) -> None:
        """In the fetching thread: from its start to its end."""
        self.stage = "connecting"
        try:
            self.outcome = fetch(self.url, self)
        except Refused as refusal:
            self.outcome = refusal.failure
        except Exception as error:  # whatever a library raises for one URL, it concerns no other
            self.outcome = lack_of_files(error) or Failure(
                "fetch", "fetch_error", f"{type(error).__name__}: {error_text(error)}"
            )
        self.seconds = time.monotonic() - self._started

    def receive(self, chunk: bytes) -> None:
        """Take a piece of the body. Raises Refused where a bound is passed, Abandoned where nobody waits for it."""
        if self.abandoned:
            raise Abandoned
        if self.body.size + len(chunk) > self._most:
            raise Refused("too_large", f"more than {self._most} bytes")
        try:
            self.body.write(chunk)
        except OSError as error:
            self.disk_error = error
            raise Abandoned from error
        self.stage = f"receiving the body ({self.body.size} bytes so far)"

    def arrived(self) -> Payload | Failure:
        """In the polling thread: the outcome. Raises the OSError that kept the body from being buffered."""
        answer = self.outcome
        if self.disk_error is None and isinstance(answer, Answer):
            return Payload(self.body, answer.media_type, None, None, self.seconds, answer.etag, answer.last_modified)
        self.body.release()
        if self.disk_error is None:
            assert isinstance(answer, Failure)
            return answer
        if open_files.is_exhausted(self.disk_error):
            return WITHOUT_FILES
        raise self.disk_error

    def timed_out(self) -> Failure:
        seconds = time.monotonic() - self._started
        return Failure("fetch", "timeout_total", f"after {seconds:.1f} s, while {self.stage}", received=self.body.size)


Fetch = Callable[[str, ThreadTransfer], Answer | Failure]
"""Hands the body to the transfer as it arrives. What it raises becomes a `fetch_error`, a Refused what that says."""


class ThreadTransport:
    """A `transport.Transport` on threads, which are started as they are needed and stay.

    A thread may hang in a library after its attempt was cancelled: there are up to twice as many threads as transfers.
    `ring` is called from threads whenever an attempt has ended.
    """

    def __init__(self, fetch: Fetch, options: FetchOptions, buffer: Buffer, ring: Callable[[], None]) -> None:
        self._fetch, self._options, self._buffer, self._ring = fetch, options, buffer, ring
        self._most = options.most_transfers
        self._transfers: dict[Attempt, ThreadTransfer] = {}
        self._waiting: SimpleQueue[ThreadTransfer | None] = SimpleQueue()  # None ends a thread
        self._ended: deque[ThreadTransfer] = deque()
        self._bell = threading.Event()  # rung when one has ended
        self._threads = 0
        self._idle = threading.Semaphore(0)  # threads that will take the next transfers
        self._closed = False
        self.waited = 0.0

    def phases(self) -> Phases:
        transfers = [transfer for attempt, transfer in self._transfers.items() if not attempt.late]
        bodies = sum(transfer.body.size > 0 for transfer in transfers)
        return Phases({"answers": len(transfers) - bodies, "bodies": bodies})

    @property
    def backlog(self) -> int:
        """None: threads attend to their transfers themselves, whatever the polling thread is busy with."""
        return 0

    def carries(self, attempt: Attempt) -> bool:
        """Whether an attempt in flight is one of this engine."""
        return attempt in self._transfers

    def expect(self, transfers: int) -> None:
        self._most = transfers

    def start(self, attempt: Attempt, url: str) -> None:
        transfer = ThreadTransfer(attempt, url, Body(self._buffer), self._options)
        self._transfers[attempt] = transfer
        self._waiting.put(transfer)
        if not self._idle.acquire(blocking=False) and self._threads < 2 * self._most:
            try:
                threading.Thread(target=self._run, name="any2ds-fetch", daemon=True).start()
            except RuntimeError:  # as many as the system grants
                if not self._threads:
                    raise
            else:
                self._threads += 1

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        if wait > 0 and not self._ended:
            since = time.monotonic()
            self._bell.wait(wait)
            self.waited += time.monotonic() - since
        self._bell.clear()
        ended: list[tuple[Attempt, Payload | Failure]] = []
        while self._ended:
            transfer = self._ended.popleft()
            if transfer.abandoned:
                transfer.body.release()
            else:
                del self._transfers[transfer.attempt]
                ended.append((transfer.attempt, transfer.arrived()))
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._transfers[attempt].body.size

    def cancel(self, attempt: Attempt) -> Failure:
        transfer = self._transfers.pop(attempt)
        transfer.abandoned = True  # the thread gives up at its next piece
        return transfer.timed_out()

    def wake(self) -> None:
        self._bell.set()

    def close(self) -> None:
        self._closed = True
        for transfer in self._transfers.values():
            transfer.abandoned = True
        while self._ended:
            self._ended.popleft().body.release()
        for _ in range(self._threads):
            self._waiting.put(None)

    def _run(self) -> None:
        """Fetch what waits, one after the other."""
        while (transfer := self._take()) is not None and not self._closed:
            transfer.run(self._fetch)
            if transfer.abandoned:
                transfer.body.release()
            else:
                self._ended.append(transfer)
            self._ring()

    def _take(self) -> ThreadTransfer | None:
        while True:
            try:
                transfer = self._waiting.get_nowait()
            except Empty:
                self._idle.release()
                transfer = self._waiting.get()
            if transfer is None or not transfer.abandoned:
                return transfer


def lack_of_files(error: BaseException) -> Failure | None:
    """The failure of a fetch that ended because no more files or sockets may be open; None if it had another cause."""
    return WITHOUT_FILES if any(map(open_files.is_exhausted, causes(error))) else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and what led to it, the way libraries wrap one in the other."""
    queue, seen = deque([error]), set()
    while queue:
        found = queue.popleft()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            inner = (*found.args, getattr(found, "reason", None), found.__cause__, found.__context__)
            queue.extend(part for part in inner if isinstance(part, BaseException))
