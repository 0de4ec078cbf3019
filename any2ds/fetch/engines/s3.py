"""Reads an object of S3 piece by piece, the first of which says how long it is: small ones cost one request.

fsspec asks for the size before, by a request of its own, which for small files doubles what they cost.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from fsspec.asyn import sync

_WAIT = 0.2  # seconds before a piece that broke off is asked for again, growing


class S3Object:
    """The object at `path`, to be read from its start; `details` are what S3 sent with the first `piece` of it.

    Any thread may use the `system`, an s3fs.S3FileSystem. Raises what it raises, as all of its files do.
    """

    def __init__(self, system: Any, path: str, piece: int) -> None:
        self._system = system
        self._bucket, self._key, version = system.split_path(path)
        self._more: dict[str, str] = {} if version is None else {"VersionId": version}
        self._place = 0
        self._first: bytes | None
        try:
            self.details, self._first = self._get(piece)
        except OSError as error:
            if not _is_empty(error):
                raise
            self.details, self._first, self.size = {}, b"", 0
            return
        whole = re.fullmatch(r"bytes 0-\d+/(\d+)", self.details.get("ContentRange") or "")
        self.size = int(whole[1]) if whole else len(self._first)
        if etag := self.details.get("ETag"):  # what follows is to be of the same making
            self._more["IfMatch"] = etag

    def __enter__(self) -> S3Object:
        return self

    def __exit__(self, *trouble: object) -> None:
        """There is nothing to be closed: each piece is a request of its own."""

    def read(self, size: int) -> bytes:
        """The next bytes: the first piece as it came, then up to `size`; none at the end."""
        if self._first is not None:
            found, self._first = self._first, None
        elif self._place < self.size:
            _, found = self._get(min(size, self.size - self._place))
        else:
            found = b""
        self._place += len(found)
        return found

    def _get(self, size: int) -> tuple[Mapping[str, Any], bytes]:
        answer: tuple[Mapping[str, Any], bytes] = sync(self._system.loop, self._asked, self._place, size)
        return answer

    async def _asked(self, start: int, size: int) -> tuple[Mapping[str, Any], bytes]:
        """As s3fs does it for its own files: what breaks off within the body is asked for again."""
        from s3fs.core import S3_RETRYABLE_ERRORS

        where = {"Bucket": self._bucket, "Key": self._key, "Range": f"bytes={start}-{start + size - 1}", **self._more}
        for attempt in range(1, self._system.retries + 1):
            answer = await self._system._call_s3("get_object", **where)
            try:
                if "ContentRange" not in answer and answer["ContentLength"] > size:  # of any length, into memory
                    raise OSError("this server sends all of an object where a piece of it is asked for")
                return answer, await answer["Body"].read()
            except S3_RETRYABLE_ERRORS:
                if attempt == self._system.retries:
                    raise
            finally:
                answer["Body"].close()
            await asyncio.sleep(_WAIT * attempt)
        raise AssertionError("unreachable")


def _is_empty(error: OSError) -> bool:
    """Whether S3 refused the first bytes of an object (416) because it has none."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("Error", {}).get("Code") in ("InvalidRange", "416"))
