"""The ways in which the test server answers: each a small function, named as the scripts name it.

Those that need a body take the file's, or `STAND_IN` if the folder has no such file.
"""

from __future__ import annotations

import asyncio
import datetime
import gzip
import mimetypes
import socket
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from aiohttp import web

STAND_IN = bytes(range(256)) * 64
_BLOCK = 1 << 16

_TYPES = mimetypes.MimeTypes()  # its own table, so that the answers do not depend on the machine
for _type, _extension in (
    ("image/webp", ".webp"),
    ("image/avif", ".avif"),
    ("audio/flac", ".flac"),
    ("audio/ogg", ".ogg"),
    ("audio/wav", ".wav"),
    ("application/jsonl", ".jsonl"),
    ("application/vnd.apache.parquet", ".parquet"),
):
    _TYPES.add_type(_type, _extension)


_MANY_HEADERS = (b"X-More: " + b"x" * 1000 + b"\r\n") * 64


def _deflated(window: int) -> bytes:
    """A gigabyte of zeros: a megabyte, again and again. Its checksum at the end is missing."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    zeros = bytes(1 << 20)
    first, again = (packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 1023 * again


def _brotli() -> bytes:
    """A gigabyte of zeros: blocks of 16 MiB, as the program `brotli` packs and flushes them."""
    first = bytes.fromhex("cbffff3ff82700e2b14020f7fe8fffff7ff04f00c4611180eefd9f01")
    again = bytes.fromhex("fcffff837f02200e0b0074effff8ffff07ff04401c1600e8deff19")
    return first + 63 * again + b"\x03"


def _stored(body: bytes) -> bytes:
    """A brotli stream (RFC 7932) that holds the body as it is."""
    found = []
    for start in range(0, len(body), _BLOCK):
        piece = body[start : start + _BLOCK]
        head = (len(piece) - 1) << 3 | 1 << 19  # of a meta-block: not the last one, its length, not compressed
        found += [(head if start else head << 1).to_bytes(3, "little"), piece]  # a bit for the window stands before
    return b"".join([*found, b"\x03"])


_ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "br": _stored}
_BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: _deflated(31),
    "deflate": lambda: _deflated(15),
    "br": _brotli,
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, to be answered."""

    request: web.BaseRequest
    transport: asyncio.Transport
    file: Path | None  # None if the folder has no such file
    released: asyncio.Event  # what `hold` waits for

    @property
    def body(self) -> bytes:
        return self.file.read_bytes() if self.file else STAND_IN

    @property
    def content_type(self) -> str:
        return content_type_of(self.file)

    def stream(self, length: int | None, **headers: str) -> web.StreamResponse:
        """The head of a successful answer of `length` bytes; None sends it in chunks."""
        response = web.StreamResponse(headers={"Content-Type": self.content_type, **headers})
        response.content_length = length
        return response

    def accepts(self, *encodings: str) -> bool:
        """Whether the client can decode a body that is compressed like this."""
        accepted = {word.strip() for word in self.request.headers.get("Accept-Encoding", "").split(",")}
        return accepted.issuperset(encodings)

    async def raw(self, data: bytes, reset: bool = False) -> NoReturn:
        """Send just these bytes and close the connection, or tear it down with a RST."""
        self.transport.write(data)
        if reset:
            linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
        else:
            self.transport.close()
        await forever()

    async def raw_head(self, *headers: str, body: bytes = b"", reset: bool = False) -> NoReturn:
        lines = ("HTTP/1.1 200 OK", *headers, "Connection: close", "", "")
        await self.raw("\r\n".join(lines).encode() + body, reset)

    async def pour(self, head: bytes, piece: bytes) -> NoReturn:
        """Send `head`, then `piece` over and over, as fast as the client takes it."""
        self.transport.write(head)
        while not self.transport.is_closing():
            full = self.transport.get_write_buffer_size() > _BLOCK
            if not full:
                self.transport.write(piece)
            await asyncio.sleep(0.001 if full else 0)
        await forever()


