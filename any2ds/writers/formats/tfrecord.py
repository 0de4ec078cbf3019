"""Writes shards as TFRecord files of `tf.train.Example`, and reads them, without TensorFlow.

A record is its length (8 bytes, little-endian), the masked CRC32C of that, the data, and the masked CRC32C of the data
(tensorflow/core/lib/io/record_writer.h). Nothing marks the end of a file, and a file without records is empty.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from google_crc32c import extend, value

from any2ds.config.options import OutputOptions
from any2ds.core.errors import DamagedShard, access_text
from any2ds.core.metadata import MetadataTable
from any2ds.storage.disk.regular import open_regular
from any2ds.writers.contract import ALL_FIELDS, Fields, ShardData
from any2ds.writers.formats import _offsets
from any2ds.writers.formats._records import ExampleWriter, RecordDecoder, files_in
from any2ds.writers.formats._shard import SpanShard, decoder_of

_LENGTH, _CRC, _HEADER = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<QI")

INDEX_END = ".tfrecord.idx"
"""The file beside the data that says where each record begins, and at last where the file ends, as that of a tar does
(`_offsets`)."""


class TfrecordShard(SpanShard):
    """Records by number; the checksum of each is compared."""

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None:
        try:
            super().__init__(data, _offsets.unpack(data.index(INDEX_END, _index_of)))
        except ValueError as error:
            raise DamagedShard(f"its index cannot be read: {error}") from error
        self._decoder = decoder_of(RecordDecoder, fields)

    def files_in(self, buffer: bytes, start: int, stop: int) -> tuple[str, dict[str, bytes]]:
        return files_in(self._record(buffer, start, stop))

    def row_in(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        return self._decoder.row(self._record(buffer, start, stop))

    @staticmethod
    def _record(buffer: bytes, start: int, stop: int) -> bytes:
        record = buffer[start + _HEADER.size : stop - _CRC.size]
        length, _ = _HEADER.unpack_from(buffer, start)
        if length != len(record) or masked(value(record)) != buffer[stop - _CRC.size : stop]:
            raise DamagedShard(f"a record of {length:,} bytes is garbled")
        return record


def _index_of(path: Path) -> bytes:
    """The index of a file. One that ends between two records is a shorter one: nobody can tell. Raises DamagedShard."""
    try:
        with open_regular(path) as file:
            return _index_in(file)
    except OSError as error:
        raise DamagedShard(access_text(error)) from error


def _index_in(file: IO[bytes]) -> bytes:
    offsets = array("Q")
    size, at = file.seek(0, os.SEEK_END), 0
    while at < size:
        file.seek(at)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or masked(value(header[:8])) != header[8:]:
            raise DamagedShard(f"no record begins at byte {at:,}, or its length is garbled")
        offsets.append(at)
        at += _HEADER.size + _HEADER.unpack(header)[0] + _CRC.size
    if at != size:
        raise DamagedShard(f"its last record ends at byte {at:,}, and the file at {size:,}")
    offsets.append(at)
    return _offsets.pack(offsets)


def masked(crc: int) -> bytes:
    """A CRC as it is stored: turned and moved, because a CRC of what has CRCs in it tells little."""
    return _CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class TfrecordWriter(ExampleWriter):
    extension = "tfrecord"
    sidecars = (INDEX_END,)
    shard = TfrecordShard

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        super().__init__(metadata, options.data_column)
        self._file = path.open("wb", buffering=1 << 18)
        self._index_path, self._index, self._at = path.with_name(f"{path.stem}{INDEX_END}"), array("Q"), 0

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
        with self._file:
            self.flush()
        self._index.append(self._at)
        self._index_path.write_bytes(_offsets.pack(self._index))


PART = TfrecordWriter
