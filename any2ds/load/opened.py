"""The shards of a dataset that this process has open, as many as fit."""

from __future__ import annotations

import os
import platform
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from any2ds.core import layout, plugins
from any2ds.core.errors import DamagedShard, UsageError, error_text
from any2ds.load import hashes
from any2ds.load.added import ShardWithColumns, split_fields
from any2ds.load.ahead import Stored
from any2ds.load.copies import ShardCopies
from any2ds.load.decode import decoded
from any2ds.load.exact import ExactColumns, ExactShard
from any2ds.load.files import LocalShard, ShardOfFolder
from any2ds.load.remote import RangeTrouble, RemoteShard, StoreReader, read_together
from any2ds.load.shards import ShardSet
from any2ds.writers.contract import Fields, IndexedShard, RangedShard, ShardData
from any2ds.writers.formats._spans import SpanShard

_MOST_OPEN = 4096  # shards of a process with an index of 8 bytes a sample; of the descriptors of a process at most half
_MOST_HEAVY = 256  # shards that a library has open, with as much as a megabyte each
_OPENED_AT_ONCE = 32  # shards of a store
_LARGEST_BLOCK = (32 << 20) - (64 << 10)  # bytes; glibc counts blocks of up to 32 MB with what it adds
_READ_AT_ONCE = 8  # shards of a store, of which more than the samples is read: row groups, or all of them


