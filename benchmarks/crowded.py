"""A server that does not bear everything: what it does to more than it bears is an argument.

    python benchmarks/crowded.py --delay=0.1 --bears=50 --beyond=503

prints its port. Every path has the same file. `GET /crowd` tells in JSON what was seen since it was last asked, and
`GET /delay/0.5` changes the delay. One process; connections are kept. On Linux it also listens on 127.0.1.1 to
127.0.1.100, for lists of many hosts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import sys
import time

BEYOND = {
    "nothing": "bears everything",
    "503": "answers 503 at once to requests beyond",
    "reset": "resets connections beyond",
    "hang": "never answers connections beyond",
    "fall": "answers everything, but the more are waiting, the fewer per second",
    "explode": "answers everything, later with the third power of how many are waiting",
}


class Server:
    def __init__(self, size: int, delay: float, bears: int, beyond: str) -> None:
        self.delay, self.bears, self.beyond = delay, bears, beyond
        head = f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: {size}\r\n\r\n"
        self.file = head.encode() + b"\xff\xd8\xff\xe0" + bytes(size - 4)
        self.connections = 0
        self.waiting = 0  # requests
        self._free_at = 0.0
        self.forget()

    def forget(self) -> None:
        self.since = self._changed = time.monotonic()
        self._area = 0.0
        self.most = self.most_connections = 0
        self.answered = self.refused = 0

    def crowd(self) -> bytes:
        self.count(0)
        said = {
            "seconds": time.monotonic() - self.since,
            "mean": self._area / max(1e-9, time.monotonic() - self.since),
            "most": self.most,
            "most_connections": self.most_connections,
            "answered": self.answered,
            "refused": self.refused,
        }
        self.forget()
        body = json.dumps(said).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def count(self, change: int) -> None:
        now = time.monotonic()
        self._area += self.waiting * (now - self._changed)
        self._changed = now
        self.waiting += change
        self.most = max(self.most, self.waiting)

    def seconds(self) -> float:
        """From the request that has just been counted to its answer."""
        crowd = self.waiting / self.bears
        if self.beyond == "explode":
            return self.delay * (1 + max(0.0, crowd - 0.5) ** 3)
        if self.beyond == "fall":  # one after the other, each taking longer in a crowd
            now = time.monotonic()
            each = self.delay / self.bears * max(1.0, crowd) ** 2
            self._free_at = max(now, self._free_at) + each
            return self.delay / 2 + self._free_at - now
        return self.delay


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._waiting = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        server = self._server
        server.connections += 1
        server.most_connections = max(server.most_connections, server.connections)
        self._beyond = server.connections > server.bears

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections -= 1
        self._server.count(-self._waiting)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            request, self._received = self._received[:end], self._received[end + 4 :]
            self._take(request.split(b" ", 2)[1])

    def _take(self, path: bytes) -> None:
        server = self._server
        if path == b"/crowd":
            self._transport.write(server.crowd())
            return
        if path.startswith(b"/delay/"):
            server.delay = float(path.rpartition(b"/")[2])
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return
        self._waiting += 1
        server.count(1)
        if path.startswith(b"/never"):
            return
        if server.beyond == "503" and server.waiting > server.bears:
            self._answer(b"HTTP/1.1 503 Crowded\r\nContent-Length: 1\r\n\r\n!", good=False)
        elif server.beyond == "reset" and self._beyond:
            server.refused += 1
            self._transport.abort()
        elif server.beyond == "hang" and self._beyond:
            server.refused += 1
        else:
            asyncio.get_running_loop().call_later(server.seconds(), self._answer, server.file)

    def _answer(self, answer: bytes, good: bool = True) -> None:
        if self._transport.is_closing():
            return
        self._waiting -= 1
        self._server.count(-1)
        self._server.answered += good
        self._server.refused += not good
        self._transport.write(answer)


async def serve(server: Server) -> None:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
    port = listener.sockets[0].getsockname()[1]
    if sys.platform == "linux":
        hosts = [f"127.0.1.{number}" for number in range(1, 101)]
        await loop.create_server(lambda: Connection(server), hosts, port, backlog=4096)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds before an answer")
    parser.add_argument("--bears", type=int, default=50)
    parser.add_argument("--beyond", choices=BEYOND, default="nothing", help=str(BEYOND))
    parser.add_argument("--size", type=int, default=10_000, help="bytes of the file")
    arguments = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Server(arguments.size, arguments.delay, arguments.bears, arguments.beyond)))
