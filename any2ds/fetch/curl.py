"""Moves bytes with libcurl: thousands of transfers on one `CurlMulti`, driven by socket events.

Knows nothing of schedules: it starts attempts, polls, and says how each ended.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pycurl

from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch.certificates import certificate_bundle
from any2ds.fetch.rules import opted_out, product_of, refuses
from any2ds.fetch.schedule import Attempt
from any2ds.types import Failure, Payload

# Sockets looked at per turn: enough to spread the cost of a turn over many transfers, few enough that a body is
# still in the processor's cache when it is hashed and written (measured: 16 to 64 beat 1 and 256 by 10 to 30 %).
_EVENTS_PER_TURN = 32
_RECEIVE_BUFFER = 1 << 18  # libcurl's maximum is 10 MiB; one buffer per multi handle. Fewer callbacks than with 16 KiB
_NEVER_MS = 2**31 - 1
_ERROR_BODY = 1 << 16  # of an error page this much is read, to keep the connection; a longer one costs the connection

# The headers that are read, by their names; their initials in both cases let most others pass quickly.
_HEADERS = {b"etag": "etag", b"last-modified": "last-modified", b"x-robots-tag": "x-robots-tag"}
_INITIALS = frozenset({b"e", b"E", b"l", b"L", b"x", b"X"})

_CODES = {
    pycurl.E_UNSUPPORTED_PROTOCOL: "unsupported_scheme",
    pycurl.E_URL_MALFORMAT: "bad_url",
    pycurl.E_COULDNT_RESOLVE_PROXY: "dns",
    pycurl.E_COULDNT_RESOLVE_HOST: "dns",
    pycurl.E_COULDNT_CONNECT: "connect",
    8: "protocol",  # CURLE_WEIRD_SERVER_REPLY
    9: "access_denied",  # CURLE_REMOTE_ACCESS_DENIED
    16: "reset",  # CURLE_HTTP2
    pycurl.E_PARTIAL_FILE: "truncated",
    19: "not_found",  # CURLE_FTP_COULDNT_RETR_FILE
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_TOO_MANY_REDIRECTS: "too_many_redirects",
    pycurl.E_GOT_NOTHING: "reset",
    pycurl.E_SEND_ERROR: "reset",
    pycurl.E_RECV_ERROR: "reset",
    58: "tls",  # CURLE_SSL_CERTPROBLEM
    59: "tls",  # CURLE_SSL_CIPHER
    60: "tls",  # CURLE_PEER_FAILED_VERIFICATION
    61: "bad_encoding",  # CURLE_BAD_CONTENT_ENCODING
    63: "too_large",  # CURLE_FILESIZE_EXCEEDED
    66: "tls",  # CURLE_SSL_ENGINE_INITFAILED
    67: "access_denied",  # CURLE_LOGIN_DENIED
    77: "tls",  # CURLE_SSL_CACERT_BADFILE
    78: "not_found",  # CURLE_REMOTE_FILE_NOT_FOUND
    83: "tls",  # CURLE_SSL_ISSUER_ERROR
    91: "tls",  # CURLE_SSL_INVALIDCERTSTATUS
    92: "reset",  # CURLE_HTTP2_STREAM
}


class CurlTransport:
    """Every method but `wake` belongs to one thread."""

    def __init__(self, options: FetchOptions, buffer: Buffer) -> None:
        self._options = options
        self._buffer = buffer
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, options.thread_count + _EVENTS_PER_TURN)
        self._selector = selectors.DefaultSelector()
        self._watched: set[int] = set()
        self._ready: deque[tuple[int, int]] = deque()  # sockets that were found ready and not yet attended to
        self._timer: float | None = None  # when libcurl wants to be called, by time.monotonic()
        self._idle: list[_Transfer] = []
        self._by_handle: dict[Any, _Transfer] = {}
        self._by_attempt: dict[Attempt, _Transfer] = {}
        self._configure = _configuration(options)
        self._bell, self._bell_button = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_button.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._closed = False

    @property
    def backlog(self) -> int:
        """Sockets that are known to be ready and wait for `poll`."""
        return len(self._ready)

    def start(self, attempt: Attempt, url: str) -> None:
        """Begin to fetch `url`, which has been normalised."""
        if self._idle:
            transfer = self._idle.pop()
        else:
            transfer = _Transfer(self._buffer, self._options, self._configure)
            self._by_handle[transfer.handle] = transfer
        transfer.begin(attempt, url)
        self._by_attempt[attempt] = transfer
        self._multi.add_handle(transfer.handle)

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        """Move bytes, waiting at most `wait` seconds for some to move; what ended since the last call.

        Raises OSError if a body could not be buffered on disk.
        """
        multi = self._multi
        if self._timer is not None:
            wait = min(wait, self._timer - time.monotonic())
        ready = self._ready
        if not ready:
            ready.extend((key.fd, events) for key, events in self._selector.select(wait))
        for _ in range(min(len(ready), _EVENTS_PER_TURN)):
            fd, events = ready.popleft()
            if fd == self._bell.fileno():
                self._silence_bell()
            elif fd in self._watched:
                # selectors and libcurl agree on the numbers: 1 for reading, 2 for writing.
                multi.socket_action(fd, events)
        if self._timer is not None and self._timer <= time.monotonic():
            self._timer = None
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        ended: list[tuple[Attempt, Payload | Failure]] = []
        remaining = 1
        while remaining:
            remaining, complete, failed = multi.info_read()
            for handle in complete:
                transfer = self._by_handle[handle]
                ended.append((transfer.attempt, transfer.succeeded()))
                self._put_back(transfer)
            for handle, number, words in failed:
                transfer = self._by_handle[handle]
                ended.append((transfer.attempt, transfer.failed(number, words)))
                self._put_back(transfer)
        return ended

    def cancel(self, attempt: Attempt) -> Failure:
        """Give an attempt up because its time is over, and say how far it came."""
        transfer = self._by_attempt[attempt]
        failure = transfer.timed_out()
        self._put_back(transfer)
        return failure

    def wake(self) -> None:
        """End a waiting `poll`; may be called from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell_button.send(b"\0")

    def close(self) -> None:
        """Abort everything. Returns at once, even while the system's resolver hangs."""
        if self._closed:
            return
        self._closed = True
        for transfer in self._by_attempt.values():
            self._multi.remove_handle(transfer.handle)
            transfer.receiving.discard()
        for transfer in self._by_handle.values():
            transfer.handle.close()
        self._by_attempt.clear()
        # libcurl waits in here for look-ups that the resolver has not answered, up to 10 s: not in our time.
        threading.Thread(target=self._multi.close, name="any2ds-curl-close", daemon=True).start()
        self._selector.close()
        self._bell.close()
        self._bell_button.close()

    def _put_back(self, transfer: _Transfer) -> None:
        self._multi.remove_handle(transfer.handle)
        transfer.receiving.discard()
        del self._by_attempt[transfer.attempt]
        self._idle.append(transfer)

    def _watch(self, events: int, fd: int, multi: Any, data: Any) -> None:
        if self._closed:
            return
        if events == pycurl.POLL_REMOVE:
            if fd in self._watched:
                self._watched.discard(fd)
                self._selector.unregister(fd)
        elif fd in self._watched:
            self._selector.modify(fd, events)
        else:
            self._watched.add(fd)
            self._selector.register(fd, events)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def _silence_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                continue


