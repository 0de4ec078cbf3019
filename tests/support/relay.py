"""A relay on loopback in front of a server, for any protocol on TCP: it tears connections down as it is told to."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PIECE = 1 << 16  # bytes


class Relay:
    """Hands on what comes. What it was told, and what it did, may be changed and read from any thread."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.share = 0.0  # of the pieces that a client sends: what comes with one request, as a rule
        self.cuts_beyond: int | None = None  # bytes that a client may send on one connection
        self.cut: Counter[str] = Counter()
        self._target = target
        self._rng, self._lock = random.Random(5), threading.Lock()
        self._open: set[socket.socket] = set()

    def cut_all(self) -> None:
        """Tear down what is connected at the moment."""
        for connection in list(self._open):
            _reset(connection)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed, which is the end
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="any2ds-relay", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            self._open |= {client, server}
            back = threading.Thread(target=_hand_on, args=(server, client), daemon=True)
            back.start()
            if not _hand_on(client, server, self._judge()):
                _reset(client)
                _reset(server)
            back.join()
            self._open -= {client, server}

    def _judge(self) -> Callable[[int], bool]:
        """Of one connection: whether another piece of so many bytes may pass."""
        sent = 0

        def may_pass(size: int) -> bool:
            nonlocal sent
            sent += size
            if self.cuts_beyond is not None and sent > self.cuts_beyond:
                self.cut["upload"] += 1
                return False
            with self._lock:
                if self._rng.random() >= self.share:
                    return True
            self.cut["cut"] += 1
            return False

        return may_pass


def _hand_on(source: socket.socket, target: socket.socket, may_pass: Callable[[int], bool] | None = None) -> bool:
    """Until one side ends; whether it ended by itself."""
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            if may_pass is not None and not may_pass(len(data)):
                target.sendall(data[: len(data) // 2])
                return False
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    return True


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serve_relay(target: int) -> Iterator[Relay]:
    """In front of the server on port `target` of this machine."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        relay = Relay(listener.getsockname()[1], target)
        acceptor = threading.Thread(target=relay._accept, args=(listener,), name="any2ds-relay", daemon=True)
        acceptor.start()
        try:
            yield relay
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            acceptor.join()
            relay.cut_all()
