"""Writes shards as tar files in the order that webdataset reads, all members of a sample side by side."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample
from any2ds.storage.disk.regular import open_regular
from any2ds.writers.contract import ALL_FIELDS, Fields, ShardData, ShardWriter
from any2ds.writers.formats import _offsets
from any2ds.writers.formats._members import MemberDecoder, key_and_ext, members
from any2ds.writers.formats._shard import RangeFile, SpanShard, decoder_of

INDEX_END = ".tar.idx"
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_NAME = 100  # bytes that the name field holds
_FILE = b"0"  # the type of a member that is a file
_fields_at = struct.Struct("100s24x12s12x8sc100x8s80xc").unpack_from  # name, size, sum, type, magic, before the name
_MOST = 8**11  # sizes from here on need another notation

# POSIX.1-1988 ustar. What never changes: owner 0, mode 0644 and time 0, so that the same samples give the same bytes.
_OWNER = b"0000644\x00" + 2 * b"0000000\x00"
_TIME = b"00000000000\x00"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\x00")
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


class _Member(NamedTuple):
    """A file in a tar file, or another member: a folder, a link."""

    name: str
    start: int  # of its content
    size: int  # bytes of its content
    stop: int  # where the next member begins
    whole: bytes | None = None  # its content, where that does not lie there as it is: files with holes
    is_file: bool = True


def _plain(buffer: bytes, at: int) -> _Member | None:
    """The file whose header is at this place of a buffer, in a thirtieth of the time that tarfile takes.

    None unless it is a plain ustar header, as nearly all are.
    """
    try:
        field, octal, _, kind, magic, prefix = _fields_at(buffer, at)
        size = int(octal.rstrip(b"\0"), 8)
    except (ValueError, struct.error):  # in another notation; less than a header
        return None
    name, end, _ = field.partition(b"\0")
    if not end or size < 0 or kind != _FILE or magic[:5] != b"ustar" or prefix != b"\0":
        return None
    start = at + _BLOCK
    return _Member(name.decode("utf-8", "replace"), start, size, start + (size + _BLOCK - 1 & -_BLOCK))


def _any(file: IO[bytes], at: int, last: str = "") -> _Member:
    """The member whose header is at this place of a file, behind the one called `last`, in any notation.

    Raises DamagedShard.
    """
    try:
        file.seek(at)
        tar = tarfile.TarFile(fileobj=file)
        member = tar.next()
        if member is None or member.size < 0 or tar.offset <= at:
            raise tarfile.HeaderError("no header")
        content = tar.extractfile(member) if member.sparse is not None else None
        whole = None if content is None else content.read()
    except Exception as error:  # tarfile has no one kind for what it trips over in garbled headers
        behind = f", behind {last!r}" if last else ""
        raise DamagedShard(f"no member begins at byte {at:,}{behind}: {error_text(error)}") from error
    return _Member(member.name, member.offset_data, member.size, tar.offset, whole, member.isfile())


def index_of(path: Path) -> bytes:
    """The index of a tar file, whoever made it: members that are passed over belong to the sample before them.

    Raises DamagedShard for a file that is broken, or goes on behind its end, and OSError.
    """
    offsets, last, name, at = array("Q"), None, "", 0
    with open_regular(path) as file:
        while (header := file.read(_BLOCK)) != _ZEROS:
            member = _plain(header, 0) if _has_sum(header) else None
            found = _any(file, at, name) if member is None else member._replace(stop=at + member.stop)
            name = found.name
            if found.is_file and (names := key_and_ext(name)) is not None and names[0] != last:
                offsets.append(at)
                last = names[0]
            at = found.stop
            file.seek(at)
        _check_end(file, at, name)
    offsets.append(at)
    return _offsets.pack(offsets)


def _has_sum(header: bytes) -> bool:
    """Whether the checksum of a header is right; sums are compared by Adler-32, which is fast: see `header`."""
    octal = header[148:156]
    summed = (zlib.adler32(header) & 0xFFFF) - 1 - sum(octal) + 8 * ord(" ")
    try:
        return (int(octal.rstrip(b"\0 "), 8) - summed) % 65521 == 0
    except ValueError:
        return False


def _check_end(file: IO[bytes], at: int, name: str) -> None:
    """The end of a tar file is two blocks of zeros, with more of them as padding. What else lies there, no reader would
    see: such as all of the second file of `cat a.tar b.tar`."""
    if file.read(_BLOCK) != _ZEROS:
        raise DamagedShard(f"it does not go on at byte {at:,}, behind {name!r}, as a tar file does")
    while padding := file.read(1 << 20):
        if padding.count(0) != len(padding):
            raise DamagedShard(f"there is more behind its end at byte {at:,}, after {name!r}")


class TarShard(SpanShard):
    """Samples of a tar file by number."""

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None:
        try:
            offsets = _offsets.unpack(data.index(INDEX_END, index_of))
        except (ValueError, OSError) as error:
            raise DamagedShard(f"its index cannot be read: {error_text(error)}") from error
        super().__init__(data, offsets)
        if data.samples is None and data.is_local and data.read(offsets[-1], _BLOCK) != _ZEROS:  # no count to compare
            raise DamagedShard(
                f"its index ends at byte {offsets[-1]:,}, where the tar file goes on: it is an older one's"
            )
        self._decoder = decoder_of(MemberDecoder, fields)

    def keys(self) -> list[str]:
        found: list[str] = []
        for number, (start, _) in enumerate(self.ranges(range(len(self)))):
            names = key_and_ext(self._member_at(start).name)
            key = names[0] if names is not None else self.files(number)[0]
            if found and key == found[-1]:
                raise DamagedShard(f"samples {number - 1:,} and {number:,} are both {key!r}: the index is wrong")
            found.append(key)
        return found

    def row_in(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        return self._decoder.row(*self.files_in(buffer, start, stop))

    def files(self, number: int) -> tuple[str, dict[str, StoredBody]]:
        ((start, size),) = self.ranges([number])
        key, members = _sample(start, start + size, self._member_at)
        return key, {ext: self._body(member) for ext, member in members.items()}

    def files_in(self, buffer: bytes, start: int, stop: int) -> tuple[str, dict[str, bytes]]:
        key, members = _sample(start, stop, lambda at: _plain(buffer, at) or _any(io.BytesIO(buffer), at))
        return key, {
            ext: buffer[first : first + size] if whole is None else whole
            for ext, (_, first, size, _, whole, _) in members.items()
        }

    def _member_at(self, at: int) -> _Member:
        found = _plain(self.data.read(at, _BLOCK), 0)
        if found is None:
            return _any(cast("IO[bytes]", RangeFile(self.data)), at)
        return found._replace(start=at + found.start, stop=at + found.stop)

    def _body(self, member: _Member) -> StoredBody:
        if member.whole is not None:
            return StoredBody.of(member.whole)
        return StoredBody(member.size, lambda offset, size: self.data.read(member.start + offset, size))


def _sample(start: int, stop: int, member_at: Callable[[int], _Member]) -> tuple[str, dict[str, _Member]]:
    """Key and files, by extension, of the sample between two places. Raises DamagedShard."""
    found: dict[str, _Member] = {}
    key, at = None, start
    while at < stop:
        member = member_at(at)
        name, _, size, at, _, is_file = member
        if at > stop:
            raise DamagedShard(f"{name!r}: a file of {size:,} bytes ends after its sample: the index is wrong")
        if not is_file or (names := key_and_ext(name)) is None:
            continue
        own, ext = names
        if key is not None and own != key:
            raise DamagedShard(f"{key!r} and {own!r} lie where one sample should: the index is wrong")
        if ext in found:
            raise DamagedShard(f"{name!r} is there twice in one sample")
        key, found[ext] = own, member
    if key is None:
        raise DamagedShard("no sample begins where its index says")
    return key, found


class WebdatasetWriter(ShardWriter):
    extension = "tar"
    has_members = True
    sidecars = (INDEX_END,)
    shard = TarShard

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        self._metadata = metadata
        self._file = path.open("wb", buffering=1 << 18)
        self._index_path = path.with_name(path.name.removesuffix(".tar") + INDEX_END)
        self._index = array("Q")
        self._at = 0  # bytes written

    def write(self, sample: Sample) -> None:
        write, at, padding = self._file.write, self._at, b""
        self._index.append(at)
        for name, size, chunks in members(sample, self._metadata):
            head = header(name, size)
            write(padding + head)
            for chunk in chunks:
                write(chunk)
            padding = _ZEROS[size % _BLOCK or _BLOCK :]
            at += len(head) + size + len(padding)
        write(padding)
        self._at = at

    def close(self) -> None:
        with self._file as file:
            file.write(2 * _ZEROS)
            file.write(bytes(-file.tell() % tarfile.RECORDSIZE))
        self._index.append(self._at)
        self._index_path.write_bytes(_offsets.pack(self._index))


def header(name: str, size: int) -> bytes:
    """The block before a member; `tarfile` makes the rare one with a long name or a size of 8 GiB and more."""
    encoded = name.encode()
    if len(encoded) > _NAME or size >= _MOST:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT)
    digits = b"%011o\x00" % size
    # The low half of Adler-32 is the sum of the bytes and 1 (as long as that is below 65521), in a tenth of the time.
    checksum = b"%06o\x00 " % (_FIXED_SUM + (zlib.adler32(encoded + digits) & 0xFFFF) - 1)
    return b"".join((encoded.ljust(_NAME, b"\x00"), _OWNER, digits, _TIME, checksum, _REST))


PART = WebdatasetWriter