class _Transfer:
    """A libcurl handle and what it is doing; used again for one attempt after the other."""

    __slots__ = (
        "_addresses",
        "_discarding",
        "_error",
        "_headers",
        "_opt_outs",
        "_options",
        "_product",
        "_refusal",
        "_started",
        "attempt",
        "handle",
        "receiving",
        "url",
    )

    def __init__(self, buffer: Buffer, options: FetchOptions, configure: Callable[[Any], None]) -> None:
        self.handle = pycurl.Curl()
        self.receiving = buffer.receive()
        self._options = options
        self._opt_outs = frozenset(options.disallowed_header_directives or ())
        self._product = product_of(options.user_agent)
        self._headers: dict[str, str] = {}  # of the last answer, those that matter
        self._addresses: list[str] = []  # that were asked, redirects included
        configure(self.handle)
        self.handle.setopt(pycurl.WRITEFUNCTION, self._write)
        self.handle.setopt(pycurl.HEADERFUNCTION, self._header)
        if options.proxy is None:
            self.handle.setopt(pycurl.PREREQFUNCTION, self._connected)

    def begin(self, attempt: Attempt, url: str) -> None:
        self.attempt = attempt
        self.url = url
        self._discarding = False
        self._refusal: tuple[str, str] | None = None  # code and words, where we end the transfer ourselves
        self._error: OSError | None = None
        self._headers.clear()
        self._addresses.clear()
        self._started = time.monotonic()
        self.handle.setopt(pycurl.URL, url)

    def _connected(self, address: str, *_: Any) -> int:
        """Before each request, on the connection that it is going to use."""
        addresses = self._addresses
        addresses.append(address)
        options = self._options
        if reason := refuses(addresses, options.block_private_addresses, options.allow_link_local):
            self._refusal = ("blocked_address", f"{address} {reason}")
            return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)

    def _header(self, line: bytes) -> int | None:
        if line.startswith(b"HTTP/"):  # of each answer on the way, redirects included
            self._discarding = line.partition(b" ")[2][:1] != b"2"
            self._headers.clear()
        elif line[:1] in _INITIALS:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in _HEADERS:
                text = value.strip().decode("latin-1")
                before = self._headers.get(_HEADERS[name])
                self._headers[_HEADERS[name]] = f"{before}, {text}" if before else text
        elif line == b"\r\n" and "x-robots-tag" in self._headers and not self._discarding:
            directive = opted_out(self._headers["x-robots-tag"], self._product, self._opt_outs)
            if directive is not None:
                self._refusal = ("opted_out", f"X-Robots-Tag: {directive}")
                return -1
        return None

    def _write(self, chunk: bytes) -> int | None:
        receiving = self.receiving
        size = receiving.size + len(chunk)
        if self._discarding:
            receiving.size = size
            return None if size <= _ERROR_BODY else -1
        if size > self._options.max_file_bytes:
            self._refusal = ("too_large", f"more than {self._options.max_file_bytes} bytes")
            return -1
        try:
            receiving.write(chunk)
        except OSError as error:
            self._error = error
            return -1
        return None

    def succeeded(self) -> Payload | Failure:
        handle = self.handle
        url = None
        if handle.getinfo(pycurl.REDIRECT_COUNT):
            url = handle.getinfo(pycurl.EFFECTIVE_URL)
        status = handle.getinfo(pycurl.RESPONSE_CODE) if self.url.startswith("http") else None
        if status is not None and (not 200 <= status < 300 or status in (204, 205)):
            return self._refused(status, url)
        if not self.receiving.size:
            return Failure("fetch", "empty_body", "", status, url)
        media_type = handle.getinfo(pycurl.CONTENT_TYPE)
        if media_type is not None:
            media_type = media_type.partition(";")[0].strip().lower() or None
        headers = self._headers
        return Payload(
            self.receiving.finish(),
            media_type,
            status,
            url,
            time.monotonic() - self._started,
            headers.get("etag"),
            headers.get("last-modified"),
        )

    def failed(self, number: int, words: str) -> Failure:
        """Translate libcurl's error `number`. Raises the OSError that stopped this transfer, if one did."""
        if self._error is not None:
            raise self._error
        handle = self.handle
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        url = handle.getinfo(pycurl.EFFECTIVE_URL) if handle.getinfo(pycurl.REDIRECT_COUNT) else None
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        if number == pycurl.E_WRITE_ERROR and self._discarding and status:
            return self._refused(status, url)
        code = _CODES.get(number, "fetch_error")
        if number == pycurl.E_OPERATION_TIMEDOUT:
            code = "timeout_stalled" if "too slow" in words else "timeout_connect"
        elif code == "unsupported_scheme" and "HTTP/0.9" in words:
            code = "protocol"  # the answer does not begin as HTTP does
        elif code == "unsupported_scheme" and status is not None:
            code = "bad_redirect"
        elif code == "reset" and "chunk" in words.lower():
            code = "protocol"  # libcurl reports malformed chunks as a failure to receive
        elif code == "fetch_error":
            words = f"libcurl error {number}: {words}"
        return Failure("fetch", code, words, status, url)

    def timed_out(self) -> Failure:
        handle = self.handle
        seconds = time.monotonic() - self._started
        if not handle.getinfo(pycurl.NAMELOOKUP_TIME):
            where = "resolving the host name"
        elif not handle.getinfo(pycurl.PRETRANSFER_TIME):
            where = "connecting"
        elif not handle.getinfo(pycurl.STARTTRANSFER_TIME):
            where = "waiting for the answer"
        else:
            where = f"receiving the body ({self.receiving.size} bytes so far)"
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        return Failure("fetch", "timeout_total", f"after {seconds:.1f} s, while {where}", status)

    def _refused(self, status: int, url: str | None) -> Failure:
        wait = self.handle.getinfo(pycurl.RETRY_AFTER) if status in (429, 503) else 0  # libcurl reads dates as well
        return Failure("fetch", f"http_{status}", "", status, url, float(wait) or None)


