"""Turns what a person gives as url list into one stream of rows: which files it means, and what is read from each."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds import layout, registry, storage
from any2ds.config import Config, InputOptions
from any2ds.errors import Any2dsError, InputError, MissingColumns, OptionError, ReadError
from any2ds.expectations import as_text
from any2ds.manifest import ListFile
from any2ds.metadata import EXPECTED_HASH, RESERVED_COLUMNS
from any2ds.protocols import Columns
from any2ds.readers._compressed import CODECS, decompressed
from any2ds.readers._objects import to_batches
from any2ds.readers._text import BATCH_ROWS, NO_UTF8_IN_URL, one_line, require, sliced, to_text
from any2ds.storage import InputFile, stamps
from any2ds.storage.stores import Stores

STDIN = "-"
_ALIASES = {"ndjson": "jsonl", "pq": "parquet"}


class Source:
    """The rows of a url list, which can be read once.

    `options.url_list` is a file, a folder, a glob or a list of these, local or on any fsspec file system; `-` is
    standard input. A folder means the files in it, at any depth, in the order of their names: those with an extension
    of a list (csv, tsv, json, jsonl, parquet, txt, also compressed), or all if none has one; with `input_format` those
    of this format, or all if none is. Datasets in it are passed over. From Python it can also be

    - a list of dicts: rows;
    - a list of strings that all contain `://`, unless all end in an extension of a list or `input_format` is given:
      URLs, one row each, in which None stands for a row without URL;
    - any other list of strings: files, folders and globs;
    - an Arrow table, record batch or stream, or what can be had as one (a pandas or polars DataFrame): rows;
    - an Arrow array of strings, or what can be had as one (a Series): URLs.

    Making it opens the first file and reads its first rows. So it raises UsageError for what can be known now: a file
    that is not there, a list without rows, an absent column, a missing library; and ReadError if the list is broken
    from its start.

    `hash_col` is the column of the hashes that are expected, if they are to be verified.
    """

    def __init__(self, options: InputOptions, hash_col: str | None = None, stores: Stores | None = None) -> None:
        self._from = _wanted(options, hash_col)
        caption = self._from.get("caption") if options.caption_col else None
        texts = ("url", caption and "caption", EXPECTED_HASH.name)
        others = [name for column, name in self._from.items() if column not in texts]
        self._columns = Columns(self._from["url"], caption, tuple(others), hash_col)
        self._schema: pa.Schema | None = None
        self._inputs = _inputs(options, stores or Stores())
        self._list_files = self._stamped()  # before a byte is read: a file that is changed meanwhile has changed
        self._given, self._is_read = 0, False  # rows; all of them
        self._rows = self._read()
        self._first = next(self._rows, None)
        if self._first is None:
            names = f" in {', '.join(self.files[:3])}" if self.files else ""
            raise InputError(f"the url list is empty: no rows{names}")

    @classmethod
    def of(cls, config: Config) -> Source:
        """That of a run, with all columns that the run needs."""
        check = config.output.verify_hash
        return cls(config.input, check.column if check else None, Stores(config.storage.storage_options))

    @property
    def schema(self) -> pa.Schema:
        """`url`, `caption` and `expected_hash`, the latter two if there are columns of them, as strings; then the
        additional columns as they are."""
        if self._schema is None:
            raise AssertionError("the types are known since the first rows were read")
        return self._schema

    @property
    def first_rows(self) -> pa.RecordBatch | None:
        """The rows that were read to see whether there are any; None once `batches` has given them out."""
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
    def can_be_read_again(self) -> bool:
        """Whether another Source of the same options has the same rows."""
        return not any(part.is_used_up for part in self._inputs)

    def batches(self, ends: bool = False) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of `schema`; with `ends`, one without rows after those of each file.

        Raises ReadError where the list breaks off, after the rows before.
        """
        with closing(self._rows):
            if self._first is not None:
                first, self._first = self._first, None
                self._given += first.num_rows
                yield first
            for batch in self._rows:
                self._given += batch.num_rows
                if ends or batch.num_rows:
                    yield batch
            self._is_read = True

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
                    for batch in batches:
                        if batch.num_rows:
                            fitted, misfit = self._fitted(batch)
                            yield fitted
                            used += fitted.num_rows
                            if misfit:
                                raise ReadError(f"row {used + 1}", misfit)
                if used:
                    yield pa.RecordBatch.from_pylist([], schema=self.schema)  # its end, for those who ask
            except MissingColumns as error:
                if self._schema is not None:
                    raise ReadError(f"row {used}", _without_source(error), part.name) from error
                raise MissingColumns(error.missing, error.existing, part.description) from error
            except InputError as error:
                if self._schema is not None:
                    raise ReadError(f"row {used}", str(error), part.name) from error
                raise
            except ReadError as error:
                raise ReadError(error.where or f"row {used}", error.reason, part.name) from error.__cause__

    def _schema_in_list(self) -> pa.Schema | None:
        if self._schema is None:
            return None
        types = {self._from[field.name]: field.type for field in reversed(list(self._schema))}  # text wins
        return pa.schema([pa.field(name, types[name]) for name in self._columns.names])

    def _fitted(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, str]:
        """The rows of `batch` as `schema` has them, as far as they fit; and what is wrong with the next one."""
        if self._schema is None:
            self._schema = _schema_of(batch, self._from, self._columns)
        try:
            return _cast(batch, self._from, self._schema), ""
        except _Misfit as misfit:
            reason = str(misfit)
            good, bad = 0, batch.num_rows  # all rows before `good` fit; one before `bad` does not
            while bad - good > 1:
                middle = (good + bad) // 2
                try:
                    _cast(batch.slice(good, middle - good), self._from, self._schema)
                    good = middle
                except _Misfit as nearer:
                    bad, reason = middle, str(nearer)
            return _cast(batch.slice(0, good), self._from, self._schema), reason


