"""Writes shards as tar files in the order that webdataset reads: all members of a sample side by side."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, access_text, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample
from any2ds.writers.contract import Fields, ShardData
from any2ds.writers.formats import _tarindex
from any2ds.writers.formats._members import SampleBuilder, in_samples, members
from any2ds.writers.formats._spans import SpanShard

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_NAME = 100  # bytes that the name field holds
_FILE = b"0"  # the type of a member that is a file
_header_at = struct.Struct("100s24x11s21xc100x5s83xc").unpack_from  # name, size, type, magic, what is before the name
_MOST = 8**11  # sizes from here on need another notation

# POSIX.1-1988 ustar. What never changes: owner 0, mode 0644 and time 0, so that the same samples give the same bytes.
_OWNER = b"0000644\x00" + 2 * b"0000000\x00"
_TIME = b"00000000000\x00"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\x00")
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


class WebdatasetWriter:
    extension = "tar"
    holds_metadata = False
    has_members = True
    sidecars = (_tarindex.END,)
    most_bytes = most_sample_bytes = None
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        self._metadata = metadata
        self._file = path.open("wb", buffering=1 << 18)
        self._index_path = _tarindex.path_of(path)
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

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        with self._file as file:
            file.write(2 * _ZEROS)
            file.write(bytes(-file.tell() % tarfile.RECORDSIZE))
        self._index.append(self._at)
        self._index_path.write_bytes(_tarindex.pack(self._index))

    @staticmethod
    def make_sidecars(path: Path) -> Mapping[str, bytes]:
        return {_tarindex.END: _tarindex.index_of(path)}

    @staticmethod
    def read(path: Path) -> Iterator[StoredSample]:
        try:
            with path.open("rb") as data, tarfile.open(path, "r:") as tar:
                yield from in_samples(_stored(data, tar))
        except DamagedShard:
            raise
        except Exception as error:  # tarfile has no one kind for what it trips over in garbled headers
            raise DamagedShard(access_text(error)) from error

    @staticmethod
    def indexed(data: ShardData, fields: Fields) -> TarShard:
        try:
            offsets = _tarindex.unpack(data.index(_tarindex.END, _tarindex.index_of))
        except (ValueError, OSError, tarfile.TarError) as error:
            raise DamagedShard(f"its index cannot be read: {error_text(error)}") from error
        return TarShard(data, offsets, fields)


class TarShard(SpanShard):
    """Samples of a tar file by number."""

    def __init__(self, data: ShardData, offsets: Sequence[int], fields: Fields) -> None:
        super().__init__(data, offsets)
        if data.samples is None and data.is_local and data.read(offsets[-1], _BLOCK) != _ZEROS:  # no count to compare
            raise DamagedShard(
                f"its index ends at byte {offsets[-1]:,}, where the tar file goes on: it is an older one's"
            )
        self._build = SampleBuilder.of(fields)

    def keys(self) -> list[str]:
        found: list[str] = []
        for number in range(len(self)):
            key = _plain_key(self.data.read(self._offsets[number], _BLOCK))
            key = str(self.get(number)["key"]) if key is None else key
            if found and key == found[-1]:
                raise DamagedShard(f"samples {number - 1:,} and {number:,} are both {key!r}: the index is wrong")
            found.append(key)
        return found

    def key(self, buffer: bytes, start: int, stop: int) -> str:
        key = _plain_key(buffer[start : start + _BLOCK])
        return _members_of(buffer[start:stop])[0] if key is None else key

    def sample(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        found: dict[str, bytes] = {}
        key, at = None, start
        while at < stop:
            # Plain ustar headers, which nearly all are, cost 2 microseconds each; tarfile takes 60.
            try:
                field, octal, kind, magic, prefix = _header_at(buffer, at)
                size = int(octal, 8)
            except (ValueError, struct.error):  # in another notation; less than a header
                return self._build(*_members_of(buffer[start:stop]))
            name, end, _ = field.partition(b"\0")
            if not end or size < 0 or kind != _FILE or magic != b"ustar" or prefix != b"\0":
                return self._build(*_members_of(buffer[start:stop]))
            own, dot, ext = name.decode("utf-8", "replace").partition(".")
            first = at + _BLOCK
            at = first + (size + _BLOCK - 1 & -_BLOCK)
            if at > stop:
                raise DamagedShard(f"{own!r}: a file of {size:,} bytes ends after its sample: the index is wrong")
            if own != key or not dot or "/" in ext:
                if not (own and dot) or "/" in ext or own.startswith("__"):
                    if (names := _tarindex.key_and_ext(f"{own}{dot}{ext}")) is None:
                        continue
                    own, ext = names
                if key is None:
                    key = own
                elif own != key:
                    raise _mixed(key, own)
            found[ext] = buffer[first : first + size]
        if key is None:
            raise DamagedShard("no sample begins where its index says")
        return self._build(key, found)


def _mixed(key: str, other: str) -> DamagedShard:
    return DamagedShard(f"{key!r} and {other!r} lie where one sample should: the index is wrong")


def _plain_key(header: bytes) -> str | None:
    """That of a sample by the header of its first file, if this is one in which its name stands as a whole."""
    if header[156:157] != _FILE or header[345:346] != b"\0":
        return None
    names = _tarindex.key_and_ext(header[:_NAME].partition(b"\0")[0].decode("utf-8", "replace"))
    return None if names is None else names[0]


def _members_of(sample: bytes) -> tuple[str, dict[str, bytes]]:
    """Key and files of a sample with rarer headers: long names, folders, links. Raises DamagedShard."""
    found: dict[str, bytes] = {}
    key = None
    try:
        with tarfile.open(fileobj=io.BytesIO(sample), mode="r:") as tar:
            for member in tar:
                names = _tarindex.key_and_ext(member.name) if member.isfile() else None
                if names is not None and (file := tar.extractfile(member)):
                    own, ext = names
                    if key is not None and own != key:
                        raise _mixed(key, own)
                    key, found[ext] = own, file.read()
    except DamagedShard:
        raise
    except Exception as error:  # tarfile has no one kind for what it trips over
        raise DamagedShard(f"no sample begins where its index says: {error_text(error)}") from error
    if key is None:
        raise DamagedShard("no sample begins where its index says")
    return key, found


def _stored(data: BinaryIO, tar: tarfile.TarFile) -> Iterator[tuple[str, StoredBody]]:
    """The files in `tar`, also where it was made by others; their bytes are read from `data`, which is open twice, so
    that bodies and headers do not drop each other's read-ahead."""
    end = 0
    kept: list[tarfile.TarInfo] = vars(tar)["members"]  # each member, which would be 30 MB for 10 000 samples
    while (member := tar.next()) is not None:
        if tar.offset <= end or member.size < 0:  # tarfile would go round and round
            raise DamagedShard(f"the header of a member at byte {end} is garbled")
        end = tar.offset
        kept.clear()
        if member.isfile():
            yield member.name, _body(data, tar, member)
    _check_end(data, tar.offset)


def _body(data: BinaryIO, tar: tarfile.TarFile, member: tarfile.TarInfo) -> StoredBody:
    start, sparse = member.offset_data, member.sparse is not None

    def read_at(offset: int, size: int) -> bytes:
        if sparse and (whole := tar.extractfile(member)):
            with whole:
                whole.seek(offset)
                return whole.read(size)
        data.seek(start + offset)
        return data.read(size)

    return StoredBody(member.size, read_at)


def _check_end(data: BinaryIO, offset: int) -> None:
    """tarfile takes a header that is none, and a file that just stops, for the end. That is two blocks of zeros, with
    more of them as padding."""
    data.seek(offset)
    if data.read(2 * _BLOCK) != 2 * _ZEROS:
        raise DamagedShard(f"it does not go on at byte {offset} as a tar file does")
    while padding := data.read(1 << 20):
        if padding.count(0) != len(padding):
            raise DamagedShard(f"there is more behind its end at byte {offset}")


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
