"""Unpacks zip, tar and compressed files in memory, within limits.

Names are only text: no file is opened or created by a name in an archive.
"""

from __future__ import annotations

import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from any2ds.core import compression
from any2ds.core.errors import NotDecodable
from any2ds.transforms.contract import Rejected

_PIECE = 1 << 18  # bytes read at a time
_BLOCK = 512  # bytes, of which a tar is made
_MOST_RATIO = 200  # bytes unpacked for each byte of the archive
_SMALL = 64 << 10  # bytes that any archive may unpack to, however small it is: a mask of zeros is no bomb
_ENTRY = b"PK\x01\x02"  # begins an entry of a zip's directory
_ENTRIES_PER_FILE = 4
_ENTRIES = 10_000
_UTF8 = 0x800  # flag of an entry: its name is in UTF-8
_ENCRYPTED = 0x1
_METHODS = {zipfile.ZIP_DEFLATED: "deflate", zipfile.ZIP_BZIP2: "bz2", 93: "zst", 95: "xz"}
_UNIX = 3  # made on a system whose file modes are in the upper half of external_attr
_LONGEST_PATH = 4096  # characters
_LONGEST_HEADER = 1 << 20  # bytes that a tar may take to say the name of a file, its times and so on
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_JUNK = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})


Pieces = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive."""

    path: str  # as the archive calls it: nothing but text
    data: bytes
    error: str = ""  # why there are no data; it concerns this file alone


class Meter:
    """Counts what is unpacked, whatever headers say. Raises Rejected beyond the limits."""

    def __init__(self, most_files: int, most_bytes: int, size: int) -> None:
        """`size` is that of the archive in bytes, `most_bytes` those that any archive may unpack to."""
        self._most_files, self._most_bytes, self._size = most_files, most_bytes, size
        self.allowed = min(most_bytes, max(_SMALL, _MOST_RATIO * size))  # bytes that this one may unpack to
        # Folders, links, what file managers leave behind: each costs something.
        self._most_entries = max(_ENTRIES, _ENTRIES_PER_FILE * most_files)
        self._files = self._entries = self._bytes = 0

    def count_files(self, count: int) -> None:
        self._files += count
        if self._files > self._most_files:
            raise _too_much(f"it has more than {self._most_files} files")

    def count_entry(self) -> None:
        """Something in the archive, file or not."""
        self._entries += 1
        if self._entries > self._most_entries:
            raise _too_much(f"it has more than {self._most_entries} entries")

    def count_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._most_bytes:
            raise _too_much(f"it unpacks to more than {self._most_bytes} bytes (--unpack_max_bytes)")
        if self._bytes > self.allowed:
            raise _too_much(f"it unpacks to more than {_MOST_RATIO} times its {self._size} bytes")

    def over(self, pieces: Pieces) -> Pieces:
        """The pieces, while they are counted."""
        for piece in pieces:
            self.count_bytes(len(piece))
            yield piece


def _too_much(message: str) -> Rejected:
    return Rejected("unpacks_too_large", message)


# --- zip ---


def zip_directory(data: bytes, meter: Meter) -> list[zipfile.ZipInfo]:
    """The entries of a zip. Raises NotDecodable, Rejected."""
    try:
        with zipfile.ZipFile(_ZipFile(data, meter)) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, OSError) as error:
        raise NotDecodable(f"invalid zip: {error}") from error


class _ZipFile(io.BytesIO):
    """A zip that `zipfile` reads the directory of: one without end costs no memory, and any bytes may be names."""

    def __init__(self, data: bytes, meter: Meter) -> None:
        super().__init__(data)
        self._meter = meter

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data.startswith(_ENTRY):
            return data
        # The directory is read in one go, and all of it becomes objects. A flag says whether names are UTF-8; without
        # it zipfile takes each byte for a character of code page 437, instead of giving up the archive for a bad one.
        entries = bytearray(data)
        position = 0
        while entries[position : position + 4] == _ENTRY and position + 46 <= len(entries):
            self._meter.count_entry()
            entries[position + 9] &= ~(_UTF8 >> 8)
            position += 46 + sum(struct.unpack_from("<3H", entries, position + 28))
        return bytes(entries)


def is_file(entry: zipfile.ZipInfo) -> bool:
    """Whether it is one that becomes a sample: no folder, link, device or junk, and not empty."""
    mode = entry.external_attr >> 16 if entry.create_system == _UNIX else 0
    is_regular = stat.S_IFMT(mode) in (0, stat.S_IFREG)
    name = entry.orig_filename
    return is_regular and entry.file_size > 0 and not name.endswith(("/", "\\")) and not _is_junk(zip_path(entry))


def zip_path(entry: zipfile.ZipInfo) -> str:
    """UTF-8 where the bytes are that, whatever the flags say; else code page 437, which gives each byte a character."""
    return _text(entry.orig_filename.encode("cp437"), "cp437")


def _text(name: bytes, other: str) -> str:
    """A name in UTF-8, or in the `other` charset."""
    try:
        return _shown(name.decode("utf-8"))
    except UnicodeDecodeError:
        return _shown(name.decode(other))


def unzipped(data: bytes, entries: list[zipfile.ZipInfo], meter: Meter) -> Iterator[Member]:
    """The files of a zip, in the order of its directory. Raises Rejected, at once where the directory says so."""
    entries = [entry for entry in entries if is_file(entry)]
    meter.count_files(len(entries))
    view = memoryview(data)
    for entry in entries:
        path = zip_path(entry)
        try:
            yield Member(path, _unzipped(view, entry, meter))
        except NotDecodable as error:
            yield Member(path, b"", str(error))


def _unzipped(data: memoryview, entry: zipfile.ZipInfo, meter: Meter) -> bytes:
    if entry.flag_bits & _ENCRYPTED:
        raise NotDecodable("encrypted")
    start = entry.header_offset
    header = bytes(data[max(start, 0) : start + 30])
    if start < 0 or len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise NotDecodable("the zip has no file at the place in its directory")
    start += 30 + sum(struct.unpack_from("<2H", header, 26))
    packed = data[start : start + entry.compress_size]
    if len(packed) < entry.compress_size:
        raise NotDecodable("truncated: the zip ends within it")
    if entry.compress_type == zipfile.ZIP_STORED:
        meter.count_bytes(len(packed))
        unpacked = bytes(packed)
    elif (kind := _METHODS.get(entry.compress_type)) is not None:
        unpacked = joined(meter.over(_no_more(decompressed(packed, kind), entry.file_size)))
    else:
        raise NotDecodable(f"unsupported compression method {entry.compress_type}")
    if len(unpacked) != entry.file_size or zlib.crc32(unpacked) != entry.CRC:
        raise NotDecodable("damaged: its size or CRC differs from the zip's directory")
    return unpacked


def _no_more(pieces: Pieces, size: int) -> Pieces:
    """Raises NotDecodable for a file that is longer than in its zip's directory."""
    for piece in pieces:
        size -= len(piece)
        if size < 0:
            raise NotDecodable("damaged: longer than in the zip's directory")
        yield piece


