"""An FTP server on loopback that says what was stored, and cuts connections as it is told to. Needs `pyftpdlib`."""

from __future__ import annotations

import os
import random
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses asyncore as long as Python has that
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import DTPHandler, FTPHandler
    from pyftpdlib.ioloop import IOLoop
    from pyftpdlib.servers import FTPServer


class Ftp:
    """A running server for the files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stored: list[str] = []
        self.cuts: set[int] = set()  # the transfers, one for each file, that end with the connection
        self.share = 0.0  # of the commands that end with it
        self.cuts_beyond: int | None = None  # bytes of an upload that end with it
        self.ends_early = 0  # of the uploads to come: so many end after 8 kB, as if that were all, and are answered so
        self.cut: Counter[str] = Counter()
        outer, rng = self, random.Random(5)

        class Transfers(DTPHandler):  # type: ignore[misc]
            ac_in_buffer_size = 8192  # bytes at a time, so that an upload is cut near to where it is to be

            def handle_read(self) -> None:
                super().handle_read()
                if outer.cuts_beyond is not None and self.tot_bytes_received > outer.cuts_beyond:
                    outer.cut["upload"] += 1
                    self.cmd_channel.close()
                elif outer.ends_early and self.connected:
                    outer.ends_early -= 1
                    self.handle_close()

            handle_read_event = handle_read  # it is this name that pyftpdlib calls, past `handle_read`

        class Sessions(FTPHandler):  # type: ignore[misc]
            use_sendfile = False
            dtp_handler = Transfers

            def pre_process_command(self, line: str, cmd: str, arg: str) -> None:
                if rng.random() < outer.share:
                    outer.cut["cut"] += 1
                    self.close()
                else:
                    super().pre_process_command(line, cmd, arg)

            def ftp_STOR(self, file: str, mode: str = "w") -> Any:  # noqa: N802
                outer.stored.append(os.path.relpath(file, outer.root))
                if len(outer.stored) in outer.cuts:
                    self.close()
                    return None
                return super().ftp_STOR(file, mode)

        Sessions.authorizer = DummyAuthorizer()
        Sessions.authorizer.add_user("me", "secret", str(root), perm="elradfmwMT")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that anybody may write
            Sessions.authorizer.add_anonymous(str(root), perm="elradfmwMT")
        self._loop = IOLoop()
        self._server = FTPServer(("127.0.0.1", 0), Sessions, ioloop=self._loop)
        self.port = int(self._server.address[1])
        self.url = f"ftp://me:secret@127.0.0.1:{self.port}"  # anonymous may do the same
        self._ends = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ends:
            self._loop.loop(timeout=0.05, blocking=False)
        self._server.close_all()

    def close(self) -> None:
        self._ends = True
        self._thread.join()


class FtpPlace:
    """A folder on a server, as a `storing.Place`."""

    is_private = False
    environment: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}

    def __init__(self, server: Ftp, name: str) -> None:
        (server.root / name).mkdir()
        self.server = server
        self.url = f"ftp://127.0.0.1:{server.port}/{name}"

    def connect(self) -> Any:
        """Of the files as they lie on the disk: an FTP server that fails does so for everybody."""
        return _Below(self.server.root, skip_instance_cache=True)

    @contextmanager
    def failing(self, share: float) -> Iterator[Counter[str]]:
        self.server.cut, self.server.share = Counter(), share
        try:
            yield self.server.cut
        finally:
            self.server.share = 0.0

    @contextmanager
    def cutting_uploads(self, beyond: int) -> Iterator[Counter[str]]:
        self.server.cut, self.server.cuts_beyond = Counter(), beyond
        try:
            yield self.server.cut
        finally:
            self.server.cuts_beyond = None


class _Below(LocalFileSystem):  # type: ignore[misc]
    """The files of this machine, where FTP URLs stand for what lies below a folder."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(**options)
        self._root = root

    def _strip_protocol(self, path: Any) -> str:
        found = str(path)
        return f"{self._root}/{found.split('/', 3)[3]}" if found.startswith("ftp://") else found
