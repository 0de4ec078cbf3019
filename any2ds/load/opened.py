"""The shards of a dataset that this process has open, as many as fit."""

from __future__ import annotations

import os
import platform
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from any2ds.core import plugins
from any2ds.core.compression import LONGEST_SIGNATURE
from any2ds.core.compression import kind_of as compression_of
from any2ds.core.errors import Any2dsError, DamagedShard, UsageError, error_text
from any2ds.load.beside import ShardWithTable, TableColumns
from any2ds.load.copies import ShardCopies
from any2ds.load.files import LocalShard, ShardOfFolder
from any2ds.load.remote import RemoteShard, StoreReader
from any2ds.load.shards import ShardSet
from any2ds.writers.contract import Fields, Shard
from any2ds.writers.formats._shard import SpanShard

_MOST_OPEN = 4096  # shards of a process with an index of 8 bytes a sample; of the descriptors of a process at most half
_MOST_HEAVY = 256  # shards that a library has open, with as much as a megabyte each
_LARGEST_BLOCK = (32 << 20) - (64 << 10)  # bytes; glibc counts blocks of up to 32 MB with what it adds
_SHARDS_AT_ONCE = 32  # of a store, that are opened or read at once
_COPIED_AT_ONCE = 8  # shards of a store that have no index, or of other tools

StoredSample = dict[str, Any] | Exception
"""A sample as it lies in its shard, neither compared with its hash nor decoded; or why it cannot be read."""


@cache
def _descriptors() -> int:
    """How many this process may have."""
    try:
        import resource
    except ImportError:  # Windows, whose C library has so many
        return 8192
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN * 2 if limit == resource.RLIM_INFINITY else limit


@cache
def _reuse_memory() -> None:
    """Have the C library of Linux keep up to 64 MB that were freed, for the next samples.

    It gives what is more than 128 KB back to the system, until a larger block is freed, here one that nobody touched;
    then twice its size is kept. Else each sample of 50 KB would cost a dozen page faults, as much time as to read it.
    """
    bytes(_LARGEST_BLOCK)


_opened_last: deque[tuple[weakref.ref[OpenShards], int]] = deque()
"""The shards of all datasets that this process has opened, as many as may be open, the oldest first."""


