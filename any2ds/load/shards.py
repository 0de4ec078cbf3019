"""The finished shards of a dataset as `load` opens it: how many samples each has, and where its files lie."""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import accumulate, compress

import pyarrow as pa

from any2ds.config.hashes import recorded_hash_columns
from any2ds.core import layout
from any2ds.core.errors import DamagedShard, OutputError, Unreachable, error_text, redacted
from any2ds.dataset.added_columns import AddedColumns
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import NamesInOrder
from any2ds.dataset.shard_sample import ShardSample, table_of_stats
from any2ds.dataset.shards import ShardTable
from any2ds.load.files import mark_of
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.reading import version_of
from any2ds.storage.stores import Stores, protocols

log = logging.getLogger(__name__)

_ALL = 1 << 62
_TAR, _INDEX = ".tar", ".tar.idx"
_PACKED, _UNPACK = re.compile(r"\.(tgz|tar\.(gz|bz2|xz|zst|lz4))$"), "such as by gunzip"  # compressed tar files
_FOLDERS_LOOKED_AT = 10  # in a folder that is no dataset
_LISTS_VERSIONS = frozenset({"s3", "gs"})  # whose lists have the same versions as what they say of one file


@dataclass(frozen=True, slots=True)
class ShardSet:
    """The finished shards of one dataset, in order; those without a sample are left out. Small, and can be pickled.

    A folder of tar files that other tools wrote, such as those of webdataset, has neither statistics nor metadata: its
    `starts` are all 0 until their indexes are read.
    """

    folder: OutputFolder
    output_format: str
    is_own: bool  # made by any2ds: keys begin with that of the row, and data are in the order of the metadata
    names: Sequence[str]  # data files
    tables: Sequence[str]  # metadata of each; "" where there are none
    starts: array[int] = field(repr=False)  # number of the first sample of each shard, and at last that of all samples
    data_bytes: array[int] = field(repr=False)  # size of each data file; 0 if unknown
    data_column: str | None = None  # what record formats call the file; None: as its extension
    members: tuple[str, ...] = ()  # of a sample, where the rows of the list have several URLs
    shard_ids: Sequence[int] = ()  # number of each shard; none for other tools' tar files
    hashes: tuple[str, ...] = ()  # columns with hashes of the files, if any2ds has written them
    versions: Sequence[str] = ()  # of the data files in a store, as the list of the folder has them; () if unknown
    has_indexes: bool = True  # False if it is known that there are no indexes beside the data
    marks: Sequence[int] = field(default=(), repr=False)  # of data files on `machine`, see `mark_of`; () if unknown
    machine: str = ""  # whose files they are: another one may have copies, written at another time
    file_bytes: array[int] = field(default_factory=lambda: array("Q"), repr=False)  # of the files that each shard has;
    # those of other tools' tar files are taken as a whole, and 0 is unknown
    further: tuple[str, ...] = ()  # extensions of the files that steps have added to samples, as far as it is known
    unnumbered: tuple[range, ...] = ()  # shards whose samples have other keys than those of its number
    added: pa.Schema | None = None  # columns that some `tables` have, and data files have not

    @classmethod
    def of(cls, url: str, stores: Stores | None = None, is_checked: bool = True) -> ShardSet:
        """`is_checked`: whether each data file on this machine has to be there, with its size.

        Raises OutputError for a folder that holds no dataset or no finished shard, DamagedShard where files are
        missing or have another size than they should have."""
        opened = look(url, stores)
        if isinstance(opened, ShardSet):
            return opened
        if not opened.dataset.finished:
            raise OutputError(f"{redacted(url)!r} has no finished shard")
        if opened.writer.extension is None:
            raise OutputError(f"{redacted(url)!r} stores no files: read its metadata with pyarrow or pandas")
        dataset = opened.dataset
        has_indexes = not dataset.is_img2dataset or not dataset.listing.ends.keys().isdisjoint(opened.writer.sidecars)
        table = opened.table if opened.table is not None else table_of_stats(dataset)
        table = table.only(compress(table.ids, table.column("samples")))
        shards = dataset.finished.only(table.ids)
        marks = _check_presence(dataset, table) if is_checked else ()
        added = AddedColumns.of(dataset.folder) if dataset.run is not None else None
        tables = {} if added is None else added.tables(table)
        return cls(
            dataset.folder,
            dataset.output_format or "",
            not dataset.is_img2dataset,
            NamesInOrder(shards, "data"),
            [tables.get(files.shard_id, files.metadata or "") for files in shards]
            if tables
            else NamesInOrder(shards, "metadata"),
            array("Q", accumulate(table.column("samples"), initial=0)),
            array("Q", table.column("data_bytes")),
            str(dataset.run.options.get("data_column") or "data") if dataset.run and not dataset.hides else None,
            dataset.members.names if dataset.members is not None else (),
            shards.ids,
            () if dataset.is_img2dataset else recorded_hash_columns(dataset.run.options if dataset.run else None),
            has_indexes=has_indexes,
            marks=marks if len(marks) == len(shards) else (),
            machine=platform.node(),
            file_bytes=array("Q", table.column("bytes")),
            further=_further(dataset),
            unnumbered=_unnumbered(dataset),
            added=added.schema if added is not None and tables else None,
        )

    def __len__(self) -> int:
        return len(self.names)

    def in_this_process(self) -> ShardSet:
        """Itself; after a fork, one with connections of its own, since those of the parent hang."""
        return self if self.folder.pid == os.getpid() else replace(self, folder=copy(self.folder))

    @property
    def total(self) -> int:
        """Number of samples."""
        return self.starts[-1]

    def samples(self, shard: int) -> int:
        return self.starts[shard + 1] - self.starts[shard]

    def digest_to(self, shard: int) -> bytes:
        """A hash of how many samples, and how many bytes of files, this shard and those before it have.

        It is the same wherever the dataset lies, in every format, and after shards were added behind it.
        """
        digest = sha256()
        for column in (self.starts, self.file_bytes):
            digest.update(column[: shard + 1].tobytes())
        return digest.digest()

    def key_start(self, shard: int) -> str:
        """With what the keys of the samples of a shard begin; "" if that is unknown."""
        if not self.is_own or (self.shard_ids and any(self.shard_ids[shard] in each for each in self.unnumbered)):
            return ""
        return self.names[shard].partition(".")[0]

    def describe(self, shard: int) -> str:
        """For messages."""
        return f"shard {self.names[shard] or self.tables[shard]} of {redacted(self.folder.url)!r}"


