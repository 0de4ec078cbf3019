"""Fetches http(s) with `requests`: the engine where libcurl is not available, and for adapters and auth of one's own.

It keeps the bounds that `curl.py` keeps, with these differences: HTTP/1.1 only; `connect_timeout` begins after the
name look-up, `stall_timeout` before it; an answer may have 100 headers; a thread that hangs in a name look-up is left
to itself. Behind a SOCKS proxy a cancelled transfer ends at the socket's timeout, and headers are bounded as
`http.client` does it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, IncompleteRead, LineTooLong, RemoteDisconnected
from http.cookiejar import DefaultCookiePolicy
from itertools import filterfalse
from typing import Any

import ada_url
import requests
import urllib3
from requests import exceptions as requested
from requests.adapters import HTTPAdapter
from requests.utils import get_auth_from_url, get_environ_proxies, select_proxy, urldefragauth
from urllib3 import exceptions as urllib3_errors
from urllib3.util.connection import allowed_gai_family

from any2ds.config.options import MOST_HEADER_BYTES, FetchOptions
from any2ds.core.errors import error_text
from any2ds.core.failures import Failure, http_failure
from any2ds.core.processes import open_files
from any2ds.core.samples import LONGEST_FINAL_URL
from any2ds.fetch.engines.certificates import certificate_bundle
from any2ds.fetch.engines.encodings import ACCEPTED, BROKEN_STREAM, Decoder, Undecodable, whole_size
from any2ds.fetch.engines.threads import Abandoned, Answer, Refused, ThreadTransfer, causes, lack_of_files
from any2ds.fetch.policy.robots import REDIRECTS, Robots
from any2ds.fetch.policy.rules import PROXIED, address_of, is_for_any_host, opted_out, product_of, refuses
from any2ds.fetch.policy.schedule import transfers_within
from any2ds.fetch.profiles import Profile, Profiles
from any2ds.fetch.urls import normalize, origin, parts, scheme_of

_CHUNK = 1 << 16
_ERROR_BODY = 1 << 16  # of an error page this much is read, to keep the connection; a longer one costs the connection
_SESSIONS = 16  # of profiles that were used last, per thread
_MOST_KEPT = 1024  # connections kept by all threads together, at least one by each
_FILES_PER_THREAD = 3  # beside kept connections: a socket in use, a copy of it to cut it by, and a long body
_PATIENCE = 1.0  # seconds by which a socket waits longer than the schedule, which knows what it was waiting for
_REMEMBERED = 4096  # origins
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HeadersTooLarge(HTTPException):
    """Headers, interim answers or trailers went on for too long."""


# The first that is found among the causes of an exception, in this order, says what happened.
_CODES: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((requested.InvalidSchema,), "unsupported_scheme"),
    ((requested.InvalidURL, requested.MissingSchema, urllib3_errors.LocationValueError, UnicodeError), "bad_url"),
    ((urllib3_errors.NameResolutionError, socket.gaierror), "dns"),
    ((urllib3_errors.NewConnectionError,), "connect"),  # derived from the next, for history's sake
    ((urllib3_errors.ConnectTimeoutError,), "timeout_connect"),
    ((urllib3_errors.ReadTimeoutError, TimeoutError), "timeout_stalled"),
    ((ConnectionRefusedError, urllib3_errors.ProxyError), "connect"),
    ((HeadersTooLarge,), "headers_too_large"),
    ((RemoteDisconnected, ConnectionResetError, BrokenPipeError, ConnectionAbortedError), "reset"),
    # A handshake that was cut, not refused: a host that is overloaded, most often.
    ((ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError), "reset"),
    ((urllib3_errors.SSLError, ssl.SSLError), "tls"),
    ((urllib3_errors.InvalidChunkLength,), "protocol"),
    ((IncompleteRead,), "truncated"),
    ((HTTPException, urllib3_errors.HTTPError), "protocol"),
    ((requested.ConnectionError, OSError), "connect"),
)


class Trust:
    """The TLS contexts of all threads: reading the authorities takes 20 ms."""

    def __init__(self) -> None:
        self.verified = ssl.create_default_context(cafile=certificate_bundle())
        self.unverified = ssl.create_default_context(cafile=certificate_bundle())
        self.unverified.check_hostname = False
        self.unverified.verify_mode = ssl.CERT_NONE


class NeverKept:
    """Origins whose connections are not used again: more came on one than belonged to its answers. For all threads."""

    def __init__(self) -> None:
        self._origins: set[tuple[str, str, str]] = set()

    def add(self, url: str) -> None:
        if len(self._origins) < _REMEMBERED:
            self._origins.add(origin(url))

    def has(self, url: str) -> bool:
        return bool(self._origins) and origin(url) in self._origins


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        """None, for redirects are followed by us: even where it does not follow, requests reads their bodies whole."""


def new_session(options: FetchOptions, trust: Trust) -> requests.Session:
    """A session for one thread, that sends what `options` say and nothing else; cookies are added per request."""
    session = _Session()
    session.trust_env = False  # no .netrc; proxies of the environment are looked up below
    session.verify = not options.ignore_ssl_certificate
    given = {name.strip(): value.strip() for name, _, value in (part.partition(":") for part in options.headers or ())}
    session.headers.update({"User-Agent": options.user_agent, "Accept": "*/*", "Accept-Encoding": ACCEPTED})
    session.headers.update(given)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
    adapter = _Adapter(trust, not options.ignore_ssl_certificate, _kept_per_thread(options))
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _kept_per_thread(options: FetchOptions) -> int:
    connections = open_files.connections()
    threads = min(transfers_within(options, connections), 256)  # with thread_count=auto there are seldom more
    return max(1, min(10, _MOST_KEPT // threads, connections // threads - _FILES_PER_THREAD))


class RequestsClient:
    """A `threads.Client` with a session for each profile; `session`, that of the hosts without overrides, may be
    replaced by one with adapters and auth of one's own."""

    def __init__(
        self, profiles: Profiles, trust: Trust, robots: Robots | None = None, never_kept: NeverKept | None = None
    ) -> None:
        self._robots = robots  # whose rules hold for redirects too
        self._never_kept = never_kept or NeverKept()
        self._profiles, self._trust = profiles, trust
        self._default = _Visit(profiles.default, trust)
        self._visits: OrderedDict[Profile, _Visit] = OrderedDict()  # of the other profiles, the last used last
        options = self._options = profiles.default.options  # those that do not differ by host
        self.max_header_bytes = options.max_header_bytes
        self._proxies_in_environment = bool(urllib.request.getproxies())
        limits = (options.timeout, options.total_timeout, options.stall_timeout)
        # The schedule and the rule for stalled transfers are faster; this ends threads that they could not reach.
        bounds = [bound + _PATIENCE for bound in limits if bound]
        slack = min(bounds) if bounds else None
        self._timeouts = (options.connect_timeout or slack, slack)
        self.transfer: ThreadTransfer
        self.fresh = False  # the connection of this request is new
        self.connection: socket.socket | None = None  # that it uses
        self.has_surplus = False  # more has come on it than belonged to its answers
        self._addresses: list[str] = []  # that were asked, redirects included

    def fetch(self, url: str, transfer: ThreadTransfer) -> Answer | Failure:
        self.transfer = transfer
        self._addresses.clear()
        _HERE.client = self
        here, led = url, None  # the latter is reported: where redirects have led, without credentials
        asks = bool(transfer.attempt.asks)
        most = max(self._options.max_redirects, REDIRECTS) if asks else self._options.max_redirects
        for _ in range(most + 1):
            self._here = self._visit(here) if self._profiles.differ else self._default
            outcome = self._ask(url, here, led, transfer)
            if not isinstance(outcome, str):
                return outcome
            target = normalize(outcome)
            if isinstance(target, Failure) or scheme_of(target) not in ("http", "https"):
                return Failure("fetch", "bad_redirect", f"to {outcome.partition(':')[0][:16]}:", final_url=led)
            if self._robots is not None and not asks and (refusal := self._robots.redirect_refusal(target)):
                return replace(refusal, final_url=led)
            here, led = target, _without_credentials(target) if len(target) <= LONGEST_FINAL_URL else None
        return Failure("fetch", "too_many_redirects", f"more than {most}", final_url=led)

    @property
    def session(self) -> requests.Session:
        return self._default.session

    @session.setter
    def session(self, session: requests.Session) -> None:
        self._default.session = session

    def close(self) -> None:
        for visit in (self._default, *self._visits.values()):
            visit.session.close()

    def _visit(self, url: str) -> _Visit:
        """What is needed to ask the host of `url`; a profile always has the same session, and this only here."""
        profile = self._profiles.of(url)
        if profile is self._profiles.default:
            return self._default
        visit = self._visits.get(profile)
        if visit is None:
            visit = self._visits[profile] = _Visit(profile, self._trust)
            if len(self._visits) > _SESSIONS:
                self._visits.popitem(last=False)[1].session.close()
        self._visits.move_to_end(profile)
        return visit

    def connecting(self, connection: socket.socket) -> None:
        """As soon as there is a connection, before the handshake."""
        self.fresh = True
        self.transfer.watch(connection)

    def connected(self, connection: socket.socket, through_proxy: bool) -> None:
        """Before each request, on the connection that it is going to use."""
        self.transfer.stage = "waiting for the answer"
        self.connection = connection
        self.transfer.watch(connection)
        if not through_proxy:
            self._judge(connection.getpeername()[0])

    def ended(self, lines: Any) -> None:
        """At the end of an answer, read from `lines`: see that its connection is not used again if there is more."""
        if (connection := self.connection) is None:
            return
        self.connection = None
        seconds = connection.gettimeout()
        with contextlib.suppress(OSError, ValueError):  # TLS says so where nothing is to be read
            connection.settimeout(0)
            self.has_surplus = bool(lines.peek(1))
        with contextlib.suppress(OSError):  # it was closed by the other side
            connection.settimeout(seconds)
            if self.has_surplus:
                connection.shutdown(socket.SHUT_RDWR)

    def _judge(self, address: str) -> None:
        """Raises Refused if `address` may not be asked, and notes it."""
        if refusal := self.refusal(address):
            raise refusal
        self._addresses.append(address)

    def refusal(self, address: str) -> Refused | None:
        """Why `address` may not be asked."""
        options = self._options
        first = self._addresses[0] if self._addresses else address
        reason = refuses(first, address, options.block_private_addresses, options.allow_link_local)
        return Refused("blocked_address", f"{address} {reason}") if reason else None

    def _ask(self, first: str, url: str, led: str | None, transfer: ThreadTransfer) -> Answer | Failure | str:
        """One request: the answer, or where it redirects to."""
        response = None
        try:
            for is_again in (False, True):
                if is_again:
                    transfer.restart()
                    self._here.session.close()
                response = self._send(first, url, transfer)
                with response:
                    outcome = self._take(response, led or _without_credentials(url), led, transfer)
                if self.has_surplus:
                    self._never_kept.add(url)
                # What came on a connection that was used before may have been left there, and answer another request. A
                # 408 is how a server ends a connection that waited for too long (RFC 9110, 15.5.9).
                if self.fresh or not (self.has_surplus or response.status_code == 408):
                    break
            return outcome
        except Refused as refusal:
            status = response.status_code if response is not None else None
            return replace(refusal.failure, http_status=status, final_url=led)
        except (requests.RequestException, urllib3_errors.HTTPError, HTTPException, OSError, UnicodeError) as error:
            if transfer.abandoned:
                raise Abandoned from error
            return lack_of_files(error) or replace(self._failure(error), final_url=led)

    def _send(self, first: str, url: str, transfer: ThreadTransfer) -> requests.Response:
        visit, profile = self._here, self._here.profile
        proxies = visit.proxies
        if self._proxies_in_environment and not proxies:
            proxies = get_environ_proxies(url)
        if proxies and select_proxy(url, proxies):
            if (address := address_of(parts(url)[2])) is not None:
                self._judge(address)
            else:
                self._addresses.append(PROXIED)  # which resolves the name
        headers: dict[str, Any] = {}
        auth = get_auth_from_url(url)
        if url != first:
            if origin(first) != origin(url):
                # Headers that tell who we are belong to the hosts of the list, not to those that they redirect to; if
                # they were given for this very host, they must not be lured out of the encryption.
                is_downgrade = scheme_of(url) == "http" and scheme_of(first) == "https"
                if not profile.has_own_headers or is_downgrade:
                    headers = dict.fromkeys(visit.secret_headers)
            elif not any(auth):
                auth = get_auth_from_url(first)
        if profile.jar is not None and ("Cookie" in headers or "Cookie" not in visit.session.headers):
            headers["Cookie"] = profile.jar.header(url)
        if transfer.attempt.probe or self._never_kept.has(url):
            visit.session.close()  # a connection that was kept may be dead although the network is not
        transfer.stage = "connecting"
        for last_try in (False, True):
            self.fresh, self.connection, self.has_surplus = False, None, False
            try:
                return visit.session.request(
                    "HEAD" if transfer.attempt.probe else "GET",
                    urldefragauth(url),  # a cookie jar would take what stands before the @ for a part of the host
                    auth=auth if any(auth) else None,
                    headers=headers,
                    proxies=proxies,
                    timeout=self._timeouts,
                    allow_redirects=False,
                    stream=True,
                )
            except requests.ConnectionError as error:
                # The server closed a connection that was kept, just as it was used again, or sent more on it than
                # belonged to its answers.
                used = not (self.fresh or transfer.abandoned)
                code = self._failure(error).code
                if last_try or not used or code not in ("reset", "protocol"):
                    raise
                if code == "protocol":
                    self._never_kept.add(url)
        raise AssertionError

    def _take(
        self, response: requests.Response, here: str, led: str | None, transfer: ThreadTransfer
    ) -> Answer | Failure | str:
        transfer.stage = "receiving the body (0 bytes so far)"
        status, headers = response.status_code, response.headers
        whole = whole_size(headers.get("content-range", "")) if status == 206 else None
        if not 200 <= status < 300 or status in (204, 205) or (status == 206 and whole is None):
            _drain(response.raw, transfer)
            if status in _REDIRECTS and "location" in headers:
                try:
                    return ada_url.join_url(here, _as_sent(headers["location"])).partition("#")[0]
                except ValueError:  # whose message might contain credentials
                    return Failure("fetch", "bad_redirect", "not a valid URL", status, led)
            return http_failure(status, led, _retry_after(status, headers.get("retry-after")))
        directive = opted_out(
            "\n".join(response.raw.headers.getlist("x-robots-tag")), self._here.product, self._here.opt_outs
        )
        if directive is not None and not transfer.attempt.asks:
            return Failure("fetch", "opted_out", f"X-Robots-Tag: {directive}", status, led)
        announced = headers.get("content-length", "").strip()
        if announced.startswith("-"):
            return Failure("fetch", "protocol", "Content-Length is negative", status, led)
        if announced.isdigit() and int(announced) > self._options.max_file_bytes and not transfer.attempt.asks:
            raise Refused("too_large", f"{announced} bytes")
        if encoding := headers.get("content-encoding"):
            try:
                transfer.decoder = Decoder(encoding, self._options.max_content_ratio)
            except Undecodable as error:
                return Failure("fetch", error.code, str(error), status, led)
        # read1 returns what is there; read would wait for a whole chunk, however slowly it comes.
        is_cut = False  # enough has been read
        while not is_cut and (chunk := response.raw.read1(_CHUNK, decode_content=False)):
            is_cut = not transfer.receive(chunk)
        is_cut = not transfer.decode() or is_cut
        if not is_cut and transfer.received and transfer.decoder is not None and not transfer.decoder.finished:
            return Failure("fetch", "truncated", BROKEN_STREAM, status, led)
        if whole is not None and transfer.received != whole and not transfer.attempt.asks:
            return http_failure(status, led)
        if not transfer.body.size:
            return Failure("fetch", "empty_body", "", status, led)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower() or None
        return Answer(media_type, status, led, headers.get("etag"), headers.get("last-modified"))

    def _failure(self, error: BaseException) -> Failure:
        found = list(causes(error))
        matches = (code for types, code in _CODES if any(isinstance(cause, types) for cause in found))
        code = next(matches, "fetch_error")
        options = self._options
        if code == "timeout_stalled" and self.transfer.stage == "connecting":
            code = "timeout_connect"  # in the handshake
        if code == "truncated" and any("invalid literal for int" in str(c) and "b''" not in str(c) for c in found):
            code = "protocol"  # http.client reports a malformed chunk as the end of the body
        elif (code == "timeout_connect" and not options.connect_timeout) or (
            code == "timeout_stalled" and 0 < options.timeout < (options.stall_timeout or float("inf"))
        ):
            code = "timeout_total"
        return Failure("fetch", code, error_text(found[-1] if str(found[-1]) else error))


