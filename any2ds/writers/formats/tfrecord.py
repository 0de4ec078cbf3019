"""Writes shards as TFRecord files of `tf.train.Example`, and reads them, without TensorFlow.

A record is its length (8 bytes, little-endian), the masked CRC32C of that, the data, and the masked CRC32C of the data
(tensorflow/core/lib/io/record_writer.h). Nothing marks the end of a file, and a file without records is empty.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from google_crc32c import extend, value

from any2ds.config.options import OutputOptions
from any2ds.core.errors import DamagedShard, UsageError, access_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import StoredSample
from any2ds.writers.contract import Fields, ShardData
from any2ds.writers.formats import _tarindex
from any2ds.writers.formats._records import ExampleWriter, RecordBuilder, key_of, stored_sample
from any2ds.writers.formats._spans import SpanShard
from any2ds.writers.formats._wire import reader_of

_PIECE = 1 << 20  # bytes read at once
_IN_MEMORY = 16 << 20  # bytes of a record up to which it is read as a whole
_LENGTH, _CRC, _HEADER = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<QI")
_GZIP = b"\x1f\x8b"


INDEX_END = ".tfrecord.idx"
"""The file beside the data that says where each record begins, and at last where the file ends, as that of a tar does
(`_tarindex`). It is empty where the data are compressed, since no record can be had by itself then."""


class TfrecordWriter(ExampleWriter):
    extension = "tfrecord"
    sidecars = (INDEX_END,)

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        super().__init__(metadata, options.data_column)
        self._raw = path.open("wb", buffering=1 << 18)
        self._file: IO[bytes] = self._raw
        self._index_path, self._index, self._at = path.with_name(f"{path.stem}{INDEX_END}"), array("Q"), 0
        if options.tfrecord_compression == "gzip":  # without name and time: same samples, same bytes
            self._file = cast(IO[bytes], gzip.GzipFile("", "wb", compresslevel=6, fileobj=self._raw, mtime=0))

    def _put(self, head: bytes, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        write = self._file.write
        length = _LENGTH.pack(len(head) + size)
        write(length + masked(value(length)) + head)
        crc = value(head)
        for chunk in chunks:
            crc = extend(crc, chunk if isinstance(chunk, bytes) else bytes(chunk))
            write(chunk)
        write(masked(crc))
        self._index.append(self._at)
        self._at += _HEADER.size + len(head) + size + _CRC.size

    def close(self) -> None:
        with self._raw, self._file:
            self.flush()
        self._index.append(self._at)
        self._index_path.write_bytes(_tarindex.pack(self._index) if self._file is self._raw else b"")

    @staticmethod
    def make_sidecars(path: Path) -> Mapping[str, bytes]:
        return {INDEX_END: _index_of(path)}

    @staticmethod
    def read(path: Path) -> Iterator[StoredSample]:
        """A file that ends between two records is a shorter one: nobody can tell."""
        try:
            with path.open("rb") as raw, _records_in(raw) as records:
                for read, size in records:
                    yield stored_sample(read, size)
        except (OSError, EOFError, zlib.error) as error:
            raise DamagedShard(access_text(error)) from error

    @staticmethod
    def indexed(data: ShardData, fields: Fields) -> TfrecordShard:
        index = data.index(INDEX_END, _index_of)
        if not index:
            if not _is_gzip(data.read(0, min(_HEADER.size, data.size))):
                raise DamagedShard("its index is empty")
            raise UsageError("gzip-compressed tfrecord has no samples by number: make it without compression")
        try:
            return TfrecordShard(data, _tarindex.unpack(index), fields)
        except ValueError as error:
            raise DamagedShard(f"its index cannot be read: {error}") from error


class TfrecordShard(SpanShard):
    """Records by number; the checksum of each is compared."""

    def __init__(self, data: ShardData, offsets: Sequence[int], fields: Fields) -> None:
        super().__init__(data, offsets)
        self._build = RecordBuilder.of(fields)

    def sample(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        record = buffer[start + _HEADER.size : stop - _CRC.size]
        length, _ = _HEADER.unpack_from(buffer, start)
        if length != len(record) or masked(value(record)) != buffer[stop - _CRC.size : stop]:
            raise DamagedShard(f"a record of {length:,} bytes is garbled")
        return self._build(record)

    def key(self, buffer: bytes, start: int, stop: int) -> str:
        return key_of(buffer[start + _HEADER.size : stop - _CRC.size])


def _index_of(path: Path) -> bytes:
    offsets = array("Q")
    with path.open("rb", buffering=_HEADER.size) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while header := file.read(_HEADER.size):
            if len(header) < _HEADER.size or masked(value(header[:8])) != header[8:]:
                if header[:2] == _GZIP and not at:
                    return b""
                raise DamagedShard(f"no record begins at byte {at:,}, or its length is garbled")
            offsets.append(at)
            at += _HEADER.size + _HEADER.unpack(header)[0] + _CRC.size
            file.seek(at)
    if at != size:
        raise DamagedShard(f"its last record ends at byte {at:,}, and the file at {size:,}")
    offsets.append(at)
    return _tarindex.pack(offsets)


def _is_gzip(start: bytes) -> bool:
    """By the first bytes of a file: its first length may begin as a gzip file does; the CRC of that does not."""
    return start[:2] == _GZIP and masked(value(start[:8])) != start[8:]


def masked(crc: int) -> bytes:
    """A CRC as it is stored: turned and moved, because a CRC of what has CRCs in it tells little."""
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


_Record = tuple[Callable[[int, int], bytes], int]  # reads in it; its size in bytes


@contextlib.contextmanager
def _records_in(raw: IO[bytes]) -> Iterator[Iterator[_Record]]:
    start = raw.read(_HEADER.size)
    raw.seek(0)
    if _is_gzip(start):
        with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
            yield _records(cast(IO[bytes], stream), None)
    else:
        yield _records(raw, os.fstat(raw.fileno()).st_size)


def _records(stream: IO[bytes], size: int | None) -> Iterator[_Record]:
    """The records of a file of `size` bytes, in which one can seek; else (None) large ones wait in a temporary file.

    Each can be read until the next is asked for.
    """
    at = 0
    while header := stream.read(_HEADER.size):
        length, _ = _HEADER.unpack(header) if len(header) == _HEADER.size else (0, None)
        if masked(value(header[:8])) != header[8:]:
            raise DamagedShard(f"no record begins at byte {at}, or its length is garbled")
        start, stop = at + _HEADER.size, at + _HEADER.size + length
        if size is not None and stop + _CRC.size > size:
            raise DamagedShard(f"the record at byte {at} has {length} bytes, and the file ends at {size}")
        if length <= _IN_MEMORY:
            record = stream.read(length)
            _check(len(record) == length and masked(value(record)) == stream.read(_CRC.size), at)
            yield reader_of(record), length
        elif size is not None:
            _check(_crc_of(stream, length) == stream.read(_CRC.size), at)
            yield _reader_in(stream, start), length
            stream.seek(stop + _CRC.size)
        else:
            with tempfile.TemporaryFile(prefix="any2ds-") as waiting:
                _check(_crc_of(stream, length, waiting) == stream.read(_CRC.size), at)
                yield _reader_in(waiting, 0), length
        at = stop + _CRC.size


def _check(is_right: bool, at: int) -> None:
    if not is_right:
        raise DamagedShard(f"the record at byte {at} is garbled, or the file ends in it")


def _crc_of(stream: IO[bytes], length: int, copy: IO[bytes] | None = None) -> bytes:
    """The masked CRC of the next `length` bytes, or of what there is of them; they are written to `copy`."""
    crc = 0
    while length and (piece := stream.read(min(length, _PIECE))):
        crc = extend(crc, piece)
        length -= len(piece)
        if copy is not None:
            copy.write(piece)
    return masked(crc)


def _reader_in(file: IO[bytes], start: int) -> Callable[[int, int], bytes]:
    def read(offset: int, size: int) -> bytes:
        file.seek(start + offset)
        return file.read(size)

    return read


PART = TfrecordWriter
