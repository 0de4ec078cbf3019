"""Where in a parquet file each value of its column of files lies, so that one can be read without its row group.

Libraries read whole row groups. Of a file on this machine the place of each value is looked up once (`places_of`); of
one in a store the page index says which page has a row (`Pages`). As we write them, files lie in data pages as they
are: the length of each (4 bytes, little-endian), then its bytes (encoding PLAIN, no compression). Page headers are a
struct of Thrift's compact protocol, PageHeader of parquet-format's parquet.thrift.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow.parquet as pq

from any2ds.core.errors import DamagedShard
from any2ds.writers.formats._wire import LENGTH, reader_of, varint_at

if TYPE_CHECKING:
    from any2ds.writers.contract import ShardData

_HEADER = 256  # bytes; a header without statistics has less
_DEEPEST = 3  # structs in structs, of a page header
_DEEPEST_OF_FOOTER = 10
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
    1,
    2,
    3,
    4,
    6,
    7,
    8,
    9,
    10,
    12,
)  # compact types
_TYPE, _SIZE, _STORED_SIZE, _CRC, _DATA, _DATA_2 = 1, 2, 3, 4, 5, 8  # fields of PageHeader; of DataPageHeader:
_VALUES, _ENCODING, _LEVELS = 1, 2, 3
_ENCODING_2, _DEFINITIONS, _REPETITIONS = 4, 5, 6  # of DataPageHeaderV2; bytes of the levels
_PAGE_HEADER = {_TYPE, _SIZE, _STORED_SIZE, _DATA}  # with a checksum it has one field more
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
_ROW_GROUPS, _COLUMNS = 4, 1  # fields of FileMetaData and RowGroup; of ColumnChunk:
_META, _OFFSET_INDEX, _OFFSET_INDEX_SIZE = 3, 4, 5
_PHYSICAL, _ENCODINGS, _PATH, _CODEC, _DICTIONARY = 1, 2, 3, 4, 11  # of ColumnMetaData
_UNCOMPRESSED, _BYTE_ARRAY = 0, 6
_AS_THEY_ARE = frozenset({_PLAIN, _RLE})  # values and levels
_LOCATIONS = 1  # of OffsetIndex; of PageLocation:
_OFFSET, _PAGE_SIZE, _FIRST_ROW = 1, 2, 3
_TAIL = 1 << 16  # bytes in which most footers lie


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


class Pages:
    """The pages of a column of files, by the page index of the file (OffsetIndex of parquet.thrift)."""

    def __init__(self, groups: Sequence[Sequence[tuple[int, int, int]]], deepest: int) -> None:
        """Offset, size and first row of each page of each row group; `deepest` is the definition level of a value."""
        self._groups, self._deepest = groups, deepest
        self._firsts = [[first for _, _, first in pages] for pages in groups]

    @classmethod
    def of(cls, data: ShardData, column: str, schema: pq.ParquetSchema) -> Pages | None:
        """None where there is no page index, or values do not lie in the pages as they are."""
        names = {schema.column(n).path: n for n in range(len(schema))}
        path = next((path for path in (column, f"{column}.bytes") if path in names), None)
        if path is None or schema.column(names[path]).max_repetition_level:
            return None
        try:
            spans = []
            for group in _footer(data)[_ROW_GROUPS]:
                chunk = group[_COLUMNS][names[path]]
                about = chunk[_META]
                is_plain = about[_CODEC] == _UNCOMPRESSED and about[_PHYSICAL] == _BYTE_ARRAY
                is_plain &= _AS_THEY_ARE.issuperset(about[_ENCODINGS]) and _DICTIONARY not in about
                if b".".join(about[_PATH]).decode() != path or not is_plain:
                    return None
                spans.append((chunk[_OFFSET_INDEX], chunk[_OFFSET_INDEX_SIZE]))
            groups = []
            for (buffer, at), (_, size) in zip(data.read_many(spans), spans, strict=True):
                locations = _struct(buffer[at : at + size], 0, _DEEPEST)[0][_LOCATIONS]
                groups.append([(page[_OFFSET], page[_PAGE_SIZE], page[_FIRST_ROW]) for page in locations])
        except (ValueError, IndexError, KeyError, TypeError, struct.error):  # of another form, or garbled
            return None
        return cls(groups, schema.column(names[path]).max_definition_level)

    def span(self, group: int, row: int) -> tuple[int, int]:
        """Start and size of the page that has a row of a row group."""
        start, size, _ = self._groups[group][bisect_right(self._firsts[group], row) - 1]
        return start, size

    def value(self, page: bytes, group: int, row: int) -> bytes | None:
        """The value of a row of a row group, of which `page` is the page. Raises DamagedShard."""
        try:
            before = row - self._firsts[group][bisect_right(self._firsts[group], row) - 1]
            at, levels = self._opened(page)
            if self._deepest:
                known = _levels(levels, self._deepest.bit_length(), before + 1)
                if known[before] != self._deepest:
                    return None
                before = known.count(self._deepest) - 1
            for _ in range(before):
                at += LENGTH.size + LENGTH.unpack_from(page, at)[0]
            (size,) = LENGTH.unpack_from(page, at)
            at += LENGTH.size
            if at + size > len(page):
                raise _OfAnotherForm
            return page[at : at + size]
        except (_OfAnotherForm, ValueError, IndexError, KeyError, TypeError, struct.error) as error:
            raise DamagedShard("a page of its files is not what the page index says") from error

    def _opened(self, page: bytes) -> tuple[int, bytes]:
        """Where the values of a page begin, and its definition levels."""
        header, at = _header(page[:_HEADER])
        if header[_SIZE] != header[_STORED_SIZE] or at + header[_SIZE] != len(page):
            raise _OfAnotherForm
        if _CRC in header and zlib.crc32(page[at:]) != header[_CRC] & 0xFFFFFFFF:
            raise DamagedShard("the checksum of a page of its files is wrong")
        about = header[_DATA if header[_TYPE] == _DATA_PAGE else _DATA_2]
        if header[_TYPE] == _DATA_PAGE:
            if about[_ENCODING] != _PLAIN or (self._deepest and about[_LEVELS] != _RLE):
                raise _OfAnotherForm
            size = LENGTH.unpack_from(page, at)[0] if self._deepest else 0
            at += LENGTH.size if self._deepest else 0
        else:
            if about[_ENCODING_2] != _PLAIN or about[_REPETITIONS]:
                raise _OfAnotherForm
            size = about[_DEFINITIONS]
        return at + size, page[at : at + size]


def _footer(data: ShardData) -> dict[int, Any]:
    """FileMetaData of parquet.thrift. Raises ValueError, or whatever garbled bytes lead to."""
    tail = data.read(max(0, data.size - _TAIL), min(data.size, _TAIL))
    (size,) = LENGTH.unpack_from(tail, len(tail) - 8)
    if size + 8 > data.size:
        raise ValueError("no footer")
    content = tail[-8 - size : -8] if size + 8 <= len(tail) else data.read(data.size - 8 - size, size)
    return _struct(content, 0, _DEEPEST_OF_FOOTER)[0]


def _levels(content: bytes, width: int, count: int) -> list[int]:
    """The first definition levels of a page, which has at least so many (runs and packed bits, as parquet has them)."""
    read, found, at = reader_of(content), list[int](), 0
    while len(found) < count:
        head, at = varint_at(read, at, len(content))
        if head & 1:  # groups of eight values, packed
            packed = int.from_bytes(content[at : at + (head >> 1) * width], "little")
            at += (head >> 1) * width
            found += [packed >> width * n & (1 << width) - 1 for n in range(min(8 * (head >> 1), count - len(found)))]
        else:
            found += [content[at]] * min(head >> 1, count - len(found))
            at += 1
    return found


def _header(content: bytes) -> tuple[dict[int, Any], int]:
    """The fields of the struct at the beginning, by their numbers, and how many bytes it takes."""
    try:
        return _struct(content, 0, _DEEPEST)
    except (ValueError, IndexError, KeyError) as error:
        raise _OfAnotherForm from error


def _struct(content: bytes, at: int, deepest: int) -> tuple[dict[int, Any], int]:
    if not deepest:
        raise ValueError("structs in structs")
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
        else:
            found[number], at = _value(content, at, kind, deepest)
    return found, at + 1


def _value(content: bytes, at: int, kind: int, deepest: int) -> tuple[Any, int]:
    read, size = reader_of(content), len(content)
    if _I16 <= kind <= _I64:
        zigzag, at = varint_at(read, at, size)
        return zigzag >> 1 ^ -(zigzag & 1), at
    if kind == _BINARY:
        length, at = varint_at(read, at, size)
        return content[at : at + length], at + length
    if kind == _STRUCT:
        return _struct(content, at, deepest - 1)
    if kind in (_LIST, _SET):
        head = content[at]
        count, at = (head >> 4, at + 1) if head >> 4 < 15 else varint_at(read, at + 1, size)
        values = []
        for _ in range(count):
            value, at = _value(content, at, head & 0x0F, deepest)
            values.append(value)
        return values, at
    if kind in (_TRUE, _FALSE, _BYTE):  # in lists
        return content[at], at + 1
    if kind == _DOUBLE:
        return struct.unpack_from("<d", content, at)[0], at + 8
    raise ValueError(f"a field of type {kind}")
