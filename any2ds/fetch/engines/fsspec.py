"""Fetches from whatever file system fsspec knows: object stores, hdfs, sftp, local files.

A run has to allow the scheme of a row by name (`allow_schemes`), but `data:`. Where a URL names its host, sftp connects
to none but one whose key is known; the other libraries connect only to hosts that the user has named in
`storage_options`. Files of this machine and hosts named by the URL are out of reach with
`block_private_addresses`. Object stores are asked with the credentials
that fsspec finds, and configured as fsspec is: `FSSPEC_S3='{"anon": true}'`.

How far a piece of a file has come is not known before it is there whole, and it must not count as stalled meanwhile: so
pieces are as big as the speed so far allows. One that takes longer than `timeout`, or than `stall_timeout`, is cut,
whatever `min_speed`.
"""

from __future__ import annotations

import datetime
import io
import os
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import format_datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from fsspec import get_filesystem_class
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from any2ds.config.options import FetchOptions
from any2ds.core.errors import MissingExtra, error_text
from any2ds.core.failures import Failure
from any2ds.core.plugins import missing_extra
from any2ds.core.schemes import GUARDED, LOCAL, SERVERS
from any2ds.fetch.engines.s3 import S3Object
from any2ds.fetch.engines.threads import Answer, Refused, ThreadTransfer, causes, lack_of_files
from any2ds.fetch.policy.rules import refuses
from any2ds.fetch.urls import scheme_of
from any2ds.storage.stores import Stores

_FIRST = 1 << 18  # bytes read at once to begin with
_LEAST = 1 << 16  # the same, of slow transfers
_BLOCK = 1 << 22  # the most that is read at once
_OF_LIMIT = 0.25  # the part of the time limit that a piece should take at most

# Schemes whose host proves that it is the one that is meant, by a key that is known: its name is resolved here, and if
# it leads elsewhere a moment later, nobody is logged in there.
_PROVEN = frozenset({"sftp", "ssh"})
_SESSIONS_KEPT = 64  # with servers, that nobody uses

# Exceptions by name, since the libraries are loaded only where they are used; the first among the causes counts.
_CODES = {
    name: code
    for code, names in {
        "not_found": ("IsADirectoryError", "NotADirectoryError", "FileNotFoundError"),
        "access_denied": (
            *("PermissionError", "AuthenticationException"),  # of Python, of paramiko
            *("NoCredentialsError", "DefaultCredentialsError", "RefreshError"),  # of botocore, of google.auth
        ),
        "tls": ("UnknownHost", "BadHostKeyException"),  # of any2ds.fetch.engines.sftp, of paramiko
        "dns": ("gaierror",),
        "connect": (
            *("ConnectionRefusedError", "EndpointConnectionError", "ConnectTimeoutError"),  # of Python, of botocore
            *("NoValidConnectionsError", "ClientConnectorError"),  # of paramiko, of aiohttp
        ),
        "http_502": ("ProxyError",),  # of requests, by which gcsfs means that
        "reset": (
            *("SSHException", "ClientError", "FSTimeoutError"),
            *("ConnectionResetError", "BrokenPipeError", "EOFError", "TimeoutError"),
        ),
    }.items()
    for name in names
}


