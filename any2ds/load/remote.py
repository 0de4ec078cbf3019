"""The data files of shards in a store, of which byte ranges are read, by libcurl or by fsspec."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from any2ds.core.errors import DamagedShard, access_text, error_text
from any2ds.load.copies import ShardCopies, version_of_shard
from any2ds.load.files import LocalShard, ShardOfFolder, joined, version_in_store
from any2ds.storage.addresses import Address, address_of
from any2ds.storage.folders import OutputFolder
from any2ds.storage.patience import persist

Span = tuple[int, int]
"""Start and size of a range, in bytes."""

_AT_ONCE = 64  # requests of a process
_GAP = 1 << 16  # bytes between two ranges that are read with them: a request costs as much as these
_PASSING = frozenset({408, 425, 429})  # of HTTP, among those of the client


def _has_libcurl() -> bool:
    """Not in a process that has loaded another one before, as TensorFlow does."""
    try:
        import pycurl  # noqa: F401
    except ImportError:
        return False
    return True


class StoreReader:
    """Reads ranges of the files of a folder, any number at once, with retries; for one process.

    libcurl reads where the file system can say how (`address_of`), else fsspec, in a tenth of the speed. What the store
    refuses libcurl is asked for through fsspec once more, whose error says why.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder
        self._addresses: dict[str, Address] = {}
        self._versions: dict[str, str] = {}  # of the files that were read
        self._has_addresses = _has_libcurl()

    def read(self, name: str, span: Span | None = None, size: int = 0, etag: str = "") -> bytes:
        """The bytes of a range, or of the whole file, which has so many bytes, and this version, if they are known.

        Raises DamagedShard, with what the store raised as its cause.
        """
        if span is not None and not span[1]:
            return b""
        try:
            return persist(
                f"reading {name}", lambda: self._read(name, span, size, etag), patience=self._folder.patience
            )
        except Exception as error:  # every file system has exceptions of its own
            raise DamagedShard(access_text(error)) from error

    def read_many(self, name: str, spans: Sequence[Span], size: int, etag: str) -> list[bytes]:
        """The bytes of each range, in this order. Raises DamagedShard."""
        if len(spans) == 1:
            return [self.read(name, spans[0], size, etag)]
        return list(_requests().map(lambda span: self.read(name, span, size, etag), spans))

    def _read(self, name: str, span: Span | None, size: int, etag: str) -> bytes:
        path = f"{self._folder.path.rstrip('/')}/{name}"
        if (address := self._address(path)) is None:
            return self._through_fsspec(path, span)
        from any2ds.load.ranges import fetch

        answer = fetch(address, *(span or (0, None)))
        if answer.file_size is not None and size and answer.file_size != size:
            raise DamagedShard(f"it has {answer.file_size:,} bytes, and had {size:,} when the dataset was opened")
        version = answer.version if answer.status in (200, 206) else None
        if version and self._versions.setdefault(name, etag or version) != version:
            raise DamagedShard("it was replaced while it was read")
        if answer.is_whole:
            return answer.body
        if answer.status == 200:
            raise DamagedShard("the server sends no byte ranges: copy the shards with cache_bytes")
        if answer.status == 416:
            raise DamagedShard(f"it ends before byte {sum(span or ()):,}, up to which a sample goes")
        if answer.status >= 500 or answer.status in _PASSING:
            raise OSError(f"the store answers {answer.status}")
        if not answer.status:
            raise OSError(f"no answer of the store: {answer.trouble}")
        self._addresses.pop(path, None)
        return self._through_fsspec(path, span)

    def _address(self, path: str) -> Address | None:
        known = self._addresses.get(path)
        if self._has_addresses and (known is None or known.is_old()):
            known = address_of(self._folder.fs, path)
            if known is None:
                self._has_addresses = False
            else:
                self._addresses[path] = known
        return known

    def _through_fsspec(self, path: str, span: Span | None) -> bytes:
        if span is None:
            return bytes(self._folder.fs.cat_file(path))
        start, size = span
        found = bytes(self._folder.fs.cat_file(path, start=start, end=start + size))
        if len(found) != size:
            raise DamagedShard(f"{len(found):,} of {size:,} bytes arrived from byte {start:,} on")
        return found


def _requests() -> ThreadPoolExecutor:
    """The threads that ask stores, which those of a parent process are not."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-store")
    return _pool[1]


_pool: tuple[int, ThreadPoolExecutor] | None = None


class RemoteShard:
    """A `ShardData` in a store; of its file only ranges are read, but for `local`."""

    is_local = False

    def __init__(self, shard: ShardOfFolder, copies: ShardCopies, reader: StoreReader) -> None:
        """Raises DamagedShard if the store says that the file is not there."""
        self.name, self.samples, self.size, self.key_start = shard.name, shard.samples, shard.size, shard.key_start
        self._shard, self._copies, self._reader = shard, copies, reader
        self._copy: LocalShard | None = None  # from which it is read, if one had to be made
        if not self.size:
            self.size = int(shard.info()["size"] or 0)
        # Google's lists have another version than its answers.
        self._etag = shard.version if shard.version.startswith('"') else ""

    def read(self, start: int, size: int) -> bytes:
        if self._copy is not None:
            return self._copy.read(start, size)
        return self._reader.read(self.name, (start, size), self.size, self._etag)

    def read_many(self, ranges: Sequence[Span]) -> list[tuple[bytes, int]]:
        if self._copy is not None:
            return self._copy.read_many(ranges)
        several = joined(ranges, _GAP)
        spans = [(start, size) for start, size, _ in several]
        buffers = self._reader.read_many(self.name, spans, self.size, self._etag)
        parts = zip(several, buffers, strict=True)
        return [(buffer, own - start) for (start, _, starts), buffer in parts for own in starts]

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        name = self.name.rpartition(".")[0] + end
        if self._shard.has_index:
            try:
                return self._reader.read(name)
            except DamagedShard as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise DamagedShard(f"its index cannot be read: {error_text(error)}") from error
        return self.made_index(end, make)

    def made_index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        """From the cache of indexes, without a copy of the data; else both are made."""
        if self._copy is None and (version := version_of_shard(self._shard)):
            self._shard = replace(self._shard, version=version)  # asked for once
            self._copy = self._copies.kept(self._shard, version)
            content = self._shard.kept_index(end, version_in_store(self.size, version))
            if self._copy is None and content is not None:
                return content
        return self._local().made_index(end, make)

    def local(self) -> Path:
        return self._local().local()

    @property
    def is_removed(self) -> bool:
        """Whether it is read from a copy that had to make room."""
        return self._copy is not None and self._copy.is_removed

    def _local(self) -> LocalShard:
        if self._copy is None:
            self._copy = self._copies.opened(self._shard)
        return self._copy
