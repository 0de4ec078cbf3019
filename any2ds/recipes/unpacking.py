"""Unpacks archives of strangers into a folder: regular files and folders, and links to what is in the archive.

Nothing of an archive can lead a file elsewhere: all files are written before the first link is made, each name is
checked folder by folder, and where a link leads is worked out from the names in the archive. (`tarfile` asks the file
system instead, which CVE-2025-4517 misleads.) What is unpacked is bounded by the size of the archive.
"""

from __future__ import annotations

import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa

from any2ds.core import compression
from any2ds.core.errors import RunError, error_text
from any2ds.storage.disk.space import Room
from any2ds.transforms.steps import _archives

_RATIO = 100  # bytes unpacked for each byte of the archive
_FREE_BYTES = 1 << 30  # that any archive may unpack to
_BYTES_PER_ENTRY = 16  # of the archive: tar headers that are all alike take half a byte, others 20 and more
_FREE_ENTRIES = 100_000  # files, folders and links that any archive may have
_MOST_FOLDERS = 100  # in one another
_MOST_LINKS = 40  # that are followed for one path, as on Linux
_BYTES_PER_CHECK = 64 << 20  # written between two looks at the room on the disk
_PIECE = 1 << 20  # bytes read at a time

_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, struct.error, pa.ArrowException)
_UNSUITABLE = (ValueError, NotImplementedError, RuntimeError, OverflowError, OSError)  # encrypted, unknown methods

_Parts = tuple[str, ...]


class _Refused(Exception):
    """An archive that is not unpacked, with the reason."""


def unpack_archive(archive: Path, kind: str, folder: Path) -> None:
    """Unpack a zip, a tar, or a single compressed file ("single") into an empty folder.

    Raises RunError for an archive that is damaged, that would write outside of the folder, or that unpacks to more
    than an archive of its size should; DiskFull.
    """
    unpacking = _Unpacking(folder, archive.stat().st_size)
    with _explained(archive), unpacking.room.watched():
        if kind == "zip":
            _unzip(archive, unpacking)
        elif kind == "tar":
            _untar(archive, unpacking)
        else:
            with archive.open("rb") as stream:
                unpacking.write_file(archive.stem, _decompressed(stream))
        unpacking.make_links()


@contextmanager
def opened_tar(archive: Path, is_streamed: bool = True) -> Iterator[tarfile.TarFile]:
    """A tar, compressed or not, of whose headers none is longer than 1 MiB.

    If it is streamed, its files can be read once, from their start on, in bounded memory; so is each with zstd.
    """
    with archive.open("rb") as stream:
        kind = compression.kind_of(stream.read(compression.LONGEST_SIGNATURE))
        stream.seek(0)
        source, mode = cast(Any, stream), cast(Any, "r:*")
        if kind == "zst" or (kind and is_streamed):
            source, mode = compression.PieceFile(compression.decompressed(source, kind)), "r|"
        with tarfile.open(fileobj=source, mode=mode, tarinfo=_archives.BoundedTarInfo) as tar:
            yield tar


def is_tar(path: Path) -> bool:
    try:
        with opened_tar(path):
            return True
    except (*_DAMAGED, *_UNSUITABLE):
        return False


@contextmanager
def _explained(archive: Path) -> Iterator[None]:
    """Raises RunError for whatever is wrong with an archive."""
    try:
        yield
    except (_Refused, *_DAMAGED, *_UNSUITABLE) as error:
        raise RunError(f"{archive}: cannot be unpacked: {error_text(error)}") from error


def _decompressed(stream: IO[bytes]) -> Iterator[bytes]:
    kind = compression.kind_of(stream.read(compression.LONGEST_SIGNATURE))
    stream.seek(0)
    if kind is None:
        raise _Refused("it does not begin like a compressed file")
    yield from compression.decompressed(cast(Any, stream), kind)


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(_PIECE):
        yield piece


def _unzip(archive: Path, unpacking: _Unpacking) -> None:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if info.is_dir():
                unpacking.make_folder(info.filename)
            else:
                with opened.open(info) as stream:
                    unpacking.write_file(info.filename, _pieces(stream))