# --- tar ---


def is_tar(block: bytes) -> bool:
    """Whether a file that begins with `block` is a tar with something in it, of any age: by its checksum."""
    try:
        tarfile.TarInfo.frombuf(block[:_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def is_blank(block: bytes) -> bool:
    """Whether it may be an empty tar."""
    return bool(block) and not len(block) % _BLOCK and not block.strip(b"\0")


class BoundedTarInfo(tarfile.TarInfo):
    """A header of at most 1 MiB. A broken one is an error, which tarfile takes for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> BoundedTarInfo:  # type: ignore[override]
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADERS and info.size > _LONGEST_HEADER:  # which tarfile would read whole, and search
            raise tarfile.ReadError(f"a header of {info.size} bytes")
        return info

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> BoundedTarInfo:
        try:
            return super().fromtarfile(archive)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error


def untarred(pieces: Pieces, meter: Meter) -> Iterator[Member]:
    """The files of a tar, in its order; `pieces` are counted already. Raises NotDecodable, Rejected."""
    try:
        stream: Any = compression.PieceFile(pieces)
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedTarInfo, encoding="utf-8") as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # which grows for ever
                meter.count_entry()
                path = _tar_path(info.name)
                if not info.isreg() or info.size <= 0 or _is_junk(path):
                    continue
                meter.count_files(1)
                if info.issparse():  # tarfile would fill it with any number of zeros, uncounted
                    yield Member(path, b"", "a sparse file, which is not unpacked")
                    continue
                file = archive.extractfile(info)
                assert file is not None
                yield Member(path, joined(iter(partial(file.read, _PIECE), b"")))
        while stream.read(_PIECE):  # data behind the tar are ignored, but for the checksum
            pass
    except NotDecodable:
        raise
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:  # headers of headers of …
        raise NotDecodable(f"invalid tar: {error}") from error


def _tar_path(name: str) -> str:
    """Bytes that are no UTF-8 become `\\xe9`."""
    return _shown(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


# --- one compressed file ---


def decompressed(data: bytes | memoryview, kind: str) -> Pieces:
    """`data` as it was before compression, see `compression.decompressed`. Raises NotDecodable where it is broken."""
    try:
        stream: Any = pa.BufferReader(pa.py_buffer(data))
        yield from compression.decompressed(stream, kind, ignores_trailing=True)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, pa.ArrowException) as error:
        raise NotDecodable(f"the compressed data are broken: {error}") from error


def gzip_name(data: bytes) -> str:
    """The name that the header of a gzip file may have (RFC 1952), or none."""
    if len(data) < 10 or not data[3] & 8:
        return ""
    start = 10
    if data[3] & 4:
        start += 2 + int.from_bytes(data[10:12], "little")
    return _text(data[start : start + 4096].partition(b"\0")[0], "latin-1")


def joined(pieces: Pieces) -> bytes:
    whole = io.BytesIO()
    for piece in pieces:
        whole.write(piece)
    return whole.getvalue()


def _shown(path: str) -> str:
    """As it stands in the metadata: no NUL, which not everything that reads texts can bear, and no end of a bomb."""
    return path[:_LONGEST_PATH].replace("\0", "\\x00")


def _is_junk(path: str) -> bool:
    """Whether it is a leftover of a file manager."""
    *folders, name = path.replace("\\", "/").split("/")
    return "__MACOSX" in folders or name in _JUNK or name.startswith("._")
