"""Moves bytes with libcurl: thousands of transfers on one `CurlMulti`, driven by socket events.

Knows nothing of schedules: it starts attempts, polls, and says how each ended.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, Literal
from urllib.parse import urljoin

import pycurl

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.errors import redacted
from any2ds.core.failures import Failure, http_failure
from any2ds.core.processes import open_files
from any2ds.core.rows import Row
from any2ds.core.samples import LONGEST_FINAL_URL, LONGEST_HEADER, Payload
from any2ds.fetch.engines.certificates import certificate_bundle
from any2ds.fetch.engines.dns import Addresses, Resolver, asks_dns
from any2ds.fetch.engines.encodings import ACCEPTED, BROKEN_STREAM, Decoder, Undecodable, whole_size
from any2ds.fetch.engines.sockets import FIONREAD, ZERO_BYTES, Sockets, ioctl
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.policy.hosts import Attempt
from any2ds.fetch.policy.robots import LONGEST, REDIRECTS, Robots
from any2ds.fetch.policy.rules import PROXIED, address_of, is_for_any_host, opted_out, product_of, refuses
from any2ds.fetch.policy.schedule import spare_transfers
from any2ds.fetch.profiles import Profile, Profiles
from any2ds.fetch.urls import as_referer, environment_has_proxy, environment_proxy, normalize, origin, parts, scheme_of

# Sockets looked at per turn: enough to spread the cost of a turn over many transfers, few enough that a body is
# still in the processor's cache when it is hashed and written (measured: 16 to 64 beat 1 and 256 by 10 to 30 %).
_EVENTS_PER_TURN = 32
_RECEIVE_BUFFER = 1 << 18  # libcurl's maximum is 10 MiB; one buffer per multi handle. Fewer callbacks than with 16 KiB
_REMEMBERED = 4096  # origins
_LONG = 300  # characters; longer ones are not remembered
_GO_ON = int(pycurl.PREREQFUNC_OK)
_NEVER_MS = 2**31 - 1
_BODY_ERRORS = frozenset({pycurl.E_WRITE_ERROR, 61})  # 61: bad encoding; of a redirect the body does not matter
# Errors of a connection that was used before, before the first byte of an answer; of the latter the connection had more
# bytes than belonged to its answers.
_NO_ANSWER = frozenset({1, 8, pycurl.E_GOT_NOTHING, pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR})
_NOT_HTTP = frozenset({1, 8})  # CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY
# Bytes of the headers of one answer that are unusual, and the most of all such answers in flight together.
_LARGE_HEADERS = 1 << 15
_MOST_HELD_HEADERS = 64 << 20
_LOOK_AT_HEADERS = 1.0  # seconds
_ERROR_BODY = 1 << 16  # of an error page this much is read, to keep the connection; a longer one costs the connection

# The headers that are read, by their names; their initials in both cases, and H of HTTP/, let most others pass quickly.
_HEADERS = {
    name.encode(): name
    for name in (
        *("connection", "content-encoding", "content-range", "etag", "last-modified", "location", "set-cookie"),
        "x-robots-tag",
    )
}
_LINES = frozenset({"set-cookie", "x-robots-tag"})  # of which each header counts by itself
_MOST_COOKIES, _LONGEST_COOKIE = 50, 4096  # of one attempt
_NO_TIME_LEFT = re.compile(r"max-age\s*=\s*(?:0|-\d+)")  # how a server deletes a cookie
_NO_ROUTE = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})
_INITIALS = frozenset(b"cCeElLsSxXH")
# Connection, Content-Encoding and Content-Range are read; Content-Type and others are not.
_C, _NINTH = frozenset(b"Cc"), frozenset((b"O", b"o", b"E", b"e", b"R", b"r"))
# In the message of a handshake that failed: it was cut, not refused.
_BROKE_OFF = re.compile("Recv failure|Send failure|unexpected eof|SSL_ERROR_SYSCALL")

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
    61: "bad_encoding",  # CURLE_BAD_CONTENT_ENCODING: of a Transfer-Encoding
    63: "too_large",  # CURLE_FILESIZE_EXCEEDED
    66: "tls",  # CURLE_SSL_ENGINE_INITFAILED
    67: "access_denied",  # CURLE_LOGIN_DENIED
    77: "tls",  # CURLE_SSL_CACERT_BADFILE
    78: "not_found",  # CURLE_REMOTE_FILE_NOT_FOUND
    83: "tls",  # CURLE_SSL_ISSUER_ERROR
    91: "tls",  # CURLE_SSL_INVALIDCERTSTATUS
    92: "reset",  # CURLE_HTTP2_STREAM
    97: "connect",  # CURLE_PROXY: what a SOCKS proxy refuses
    100: "headers_too_large",  # CURLE_TOO_LARGE
}


_SAID_WITHOUT_FILES = frozenset(
    {
        pycurl.E_COULDNT_CONNECT,
        pycurl.E_COULDNT_RESOLVE_HOST,
        pycurl.E_COULDNT_RESOLVE_PROXY,
        pycurl.E_OUT_OF_MEMORY,
        pycurl.E_SSL_CONNECT_ERROR,
        *(2, 58, 60, 66, 77),  # CURLE_FAILED_INIT, and CURLE_SSL_ of certificates and their files
    }
)


class CurlTransport:
    """Every method but `wake` belongs to one thread.

    A handle is configured once, for one profile, and never for another one: what one host was given (a proxy, headers,
    leave to be unverified) cannot stay behind on it. A redirect to a host of another profile goes on with another one.
    """

    def __init__(self, profiles: Profiles, options: FetchOptions, buffer: Buffer, robots: Robots | None = None) -> None:
        self._profiles = profiles
        self._options = options  # those that do not differ by host
        self._buffer = buffer
        self._robots = robots  # whose rules hold for redirects too
        self._multi = pycurl.CurlMulti()
        self._sockets = Sockets()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._sockets.watch)
        # Those that hang count as well: without room for them no connection would be kept.
        most = min(options.most_transfers, buffer.transfers)
        self._keep_connections(most + spare_transfers(options, most) + _EVENTS_PER_TURN)
        self._by_handle: dict[Any, _Transfer] = {}
        self._by_attempt: dict[Attempt, _Transfer] = {}
        self._connections = Connections()
        self._most_handles = 2 * options.most_transfers  # those in use, and idle ones of all profiles
        self._closed = False
        self._resolver = _resolver(options, self.wake)
        self._pools: dict[Profile, _Pool] = {}
        self._default = self._pool(profiles.default)
        self._waiting: dict[str, dict[_Transfer, None]] = {}  # host name -> transfers that wait for its addresses
        self._resolving: dict[_Transfer, str] = {}  # the same by transfer, the longest wait first
        self._unsent: list[tuple[Attempt, Failure]] = []  # ended by us
        self._headers_looked_at = 0.0  # time.monotonic()

    @property
    def waited(self) -> float:
        return self._sockets.waited

    def phases(self) -> Phases:
        waiting = len(self._resolving)
        bodies = others = 0
        for attempt, transfer in self._by_attempt.items():
            if transfer.sent and not attempt.late:
                if transfer.body.size:
                    bodies += 1
                else:
                    others += 1
        return Phases(waiting, others, bodies)

    def expect(self, transfers: int) -> None:
        """So many may be in flight from now on: idle connections beyond that are closed, since they may be too much."""
        self._keep_connections(transfers + min(_EVENTS_PER_TURN, 1 + transfers // 8))  # one turn ends several

    def _keep_connections(self, wanted: int) -> None:
        """Have so many connections, busy and idle, or as many as files may be open."""
        most = min(wanted, open_files.connections())
        self._multi.setopt(pycurl.M_MAXCONNECTS, most)
        # The former closes one for each that comes back; this one as many as it takes, before a new one is made.
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, most)

    @property
    def backlog(self) -> int:
        """Sockets that are known to be ready and wait for `poll`."""
        return self._sockets.backlog

    def start(self, attempt: Attempt, url: str) -> None:
        """Begin to fetch `url`, which has been normalised."""
        pool = self._pool(self._profiles.of(url)) if self._profiles.differ else self._default
        transfer = pool.idle.pop() if pool.idle else self._new(pool)
        transfer.begin(attempt, url)
        self._by_attempt[attempt] = transfer
        self._send(transfer)

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        """Move bytes, waiting at most `wait` seconds for some to move; what ended since the last call.

        Raises OSError if a body could not be buffered on disk.
        """
        multi = self._multi
        # Asked for once a turn: with M_TIMERFUNCTION libcurl calls us twice for each transfer.
        if (milliseconds := multi.timeout()) >= 0:
            wait = min(wait, milliseconds / 1000)
        if self._unsent:
            wait = 0.0
        elif self._resolving and self._options.connect_timeout:
            wait = min(wait, max(0.0, next(iter(self._resolving)).connect_by - time.monotonic()))
        self._sockets.attend(multi, wait, _EVENTS_PER_TURN)
        if multi.timeout() == 0:
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        if self._resolver is not None:
            self._take_addresses(self._resolver)
        if time.monotonic() - self._headers_looked_at > _LOOK_AT_HEADERS:
            self._bound_headers()
        ended: list[tuple[Attempt, Payload | Failure]] = []
        remaining = 1
        while remaining:
            remaining, complete, failed = multi.info_read()
            for handle in complete:
                self._end(self._by_handle[handle], ended, None)
            for handle, number, message in failed:
                self._end(self._by_handle[handle], ended, (number, message))
        for attempt, failure in self._unsent:
            if attempt in self._by_attempt:
                ended.append((attempt, failure))
                self._put_back(self._by_attempt[attempt])
        self._unsent.clear()
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._by_attempt[attempt].received

    def cancel(self, attempt: Attempt) -> Failure:
        """Give an attempt up because its time is over, and say how far it came."""
        transfer = self._by_attempt[attempt]
        failure = transfer.timed_out(transfer in self._resolving)
        if transfer in self._resolving:
            failure = self._unanswered(transfer, failure)
        self._put_back(transfer)
        return failure

    def wake(self) -> None:
        """End a waiting `poll`; may be called from any thread."""
        self._sockets.ring()

    def close(self) -> None:
        """Abort everything. Returns at once, even while the system's resolver hangs."""
        if self._closed:
            return
        self._closed = True
        for transfer in self._by_attempt.values():
            if transfer.sent:
                self._multi.remove_handle(transfer.handle)
            transfer.body.release()
        for transfer in self._by_handle.values():
            transfer.handle.close()
        self._by_attempt.clear()
        if self._resolver is not None:
            self._resolver.close()
        # libcurl waits in here for look-ups that the resolver has not answered, up to 10 s: not in our time.
        threading.Thread(target=self._multi.close, name="any2ds-curl-close", daemon=True).start()
        self._sockets.close()

    def _pool(self, profile: Profile) -> _Pool:
        pool = self._pools.get(profile)
        if pool is None:
            resolver = self._resolver if profile.options.proxy is None else None
            pool = self._pools[profile] = _Pool(profile, resolver)
        return pool

    def _new(self, pool: _Pool) -> _Transfer:
        """A transfer, in the place of one that is idle in another pool if there are enough."""
        if len(self._by_handle) >= self._most_handles:
            for other in self._pools.values():
                while other.idle:
                    unused = other.idle.pop()
                    del self._by_handle[unused.handle]
                    unused.handle.close()
        transfer = _Transfer(self._buffer, pool, self._robots, self._connections)
        self._by_handle[transfer.handle] = transfer
        return transfer

    def _send(self, transfer: _Transfer) -> None:
        """Hand a transfer to libcurl as soon as its host's addresses are known, and if they may be asked."""
        pool, at = transfer.pool, transfer.at
        resolver = pool.resolver
        if pool.may_be_proxied and transfer.choose_proxy():
            if refusal := transfer.refusal_behind_proxy():
                self._unsent.append((transfer.attempt, refusal))
                return
        else:
            origin = at[:end] if (end := at.find("/", 8)) > 0 else at
            if origin in pool.addresses and at is transfer.url:  # else it depends on who has redirected to it
                if transfer.resolved:
                    transfer.resolve_nothing()
                self._add(transfer)
                return
            host, port, is_name = _asked_at(origin) if len(origin) < _LONG else _asked_at.__wrapped__(origin)
            if is_name and resolver is not None:
                found = resolver.lookup(host)
                if found is None:
                    self._waiting.setdefault(host, {})[transfer] = None
                    self._resolving[transfer] = host
                    return
                self._add_resolved(transfer, host, port, found, has_waited=False)
                return
            address = None if is_name else address_of(host)
            if address is not None and (refusal := transfer.refusal(address)):
                self._unsent.append((transfer.attempt, refusal))
                return
            if address is not None and len(pool.addresses) < _REMEMBERED and len(origin) < _LONG:
                pool.addresses.add(origin)
            if address is None:
                transfer.judge_at_sockets()
            transfer.resolve_nothing()
        self._add(transfer)

    def _add_resolved(
        self, transfer: _Transfer, host: str, port: str, found: Addresses | Failure, has_waited: bool = True
    ) -> None:
        if isinstance(found, Failure):
            self._unsent.append((transfer.attempt, transfer.unresolved(found)))
            return
        refusals = [transfer.refusal(address) for address in found]
        allowed = tuple(address for address, refusal in zip(found, refusals, strict=True) if refusal is None)
        if allowed:
            transfer.resolve(host, port, allowed)
            if has_waited:
                transfer.shorten_connect_timeout()
            self._add(transfer)
        elif refusals[0] is not None:
            self._unsent.append((transfer.attempt, refusals[0]))

    def _bound_headers(self) -> None:
        """End transfers whose answers have large headers, if those in flight have too much of them together."""
        self._headers_looked_at = time.monotonic()
        held = 0
        for attempt, transfer in self._by_attempt.items():
            if transfer.sent and (size := transfer.handle.getinfo(pycurl.HEADER_SIZE)) > _LARGE_HEADERS:
                held += size
                if held > _MOST_HELD_HEADERS:
                    detail = f"{size} bytes, while those of other answers take {_MOST_HELD_HEADERS}"
                    self._unsent.append((attempt, Failure("fetch", "headers_too_large", detail)))

    def _add(self, transfer: _Transfer) -> None:
        transfer.sent = True
        self._multi.add_handle(transfer.handle)

    def _take_addresses(self, resolver: Resolver) -> None:
        """Send the transfers whose hosts were resolved, and end those whose hosts could not be."""
        for host, found in resolver.finished():
            for transfer in self._waiting.pop(host, ()):
                del self._resolving[transfer]
                self._add_resolved(transfer, host, parts(transfer.at)[3], found)
        if self._resolving and self._options.connect_timeout:
            now = time.monotonic()
            for transfer in self._resolving:
                if transfer.connect_by > now:
                    break
                failure = self._unanswered(transfer, transfer.timed_out(resolving=True))
                self._unsent.append((transfer.attempt, replace(failure, code="timeout_connect")))

    def _unanswered(self, transfer: _Transfer, failure: Failure) -> Failure:
        """`failure` of a transfer that waits for its host's addresses: ours if the name servers say nothing at all."""
        silent = self._resolver is not None and self._resolver.heard < transfer.started
        return replace(failure, blame="us") if silent else failure

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
        kept = self._connections.kept.get(transfer.connection)
        is_clean = (  # the usual case, in which no method is called
            kept is not None
            and error is None
            and kept.user is transfer
            and not transfer.discarding
            and transfer.handle.getinfo(pycurl.ACTIVESOCKET) == kept.socket
            and ioctl(kept.socket, FIONREAD, ZERO_BYTES) == ZERO_BYTES
        )
        if not is_clean and transfer.must_ask_again(error):
            self._multi.remove_handle(transfer.handle)
            transfer.ask_again()
            self._add(transfer)
            return
        if transfer.discarding and (location := transfer.location(error)):
            target = transfer.redirected(location)
            if isinstance(target, str):
                self._multi.remove_handle(transfer.handle)
                transfer.sent = False
                self._follow(transfer, target)
                return
            outcome = target
        else:
            outcome = transfer.succeeded() if error is None else transfer.failed(*error)
        ended.append((transfer.attempt, outcome))
        self._put_back(transfer)

    def _follow(self, transfer: _Transfer, url: str) -> None:
        if self._profiles.differ:
            pool = self._pool(self._profiles.of(url))
            if pool is not transfer.pool:
                before, transfer = transfer, pool.idle.pop() if pool.idle else self._new(pool)
                transfer.take_over(before)
                self._by_attempt[transfer.attempt] = transfer
                before.pool.idle.append(before)
        transfer.ask(url)
        self._send(transfer)

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
        if transfer.body.size:
            transfer.drop_body()
        del self._by_attempt[transfer.attempt]
        if transfer.handle.getinfo(pycurl.HEADER_SIZE) > _LARGE_HEADERS:  # which libcurl keeps with it
            del self._by_handle[transfer.handle]
            transfer.handle.close()
        else:
            transfer.pool.idle.append(transfer)


