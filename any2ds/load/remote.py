"""The data files of shards in a store, of which byte ranges are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import DamagedShard, access_text, error_text, redacted
from any2ds.load.copies import ShardCopies, version_of_shard
from any2ds.load.files import LocalShard, ShardOfFolder, joined, version_in_store
from any2ds.storage.addresses import Address, address_of
from any2ds.storage.folders import OutputFolder
from any2ds.storage.patience import persist

if TYPE_CHECKING:
    from any2ds.load.ranges import Answer, Range

log = logging.getLogger(__name__)

Span = tuple[int, int]
"""Start and size of a range, in bytes."""

_AT_ONCE = 64  # ranges that fsspec asks for
_GAP = 1 << 16  # bytes between two ranges that are read with them: a request costs as much as these
_PASSING = frozenset({408, 425, 429})  # of HTTP, among those of the client
_MOST_REFUSALS = 3  # of what fsspec was given after all; then all goes through it


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a folder in a store."""

    name: str
    path: str  # as its file system has it
    size: int  # bytes; 0 if unknown
    etag: str = ""  # as the list of the folder had it; "" if unknown


class RangeTrouble(DamagedShard):
    """A range of `file` could not be read."""

    def __init__(self, message: str, file: StoredFile) -> None:
        super().__init__(message)
        self.file = file


def _has_libcurl() -> bool:
    """Not in a process that has loaded another one before, as TensorFlow does."""
    try:
        import pycurl  # noqa: F401
    except ImportError:
        return False
    return True


def _fetched(ranges: list[Range]) -> list[Answer]:
    if not ranges:
        return []
    from any2ds.load.ranges import Ranges

    return list(Ranges.of_this_process().fetch(ranges))


class StoreReader:
    """Reads ranges of the files of a folder, any number at once, with retries; for one process.

    libcurl reads where the file system can say how (`address_of`), else fsspec; what the store refuses libcurl is asked
    for through fsspec once more, whose error says why.
    """

    def __init__(self, folder: OutputFolder) -> None:
        self._folder = folder
        self._addresses: dict[str, Address] = {}
        self._versions: dict[str, str] = {}  # of the files that were read
        self._is_plain = _has_libcurl()
        self._refusals = 0

    def read(self, wanted: Sequence[tuple[StoredFile, Span | None]]) -> list[bytes]:
        """The bytes of each range, or of the whole file where that is None, in this order. Raises RangeTrouble."""
        found: dict[int, bytes] = {n: b"" for n, (_, span) in enumerate(wanted) if span and not span[1]}
        at = 0  # what failed

        def attempt() -> None:
            nonlocal at
            refused, trouble = [], None
            by_address, others = self._by_address([n for n in range(len(wanted)) if n not in found], wanted)
            answers = _fetched(list(by_address.values()))
            for n, answer in zip(by_address, answers, strict=True):
                at = n
                self._check(*wanted[n], answer)
                if answer.is_whole:
                    found[n] = answer.body
                elif answer.status >= 500 or answer.status in _PASSING or not answer.status:
                    trouble = n, _trouble(answer)
                else:
                    refused.append(n)
            for n in refused:
                at = n
                self._addresses.pop(wanted[n][0].name, None)
                found[n] = self._through_fsspec(*wanted[n])
                self._count_refusal(wanted[n][0])
            if others:
                at = others[0]
                found.update(zip(others, self._many_through_fsspec([wanted[n] for n in others]), strict=True))
            if trouble is not None:
                at = trouble[0]
                raise OSError(trouble[1])

        names = list(dict.fromkeys(file.name for file, _ in wanted))
        try:
            what = f"reading {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
            persist(what, attempt, patience=self._folder.patience)
        except Exception as error:  # every file system has exceptions of its own
            raise RangeTrouble(access_text(error), wanted[at][0]) from error
        return [found[n] for n in range(len(wanted))]

    def _by_address(
        self, numbers: Sequence[int], wanted: Sequence[tuple[StoredFile, Span | None]]
    ) -> tuple[dict[int, Range], list[int]]:
        """What libcurl is to read, and the others."""
        by_address: dict[int, Any] = {}
        others = []
        for n in numbers:
            file, span = wanted[n]
            if (address := self._address(file)) is not None:
                from any2ds.load.ranges import Range

                by_address[n] = Range(address, *(span or (0, None)))
            else:
                others.append(n)
        return by_address, others

    def _address(self, file: StoredFile) -> Address | None:
        if not self._is_plain:
            return None
        known = self._addresses.get(file.name)
        if known is None or known.is_old():
            known = address_of(self._folder.fs, file.path)
            if known is None:
                self._is_plain = False
                return None
            self._addresses[file.name] = known
        return known

    def _check(self, file: StoredFile, span: Span | None, answer: Answer) -> None:
        """Raises DamagedShard if the answer is of another file than those before, or of all of it."""
        if answer.file_size is not None and file.size and answer.file_size != file.size:
            raise DamagedShard(f"it has {answer.file_size:,} bytes, and had {file.size:,} when the dataset was opened")
        version = answer.version if answer.status in (200, 206) else None
        if version and self._versions.setdefault(file.name, file.etag or version) != version:
            raise DamagedShard("it was replaced while it was read")
        if answer.status == 200 and not answer.is_whole:
            raise DamagedShard("the server sends no byte ranges: copy the shards with cache_bytes")
        if answer.status == 416:
            raise DamagedShard(f"it ends before byte {sum(span or ()):,}, up to which a sample goes")

    def _count_refusal(self, file: StoredFile) -> None:
        self._refusals += 1
        if self._refusals == _MOST_REFUSALS:
            self._is_plain = False
            log.warning(
                "%s: the store refuses what it allows fsspec, through which all is read from now on, at less speed",
                redacted(self._folder.url),
            )

    def _through_fsspec(self, file: StoredFile, span: Span | None) -> bytes:
        if span is None:
            return bytes(self._folder.fs.cat_file(file.path))
        start, size = span
        found = self._folder.fs.cat_file(file.path, start=start, end=start + size)
        return _of_size(bytes(found), span)

    def _many_through_fsspec(self, wanted: Sequence[tuple[StoredFile, Span | None]]) -> list[bytes]:
        spans = [span for _, span in wanted if span is not None]
        if len(wanted) == 1 or len(spans) < len(wanted):
            return [self._through_fsspec(file, span) for file, span in wanted]
        fs = self._folder.fs
        starts, ends = [start for start, _ in spans], [start + size for start, size in spans]
        limit = {"batch_size": _AT_ONCE} if fs.async_impl else {}
        found = fs.cat_ranges([file.path for file, _ in wanted], starts, ends, on_error="raise", **limit)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [_of_size(bytes(each), span) for each, span in zip(found, spans, strict=True)]


