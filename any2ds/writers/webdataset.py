"""Writes shards as tar files in the order that webdataset reads: all members of a sample side by side."""

from __future__ import annotations

import tarfile
from pathlib import Path

from any2ds.metadata import MetadataTable
from any2ds.types import Sample
from any2ds.writers._members import members

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_NAME = 100  # bytes that the name field holds
_MOST = 8**11  # sizes from here on need another notation

# POSIX.1-1988 ustar. What never changes: owner 0, mode 0644 and time 0, so that the same samples give the same bytes.
_OWNER = b"0000644\x00" + 2 * b"0000000\x00"
_TIME = b"00000000000\x00"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\x00")
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")


class WebdatasetWriter:
    extension = "tar"
    holds_metadata = False
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable) -> None:
        self._metadata = metadata
        self._file = path.open("wb", buffering=1 << 18)

    def write(self, sample: Sample) -> None:
        write = self._file.write
        for name, size, chunks in members(sample, self._metadata):
            write(header(name, size))
            for chunk in chunks:
                write(chunk)
            if left := size % _BLOCK:
                write(_ZEROS[left:])

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        with self._file as file:
            file.write(2 * _ZEROS)
            file.write(bytes(-file.tell() % tarfile.RECORDSIZE))


def header(name: str, size: int) -> bytes:
    """The block before a member; `tarfile` makes the rare one with a long name or a size of 8 GiB and more."""
    encoded = name.encode()
    if len(encoded) > _NAME or size >= _MOST:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT)
    digits = b"%011o\x00" % size
    checksum = b"%06o\x00 " % (_FIXED_SUM + sum(encoded) + sum(digits))
    return b"".join((encoded.ljust(_NAME, b"\x00"), _OWNER, digits, _TIME, checksum, _REST))


PART = WebdatasetWriter
