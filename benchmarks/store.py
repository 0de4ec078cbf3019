"""The store of the benchmarks: as much of S3 as is asked for, at next to no cost, each answer after a latency.

    python -m benchmarks.store '{"folder": "/tmp/dataset", "latency": 0.03}'

prints its port. All buckets are the same one. What lies in `folder` is in it from the start and is sent from disk; what
is put is kept in memory, and of objects larger than 256 KB only the size. Signatures are not looked at. `/stats` tells
how many requests there were since it was last asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from bisect import bisect_right, insort
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

_KEPT = 1 << 18  # bytes of an object that is to be read again
_PAGE = 1000  # keys of one list
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_DATE = formatdate(0, usegmt=True)
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Bucket:
    """The objects: content, or its size; those of the folder are opened when they are first asked for."""

    def __init__(self, folder: str = "", latency: float = 0.0) -> None:
        self.latency, self.requests = latency, 0
        self.root = Path(folder)
        paths = self.root.rglob("*") if folder else ()
        self.objects: dict[str, bytes | int] = {
            path.relative_to(self.root).as_posix(): path.stat().st_size for path in paths if path.is_file()
        }
        self.on_disk = set(self.objects)
        self.keys = sorted(self.objects)
        self.open_files: dict[str, int] = {}

    def put(self, key: str, body: bytes) -> None:
        if key not in self.objects:
            insort(self.keys, key)
        self.on_disk.discard(key)
        self.objects[key] = body if len(body) <= _KEPT else len(body)

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self.keys.remove(key)
            self.on_disk.discard(key)

    def size(self, key: str) -> int:
        content = self.objects[key]
        return content if isinstance(content, int) else len(content)

    def read(self, key: str, start: int, stop: int) -> bytes:
        content = self.objects[key]
        if isinstance(content, bytes):
            return content[start:stop]
        if key not in self.on_disk:
            return bytes(stop - start)
        if key not in self.open_files:
            self.open_files[key] = os.open(self.root / key, os.O_RDONLY)
        return os.pread(self.open_files[key], stop - start, start)

    def page(self, query: dict[str, list[str]]) -> bytes:
        """One answer of ListObjectsV2."""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        most = int(query.get("max-keys", [str(_PAGE)])[0])
        place = bisect_right(self.keys, query.get("continuation-token", [prefix[:-1]])[0])
        lines: list[str] = []
        folders: dict[str, None] = {}
        last = ""
        while place < len(self.keys) and len(lines) + len(folders) < most:
            last = self.keys[place]
            place += 1
            if not last.startswith(prefix):
                if last > prefix:
                    break
                continue
            head, slash, _ = last[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                folders[f"{prefix}{head}/"] = None
                continue
            lines.append(
                f"<Contents><Key>{escape(last)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>&quot;e&quot;</ETag><Size>{self.size(last)}</Size></Contents>"
            )
        more = place < len(self.keys) and last.startswith(prefix)
        lines += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return (
            f'<?xml version="1.0"?><ListBucketResult xmlns="{_NAMESPACE}"><Prefix>{escape(prefix)}</Prefix>'
            f"<KeyCount>{len(lines)}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{''.join(lines)}</ListBucketResult>"
        ).encode()


class Connection(asyncio.Protocol):
    """Answers one request after the other, each after the latency."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._received, self._loop = bucket, bytearray(), asyncio.get_running_loop()
        self._head: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._received[:end])
            del self._received[: end + 4]
            if b"100-continue" in self._head:  # else the client waits
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(match[1]) if (match := _LENGTH.search(self._head)) else 0
        if len(self._received) >= length:
            head, body = self._head, bytes(self._received[:length])
            self._head = None
            del self._received[:length]
            self._loop.call_later(self._bucket.latency, self._answer, head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        bucket = self._bucket
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.decode().partition("?")
        key = unquote(path).lstrip("/").partition("/")[2]
        if path == "/stats":
            self._send(b"200 OK", json.dumps({"requests": bucket.requests}).encode())
            bucket.requests = 0
            return
        bucket.requests += 1
        if method == b"PUT":
            is_refused = b"\r\nif-none-match:" in head.lower() and key in bucket.objects
            if not is_refused:
                bucket.put(key, body)
            self._send(b"412 Precondition Failed" if is_refused else b"200 OK", b"", b'ETag: "e"\r\n')
        elif method == b"DELETE":
            bucket.delete(key)
            self._send(b"204 No Content", b"")
        elif method == b"GET" and (not key or "list-type" in query):
            self._send(b"200 OK", bucket.page(parse_qs(query)), b"Content-Type: application/xml\r\n")
        elif method == b"HEAD" and not key:
            self._send(b"200 OK", b"")
        elif key in bucket.objects:
            self._object(method == b"HEAD", head, key)
        else:
            error = b"" if method == b"HEAD" else b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            self._send(b"404 Not Found", error, b"Content-Type: application/xml\r\n")

    def _object(self, is_head: bool, head: bytes, key: str) -> None:
        size = self._bucket.size(key)
        start, stop, status = 0, size, b"200 OK"
        more = b'ETag: "e"\r\nLast-Modified: %b\r\nAccept-Ranges: bytes\r\n' % _DATE.encode()
        if match := _RANGE.search(head):
            first, last = match.groups()
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            status, more = b"206 Partial Content", more + b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size)
        body = b"" if is_head else self._bucket.read(key, start, stop)
        self._send(status, body, more, stop - start)

    def _send(self, status: bytes, body: bytes, more: bytes = b"", length: int = 0) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n" % (status, length or len(body), more)
        self._transport.write(head + body)


async def serve(folder: str = "", latency: float = 0.0) -> None:
    loop, bucket = asyncio.get_running_loop(), Bucket(folder, latency)
    server = await loop.create_server(lambda: Connection(bucket), "127.0.0.1", 0, backlog=1024)
    print(json.dumps([server.sockets[0].getsockname()[1]]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(**json.loads(sys.argv[1])))