class OpenShards:
    """Opens shards when they are asked for; the one opened first is closed for another. Each process has its own."""

    def __init__(self, shards: ShardSet, fields: Fields, copies: ShardCopies, is_copied: bool = False) -> None:
        """`copies` is the folder for indexes that had to be made and copies of remote shards; with `is_copied`, of all
        shards that are read, else of those in formats that cannot be read by ranges."""
        _reuse_memory()
        self._given = (shards, fields, copies, is_copied)
        self._columns = TableColumns.of(shards, fields)
        self._begin(shards)

    def _begin(self, shards: ShardSet) -> None:
        """Have nothing open. After a fork: what is open belongs to the parent."""
        self._shards = shards
        self._reader = StoreReader(shards.folder)
        self._open: dict[int, Shard | ShardWithTable] = {}
        self._data: dict[int, LocalShard | RemoteShard] = {}  # of the shards of a store that are open
        self._opening: dict[int, threading.Lock] = {}
        self._pid = os.getpid()  # at last: it says to other threads that all is new

    def __reduce__(self) -> tuple[type[OpenShards], tuple[Any, ...]]:
        return OpenShards, self._given

    def with_columns(self, columns: tuple[str, ...] | None) -> OpenShards:
        """A copy with other columns of a sample."""
        shards, fields, copies, is_copied = self._given
        return OpenShards(shards, replace(fields, columns=columns), copies, is_copied)

    def get(self, shard: int, number: int) -> dict[str, Any]:
        """A sample of a shard as it is stored. Raises DamagedShard."""
        opened = self._open.get(shard) if self._pid == os.getpid() else None
        try:
            return (opened or self._opened(shard)).row(number)
        except Exception as error:
            raise self.named(shard, error) from error

    def get_many(self, shard: int, numbers: Sequence[int]) -> list[StoredSample]:
        """Samples of a shard as they are stored, best in ascending order; in the place of one that is damaged, or of
        all if the shard is, DamagedShard."""
        try:
            opened = (self._open.get(shard) if self._pid == os.getpid() else None) or self._opened(shard)
        except Exception as error:
            return [self.named(shard, error)] * len(numbers)
        try:
            return list(opened.rows(numbers))
        except Exception as error:
            if len(numbers) == 1 or _is_of_the_file(error):
                return [self.named(shard, error)] * len(numbers)
        return [self._sample_or_error(shard, number) for number in numbers]

    def _sample_or_error(self, shard: int, number: int) -> StoredSample:
        try:
            return self.get(shard, number)
        except Any2dsError as error:
            return error

    def get_across(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[list[StoredSample]]:
        """`get_many` for several shards of a store, of which some are read at once."""
        if len(wanted) == 1:
            return [self.get_many(*wanted[0])]
        if self._pid != os.getpid():
            self._begin(self._shards.in_this_process())
        with ThreadPoolExecutor(min(_SHARDS_AT_ONCE, len(wanted) or 1)) as threads:
            return list(threads.map(lambda each: self.get_many(*each), wanted))

    def counts(self) -> list[int | Exception]:
        """How many samples the index of each shard has, or DamagedShard; of a store, some are opened at once."""
        with ThreadPoolExecutor(1 if self._shards.folder.is_local else _COPIED_AT_ONCE) as threads:
            return list(threads.map(self._count, range(len(self._shards))))

    def _count(self, shard: int) -> int | Exception:
        try:
            return len(self._opened(shard))
        except Exception as error:
            return self.named(shard, error)

    def keys(self, shard: int) -> list[str]:
        """The keys of its samples, in the order of the data. Raises DamagedShard."""
        try:
            return self._opened(shard).keys()
        except Exception as error:
            raise self.named(shard, error) from error

    def _opened(self, shard: int) -> Shard | ShardWithTable:
        if self._pid != os.getpid():
            self._begin(self._shards.in_this_process())
        if (opened := self._open.get(shard)) is not None:
            return opened
        with self._opening.setdefault(shard, threading.Lock()):  # else threads would fetch the same index, or copy
            return self._open.get(shard) or self._opened_anew(shard)

    def _opened_anew(self, shard: int) -> Shard | ShardWithTable:
        writer = plugins.load("writers", self._shards.output_format)
        if writer.shard is None:
            raise UsageError(f"{self._shards.output_format} shards cannot be read by number")
        data = self.data(shard)
        try:
            own = writer.shard(data, self._columns.data_fields)
        except DamagedShard:
            start = data.read(0, min(data.size, LONGEST_SIGNATURE)) if data.size else b""
            if compression := compression_of(start):
                raise DamagedShard(
                    f"it is compressed ({compression}), so no sample can be had by itself: unpack it, such as by "
                    f"gunzip < {data.name} > unpacked.tar"
                ) from None
            raise
        most = min(_MOST_OPEN, _descriptors() // 2) if isinstance(own, SpanShard) else _MOST_HEAVY
        opened = ShardWithTable(own, self._columns, self._shards, shard) if self._columns.names else own
        self._open[shard] = opened
        _opened_last.append((weakref.ref(self), shard))
        while len(_opened_last) > most:
            owner, number = _opened_last.popleft()
            if (other := owner()) is not None:
                other._close(number)
        if not self._shards.folder.is_local:
            self._data[shard] = data
            _close_removed_copies()
        return opened

    def _close(self, shard: int) -> None:
        self._open.pop(shard, None)
        self._data.pop(shard, None)

    def data(self, shard: int) -> LocalShard | RemoteShard:
        """The data file of a shard, whether it is open or not. Raises DamagedShard."""
        (_, _, copies, is_copied), shards = self._given, self._shards
        count = shards.samples(shard) or None  # of other tools' tar files it is known when they are open
        name = shards.names[shard]
        of_folder = ShardOfFolder(
            shards.folder,
            name,
            shards.data_bytes[shard],
            count,
            copies.folder,
            shards.versions[shard] if shards.versions else "",
            shards.has_indexes,
            shards.marks[shard] if shards.marks and shards.machine == platform.node() else None,
            shards.key_start(shard),
            plugins.load("writers", shards.output_format).extension == "",
        )
        if shards.folder.is_local:
            return LocalShard(of_folder, Path(shards.folder.path) / name)
        if is_copied or of_folder.is_folder:
            return copies.opened(of_folder)
        return RemoteShard(of_folder, copies, self._reader)

    def named(self, shard: int, error: Exception) -> Exception:
        """DamagedShard, which names the shard, for what happened while it was read."""
        if isinstance(error, UsageError):  # a library that is not installed, a compressed file
            return error
        found = DamagedShard(f"{self._shards.describe(shard)}: {error_text(error)}")
        found.__cause__ = error
        return found


def _close_removed_copies() -> None:
    """Close the copies of shards that were removed to make room, whose bytes the disk has only then."""
    for owner, number in list(_opened_last):
        opened = owner()
        data = opened._data.get(number) if opened is not None else None
        if opened is not None and data is not None and data.is_removed:
            opened._close(number)


def _is_of_the_file(error: Exception) -> bool:
    """Whether the system or the store does not give what is asked for, so that other samples fail as well."""
    return isinstance(error, (OSError, UsageError)) or isinstance(error.__cause__, OSError)
