"""The server of the benchmarks: a host for each address of 127.0.0.0/8, whose answers are as the paths of the URLs say.

    python -m benchmarks.server '{"bears": 50, "beyond": "503"}'

prints its port and that of TLS, whose certificate nobody trusts. A path is `/KIND/MILLISECONDS/BYTES/NUMBER`:

    ok, page            the file, or a web page, after so many milliseconds
    404, 503 …          this status
    once503             503 the first time
    flaky30             503 to 30 % of the requests, by chance
    busy3               429 with Retry-After: 1 while the host has more than 3 requests
    limit20             429 to more than 20 requests a second, of all hosts together
    never               no answer
    drip, endless, reset, truncated, bad-chunk, not-http, empty, gzip-bomb, loop, to-metadata, huge-headers, too-long,
    too-short           what bad servers do

With `line` all bodies share so many bytes per second. With `bears`, `beyond` says what more requests at once get: 503
or reset. `folder` has files that are served by their names, and `photo` is the file of all other paths. `/stats`
tells what was seen since it was last asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import resource
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

_HEAD = b"\xff\xd8\xff\xe0\0\x10JFIF\0"
_PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>"
_BLOCK = bytes(1 << 16)
_IMAGE = "Content-Type: image/jpeg"


def answer(*headers: str, body: bytes = b"", status: str = "200 OK", sized: bool = True) -> bytes:
    length = [f"Content-Length: {len(body)}"] if sized else []
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, *length, "", "")).encode() + body


_BODY = _HEAD + bytes(10_000)
_HALF = answer(_IMAGE, f"Content-Length: {2 * len(_BODY)}", body=_BODY, sized=False)
_CHUNKED = answer(_IMAGE, "Transfer-Encoding: chunked", sized=False)
_AT_ONCE = {
    "429": answer("Retry-After: 1", body=b"later\n", status="429 Too Many Requests"),
    "204": answer(status="204 No Content", sized=False),
    "empty": answer(_IMAGE),
    "gzip-bomb": answer(_IMAGE, "Content-Encoding: gzip", body=gzip.compress(bytes(100_000_000))),
    "to-metadata": answer("Location: http://169.254.169.254/latest/meta-data/", status="302 Found"),
    "huge-headers": answer(*(f"X-Padding-{n}: {'x' * 8000}" for n in range(100)), body=_BODY),
    "too-long": _HALF,  # more is announced than comes
    "too-short": answer(_IMAGE, f"Content-Length: {len(_BODY) // 2}", body=_BODY, sized=False),
}
_THEN_CLOSED = {
    "truncated": _HALF,
    "bad-chunk": _CHUNKED + b"5\r\nhello\r\nnot a size\r\nhello\r\n",
    "not-http": b"220 mail.invalid ESMTP ready\r\n",
}


class World:
    """What all connections share: limits, and what was seen."""

    def __init__(
        self, line: float = 0, bears: int = 0, beyond: str = "", folder: str = "", photo: str = "", tls: bool = False
    ) -> None:
        self.line, self.bears, self.beyond, self.tls = line, bears, beyond, tls
        self.photo = Path(photo).read_bytes() if photo else b""
        self.folder, self.files = folder, dict[str, bytes]()
        self.body = _HEAD + bytes(1 << 22)
        self.random = random.Random(1)
        self.answered_503: set[str] = set()
        self.waiting = self.connections = 0
        self.hosts: Counter[str] = Counter()  # requests that wait, by address
        self.line_is_free = 0.0
        self.tokens, self.counted = 20.0, 0.0
        self.seen: dict[str, float] = {"requests": 0, "ok": 0, "most": 0}

    def file(self, path: str) -> bytes | None:
        """The answer that has a file of the folder, which is kept from its first request on."""
        if self.folder and path not in self.files and (place := Path(self.folder, path[1:])).is_file():
            self.files[path] = answer(_IMAGE, body=place.read_bytes())
        return self.files.get(path)

    def status_of(self, kind: str, host: str, path: str) -> str:
        """The status of an answer of these kinds."""
        if kind.startswith("busy"):
            return "429" if self.hosts[host] > int(kind[4:]) else "200 OK"
        if kind.startswith("flaky"):
            return "503 Busy" if self.random.random() < int(kind[5:]) / 100 else "200 OK"
        if kind.startswith("limit"):
            return "200 OK" if self.has_token(float(kind[5:])) else "429 Too Many Requests"
        if kind == "once503" and path not in self.answered_503:
            self.answered_503.add(path)
            return "503 Busy"
        return f"{kind} Status" if kind.isdigit() else "200 OK"

    def has_token(self, rate: float) -> bool:
        now = time.monotonic()
        self.tokens, self.counted = min(rate, self.tokens + (now - self.counted) * rate), now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def stats(self) -> bytes:
        found = {**self.seen, "cpu": time.process_time()}
        self.seen = {"requests": 0, "ok": 0, "most": self.waiting}
        self.answered_503.clear()
        return answer("Content-Type: application/json", body=json.dumps(found).encode())


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, world: World) -> None:
        self._world, self._received, self._waiting = world, b"", 0
        self._is_endless, self._is_writing = False, True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._host = str(transport.get_extra_info("sockname")[0])
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._world.connections += 1
        self._is_beyond = 0 < self._world.bears < self._world.connections

    def connection_lost(self, error: Exception | None) -> None:
        self._world.connections -= 1
        self._count(-self._waiting)
        self._is_endless = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            path = self._received[:end].split(b" ", 2)[1].decode("latin-1").partition("?")[0]
            self._received = self._received[end + 4 :]
            self._respond(path)

    def _respond(self, path: str) -> None:
        world = self._world
        if path == "/stats":
            self._transport.write(world.stats())
            return
        world.seen.setdefault("first", time.monotonic())
        world.seen["requests"] += 1
        self._count(1)
        if path == "/robots.txt":
            self._send(answer(status="404 Not Found"))
        elif content := world.file(path):
            self._send(content, is_ok=True)
        elif path.count("/") == 4:
            _, kind, milliseconds, size, _ = path.split("/")
            if not self._misbehave(kind, path):
                self._serve(kind, int(milliseconds) / 1000, int(size), path)

    def _serve(self, kind: str, seconds: float, size: int, path: str) -> None:
        world = self._world
        if kind == "ok" and world.beyond == "503" and world.waiting > world.bears:
            self._send(answer(body=b"!", status="503 Crowded"))
        elif kind == "ok" and world.beyond == "reset" and self._is_beyond:
            self._transport.abort()
        elif kind == "never":
            return
        elif (status := world.status_of(kind, self._host, path)) != "200 OK":
            after = ["Retry-After: 1"] if kind.startswith("busy") else []
            self._later(0.0 if after else seconds, answer(*after, status=status))
        elif kind == "page":
            self._later(seconds, answer("Content-Type: text/html", body=_PAGE))
        elif world.line:
            self._loop.call_later(seconds, self._queue, size)
        else:
            content = answer(_IMAGE, body=world.photo or world.body[:size])
            self._later(seconds, content, is_ok=kind == "ok")

    def _misbehave(self, kind: str, path: str) -> bool:
        """Do what a bad server does; false where it is no such kind."""
        if kind in _AT_ONCE:
            self._send(_AT_ONCE[kind])
        elif kind in _THEN_CLOSED:
            self._send(_THEN_CLOSED[kind])
            self._transport.close()
        elif kind == "loop":
            self._send(answer(f"Location: {path}", status="302 Found"))
        elif kind == "reset":
            self._send(_HALF)
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        elif kind == "drip":
            self._transport.write(_CHUNKED)
            self._drip()
        elif kind == "endless":
            self._is_endless = True
            # Little more is sent than the client reads.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
            self._transport.write(answer(_IMAGE, "Connection: close", sized=False))
            self._go_on()
        else:
            return False
        return True

    def _queue(self, size: int) -> None:
        """Wait for the shared line, then send a body."""
        world, now = self._world, self._loop.time()
        world.line_is_free = max(now, world.line_is_free) + size / world.line
        self._loop.call_at(world.line_is_free, self._send, answer(_IMAGE, body=world.body[:size]), True)

    def _later(self, seconds: float, content: bytes, is_ok: bool = False) -> None:
        if seconds:
            self._loop.call_later(seconds, self._send, content, is_ok)
        else:
            self._send(content, is_ok)

    def _send(self, content: bytes, is_ok: bool = False) -> None:
        if self._transport.is_closing():
            return
        self._count(-1)
        self._world.seen["ok"] += is_ok
        self._world.seen["last_ok" if is_ok else "last_other"] = time.monotonic()
        self._transport.write(content)

    def _count(self, change: int) -> None:
        world = self._world
        self._waiting += change
        world.waiting += change
        world.hosts[self._host] += change
        world.seen["most"] = max(world.seen["most"], world.waiting)

    def _drip(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"1\r\n.\r\n")
            self._loop.call_later(1.0, self._drip)

    def _go_on(self) -> None:
        """As fast as it goes; other connections have their turn after each block."""
        if self._is_endless and self._is_writing and not self._transport.is_closing():
            self._transport.write(_BLOCK)
            self._loop.call_soon(self._go_on)

    def pause_writing(self) -> None:
        self._is_writing = False

    def resume_writing(self) -> None:
        self._is_writing = True
        self._go_on()


async def serve(**options: Any) -> None:
    loop, world = asyncio.get_running_loop(), World(**options)
    loop.set_exception_handler(lambda *_: None)  # connections that a client cuts
    connect = partial(Connection, world)
    contexts = [None, distrusted()] if world.tls else [None]
    listening = [await loop.create_server(connect, "0.0.0.0", 0, ssl=context, backlog=4096) for context in contexts]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in listening]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def distrusted() -> ssl.SSLContext:
    from any2ds.testing.certificate import make_certificate

    with tempfile.TemporaryDirectory() as folder:
        return make_certificate("127.0.0.1", Path(folder))[0]


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # thousands of requests wait
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(**json.loads(sys.argv[1])))
