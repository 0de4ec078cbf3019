"""One transfer of libcurl: an Easy handle, the options that it is given, what its callbacks take, and how it ends."""

from __future__ import annotations

import socket
import time
from functools import lru_cache
from typing import Any

import pycurl

from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.failures import Failure, http_failure
from any2ds.core.processes import open_files
from any2ds.core.samples import LONGEST_HEADER, Payload
from any2ds.fetch.engines import curl_errors
from any2ds.fetch.engines.certificates import certificate_bundle
from any2ds.fetch.engines.chain import Chain
from any2ds.fetch.engines.connections import Connection, Connections, has_bytes
from any2ds.fetch.engines.dns import Addresses
from any2ds.fetch.engines.encodings import ACCEPTED, Undecodable, decoded, whole_size
from any2ds.fetch.engines.transport import WITHOUT_FILES
from any2ds.fetch.policy.hosts import Attempt
from any2ds.fetch.policy.robots import LONGEST, Robots
from any2ds.fetch.policy.rules import opted_out, product_of
from any2ds.fetch.profiles import Profile
from any2ds.fetch.urls import absolute, environment_has_proxy, environment_proxy

_RECEIVE_BUFFER = 1 << 18  # libcurl's maximum is 10 MiB; one buffer per multi handle. Fewer callbacks than with 16 KiB
_GO_ON, _ABORT = int(pycurl.PREREQFUNC_OK), int(pycurl.PREREQFUNC_ABORT)
_STOP = -1  # what a callback returns that wants no more
_NEVER_MS = 2**31 - 1
_ERROR_BODY = 1 << 16  # of an error page this much is read, to keep the connection; a longer one costs the connection

# The headers that are read, by their names.
_HEADERS = {
    name.encode(): name
    for name in (
        *("connection", "content-encoding", "content-range", "etag", "last-modified", "location", "set-cookie"),
        "x-robots-tag",
    )
}
_LINES = frozenset({"set-cookie", "x-robots-tag"})  # of which each header counts by itself


class Settings:
    """What the requests for files, or for robots.txt, or of probes have in common, to all hosts of a profile.

    All settings set the same options of libcurl, so that nothing of others stays behind on a handle.
    """

    def __init__(self, profile: Profile, is_robots: bool, is_probe: bool) -> None:
        options = self.options = profile.options
        self.profile = profile
        self.product = product_of(options.user_agent)
        self.opt_outs = frozenset(options.disallowed_header_directives or ())
        # The proxies of the environment differ by host, and libcurl would not tell in time how it decides.
        self.has_environment_proxy = options.proxy is None and environment_has_proxy()
        self.longest = LONGEST if is_robots else options.max_file_bytes  # bytes of a body
        # Without a limit of ours there is none: libcurl's own would be 300 s.
        self.connect_milliseconds = int(options.connect_timeout * 1000) or _NEVER_MS
        is_verified = not options.ignore_ssl_certificate
        self.curl: list[tuple[int, Any]] = [
            (pycurl.USERAGENT, options.user_agent),
            (pycurl.PROXY, options.proxy or ""),
            (pycurl.NOBODY, is_probe),
            (pycurl.MAXFILESIZE_LARGE, 0 if is_robots else self.longest),
            (pycurl.SSL_VERIFYPEER, int(is_verified)),
            (pycurl.SSL_VERIFYHOST, 2 if is_verified else 0),
        ]


