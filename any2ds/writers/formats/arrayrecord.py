"""Writes shards as ArrayRecord files of `tf.train.Example`, which Grain reads in any order."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, OptionError, access_text, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.storage.disk.regular import open_regular
from any2ds.writers.contract import ALL_FIELDS, Fields, ShardData
from any2ds.writers.formats._records import ExampleWriter, RecordDecoder, files_in, key_of
from any2ds.writers.formats._shard import BaseShard, LocalData, check_count, check_key, decoder_of

if sys.platform == "win32":
    raise OptionError("arrayrecord needs Linux or macOS: its library does not support Windows; use tfrecord")

from array_record.python.array_record_module import ArrayRecordReader
from array_record.python.array_record_module import ArrayRecordWriter as _Writer

_OPTIONS = "group_size:1,uncompressed"  # each record can be had by itself; media are compressed already
_ONE_BY_ONE = "readahead_buffer_size:0,max_parallelism:0"  # else each of many threads reads 16 MB ahead


class ArrayrecordShard(BaseShard):
    """Records by number, through the library, which reads a single one in the calling thread.

    It gives several at once to a pool of threads: that takes three times as long, and a forked process lacks them. It
    has hashes of everything and knows its end: of files cut or garbled in 20 000 ways none was read as another one.
    """

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None:
        self._data = data  # which keeps a copy on this machine alive
        self._decoder = decoder_of(RecordDecoder, fields)
        path = data.local()
        try:
            with open_regular(path):  # the system's own word, if it says no; the library has none
                pass
            self._file = ArrayRecordReader(str(path), _ONE_BY_ONE)
            if not self._file.ok():
                self._file.close()  # says why
            self._count = int(self._file.num_records())
        except (OSError, RuntimeError) as error:
            raise DamagedShard(access_text(error)) from error
        check_count(data, self._count)
        if data.key_start and self._count:
            check_key(data, key_of(self._record(0)))

    def __len__(self) -> int:
        return self._count

    def files(self, number: int) -> tuple[str, dict[str, StoredBody]]:
        key, files = files_in(self._record(number))
        return key, {ext: StoredBody.of(content) for ext, content in files.items()}

    def row(self, number: int) -> dict[str, Any]:
        return self._decoder.row(self._record(number))

    def _record(self, number: int) -> bytes:
        try:
            (record,) = self._file.read(number, number + 1)
        except (RuntimeError, IndexError, ValueError) as error:
            raise DamagedShard(error_text(error)) from error
        return bytes(record)


class ArrayrecordWriter(ExampleWriter):
    extension = "arrayrecord"
    shard = ArrayrecordShard

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        super().__init__(metadata, options.data_column)
        self._path, self._count, self._closed = path, 0, False
        self._file = _Writer(str(path), _OPTIONS)

    def _put(self, head: bytes, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        """The library takes a record as a whole: twice its size is in memory for a moment."""
        self._file.write(b"".join((head, *chunks)))
        self._count += 1

    def close(self) -> None:
        """Raises OSError if the file has not got all its records: to the library, one badly closed is empty."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._file.close()
        count = len(ArrayrecordShard(LocalData(self._path)))
        if count != self._count:
            message = f"it has {count} records, and {self._count} were written"
            raise OSError(errno.EIO, message, str(self._path))


PART = ArrayrecordWriter