class _Misfit(Exception):
    """A column that cannot be cast without loss."""


def _wanted(options: InputOptions, hash_col: str | None) -> dict[str, str]:
    """Column of the dataset -> its name in the list. Raises OptionError for a name that is taken."""
    wanted = {"url": options.url_col}
    if options.caption_col is not None:
        wanted["caption"] = options.caption_col
    elif "caption" in (options.save_additional_columns or ()):
        raise OptionError("save_additional_columns: a column 'caption' is what caption_col is for: caption_col=caption")
    if hash_col is not None:
        wanted[EXPECTED_HASH.name] = hash_col
    for name in options.save_additional_columns or ():
        if name == hash_col and name in RESERVED_COLUMNS:
            raise OptionError(
                f"save_additional_columns: any2ds writes a column {name!r} itself; leave it out, what is in the list is"
                f" carried as {EXPECTED_HASH.name!r}"
            )
        source = wanted.setdefault(name, name)
        if source != name:
            raise OptionError(f"save_additional_columns: {name!r} is what {source!r} becomes in the dataset")
        if name in RESERVED_COLUMNS:
            raise OptionError(f"save_additional_columns: any2ds writes a column {name!r} itself; rename it in the list")
    return wanted


def _schema_of(batch: pa.RecordBatch, sources: Mapping[str, str], columns: Columns) -> pa.Schema:
    fields = []
    for name, source in sources.items():
        type = batch.schema.field(source).type
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
            raise _Misfit(f"column {name!r}: {array.type} does not fit {field.type}: {one_line(error)}") from error
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

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches: ...


