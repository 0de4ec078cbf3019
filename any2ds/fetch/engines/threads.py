"""Moves bytes with threads, for libraries that wait: each thread fetches one URL at a time with a client of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer, ThreadBody
from any2ds.core.errors import error_text
from any2ds.core.failures import Failure
from any2ds.core.processes import open_files
from any2ds.core.samples import Payload
from any2ds.fetch.engines.encodings import Decoder, Undecodable
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.policy.hosts import Attempt
from any2ds.fetch.policy.robots import LONGEST
from any2ds.fetch.policy.stall import Flow, StallRule

_FOR_PROBES = 4  # threads
_DECODING = threading.Lock()  # of a body that is decoded when it is there whole
_WITHOUT_FILES = Failure("fetch", "connect", "too many open files (ulimit -n)", blame="open_files")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a body that has arrived whole: a `Payload` but for the body, which is the transfer's."""

    media_type: str | None = None
    http_status: int | None = None
    final_url: str | None = None
    etag: str | None = None
    last_modified: str | None = None


class Client(Protocol):
    """Fetches one URL after the other; belongs to one thread."""

    def fetch(self, url: str, transfer: ThreadTransfer) -> Answer | Failure:
        """Hand the body to `transfer` as it arrives. What is raised becomes a `fetch_error`, a Refused what it says."""
        ...

    def close(self) -> None: ...


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
        self.attempt = attempt
        self.url = url
        self.body = ThreadBody(buffer)
        self.outcome: Answer | Failure
        self.decoder: Decoder | None = None  # of a body with a Content-Encoding
        self.received = 0  # bytes of the body that have come over the network
        self.seconds = 0.0  # that it took
        self.stage = "waiting for a thread"  # what it is busy with, in words
        self.running = False
        self.flow = Flow()
        self.abandoned = False
        self.disk_error: OSError | None = None  # the body could not be buffered
        self._buffer = buffer
        self._options = options
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def run(self, fetch: Callable[[str, ThreadTransfer], Answer | Failure]) -> None:
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
        finally:
            self.seconds = time.monotonic() - self._started
            self._forget_socket()

    def watch(self, connection: socket.socket) -> None:
        """Let `abandon` cut `connection`, on which the thread is going to wait. Raises Abandoned if it is too late."""
        # A descriptor of our own: the library may close its one at any moment, and the number be another file's then.
        copy = socket.fromfd(connection.fileno(), connection.family, connection.type)
        self._forget_socket()
        with self._lock:
            self._socket = copy
        if self.abandoned:
            raise Abandoned

    def restart(self) -> None:
        """Forget what has arrived: it was no answer to this request."""
        self.body.discard()
        self.decoder = None
        self.received = 0

    def receive(self, chunk: bytes) -> bool:
        """Take a piece of the body as it came over the network; whether more is wanted.

        Raises Refused where a bound is passed, Abandoned where nobody waits for it any more.
        """
        if self.abandoned:
            raise Abandoned
        self.received += len(chunk)
        if self.decoder is None or self.decoder.needs_all:
            return self._keep(chunk)
        try:
            for piece in self.decoder.decode(chunk):
                if not self._keep(piece):
                    return False
        except Undecodable as error:
            raise Refused(error.code, str(error)) from error
        most = LONGEST if self.attempt.asks else self._options.max_file_bytes
        if self.received > most and not self.attempt.asks:  # a lot of nothing
            raise Refused("too_large", f"more than {most} bytes")
        return self.received <= most

    def decode(self) -> bool:
        """Decode a body that is there whole, if that has not happened yet; returns and raises as `receive` does."""
        decoder = self.decoder
        if decoder is None or not decoder.needs_all:
            return True
        encoded, self.body = self.body, ThreadBody(self._buffer)
        try:
            with _DECODING:
                for chunk in encoded.pieces():
                    for piece in decoder.decode(chunk):
                        if self.abandoned:
                            raise Abandoned
                        if not self._keep(piece):
                            return False
            return True
        except Undecodable as error:
            raise Refused(error.code, str(error)) from error
        except OSError as error:  # of the disk that the body waits on
            self.disk_error = error
            raise Abandoned from error
        finally:
            encoded.discard()

    def _keep(self, chunk: bytes) -> bool:
        """Take a piece of the file; whether more is wanted."""
        options, body = self._options, self.body
        if self.attempt.asks:
            chunk = chunk[: LONGEST - body.size]
        elif body.size + len(chunk) > options.max_file_bytes:
            raise Refused("too_large", f"more than {options.max_file_bytes} bytes")
        try:
            body.write(chunk)
        except OSError as error:
            self.disk_error = error
            raise Abandoned from error
        self.stage = f"receiving the body ({self.received} bytes so far)"
        return not self.attempt.asks or body.size < LONGEST

    def arrived(self, buffer: Buffer) -> Payload | Failure:
        """In the polling thread: the outcome. Raises the OSError that kept the body from being buffered."""
        outcome = self.outcome
        if self.disk_error is not None:
            self.body.discard()
            if open_files.is_exhausted(self.disk_error):
                return _WITHOUT_FILES
            raise self.disk_error
        if isinstance(outcome, Failure):
            self.body.discard()
            return outcome
        return Payload(
            buffer.adopt(self.body),
            outcome.media_type,
            outcome.http_status,
            outcome.final_url,
            self.seconds,
            outcome.etag,
            outcome.last_modified,
        )

    def abandon(self) -> None:
        """In the polling thread: the thread gives up at its next piece, at once if it waits on a watched connection."""
        self.abandoned = True
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it was closed by the other side
                    self._socket.shutdown(socket.SHUT_RDWR)

    def timed_out(self) -> Failure:
        seconds = time.monotonic() - self._started
        return Failure("fetch", "timeout_total", f"after {seconds:.1f} s, while {self.stage}", received=self.received)

    def _forget_socket(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


class ThreadTransport:
    """A `transport.Transport` on as many threads as there are transfers, which are started as they are needed.

    A thread that hangs in a look-up or a library after its attempt was cancelled is replaced by another one, as long
    as there are no more of these than of the others; they are daemons, and nobody waits for them at the end.
    `ring` is called from them whenever an attempt has ended.
    """

    def __init__(
        self, connect: Callable[[], Client], options: FetchOptions, buffer: Buffer, ring: Callable[[], None]
    ) -> None:
        self._connect, self._options, self._buffer, self._ring = connect, options, buffer, ring
        self._most = options.most_transfers
        self._stall_rule = StallRule(options.stall_timeout, options.min_speed)
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
            if attempt.probe:  # which must not wait for the threads that it asks about
                self._waiting.appendleft(transfer)
                self._start_threads(_FOR_PROBES)
            else:
                self._waiting.append(transfer)
                self._start_threads()

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
        if self._stall_rule.due(time.monotonic()):
            for attempt, transfer in list(self._transfers.items()):
                if transfer.running and self._stall_rule.stalled(transfer.flow, transfer.received):
                    ended.append((attempt, replace(self.cancel(attempt), code="timeout_stalled")))
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._transfers[attempt].received

    def cancel(self, attempt: Attempt) -> Failure:
        transfer = self._transfers.pop(attempt)
        failure = transfer.timed_out()
        with self._change:
            self._stuck += transfer.running
            transfer.abandon()
            self._start_threads()
        return failure

    def wake(self) -> None:
        self._bell.set()

    def close(self) -> None:
        with self._change:
            if self._closed:
                return
            self._closed = True
            for transfer in self._transfers.values():
                transfer.abandon()
            self._transfers.clear()
            self._waiting.clear()
            for transfer in self._ended:
                transfer.body.discard()
            self._ended.clear()
            self._change.notify_all()

    def _start_threads(self, beyond: int = 0) -> None:
        """See to it that somebody takes what is waiting, with so many threads beyond the usual number."""
        if len(self._waiting) <= self._idle:
            self._change.notify()
        elif self._threads - self._stuck < self._most + beyond and self._threads < 2 * self._most + beyond:
            try:
                threading.Thread(target=self._run, name="any2ds-fetch", daemon=True).start()
            except RuntimeError:  # as many as the system grants
                if not self._threads:
                    raise
                self._most = self._threads
            else:
                self._threads += 1

    def _run(self) -> None:
        client: Client | None = None

        def fetch(url: str, transfer: ThreadTransfer) -> Answer | Failure:
            nonlocal client
            client = client or self._connect()
            return client.fetch(url, transfer)

        try:
            for transfer in self._work():
                transfer.run(fetch)
        finally:
            if client is not None:
                client.close()

    def _work(self) -> Iterator[ThreadTransfer]:
        """Transfers for one thread, until it is needed no more."""
        while (transfer := self._take()) is not None:
            yield transfer
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
                    self._stall_rule.begin(transfer.flow)
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
