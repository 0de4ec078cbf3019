"""The list of a crash test, and the server behind it: what a URL gives follows from the URL itself."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"  # so that all files are recognised as the same type
EXT = "jpg"

# The kinds of rows, as the first part of a path, and the code of their failure; None where they succeed.
LATER = "later"  # fails until the server is healed
_CODES = {"ok": None, "gone": "http_404", "denied": "http_403", "empty": "empty_body", "short": "truncated"}
_STATUS = {"gone": "404 Not Found", "denied": "403 Forbidden"}
_AGENT = re.compile(r"(?i)^user-agent: *(\S*)", re.MULTILINE)
_PATH = re.compile(r"/(\w+)/(\d+)/(\d+)/\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the list."""

    url: str
    caption: str
    number: int
    second: str = ""  # another URL, whose file is stored beside that of the first

    @property
    def is_bad(self) -> bool:
        """Whether a URL is none."""
        return "bad" in map(_kind, self._urls)

    def outcome(self, healed: bool) -> str:
        """`success`, or the code of its failure, which is that of the first URL that fails."""
        outcomes = [_outcome(url, healed) for url in self._urls]
        return next((outcome for outcome in outcomes if outcome != "success"), "success")

    @property
    def body(self) -> bytes:
        """What its URL gives, where it succeeds."""
        return body_of(_path(self.url))

    @property
    def second_body(self) -> bytes:
        """The same of the second; empty if there is none."""
        return body_of(_path(self.second)) if self.second else b""

    @property
    def _urls(self) -> list[str]:
        return [self.url, self.second] if self.second else [self.url]


def _kind(url: str) -> str:
    return _path(url).split("/")[1] if url.startswith("http://") else "bad"


def _outcome(url: str, healed: bool) -> str:
    kind = _kind(url)
    if kind == "bad":
        return "bad_url"
    if kind == LATER:
        return "success" if healed else "http_404"
    return _CODES[kind] or "success"


def _path(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def body_of(path: str) -> bytes:
    """`/kind/milliseconds/bytes/number`: that many bytes and a few, others for each path."""
    return _JPEG + hashlib.shake_128(path.encode()).digest(int(path.split("/")[3]))


def make_rows(rng: random.Random, count: int, base: str, largest: int, first: int = 0) -> list[Row]:
    """`count` rows, numbered from `first` on.

    A sixth fails, some come late so that shards overlap, and some have the URL of the row before.
    """
    rows: list[Row] = []
    for number in range(first, first + count):
        kind = rng.choices(["ok", "gone", "denied", "empty", "short", LATER, "bad"], [84, 3, 3, 2, 1, 5, 2])[0]
        delay = rng.randrange(50, 700) if rng.random() < 0.08 else 0
        size = rng.randrange(largest)
        url = "no url" if kind == "bad" else f"{base}/{kind}/{delay}/{size}/{number}"
        if rows and rng.random() < 0.03:
            url = rows[-1].url
        rows.append(Row(url, f"no. {number}, größer", number))
    return rows


def in_pairs(rng: random.Random, rows: Sequence[Row]) -> list[Row]:
    """Each with the URL of another row, or of itself now and then, as its second one."""
    urls = [row.url for row in rows]
    rng.shuffle(urls)
    return [replace(row, second=row.url if rng.random() < 0.05 else url) for row, url in zip(rows, urls, strict=True)]


def write_list(rows: Sequence[Row], path: Path) -> None:
    """Plain text or parquet, by the name; whole at any time, for it may be written while a run reads it."""
    staged = path.with_name(f"new.{path.name}")
    if path.suffix == ".parquet":
        columns = {
            "url": [row.url for row in rows],
            "caption": [row.caption for row in rows],
            "number": [row.number for row in rows],
        }
        if rows[0].second:
            columns["second"] = [row.second for row in rows]
        pq.write_table(pa.table(columns), staged, row_group_size=100)
    else:
        staged.write_text("".join(f"{row.url}\n" for row in rows), encoding="utf-8")
    staged.replace(path)


class Spans:
    """When each of several commands has done something: the first time and the last one."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}

    def add(self, name: str) -> None:
        now = time.monotonic()
        first, _ = self._spans.get(name, (now, now))
        self._spans[name] = first, now

    def of(self, name: str) -> tuple[float, float] | None:
        """The first and the last moment of a command; None if it has done nothing."""
        return self._spans.get(name)


class Source:
    """A running server. `healed` may be set at any time."""

    def __init__(self) -> None:
        self.healed = False
        self.spans = Spans()  # of its clients, by their user agents
        self.base = ""
        self.connections: set[asyncio.Transport] = set()

    def answer(self, path: str) -> tuple[float, bytes, bool]:
        """After how many seconds, what, and whether the connection ends with it."""
        match = _PATH.fullmatch(path)
        kind, delay = (match[1], match[2]) if match else ("gone", "0")
        if kind == LATER:
            kind = "ok" if self.healed else "gone"
        body = b"" if kind == "empty" else b"none" if kind in _STATUS else body_of(path)
        head = f"HTTP/1.1 {_STATUS.get(kind, '200 OK')}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        return int(delay) / 1000, head + (body[:-1] if kind == "short" else body), kind == "short"


class _Connection(asyncio.Protocol):
    """HTTP/1.1 for GET (and HEAD) without bodies, one request after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._transport: asyncio.Transport
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._source.connections.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._source.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            request, _, self._received = self._received.partition(b"\r\n\r\n")
            method, path, _ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
            self._source.spans.add("".join(_AGENT.findall(request.decode("latin-1"))))
            delay, answer, ends = self._source.answer(path)
            if method == "HEAD":
                answer = answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            if delay:
                asyncio.get_running_loop().call_later(delay, self._send, answer, ends)
            else:
                self._send(answer, ends)

    def _send(self, answer: bytes, ends: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)
            if ends:
                self._transport.close()


@contextmanager
def served() -> Iterator[Source]:
    """A server in a thread of its own."""
    source = Source()
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        server = await loop.create_server(lambda: _Connection(source), "127.0.0.1", 0, backlog=1024)
        source.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set_result((loop, stop))
        await stop.wait()
        server.close()
        for connection in list(source.connections):
            connection.abort()
        await asyncio.sleep(0)  # in which they are

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="crash-test-server", daemon=True)
    thread.start()
    loop, stop = ready.result()
    try:
        yield source
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