@dataclass(frozen=True, slots=True)
class _Finish:
    """Compares the file of a sample with its hash, decodes it, and leaves the columns that were asked for."""

    fields: Fields
    describe: Callable[[int], str]  # a shard, for messages

    @property
    def asked(self) -> tuple[str, ...] | None:
        """Those that were asked for, as they are stored."""
        fields = self.fields
        return fields.columns if fields.features is None else fields.features.stored(fields.columns)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Those that it needs."""
        fields, asked = self.fields, self.asked
        if asked is None or not (fields.decode or fields.hashes):
            return asked
        kinds = ("ext", "key", *(f"{member}_ext" for member in fields.members if member in asked))
        of_hashes = hashes.columns(fields.hashes, fields.members) if fields.hashes else ()
        return tuple(dict.fromkeys((*asked, *kinds, *of_hashes)))  # the kind of a file is that of its extension

    @property
    def is_needed(self) -> bool:
        fields, asked = self.fields, self.asked
        has_files = asked is None or not {"data", *fields.members}.isdisjoint(asked)
        return fields.decode or fields.features is not None or bool(fields.hashes and has_files)

    def __call__(self, sample: dict[str, Any], shard: int) -> dict[str, Any]:
        fields, describe = self.fields, partial(self.describe, shard)
        wanted, members = fields.columns, fields.members
        if fields.hashes:
            hashes.compare(sample, fields.hashes, members)
        if fields.decode:
            channels = fields.features.channels if fields.features is not None else {}
            sample = decoded(sample, members, channels, describe)
        if fields.features is not None:
            named: dict[str, Any] = fields.features(sample, wanted, fields.decode, describe)
            if wanted is not None and "rate" in sample:
                named["rate"] = sample["rate"]
            return named
        if wanted is None:
            return sample
        found = {name: sample[name] for name in wanted}
        if "rate" in sample and "data" in found:
            found["rate"] = sample["rate"]
        for member in members:
            if member in found and (rate := sample.get(f"{member}_rate")) is not None:
                found[f"{member}_rate"] = rate
        return found


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
        self._shards, self._fields, self._copies, self._is_copied = shards, fields, copies, is_copied
        self._given = (shards, fields, copies, is_copied)
        finish = _Finish(fields, shards.describe)
        self._finish = finish if finish.is_needed else None
        if self._finish is not None:
            self._fields = replace(fields, columns=finish.columns)
        self._exact_columns = ExactColumns.of(shards, fields.schema, self._fields.columns)
        self._exact: dict[int, ExactShard] = {}  # of the shards that are open
        self._open: dict[int, IndexedShard] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._pid = os.getpid()
        self._reader = StoreReader(shards.folder)

    def __reduce__(self) -> tuple[type[OpenShards], tuple[Any, ...]]:
        return OpenShards, self._given

    def with_fields(self, fields: Fields) -> OpenShards:
        """The same shards with other fields of a sample."""
        shards, _, copies, is_copied = self._given
        return OpenShards(shards, fields, copies, is_copied)

    def get(self, shard: int, number: int) -> dict[str, Any]:
        """A sample of a shard. Raises DamagedShard."""
        opened = self._open.get(shard) if self._pid == os.getpid() else None
        try:
            sample = (opened or self._opened(shard)).get(number)
            if self._exact_columns is not None:
                self._restore(shard, [number], [sample])
            return sample if self._finish is None else self._finish(sample, shard)
        except Exception as error:
            raise self.named(shard, error) from error

    def get_many(self, shard: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Samples of a shard as they are stored, best in ascending order. Raises DamagedShard."""
        opened = self._open.get(shard) if self._pid == os.getpid() else None
        try:
            samples = (opened or self._opened(shard)).get_many(numbers)
            if self._exact_columns is not None:
                self._restore(shard, numbers, samples)
            return samples
        except Exception as error:
            raise self.named(shard, error) from error

    def _restore(self, shard: int, numbers: Sequence[int], samples: Sequence[dict[str, Any]]) -> None:
        """Give samples the values that their format cannot hold."""
        assert self._exact_columns is not None
        if (exact := self._exact.get(shard)) is None:
            exact = self._exact[shard] = ExactShard(self._exact_columns, shard)
        for number, sample in zip(numbers, samples, strict=True):
            exact.restore(sample, number)

    def finished(self, stored: Stored) -> dict[str, Any]:
        """A sample, compared with its hash and decoded, if that is wanted. Raises DamagedShard."""
        shard, sample = stored
        if self._finish is None:
            return sample
        try:
            return self._finish(sample, shard)
        except Exception as error:
            raise self.named(shard, error) from error

    def get_across(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[list[dict[str, Any]]]:
        """`get_many` for several shards of a store, as much as possible of which is read at once.

        Raises DamagedShard.
        """
        self._open_all([shard for shard, _ in wanted])
        together: list[int] = []  # places in `wanted`
        others: list[int] = []
        for place, (shard, _) in enumerate(wanted):
            data = getattr(self._open.get(shard), "data", None)
            is_ranged = isinstance(data, RemoteShard) and not data.is_copied and self._pid == os.getpid()
            (together if is_ranged else others).append(place)
        found: list[list[dict[str, Any]]] = [[]] * len(wanted)
        for place, samples in zip(together, self._together([wanted[place] for place in together]), strict=True):
            found[place] = samples
        if others:
            with ThreadPoolExecutor(min(_READ_AT_ONCE, len(others))) as threads:
                for place, samples in zip(
                    others, threads.map(lambda n: self.get_many(*wanted[n]), others), strict=True
                ):
                    found[place] = samples
        return found

    def _together(self, wanted: Sequence[tuple[int, Sequence[int]]]) -> list[list[dict[str, Any]]]:
        """Of shards whose samples are ranges."""
        opened: list[RangedShard] = []
        ranges: list[list[tuple[int, int]]] = []
        for shard, numbers in wanted:
            try:
                opened.append(cast(RangedShard, self._opened(shard)))
                ranges.append(opened[-1].ranges(numbers))
            except Exception as error:
                raise self.named(shard, error) from error
        try:
            read = read_together(
                [(cast(RemoteShard, each.data), own) for each, own in zip(opened, ranges, strict=True)]
            )
        except RangeTrouble as error:
            names = {self._shards.names[shard]: shard for shard, _ in wanted}
            raise self.named(names[error.file.name], error) from error
        found = []
        for (shard, numbers), each, own, buffers in zip(wanted, opened, ranges, read, strict=True):
            try:
                found.append(each.samples(own, buffers))
                if self._exact_columns is not None:
                    self._restore(shard, numbers, found[-1])
            except Exception as error:
                raise self.named(shard, error) from error
        return found

    def _open_all(self, shards: Sequence[int]) -> None:
        """Raises DamagedShard."""
        closed = [shard for shard in shards if shard not in self._open or self._pid != os.getpid()]
        if len(closed) > 1:
            self.count(closed.pop())  # after a fork, the first makes what the others use
            with ThreadPoolExecutor(min(_OPENED_AT_ONCE, len(closed))) as threads:
                for _ in threads.map(self.count, closed):
                    pass
        elif closed:
            self.count(closed[0])

    def counts(self) -> list[int]:
        """How many samples the index of each shard has; of a store, some are opened at once. Raises DamagedShard."""
        shards = range(len(self._shards))
        if self._shards.folder.is_local:
            return list(map(self.count, shards))
        with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
            return list(threads.map(self.count, shards))

    def count(self, shard: int) -> int:
        """How many samples its index has. Raises DamagedShard."""
        try:
            return len(self._opened(shard))
        except Exception as error:
            raise self.named(shard, error) from error

    def keys(self, shard: int) -> list[str]:
        """The keys of its samples, in the order of the data. Raises DamagedShard."""
        try:
            return self._opened(shard).keys()
        except Exception as error:
            raise self.named(shard, error) from error

    def _opened(self, shard: int) -> IndexedShard:
        if self._pid != os.getpid():  # after a fork: what is open belongs to the parent
            self._shards = self._shards.in_this_process()
            self._reader = StoreReader(self._shards.folder)
            self._open, self._exact, self._opening = {}, {}, {}
            self._pid = os.getpid()  # the last says to other threads that all is new
        if (opened := self._open.get(shard)) is not None:
            return opened
        with self._opening.setdefault(shard, threading.Lock()):  # else threads would fetch the same index, or copy
            return self._open.get(shard) or self._opened_anew(shard)

    def _opened_anew(self, shard: int) -> IndexedShard:
        writer = plugins.load("writers", self._shards.output_format)
        if not hasattr(writer, "indexed"):
            raise UsageError(f"{self._shards.output_format} shards cannot be read by number")
        shards, fields = self._shards, self._fields
        if shards.added is None:
            opened: IndexedShard = writer.indexed(self.data(shard), fields)
        else:
            own, added = split_fields(fields, shards.added.names)
            table = shards.tables[shard] if shards.tables[shard].startswith(layout.COLUMNS_FOLDER) else ""
            opened = ShardWithColumns(writer.indexed(self.data(shard), own), shards.folder, table, added)
        most = min(_MOST_OPEN, _descriptors() // 2) if isinstance(opened, SpanShard) else _MOST_HEAVY
        self._open[shard] = opened
        _opened_last.append((weakref.ref(self), shard))
        while len(_opened_last) > most:
            owner, number = _opened_last.popleft()
            if (other := owner()) is not None:
                other._open.pop(number, None)
                other._exact.pop(number, None)
        return opened

    def data(self, shard: int) -> ShardData:
        """Of a shard, whether it is open or not. Raises DamagedShard."""
        shards = self._shards
        count = shards.samples(shard) or None  # of other tools' tar files it is known when they are open
        name = shards.names[shard]
        of_folder = ShardOfFolder(
            shards.folder,
            name,
            shards.data_bytes[shard],
            count,
            self._copies.folder,
            shards.versions[shard] if shards.versions else "",
            shards.has_indexes,
            shards.marks[shard] if shards.marks and shards.machine == platform.node() else None,
            shards.key_start(shard),
            plugins.load("writers", shards.output_format).extension == "",
        )
        if shards.folder.is_local:
            return LocalShard(of_folder, Path(shards.folder.path) / name)
        if self._is_copied or of_folder.is_folder:
            return self._copies.opened(of_folder)
        return RemoteShard(of_folder, self._copies, self._reader)

    def named(self, shard: int, error: Exception) -> Exception:
        """DamagedShard, which names the shard, for what happened while it was read."""
        if isinstance(error, UsageError):  # a library that is not installed, a compressed file
            return error
        return DamagedShard(f"{self._shards.describe(shard)}: {error_text(error)}")