def _trouble(answer: Answer) -> str:
    return f"the store answers {answer.status}" if answer.status else f"no answer of the store: {answer.trouble}"


def _of_size(found: bytes, span: Span) -> bytes:
    start, size = span
    if len(found) != size:
        raise DamagedShard(f"{len(found):,} of {size:,} bytes arrived from byte {start:,} on")
    return found


class RemoteShard:
    """A `ShardData` in a store; of its file only ranges are read, but for `local`."""

    is_local = False

    def __init__(self, shard: ShardOfFolder, copies: ShardCopies, reader: StoreReader) -> None:
        """Raises DamagedShard if the store says that the file is not there."""
        self.name, self.samples, self.size, self.key_start = shard.name, shard.samples, shard.size, shard.key_start
        self.reader = reader
        self._shard, self._copies = shard, copies
        self._copy: LocalShard | None = None
        path = shard.path()
        if not self.size:
            self.size = int(self._asked(lambda: shard.folder.fs.info(path))["size"] or 0)
        etag = shard.version if shard.version.startswith('"') else ""  # Google's lists have another than its answers
        self.file = StoredFile(self.name, path, self.size, etag)

    @property
    def is_copied(self) -> bool:
        """Whether a copy was made, from which it is read."""
        return self._copy is not None

    def read(self, start: int, size: int) -> bytes:
        if self._copy is not None:
            return self._copy.read(start, size)
        return self.reader.read([(self.file, (start, size))])[0]

    def read_many(self, ranges: Sequence[Span]) -> list[tuple[bytes, int]]:
        return read_together([(self, ranges)])[0] if self._copy is None else self._copy.read_many(ranges)

    def _asked(self, attempt: Callable[[], Any]) -> Any:
        try:
            return persist(f"looking at {self.name}", attempt, patience=self._shard.folder.patience)
        except Exception as error:  # every file system has exceptions of its own
            raise DamagedShard(access_text(error)) from error

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        name = self.name.rpartition(".")[0] + end
        if self._shard.has_index:
            try:
                return self.reader.read([(StoredFile(name, self._shard.path(name), 0), None)])[0]
            except RangeTrouble as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise DamagedShard(f"its index cannot be read: {error_text(error)}") from error
        return self._made_index(end, make)

    def _made_index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
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

    def _local(self) -> LocalShard:
        if self._copy is None:
            self._copy = self._copies.opened(self._shard)
        return self._copy


def read_together(parts: Sequence[tuple[RemoteShard, Sequence[Span]]]) -> list[list[tuple[bytes, int]]]:
    """`ShardData.read_many` for several shards of one folder, all at once. Raises RangeTrouble."""
    reads = [(shard, joined(ranges, _GAP)) for shard, ranges in parts]
    wanted = [(shard.file, (start, size)) for shard, several in reads for start, size, _ in several]
    buffers = iter(parts[0][0].reader.read(wanted) if wanted else ())
    return [
        [(buffer, own - start) for start, _, starts in several for buffer in (next(buffers),) for own in starts]
        for _, several in reads
    ]
