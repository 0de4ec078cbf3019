"""SFTP as fsspec and paramiko do it, but sessions heal, all waiting ends, and host keys are looked at.

Each thread has a session of its own: with two threads in one, each takes the answers of the other one.

A server that is in the user's or the system's `known_hosts` must have the key that stands there. One that is not is
believed, with a warning, unless a password would be sent to it over a network. `host_key_policy` changes that, as it
does in fsspec: `reject` refuses all that are not known, `auto_add` believes them without a word, `warning` with one.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import os
import random
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem
from fsspec.spec import AbstractBufferedFile
from paramiko.sftp import CMD_DATA, CMD_READ, SFTP_EOF, int64

from any2ds.core.errors import error_text

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE = 30.0  # seconds for each step of connecting
_SILENCE = 60.0  # seconds that a server may take until the next byte
_KEEP_ALIVE = 30  # seconds
_GREETINGS = 4  # that one server gets at once; of more than ten OpenSSH drops some at random (MaxStartups)
_TRIES = 5  # to connect
_PIECE = 1 << 15  # bytes in one answer: the most that every server gives
_BLOCK = 1 << 21  # bytes that are asked for at once: what the window of a channel holds
_PAUSES = (0.05, 0.3, 1.5)  # seconds, at most, before what a broken session has not done is asked of a new one
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://(?:([^/]*)@)?(\[[^\]/]*\]|[^/:]*)(?::(\d+))?(/.*)?", re.DOTALL)
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")

_greeting: dict[tuple[str, int], threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(_GREETINGS)
)
_reported: set[str] = set()  # the servers that were logged as unknown


class UnknownHost(paramiko.SSHException, PermissionError):  # type: ignore[misc]
    """Not to be talked to before somebody has looked at its key."""


def path_of(url: str) -> str:
    """The path as it stands there, `#`, `?` and `%` included: it is no part of a web address. Without a last slash."""
    match = _URL.fullmatch(url)
    return ((match[4] or "/") if match else url).rstrip("/") or "/"


def login_of(url: str) -> dict[str, Any]:
    """Host, port, user name and password, as far as the URL has them; the last two may be percent-encoded in it."""
    match = _URL.fullmatch(url)
    if match is None:
        return {}
    user, _, password = (match[1] or "").partition(":")
    found = {
        "host": match[2].strip("[]"),
        "port": int(match[3]) if match[3] else None,
        "username": unquote(user),
        "password": unquote(password),
    }
    return {name: value for name, value in found.items() if value}


def _healing(method: F) -> F:
    """Of a file system or a file of it: what may be done twice is, if the session broke in the middle.

    It is what the libraries of object stores do for each request. Where one thread fetches one file (`exclusive`), that
    is up to the row and its limits.
    """

    @functools.wraps(method)
    def healed(self: Any, *args: Any, **options: Any) -> Any:
        fs = self if isinstance(self, SftpFileSystem) else self.fs
        for pause in () if fs.is_exclusive else _PAUSES:
            try:
                return method(self, *args, **options)
            except ConnectionResetError:
                time.sleep(pause * random.random())
        return method(self, *args, **options)

    return cast(F, healed)


class SftpFileSystem(SFTPFileSystem):  # type: ignore[misc]
    """For any threads, or for one at a time (`exclusive`). Sessions of threads that are gone are closed as they are
    collected.

    Takes what `paramiko.SSHClient.connect` does, `host_key_policy` and `known_hosts` (a file). `judge` is called with
    each address of the host before anything is connected to, and raises for one that may not be.
    """

    def __init__(
        self,
        host: str,
        host_key_policy: str | None = None,
        known_hosts: str | None = None,
        exclusive: bool = False,
        judge: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        if self._cached:
            return
        self._policy = _Policy(host_key_policy, bool(options.get("password")))
        self._known_hosts = (known_hosts,) if known_hosts else _KNOWN_HOSTS
        self.is_exclusive = exclusive
        self._judge = judge
        self._own: Any = SimpleNamespace() if exclusive else threading.local()
        super().__init__(host, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return [cls._strip_protocol(one) for one in path] if isinstance(path, list) else path_of(os.fspath(path))

    @staticmethod
    def _get_kwargs_from_urls(urlpath: str) -> dict[str, Any]:
        return login_of(urlpath)

    @property
    def ftp(self) -> _Session:
        """The session of this thread, new if it has none or a broken one. Raises what connecting raises."""
        session = self.present_session
        if session is None or session.is_broken:
            self._own.session = None  # gone before there is another: servers count them
            session = self._own.session = self._login()
        return session

    @property
    def present_session(self) -> _Session | None:
        """The session of this thread, in whatever state it is."""
        return getattr(self._own, "session", None)

    @property
    def connection(self) -> socket.socket:
        """Of the session of this thread: who cuts it ends whatever the thread waits for."""
        found: socket.socket = self.ftp.get_channel().get_transport().sock
        return found

    def _connect(self) -> None:
        """fsspec's constructor calls it; what is wrong with the login should be known by then."""
        _ = self.ftp

    def _login(self) -> _Session:
        """Raises what paramiko does, after it was tried again where the server may only have been busy."""
        for left in reversed(range(_TRIES)):
            try:
                with _greeting[self.host, self.ssh_kwargs.get("port", 22)]:
                    return self._greet()
            except (paramiko.AuthenticationException, paramiko.BadHostKeyException, PermissionError):
                raise
            except (paramiko.SSHException, EOFError, ConnectionResetError, BrokenPipeError) as error:
                if not left:
                    message = f"{self.host} hangs up while it is being logged in to: {error_text(error)}"
                    raise ConnectionResetError(message) from error
                time.sleep(0.1 * 2 ** (_TRIES - left) * random.random())
        raise AssertionError("the last try returns or raises")

    def _greet(self) -> _Session:
        client = paramiko.SSHClient()
        for name in self._known_hosts:
            with contextlib.suppress(OSError):
                client.load_system_host_keys(os.path.expanduser(name))
        client.set_missing_host_key_policy(self._policy)
        limits = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), _PATIENCE)
        try:
            client.connect(self.host, **{**limits, "sock": self._connected(), **self.ssh_kwargs})
            transport = client.get_transport()
            transport.set_keepalive(_KEEP_ALIVE)
            session: _Session = _Session.from_transport(transport)
        except BaseException as error:
            transport = client.get_transport()
            hung_up = transport is not None and not transport.is_active()
            client.close()
            if hung_up and type(error) is paramiko.AuthenticationException:  # as it calls that too
                raise ConnectionResetError(error_text(error)) from error
            raise
        session.client = client  # which ends the connection when it is collected
        session.get_channel().settimeout(_SILENCE)
        return session

    def _connected(self) -> socket.socket | None:
        """A connection to an address that was judged, since paramiko would resolve the name again; None if any may be
        connected to."""
        if self._judge is None or "sock" in self.ssh_kwargs:
            return None
        found = socket.getaddrinfo(self.host, self.ssh_kwargs.get("port", 22), type=socket.SOCK_STREAM)
        for *_, target in found:
            self._judge(str(target[0]))
        failures = []
        for *_, target in found:
            try:
                return socket.create_connection((str(target[0]), int(target[1])), _PATIENCE)
            except OSError as error:
                failures.append(error)
        raise failures[0]

    @_healing
    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return dict(super().info(path))

    @_healing
    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        return super().ls(path, detail)

    def exists(self, path: str, **_: Any) -> bool:
        """Raises what fsspec would take for an absent file: that the server does not answer."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        try:
            return bool(self.info(path)["type"] == "directory")
        except FileNotFoundError:
            return False

    @_healing
    def makedirs(self, path: str, exist_ok: bool = False, mode: int = 0o777) -> None:
        """From the innermost folder up: one that is there costs one request. Another process may do the same."""
        path = self._strip_protocol(path)
        if self.isdir(path):
            if not exist_ok:
                raise FileExistsError(path)
            return
        parent = self._parent(path)
        if parent != path:
            self.makedirs(parent, exist_ok=True, mode=mode)
        try:
            self.ftp.mkdir(path, mode)
        except OSError:
            if not (exist_ok and self.isdir(path)):
                raise

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        """Raises OSError if what arrived has another size."""
        path = self._strip_protocol(rpath)
        try:
            self.ftp.put(os.fspath(lpath), path)
        except FileNotFoundError:
            if not os.path.exists(lpath) or self.exists(self._parent(path)):
                raise
            self.makedirs(self._parent(path), exist_ok=True)
            self.ftp.put(os.fspath(lpath), path)

    @_healing
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        with self.ftp.open(self._strip_protocol(path), "wxb" if mode == "create" else "wb") as file:
            file.write(value)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self.open(path, "rb", cache_type="none") as file:
            size = file.size
            first, last = (size + at if at < 0 else min(at, size) for at in (start or 0, size if end is None else end))
            return b"".join(file.pieces(first, last))

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **_: Any) -> None:
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.open(rpath, "rb", cache_type="none") as file, open(lpath, "wb") as copy:
            for piece in file.pieces(0, file.size):
                copy.write(piece)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        if mode != "rb" or options.pop("autocommit", True) is False:
            return super()._open(path, mode, block_size=block_size, **options)
        return _File(self, self._strip_protocol(path), mode, block_size or _BLOCK, **options)


class _File(AbstractBufferedFile):  # type: ignore[misc]
    """A file to be read. It can be read by any thread, and goes on in a new session when one breaks."""

    def __init__(self, fs: SftpFileSystem, path: str, mode: str, block_size: int, **options: Any) -> None:
        self._handle: tuple[_Session, paramiko.SFTPFile] | None = None
        super().__init__(fs, path, mode, block_size, **options)
        if self.details["type"] == "directory":
            raise IsADirectoryError(path)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        for first in range(start, end, _BLOCK):
            yield self._fetch_range(first, min(end, first + _BLOCK))

    @_healing
    def _fetch_range(self, start: int, end: int) -> bytes:
        session: _Session = self.fs.ftp
        end = min(end, self.size)
        if self._handle is None or self._handle[0] is not session:
            self._handle = session, session.open(self.path, "rb")
        data = session.read_range(self._handle[1], start, end)
        if len(data) < end - start:
            raise OSError(f"{self.path} has become shorter than {end} bytes")
        return data

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and handle[0] is self.fs.present_session:  # else paramiko closes it as it is collected
            handle[1].close()  # which ignores a broken session
        super().close()


class _Pieces:
    """Takes answers as they come, in whatever order. It is one of paramiko's files to a session."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}  # number of the request -> its answer; empty behind the end of the file
        self.error: Exception | None = None

    def _async_response(self, kind: int, message: Any, number: int) -> None:
        self.data[number] = b""
        if kind == CMD_DATA:
            self.data[number] = message.get_string()
        elif message.get_int() != SFTP_EOF:
            self.error = OSError(message.get_text())


