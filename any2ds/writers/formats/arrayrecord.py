"""Writes shards as ArrayRecord files of `tf.train.Example`, which Grain reads in any order."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from any2ds.config.options import OutputOptions
from any2ds.core.errors import DamagedShard, OptionError, access_text, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import StoredSample
from any2ds.writers.contract import Fields, ShardData
from any2ds.writers.formats._builder import check_key
from any2ds.writers.formats._records import ExampleWriter, RecordBuilder, key_of, stored_sample

if sys.platform == "win32":
    raise OptionError("arrayrecord needs Linux or macOS: its library does not support Windows; use tfrecord")

from array_record.python.array_record_module import ArrayRecordReader
from array_record.python.array_record_module import ArrayRecordWriter as _Writer

_OPTIONS = "group_size:1,uncompressed"  # each record can be had by itself; media are compressed already
_ONE_BY_ONE = "readahead_buffer_size:0,max_parallelism:0"  # else each of many threads reads 16 MB ahead


class ArrayrecordWriter(ExampleWriter):
    extension = "arrayrecord"

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
        with _opened(self._path) as file:
            count = file.num_records()
        if count != self._count:
            message = f"it has {count} records, and {self._count} were written"
            raise OSError(errno.EIO, message, str(self._path))

    @staticmethod
    def read(path: Path) -> Iterator[StoredSample]:
        try:
            with path.open("rb"):  # the system's own word, if it says no; the library has none
                pass
        except OSError as error:
            raise DamagedShard(access_text(error)) from error
        with _opened(path) as file:
            for _ in range(file.num_records()):
                yield stored_sample(file.read())

    @staticmethod
    def indexed(data: ShardData, fields: Fields) -> ArrayrecordShard:
        return ArrayrecordShard(data, fields)


class ArrayrecordShard:
    """Records by number, through the library, which reads a single one in the calling thread.

    It gives several at once to a pool of threads: that takes three times as long, and a forked process lacks them.
    """

    def __init__(self, data: ShardData, fields: Fields) -> None:
        self._data = data  # which keeps a copy on this machine alive
        self._build = RecordBuilder.of(fields)
        self._file = ArrayRecordReader(str(data.local()), _ONE_BY_ONE)
        if not self._file.ok():
            try:
                self._file.close()
            except RuntimeError as error:
                raise DamagedShard(error_text(error)) from error
        self._count = int(self._file.num_records())
        if data.samples is not None and self._count != data.samples:
            raise DamagedShard(f"it has {self._count:,} records, its statistics say {data.samples:,}")
        self._is_checked = not data.key_start

    def __len__(self) -> int:
        return self._count

    def keys(self) -> list[str]:
        return [str(self.get(number)["key"]) for number in range(self._count)]

    def get(self, number: int) -> dict[str, Any]:
        try:
            (record,) = self._file.read(number, number + 1)
        except (RuntimeError, IndexError, ValueError) as error:
            raise DamagedShard(error_text(error)) from error
        if not self._is_checked:  # the first that is read
            check_key(self._data, key_of(record))
            self._is_checked = True
        return self._build(record)

    def get_many(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.get(number) for number in numbers]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The library's reader. Raises DamagedShard for what cannot be opened, or be read inside of the block.

    The library has hashes of everything and knows its end: of files cut or garbled in 20 000 ways none was read as
    another one, and none took the process with it. What it cannot open has no records; it says why
    when it is closed.
    """
    try:
        file = ArrayRecordReader(str(path), _ONE_BY_ONE)
        try:
            if not file.ok():
                file.close()
            yield file
        finally:
            file.close()
    except (RuntimeError, IndexError) as error:
        raise DamagedShard(error_text(error)) from error


PART = ArrayrecordWriter
