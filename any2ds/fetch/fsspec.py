"""Fetches from whatever file system fsspec knows: object stores, hdfs, sftp, local files.

Addresses cannot be checked on the connection here. Where a URL names its host, all that it resolves to is looked at
before; files of this machine and hosts named by the URL are out of reach with `block_private_addresses`. Object stores
are asked with the credentials that fsspec finds, and configured as fsspec is: `FSSPEC_S3='{"anon": true}'`.

How far a piece of a file has come is not known before it is there whole, and it must not count as stalled meanwhile: so
pieces are as big as the speed so far allows. One that takes longer than `stall_timeout` is cut, whatever `min_speed`.
"""

from __future__ import annotations

import datetime
import os
import socket
import stat
import threading
import time
from email.utils import format_datetime
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from any2ds.config import FetchOptions
from any2ds.errors import MissingExtra, words_of
from any2ds.fetch.rules import refuses
from any2ds.fetch.threads import Answer, Flight, Refused, causes
from any2ds.fetch.urls import LOCAL, SERVERS, scheme_of
from any2ds.registry import missing_extra
from any2ds.types import Failure

_FIRST = 1 << 18  # bytes read at once to begin with, and by slow transfers
_BLOCK = 1 << 22  # the most that is read at once
_OF_STALL = 0.25  # the part of `stall_timeout` that a piece should take at most

_NAMING_A_HOST = SERVERS | {"ftp"}

# By name, since the libraries are loaded only where they are used; the first that is found among the causes counts.
_CODES = {
    "IsADirectoryError": "not_found",
    "NotADirectoryError": "not_found",
    "FileNotFoundError": "not_found",
    "PermissionError": "access_denied",
    "AuthenticationException": "access_denied",  # paramiko
    "NoCredentialsError": "access_denied",  # botocore
    "error_perm": "access_denied",  # ftplib
    "gaierror": "dns",
    "ConnectionRefusedError": "connect",
    "EndpointConnectionError": "connect",  # botocore
    "ConnectTimeoutError": "connect",
    "NoValidConnectionsError": "connect",  # paramiko
    "ConnectionResetError": "reset",
    "FSTimeoutError": "reset",
    "TimeoutError": "reset",
}


class FileSystems:
    """The file systems of a run that any thread may use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[tuple[Any, ...], Any] = {}
        self._missing: dict[str, Failure] = {}  # scheme -> what is to be installed

    def find(self, scheme: str, url: str, own: dict[tuple[Any, ...], Any]) -> Any:
        """The file system of `url`; `own` holds those of the calling thread, for libraries that cannot be shared."""
        with self._lock:
            if scheme in self._missing:
                raise Refused("missing_extra", self._missing[scheme].detail)
            try:
                kind = fsspec.get_filesystem_class(scheme)
            except ImportError as error:
                raise self._lacks(scheme, error) from error
            arguments = kind._get_kwargs_from_urls(url)
            key = (scheme, *sorted(arguments.items()))
            if key in self._shared:
                return self._shared[key]
            if key in own:
                return own[key]
            shareable = kind.async_impl or issubclass(kind, (LocalFileSystem, MemoryFileSystem))
            if shareable:
                found = self._shared[key] = kind(**arguments, skip_instance_cache=True)
                return found
        own.clear()  # a connection each; the next rows of a thread are most often for the same host
        found = own[key] = kind(**arguments, skip_instance_cache=True)
        return found

    def _lacks(self, scheme: str, error: ImportError) -> Refused:
        extra = missing_extra(f"{scheme}:", error)
        refusal = Refused("missing_extra", str(extra) if isinstance(extra, MissingExtra) else words_of(error))
        self._missing[scheme] = refusal.failure
        return refusal


class FsspecClient:
    """A `threads.Client` that reads at most `block` bytes at a time."""

    def __init__(self, options: FetchOptions, systems: FileSystems, block: int) -> None:
        self._options = options
        self._systems = systems
        self._own: dict[tuple[Any, ...], Any] = {}
        self._block = max(1 << 16, min(_BLOCK, block))

    def fetch(self, url: str, flight: Flight) -> Answer | Failure:
        scheme = scheme_of(url)
        try:
            self._check(scheme, url)
            if scheme == "data":
                return _inline(url, flight)
            return self._read(self._systems.find(scheme, url, self._own), url, flight)
        except Refused:
            raise
        except ImportError as error:
            return Failure("fetch", "missing_extra", words_of(error))
        except Exception as error:  # every file system has exceptions of its own
            names = (kind.__name__ for cause in causes(error) for kind in type(cause).__mro__)
            code = next((_CODES[name] for name in names if name in _CODES), "fetch_error")
            return Failure("fetch", code, f"{type(error).__name__}: {words_of(error)}")

    def close(self) -> None:
        self._own.clear()

    def _check(self, scheme: str, url: str) -> None:
        """Raises Refused for what rows of this list may not lead to."""
        options = self._options
        if options.block_private_addresses and scheme in LOCAL | _NAMING_A_HOST:
            raise Refused("blocked_address", f"{scheme}: is not for lists of strangers (--block_private_addresses)")
        if scheme in _NAMING_A_HOST and (host := _host(url)):
            for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                if reason := refuses([str(address[0])], False, options.allow_link_local):
                    raise Refused("blocked_address", f"{address[0]} {reason}")
        if scheme == "file" and not stat.S_ISREG(os.stat(url.removeprefix("file://")).st_mode):
            raise Refused("not_found", "not a regular file")  # a pipe or a device might never end

    def _read(self, system: Any, url: str, flight: Flight) -> Answer | Failure:
        path = system._strip_protocol(url)
        # What any thread may use reads by ranges: one request a block, and nothing is read ahead and held.
        by_ranges = {"cache_type": "none"} if system.async_impl else {}
        piece = min(_FIRST, self._block)
        with system.open(path, "rb", block_size=piece, **by_ranges) as file:
            size = getattr(file, "size", None)
            if isinstance(size, int) and size > self._options.max_file_bytes:
                raise Refused("too_large", f"{size} bytes")
            begun = time.monotonic()
            while chunk := file.read(piece):
                flight.receive(bytes(chunk))
                now = time.monotonic()
                piece = next_piece(len(chunk), now - begun, self._options.stall_timeout, self._block)
                begun = now
            details = getattr(file, "details", None)
        if isinstance(size, int) and flight.parcel.size < size:
            return Failure("fetch", "truncated", f"{flight.parcel.size} of {size} bytes")
        if not flight.parcel.size:
            return Failure("fetch", "empty_body")
        return Answer(etag=_etag(details), last_modified=_last_modified(details))


def next_piece(size: int, seconds: float, stall_timeout: float, most: int) -> int:
    """Bytes to read at once after `size` bytes that took so many seconds; at most `most`."""
    if not stall_timeout or seconds <= 0:
        return most
    return min(most, max(_FIRST, int(size / seconds * stall_timeout * _OF_STALL)))


def _inline(url: str, flight: Flight) -> Answer | Failure:
    """A `data:` URL (RFC 2397), which is its own file."""
    from urllib.request import urlopen

    try:
        with urlopen(url) as file:
            body, media_type = file.read(), file.headers.get_content_type()
    except ValueError as error:
        return Failure("fetch", "bad_url", words_of(error))
    if not body:
        return Failure("fetch", "empty_body")
    flight.receive(body)
    return Answer(media_type)


def _host(url: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


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
