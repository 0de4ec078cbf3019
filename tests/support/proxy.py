"""A proxy on loopback, embedded in the calling process: HTTP (forwarding and CONNECT, also over TLS) and SOCKS5.

    with serve_proxy(login="me:secret") as proxy:
        ...                       # --proxy=proxy.url -> http://me:secret@127.0.0.1:<port>
    assert proxy.asked == ["CONNECT media.test:443"]

Whatever name it is asked for, it connects to 127.0.0.1, so that tests need no names.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

Connection = socket.socket


class Proxy:
    """A running proxy. What it saw can be read from any thread, also after it was closed."""

    def __init__(self, port: int, login: str | None, tls: ssl.SSLContext | None, ca_file: str | None) -> None:
        self.port = port
        self.ca_file = ca_file  # with tls: what a client has to trust
        self.asked: list[str] = []  # `CONNECT host:port`, `GET http://…` or `SOCKS host:port`, one for each request
        self.refused = 0  # requests without the right login
        self.heads: list[str] = []  # requests and headers, as they arrived
        self.ports: dict[int, int] = {}  # that are asked for -> where it connects to instead
        self._login, self._tls = login, tls
        self._open: set[Connection] = set()

    @property
    def url(self) -> str:
        return self.url_as("https" if self.ca_file else "http")

    def url_as(self, scheme: str) -> str:
        """With the login in it, as an option takes it."""
        user, _, password = (self._login or "").partition(":")
        login = f"{quote(user, '')}:{quote(password, '')}@" if self._login else ""
        return f"{scheme}://{login}127.0.0.1:{self.port}"

    def _accept(self, listener: Connection) -> None:
        with contextlib.suppress(OSError):  # closed, which is the end
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Connection) -> None:
        self._open.add(client)
        with contextlib.suppress(OSError, ValueError, IndexError):  # the client, or the other side, hung up
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
                self._open.add(client)
            first = client.recv(1)
            if first == b"\x05":
                self._socks(client)
            elif first:
                self._http(client, first)
        client.close()

    def _http(self, client: Connection, start: bytes) -> None:
        head = _until(client, b"\r\n\r\n", start)
        self.heads.append(head.decode("latin-1"))
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        self.asked.append(f"{method} {target}")
        given = [line.partition(": ")[2] for line in lines if line.lower().startswith("proxy-authorization:")]
        expected = "Basic " + base64.b64encode((self._login or "").encode()).decode()
        if self._login and given != [expected]:
            self.refused += 1
            client.sendall(b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n")
            return
        if method == "CONNECT":
            with self._connected(int(target.rpartition(":")[2])) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._pump(client, server)
            return
        parts = urlsplit(target)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kept = [line for line in lines[1:-2] if not line.lower().startswith(("proxy-", "connection:"))]
        with self._connected(parts.port or 80) as server:
            request = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
            server.sendall("\r\n".join(request).encode("latin-1"))
            while data := server.recv(1 << 16):
                client.sendall(data)

    def _socks(self, client: Connection) -> None:
        """RFC 1928, and RFC 1929 for the login."""
        methods = _exactly(client, _exactly(client, 1)[0])
        wanted = 2 if self._login else 0
        if wanted not in methods:
            self.refused += 1
            client.sendall(b"\x05\xff")
            return
        client.sendall(bytes([5, wanted]))
        if wanted:
            _exactly(client, 1)
            user = _exactly(client, _exactly(client, 1)[0])
            password = _exactly(client, _exactly(client, 1)[0])
            right = f"{user.decode()}:{password.decode()}" == self._login
            client.sendall(bytes([1, not right]))
            if not right:
                self.refused += 1
                return
        kind = _exactly(client, 4)[3]
        if kind == 3:
            host = _exactly(client, _exactly(client, 1)[0]).decode()
        else:
            host = socket.inet_ntop(*((socket.AF_INET, _exactly(client, 4)) if kind == 1 else _six(client)))
        port = struct.unpack("!H", _exactly(client, 2))[0]
        self.asked.append(f"SOCKS {host}:{port}")
        with self._connected(port) as server:
            client.sendall(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
            self._pump(client, server)

    def _connected(self, port: int) -> Connection:
        return socket.create_connection(("127.0.0.1", self.ports.get(port, port)))

    def _pump(self, client: Connection, server: Connection) -> None:
        self._open.add(server)
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()

    def _close(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _copy(source: Connection, target: Connection) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _until(client: Connection, mark: bytes, data: bytes) -> bytes:
    while not data.endswith(mark):
        data += _exactly(client, 1)
    return data


def _exactly(client: Connection, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _six(client: Connection) -> tuple[int, bytes]:
    return socket.AF_INET6, _exactly(client, 16)


@contextmanager
def serve_proxy(login: str | None = None, *, tls: bool = False) -> Iterator[Proxy]:
    """A proxy that lets everybody in, or who has `login` (`user:password`). `tls` speaks TLS to its clients."""
    with ExitStack() as stack:
        context, ca_file = None, None
        if tls:
            from any2ds.testing.certificate import make_certificate

            context, ca_file = make_certificate("127.0.0.1", Path(stack.enter_context(tempfile.TemporaryDirectory())))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
        proxy = Proxy(listener.getsockname()[1], login, context, ca_file)
        acceptor = threading.Thread(target=proxy._accept, args=(listener,), name="any2ds-proxy", daemon=True)
        acceptor.start()
        try:
            yield proxy
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            acceptor.join()
            proxy._close()
