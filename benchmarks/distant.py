"""A folder as an S3 bucket that is far away: each answer waits, and costs little of the machine that is measured.

    python benchmarks/distant.py FOLDER [--latency=0.03] [--port=0]

It prints its URL, and serves until its standard input ends: GET with ranges, HEAD, and lists, by asyncio and sendfile
in one process. The first folder of a path is the bucket, of any name; signatures are not looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

_SMALL = 1 << 18  # bytes that are sent together with their header
_PAGE = 1000  # keys of one list
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)


class Folder:
    """The objects below a folder, as they were when it was first listed."""

    def __init__(self, root: Path, latency: float) -> None:
        self.root, self.latency = root, latency
        self._files: dict[str, tuple[int, int, str]] = {}

    def file(self, key: str) -> tuple[int, int, str] | None:
        """Descriptor, size and ETag."""
        if key not in self._files:
            try:
                descriptor = os.open(self.root / key, os.O_RDONLY)
            except OSError:
                return None
            found = os.fstat(descriptor)
            if not key or not (self.root / key).is_file():
                os.close(descriptor)
                return None
            self._files[key] = descriptor, found.st_size, f'"{found.st_mtime_ns:x}-{found.st_size:x}"'
        return self._files[key]

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {
            path.relative_to(self.root).as_posix(): path.stat().st_size
            for path in self.root.rglob("*")
            if path.is_file()
        }

    @cached_property
    def _keys(self) -> list[str]:
        return sorted(self._sizes)

    def page(self, query: dict[str, list[str]]) -> bytes:
        """One answer of ListObjectsV2."""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", [prefix[:-1]])[0]
        most = int(query.get("max-keys", [str(_PAGE)])[0])
        place, lines, last = bisect_right(self._keys, after), list[str](), ""
        folders: dict[str, None] = {}
        while place < len(self._keys) and len(lines) + len(folders) < most:
            last = self._keys[place]
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
                f"<ETag>&quot;e&quot;</ETag><Size>{self._sizes[last]}</Size></Contents>"
            )
        more = place < len(self._keys) and last.startswith(prefix)
        lines += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(lines)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(lines)}</ListBucketResult>"
        ).encode()


class Connection(asyncio.Protocol):
    """Answers one request after the other, each after the latency."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._buffer = folder, b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if end:
            self._buffer = rest
            self._loop.call_later(self._folder.latency, self._answer, head)

    def _answer(self, head: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.decode().partition("?")
        key = unquote(path).lstrip("/").partition("/")[2]
        if method == b"GET" and (not key or "list-type" in query):
            self._send(b"200 OK", self._folder.page(parse_qs(query)), b"application/xml")
        elif method == b"HEAD" and not key:
            self._send(b"200 OK", b"")
        elif (file := self._folder.file(key)) is None or method not in (b"GET", b"HEAD"):
            text = b"" if method == b"HEAD" else b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            self._send(b"404 Not Found", text, b"application/xml")
        else:
            self._object(method, head, *file)

    def _object(self, method: bytes, head: bytes, descriptor: int, size: int, etag: str) -> None:
        start, stop, status, content_range = 0, size, b"200 OK", b""
        if match := _RANGE.search(head):
            first, last = match.groups()
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            status, content_range = (
                b"206 Partial Content",
                b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, size),
            )
        answer = (
            b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%bETag: %b\r\nLast-Modified: %b\r\nAccept-Ranges: bytes\r\n"
            b"Content-Type: binary/octet-stream\r\n\r\n"
        ) % (status, stop - start, content_range, etag.encode(), formatdate(0, usegmt=True).encode())
        if method == b"HEAD":
            self._transport.write(answer)
        elif stop - start <= _SMALL:
            self._transport.write(answer + os.pread(descriptor, stop - start, start))
        else:
            self._sending = self._loop.create_task(self._stream(answer, descriptor, start, stop - start))

    async def _stream(self, answer: bytes, descriptor: int, start: int, size: int) -> None:
        self._transport.write(answer)
        with os.fdopen(os.dup(descriptor), "rb") as file, contextlib.suppress(ConnectionError, RuntimeError):
            await self._loop.sendfile(self._transport, file, start, size)

    def _send(self, status: bytes, body: bytes, kind: bytes = b"text/plain") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
        self._transport.write(head + body)


async def _serve(root: Path, latency: float, port: int) -> None:
    loop, folder = asyncio.get_running_loop(), Folder(root, latency)
    server = await loop.create_server(lambda: Connection(folder), "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def served(folder: Path, latency: float) -> Iterator[str]:
    """Its URL; in a process of its own."""
    command = [sys.executable, __file__, str(folder), f"--latency={latency}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.folder, options.latency, options.port))
    os._exit(0)  # transfers that clients have left


if __name__ == "__main__":
    main()
