"""A bucket that costs next to nothing: as much of S3 as any2ds asks for, by asyncio, contents kept up to a size."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any
from xml.sax.saxutils import escape

from aiohttp import web

_KEPT = 1 << 18  # bytes of an object that is to be read again; of bigger ones only the size is known
_PAGE = 1000  # keys of one answer
_DATE = "2026-01-01T00:00:00.000Z"


class Bucket:
    """`objects` may be filled by hand. All buckets are the same one."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes | int] = {}  # key -> content, or its size
        self.requests = 0
        self.url = ""
        self._sorted: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        key = request.path.partition("/")[2].partition("/")[2]
        if request.method == "PUT":
            return await self._put(key, request)
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return web.Response(status=204)
        if request.method == "GET" and ("list-type" in request.query or not key):
            return self._page(request.query)
        if request.method in ("GET", "HEAD") and key in self.objects:
            return self._get(key, request)
        return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>", content_type="application/xml")

    async def _put(self, key: str, request: web.BaseRequest) -> web.Response:
        size, pieces = 0, []
        if request.headers.get("Expect", "").lower() == "100-continue":  # else the client waits, and so do we
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size <= _KEPT:
                pieces.append(piece)
        if request.headers.get("If-None-Match") and key in self.objects:
            return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
        self.objects[key] = b"".join(pieces) if size <= _KEPT else size
        return web.Response(headers={"ETag": '"put"'})

    def _get(self, key: str, request: web.BaseRequest) -> web.Response:
        content = self.objects[key]
        size = len(content) if isinstance(content, bytes) else content
        headers = {"Last-Modified": formatdate(0, usegmt=True), "ETag": f'"{hashlib.md5(key.encode()).hexdigest()}"'}
        if request.method == "HEAD":
            return web.Response(headers={**headers, "Content-Length": str(size)})
        body = content if isinstance(content, bytes) else bytes(size)
        part = request.http_range
        if part.start is None:
            return web.Response(body=body, headers=headers)
        start, stop, _ = part.indices(size)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return web.Response(status=206, body=body[start:stop], headers=headers)

    def _page(self, query: Any) -> web.Response:
        if len(self._sorted) != len(self.objects):
            self._sorted = sorted(self.objects)
        prefix, delimiter, keys = query.get("prefix", ""), query.get("delimiter", ""), self._sorted
        place = bisect_right(keys, query.get("continuation-token") or prefix[:-1])
        lines: list[str] = []
        folders: dict[str, None] = {}
        last = ""
        while place < len(keys) and len(lines) + len(folders) < int(query.get("max-keys", _PAGE)):
            last = keys[place]
            place += 1
            if not last.startswith(prefix):
                if last > prefix:
                    break
                continue
            head, slash, _ = last[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if slash:
                folders[f"{prefix}{head}/"] = None
                continue
            content = self.objects[last]
            size = len(content) if isinstance(content, bytes) else content
            lines.append(
                f"<Contents><Key>{escape(last)}</Key><LastModified>{_DATE}</LastModified><ETag>&quot;e&quot;</ETag>"
                f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        more = place < len(keys) and last.startswith(prefix)
        lines += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<KeyCount>{len(lines)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(lines)}</ListBucketResult>"
        )
        return web.Response(text=text, content_type="application/xml")


@contextmanager
def served() -> Iterator[Bucket]:
    """In a thread of its own."""
    bucket = Bucket()
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(bucket.answer))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        bucket.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        stop = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    loop, stop = ready.result()
    try:
        yield bucket
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
