"""Moves bytes with threads, for libraries that wait: each thread reads one URL at a time, by a function of all.

The threads are daemons of our own: an executor would wait for those that hang when the process ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer, ThreadBody
from any2ds.core.errors import error_text
from any2ds.core.failures import Failure
from any2ds.core.processes import open_files
from any2ds.core.samples import Payload
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.policy.hosts import Attempt

_WITHOUT_FILES = Failure("fetch", "connect", "too many open files (ulimit -n)", blame="open_files")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a body that has arrived whole, which the transfer has."""

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

    def __init__(self, attempt: Attempt, url: str, buffer: Buffer, options: FetchOptions) -> None:
        self.attempt, self.url = attempt, url
        self.body = ThreadBody(buffer)
        self.outcome: Answer | Failure
        self.seconds = 0.0  # that it took
        self.stage = "waiting for a thread"  # what it is busy with, in words
        self.running = False
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

    def arrived(self, buffer: Buffer) -> Payload | Failure:
        """In the polling thread: the outcome. Raises the OSError that kept the body from being buffered."""
        outcome = self.outcome
        if self.disk_error is None and isinstance(outcome, Answer):
            body = buffer.adopt(self.body)
            return Payload(body, outcome.media_type, None, None, self.seconds, outcome.etag, outcome.last_modified)
        self.body.discard()
        if self.disk_error is None:
            assert isinstance(outcome, Failure)
            return outcome
        if open_files.is_exhausted(self.disk_error):
            return _WITHOUT_FILES
        raise self.disk_error

    def timed_out(self) -> Failure:
        seconds = time.monotonic() - self._started
        return Failure("fetch", "timeout_total", f"after {seconds:.1f} s, while {self.stage}", received=self.body.size)


Fetch = Callable[[str, ThreadTransfer], Answer | Failure]
"""Hands the body to the transfer as it arrives. What it raises becomes a `fetch_error`, a Refused what that says."""


class ThreadTransport:
    """A `transport.Transport` on as many threads as there are transfers, which are started as they are needed.

    A thread that hangs in a library after its attempt was cancelled is replaced by another one, as long as there are no
    more of these than of the others. `ring` is called from threads whenever an attempt has ended.
    """

    def __init__(self, fetch: Fetch, options: FetchOptions, buffer: Buffer, ring: Callable[[], None]) -> None:
        self._fetch, self._options, self._buffer, self._ring = fetch, options, buffer, ring
        self._most = options.most_transfers
        self._bell = threading.Event()
        self._transfers: dict[Attempt, ThreadTransfer] = {}
        self._change = threading.Condition()  # guards all of the following
        self._waiting: deque[ThreadTransfer] = deque()
        self._ended: deque[ThreadTransfer] = deque()
        self._threads = self._idle = self._stuck = 0
        self._closed = False
        self.waited = 0.0

    def phases(self) -> Phases:
        transfers = [transfer for attempt, transfer in self._transfers.items() if not attempt.late]
        bodies = sum(transfer.body.size > 0 for transfer in transfers)
        return Phases(answers=len(transfers) - bodies, bodies=bodies)

    @property
    def backlog(self) -> int:
        """None: threads attend to their transfers themselves, whatever the polling thread is busy with."""
        return 0

    def expect(self, transfers: int) -> None:
        with self._change:
            self._most = transfers

    def start(self, attempt: Attempt, url: str) -> None:
        transfer = self._transfers[attempt] = ThreadTransfer(attempt, url, self._buffer, self._options)
        with self._change:
            self._waiting.append(transfer)
            self._start_thread()

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
                transfer.body.discard()
            else:
                del self._transfers[transfer.attempt]
                ended.append((transfer.attempt, transfer.arrived(self._buffer)))
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._transfers[attempt].body.size

    def cancel(self, attempt: Attempt) -> Failure:
        transfer = self._transfers.pop(attempt)
        failure = transfer.timed_out()
        with self._change:
            self._stuck += transfer.running
            transfer.abandoned = True  # the thread gives up at its next piece
            self._start_thread()
        return failure

    def wake(self) -> None:
        self._bell.set()

    def close(self) -> None:
        with self._change:
            self._closed = True
            for transfer in self._transfers.values():
                transfer.abandoned = True
            for transfer in self._ended:
                transfer.body.discard()
            for emptied in (self._transfers, self._waiting, self._ended):
                emptied.clear()
            self._change.notify_all()

    def _start_thread(self) -> None:
        """See to it that somebody takes what is waiting."""
        if len(self._waiting) <= self._idle:
            self._change.notify()
        elif self._threads - self._stuck < self._most and self._threads < 2 * self._most:
            try:
                threading.Thread(target=self._run, name="any2ds-fetch", daemon=True).start()
            except RuntimeError:  # as many as the system grants
                if not self._threads:
                    raise
                self._most = self._threads
            else:
                self._threads += 1

    def _run(self) -> None:
        """Transfers, one after the other, until the thread is needed no more."""
        while (transfer := self._take()) is not None:
            transfer.run(self._fetch)
            with self._change:
                transfer.running = False
                if not transfer.abandoned:
                    self._ended.append(transfer)
                else:
                    transfer.body.discard()
                    self._stuck -= not self._closed
                    if self._threads - self._stuck > self._most:
                        self._threads -= 1
                        return
            self._ring()

    def _take(self) -> ThreadTransfer | None:
        with self._change:
            while not self._closed:
                if not self._waiting:
                    self._idle += 1
                    self._change.wait()
                    self._idle -= 1
                elif not (transfer := self._waiting.popleft()).abandoned:
                    transfer.running = True
                    return transfer
        return None


def lack_of_files(error: BaseException) -> Failure | None:
    """The failure of a fetch that ended because no more files or sockets may be open; None if it had another cause."""
    return _WITHOUT_FILES if any(map(open_files.is_exhausted, causes(error))) else None


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