class FileSystems:
    """The file systems of a run: one for all threads, or one for each that fetches, where they cannot be shared."""

    def __init__(self, stores: Stores, allow_link_local: bool = False) -> None:
        self._stores, self._allow_link_local = stores, allow_link_local
        self._lock = threading.Lock()
        self._shared: dict[tuple[Any, ...], Any] = {}
        self._idle: deque[tuple[Any, Any]] = deque()  # keys and sessions that are logged in; the last used come last
        self._missing: dict[str, str] = {}  # scheme -> what is to be installed

    @contextmanager
    def lend(self, scheme: str, url: str) -> Iterator[Any]:
        """The file system of `url`, for the calling thread. Raises Refused if its library is missing."""
        kind = self._class(scheme)
        in_url = kind._get_kwargs_from_urls(url)
        key = (scheme, *sorted(in_url.items()))
        arguments = {**self._stores.of_item(scheme, in_url), **in_url}
        if kind.async_impl or issubclass(kind, (LocalFileSystem, MemoryFileSystem)):
            with self._lock:
                if key not in self._shared:
                    self._shared[key] = kind(**arguments, skip_instance_cache=True)
            yield self._shared[key]
            return
        with self._lock:
            session = next((idle for idle in self._idle if idle[0] == key), None)
            if session is not None:
                self._idle.remove(session)
        if session is None:
            if scheme in _PROVEN:
                _refuse_link_local(in_url["host"], self._allow_link_local)
            session = key, kind(**arguments, skip_instance_cache=True)
        try:
            yield session[1]
        except (FileNotFoundError, IsADirectoryError, PermissionError):  # answers; after others it may be broken
            self._keep(session)
            raise
        self._keep(session)

    def is_configured(self, scheme: str, host: str) -> bool:
        """Whether the user has given options for this very server."""
        return bool(host) and self._stores.of(scheme).get("host") == host

    def _keep(self, session: tuple[Any, Any]) -> None:
        dropped = None  # to be closed outside of the lock
        with self._lock:
            self._idle.append(session)
            if len(self._idle) > _SESSIONS_KEPT:
                dropped = self._idle.popleft()
        del dropped

    def _class(self, scheme: str) -> Any:
        with self._lock:
            if scheme in self._missing:
                raise Refused("missing_extra", self._missing[scheme])
            try:
                return _class_of(scheme)
            except ImportError as error:
                extra = missing_extra(f"{scheme}:", error)
                self._missing[scheme] = str(extra) if isinstance(extra, MissingExtra) else error_text(error)
                raise Refused("missing_extra", self._missing[scheme]) from error


def _class_of(scheme: str) -> Any:
    """Raises ImportError if its library is missing."""
    if scheme in _PROVEN:
        from any2ds.fetch.engines.sftp import SftpFileSystem

        return SftpFileSystem
    return get_filesystem_class(scheme)


class FsspecClient:
    """Reads for all threads, at most `block` bytes at a time."""

    def __init__(self, options: FetchOptions, systems: FileSystems, block: int) -> None:
        self._options = options
        self._systems = systems
        self._block = max(_LEAST, min(_BLOCK, block))
        self._limit = min((limit for limit in (options.timeout, options.stall_timeout) if limit), default=0.0)

    def fetch(self, url: str, transfer: ThreadTransfer) -> Answer | Failure:
        scheme = scheme_of(url)
        try:
            self._check(scheme, url)
            if scheme == "data":
                return _inline(url, transfer)
            if scheme == "file":
                url = f"file://{_local_path(url)}"
            with self._systems.lend(scheme, url) as system:
                return self._read(system, url, transfer)
        except Refused:
            raise
        except ImportError as error:
            return Failure("fetch", "missing_extra", error_text(error))
        except Exception as error:  # every file system has exceptions of its own
            return lack_of_files(error) or Failure(
                "fetch", _code_of(error), f"{type(error).__name__}: {error_text(error)}"
            )

    def _check(self, scheme: str, url: str) -> None:
        """Raises Refused for what rows of this list may not lead to."""
        options = self._options
        if scheme in GUARDED and scheme not in (options.allow_schemes or ()):
            raise Refused("scheme_not_allowed", f"{scheme}: is read with your rights (--allow_schemes={scheme})")
        host = urlsplit(url).hostname if scheme in SERVERS - _PROVEN else None
        if host and not self._systems.is_configured(scheme, host):
            words = f"{scheme}: connects where addresses cannot be checked, so only to the host in storage_options"
            raise Refused("scheme_not_allowed", words)
        if options.block_private_addresses and scheme in LOCAL | SERVERS:
            raise Refused("blocked_address", f"{scheme}: is refused for untrusted lists (--block_private_addresses)")
        if scheme == "file" and not stat.S_ISREG(os.stat(_local_path(url)).st_mode):
            raise Refused("not_found", "not a regular file")  # a pipe or a device might never end

    def _read(self, system: Any, url: str, transfer: ThreadTransfer) -> Answer | Failure:
        path = system._strip_protocol(url)
        piece = min(_FIRST, self._block)
        begun = time.monotonic()
        with _opened(system, path, piece) as file:
            size = getattr(file, "size", None)
            if isinstance(size, int) and size > self._options.max_file_bytes:
                raise Refused("too_large", f"{size} bytes")
            while chunk := file.read(piece):
                transfer.receive(bytes(chunk))
                now = time.monotonic()
                piece = next_piece(len(chunk), now - begun, self._limit, self._block)
                begun = now
            details = getattr(file, "details", None)
        if isinstance(size, int) and transfer.body.size < size:
            return Failure("fetch", "truncated", f"{transfer.body.size} of {size} bytes")
        if not transfer.body.size:
            return Failure("fetch", "empty_body")
        return Answer(etag=_etag(details), last_modified=_last_modified(details))