class _Visit:
    """What a thread needs to ask the hosts of a profile."""

    def __init__(self, profile: Profile, trust: Trust) -> None:
        options = profile.options
        self.profile = profile
        self.session = new_session(options, trust)
        self.proxies = {"http": options.proxy, "https": options.proxy} if options.proxy else None
        self.secret_headers = ("Authorization", "Cookie", *filterfalse(is_for_any_host, self.session.headers))
        self.opt_outs = frozenset(options.disallowed_header_directives or ())
        self.product = product_of(options.user_agent)


class _Head:
    """The lines of an answer before its body, or after it: so many bytes and no more."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self._left = self._most = min(MOST_HEADER_BYTES, _HERE.client.max_header_bytes)
        self.close = lines.close

    def readline(self, most: int) -> bytes:
        line: bytes = self._lines.readline(most)
        self._left -= len(line)
        if self._left < 0:
            raise HeadersTooLarge(f"more than {self._most} bytes")
        return line


class _HTTPResponse(HTTPResponse):
    """Passes over interim answers as HTTP wants it, and bounds everything that is no body.

    `http.client` takes a 103 for the answer, and neither 100s nor trailers have an end with it.
    """

    def begin(self) -> None:
        with self._bounded():
            super().begin()
            while 102 <= self.status < 200:  # 101 is the last one in HTTP
                self.headers = self.msg = None  # type: ignore[assignment]
                super().begin()

    def _close_conn(self) -> None:
        """At the end of a body, and where it is given up."""
        if self.fp is not None and not isinstance(self.fp, _Head):
            _HERE.client.ended(self.fp)
        super()._close_conn()  # type: ignore[misc]

    def _read_and_discard_trailer(self) -> None:
        with self._bounded():
            super()._read_and_discard_trailer()  # type: ignore[misc]

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        lines, head = self.fp, _Head(self.fp)
        self.fp: Any = head
        try:
            yield
        except HTTPException as error:
            # Of too many headers it says no more than that.
            if type(error) is HTTPException or (isinstance(error, LineTooLong) and "status line" not in str(error)):
                raise HeadersTooLarge(str(error)) from error
            raise
        finally:
            if self.fp is head:  # it has not been closed
                self.fp = lines


_HERE = threading.local()  # .client: whose request a connection of this thread carries


class _Quiet:
    """A connection of which urllib3 does not warn: it is verified as far as was asked for."""

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.is_verified = True


class _Watched(_Quiet):
    """Tells the client of this thread which connection its request is going to use."""

    sock: Any
    proxy: Any
    port: int
    _dns_host: str
    response_class: Any = _HTTPResponse

    def _new_conn(self) -> socket.socket:
        connection: socket.socket = super()._new_conn() if self.proxy else self._connect_to_allowed()  # type: ignore[misc]
        try:
            _HERE.client.connecting(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_to_allowed(self) -> socket.socket:
        """Connect to the first address of the host that may be asked and answers: what is judged is connected to."""
        host = self._dns_host
        try:
            found = socket.getaddrinfo(
                address_of(host) or host.strip("[]"), self.port, allowed_gai_family(), socket.SOCK_STREAM
            )
        except socket.gaierror as error:
            raise urllib3_errors.NameResolutionError(host, self, error) from error  # type: ignore[arg-type]
        refused: list[Exception] = []
        failed: list[Exception] = []
        for address in dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found):
            if refusal := _HERE.client.refusal(address):
                refused.append(refusal)
                continue
            self._dns_host = address
            try:
                return super()._new_conn()  # type: ignore[misc, no-any-return]
            except (urllib3_errors.ConnectTimeoutError, urllib3_errors.NewConnectionError) as error:
                failed.append(error)
            finally:
                self._dns_host = host
        raise (failed or refused)[-1]

    def request(self, *arguments: Any, **named: Any) -> None:
        if self.sock is None:
            self.connect()
        if isinstance(self.sock, socket.socket):  # not so for TLS inside of TLS, to a proxy
            _HERE.client.connected(self.sock, self.proxy is not None)
        super().request(*arguments, **named)  # type: ignore[misc]


class _HTTPConnection(_Watched, urllib3.connection.HTTPConnection):
    pass


class _HTTPSConnection(_Watched, urllib3.connection.HTTPSConnection):
    pass


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


_POOLS = {"http": _HTTPPool, "https": _HTTPSPool}


@functools.cache
def _quiet(pool: Any) -> Any:
    """A class of pools like this one, whose connections are quiet."""
    if issubclass(pool.ConnectionCls, _Quiet):  # of a manager that requests has kept
        return pool
    connection = type("QuietConnection", (_Quiet, pool.ConnectionCls), {})
    return type("QuietPool", (pool,), {"ConnectionCls": connection})


class _Adapter(HTTPAdapter):
    """Keeps connections to the `hosts` that were asked last, one each. Proxies are verified, whatever else is."""

    def __init__(self, trust: Trust, verify: bool, hosts: int) -> None:
        self._tls = trust.verified if verify else trust.unverified
        self._tls_to_proxy = trust.verified
        super().__init__(pool_connections=hosts, pool_maxsize=1)

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._tls, **named)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **named: Any) -> Any:
        is_socks = proxy.lower().startswith("socks")
        if not is_socks:
            named["proxy_ssl_context"] = self._tls_to_proxy
        manager = super().proxy_manager_for(proxy, ssl_context=self._tls, **named)
        pools = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {**pools, "https": _quiet(pools["https"])} if is_socks else _POOLS
        return manager

    def cert_verify(self, *_: Any) -> None:
        """Nothing to do: the context knows whom to trust, and would read its file anew for each connection."""


def _drain(raw: Any, transfer: ThreadTransfer) -> None:
    """Read a short error page, so that its connection can be used again."""
    read = 0
    with contextlib.suppress(urllib3_errors.HTTPError, HTTPException, OSError):
        while read < _ERROR_BODY and not transfer.abandoned and (chunk := raw.read1(_CHUNK, decode_content=False)):
            read += len(chunk)


def _without_credentials(url: str) -> str:
    return urldefragauth(url) if "@" in url else url


def _as_sent(header: str) -> str:
    """http.client reads headers as Latin-1; what servers send that is not ASCII is UTF-8."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return header


def _retry_after(status: int, header: str | None) -> float | None:
    """Seconds that a 429 or 503 asks us to wait, written as a number or as a date."""
    if header is None or status not in (429, 503):
        return None
    if header.isascii() and header.strip().isdigit():
        return float(header) or None
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time()) or None
    except (TypeError, ValueError, OverflowError):
        return None