class _Session(paramiko.SFTPClient):  # type: ignore[misc]
    """A session that knows when it is broken, and raises ConnectionResetError then rather than various errors."""

    is_cut = False
    client: paramiko.SSHClient | None = None

    @property
    def is_broken(self) -> bool:
        """Also when the server has closed an idle connection."""
        return self.is_cut or not self.get_channel().get_transport().is_active()

    def read_range(self, file: paramiko.SFTPFile, start: int, end: int) -> bytes:
        """All pieces are asked for at once, since each takes a way there and back. Less only at the end of the file."""
        pieces = _Pieces()
        lengths = {
            self._async_request(pieces, CMD_READ, file.handle, int64(at), min(_PIECE, end - at)): min(_PIECE, end - at)
            for at in range(start, end, _PIECE)
        }
        while len(pieces.data) < len(lengths):
            self._read_response()
        if pieces.error is not None:
            raise pieces.error
        found: list[bytes] = []
        for number, length in lengths.items():
            found.append(pieces.data[number])
            if len(found[-1]) < length:  # a server may give less than was asked for
                done = start + sum(map(len, found))
                return b"".join(found) + (self.read_range(file, done, end) if found[-1] else b"")
        return b"".join(found)

    def _send_packet(self, t: int, packet: Any) -> None:
        try:
            super()._send_packet(t, packet)
        except (EOFError, OSError) as error:
            raise self._cut(error) from error

    def _read_packet(self) -> Any:
        try:
            return super()._read_packet()
        except (EOFError, OSError) as error:
            raise self._cut(error) from error

    def _cut(self, error: BaseException) -> OSError:
        self.is_cut = True  # also after a time-out, since the answer may still come and be taken for the next one
        if isinstance(error, TimeoutError):
            return TimeoutError(f"the server has sent nothing for {_SILENCE:.0f} s")
        return ConnectionResetError("the connection to the server broke off")

    def _finish_responses(self, fileobj: Any) -> None:
        if not self.is_cut:  # else there will not be any
            super()._finish_responses(fileobj)


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Asked about a host that `known_hosts` does not have."""

    def __init__(self, wanted: str | None, has_password: bool) -> None:
        if wanted not in (None, "reject", "warning", "auto_add"):
            raise ValueError(f"host_key_policy is {wanted!r}: not reject, warning or auto_add")
        self._wanted, self._has_password = wanted, has_password

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        message = f"the host key of {hostname} ({key.get_name()} {key.fingerprint}) is not in {_KNOWN_HOSTS[0]}"
        transport = client.get_transport()
        peer = transport.getpeername()[0] if transport is not None else ""
        if self._wanted == "reject" or (self._wanted is None and self._has_password and not _is_here(peer)):
            raise UnknownHost(f"{message}: look at it and add it (ssh-keyscan), or set host_key_policy")
        if self._wanted != "auto_add" and not (self._wanted is None and _is_here(peer)) and hostname not in _reported:
            _reported.add(hostname)
            log.warning("%s, so nobody knows whose server that is", message)


def _is_here(address: str) -> bool:
    """Whether it is of this machine, where no one can intercept it."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