def look(url: str, stores: Stores | None = None) -> ShardSample | ShardSet:
    """A dataset, or the tar files of other tools that lie in a folder. Raises OutputError if it holds neither."""
    try:
        opened = ShardSample.of(url, stores, most=_ALL)
    except Unreachable:
        raise
    except OutputError as error:
        if (foreign := _tars(url, stores)) is not None:
            return foreign
        above, _, last = url.rstrip("/").rpartition("/")
        if above and re.search(r"[{*]|\.\w+$|^\d+$", last):  # as the end of a run shows it
            raise OutputError(f"{error}: any2ds.load takes the folder, {redacted(above)!r}") from error
        if advice := _advice(url, stores):
            raise OutputError(f"{error}: {advice}") from error
        raise
    is_unknown = not opened.dataset.finished and opened.dataset.run is None
    return (is_unknown and _tars(url, stores)) or opened


def _further(dataset: Dataset) -> tuple[str, ...]:
    """The names for `ShardSet.further`."""
    exts = dataset.run.further if dataset.run is not None else ()
    if dataset.members is None:
        return exts
    return tuple(f"{member}.{ext}" for member in dataset.members.names for ext in exts)


def _unnumbered(dataset: Dataset) -> tuple[range, ...]:
    """The shards of retries, whose keys are those of earlier ones; all shards where a column gives the keys."""
    if dataset.run is None:
        return ()
    if dataset.layout is not None and dataset.layout.has_names:
        return (range(sys.maxsize),)
    return tuple(range(each.first_shard, each.end or 0) for each in dataset.run.segments if each.kind == "retry")


