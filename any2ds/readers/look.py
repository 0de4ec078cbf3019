"""A look at the files of a list before the start: those that are no lists are refused in words, all at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from any2ds.core.compression import kind_of
from any2ds.core.errors import InputError, MissingColumns, ReadError, WrongFormat, redacted
from any2ds.core.tables import is_text
from any2ds.readers.arrow import ARROW, is_text_or_binary
from any2ds.readers.bad_rows import excerpt
from any2ds.readers.contract import Field, Wanted
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


class _Fault(NamedTuple):
    """Why a file cannot be read."""

    file: File
    reason: str
    is_told_by_reading: bool = False  # in other words, with the column that would do


def refuse_unreadable(files: Sequence[File], wanted: Wanted, fields: Sequence[Field]) -> None:
    """Raises InputError that names all of `files` that are no lists, or lack a column of `wanted.required`, or whose
    columns have types that do not go with those of the first file."""
    is_here = all(file.file is None or is_local(file.file.fs) for file in files)
    looked_at = files[:: -(-len(files) // (_MOST_FILES if is_here else _MOST_REMOTE_FILES)) or 1]
    look = partial(_looked_at, wanted=wanted, is_alone=len(files) == 1)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-look") as pool:
        findings = list(pool.map(look, looked_at))
    faults = [fault for fault in findings if isinstance(fault, _Fault)]
    if findings and isinstance(first := findings[0], pa.Schema):
        others = zip(looked_at, findings, strict=True)
        faults += [fault for file, found in others if (fault := _other_type(file, found, first, fields))]
    if not faults or (faults[0].file is files[0] and len(faults) == 1 and faults[0].is_told_by_reading):
        return
    if len(files) == 1:
        raise InputError(f"{files[0].description}: {faults[0].reason}")
    shown = "".join(f"\n  {redacted(fault.file.name)}: {fault.reason}" for fault in faults[:_MOST_NAMED])
    more = f"\n  and {len(faults) - _MOST_NAMED:,} more" * (len(faults) > _MOST_NAMED)
    raise InputError(
        f"{len(faults):,} of {len(looked_at):,} lists cannot be read; mend them, or leave them out:{shown}{more}"
    )


def _looked_at(file: File, wanted: Wanted, is_alone: bool) -> _Fault | pa.Schema | None:
    """The fault of a file, or its schema if it is Parquet. Reading tells what is wrong with a text that `is_alone`."""
    if file.file is None or file.pieces is not None:
        return None
    wanted = wanted.without(file.partitions)
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
    if file.format == "parquet" and not head.startswith(b"PAR1"):
        what = f"it begins with {excerpt(head[:200], 60)!r}" if head else "it is empty"
        return _Fault(file, f"this is not Parquet: {what}")
    if is_alone and file.format != "parquet":
        return None
    try:
        return _begun(file, head, wanted)
    except MissingColumns as error:
        is_further_on = len(head) == _HEAD and file.format in ("json", "jsonl")  # a key may occur there
        return None if is_further_on else _no_column(file, error.missing, error.existing)
    except WrongFormat as error:
        hint = f": --input_format={error.format} reads it" if error.format else ""
        return _Fault(file, f"{error.reason}{hint}", True)
    except ReadError as error:  # of a text maybe because this is its beginning; of a file system without a place
        if file.format == "parquet" and error.where:
            return _Fault(file, f"this Parquet file is cut off or damaged: {error.reason}")
    except InputError:  # which is told when it is read
        pass
    return None


def _begun(file: File, head: bytes, wanted: Wanted) -> pa.Schema | None:
    """The schema of a Parquet file; of a text that begins with `head`, the first rows are read."""
    with ExitStack() as opened:
        if file.format == "parquet":
            schema: pa.Schema = file.row_groups(opened, wanted).schema
            return schema
        if len(head) == _HEAD:  # behind a whole line
            head = head[: head.rfind(b"\n") + 1] or (b"" if file.is_separated else head)
        reader = file.reader()
        next(reader.blocks(file.content(io.BytesIO(head), opened, reader.seekable), wanted), None)
    return None


def _no_column(file: File, names: Sequence[str], existing: Sequence[str]) -> _Fault:
    absent = ", ".join(map(repr, dict.fromkeys(names)))
    return _Fault(file, f"no column {absent}; columns that exist: {excerpt(', '.join(existing))}", True)


def _other_type(
    file: File, other: pa.Schema | _Fault | None, first: pa.Schema, fields: Sequence[Field]
) -> _Fault | None:
    """A fault if an additional column is text here that does not fit its type in the first file."""
    for field in fields:
        name = field.source
        if field.kind or field.type or not isinstance(other, pa.Schema) or name not in {*first.names} & {*other.names}:
            continue
        own, before = other.field(name).type, first.field(name).type
        takes_text = _is_text(before) or is_text_or_binary(before) or pa.types.is_null(before)
        if _is_text(own) and not takes_text and not _fits(file, field, before):
            return _Fault(
                file,
                f"the column {name!r} is {own}, and {before} in the first list:"
                f" --column_types={name}:string reads both",
            )
    return None


def _fits(file: File, field: Field, type: pa.DataType) -> bool:
    """Whether a text of the first ones of a column, as far as they can be read, is a value of `type`, such as a number.

    Others among them become bad rows.
    """
    try:
        with ExitStack() as opened:
            groups = file.row_groups(opened, Wanted.only(field.source))
            block = next(groups.blocks(*range(len(groups.sizes))), None)
    except (InputError, ReadError):  # which are told when it is read
        return True
    if block is None:
        return True
    values = block.values[field.source][:_FIRST_ROWS]
    try:
        _, misfits = ARROW.convert(values, type, field)
    except ReadError:
        return False
    return len(misfits) < max(1, int(len(values) - values.null_count))


def _is_text(type: pa.DataType) -> bool:
    kind = type.value_type if pa.types.is_dictionary(type) else type
    return is_text(kind)
