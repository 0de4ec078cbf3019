"""An FTP server on loopback. Needs `pyftpdlib`."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses asyncore as long as Python has that
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.ioloop import IOLoop
    from pyftpdlib.servers import FTPServer


class Ftp:
    """A running server for the files below `root`."""

    def __init__(self, root: Path) -> None:
        class Sessions(FTPHandler):  # type: ignore[misc]
            use_sendfile = False

        Sessions.authorizer = DummyAuthorizer()
        Sessions.authorizer.add_user("me", "secret", str(root), perm="elr")
        Sessions.authorizer.add_anonymous(str(root), perm="elr")
        self._loop = IOLoop()
        self._server = FTPServer(("127.0.0.1", 0), Sessions, ioloop=self._loop)
        self.port = int(self._server.address[1])
        self.url = f"ftp://me:secret@127.0.0.1:{self.port}"
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