class _Pool:
    """The handles of a profile."""

    def __init__(self, profile: Profile, resolver: Resolver | None) -> None:
        options = profile.options
        self.profile = profile
        self.settings = _settings(options)
        # Without a limit of ours there is none: libcurl's own would be 300 s.
        self.connect_milliseconds = int(options.connect_timeout * 1000) or _NEVER_MS
        # By ours, or by one of the environment.
        self.may_be_proxied = bool(options.proxy or environment_has_proxy())
        self.resolver = resolver  # None where libcurl resolves, or a proxy does
        self.idle: list[_Transfer] = []
        self.addresses: set[str] = set()  # origins that are addresses which rows may lead to
        self.headers = _request_headers(options)
        self.public_headers = [header for header in self.headers if is_for_any_host(header.partition(":")[0])]
        self.opt_outs = frozenset(options.disallowed_header_directives or ())
        self.product = product_of(options.user_agent)


_Connection = tuple[str, int, int]  # the address and port of the server, and our port


@dataclass(slots=True)
class _KeptConnection:
    """A connection of HTTP/1: servers of HTTP/2 send when they like."""

    socket: int
    user: _Transfer  # that has begun the last request: libcurl gives it to the next one before it tells of its end


class Connections:
    """The connections that libcurl keeps, so that none is used again on which more came than belonged to its answers.

    libcurl itself does not look at a connection that it has used within the last second.
    """

    def __init__(self) -> None:
        self.kept: dict[_Connection | None, _KeptConnection] = {}
        self._name_of: dict[int, _Connection] = {}  # by socket, whose number is used again when it was closed
        self.never_kept: set[tuple[str, str, str]] = set()  # origins that have sent such bytes

    def keep(self, connection: _Connection, socket: int, user: _Transfer) -> None:
        if (former := self._name_of.get(socket)) is not None:
            self.kept.pop(former, None)
        self._name_of[socket] = connection
        self.kept[connection] = _KeptConnection(socket, user)

    def mark(self, url: str) -> None:
        if len(self.never_kept) < _REMEMBERED:
            self.never_kept.add(origin(url))