def _refuse_link_local(host: str, is_allowed: bool) -> None:
    """Raises Refused for addresses where secrets of machines are kept, and socket.gaierror for an unknown host."""
    for *_, target in [] if is_allowed else socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        address = str(target[0])
        if reason := refuses(address, address, False, False):
            raise Refused("blocked_address", f"{address} {reason}")


def _local_path(url: str) -> str:
    """The path of a file URL, decoded (RFC 8089); as written if there is no such file, as many lists do not encode."""
    written = url.removeprefix("file://")
    decoded = unquote(written)
    return decoded if decoded == written or os.path.exists(decoded) else written


def _opened(system: Any, path: str, piece: int) -> Any:
    """A file to be read from its start, so many bytes at once to begin with."""
    if "s3" in system.protocol:
        return S3Object(system, path, piece)
    if "memory" in system.protocol:  # it lends everybody the same file, which has one position
        return io.BytesIO(system.cat_file(path))
    # File systems that any thread may use are read by ranges: one request a block, and nothing is read ahead and held.
    by_ranges = {"cache_type": "none"} if system.async_impl else {}
    return system.open(path, "rb", block_size=piece, **by_ranges)


def _code_of(error: BaseException) -> str:
    for cause in causes(error):
        names = [kind.__name__ for kind in type(cause).__mro__]
        if found := next((_CODES[name] for name in names if name in _CODES), None):
            return found
        if "HttpError" in names and str(getattr(cause, "code", "")).isdigit():  # gcsfs
            status = int(cause.code)  # type: ignore[attr-defined]
            return "access_denied" if status in (401, 403) else f"http_{status}"
        if type(cause) is OSError and str(cause).startswith("Forbidden"):  # gcsfs' word for a 403
            return "access_denied"
    return "fetch_error"


def next_piece(size: int, seconds: float, limit: float, most: int) -> int:
    """Bytes to read at once after `size` bytes that took so many seconds; at most `most`.

    `limit` is how many seconds a piece may take; 0 for no limit.
    """
    if not limit or seconds <= 0:
        return most
    return min(most, max(_LEAST, int(size / seconds * limit * _OF_LIMIT)))


def _inline(url: str, transfer: ThreadTransfer) -> Answer | Failure:
    """A `data:` URL (RFC 2397), which is its own file."""
    from urllib.request import urlopen

    try:
        with urlopen(url) as file:
            body, media_type = file.read(), file.headers.get_content_type()
    except ValueError as error:
        return Failure("fetch", "bad_url", error_text(error))
    if not body:
        return Failure("fetch", "empty_body")
    transfer.receive(body)
    return Answer(media_type)


def _etag(details: Any) -> str | None:
    found = (details.get("ETag") or details.get("etag")) if isinstance(details, dict) else None
    return str(found) if found else None


def _last_modified(details: Any) -> str | None:
    """In the form that HTTP gives it."""
    names = ("LastModified", "last_modified", "updated")
    found = next((details[name] for name in names if details.get(name)), None) if isinstance(details, dict) else None
    if isinstance(found, datetime.datetime) and found.tzinfo is not None:
        return format_datetime(found.astimezone(datetime.timezone.utc), usegmt=True)
    return str(found) if found else None
