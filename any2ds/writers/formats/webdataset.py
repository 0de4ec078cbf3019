"""Writes shards as tar files in the order that webdataset reads: all members of a sample side by side."""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample
from any2ds.writers.formats import _tarindex
from any2ds.writers.formats._members import in_samples, members

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_NAME = 100  # bytes that the name field holds
_MOST = 8**11  # sizes from here on need another notation
_AT_ONCE = 1 << 17  # bytes handed to the system in one call: fewer calls for small files, and no copy of large ones
_MOST_PIECES = 512  # half of what Linux and macOS take in one call

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
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        self._metadata = metadata
        self._file = path.open("wb", buffering=0)
        self._index_path = _tarindex.path_of(path)
        self._index = array("Q")
        self._at = 0  # bytes of the samples so far
        self._pieces: list[bytes | memoryview] = []  # of these, what is not yet written
        self._written = 0
        self._enough = _AT_ONCE  # where these are written

    def write(self, sample: Sample) -> None:
        pieces, at = self._pieces, self._at
        self._index.append(at)
        for name, size, chunks in members(sample, self._metadata):
            head = header(name, size)
            pieces.append(head)
            at += len(head)
            for chunk in chunks:
                pieces.append(chunk)
                at += len(chunk)
                # What lies in memory that is used again is valid no longer than its sample.
                if at > self._enough or len(pieces) > _MOST_PIECES or type(chunk) is not bytes:
                    self._write_pieces(at)
            if left := size % _BLOCK:
                pieces.append(_ZEROS[left:])
                at += _BLOCK - left
        self._at = at

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        with self._file:
            self._index.append(self._at)
            end = self._at + 2 * _BLOCK
            end += -end % tarfile.RECORDSIZE
            self._pieces.append(bytes(end - self._at))
            self._write_pieces(end)
        self._index_path.write_bytes(_tarindex.pack(self._index))

    def _write_pieces(self, at: int) -> None:
        """Write what there is before `at`."""
        _write_all(self._file, self._pieces, at - self._written)
        self._pieces.clear()
        self._written, self._enough = at, at + _AT_ONCE

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
            raise DamagedShard(error_text(error)) from error


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


def _write_all(file: io.FileIO, pieces: list[bytes | memoryview], size: int) -> None:
    """Write the `size` bytes of `pieces` in one call, and where the system can without joining them in memory."""
    if hasattr(os, "writev"):
        written = os.writev(file.fileno(), pieces)
    else:  # Windows
        pieces, written = [b"".join(pieces)], 0
    if written == size:
        return
    for piece in pieces:  # the disk is about to be full: what is left goes as far as it can
        rest = memoryview(piece)[written:]
        written = max(0, written - len(piece))
        while rest:
            rest = rest[file.write(rest) or 0 :]


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