def _untar(archive: Path, unpacking: _Unpacking) -> None:
    with opened_tar(archive) as tar:
        while (info := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # which would keep all headers
            if info.isdir():
                unpacking.make_folder(info.name)
            elif info.isreg():
                unpacking.write_file(info.name, _pieces(cast(IO[bytes], tar.extractfile(info))))
            elif info.issym():
                unpacking.add_link(info.name, info.linkname, is_beside=True)
            elif info.islnk():
                unpacking.add_link(info.name, info.linkname, is_beside=False)
            else:
                raise _Refused(f"{info.name[:200]!r} is a device or pipe")


@dataclass
class _Unpacking:
    """The files that were unpacked into a folder, and how much more may be."""

    folder: Path
    archive_bytes: int
    room: Room = field(init=False)
    _files: set[_Parts] = field(default_factory=set)
    _folders: set[_Parts] = field(default_factory=lambda: {()})
    _links: dict[_Parts, _Parts] = field(default_factory=dict)  # where each leads, from the folder of the archive
    _bytes: int = 0
    _entries: int = 0
    _checked_bytes: int = 0  # of `_bytes`, at the last look at the room

    def __post_init__(self) -> None:
        self.room = Room(self.folder, None, "put the cache on a bigger disk (--download_dir)")

    def make_folder(self, name: str) -> None:
        self._count_entry()
        parts = _parts(name)
        self._make_folders(parts, name)

    def write_file(self, name: str, pieces: Iterator[bytes]) -> None:
        """A file that is in an archive twice is the later one."""
        self._count_entry()
        parts = _parts(name)
        if not parts or parts in self._folders or parts in self._links:
            raise _Refused(f"{name[:200]!r} is a file, and a folder or a link as well")
        self._make_folders(parts[:-1], name)
        with self.folder.joinpath(*parts).open("wb") as target:
            for piece in pieces:
                self._count_bytes(len(piece))
                target.write(piece)
        self._files.add(parts)

    def add_link(self, name: str, target: str, is_beside: bool) -> None:
        """`target` is seen from the folder of the link, or else from that of the archive."""
        self._count_entry()
        parts = _parts(name)
        if not parts or parts in self._files or parts in self._folders:
            raise _Refused(f"{name[:200]!r} is a link, and a file or folder as well")
        if target.startswith("/"):
            raise _Refused(f"the link {name[:200]!r} leads out of the archive, to {target[:200]!r}")
        self._make_folders(parts[:-1], name)
        self._links[parts] = (*(parts[:-1] if is_beside else ()), *target.split("/"))

    def make_links(self) -> None:
        """Each leads straight to a file or folder of the archive, through no other link."""
        for link in self._links:
            target = self._target(link)
            beside = os.path.relpath(self.folder.joinpath(*target), self.folder.joinpath(*link[:-1]))
            os.symlink(beside, self.folder.joinpath(*link), target_is_directory=target in self._folders)

    def _target(self, link: _Parts) -> _Parts:
        """The file or folder of the archive that a link leads to. Raises _Refused if there is none."""
        shown = "/".join(link)[:200]
        path: _Parts = ()
        rest = list(reversed(self._links[link]))
        followed = 0
        while rest:
            part = rest.pop()
            if part == ".." and not path:
                raise _Refused(f"the link {shown!r} leads out of the archive")
            path = path[:-1] if part == ".." else path if part in ("", ".") else (*path, part)
            if path in self._links:
                followed += 1
                rest += reversed(self._links[path])
                path = ()
            elif path not in self._folders and (rest or path not in self._files):
                raise _Refused(f"the link {shown!r} leads to {'/'.join(path)[:200]!r}, which is not in the archive")
            if followed > _MOST_LINKS:
                raise _Refused(f"the link {shown!r} leads through more than {_MOST_LINKS} links")
        return path

    def _make_folders(self, parts: _Parts, name: str) -> None:
        for length in range(1, len(parts) + 1):
            part = parts[:length]
            if part in self._folders:
                continue
            if part in self._files or part in self._links:
                raise _Refused(f"{name[:200]!r} leads through {'/'.join(part)[:200]!r}, which is no folder")
            self._count_entry()
            self.folder.joinpath(*part).mkdir()
            self._folders.add(part)

    def _count_entry(self) -> None:
        self._entries += 1
        most = _FREE_ENTRIES + self.archive_bytes // _BYTES_PER_ENTRY
        if self._entries > most:
            raise _Refused(f"it has more than {most:,} files and folders, in {self.archive_bytes:,} bytes")
        if not self._entries % 10_000:
            self.room.check()

    def _count_bytes(self, count: int) -> None:
        self._bytes += count
        most = max(_FREE_BYTES, _RATIO * self.archive_bytes)
        if self._bytes > most:
            raise _Refused(
                f"it unpacks to more than {most:,} bytes, from {self.archive_bytes:,} (dl.iter_archive reads an archive"
                " without unpacking it)"
            )
        if self._bytes - self._checked_bytes > _BYTES_PER_CHECK:
            self._checked_bytes = self._bytes
            self.room.check()


def _parts(name: str) -> _Parts:
    """The folders and the file that a name says, from the folder of the archive on. Raises _Refused."""
    is_windows = os.name == "nt"
    parts = tuple(
        part for part in (name.replace("\\", "/") if is_windows else name).split("/") if part not in ("", ".")
    )
    if ".." in parts or (is_windows and ":" in name):
        raise _Refused(f"{name[:200]!r} leads out of its folder")
    if len(parts) > _MOST_FOLDERS:
        raise _Refused(f"{name[:200]!r} has more than {_MOST_FOLDERS} folders in one another")
    return parts