def _check_presence(dataset: Dataset, table: ShardTable) -> array[int]:
    """The marks of the data files of a local dataset, which are there, with the sizes in their statistics.

    Raises DamagedShard, OutputError.
    """
    url = redacted(dataset.folder.url)
    marks = array("q")
    if not dataset.folder.is_local:
        return marks
    for files, size in zip(dataset.finished.only(table.ids), table.column("data_bytes"), strict=True):
        name = files.data or layout.Layout(1, 1).shard_name(files.shard_id)
        try:
            there = os.stat(f"{dataset.folder.path}/{name}") if files.data is not None else None
        except FileNotFoundError:
            there = None
        except OSError as error:
            raise OutputError(f"shard {name} of {url!r} cannot be opened: {error_text(error)}") from error
        if there is None:
            raise DamagedShard(f"shard {name} of {url!r} is missing, though its statistics are there")
        if size and there.st_size != size:
            raise DamagedShard(f"shard {name} of {url!r} has {there.st_size:,} bytes, its statistics say {size:,}")
        marks.append(mark_of(there))
    return marks


def _tars(url: str, stores: Stores | None) -> ShardSet | None:
    """A folder of tar files without statistics of any tool; None if it is not one."""
    folder = open_folder(url, stores=stores)
    with suppress(Exception):  # every file system has exceptions of its own, and the caller one that says more
        listed = {str(info["name"]).rpartition("/")[2]: info for info in folder.listed() if info["type"] == "file"}
        sizes = {name: int(info.get("size") or 0) for name, info in listed.items()}
        names = sorted(name for name in sizes if name.endswith(_TAR))
        if names == [folder.path.rpartition("/")[2]]:  # a file
            return None
        is_of_a_run = any(name.endswith("_stats.json") for name in sizes) or folder.exists(layout.STATE_FOLDER)
        if names and not is_of_a_run:
            if packed := [name for name in sizes if _PACKED.search(name)]:
                log.warning("left out: %s and all others that are compressed: unpack them, %s", packed[0], _UNPACK)
            versions = [version_of(listed[name]) or "" for name in names]
            return ShardSet(
                folder,
                "webdataset",
                False,
                tuple(names),
                ("",) * len(names),
                array("Q", bytes(8 * (len(names) + 1))),
                array("Q", [sizes[name] for name in names]),
                versions=tuple(versions) if _LISTS_VERSIONS & protocols(folder.fs) else (),
                has_indexes=any(name.endswith(_INDEX) for name in sizes),
                marks=_marks(folder, names) if folder.is_local else (),
                machine=platform.node(),
                file_bytes=array("Q", [sizes[name] for name in names]),
            )
    return None


def _advice(url: str, stores: Stores | None) -> str:
    """How a folder of other tools that is no dataset can be read all the same; "" for an empty one."""
    folder, shown = open_folder(url, stores=stores), redacted(url).rstrip("/")
    with suppress(Exception):  # every file system has exceptions of its own, and the caller one that says more
        listed = {str(info["name"]).rpartition("/")[2]: str(info["type"]) for info in folder.listed()}
        folders = sorted(name for name, type in listed.items() if type == "directory" and not name.startswith("."))
        inside = {name: folder.names(name) for name in folders[:_FOLDERS_LOOKED_AT]}
        files = [*listed, *(name for names in inside.values() for name in names)]
        if any(name.endswith("_stats.json") or name == layout.STATE_FOLDER for name in listed):
            return ""
        for name, names in inside.items():
            if any(each.endswith((_TAR, "_stats.json")) for each in names):
                return f"load the folders in it one by one, as in any2ds.load({f'{shown}/{name}'!r})"
        if any(_PACKED.search(name) for name in files):
            return f"of compressed tar files no sample can be had by itself: unpack them, {_UNPACK}"
        if any(name.endswith(".parquet") for name in files):
            return (
                "parquet files of other tools, such as Hugging Face's, are read by their library: "
                f"datasets.load_dataset('parquet', data_files={f'{shown}/**/*.parquet'!r})"
            )
        if files and folder.is_local:
            return f"load a tar file of its files: mkdir tars; tar --sort=name -cf tars/0.tar -C {shown} ."
    return ""


def _marks(folder: OutputFolder, names: Iterable[str]) -> array[int]:
    return array("q", (mark_of(os.stat(f"{folder.path}/{name}")) for name in names))
