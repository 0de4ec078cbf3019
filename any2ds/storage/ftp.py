"""FTP as fsspec and ftplib do it, but sessions heal, and to ask for one file does not list its folder."""

from __future__ import annotations

import contextlib
import ftplib
import io
import os
import random
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from fsspec.implementations.ftp import FTPFile, FTPFileSystem, ImplicitFTPTLS, TransferDone

from any2ds.storage.sessions import LoggedIn, Sessions, healing, path_of

_PAUSES = (0.1, 0.3, 1.0, 3.0)  # seconds, at most, before another try to log in
_UNKNOWN_COMMAND = ("500", "501", "502", "504")


class FtpFileSystem(LoggedIn[ftplib.FTP], FTPFileSystem):  # type: ignore[misc]
    """For any threads, or for one at a time (`exclusive`). Takes the arguments of fsspec's."""

    def __init__(self, host: str, port: int = 21, exclusive: bool = False, **options: Any) -> None:
        if self._cached:
            return
        self.sessions: Sessions[ftplib.FTP] = Sessions(self._login, lambda session: session.sock is None, exclusive)
        self._knows_mlst = True
        super().__init__(host, port, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + path_of(os.fspath(path)).lstrip("/")

    def __del__(self) -> None:
        """Sessions close themselves; fsspec's would make one to close it."""

    def _connect(self) -> None:
        """fsspec calls it in its constructor, and for a session that is in disorder."""
        if (present := self.sessions.present()) is not None:
            present.close()
        self.sessions.get()

    def _login(self) -> ftplib.FTP:
        """Raises what ftplib does, after it was tried again where the server hung up."""
        for pause in _PAUSES:
            try:
                return self._greet()
            except (EOFError, ConnectionResetError):
                time.sleep(pause * random.random())
        return self._greet()

    def _greet(self) -> ftplib.FTP:
        kind: type[ftplib.FTP] = _Tls if self.tls is True else _ImplicitTls if self.tls else _Plain
        session = kind(timeout=self.timeout, encoding=self.encoding)
        try:
            session.connect(self.host, self.port)
            session.login(*self.cred)
            if isinstance(session, ftplib.FTP_TLS):
                session.prot_p()
        except BaseException:
            session.close()
            raise
        return session

    @healing
    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path == "/" or not self._knows_mlst:
            return dict(super().info(path, **options))
        try:
            answer = self.ftp.sendcmd(f"MLST {path}")
        except ftplib.error_perm as error:
            if not str(error).startswith(_UNKNOWN_COMMAND):
                raise FileNotFoundError(path) from error
            self._knows_mlst = False
            return dict(super().info(path, **options))
        facts = answer.splitlines()[1].strip().partition(" ")[0]
        found: dict[str, Any] = dict(fact.lower().split("=", 1) for fact in facts.split(";") if "=" in fact)
        found["type"] = "file" if found.get("type") == "file" else "directory"
        return {**found, "name": path, "size": int(found.get("size", 0)) if found["type"] == "file" else 0}

    @healing
    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        return super().ls(path, detail, **options)

    @healing
    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        super().makedirs(path, exist_ok)

    @healing
    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if end is not None:
            return bytes(super().cat_file(path, start, end, **options))
        pieces: list[bytes] = []
        self._retrieve(path, pieces.append, start)
        return b"".join(pieces)

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **_: Any) -> None:
        """fsspec's leaves its file open when the transfer breaks off."""
        with open(lpath, "wb") as file:
            self._retrieve(rpath, file.write)

    def _retrieve(self, path: str, take: Callable[[bytes], object], start: int | None = None) -> None:
        path = self._strip_protocol(path)
        try:
            self.ftp.retrbinary(f"RETR {path}", take, self.blocksize, start)
        except ftplib.error_perm as error:  # the same for a file that is not there and for one that may not be read
            self.info(path)
            raise PermissionError(f"{path}: {error}") from error

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        """Into a folder that is there. In one transfer: fsspec makes one of each block, and hopes for REST.

        Raises OSError if what arrived has another size.
        """
        with open(lpath, "rb") as file:
            self._store(file, rpath)

    @healing
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._store(io.BytesIO(value), path)

    def _store(self, file: BinaryIO, path: str) -> None:
        """The end of a data connection is the end of the file to a server, whoever it was that closed it in between."""
        path = self._strip_protocol(path)
        self.ftp.storbinary(f"STOR {path}", file, self.blocksize)
        arrived = None
        with contextlib.suppress(ftplib.error_perm):  # not every server tells
            arrived = self.ftp.size(path)
        if arrived not in (None, file.tell()):
            raise OSError(f"{path}: {arrived} of {file.tell()} bytes arrived")

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        kind = _File if mode == "rb" else FTPFile
        return kind(
            self, self._strip_protocol(path), mode, block_size or self.blocksize, tempdir=self.tempdir, **options
        )


class _File(FTPFile):  # type: ignore[misc]
    @property
    def sessions(self) -> Sessions[ftplib.FTP]:
        found: Sessions[ftplib.FTP] = self.fs.sessions
        return found

    @healing
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(super()._fetch_range(start, end))


class _Watched(ftplib.FTP):
    """Closes itself when nobody knows any more which answer belongs to what."""

    def __del__(self) -> None:
        self.close()

    def getresp(self) -> str:
        try:
            return super().getresp()
        except ftplib.error_temp as error:
            if str(error).startswith("421"):  # it hangs up
                self.close()
                raise ConnectionResetError(str(error)) from error
            raise
        except ftplib.Error:
            raise
        except (EOFError, OSError) as error:
            self.close()
            raise _as_reset(error) from error

    def putline(self, line: str) -> None:
        try:
            super().putline(line)
        except OSError as error:
            self.close()
            raise _as_reset(error) from error

    def retrbinary(self, *args: Any, **options: Any) -> str:
        try:
            return super().retrbinary(*args, **options)
        except (ftplib.Error, TransferDone):
            raise
        except BaseException as error:
            self.close()
            raise _as_reset(error) from error

    def storbinary(self, *args: Any, **options: Any) -> str:
        try:
            return super().storbinary(*args, **options)
        except ftplib.Error:
            raise
        except BaseException as error:
            self.close()
            raise _as_reset(error) from error


def _as_reset(error: BaseException) -> BaseException:
    """`error`, but in one form for a connection that the other side has closed."""
    return ConnectionResetError("the connection to the server broke off") if isinstance(error, EOFError) else error


class _Plain(_Watched):
    pass


class _Tls(_Watched, ftplib.FTP_TLS):
    pass


class _ImplicitTls(_Watched, ImplicitFTPTLS):  # type: ignore[misc]
    pass