def content_type_of(file: Path | None) -> str:
    """As its name says."""
    if file is None:
        return "application/octet-stream"
    kind, encoding = _TYPES.guess_type(file.name)
    if encoding:
        return f"application/{encoding}"
    if kind and kind.startswith("text/"):
        return f"{kind}; charset=utf-8"
    return kind or "application/octet-stream"


async def forever() -> NoReturn:
    """Until the client hangs up or the server closes, which cancels the waiting."""
    while True:
        await asyncio.get_running_loop().create_future()


Answer = Callable[[Exchange, Any], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to answer. `parse` turns what stands after the colon ("" if nothing does) into the answer's argument."""

    name: str
    takes: str  # how the argument is written
    parse: Callable[[str], Any]
    answer: Answer

    @property
    def usage(self) -> str:
        return f"{self.name}:{self.takes}" if self.takes else self.name


FAULTS: dict[str, Fault] = {}


def fault(name: str, takes: str = "", parse: Callable[[str], Any] | None = None) -> Callable[[Answer], Answer]:
    """Adds an answer to `FAULTS`; its docstring says what it does."""

    def register(answer: Answer) -> Answer:
        FAULTS[name] = Fault(name, takes, parse or _nothing, answer)
        return answer

    return register


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a script, understood."""

    fault: Fault
    argument: Any

    @classmethod
    def parse(cls, entry: str) -> Step:
        """Raises ValueError for a fault that there is not, or an argument that it cannot take."""
        name, _, argument = entry.partition(":")
        if name.isdigit() and 200 <= int(name) <= 999:
            known, argument = STATUS, entry
        elif name in FAULTS:
            known = FAULTS[name]
        else:
            raise ValueError(f"no such fault: {entry!r}; there are {', '.join(FAULTS)} and status numbers")
        try:
            return cls(known, known.parse(argument))
        except ValueError as error:
            raise ValueError(f"{entry!r} cannot be: it is written {known.usage}") from error


def _nothing(argument: str) -> None:
    if argument:
        raise ValueError("takes no argument")


def _header(argument: str) -> dict[str, str]:
    name, equals, value = argument.partition("=")
    if bool(name) != bool(equals):
        raise ValueError("not a header")
    return {name: value} if name else {}


def _count(argument: str) -> int:
    if (count := int(argument)) < 0:
        raise ValueError("negative")
    return count


def _encodings(argument: str) -> tuple[str, ...]:
    names = tuple(argument.split(","))
    if names[0] not in _BOMBS or any(name != "gzip" for name in names[1:]):
        raise ValueError("not a content encoding of this server")
    return names


def _encoded(body: bytes, encodings: tuple[str, ...]) -> bytes:
    for name in encodings:
        body = _ENCODERS[name](body)
    return body


def _or(default: Any, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda argument: parse(argument) if argument else default


def _status_and_header(entry: str) -> tuple[int, dict[str, str]]:
    status, _, header = entry.partition(":")
    return int(status), _header(header)


def _target(argument: str) -> str:
    if not argument:
        raise ValueError("no target")
    return argument


@fault("ok", "[HEADER=VALUE]", _header)
async def _ok(exchange: Exchange, extra: dict[str, str]) -> web.StreamResponse:
    """The file with its type, ETag and Last-Modified, ranges and conditions honoured; 404 if there is none."""
    request, file = exchange.request, exchange.file
    if file is None:
        return await _status(exchange, (404, extra))
    stat = file.stat()
    modified = datetime.datetime.fromtimestamp(int(stat.st_mtime), datetime.timezone.utc)
    etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    headers = {
        "Content-Type": exchange.content_type,
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Last-Modified": modified.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        **extra,
    }
    if "If-None-Match" in request.headers:
        unchanged = etag in request.headers["If-None-Match"]
    else:
        unchanged = request.if_modified_since is not None and modified <= request.if_modified_since
    if unchanged:
        return web.Response(status=304, headers=headers)
    body = file.read_bytes()
    if "Range" not in request.headers or request.headers.get("If-Range", etag) != etag:
        return web.Response(body=body, headers=headers)
    try:
        start, stop, _ = request.http_range.indices(len(body))
    except ValueError:
        start = stop = len(body)
    if start >= stop:
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(body)}"})
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
    return web.Response(status=206, body=body[start:stop], headers=headers)


async def _status(exchange: Exchange, answer: tuple[int, dict[str, str]]) -> web.StreamResponse:
    """That status with a line of text, and one more header if wanted: `429:retry-after=2`."""
    status, headers = answer
    return web.Response(status=status, text=f"status {status}\n", headers=headers)


STATUS = Fault("NUMBER", "[HEADER=VALUE]", _status_and_header, _status)


@fault("later", "SECONDS", _count)
async def _later(exchange: Exchange, seconds: int) -> web.StreamResponse:
    """429 with the date in Retry-After that is so many seconds ahead, the current one not counted."""
    now = datetime.datetime.now(datetime.timezone.utc)
    date = now + datetime.timedelta(seconds=seconds + 1)
    return await _status(exchange, (429, {"Retry-After": date.strftime("%a, %d %b %Y %H:%M:%S GMT")}))


@fault("timeout")
async def _timeout(exchange: Exchange, _: None) -> web.StreamResponse:
    """Never answers."""
    await forever()


@fault("slow", "SECONDS", float)
async def _slow(exchange: Exchange, seconds: float) -> web.StreamResponse:
    """Waits, then answers like ok."""
    await asyncio.sleep(seconds)
    return await _ok(exchange, {})


@fault("hold")
async def _hold(exchange: Exchange, _: None) -> web.StreamResponse:
    """Waits for `server.release()`, then answers like ok."""
    await exchange.released.wait()
    return await _ok(exchange, {})


@fault("drip", "[SECONDS]", _or(0.05, float))
async def _drip(exchange: Exchange, pause: float) -> web.StreamResponse:
    """Sends the body over and over, one byte after each pause, and never ends."""
    response = exchange.stream(None)
    await response.prepare(exchange.request)
    body = exchange.body or STAND_IN
    while True:
        for byte in body:
            await response.write(bytes([byte]))
            await asyncio.sleep(pause)


@fault("flow", "SECONDS", float)
async def _flow(exchange: Exchange, seconds: float) -> web.StreamResponse:
    """The body in a steady flow that takes so long."""
    body, pause = exchange.body, 0.05
    count = max(1, round(seconds / pause))
    size = -(-len(body) // count)
    response = exchange.stream(len(body))
    await response.prepare(exchange.request)
    for number in range(count):
        await asyncio.sleep(pause)
        await response.write(body[number * size : (number + 1) * size])
    return response


@fault("stall")
async def _stall(exchange: Exchange, _: None) -> web.StreamResponse:
    """Sends the first half of the body, then nothing, and keeps the connection open."""
    body = exchange.body
    response = exchange.stream(len(body))
    await response.prepare(exchange.request)
    await response.write(body[: len(body) // 2])
    await forever()


@fault("endless")
async def _endless(exchange: Exchange, _: None) -> web.StreamResponse:
    """Sends the body over and over as fast as it goes, without a length, and never ends."""
    return await _many_bytes(exchange, exchange.stream(None), None, exchange.body or STAND_IN)


@fault("big", "BYTES", _count)
async def _big(exchange: Exchange, size: int) -> web.StreamResponse:
    """A body of so many bytes, announced."""
    return await _many_bytes(exchange, exchange.stream(size), size, STAND_IN)


@fault("big-unknown", "BYTES", _count)
async def _big_unknown(exchange: Exchange, size: int) -> web.StreamResponse:
    """A body of so many bytes in chunks, its length unannounced."""
    return await _many_bytes(exchange, exchange.stream(None), size, STAND_IN)


async def _many_bytes(
    exchange: Exchange, response: web.StreamResponse, size: int | None, pattern: bytes
) -> web.StreamResponse:
    await response.prepare(exchange.request)
    block = pattern * (_BLOCK // len(pattern) + 1)
    sent = 0
    while size is None or sent < size:
        piece = block if size is None else block[: size - sent]
        await response.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)  # a fast reader never makes write wait, and the others would starve
    return response


@fault("hangup")
async def _hangup(exchange: Exchange, _: None) -> web.StreamResponse:
    """Closes the connection without an answer."""
    await exchange.raw(b"")


@fault("reset")
async def _reset(exchange: Exchange, _: None) -> web.StreamResponse:
    """Sends half of the body (at most 8 KB), then resets the connection."""
    body = exchange.body
    half = body[: min(len(body) // 2, 8192)]
    await exchange.raw_head(f"Content-Length: {len(body)}", body=half, reset=True)


@fault("truncated")
async def _truncated(exchange: Exchange, _: None) -> web.StreamResponse:
    """Announces the whole body, sends half of it and closes."""
    body = exchange.body
    announced = f"Content-Length: {max(1, len(body))}"
    await exchange.raw_head(f"Content-Type: {exchange.content_type}", announced, body=body[: len(body) // 2])


@fault("truncated-chunks")
async def _truncated_chunks(exchange: Exchange, _: None) -> web.StreamResponse:
    """A chunked body that ends without its last chunk."""
    await exchange.raw_head("Transfer-Encoding: chunked", body=b"5\r\nhello\r\n")


@fault("excess")
async def _excess(exchange: Exchange, _: None) -> web.StreamResponse:
    """Announces half of the body, sends all of it and closes."""
    body = exchange.body
    await exchange.raw_head(f"Content-Length: {len(body) // 2}", body=body)


@fault("bad-chunk")
async def _bad_chunk(exchange: Exchange, _: None) -> web.StreamResponse:
    """A chunked body whose second chunk has no valid size."""
    await exchange.raw_head("Transfer-Encoding: chunked", body=b"5\r\nhello\r\nnot a size\r\nhello\r\n")


@fault("not-http")
async def _not_http(exchange: Exchange, _: None) -> web.StreamResponse:
    """Bytes of another protocol."""
    await exchange.raw(b"220 mail.invalid ESMTP ready\r\n")


@fault("redirect", "TARGET", _target)
async def _redirect(exchange: Exchange, target: str) -> web.StreamResponse:
    """302 to a name in the folder or a whole URL; the target `loop` is the same path again."""
    if target == "loop":
        location = exchange.request.raw_path
    elif "://" in target:
        location = target
    else:
        location = "/" + quote(target.lstrip("/"))
    return web.Response(status=302, headers={"Location": location})


@fault("gzip")
async def _gzip(exchange: Exchange, _: None) -> web.StreamResponse:
    """The body compressed in transit if the client accepts that, else like ok."""
    if not exchange.accepts("gzip"):
        return await _ok(exchange, {})
    headers = {"Content-Type": exchange.content_type, "Content-Encoding": "gzip"}
    return web.Response(body=gzip.compress(exchange.body), headers=headers)


@fault("encoded", "ENCODING[,ENCODING]", _encodings)
async def _in_encodings(exchange: Exchange, encodings: tuple[str, ...]) -> web.StreamResponse:
    """The body in these content encodings (gzip, deflate, br) if the client accepts them, else like ok."""
    if not exchange.accepts(*encodings):
        return await _ok(exchange, {})
    headers = {"Content-Type": exchange.content_type, "Content-Encoding": ", ".join(encodings)}
    return web.Response(body=_encoded(exchange.body, encodings), headers=headers)


@fault("cut", "ENCODING[,ENCODING]", _encodings)
async def _cut(exchange: Exchange, encodings: tuple[str, ...]) -> web.StreamResponse:
    """A complete answer with half of such a body if the client accepts that, else like truncated."""
    if not exchange.accepts(*encodings):
        return await _truncated(exchange, None)
    body = _encoded(exchange.body, encodings)
    return web.Response(body=body[: len(body) // 2], headers={"Content-Encoding": ", ".join(encodings)})


@fault("hollow", "BYTES", _count)
async def _hollow(exchange: Exchange, size: int) -> web.StreamResponse:
    """At least so many bytes of gzip, in chunks, that hold a single one; the client is not asked."""
    response = exchange.stream(None, **{"Content-Encoding": "gzip"})
    await response.prepare(exchange.request)
    await response.write(gzip.compress(b"x"))
    nothing = gzip.compress(b"") * 1000
    for _ in range(0, size, len(nothing)):
        await response.write(nothing)
    return response


@fault("bad-gzip")
async def _bad_gzip(exchange: Exchange, _: None) -> web.StreamResponse:
    """Says that the body is compressed in transit, and sends something else."""
    headers = {"Content-Type": exchange.content_type, "Content-Encoding": "gzip"}
    return web.Response(body=b"this was never compressed", headers=headers)


@fault("bomb", "ENCODING[,ENCODING]", _encodings)
async def _bomb(exchange: Exchange, encodings: tuple[str, ...]) -> web.StreamResponse:
    """A gigabyte of zeros, compressed (gzip, deflate, br) if the client accepts that; else as it is, in chunks."""
    if not exchange.accepts(*encodings):
        return await _many_bytes(exchange, exchange.stream(None), 1 << 30, bytes(_BLOCK))
    body = _BOMBS[encodings[0]]()
    for _ in encodings[1:]:
        body = gzip.compress(body)
    return web.Response(body=body, headers={"Content-Encoding": ", ".join(encodings)})


@fault("long-header", "[BYTES]", _or(1 << 20, _count))
async def _long_header(exchange: Exchange, size: int) -> web.StreamResponse:
    """An answer with a header of so many bytes, by default a megabyte."""
    await exchange.raw_head("X-Long: " + "x" * size, "Content-Length: 2", body=b"ok")


@fault("endless-header")
async def _endless_header(exchange: Exchange, _: None) -> web.StreamResponse:
    """A header that never ends."""
    await exchange.pour(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * _BLOCK)


@fault("endless-headers")
async def _endless_headers(exchange: Exchange, _: None) -> web.StreamResponse:
    """Headers without end."""
    await exchange.pour(b"HTTP/1.1 200 OK\r\n", _MANY_HEADERS)


@fault("endless-hints")
async def _endless_hints(exchange: Exchange, _: None) -> web.StreamResponse:
    """Preliminary answers (103 Early Hints) without end."""
    await exchange.pour(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" * 1000)


@fault("endless-trailers")
async def _endless_trailers(exchange: Exchange, _: None) -> web.StreamResponse:
    """A chunked body, and after it trailers without end."""
    await exchange.pour(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", _MANY_HEADERS)


@fault("empty")
async def _empty(exchange: Exchange, _: None) -> web.StreamResponse:
    """Status 200 and no body."""
    return web.Response(body=b"", headers={"Content-Type": exchange.content_type})


@fault("wrong-type", "[TYPE]", _or(None, str))
async def _wrong_type(exchange: Exchange, claimed: str | None) -> web.StreamResponse:
    """The file under another Content-Type: text/html, or image/jpeg for what is HTML."""
    is_html = exchange.content_type.startswith("text/html")
    claimed = claimed or ("image/jpeg" if is_html else "text/html")
    return web.Response(body=exchange.body, headers={"Content-Type": claimed})


@fault("no-type")
async def _no_type(exchange: Exchange, _: None) -> web.StreamResponse:
    """The file without a Content-Type."""
    body = exchange.body
    await exchange.raw_head(f"Content-Length: {len(body)}", body=body)
