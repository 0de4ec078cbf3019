"""Moves bytes with libcurl: thousands of transfers on one `CurlMulti`, driven by socket events.

Knows nothing of schedules: it starts attempts, polls, and says how each ended.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin
from urllib.request import getproxies_environment

import pycurl

from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch.certificates import certificate_bundle
from any2ds.fetch.dns import Addresses, Resolver, asks_dns
from any2ds.fetch.rules import address_of, opted_out, product_of, refuses
from any2ds.fetch.schedule import Attempt, spare_places
from any2ds.fetch.urls import normalize
from any2ds.types import Failure, Payload

# Sockets looked at per turn: enough to spread the cost of a turn over many transfers, few enough that a body is
# still in the processor's cache when it is hashed and written (measured: 16 to 64 beat 1 and 256 by 10 to 30 %).
_EVENTS_PER_TURN = 32
_RECEIVE_BUFFER = 1 << 18  # libcurl's maximum is 10 MiB; one buffer per multi handle. Fewer callbacks than with 16 KiB
_NEVER_MS = 2**31 - 1
_BODY_ERRORS = frozenset({pycurl.E_WRITE_ERROR, 61})  # 61: bad encoding; of a redirect the body does not matter
_ERROR_BODY = 1 << 16  # of an error page this much is read, to keep the connection; a longer one costs the connection

# The headers that are read, by their names; their initials in both cases, and H of HTTP/, let most others pass quickly.
_HEADERS = {name.encode(): name for name in ("etag", "last-modified", "location", "x-robots-tag")}
_AUTHORITY = re.compile(r"([a-z]+)://(?:([^/?#@]*)@)?(\[[^\]]*\]|[^/?#:]*)(?::(\d+))?", re.IGNORECASE)
_PORTS = {"http": "80", "https": "443", "ftp": "21", "ftps": "990"}
_SECRET = ("authorization:", "cookie:")  # headers that are not for the hosts to which others redirect
_INITIALS = frozenset(b"eElLxXH")

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
        # Those that hang count as well: without room for them no connection would be kept.
        connections = options.thread_count + spare_places(options) + _EVENTS_PER_TURN
        self._multi.setopt(pycurl.M_MAXCONNECTS, connections)
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
        self._proxied = _proxied(options)
        self._resolver = _resolver(options, self.wake)
        self._waiting: dict[str, dict[_Transfer, None]] = {}  # host name -> transfers that wait for its addresses
        self._resolving: dict[_Transfer, str] = {}  # the same by transfer, the longest wait first
        self._unsent: list[tuple[Attempt, Failure]] = []  # ended before libcurl knew of them

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
        self._send(transfer)

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        """Move bytes, waiting at most `wait` seconds for some to move; what ended since the last call.

        Raises OSError if a body could not be buffered on disk.
        """
        multi = self._multi
        if self._timer is not None:
            wait = min(wait, self._timer - time.monotonic())
        if self._unsent:
            wait = 0.0
        elif self._resolving and self._options.connect_timeout:
            wait = min(wait, max(0.0, next(iter(self._resolving)).connect_by - time.monotonic()))
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
        if self._resolver is not None:
            self._take_addresses(self._resolver)
        ended: list[tuple[Attempt, Payload | Failure]] = []
        remaining = 1
        while remaining:
            remaining, complete, failed = multi.info_read()
            for handle in complete:
                self._end(self._by_handle[handle], ended, None)
            for handle, number, words in failed:
                self._end(self._by_handle[handle], ended, (number, words))
        for attempt, failure in self._unsent:
            if attempt in self._by_attempt:
                ended.append((attempt, failure))
                self._put_back(self._by_attempt[attempt])
        self._unsent.clear()
        return ended

    def cancel(self, attempt: Attempt) -> Failure:
        """Give an attempt up because its time is over, and say how far it came."""
        transfer = self._by_attempt[attempt]
        failure = transfer.timed_out(transfer in self._resolving)
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
            if transfer.sent:
                self._multi.remove_handle(transfer.handle)
            transfer.receiving.discard()
        for transfer in self._by_handle.values():
            transfer.handle.close()
        self._by_attempt.clear()
        if self._resolver is not None:
            self._resolver.close()
        # libcurl waits in here for look-ups that the resolver has not answered, up to 10 s: not in our time.
        threading.Thread(target=self._multi.close, name="any2ds-curl-close", daemon=True).start()
        self._selector.close()
        self._bell.close()
        self._bell_button.close()

    def _send(self, transfer: _Transfer) -> None:
        """Hand a transfer to libcurl as soon as its host's addresses are known, and if they may be asked."""
        if not self._proxied:
            host, port, is_name = _asked(transfer.at)
            if is_name and self._resolver is not None:
                found = self._resolver.lookup(host)
                if found is None:
                    self._waiting.setdefault(host, {})[transfer] = None
                    self._resolving[transfer] = host
                    return
                if isinstance(found, Failure):
                    self._unsent.append((transfer.attempt, transfer.unresolved(found)))
                    return
                self._add_resolved(transfer, host, port, found)
                return
            address = None if is_name else address_of(host)
            if address is not None and (refusal := transfer.refusal(address)):
                self._unsent.append((transfer.attempt, refusal))
                return
            transfer.resolve_nothing()
        self._add(transfer)

    def _add_resolved(self, transfer: _Transfer, host: str, port: str, addresses: Addresses) -> None:
        refusals = [transfer.refusal(address) for address in addresses]
        allowed = tuple(address for address, refusal in zip(addresses, refusals, strict=True) if refusal is None)
        if allowed:
            transfer.resolve(host, port, allowed)
            self._add(transfer)
        elif refusals[0] is not None:
            self._unsent.append((transfer.attempt, refusals[0]))

    def _add(self, transfer: _Transfer) -> None:
        transfer.sent = True
        self._multi.add_handle(transfer.handle)

    def _take_addresses(self, resolver: Resolver) -> None:
        """Send the transfers whose hosts were resolved, and end those whose hosts could not be."""
        for host, found in resolver.finished():
            for transfer in self._waiting.pop(host, ()):
                del self._resolving[transfer]
                if isinstance(found, Failure):
                    self._unsent.append((transfer.attempt, transfer.unresolved(found)))
                else:
                    self._add_resolved(transfer, host, _parts(transfer.at)[3], found)
        if self._resolving and self._options.connect_timeout:
            now = time.monotonic()
            for transfer in self._resolving:
                if transfer.connect_by > now:
                    break
                failure = transfer.timed_out(resolving=True)
                self._unsent.append((transfer.attempt, replace(failure, code="timeout_connect")))

    def _end(
        self,
        transfer: _Transfer,
        ended: list[tuple[Attempt, Payload | Failure]],
        error: tuple[int, str] | None,
    ) -> None:
        """libcurl is done with a transfer: follow its redirect, or say what became of it."""
        outcome: Payload | Failure | None
        if transfer.lines:
            transfer.read_headers()
        if transfer.discarding and (location := transfer.location(error)):
            outcome = transfer.follow(location)
            if outcome is None:
                self._multi.remove_handle(transfer.handle)
                transfer.sent = False
                self._send(transfer)
                return
        else:
            outcome = transfer.succeeded() if error is None else transfer.failed(*error)
        ended.append((transfer.attempt, outcome))
        self._put_back(transfer)

    def _put_back(self, transfer: _Transfer) -> None:
        if transfer.sent:
            self._multi.remove_handle(transfer.handle)
            transfer.sent = False
        elif host := self._resolving.pop(transfer, None):
            waiting = self._waiting[host]
            del waiting[transfer]
            if not waiting:
                del self._waiting[host]
            if self._resolver is not None:
                self._resolver.leave(host)
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
        "_changed",
        "_error",
        "_headers",
        "_opt_outs",
        "_options",
        "_product",
        "_redirects",
        "_refusal",
        "_started",
        "at",
        "attempt",
        "connect_by",
        "discarding",
        "handle",
        "lines",
        "receiving",
        "sent",
        "url",
    )

    def __init__(self, buffer: Buffer, options: FetchOptions, configure: Callable[[Any], None]) -> None:
        self.handle = pycurl.Curl()
        self.receiving = buffer.receive()
        self._options = options
        self._opt_outs = frozenset(options.disallowed_header_directives or ())
        self._product = product_of(options.user_agent)
        self.lines: list[bytes] = []  # of headers, not yet read
        self._headers: dict[str, str] = {}  # of the last answer, those that matter
        self._addresses: list[str] = []  # that were asked, redirects included
        self._changed: set[int] = set()  # libcurl's options that differ from what all handles have
        self.sent = False  # libcurl has it
        configure(self.handle)
        self.handle.setopt(pycurl.WRITEFUNCTION, self._write)
        # All lines are read at once, before the body: ten calls of a function of ours would cost more than the rest.
        self.handle.setopt(pycurl.HEADERFUNCTION, self.lines.append)
        if options.proxy is None:
            self.handle.setopt(pycurl.PREREQFUNCTION, self._connected)

    def begin(self, attempt: Attempt, url: str) -> None:
        self.attempt = attempt
        self.url = self.at = url  # of the row, and where redirects have led
        self._redirects = 0
        self.discarding = False
        self._refusal: tuple[str, str] | None = None  # code and words, where we end the transfer ourselves
        self._error: OSError | None = None
        self.lines.clear()
        self._headers.clear()
        self._addresses.clear()
        self._started = time.monotonic()
        self.connect_by = self._started + self._options.connect_timeout
        if self._changed:
            self._restore()
        self.handle.setopt(pycurl.URL, url)

    def resolve(self, host: str, port: str, addresses: Addresses) -> None:
        """Tell libcurl the addresses of the host that it is about to ask."""
        listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        # The plus lets libcurl forget it, after a minute; without one it never would.
        self.handle.setopt(pycurl.RESOLVE, [f"+{host}:{port}:{listed}"])
        self._changed.add(pycurl.RESOLVE)
        if self._options.connect_timeout:
            left = max(1, int((self.connect_by - time.monotonic()) * 1000))
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, left)
            self._changed.add(pycurl.CONNECTTIMEOUT_MS)

    def resolve_nothing(self) -> None:
        """The host is an address, or libcurl is to resolve it."""
        if pycurl.RESOLVE in self._changed:
            self.handle.unsetopt(pycurl.RESOLVE)
            self._changed.discard(pycurl.RESOLVE)

    def unresolved(self, failure: Failure) -> Failure:
        return replace(failure, detail=f"{failure.detail}: {_parts(self.at)[2]}", final_url=self._end_of_redirects)

    def refusal(self, address: str) -> Failure | None:
        """Why `address` may not be asked, as far as is known before it is connected to."""
        options = self._options
        reason = refuses([*self._addresses, address], options.block_private_addresses, options.allow_link_local)
        if reason is None:
            return None
        return Failure("fetch", "blocked_address", f"{address} {reason}", None, self._end_of_redirects)

    @property
    def _end_of_redirects(self) -> str | None:
        return self.at if self._redirects else None

    def _restore(self) -> None:
        changed, options = self._changed, self._options
        if pycurl.CONNECTTIMEOUT_MS in changed:
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, _connect_milliseconds(options))
        if pycurl.HTTPHEADER in changed:
            self.handle.setopt(pycurl.HTTPHEADER, _request_headers(options))
        changed &= {pycurl.RESOLVE}  # which the next transfer sets anew, or takes back

    def location(self, error: tuple[int, str] | None) -> str | None:
        """Where an answer that is no success sends us, if anywhere; libcurl would resolve by itself there."""
        if self._refusal is not None:
            return None
        if error is not None and error[0] not in _BODY_ERRORS:
            return None
        if self.handle.getinfo(pycurl.RESPONSE_CODE) // 100 != 3:
            return None
        raw = bytes(self.handle.getinfo_raw(pycurl.REDIRECT_URL) or b"")
        if not raw and "location" in self._headers:  # libcurl has not looked, because the body was too long
            with contextlib.suppress(ValueError):
                return urljoin(self.at, self._headers["location"])
        try:
            return raw.decode("utf-8") or None
        except UnicodeDecodeError:  # bytes that are no text are asked for as what they are
            return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in raw)

    def follow(self, location: str) -> Failure | None:
        """Make ready to ask `location`, or say why it is not asked."""
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        at = self._end_of_redirects
        if self._redirects >= self._options.max_redirects:
            return Failure("fetch", "too_many_redirects", f"more than {self._redirects}", status, at)
        url = normalize(location)
        if isinstance(url, Failure) or not url.startswith(("http://", "https://")):
            return Failure("fetch", "bad_redirect", f"to {_scheme(location)}:", status, at)
        self._redirects += 1
        self.discarding = False
        self._headers.clear()
        self.receiving.discard()
        self.connect_by = time.monotonic() + self._options.connect_timeout
        if self._changed:
            self._restore()
        scheme, given, host, port = _parts(url)
        if given is not None:  # used, and not told
            self.at = url.replace(f"{given}@", "", 1)
        else:
            self.at = url
            first_scheme, secret, first_host, first_port = _parts(self.url)
            if (scheme, host, port) != (first_scheme, first_host, first_port):
                self._hold_secrets_back()
            elif secret is not None:
                url = url.replace("://", f"://{secret}@", 1)
        self.handle.setopt(pycurl.URL, url)
        return None

    def _hold_secrets_back(self) -> None:
        """Headers that tell who we are belong to the hosts of the list, not to those that they redirect to."""
        headers = _request_headers(self._options)
        public = [header for header in headers if not header.lower().startswith(_SECRET)]
        if public != headers:
            self.handle.setopt(pycurl.HTTPHEADER, public)
            self._changed.add(pycurl.HTTPHEADER)

    def _connected(self, address: str, *_: Any) -> int:
        """Before each request, on the connection that it is going to use."""
        addresses = self._addresses
        addresses.append(address)
        options = self._options
        if reason := refuses(addresses, options.block_private_addresses, options.allow_link_local):
            self._refusal = ("blocked_address", f"{address} {reason}")
            return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)

    def read_headers(self) -> None:
        """Take what the headers say that have come since the last call; a refusal may follow from it."""
        lines, headers = self.lines, self._headers
        for line in lines:
            if line[0] in _INITIALS:
                if line.startswith(b"HTTP/"):  # of each answer: informational ones and the proxy's included
                    self.discarding = line.partition(b" ")[2][:1] != b"2"
                    headers.clear()
                    continue
                name, _, value = line.partition(b":")
                key = _HEADERS.get(name.lower())
                if key is not None:
                    text = value.strip().decode("latin-1")
                    headers[key] = f"{headers[key]}, {text}" if key in headers else text
        lines.clear()
        if "x-robots-tag" in headers and not self.discarding and self._refusal is None:
            directive = opted_out(headers["x-robots-tag"], self._product, self._opt_outs)
            if directive is not None:
                self._refusal = ("opted_out", f"X-Robots-Tag: {directive}")

    def _write(self, chunk: bytes) -> int | None:
        if self.lines:
            self.read_headers()
            if self._refusal is not None:
                return -1
        receiving = self.receiving
        size = receiving.size + len(chunk)
        if self.discarding:
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
        url = self.at if self._redirects else None
        status = handle.getinfo(pycurl.RESPONSE_CODE) if self.url.startswith("http") else None
        if status is not None and (not 200 <= status < 300 or status in (204, 205)):
            return self._refused(status, url)
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        if not self.receiving.size:
            return Failure("fetch", "empty_body", "", status, url)
        # Raw, because servers put into their headers what they like.
        content_type = handle.getinfo_raw(pycurl.CONTENT_TYPE) or b""
        media_type = content_type.decode("latin-1").partition(";")[0].strip().lower()
        headers = self._headers
        return Payload(
            self.receiving.finish(),
            media_type or None,
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
        url = self._end_of_redirects
        words = words.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        if number == pycurl.E_WRITE_ERROR and self.discarding and status:
            return self._refused(status, url)
        code = _CODES.get(number, "fetch_error")
        if number == pycurl.E_OPERATION_TIMEDOUT:
            code = "timeout_stalled" if "too slow" in words else "timeout_connect"
        elif code == "unsupported_scheme" and "HTTP/0.9" in words:
            code = "protocol"  # the answer does not begin as HTTP does
        elif code == "reset" and ("chunk" in words.lower() or "response headers" in words):
            code = "protocol"  # libcurl reports malformed chunks and headers without end as a failure to receive
        elif code == "fetch_error":
            words = f"libcurl error {number}: {words}"
        return Failure("fetch", code, words, status, url)

    def timed_out(self, resolving: bool = False) -> Failure:
        """Why it is given up; `resolving` if it waits for its host's addresses, and libcurl does not have it yet."""
        handle = self.handle
        seconds = time.monotonic() - self._started
        if resolving:
            detail = f"after {seconds:.1f} s, while resolving the host name"
            return Failure("fetch", "timeout_total", detail, None, self._end_of_redirects)
        if not handle.getinfo(pycurl.NAMELOOKUP_TIME):
            where = "resolving the host name"
        elif not handle.getinfo(pycurl.PRETRANSFER_TIME):
            where = "connecting"
        elif not handle.getinfo(pycurl.STARTTRANSFER_TIME):
            where = "waiting for the answer"
        else:
            where = f"receiving the body ({self.receiving.size} bytes so far)"
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        size = self.receiving.size
        return Failure("fetch", "timeout_total", f"after {seconds:.1f} s, while {where}", status, received=size)

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
        (pycurl.HTTPHEADER, _request_headers(options)),
        (pycurl.ACCEPT_ENCODING, "gzip, deflate, br"),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        (pycurl.PROTOCOLS, web | pycurl.PROTO_FTP | pycurl.PROTO_FTPS),
        (pycurl.MAXFILESIZE_LARGE, options.max_file_bytes),
        (pycurl.TCP_KEEPALIVE, 1),
        (pycurl.CAINFO, certificate_bundle()),
        (pycurl.CONNECTTIMEOUT_MS, _connect_milliseconds(options)),
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


def _request_headers(options: FetchOptions) -> list[str]:
    return ["Accept: */*", *(options.headers or ())]


def _connect_milliseconds(options: FetchOptions) -> int:
    """Without a limit of ours there is none: libcurl's own would be 300 s."""
    return int(options.connect_timeout * 1000) or _NEVER_MS


def _resolver(options: FetchOptions, wake: Callable[[], None]) -> Resolver | None:
    """None where libcurl resolves, or a proxy does."""
    if _proxied(options) or options.nameservers == ("os",):
        return None
    return Resolver(options.nameservers, wake)


def _proxied(options: FetchOptions) -> bool:
    """Whether a proxy connects for us; libcurl takes one from the environment as well."""
    return bool(options.proxy or getproxies_environment().keys() - {"no"})


def _parts(url: str) -> tuple[str, str | None, str, str]:
    """Scheme, credentials, host and port of a normalised URL."""
    match = _AUTHORITY.match(url)
    if match is None:
        return "", None, "", ""
    scheme, credentials, host, port = match.groups()
    return scheme.lower(), credentials, host.lower(), port or _PORTS.get(scheme.lower(), "")


def _asked(url: str) -> tuple[str, str, bool]:
    """Host and port of a normalised URL, and whether name servers are to be asked for the host."""
    end = url.find("/", 8)
    return _asked_at(url[:end]) if 0 < end < 300 else _asked_at.__wrapped__(url)


@lru_cache(maxsize=4096)
def _asked_at(origin: str) -> tuple[str, str, bool]:
    _, _, host, port = _parts(origin)
    return host, port, asks_dns(host)


def _scheme(url: str) -> str:
    return url.partition(":")[0][:16]
