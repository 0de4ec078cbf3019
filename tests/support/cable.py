"""A network cable between a client and a server, both on loopback, that can be pulled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


class Cable:
    """Carries connections to a server, and can be pulled: `hang` lets nothing through, `refuse` resets everything."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._pulled = ""
        self._change = threading.Condition()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def pull(self, how: str) -> None:
        with self._change:
            self._pulled = how
            if how == "refuse":
                shut(self._listener)
                for pair in self._pairs:
                    for end in pair:
                        shut(end)
                self._pairs.clear()

    def plug(self) -> None:
        with self._change:
            if self._pulled == "refuse":
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
                threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
            self._pulled = ""
            self._change.notify_all()

    def close(self) -> None:
        self.pull("refuse")
        self.plug()
        shut(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    raise
                with self._change:
                    self._pairs.append((client, server))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._change:
                    self._change.wait_for(lambda: self._pulled != "hang")
                target.sendall(data)
        shut(target)


def shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def cable_to(host: str, port: int) -> Iterator[Cable]:
    with closing(Cable(host, port)) as cable:
        yield cable
