"""A look at the files of a list before the start: those that are no lists are refused in words, all at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.compression import kind_of
from any2ds.core.errors import InputError, MissingColumns, ReadError, WrongFormat, redacted
from any2ds.readers.bad_rows import excerpt
from any2ds.readers.casts import cast_each, decoded
from any2ds.readers.contract import Columns
from any2ds.readers.formats._paths import names_with_paths
from any2ds.readers.formats._text import is_text_or_binary, one_line
from any2ds.readers.inputs import File
from any2ds.storage.stores import is_local

_MOST_FILES = 10_000  # that are looked at; of more, files at equal distances
_MOST_REMOTE_FILES = 200  # each of which takes several requests
_MOST_NAMED = 10
_HEAD = 1 << 16  # bytes
_AT_ONCE = 16  # files
_FIRST_ROWS = 100  # whose texts are compared with the type of the first list
_POINTER = b"version https://git-lfs"
_PAGES = (b"<!doctype", b"<html", b"<?xml", b"<error", b"<head", b"<body")


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a file cannot be read."""

    file: File
    reason: str
    is_told_by_reading: bool = False  # in other words, with the column that would do


def refuse_unreadable(files: Sequence[File], columns: Columns) -> None:
    """Raises InputError that names all of `files` that are no lists, or lack a column that each file must have, or
    whose columns have types that do not go with those of the first file."""
    is_here = all(file.file is None or is_local(file.file.fs) for file in files)
    looked_at = files[:: -(-len(files) // (_MOST_FILES if is_here else _MOST_REMOTE_FILES)) or 1]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-look") as pool:
        schemas = list(pool.map(partial(_looked_at, columns=columns, is_alone=len(files) == 1), looked_at))
        first = schemas[0] if schemas else None
        reasons = [""] * len(schemas)
        if isinstance(first, pa.Schema):
            reasons = list(pool.map(partial(_other_types, first, columns=columns), schemas, looked_at))
    faults = [found for found in schemas if isinstance(found, _Fault)]
    faults += [_Fault(file, reason) for file, reason in zip(looked_at, reasons, strict=True) if reason]
    if not faults or (faults[0].file is files[0] and len(faults) == 1 and faults[0].is_told_by_reading):
        return
    if len(files) == 1:
        raise InputError(f"{files[0].description}: {faults[0].reason}")
    shown = "".join(f"\n  {redacted(fault.file.name)}: {fault.reason}" for fault in faults[:_MOST_NAMED])
    more = f"\n  and {len(faults) - _MOST_NAMED:,} more" * (len(faults) > _MOST_NAMED)
    raise InputError(
        f"{len(faults):,} of {len(looked_at):,} lists cannot be read; mend them, or leave them out:{shown}{more}"
    )


def _looked_at(file: File, columns: Columns, is_alone: bool) -> _Fault | pa.Schema | None:
    """The fault of a file, or its schema if it is Parquet. Reading tells what is wrong with a text that `is_alone`."""
    if file.file is None or file.part is not None:
        return None
    try:
        if not file.file.has_ranges:
            return None
        head = file.file.ranges([0], [_HEAD])[0]
    except Exception:  # of any file system: what cannot be looked at is told when it is read
        return None
    start = head[:512].lstrip().lower()
    if head.startswith(_POINTER):
        return _Fault(file, "this is a Git-LFS pointer, not the file itself: `git lfs pull` brings that")
    if start.startswith(_PAGES):
        return _Fault(file, f"this is a web page or the error of a server, not a list: {excerpt(head[:200], 60)!r}")
    if file.compression is not None:
        is_compressed = file.is_compression_given or file.compression == "br" or kind_of(head) is not None
        return None if is_compressed or not head else _Fault(file, f"it is not compressed as {file.compression}")
    if file.format == "parquet":
        return _of_parquet(file, head, columns)
    return None if is_alone else _of_text(file, head, columns)


def _of_parquet(file: File, head: bytes, columns: Columns) -> _Fault | pa.Schema | None:
    assert file.file is not None
    if not head.startswith(b"PAR1"):
        what = f"it begins with {excerpt(head[:200], 60)!r}" if head else "it is empty"
        return _Fault(file, f"this is not Parquet: {what}")
    try:
        with closing(file.file.open(True)) as stream, pq.ParquetFile(stream, pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
    except Exception as error:
        if isinstance(error, (pa.ArrowException, EOFError)) or (isinstance(error, OSError) and error.errno is None):
            return _Fault(file, f"this Parquet file is cut off or damaged: {one_line(error)}")
        return None  # an error of a file system, which is told when the file is read
    existing = names_with_paths(schema, columns.required)
    missing = [name for name in columns.required if name not in existing]
    return _no_column(file, missing, schema.names) if missing else schema


def _of_text(file: File, head: bytes, columns: Columns) -> _Fault | None:
    is_cut = len(head) == _HEAD
    with ExitStack() as opened:
        try:
            reader = file.reader()
            stream = _Beginning(head) if is_cut else io.BytesIO(head)
            required = Columns(columns.url, expected_hashes=columns.expected_hashes, urls=columns.urls)
            next(reader.batches(file.content(stream, opened, reader.seekable), required, None), None)
        except MissingColumns as error:
            if is_cut and not file.is_separated:  # a key may occur further on
                return None
            return _no_column(file, error.missing, error.existing)
        except WrongFormat as error:
            hint = f": --input_format={error.format} reads it" if error.format else ""
            return _Fault(file, f"{error.reason}{hint}", True)
        except (InputError, ReadError):  # which may be because this is the beginning only
            pass
    return None


class _Beginning(io.BytesIO):
    """The first bytes of a longer file, which does not end behind them: a read raises EOFError there."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data and size:
            raise EOFError("only the beginning was looked at")
        return data

    read1 = read


def _no_column(file: File, names: Sequence[str], existing: Sequence[str]) -> _Fault:
    absent = ", ".join(map(repr, dict.fromkeys(names)))
    return _Fault(file, f"no column {absent}; columns that exist: {excerpt(', '.join(existing))}", True)


def _other_types(first: pa.Schema, other: pa.Schema | _Fault | None, file: File, columns: Columns) -> str:
    """Which additional column is text here that does not fit its type in the first file; empty if there is none."""
    if not isinstance(other, pa.Schema):
        return ""
    for name in columns.others:
        if name in columns.types or name not in first.names or name not in other.names:
            continue
        own, before = other.field(name).type, first.field(name).type
        if _is_text(own) and not _takes_text(before) and not _fits(file, name, before):
            return (
                f"the column {name!r} is {own}, and {before} in the first list: --column_types={name}:string reads both"
            )
    return ""


def _takes_text(type: pa.DataType) -> bool:
    """Whether any text fits a column: one of nulls alone, which no value has given a type, becomes text."""
    return _is_text(type) or is_text_or_binary(type) or bool(pa.types.is_null(type))


def _fits(file: File, name: str, type: pa.DataType) -> bool:
    """Whether a text of the first ones of a column, as far as they can be read, is a value of `type`, such as a number.

    Others among them become bad rows.
    """
    assert file.file is not None
    try:
        with closing(file.file.open(True)) as stream, pq.ParquetFile(stream, pre_buffer=False) as parquet:
            batch = next(parquet.iter_batches(_FIRST_ROWS, columns=[name], use_threads=False), None)
    except Exception:  # of a file system, or of a damaged file: told when it is read
        return True
    if batch is None:
        return True
    values = decoded(batch.column(0))
    try:
        _, misfits = cast_each(values, type)
    except pa.ArrowException:
        return False
    texts = len(values) - int(values.null_count)
    return not texts or len(misfits) < texts


def _is_text(type: pa.DataType) -> bool:
    kind = type.value_type if pa.types.is_dictionary(type) else type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
