"""A server that makes clients wait: each file comes after a delay, and what it does not have is never answered.

    python benchmarks/slow.py FOLDER SECONDS

prints its port. One process, everything in memory; connections are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from pathlib import Path


class Connection(asyncio.Protocol):
    def __init__(self, answers: dict[bytes, bytes], delay: float) -> None:
        self._answers, self._delay = answers, delay
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A whole answer leaves in one call, and is not kept in parts.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            request, self._received = self._received[:end], self._received[end + 4 :]
            answer = self._answers.get(request.split(b" ", 2)[1].partition(b"?")[0])
            if answer is not None:
                asyncio.get_running_loop().call_later(self._delay, self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def read(folder: Path) -> dict[bytes, bytes]:
    """Path in a request -> the whole answer."""
    answers = {}
    for file in folder.rglob("*.jpg"):
        body = file.read_bytes()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
        answers[f"/{file.relative_to(folder)}".encode()] = head.encode() + body
    return answers


def other_hosts() -> list[str]:
    """Addresses of this machine, for lists of many hosts; other systems than Linux have one."""
    return [f"127.0.1.{number}" for number in range(1, 101)] if sys.platform == "linux" else []


async def serve(answers: dict[bytes, bytes], delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers, delay), "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    if hosts := other_hosts():
        await loop.create_server(lambda: Connection(answers, delay), hosts, port, backlog=4096)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # those that wait are thousands
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(read(Path(sys.argv[1])), float(sys.argv[2])))
