"""Turns what a person gives as url list into one stream of rows: which files it means, and what is read from each."""

from __future__ import annotations

import dataclasses
import glob
import io
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config import presets
from any2ds.config.hashes import hash_columns
from any2ds.config.options import Config, InputOptions
from any2ds.config.parsers import arrow_type, split_format
from any2ds.core import layout, plugins
from any2ds.core.digests import as_text
from any2ds.core.errors import Any2dsError, InputError, MissingColumns, OptionError, ReadError, WrongFormat, redacted
from any2ds.core.manifest import ListFile
from any2ds.core.metadata import EXPECTED_HASH, HASHES, reserved_columns
from any2ds.readers.bad_rows import BadRow, excerpt, split, until_bad_row, with_bad_rows
from any2ds.readers.compressed import CODECS, decompressed
from any2ds.readers.contract import Columns
from any2ds.readers.formats._objects import to_batches
from any2ds.readers.formats._text import BATCH_ROWS, NO_UTF8_IN_URL, one_line, require, sliced, to_text
from any2ds.readers.shuffle import RowGroup, mixed, shuffled
from any2ds.storage import folders
from any2ds.storage.folders import InputFile, stamps
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

STDIN = "-"
_OPENED_AT_ONCE = 8  # files whose row groups are looked up
_ALIASES = {"ndjson": "jsonl", "pq": "parquet"}


