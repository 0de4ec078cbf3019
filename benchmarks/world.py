"""Many hosts on loopback with all that servers do, as their URLs say: latency, size, failures, limits, a shared line.

    python benchmarks/world.py [--line=4e6]

prints its port and listens on all of 127.0.0.0/8: each address is a host. The path of a URL says what it gets:

    /<seconds>/<bytes>/ok/<number>       the file, after so many seconds
    /<seconds>/0/404/<number>            this status
    /<seconds>/<bytes>/flaky30/<number>  503 to 30 % of the requests, by chance
    /<seconds>/<bytes>/busy3/<number>    429 with Retry-After: 1 while the host has more than 3 requests
    /<seconds>/0/never/<number>          nothing

Bodies share a line of `--line` bytes per second, one after the other. `answers` says the same to a simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from any2ds.core.failures import http_failure
from any2ds.core.rows import Row
from any2ds.forecast.simulation import NEVER, Answer, Answers, failure_of

ROBOTS = "0.6/0/404/0"  # what a robots.txt gets


def url(port: int, host: int, path: str, number: int) -> str:
    return f"http://127.{1 + host // 62500}.{host // 250 % 250}.{1 + host % 250}:{port}/{path}/{number}"


def answers(seed: int = 0) -> Answers:
    """What the server does, for a simulation."""
    rng = random.Random(seed)

    def answer(host: str, row: Row, at_once: int) -> Answer:
        path = str(row.url).partition("//")[2].partition("/")[2]
        delay, size, kind, _ = _parts(ROBOTS if path == "robots.txt" else path)
        if kind == "never":
            return Answer(NEVER, 0, failure_of("timeout_total"))
        status, retry_after = status_of(kind, at_once, rng)
        if status != 200:
            return Answer(0.0 if retry_after else delay, 0, http_failure(status, None, retry_after))
        return Answer(delay, size)

    return answer


def _parts(path: str) -> tuple[float, int, str, str]:
    seconds, size, kind, number = path.split("/")
    return float(seconds), int(size), kind, number


def status_of(kind: str, at_once: int, rng: random.Random) -> tuple[int, float | None]:
    """The status of an answer, and its Retry-After."""
    if kind.startswith("busy"):
        return (429, 1.0) if at_once > int(kind[4:]) else (200, None)
    if kind.startswith("flaky"):
        return (503 if rng.random() < int(kind[5:]) / 100 else 200), None
    return (int(kind), None) if kind.isdigit() else (200, None)


class World:
    def __init__(self, line: float) -> None:
        self.line, self.free_at = line, 0.0
        self.at_hosts: Counter[str] = Counter()
        self.rng = random.Random(1)
        self.bytes = bytes(1 << 22)


class Connection(asyncio.Protocol):
    def __init__(self, world: World) -> None:
        self._world, self._received, self._waiting = world, b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host = str(transport.get_extra_info("sockname")[0])

    def connection_lost(self, error: Exception | None) -> None:
        self._world.at_hosts[self._host] -= self._waiting
        self._waiting = 0

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            request, self._received = self._received[:end], self._received[end + 4 :]
            self._take(request.split(b" ", 2)[1].decode())

    def _take(self, path: str) -> None:
        world, loop = self._world, asyncio.get_running_loop()
        self._waiting += 1
        world.at_hosts[self._host] += 1
        path = path.lstrip("/")
        delay, size, kind, _ = _parts(ROBOTS if path == "robots.txt" else path)
        if kind == "never":
            return
        status, retry_after = status_of(kind, world.at_hosts[self._host], world.rng)
        if status != 200:
            head = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n"
            head += "Retry-After: 1\r\n" if retry_after else ""
            loop.call_later(0.0 if retry_after else delay, self._send, f"{head}\r\n".encode())
            return
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
        loop.call_later(delay, self._queue, head.encode(), size)

    def _queue(self, head: bytes, size: int) -> None:
        """Wait for the line."""
        world, loop = self._world, asyncio.get_running_loop()
        now = loop.time()
        world.free_at = max(now, world.free_at) + (size / world.line if world.line else 0.0)
        if world.free_at - now < 0.002:
            self._send(head + world.bytes[:size])
        else:
            loop.call_at(world.free_at, self._send, head + world.bytes[:size])

    def _send(self, answer: bytes) -> None:
        if self._transport.is_closing():
            return
        self._waiting -= 1
        self._world.at_hosts[self._host] -= 1
        self._transport.write(answer)


async def _serve(world: World) -> None:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(world), "0.0.0.0", 0, backlog=4096)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def world(line: float = 0.0) -> Iterator[int]:
    """The server as a process of its own: its port. `line` in bytes per second; 0 for one without end."""
    command = [sys.executable, str(Path(__file__)), f"--line={line}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--line", type=float, default=0.0, help="bytes per second; 0: without end")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(World(parser.parse_args().line)))
