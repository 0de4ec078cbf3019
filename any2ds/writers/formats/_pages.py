"""Where in a parquet file each value of its column of files lies, so that one can be read without its row group.

Libraries read whole row groups. As we write them, files lie in data pages as they are: the length of each (4 bytes,
little-endian), then its bytes (encoding PLAIN, no compression). The header of a page is a struct of Thrift's compact
protocol, PageHeader of parquet-format's parquet.thrift.
"""

from __future__ import annotations

import struct
import sys
from array import array
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq

from any2ds.writers.formats._wire import LENGTH, reader_of, varint_at

_HEADER = 256  # bytes; a header without statistics has less
_DEEPEST = 3  # structs in structs
_TRUE, _FALSE, _I16, _I64, _BINARY, _STRUCT = 1, 2, 4, 6, 8, 12  # types of the compact protocol
_TYPE, _SIZE, _STORED_SIZE, _DATA = 1, 2, 3, 5  # fields of PageHeader; of DataPageHeader:
_VALUES, _ENCODING, _LEVELS = 1, 2, 3
_PAGE_HEADER = {_TYPE, _SIZE, _STORED_SIZE, _DATA}  # with a checksum it has one field more
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3


def places_of(path: Path, column: str) -> bytes:
    """Start and size of each value of a column that is not null, as unsigned 64-bit integers, little-endian.

    Empty where values do not lie in the file as they are, as in files of other tools: compressed, encoded otherwise, or
    with checksums that a reader should compare. Raises what pyarrow and the system raise.
    """
    with path.open("rb", buffering=0) as file, pq.ParquetFile(path) as parquet:
        names = {parquet.schema.column(n).path: n for n in range(parquet.metadata.num_columns)}
        number = names.get(column, names.get(f"{column}.bytes"))
        if number is None or parquet.schema.column(number).max_repetition_level:
            return b""
        has_levels = parquet.schema.column(number).max_definition_level > 0
        found = array("Q")
        try:
            for group in range(parquet.num_row_groups):
                found += _places_in(file, parquet.metadata.row_group(group).column(number), has_levels)
        except (_OfAnotherForm, struct.error, KeyError, TypeError):  # the last three of garbled headers
            return b""
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


class _OfAnotherForm(Exception):
    pass


def _places_in(file: BinaryIO, chunk: Any, has_levels: bool) -> array[int]:
    if chunk.compression != "UNCOMPRESSED" or chunk.has_dictionary_page or chunk.physical_type != "BYTE_ARRAY":
        raise _OfAnotherForm
    found, values = array("Q"), 0
    at = chunk.data_page_offset
    stop = at + chunk.total_compressed_size
    while at < stop:
        file.seek(at)
        header, size = _header(file.read(_HEADER))
        about = header.get(_DATA)
        if header.keys() != _PAGE_HEADER or header[_TYPE] != _DATA_PAGE or not isinstance(about, dict):
            raise _OfAnotherForm
        if about[_ENCODING] != _PLAIN or header[_SIZE] != header[_STORED_SIZE]:
            raise _OfAnotherForm
        at += size
        end = at + header[_STORED_SIZE]
        if has_levels:
            if about[_LEVELS] != _RLE:
                raise _OfAnotherForm
            at += LENGTH.size + _length_at(file, at)
        while at < end:
            length = _length_at(file, at)
            at += LENGTH.size
            found.extend((at, length))
            at += length
        if at != end:
            raise _OfAnotherForm
        values += about[_VALUES]
    if at != stop or values != chunk.num_values:
        raise _OfAnotherForm
    return found


def _length_at(file: BinaryIO, at: int) -> int:
    file.seek(at)
    (length,) = LENGTH.unpack(file.read(LENGTH.size))
    return int(length)


def _header(content: bytes) -> tuple[dict[int, Any], int]:
    """The fields of the struct at the beginning, by their numbers, and how many bytes it takes."""
    try:
        return _struct(content, 0, _DEEPEST)
    except (ValueError, IndexError, KeyError) as error:
        raise _OfAnotherForm from error


def _struct(content: bytes, at: int, deepest: int) -> tuple[dict[int, Any], int]:
    if not deepest:
        raise ValueError("structs in structs")
    read, size = reader_of(content), len(content)
    found: dict[int, Any] = {}
    number = 0
    while head := content[at]:
        at += 1
        kind = head & 0x0F
        if not head >> 4:
            raise ValueError("a field that is none of these structs")
        number += head >> 4
        if kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        elif _I16 <= kind <= _I64:
            zigzag, at = varint_at(read, at, size)
            found[number] = zigzag >> 1 ^ -(zigzag & 1)
        elif kind == _BINARY:
            length, at = varint_at(read, at, size)
            at += length
        elif kind == _STRUCT:
            found[number], at = _struct(content, at, deepest - 1)
        else:
            raise ValueError(f"a field of type {kind}")
    return found, at + 1