class Source:
    """The rows of a url list, which can be read once.

    `options.url_list` is a file, a folder, a glob or a list of these, local or on any fsspec file system; `-` is
    standard input, which is read once as it arrives, as are named pipes and `<(...)` of a shell. A folder means the
    files in it, at any depth, in the order of their names: those with an extension of a list (csv, tsv, json, jsonl,
    parquet, txt, also compressed), or all if none has one; with `input_format` those of this format, or all if none
    is. Datasets in it are passed over. From Python it can also be

    - a list of dicts: rows;
    - a list of strings: URLs, one row each. None, NaN, an empty string and a string without a scheme are rows that
      fail. It is a list of files, folders and globs instead if each string is an existing path or ends in an
      extension of a list, and none is an http(s) URL;
    - a list with a Path in it, or any list of strings if `input_format` is given: files, folders and globs;
    - an Arrow table, record batch or stream, or what can be had as one (a pandas or polars DataFrame): rows;
    - an Arrow or NumPy array of strings, or what can be had as one (a Series): URLs.

    A single string is never a URL to fetch: an http(s) URL is that of a list.

    Making it opens the first file and reads its first rows. So it raises UsageError for what can be known now: a file
    that is not there, a list without rows, an absent column, a missing library; and ReadError if the list is broken
    from its start.

    `hash_col` is the column of the hashes that are expected, if they are to be verified; `hashes` are the columns of
    those that are computed. A list of nothing but URLs (txt) has no columns: what is asked for is ignored with
    `ignores_columns`, and refused otherwise.
    """

    def __init__(
        self,
        options: InputOptions,
        hash_col: str | None = None,
        stores: Stores | None = None,
        hashes: Collection[str] = HASHES,
        ignores_columns: bool = False,
    ) -> None:
        self._from = _wanted(options, hash_col, hashes)
        self._inputs = _inputs(options, stores or Stores())
        self.ignored_columns: tuple[str, ...] = ()  # by their names in the list
        if all(part.has_only_urls for part in self._inputs):
            is_txt = all(isinstance(part, _File) for part in self._inputs)
            own = "url" if is_txt else options.url_col
            absent = tuple(dict.fromkeys(name for name in self._from.values() if name != own))
            if absent and not ignores_columns:
                raise _without_columns(self._inputs[0], absent)
            kept = {column: name for column, name in self._from.items() if name not in absent}
            self._from = {"url": own, **kept}
            self.ignored_columns, hash_col = absent, None if hash_col in absent else hash_col
        caption = self._from.get("caption") if options.caption_col else None
        texts = ("url", caption and "caption", EXPECTED_HASH.name)
        others = [name for column, name in self._from.items() if column not in texts]
        types = {name: arrow_type(type) for name, type in (options.column_types or {}).items()}
        self._columns = Columns(self._from["url"], caption, tuple(others), hash_col, types)
        _check_types(self._columns)
        self._stops_at_bad_row = options.on_bad_row == "stop"
        self._schema: pa.Schema | None = None
        self._list_files = self._stamped()  # before a byte is read: a file that is changed meanwhile has changed
        self._seed = options.shuffle
        self._given, self._is_read = 0, False  # rows; all of them
        self._has_warned = False  # of replaced bytes
        self._rows = self._read()
        self._first = next(self._rows, None)
        if self._first is None:
            names = f" in {', '.join(self.files[:3])}" if self.files else ""
            raise InputError(f"the url list is empty: no rows{names}")

    @classmethod
    def of(cls, config: Config, in_list_order: bool = False) -> Source:
        """That of a run, with all columns that the run needs."""
        check, recipe = config.output.verify_hash, presets.find(config.output.preset)
        stores, hashes = Stores(config.storage.storage_options), hash_columns(config.output)
        ignores_columns = recipe is not None and recipe.ignores_columns_of_txt
        options = dataclasses.replace(config.input, shuffle=None) if in_list_order else config.input
        source = cls(options, check.column if check else None, stores, hashes, ignores_columns)
        for column in (config.image.bbox_col, config.video.clips_col):
            if column in source.ignored_columns:  # what was to be blurred must not be stored in the clear
                raise _without_columns(source._inputs[0], [column])
        return source

    @property
    def schema(self) -> pa.Schema:
        """`url`, `caption` and `expected_hash`, the latter two if there are columns of them, as strings; then the
        additional columns as they are."""
        if self._schema is None:
            raise AssertionError("the types are known since the first rows were read")
        return self._schema

    @property
    def first_rows(self) -> pa.RecordBatch | None:
        """The first rows of the list, read to see whether there are any; None once `batches` has begun."""
        return self._first

    @property
    def files(self) -> list[str]:
        """The absolute paths or URLs of the files in the order of reading; `-` for standard input, none for rows."""
        return [part.name for part in self._inputs if part.name]

    @property
    def list_files(self) -> tuple[ListFile, ...]:
        """The files with what tells whether they have changed; none if not all rows come from files."""
        return self._list_files

    def _stamped(self) -> tuple[ListFile, ...]:
        files = [part.file for part in self._inputs if isinstance(part, _File) and part.file is not None]
        return stamps(files) if len(files) == len(self._inputs) else ()

    @property
    def rows(self) -> int | None:
        """How many it has, where that is known: because it is read to its end, or its parts tell. From any thread."""
        if self._is_read:
            return self._given
        counts = [part.extent.rows for part in self._inputs]
        return None if None in counts else sum(count or 0 for count in counts)

    def share_of(self, rows: int) -> float | None:
        """0 to 1: how much of it its first `rows` are, by the bytes of its files; None where nobody knows. As above."""
        sizes = [file.size or 0 for file in self._list_files]
        if len(sizes) != len(self._inputs) or not all(sizes) or not self._given:
            return None
        read = sum(size * part.extent.share(size) for part, size in zip(self._inputs, sizes, strict=True))
        return min(1.0, read / sum(sizes) * min(1.0, rows / self._given)) or None

    @property
    def hints(self) -> tuple[str, ...]:
        """What the user may not have meant, as messages for the log."""
        found = [part.hint for part in self._inputs if isinstance(part, _Urls) and part.hint]
        if self.ignored_columns:
            names = ", ".join(self.ignored_columns)
            found.append(f"the url list holds nothing but URLs, so these columns are ignored: {names}")
        return tuple(found)

    @property
    def can_be_read_again(self) -> bool:
        """Whether another Source of the same options has the same rows."""
        return not any(part.is_used_up for part in self._inputs)

    def batches(self, ends: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of `schema`; with `ends`, one without rows after those of each file.

        A batch in which rows could not be read has `badrows.COLUMN` as well, unless the list stops at such rows. With
        a seed they are shuffled, with `ends` those of each file for themselves. Raises ReadError where the list breaks
        off, after the rows before; of a shuffled list some of these are missing.
        """
        with closing(self._in_order(ends) if self._seed is None else self._shuffled(self._seed, ends)) as rows:
            yield from rows
        self._is_read = True

    def _in_order(self, ends: bool) -> Batches:
        with closing(self._rows):
            if self._first is not None:
                first, self._first = self._first, None
                self._given += first.num_rows
                yield first
            for batch in self._rows:
                self._given += batch.num_rows
                if ends or batch.num_rows:
                    yield batch

    def _shuffled(self, seed: int, ends: bool) -> Batches:
        files = [part for part in self._inputs if isinstance(part, _File) and part.has_row_groups]
        if len(files) == len(self._inputs):
            self._rows.close()
            self._first, self._rows = None, self._by_row_groups(files, seed, ends)
            yield from self._rows
            return
        with closing(self._in_order(ends)) as rows:
            yield from mixed(rows, seed)

    def _by_row_groups(self, files: Sequence[_File], seed: int, ends: bool) -> Batches:
        def read(group: RowGroup) -> Batches:
            part = files[group.file]
            place = f"{self._place(part)}row group {group.number}, "
            with opened.reading(group) as batches:
                try:
                    for batch in self._typed(batches, place):
                        self._given += batch.num_rows
                        yield batch
                except ReadError as error:
                    raise ReadError(error.where, error.reason, error.path or part.name) from error.__cause__

        with closing(_RowGroups(files, self._columns)) as opened:
            groups = opened.groups()
            for part in groups if ends else [[group for each in groups for group in each]]:
                with closing(shuffled(part, read, seed)) as rows:
                    yield from rows
                if ends and part:
                    yield pa.RecordBatch.from_pylist([], schema=self.schema)

    def close(self) -> None:
        """Close what is open, if `batches` was not read to its end."""
        self._rows.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> Batches:
        for part in self._inputs:
            used = 0
            try:
                with closing(part.batches(self._columns, self._schema_in_list())) as batches:
                    for batch in self._typed(batches, self._place(part)):
                        self._warn_of_replaced(part)
                        yield batch
                        used += batch.num_rows
                if used:
                    yield pa.RecordBatch.from_pylist([], schema=self.schema)  # its end, for those who ask
            except MissingColumns as error:
                if self._schema is not None:
                    raise ReadError(f"row {used}", _without_source(error), part.name) from error
                raise MissingColumns(error.missing, error.existing, part.description) from error
            except InputError as error:
                if isinstance(error, WrongFormat) and isinstance(part, _File):
                    error = WrongFormat(error.reason, part.format_of(error), part.description)
                if self._schema is not None:
                    reason = str(error).removeprefix(f"{part.description}: ")
                    raise ReadError(f"row {used}", reason, part.name) from error
                raise error
            except ReadError as error:
                raise error.in_file(part.name, f"row {used}") from error.__cause__

    def _warn_of_replaced(self, part: Input) -> None:
        if part.extent.replaced and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %s has bytes that are not UTF-8; such bytes are replaced by U+FFFD. Convert the list to UTF-8.",
                redacted(part.name),
                part.extent.replaced,
            )

    def _schema_in_list(self) -> pa.Schema | None:
        if self._schema is None:
            return None
        types = {self._from[field.name]: field.type for field in reversed(list(self._schema))}  # text wins
        return pa.schema([pa.field(name, types[name]) for name in self._columns.names])

    def _place(self, part: Input) -> str:
        """What is said before the place of a bad row; of a row at which the list stops, the error names the file."""
        if self._stops_at_bad_row or len(self._inputs) == 1 or not part.name:
            return ""
        return re.split(r"[/\\]", redacted(part.name))[-1] + ", "

    def _typed(self, batches: Iterable[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        """The rows of a part of the list, as `schema` has them, up to a bad row if the list stops there. Rows that do
        not fit are bad ones; `place` comes before their numbers."""
        typed = self._fitting(batches, place)
        return until_bad_row(typed) if self._stops_at_bad_row else typed

    def _fitting(self, batches: Iterable[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            rows, bad = split(batch)
            if self._schema is None:
                self._schema = _schema_of(rows, self._from, self._columns)
            fitted, misfits = self._fitted(rows)
            start += batch.num_rows
            if misfits or bad:
                first = start - batch.num_rows + 1
                bad = {**{row: BadRow(f"row {first + row}", why) for row, why in misfits.items()}, **bad}
                named = {row: dataclasses.replace(each, where=place + each.where) for row, each in bad.items()}
                fitted = with_bad_rows(fitted, {}, named)
            yield fitted

    def _fitted(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """`batch` in `schema`, with nulls in rows that do not fit; and why these do not, by position."""
        parts, done, misfits = [batch], list[pa.RecordBatch](), dict[int, str]()
        while parts:
            part = parts.pop()
            try:
                done.append(_cast(part, self._from, self.schema))
            except _Misfit as misfit:
                if misfit.is_of_type:
                    raise ReadError("", str(misfit)) from misfit
                if part.num_rows == 1:
                    misfits[sum(rows.num_rows for rows in done)] = str(misfit)
                    done.append(pa.record_batch([pa.nulls(1, field.type) for field in self.schema], schema=self.schema))
                else:
                    half = part.num_rows // 2
                    parts += [part.slice(half), part.slice(0, half)]
        return (done[0] if len(done) == 1 else pa.concat_batches(done)), misfits


def _without_columns(part: Input, columns: Sequence[str]) -> InputError:
    return InputError(
        f"{part.description} holds nothing but URLs, and has no column {', '.join(map(repr, columns))}: columns take a"
        " csv, tsv, json, jsonl or parquet list"
    )


class _Misfit(Exception):
    """A column that cannot be cast without loss."""

    def __init__(self, words: str, is_of_type: bool) -> None:
        super().__init__(words)
        self.is_of_type = is_of_type  # no value of the column can be cast


def _wanted(options: InputOptions, hash_col: str | None, hashes: Collection[str]) -> dict[str, str]:
    """Column of the dataset -> its name in the list. Raises OptionError for a name that is taken."""
    reserved = reserved_columns(hashes)
    wanted = {"url": options.url_col}
    if options.caption_col is not None:
        wanted["caption"] = options.caption_col
    elif "caption" in (options.save_additional_columns or ()):
        raise OptionError(
            "a column 'caption' is what caption_col is for: caption_col=caption, or rename it in the list"
        )
    if hash_col is not None:
        wanted[EXPECTED_HASH.name] = hash_col
    for name in options.save_additional_columns or ():
        if name == hash_col and name in reserved:
            raise OptionError(
                f"save_additional_columns: any2ds writes a column {name!r} itself; leave it out, what is in the list is"
                f" carried as {EXPECTED_HASH.name!r}"
            )
        source = wanted.setdefault(name, name)
        if source != name:
            raise OptionError(f"save_additional_columns: {name!r} is what {source!r} becomes in the dataset")
        if name in reserved:
            raise OptionError(f"save_additional_columns: any2ds writes a column {name!r} itself; rename it in the list")
    return wanted


def _check_types(columns: Columns) -> None:
    """Raises OptionError if a type is declared for a column that is not wanted, or is text."""
    for name, type in columns.types.items():
        if name in columns.texts and not pa.types.is_string(type):
            raise OptionError(f"column_types: the column {name!r} is text, not {type}")
        if name not in columns.names:
            raise OptionError(f"column_types: {name!r} is not a column of save_additional_columns")


def _schema_of(batch: pa.RecordBatch, sources: Mapping[str, str], columns: Columns) -> pa.Schema:
    fields = []
    for name, source in sources.items():
        type = columns.types.get(source, batch.schema.field(source).type)
        if pa.types.is_run_end_encoded(type) or (pa.types.is_dictionary(type) and _is_view(type.value_type)):
            type = type.value_type
        is_text = name == EXPECTED_HASH.name or source in (columns.url, columns.caption)
        if is_text and pa.types.is_nested(type):
            raise InputError(f"the column {source!r} holds {type}, not text")
        field = pa.field(name, pa.string() if is_text or pa.types.is_null(type) else _storable(type))
        try:
            _store_nothing(pa.schema([field]))
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"the column {source!r} holds {type}, which cannot be written to Parquet: give it another type, or "
                f"leave it out of save_additional_columns ({one_line(error, 100)})"
            ) from error
        fields.append(field)
    return pa.schema(fields)


def _storable(type: pa.DataType) -> pa.DataType:
    """The type of the same values without views, which Arrow itself cannot pick rows from."""
    if pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_binary_view(type):
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_storable(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_storable(type.key_type), _storable(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(_storable(type.value_type)))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(_storable(type.value_type)))
    return type


def _is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


def _store_nothing(schema: pa.Schema) -> None:
    """Raises whatever would be raised when a shard with these columns is written."""
    rows = schema.empty_table()
    pq.write_table(rows.take(pa.array([], pa.int64())), pa.BufferOutputStream())


def _cast(batch: pa.RecordBatch, sources: Mapping[str, str], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        array = batch[sources[field.name]]
        try:
            if pa.types.is_run_end_encoded(array.type):
                array = pc.run_end_decode(array)
            if pa.types.is_dictionary(array.type) and _is_view(array.type.value_type):
                array = pa.DictionaryArray.from_arrays(
                    array.indices, array.dictionary.cast(_storable(array.type.value_type))
                )
            if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(field.type):
                array = array.dictionary_decode()
            if field.name == EXPECTED_HASH.name and _is_binary(array.type):
                array = as_text(array)
            if pa.types.is_string(field.type) and _is_bytes(array.type):
                array = to_text(array, NO_UTF8_IN_URL if field.name == "url" else "replace")
            arrays.append(array.cast(field.type))
        except pa.ArrowException as error:
            name = sources[field.name]
            words = f"column {name!r}: {array.type} does not fit {field.type}: {excerpt(one_line(error))}"
            raise _Misfit(words, isinstance(error, (pa.ArrowNotImplementedError, pa.ArrowTypeError))) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_bytes(type: pa.DataType) -> bool:
    kinds = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    return type in kinds


def _is_binary(type: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(type) or type in (pa.binary(), pa.large_binary(), pa.binary_view())


# --- what a url list can be ---


Batches = Generator[pa.RecordBatch, None, None]


class Extent:
    """How much there is in a part of a list, and how much of it was read; asked for in other threads."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows  # if that is known
        self.given = 0  # of these
        self.bytes = 0  # read, as they lie in the file
        self.replaced: str | None = None  # the first row with bytes that are not UTF-8

    def share(self, size: int) -> float:
        """0 to 1 of it that was read, where the file has `size` bytes."""
        return min(1.0, self.given / self.rows if self.rows else self.bytes / size)


class Input(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def extent(self) -> Extent: ...

    @property
    def description(self) -> str: ...

    @property
    def is_used_up(self) -> bool:
        """Whether it is gone once it was read."""

    @property
    def has_only_urls(self) -> bool:
        """Whether there are no columns beside that of the URLs."""

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches: ...


@dataclass(frozen=True, slots=True)
class _File:
    """A file; or, if `file` is None, what is read once as it arrives: standard input, or the pipe at `stream`."""

    file: InputFile | None
    format: str
    compression: str | None = None
    is_compression_given: bool = False  # by input_format: then its content says whether it is compressed
    stream: str = STDIN
    extent: Extent = dataclasses.field(default_factory=Extent, compare=False)

    @property
    def name(self) -> str:
        return self.stream if self.file is None else self.file.name

    @property
    def is_used_up(self) -> bool:
        return self.file is None

    @property
    def has_only_urls(self) -> bool:
        return self.format == "txt"

    @property
    def description(self) -> str:
        return f"{'standard input' if self.name == STDIN else self.name} (read as {self.format})"

    def format_of(self, error: WrongFormat) -> str | None:
        """The value of `input_format` for what it holds."""
        if error.format is None or not error.format.startswith("."):
            return error.format and ".".join(filter(None, (error.format, self.compression)))
        return None if self.compression else f"{self.format}{error.format}"  # it is compressed twice

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        reader = self._reader()
        with ExitStack() as opened:
            stream = opened.enter_context(self._stream(reader.seekable))
            for batch in reader.batches(stream, columns, schema):
                self.extent.rows = getattr(reader, "rows", None)
                self.extent.replaced = getattr(reader, "replaced", None)
                self.extent.given += batch.num_rows
                yield batch

    @property
    def has_row_groups(self) -> bool:
        """Whether they can be read in any order."""
        return self.file is not None and self.compression is None and hasattr(self._reader(), "row_groups")

    def row_groups(self, opened: ExitStack, columns: Columns) -> Any:
        """What the reader gives for them, with what is open for it."""
        return self._reader().row_groups(opened.enter_context(self._stream(seekable=True)), columns)

    def _reader(self) -> Any:
        return plugins.load("readers", self.format)()

    @contextmanager
    def _stream(self, seekable: bool) -> Iterator[BinaryIO]:
        with ExitStack() as opened:
            stream = cast(BinaryIO, _Counted(self._open(opened, seekable and self.compression is None), self.extent))
            if self.compression is not None:
                stream = decompressed(stream, self.compression, by_content=self.is_compression_given)
            stream = cast(BinaryIO, _Guarded(stream, patient=seekable))
            if seekable and not stream.seekable():
                spool = opened.enter_context(tempfile.TemporaryFile(prefix="any2ds-"))
                shutil.copyfileobj(stream, spool, 2**20)
                spool.seek(0)
                stream = cast(BinaryIO, spool)
            yield stream

    def _open(self, opened: ExitStack, random_access: bool) -> BinaryIO:
        if self.name == STDIN:
            if sys.stdin is None:
                raise InputError("there is no standard input")
            return sys.stdin.buffer
        try:
            if self.file is None:
                return opened.enter_context(open(self.stream, "rb"))
            return opened.enter_context(self.file.open(random_access))
        except Any2dsError:
            raise
        except FileNotFoundError as error:
            cause = error.__cause__  # fsspec says so of whatever a web server answers, and of one that is not there
            if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404:
                raise InputError(f"{self.name}: no such file") from error
            raise InputError(f"{self.name}: cannot be opened: {one_line(cause) or type(cause).__name__}") from error
        except Exception as error:  # every file system has exceptions of its own
            raise InputError(f"{self.name}: cannot be opened: {one_line(error) or type(error).__name__}") from error


class _RowGroups:
    """The row groups of several files; each file is open for as long as one of its row groups is read."""

    def __init__(self, files: Sequence[_File], columns: Columns) -> None:
        self._files, self._columns = files, columns
        self._open: dict[int, tuple[ExitStack, Any]] = {}
        self._readers: Counter[int] = Counter()  # of each open file

    def groups(self) -> list[list[RowGroup]]:
        """Those of each file that have rows. Raises ReadError for what is wrong with a file."""
        with ThreadPoolExecutor(_OPENED_AT_ONCE, thread_name_prefix="any2ds-lists") as pool:
            sizes = list(pool.map(self._sizes, range(len(self._files))))
        return [
            [RowGroup(file, number, rows, size) for number, (rows, size) in enumerate(found) if rows]
            for file, found in enumerate(sizes)
        ]

    def _sizes(self, file: int) -> list[tuple[int, int]]:
        with ExitStack() as opened:
            sizes: list[tuple[int, int]] = self._groups_of(file, opened).sizes
        extent = self._files[file].extent
        extent.rows, extent.given = sum(rows for rows, _ in sizes), 0
        return sizes

    def _groups_of(self, file: int, opened: ExitStack) -> Any:
        part = self._files[file]
        try:
            return part.row_groups(opened, self._columns)
        except MissingColumns as error:
            raise ReadError("row 0", _without_source(error), part.name) from error
        except InputError as error:
            raise ReadError("row 0", str(error), part.name) from error
        except ReadError as error:
            raise ReadError(error.where, error.reason, part.name) from error.__cause__

    @contextmanager
    def reading(self, group: RowGroup) -> Iterator[Iterator[pa.RecordBatch]]:
        """Its rows. Raises ReadError."""
        if group.file not in self._open:
            opened = ExitStack()
            self._open[group.file] = opened, None
            self._open[group.file] = opened, self._groups_of(group.file, opened)
        self._readers[group.file] += 1
        try:
            with closing(self._batches(group)) as batches:
                yield batches
        finally:
            self._readers[group.file] -= 1
            if not self._readers[group.file]:
                self._open.pop(group.file)[0].close()

    def _batches(self, group: RowGroup) -> Batches:
        part = self._files[group.file]
        try:
            for batch in self._open[group.file][1].batches(group.number):
                part.extent.given += batch.num_rows
                yield batch
        except ReadError as error:
            raise ReadError(error.where or f"row group {group.number}", error.reason, part.name) from error.__cause__

    def close(self) -> None:
        for opened, _ in self._open.values():
            opened.close()
        self._open.clear()


class _Counted:
    """A stream that notes how many bytes were read of it."""

    def __init__(self, stream: BinaryIO, extent: Extent) -> None:
        self._stream, self._extent = stream, extent
        if hasattr(stream, "read1"):
            self.read1 = self._read1

    def read(self, size: int = -1) -> bytes:
        return self._noted(self._stream.read(size))

    def _read1(self, size: int = -1) -> bytes:
        return self._noted(self._stream.read1(size))  # type: ignore[attr-defined]  # there are streams without it

    def _noted(self, data: bytes) -> bytes:
        self._extent.bytes += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Guarded(io.RawIOBase):
    """A stream whose every failure is a ReadError; the place is left to those who count rows.

    Unless it is `patient`, it gives what has arrived, where the stream can, instead of waiting for more.
    """

    def __init__(self, stream: BinaryIO, patient: bool) -> None:
        self._stream = stream
        self._read = stream.read if patient else getattr(stream, "read1", stream.read)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        try:
            return self._read(size)
        except Exception as error:  # of any file system or codec
            raise ReadError("", one_line(error) or type(error).__name__) from error


@dataclass(frozen=True, slots=True)
class _Urls:
    """A Python list of URLs; whatever is no string is a row without one."""

    urls: Sequence[Any]
    name = ""
    description = "a list of URLs"
    is_used_up = False
    has_only_urls = True

    @property
    def extent(self) -> Extent:
        return Extent(len(self.urls))

    @property
    def hint(self) -> str:
        """What may be wrong, if it looks like a list of files; else empty."""
        urls = [url for url in self.urls if isinstance(url, str) and url]
        if urls and not any("://" in url for url in urls):
            return (
                f"url_list: none of the {len(self.urls):,} texts has a scheme such as https://, so each row fails;"
                " if they are names of files, give them as Path"
            )
        if urls and all(list_format(url)[0] for url in urls):
            return (
                f"url_list: each URL ends in the extension of a list ({one_line(urls[0])}), and is fetched as any other"
                " file; input_format=… reads them as lists"
            )
        return ""

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        require(columns.names, [columns.url])
        for start in range(0, len(self.urls), BATCH_ROWS):
            part = self.urls[start : start + BATCH_ROWS]
            encoded = [url.encode("utf-8", "replace") if isinstance(url, str) else None for url in part]
            yield pa.record_batch([pa.array(encoded, pa.binary())], names=[columns.url])


@dataclass(frozen=True, slots=True)
class _Objects:
    """A Python list of dicts."""

    objects: Sequence[Mapping[str, Any]]
    name = ""
    description = "a list of dicts"
    is_used_up = False
    has_only_urls = False

    @property
    def extent(self) -> Extent:
        return Extent(len(self.objects))

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        starts = range(0, len(self.objects), BATCH_ROWS)
        groups = ((part := self.objects[at : at + BATCH_ROWS], range(at + 1, at + 1 + len(part))) for at in starts)
        yield from to_batches(groups, columns, schema, "row")


@dataclass(frozen=True, slots=True)
class _Arrow:
    """An Arrow table or stream."""

    stream: Any
    is_used_up: bool
    rows: int | None
    name = ""
    description = "an Arrow table"
    has_only_urls = False

    @property
    def extent(self) -> Extent:
        return Extent(self.rows)

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        try:
            with pa.RecordBatchReader.from_stream(self.stream) as reader:
                require(columns.names, reader.schema.names)
                for batch in reader:
                    yield from sliced(batch.select(list(columns.names)))
        except (pa.ArrowException, OSError) as error:
            raise ReadError("", one_line(error)) from error


def _inputs(options: InputOptions, stores: Stores) -> list[Input]:
    given, format = options.url_list, options.input_format
    if any(hasattr(given, method) for method in ("__arrow_c_stream__", "__arrow_c_array__", "to_frame")):
        rows = len(given) if hasattr(given, "__len__") else None
        return [_Arrow(_stream(given, options.url_col), rows is None, rows)]
    if isinstance(given, (str, Path)):
        return [file for part in _split(str(given)) for file in _files(part, format, stores)]
    if getattr(given, "ndim", None) == 1 and hasattr(given, "tolist"):  # a NumPy array
        return [_urls(given.tolist(), f"a {type(given).__name__} of this: it holds URLs, one text each")]
    if not isinstance(given, Sequence):
        raise OptionError(f"url_list cannot be a {type(given).__name__}: it takes a path, a list or an Arrow table")
    if not given:
        raise InputError("the url list is empty")
    if all(isinstance(part, Mapping) for part in given):
        return [_Objects(given)]
    if _are_files(given, format):
        return [file for part in given for file in _files(str(part), format, stores)]
    return [_urls(given, "a list of this: it takes paths, URLs or dicts, not a mixture")]


def _urls(parts: Sequence[Any], what: str) -> _Urls:
    """Raises OptionError that url_list cannot be `what` if there is something else than strings and missing values."""
    if not parts:
        raise InputError("the url list is empty")
    others = [part for part in parts if not isinstance(part, str)]
    try:
        has_urls = pa.array(others, from_pandas=True).null_count == len(others)  # None, NaN, pandas' NA
    except pa.ArrowException:
        has_urls = False
    if not has_urls:
        raise OptionError(f"url_list cannot be {what}")
    return _Urls(parts)


def _are_files(parts: Sequence[Any], format: str | None) -> bool:
    """Whether a list holds files and not URLs, by the rule that `Source` states. Raises OptionError for a mixture."""
    if format is None and not any(isinstance(part, Path) for part in parts):
        return all(isinstance(part, str) and not _is_web(part) and _is_list_name(part) for part in parts)
    for part in parts:
        if not isinstance(part, Path) and not (isinstance(part, str) and part):
            raise OptionError(f"url_list cannot be a list of this: it holds files, and {part!r} is none")
        if _is_web(str(part)) and not _is_list_name(str(part)):
            raise OptionError(
                f"url_list: {one_line(part)} does not end in the extension of a list: a list of URLs to fetch takes no"
                " input_format and no Path"
            )
    return True


def _is_web(text: str) -> bool:
    return text.lstrip()[:8].lower().startswith(("http://", "https://"))


def _is_list_name(text: str) -> bool:
    """Whether it is a path that exists on this machine, or ends in an extension of a list."""
    if text == STDIN or list_format(text)[0] is not None:
        return True
    path = os.path.expanduser(text)
    if not path or "://" in path:
        return False
    return os.path.exists(path) or (glob.has_magic(path) and path.isprintable() and bool(glob.glob(path)))


def _split(text: str) -> list[str]:
    """`a.txt,b.txt` is two files, unless there is one of that name."""
    parts = [part.strip() for part in text.split(",")]
    return parts if not os.path.exists(text) and all(map(_is_list_name, parts)) else [text]


def _stream(given: Any, url_col: str) -> Any:
    """The Arrow stream of a table, or of an array or series of URLs."""
    is_stream = hasattr(given, "__arrow_c_stream__")
    try:
        try:
            if is_stream:
                return pa.RecordBatchReader.from_stream(given)
            if not hasattr(given, "to_frame"):  # a Series of pandas 2, which does not speak Arrow itself
                return pa.table(pa.record_batch(given))
        except pa.ArrowInvalid as error:
            if "non-struct type" not in str(error):
                raise
        values = pa.chunked_array(given if is_stream else [pa.array(given)])
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"url_list: this {type(given).__name__} is no table that Arrow can take: {error}") from error
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not _is_bytes(kind) and values.null_count < len(values):
        raise OptionError(f"url_list cannot be a {type(given).__name__} of {kind}: only of strings, which are URLs")
    return pa.table({url_col: values})


def _files(url: str, given: str | None, stores: Stores) -> Iterator[_File]:
    format, compression = split_format(given)
    if url in (STDIN, "/dev/stdin"):
        yield _File(None, format or "txt", compression, compression is not None)
        return
    if _is_stream(url):
        found, suffix = list_format(url)
        yield _File(None, format or found or "txt", compression or suffix, compression is not None, url)
        return
    files, is_folder = folders.input_files(url, stores)
    if is_folder:
        files = _outside_datasets(url, files, stores)
        kinds = [(file, *list_format(file.name)) for file in files]
        matching = [(file, suffix) for file, kind, suffix in kinds if kind is not None and format in (None, kind)]
        compressed_so = [file for file, suffix in matching if compression in (None, suffix)]
        files = compressed_so or [file for file, _ in matching] or files
    for file in files:
        found, suffix = list_format(file.name)
        yield _File(file, format or found or "txt", compression or suffix, compression is not None)


def _is_stream(path: str) -> bool:
    """Whether it can be read only once: a named pipe, or what `<(...)` of a shell stands for."""
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return True
    try:
        mode = os.stat(os.path.expanduser(path)).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _outside_datasets(url: str, files: list[InputFile], stores: Stores) -> list[InputFile]:
    """The files of a folder that do not lie in a dataset, which its stats files tell."""
    places = [file.path.rpartition("/") for file in files]
    datasets = {folder for folder, _, name in places if layout.finished_shards([name])}
    root = stores.open(os.path.expanduser(url))[1].rstrip("/")
    if root in datasets:
        raise InputError(
            f"{url}: is a dataset that was written here, not a folder of lists; name the lists in it, if it holds some"
        )
    inside = tuple(f"{folder}/" for folder in datasets)
    return [file for file in files if not file.path.startswith(inside)]


def list_format(name: str) -> tuple[str | None, str | None]:
    """Format and compression that the name of a file or a URL tells, each None if it does not."""
    path = urlsplit(name).path if name.startswith(("http://", "https://")) else name.split("::", 1)[0]
    *rest, last = path.replace("\\", "/").rsplit("/", 1)[-1].lower().split(".")
    compression = last if rest and last in CODECS else None
    if compression is not None:
        *rest, last = rest
    format = _ALIASES.get(last, last)
    return (format if rest and format in plugins.names("readers") else None), compression


def _without_source(error: MissingColumns) -> str:
    return str(MissingColumns(error.missing, error.existing, "")).removeprefix(": ")