class _Transfer:
    """A libcurl handle and what it is doing; used again for one attempt after the other."""

    def __init__(self, buffer: Buffer, pool: _Pool, robots: Robots | None, connections: Connections) -> None:
        self.handle = pycurl.Curl()
        self._connections = connections
        self._robots = robots
        self._buffer = buffer
        self.body = Body(buffer)  # as far as it has arrived
        self._dropped = 0  # bytes of a body that nobody wants, an error page's most often
        self.pool = pool
        self._options = pool.profile.options
        self.lines: list[bytes] = []  # of headers, not yet read
        self._headers: dict[str, str] = {}  # of the last answer, those that matter
        self.resolved = ""  # the addresses of a host, in the notation of libcurl
        self._addresses: list[str] = []  # that were asked, redirects included
        self._proxy = self._options.proxy or ""  # which the next request goes through
        self._cookies: dict[
            tuple[str, str], tuple[str, bool]
        ] = {}  # (host, name) -> name=value, and whether for https only
        self._is_judging_at_sockets = False
        self.sent = False  # libcurl has it
        for name, value in pool.settings:
            self.handle.setopt(name, value)
        self.handle.setopt(pycurl.WRITEFUNCTION, self._write)
        # All lines are read at once, before the body: ten calls of a function of ours would cost more than the rest.
        self.handle.setopt(pycurl.HEADERFUNCTION, self.lines.append)
        self.handle.setopt(pycurl.PREREQFUNCTION, self._connected)

    def begin(self, attempt: Attempt, url: str) -> None:
        self.attempt = attempt
        self.url = self.at = url  # of the row, and where redirects have led
        self._redirects = 0
        self._error: OSError | None = None
        self._addresses.clear()
        self._cookies = {}
        self.started = time.monotonic()
        self._longest = LONGEST if attempt.asks else self._options.max_file_bytes
        self._referer = self._referer_of(attempt.row)
        self._prepare(url, self.pool.headers)

    def take_over(self, other: _Transfer) -> None:
        """Go on in the place of `other`, which has been redirected; `ask` says where."""
        self.attempt, self.url, self.at, self.started = other.attempt, other.url, other.at, other.started
        self._redirects, self._longest, self._error = other._redirects, other._longest, None
        self._addresses[:] = other._addresses
        self._cookies, self._referer = other._cookies, other._referer

    def _referer_of(self, row: Row) -> str | None:
        name = self._options.referer_col
        return None if name is None else as_referer(row.of_list(name))

    def ask(self, url: str) -> None:
        """Make ready to follow a redirect to `url`."""
        given, secret = parts(url)[1], parts(self.url)[1]
        self.at = url if given is None else url.replace(f"{given}@", "", 1)  # used, and not reported
        headers = self.pool.headers
        if origin(self.url) != origin(url):
            # Headers that tell who we are belong to the hosts of the list, not to those that they redirect to; if they
            # were given for this very host, they must not be lured out of the encryption.
            is_downgrade = scheme_of(url) == "http" and scheme_of(self.url) == "https"
            if is_downgrade or not self.pool.profile.has_own_headers:
                headers = self.pool.public_headers
        elif given is None and secret is not None:
            url = url.replace("://", f"://{secret}@", 1)
        self._prepare(url, headers)

    def _prepare(self, url: str, headers: list[str]) -> None:
        """Make ready to send a request. All options that may differ are set, whatever the handle did before."""
        self._forget_answer()
        self.connect_by = time.monotonic() + self._options.connect_timeout
        self._is_fresh = self.attempt.probe or (
            bool(self._connections.never_kept) and origin(self.at) in self._connections.never_kept
        )
        handle = self.handle
        handle.setopt(pycurl.URL, url)
        if self._referer is not None and (self._referer.startswith("http:") or url.startswith("https:")):
            others = (header for header in headers if not header.lower().startswith("referer:"))
            headers = [*others, f"Referer: {self._referer}"]
        handle.setopt(pycurl.HTTPHEADER, headers)
        handle.setopt(pycurl.COOKIE, self._cookies_for(self.at) if self._cookies else None)
        handle.setopt(pycurl.NOBODY, self.attempt.probe)
        handle.setopt(pycurl.MAXFILESIZE_LARGE, 0 if self.attempt.asks else self._longest)
        handle.setopt(pycurl.FRESH_CONNECT, self._is_fresh)
        handle.setopt(pycurl.FORBID_REUSE, self._is_fresh)
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, self.pool.connect_milliseconds)

    def _forget_answer(self) -> None:
        self.discarding = self._cut = False  # enough has been read
        self._is_spoilt = False  # the connection has bytes that belong to no answer
        self._refusal: tuple[str, str] | None = None  # code and message, where we end the transfer ourselves
        self._refusal_at_socket: Failure | None = None  # of an address, of which there may be others
        self._decoder: Decoder | None = None  # of a body with a Content-Encoding
        self._late_decoder: Decoder | None = None  # of one that is decoded when it is there whole
        self.connection: _Connection | None = None  # that the last request has used
        self._dropped = 0
        self.lines.clear()
        self._headers.clear()

    def _cookies_for(self, url: str) -> str | None:
        """The value of the Cookie header: what answers have set on the way of redirects to here."""
        if not url.startswith("http"):
            return None
        return "; ".join(
            text
            for (host, _), (text, is_secure) in self._cookies.items()
            if host == parts(url)[2] and (url.startswith("https:") or not is_secure)
        )

    def _keep_cookies(self, lines: str) -> None:
        """Cookies that an answer sets which redirects: they are for its host, and forgotten with the attempt."""
        for line in lines.split("\n"):
            text, *attributes = map(str.strip, line.split(";"))
            lowered = [attribute.lower() for attribute in attributes]
            is_secure = "secure" in lowered
            place = parts(self.at)[2], text.partition("=")[0].strip()
            if any(_NO_TIME_LEFT.fullmatch(attribute) for attribute in lowered):
                self._cookies.pop(place, None)
            elif (
                text.isascii()
                and text.isprintable()
                and len(text) <= _LONGEST_COOKIE
                and len(self._cookies) < _MOST_COOKIES
                and not (is_secure and self.at.startswith("http:"))
            ):
                self._cookies[place] = text, is_secure

    def must_ask_again(self, error: tuple[int, str] | None) -> bool:
        """Whether what has come may be no answer to this request: what was left on a connection that was used before,
        or its end. Remembers the connection, and the origins whose connections are not to be used again."""
        handle, connection, connections = self.handle, self.connection, self._connections
        if connection is None or self._is_fresh or not self.at.startswith("http"):
            return False
        if self._is_spoilt:  # found before the request was sent
            if self.at.startswith("http:"):  # TLS has messages of its own
                connections.mark(self.at)
            return True
        if error is not None:
            if (
                error[0] not in _NO_ANSWER
                or handle.getinfo(pycurl.NUM_CONNECTS)
                or handle.getinfo(pycurl.RESPONSE_CODE)
            ):
                return False
            if error[0] in _NOT_HTTP:
                connections.mark(self.at)
            return True
        socket = handle.getinfo(pycurl.ACTIVESOCKET)  # -1 if it was closed
        kept = connections.kept.get(connection)
        if kept is None or 0 <= socket != kept.socket:
            if socket >= 0 and handle.getinfo(pycurl.INFO_HTTP_VERSION) < pycurl.CURL_HTTP_VERSION_2_0:
                connections.keep(connection, socket, self)
            return False
        if kept.user is self and self._has_surplus(socket):
            connections.mark(self.at)
            return True
        # A 408 is how a server ends a connection that waited for too long (RFC 9110, 15.5.9).
        return self.discarding and handle.getinfo(pycurl.RESPONSE_CODE) == 408

    def _has_surplus(self, socket: int) -> bool:
        """Whether more than its answers has come on a connection that was used before; -1 if libcurl has closed it."""
        if socket >= 0:  # TLS has messages of its own
            return ioctl(socket, FIONREAD, ZERO_BYTES) != ZERO_BYTES and self.at.startswith("http:")
        handle = self.handle  # libcurl closes it for that, or for one of these reasons
        return (
            not self._proxy
            and handle.getinfo(pycurl.INFO_HTTP_VERSION) == pycurl.CURL_HTTP_VERSION_1_1
            and handle.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T) >= 0
            and "close" not in self._headers.get("connection", "").lower()
        )

    def ask_again(self) -> None:
        """Make ready to send the same request on a new connection."""
        self._forget_answer()
        if self.body.size:
            self.drop_body()
        self._is_fresh = True
        self.handle.setopt(pycurl.FRESH_CONNECT, True)

    def choose_proxy(self) -> str:
        """The proxy which the next request goes through, "" for none. Of those of the environment libcurl is told."""
        if self._options.proxy is None:
            proxy = environment_proxy(self.at)
            if proxy != self._proxy:
                self.handle.setopt(pycurl.PROXY, proxy)
                self._proxy = proxy
        return self._proxy

    def refusal_behind_proxy(self) -> Failure | None:
        """Why the proxy may not be asked for the host: only where its address is written, since it resolves names."""
        address = address_of(parts(self.at)[2])
        refusal = None if address is None else self.refusal(address)
        self._addresses.append(address or PROXIED)
        return refusal

    def resolve(self, host: str, port: str, addresses: Addresses) -> None:
        """Tell libcurl the addresses of the host that it is about to ask."""
        listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        # The plus lets libcurl forget it, after a minute; without one it never would.
        resolved = f"+{host}:{port}:{listed}"
        if resolved != self.resolved:
            self.handle.setopt(pycurl.RESOLVE, [resolved])
            self.resolved = resolved

    def shorten_connect_timeout(self) -> None:
        """By what resolving has taken."""
        if self._options.connect_timeout:
            left = max(1, int((self.connect_by - time.monotonic()) * 1000))
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, left)

    def resolve_nothing(self) -> None:
        """The host is an address, or libcurl is to resolve it."""
        if self.resolved:
            self.handle.unsetopt(pycurl.RESOLVE)
            self.resolved = ""

    def unresolved(self, failure: Failure) -> Failure:
        return replace(failure, detail=f"{failure.detail}: {parts(self.at)[2]}", final_url=self._end_of_redirects)

    def refusal(self, address: str) -> Failure | None:
        """Why `address` may not be asked, as far as is known before it is connected to."""
        options = self._options
        first = self._addresses[0] if self._addresses else address
        reason = refuses(first, address, options.block_private_addresses, options.allow_link_local)
        if reason is None:
            return None
        return Failure("fetch", "blocked_address", f"{address} {reason}", None, self._end_of_redirects)

    @property
    def received(self) -> int:
        """Bytes of the body that have come over the network."""
        return self._dropped + self.body.size if self._decoder is None else self._decoder.received

    def drop_body(self) -> None:
        """Nobody wants what has arrived."""
        self.body.release()
        self.body = Body(self._buffer)

    @property
    def _end_of_redirects(self) -> str | None:
        return self.at if self._redirects and len(self.at) <= LONGEST_FINAL_URL else None

    def location(self, error: tuple[int, str] | None) -> str | None:
        """Where an answer that is no success sends us, if anywhere; libcurl would resolve by itself there."""
        if self._refusal is not None or self.attempt.probe:
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

    def redirected(self, location: str) -> str | Failure:
        """What to ask next, or why it is not asked."""
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        at = self._end_of_redirects
        most = self._options.max_redirects
        if self._redirects >= (max(most, REDIRECTS) if self.attempt.asks else most):
            return Failure("fetch", "too_many_redirects", f"more than {self._redirects}", status, at)
        url = normalize(location)
        if isinstance(url, Failure) and url.code == "bad_url":
            return Failure("fetch", "bad_redirect", f"to what is {url.detail}", status, at)
        if isinstance(url, Failure) or not url.startswith(("http://", "https://")):
            return Failure("fetch", "bad_redirect", f"to {location.partition(':')[0][:16]}:", status, at)
        if self._robots is not None and not self.attempt.asks and (refusal := self._robots.redirect_refusal(url)):
            return replace(refusal, http_status=status, final_url=at)
        if "set-cookie" in self._headers:
            self._keep_cookies(self._headers["set-cookie"])
        self._redirects += 1
        return url

    def judge_at_sockets(self) -> None:
        """Have addresses judged that libcurl resolves, before anything is connected to: FTP logs in at once."""
        if not self._is_judging_at_sockets:
            self._is_judging_at_sockets = True
            self.handle.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def _open_socket(self, _: int, target: Any) -> _CopiedSocket | int:
        """libcurl's OPENSOCKETFUNCTION: it goes on with the next address of the host where this one is refused."""
        if not self._proxy and (refusal := self.refusal(target.addr[0])):
            self._refusal_at_socket = refusal
            return int(pycurl.SOCKET_BAD)
        try:
            return _CopiedSocket(socket.socket(target.family, target.socktype, target.protocol))
        except OSError:  # `_lacked_files` looks into it
            return int(pycurl.SOCKET_BAD)

    def _connected(self, address: str, _: str, port: int, own_port: int) -> int:
        """Before each request, on the connection that it is going to use."""
        self.connection = connection = (address, port, own_port)
        kept = self._connections.kept.get(connection)
        if kept is not None:
            kept.user = self
            try:
                has_surplus = ioctl(kept.socket, FIONREAD, ZERO_BYTES) != ZERO_BYTES
            except OSError:  # the socket of a former connection, which was closed
                has_surplus = False
            if has_surplus and not self._is_fresh:
                self._is_spoilt = True
                return int(pycurl.PREREQFUNC_ABORT)
        if self._proxy:  # whose own address is nothing that a row could choose
            return _GO_ON
        self._addresses.append(address)
        options = self._options
        reason = refuses(self._addresses[0], address, options.block_private_addresses, options.allow_link_local)
        if reason is None:
            return _GO_ON
        self._refusal = ("blocked_address", f"{address} {reason}")
        return int(pycurl.PREREQFUNC_ABORT)

    def read_headers(self) -> None:
        """Take what the headers say that have come since the last call; a refusal may follow from it."""
        lines, headers = self.lines, self._headers
        for line in lines:
            initial = line[0]
            if initial not in _INITIALS or (initial in _C and line[8:9] not in _NINTH):
                continue
            name, _, value = line.partition(b":")
            if key := _HEADERS.get(name.lower()):
                text = value.strip().decode("latin-1")
                if key in headers:  # an X-Robots-Tag may be for one agent, and the next one for everybody
                    text = headers[key] + ("\n" if key in _LINES else ", ") + text
                headers[key] = text
            elif name.startswith(b"HTTP/"):  # of each answer: informational ones and the proxy's included
                self.discarding = line.partition(b" ")[2][:1] != b"2"
                headers.clear()
        lines.clear()
        if "x-robots-tag" in headers and not self.discarding and self._refusal is None and not self.attempt.asks:
            directive = opted_out(headers["x-robots-tag"], self.pool.product, self.pool.opt_outs)
            if directive is not None:
                self._refusal = ("opted_out", f"X-Robots-Tag: {directive}")

    def _write(self, chunk: bytes) -> int | None:
        """libcurl's `WRITEFUNCTION`: not None if no more is wanted. It gets 16 KiB at most, and so is called often."""
        body = self.body
        if self.lines:
            self.read_headers()
            if self._refusal is None and "content-encoding" in self._headers and not self.discarding:
                self._start_decoding(self._headers["content-encoding"])
            if self._refusal is not None:
                return -1
        if self._decoder is not None or self.discarding or body.size + len(chunk) > self._longest:
            return self._write_otherwise(chunk)
        try:
            body.write(chunk)
        except OSError as error:
            self._error = error
            return -1
        return None

    def _write_otherwise(self, chunk: bytes) -> int | None:
        """The same for a body that is encoded, too long, or not wanted."""
        body, decoder = self.body, self._decoder
        if self.discarding:
            self._dropped += len(chunk)
            return None if self._dropped <= _ERROR_BODY else -1
        try:
            for piece in (chunk,) if decoder is None else decoder.decode(chunk):
                if body.size + len(piece) > self._longest:
                    if self.attempt.asks:
                        body.write(piece[: self._longest - body.size])
                    return self._stop_at_longest()
                body.write(piece)
        except Undecodable as error:
            self._refusal = (error.code, str(error))
            return -1
        except OSError as error:
            self._error = error
            return -1
        if decoder is not None and decoder.received > self._longest:
            return self._stop_at_longest()  # a lot of nothing; of it libcurl only knows in newer versions
        return None

    def _start_decoding(self, content_encoding: str) -> None:
        try:
            decoder = Decoder(content_encoding)
            if decoder.needs_all:
                self._late_decoder = decoder
            else:
                self._decoder = decoder
        except Undecodable as error:
            self._refusal = (error.code, str(error))

    def _decode(self, decoder: Decoder) -> None:
        """Decode a body that is there whole."""
        encoded, self.body = self.body, Body(self._buffer)
        try:
            for chunk in encoded.chunks():
                for piece in decoder.decode(chunk):
                    if self.body.size + len(piece) > self._longest:
                        if not self.attempt.asks:
                            raise Undecodable("too_large", f"more than {self._longest} bytes")
                        self.body.write(piece[: self._longest - self.body.size])
                        self._cut = True
                        return
                    self.body.write(piece)
        finally:
            encoded.release()

    def _stop_at_longest(self) -> int:
        """A robots.txt is cut there, a file is refused."""
        self._cut = bool(self.attempt.asks)
        self._refusal = None if self._cut else ("too_large", f"more than {self._longest} bytes")
        return -1

    def succeeded(self) -> Payload | Failure:
        handle = self.handle
        url = self._end_of_redirects if self._redirects else None
        status = handle.getinfo(pycurl.RESPONSE_CODE) if self.url.startswith("http") else None
        if status is not None and (not 200 <= status < 300 or status in (204, 205)):
            return self._refused(status, url)
        if status == 206:
            size = whole_size(self._headers.get("content-range", ""))
            if size is None or (size != self.received and not self._cut):
                return self._refused(status, url)
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        decoder = self._decoder
        if self._late_decoder is not None:
            decoder = self._late_decoder
            try:
                self._decode(decoder)
            except Undecodable as error:
                return Failure("fetch", error.code, str(error), status, url)
        if decoder is not None and not (decoder.finished or self._cut):
            return Failure("fetch", "truncated", BROKEN_STREAM, status, url)
        body = self.body
        if not body.size:
            return Failure("fetch", "empty_body", "", status, url)
        # Raw, because servers put into their headers what they like.
        headers = self._headers
        self.body = Body(self._buffer)
        return Payload(
            body,
            _media_type((handle.getinfo_raw(pycurl.CONTENT_TYPE) or b"")[:LONGEST_HEADER]),
            status,
            url,
            time.monotonic() - self.started,
            headers.get("etag"),
            headers.get("last-modified"),
        )

    def failed(self, number: int, message: str) -> Payload | Failure:
        """Translate libcurl's error `number`. Raises the OSError that stopped this transfer, if one did."""
        if self._error is not None and not open_files.is_exhausted(self._error):
            raise self._error
        if number == pycurl.E_COULDNT_CONNECT and self._refusal_at_socket is not None:
            return self._refusal_at_socket
        if self._error is not None or self._lacked_files(number, message):
            return Failure("fetch", "connect", "too many open files (ulimit -n)", blame="open_files")
        handle = self.handle
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        url = self._end_of_redirects
        message = redacted(message.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        if self._cut:
            return self.succeeded()
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        if number == pycurl.E_WRITE_ERROR and self.discarding and status:
            return self._refused(status, url)
        code = _CODES.get(number, "fetch_error")
        blame: Literal["us"] | None = (
            "us" if code == "connect" and handle.getinfo(pycurl.OS_ERRNO) in _NO_ROUTE else None
        )
        if number == pycurl.E_OPERATION_TIMEDOUT:
            code = "timeout_connect"
        elif code == "unsupported_scheme" and self.url.startswith("http"):
            code = "protocol"  # the answer does not begin as HTTP does
        elif code == "reset" and "chunk" in message.lower():
            code = "protocol"  # libcurl reports malformed chunks as a failure to receive
        elif code == "reset" and ("response headers" in message or "CONTINUATION" in message):
            code = "headers_too_large"  # so it does with headers that are too much together; the latter in HTTP/2
        elif code == "bad_url" and self._redirects:
            code = "bad_redirect"  # libcurl takes fewer host names than the URL standard
        elif number == pycurl.E_SSL_CONNECT_ERROR and _BROKE_OFF.search(message):
            code = "reset"  # a host that is overloaded, most often: not the certificate
        elif code == "fetch_error":
            message = f"libcurl error {number}: {message}"
        return Failure("fetch", code, message, status, url, blame=blame)

    def _lacked_files(self, number: int, message: str) -> bool:
        """Whether libcurl failed because no more files or sockets may be open, which it does not say."""
        if number not in _SAID_WITHOUT_FILES or self._cut or self._refusal is not None:
            return False
        # No error of the system: there was no socket that could fail.
        is_unopened = message.startswith("Failed to connect to") and not self.handle.getinfo(pycurl.OS_ERRNO)
        return open_files.are_exhausted() or (is_unopened and _knows_all_families())

    def timed_out(self, resolving: bool = False) -> Failure:
        """Why it is given up; `resolving` if it waits for its host's addresses, and libcurl does not have it yet."""
        handle = self.handle
        seconds = time.monotonic() - self.started
        if resolving:
            detail = f"after {seconds:.1f} s, while resolving the host name"
            return Failure("fetch", "timeout_total", detail, None, self._end_of_redirects)
        if handle.getinfo(pycurl.STARTTRANSFER_TIME):
            where = f"receiving the body ({self.received} bytes so far)"
        elif handle.getinfo(pycurl.PRETRANSFER_TIME):
            where = "waiting for the answer"
        elif self.pool.resolver is not None or handle.getinfo(pycurl.NAMELOOKUP_TIME):
            where = "connecting"
        else:
            where = "resolving the host name"
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        detail = f"after {seconds:.1f} s, while {where}"
        return Failure("fetch", "timeout_total", detail, status, self._end_of_redirects, received=self.received)

    def _refused(self, status: int, url: str | None) -> Failure:
        wait = self.handle.getinfo(pycurl.RETRY_AFTER) if status in (429, 503) else 0  # libcurl reads dates as well
        return http_failure(status, url, float(wait) or None)


class _CopiedSocket:
    """A socket whose descriptor pycurl copies before it lets go of this."""

    def __init__(self, opened: socket.socket) -> None:
        self._opened = opened
        self.fileno = opened.fileno

    def __del__(self) -> None:
        self._opened.close()


@cache
def _knows_all_families() -> bool:
    """Whether sockets for IPv6 can be opened here: if so, those that cannot be opened are too many."""
    try:
        socket.socket(socket.AF_INET6).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def _settings(options: FetchOptions) -> list[tuple[int, Any]]:
    """What every handle of a profile has in common: options of libcurl."""
    web = pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
    settings: list[tuple[int, Any]] = [
        (pycurl.NOSIGNAL, 1),
        (pycurl.BUFFERSIZE, _RECEIVE_BUFFER),
        (pycurl.USERAGENT, options.user_agent),
        (pycurl.ACCEPT_ENCODING, ACCEPTED),
        (pycurl.HTTP_CONTENT_DECODING, 0),  # it is done by us
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS),
        (pycurl.PROTOCOLS, web | pycurl.PROTO_FTP | pycurl.PROTO_FTPS),
        (pycurl.TCP_KEEPALIVE, 1),
        (pycurl.CAINFO, certificate_bundle()),
        (pycurl.PROXY_CAINFO, certificate_bundle()),  # of which libcurl does not take CAINFO
    ]
    if options.proxy:
        # Without NOPROXY the environment's no_proxy would hold, though it is about the environment's proxies.
        settings += [(pycurl.PROXY, options.proxy), (pycurl.NOPROXY, "")]
    elif environment_has_proxy():  # we decide for each request: libcurl does not tell in time how it has decided
        settings += [(pycurl.PROXY, ""), (pycurl.NOPROXY, "")]
    if options.ignore_ssl_certificate:
        settings += [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
    return settings


def _request_headers(options: FetchOptions) -> list[str]:
    """Never empty: to pycurl an empty list means that nothing is to be changed."""
    return ["Accept: */*", *(options.headers or ())]


def _resolver(options: FetchOptions, wake: Callable[[], None]) -> Resolver | None:
    """None where libcurl resolves, or a proxy of the environment does, for libcurl takes these as well."""
    if environment_has_proxy() or options.nameservers == ("os",):
        return None
    return Resolver(options.nameservers, wake)


@lru_cache(maxsize=_REMEMBERED)
def _asked_at(origin: str) -> tuple[str, str, bool]:
    """Host and port of the origin of a normalised URL, and whether name servers are to be asked for the host."""
    _, _, host, port = parts(origin)
    return host, port, asks_dns(host)


@lru_cache(maxsize=256)
def _media_type(content_type: bytes) -> str | None:
    return content_type.decode("latin-1").partition(";")[0].strip().lower() or None