def _configuration(options: FetchOptions) -> Callable[[Any], None]:
    """What every handle of a run has in common."""
    web = pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
    settings: list[tuple[int, Any]] = [
        (pycurl.NOSIGNAL, 1),
        (pycurl.BUFFERSIZE, _RECEIVE_BUFFER),
        (pycurl.USERAGENT, options.user_agent),
        (pycurl.HTTPHEADER, ["Accept: */*", *(options.headers or ())]),
        (pycurl.ACCEPT_ENCODING, "gzip, deflate, br"),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        (pycurl.PROTOCOLS, web | pycurl.PROTO_FTP | pycurl.PROTO_FTPS),
        (pycurl.REDIR_PROTOCOLS, web),
        (pycurl.FOLLOWLOCATION, 1),
        (pycurl.MAXREDIRS, options.max_redirects),
        (pycurl.MAXFILESIZE_LARGE, options.max_file_bytes),
        (pycurl.TCP_KEEPALIVE, 1),
        (pycurl.CAINFO, certificate_bundle()),
        # Without a limit of ours there is none: libcurl's own would be 300 s.
        (pycurl.CONNECTTIMEOUT_MS, int(options.connect_timeout * 1000) or _NEVER_MS),
    ]
    if options.stall_timeout:
        settings.append((pycurl.LOW_SPEED_TIME, max(1, round(options.stall_timeout))))
        settings.append((pycurl.LOW_SPEED_LIMIT, options.min_speed))
    if options.cookies:
        settings.append((pycurl.COOKIEFILE, options.cookies))
    if options.proxy:
        settings.append((pycurl.PROXY, options.proxy))
    if options.ignore_ssl_certificate:
        settings += [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]

    def configure(handle: Any) -> None:
        for name, value in settings:
            handle.setopt(name, value)

    return configure