@dataclass(frozen=True, slots=True)
class _File:
    """A file, or standard input if `file` is None."""

    file: InputFile | None
    format: str
    compression: str | None = None
    extent: Extent = dataclasses.field(default_factory=Extent, compare=False)

    @property
    def name(self) -> str:
        return STDIN if self.file is None else self.file.name

    @property
    def is_used_up(self) -> bool:
        return self.file is None

    @property
    def description(self) -> str:
        return f"{'standard input' if self.file is None else self.name} (read as {self.format})"

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        reader = registry.load("readers", self.format)()
        with ExitStack() as opened:
            stream = cast(
                BinaryIO, _Counted(self._open(opened, reader.seekable and self.compression is None), self.extent)
            )
            if self.compression is not None:
                stream = decompressed(stream, self.compression)
            stream = cast(BinaryIO, _Guarded(stream, patient=reader.seekable))
            if reader.seekable and not stream.seekable():
                spool = opened.enter_context(tempfile.TemporaryFile(prefix="any2ds-"))
                shutil.copyfileobj(stream, spool, 2**20)
                spool.seek(0)
                stream = cast(BinaryIO, spool)
            for batch in reader.batches(stream, columns, schema):
                self.extent.rows = getattr(reader, "rows", None)
                self.extent.given += batch.num_rows
                yield batch

    def _open(self, opened: ExitStack, random_access: bool) -> BinaryIO:
        if self.file is None:
            if sys.stdin is None:
                raise InputError("there is no standard input")
            return sys.stdin.buffer
        try:
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
    """A Python list of URLs."""

    urls: Sequence[str | None]
    name = ""
    description = "a list of URLs"
    is_used_up = False

    @property
    def extent(self) -> Extent:
        return Extent(len(self.urls))

    def batches(self, columns: Columns, schema: pa.Schema | None) -> Batches:
        require(columns.names, [columns.url])
        for start in range(0, len(self.urls), BATCH_ROWS):
            part = self.urls[start : start + BATCH_ROWS]
            encoded = [None if url is None else url.encode("utf-8", "replace") for url in part]
            yield pa.record_batch([pa.array(encoded, pa.binary())], names=[columns.url])


@dataclass(frozen=True, slots=True)
class _Objects:
    """A Python list of dicts."""

    objects: Sequence[Mapping[str, Any]]
    name = ""
    description = "a list of dicts"
    is_used_up = False

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
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, Sequence):
        raise OptionError(f"url_list cannot be a {type(given).__name__}: it takes a path, a list or an Arrow table")
    if not parts:
        raise InputError("the url list is empty")
    if all(isinstance(part, Mapping) for part in parts):
        return [_Objects(cast(Sequence[Mapping[str, Any]], parts))]
    if not isinstance(given, str) and format is None and _are_urls(parts):
        return [_Urls(parts)]
    if not all(isinstance(part, str) for part in parts):
        raise OptionError("url_list cannot be a list of this: it takes paths, URLs or dicts, not a mixture")
    return [file for part in parts for file in _files(part, format, stores)]


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
    if not (_is_bytes(kind) or pa.types.is_null(kind)):
        raise OptionError(f"url_list cannot be a {type(given).__name__} of {kind}: only of strings, which are URLs")
    return pa.table({url_col: values})


def _are_urls(parts: Sequence[Any]) -> bool:
    urls = [part for part in parts if part is not None]
    return (
        bool(urls)
        and all(isinstance(url, str) and "://" in url for url in urls)
        and not all(list_format(url)[0] for url in urls)
    )


def _files(url: str, format: str | None, stores: Stores) -> Iterator[_File]:
    if url == STDIN:
        yield _File(None, format or "txt")
        return
    files, is_folder = storage.input_files(url, stores)
    if is_folder:
        files = _outside_datasets(url, files, stores)
        kinds = [list_format(file.name)[0] for file in files]
        matching = [
            file for file, kind in zip(files, kinds, strict=True) if kind is not None and format in (None, kind)
        ]
        files = matching or files
    for file in files:
        found, compression = list_format(file.name)
        yield _File(file, format or found or "txt", compression)


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
    return (format if rest and format in registry.names("readers") else None), compression


def _without_source(error: MissingColumns) -> str:
    return str(MissingColumns(error.missing, error.existing, "")).removeprefix(": ")