class Transfer:
    """A handle of libcurl and what it is doing; used again for one attempt after the other."""

    def __init__(self, buffer: Buffer, robots: Robots | None, connections: Connections) -> None:
        self._buffer, self._robots, self._connections = buffer, robots, connections
        self.body = Body(buffer)  # as far as it has arrived
        self.is_sent = False  # libcurl has it
        self.host = ""  # whose addresses it waits for
        self._settings: Settings | None = None
        self.header_lines: list[bytes] = []  # not yet read
        self._headers: dict[str, str] = {}  # of the last answer, those that matter
        self.handle = handle = pycurl.Curl()
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.BUFFERSIZE, _RECEIVE_BUFFER)
        handle.setopt(pycurl.ACCEPT_ENCODING, ACCEPTED)
        handle.setopt(pycurl.HTTP_CONTENT_DECODING, 0)  # it is done by us
        handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)
        handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS | pycurl.PROTO_FTP | pycurl.PROTO_FTPS)
        handle.setopt(pycurl.TCP_KEEPALIVE, 1)
        handle.setopt(pycurl.CAINFO, certificate_bundle())
        handle.setopt(pycurl.PROXY_CAINFO, certificate_bundle())  # of which libcurl does not take CAINFO
        handle.setopt(pycurl.NOPROXY, "")  # that of the environment is about the environment's proxies
        handle.setopt(pycurl.WRITEFUNCTION, self._write)
        # All lines are read at once, before the body: ten calls of a function of ours would cost more than the rest.
        handle.setopt(pycurl.HEADERFUNCTION, self.header_lines.append)
        handle.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        handle.setopt(pycurl.PREREQFUNCTION, self._before_request)

    # --- before a request ---

    def begin(self, attempt: Attempt, url: str, settings: Settings) -> None:
        """Make ready for the first request of an attempt."""
        self.attempt = attempt
        self.chain = Chain(attempt, url, settings.options)
        self.started = time.monotonic()
        self.prepare(settings)

    def prepare(self, settings: Settings, is_repeated: bool = False) -> None:
        """Make ready for the next request of the chain, or for the same on a connection of its own (`is_repeated`). All
        options that may differ are set."""
        chain, handle = self.chain, self.handle
        self.is_discarding = False  # the body is not wanted
        self._dropped = 0  # bytes of such a body
        self._is_cut = False  # enough has been read
        self._is_spoilt = False  # the connection has bytes that belong to no answer
        self._refusal: tuple[str, str] | None = None  # code and message, where we end the transfer ourselves
        self._refused_address: str | None = None  # in words; the host may have others
        self._has_socket = False  # to connect with
        self._error: OSError | None = None  # of the disk, or of opening a socket
        self.connection: Connection | None = None  # that the last request has used
        self.header_lines.clear()
        self._headers.clear()
        if settings is not self._settings:
            self._settings = settings
            for option, value in settings.curl:
                handle.setopt(option, value)
        self.settings = settings
        options = settings.options
        self.proxy = options.proxy or ""
        if settings.has_environment_proxy:
            self.proxy = environment_proxy(chain.at)
            handle.setopt(pycurl.PROXY, self.proxy)
        self.connect_by = time.monotonic() + options.connect_timeout
        is_single_use = self.attempt.probe or chain.origin in self._connections.distrusted
        self._is_fresh = is_single_use or is_repeated
        handle.setopt(pycurl.URL, chain.sent_url)
        handle.setopt(pycurl.HTTPHEADER, chain.headers(settings.profile))
        handle.setopt(pycurl.COOKIE, chain.cookie() if chain.redirects else None)
        handle.setopt(pycurl.FRESH_CONNECT, self._is_fresh)
        handle.setopt(pycurl.FORBID_REUSE, is_single_use)
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, settings.connect_milliseconds)
        handle.unsetopt(pycurl.RESOLVE)  # the host is an address, or libcurl is to resolve it

    def resolve(self, addresses: Addresses) -> None:
        """Tell libcurl the addresses of the host that it is about to ask."""
        listed = ",".join(f"[{address}]" if ":" in address else address for address in addresses)
        # The plus lets libcurl forget it, after a minute; without one it never would.
        self.handle.setopt(pycurl.RESOLVE, [f"+{self.chain.host}:{self.chain.port}:{listed}"])

    def shorten_connect_timeout(self) -> None:
        """Take off what resolving has taken."""
        if self.settings.options.connect_timeout:
            left = max(1, int((self.connect_by - time.monotonic()) * 1000))
            self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, left)

    def drop_body(self) -> None:
        """Nobody wants what has arrived."""
        if self.body.size:
            self.body.release()
            self.body = Body(self._buffer)

    # --- called by libcurl ---

    def _open_socket(self, _: int, target: Any) -> _CopiedSocket | int:
        """`OPENSOCKETFUNCTION`: libcurl goes on with the next address of the host where this one is refused."""
        if not self.proxy and (words := self.chain.refusal(target.addr[0], self.settings.options)):
            self._refused_address = words
            return int(pycurl.SOCKET_BAD)
        try:
            opened = socket.socket(target.family, target.socktype, target.protocol)
        except OSError as error:
            if open_files.is_exhausted(error):
                self._error = error
            return int(pycurl.SOCKET_BAD)
        self._has_socket = True
        return _CopiedSocket(opened)

    def _before_request(self, address: str, _: str, port: int, own_port: int) -> int:
        """`PREREQFUNCTION`: on the connection that the request is going to use, which may be an old one."""
        self.connection = (address, port, own_port)
        if self._connections.begins(self.connection, self) and not self._is_fresh:
            self._is_spoilt = True
            return _ABORT
        if not self.proxy:  # whose own address is nothing that a row could choose
            chain = self.chain
            if words := chain.refusal(address, self.settings.options):
                self._refusal = ("blocked_address", words)
                return _ABORT
            chain.first_address = chain.first_address or address
        return _GO_ON

    def _write(self, chunk: bytes) -> int | None:
        """`WRITEFUNCTION`: not None if no more is wanted. It gets 16 KiB at most, and so is called often."""
        body = self.body
        if self.header_lines:
            self.read_headers()
            if self._refusal is not None:
                return _STOP
        if self.is_discarding:
            self._dropped += len(chunk)
            return None if self._dropped <= _ERROR_BODY else _STOP
        try:
            if body.size + len(chunk) <= self.settings.longest:
                body.write(chunk)
                return None
            self._is_cut = bool(self.attempt.asks)  # a robots.txt is cut there, a file is refused
            if self._is_cut:
                body.write(chunk[: self.settings.longest - body.size])
            else:
                self._refusal = ("too_large", f"more than {self.settings.longest} bytes")
        except OSError as error:
            self._error = error
        return _STOP

    def read_headers(self) -> None:
        """Take what the headers say that have come since the last call; a refusal may follow from it."""
        lines, headers = self.header_lines, self._headers
        for line in lines:
            name, _, value = line.partition(b":")
            if key := _HEADERS.get(name.lower()):
                text = value.strip().decode("latin-1")
                # An X-Robots-Tag may be for one agent, and the next one for everybody.
                if key in headers and key != "location":
                    text = headers[key] + ("\n" if key in _LINES else ", ") + text
                headers[key] = text
            elif name.startswith(b"HTTP/"):  # of each answer: informational ones and the proxy's included
                self.is_discarding = line.partition(b" ")[2][:1] != b"2"
                headers.clear()
        lines.clear()
        if "x-robots-tag" in headers and not self.is_discarding and self._refusal is None and not self.attempt.asks:
            directive = opted_out(headers["x-robots-tag"], self.settings.product, self.settings.opt_outs)
            if directive is not None:
                self._refusal = ("opted_out", f"X-Robots-Tag: {directive}")

    # --- after a request ---

    @property
    def received(self) -> int:
        """Bytes of the body that have come over the network."""
        return self._dropped + self.body.size

    def must_ask_again(self, error: tuple[int, str] | None) -> bool:
        """Whether what has come may be no answer to this request, but what was left on the connection, or its end.

        Remembers the connection, and the origins whose connections are not to be used again.
        """
        connection, connections, origin = self.connection, self._connections, self.chain.origin
        if connection is None or self._is_fresh or not origin[0].startswith("http"):
            return False
        if self._is_spoilt:  # found before the request was sent
            if origin[0] == "http":  # TLS has messages of its own
                connections.distrust(origin)
            return True
        handle = self.handle
        if error is not None:
            is_old = not (handle.getinfo(pycurl.NUM_CONNECTS) or handle.getinfo(pycurl.RESPONSE_CODE))
            if is_old and error[0] in curl_errors.NOT_HTTP:
                connections.distrust(origin)
            return is_old and error[0] in curl_errors.NO_ANSWER
        socket = handle.getinfo(pycurl.ACTIVESOCKET)  # -1 if it was closed
        kept = connections.kept.get(connection)
        if kept is None or 0 <= socket != kept.socket:
            if socket >= 0 and handle.getinfo(pycurl.INFO_HTTP_VERSION) < pycurl.CURL_HTTP_VERSION_2_0:
                connections.keep(connection, socket, self)
            return False
        if kept.user is self and self._has_surplus(socket):
            connections.distrust(origin)
            return True
        # A 408 is how a server ends a connection that waited for too long (RFC 9110, 15.5.9).
        return self.is_discarding and handle.getinfo(pycurl.RESPONSE_CODE) == 408

    def _has_surplus(self, socket: int) -> bool:
        """Whether more than its answers has come on a connection that was used before; -1 if libcurl has closed it."""
        if socket >= 0:
            return self.chain.scheme == "http" and has_bytes(socket)  # TLS has messages of its own
        handle = self.handle  # libcurl closes it for that, or for one of these reasons
        return (
            not self.proxy
            and handle.getinfo(pycurl.INFO_HTTP_VERSION) == pycurl.CURL_HTTP_VERSION_1_1
            and handle.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T) >= 0
            and "close" not in self._headers.get("connection", "").lower()
        )

    def location(self, error: tuple[int, str] | None) -> str | None:
        """Where an answer that is no success sends us, if anywhere."""
        if self._refusal is not None or self.attempt.probe:
            return None
        if error is not None and error[0] not in curl_errors.BODY_ERRORS:
            return None
        if self.handle.getinfo(pycurl.RESPONSE_CODE) // 100 != 3:
            return None
        # Bytes that are not ASCII are asked for as what they are.
        text = "".join(c if c.isascii() else f"%{ord(c):02X}" for c in self._headers.get("location", ""))
        return absolute(text, self.chain.at) if text else None

    def follow(self, location: str) -> Failure | None:
        """Let the chain go on there, or say why not."""
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        return self.chain.follow(location, status, self._headers.get("set-cookie", ""), self._robots)

    def outcome(self, error: tuple[int, str] | None) -> Payload | Failure:
        """The outcome of the attempt. Raises the OSError that kept the body from being buffered, if one did."""
        if error is not None and (self._error is not None or not self._is_cut):
            return self._failure(error)
        headers, url, status = self._headers, self.chain.final_url, None
        if self.chain.scheme[0] == "h":  # neither ftp nor ftps, whose statuses are others
            status = self.handle.getinfo(pycurl.RESPONSE_CODE)
            if not 200 <= status < 300 or status in (204, 205):
                return self._http_failure(status)
        if status == 206:
            size = whole_size(headers.get("content-range", ""))
            if size is None or (size != self.received and not self._is_cut):
                return self._http_failure(status)
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, url)
        if self.body.size and "content-encoding" in headers:
            try:
                self._decode(headers["content-encoding"])
            except Undecodable as failed:
                return Failure("fetch", failed.code, str(failed), status, url)
        if not self.body.size:
            return Failure("fetch", "empty_body", "", status, url)
        body, self.body = self.body, Body(self._buffer)
        # Raw, because servers put into their headers what they like.
        media_type = _media_type((self.handle.getinfo_raw(pycurl.CONTENT_TYPE) or b"")[:LONGEST_HEADER])
        seconds = time.monotonic() - self.started
        return Payload(body, media_type, status, url, seconds, headers.get("etag"), headers.get("last-modified"))

    def _failure(self, error: tuple[int, str]) -> Failure:
        """Why libcurl gave the request up. Raises the OSError that kept the body from being buffered, if one did."""
        if self._error is not None:
            if not open_files.is_exhausted(self._error):
                raise self._error
            return WITHOUT_FILES
        handle, final_url = self.handle, self.chain.final_url
        status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        os_errno = handle.getinfo(pycurl.OS_ERRNO)
        if error[0] == pycurl.E_COULDNT_CONNECT:
            if self._has_socket and not os_errno and error[1].startswith("Failed to connect to"):
                return WITHOUT_FILES  # pycurl had no descriptor for its copy of the socket
            if self._refused_address is not None and not self._has_socket:
                self._refusal = ("blocked_address", self._refused_address)
        if self._refusal is not None:
            return Failure("fetch", *self._refusal, status, final_url)
        if error[0] == pycurl.E_WRITE_ERROR and self.is_discarding and status:
            return self._http_failure(status)
        return curl_errors.failure_of(error, status, final_url, os_errno, self.chain.scheme)

    def _decode(self, content_encoding: str) -> None:
        """Put what the body decodes to in its place. A robots.txt is cut where it is long enough, or ends early."""
        encoded, self.body = self.body, Body(self._buffer)
        try:
            for piece in decoded(encoded.chunks(), content_encoding):
                if self.body.size + len(piece) > self.settings.longest:
                    if not self.attempt.asks:
                        raise Undecodable("too_large", f"more than {self.settings.longest} bytes")
                    self.body.write(piece[: self.settings.longest - self.body.size])
                    return
                self.body.write(piece)
        except Undecodable as error:
            if not (self._is_cut and error.code == "truncated"):
                raise
        finally:
            encoded.release()

    def timed_out(self, is_resolved_by_us: bool) -> Failure:
        """Why it is given up now, and how far it came."""
        handle, status = self.handle, None
        if self.host:
            where = "resolving the host name"
        elif handle.getinfo(pycurl.STARTTRANSFER_TIME):
            where = f"receiving the body ({self.received} bytes so far)"
        elif handle.getinfo(pycurl.PRETRANSFER_TIME):
            where = "waiting for the answer"
        elif is_resolved_by_us or handle.getinfo(pycurl.NAMELOOKUP_TIME):
            where = "connecting"
        else:
            where = "resolving the host name"
        if not self.host:
            status = handle.getinfo(pycurl.RESPONSE_CODE) or None
        detail = f"after {time.monotonic() - self.started:.1f} s, while {where}"
        return Failure("fetch", "timeout_total", detail, status, self.chain.final_url, received=self.received)

    def _http_failure(self, status: int) -> Failure:
        wait = self.handle.getinfo(pycurl.RETRY_AFTER) if status in (429, 503) else 0  # libcurl reads dates as well
        return http_failure(status, self.chain.final_url, float(wait) or None)


class _CopiedSocket:
    """A socket whose descriptor pycurl copies before it lets go of this."""

    def __init__(self, opened: socket.socket) -> None:
        self._opened = opened
        self.fileno = opened.fileno

    def __del__(self) -> None:
        self._opened.close()


@lru_cache(maxsize=256)
def _media_type(content_type: bytes) -> str | None:
    return content_type.decode("latin-1").partition(";")[0].strip().lower() or None
