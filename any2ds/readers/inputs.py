"""The forms of a url list: files, folders, globs, standard input, pipes, Python lists and Arrow data."""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa

from any2ds.config.options import InputOptions
from any2ds.config.parsers import list_format, split_format
from any2ds.core import layout, plugins
from any2ds.core.compression import PieceFile
from any2ds.core.errors import Any2dsError, InputError, OptionError, ReadError, WrongFormat
from any2ds.readers import compressed
from any2ds.readers.arrow import BATCH_BYTES, BATCH_ROWS, arrow_blocks, is_text_or_binary
from any2ds.readers.bad_rows import one_line
from any2ds.readers.contract import AS_USUAL, Block, Form, Wanted
from any2ds.readers.formats._objects import Group, object_blocks
from any2ds.readers.formats._paths import flat_batches, names_with_paths
from any2ds.readers.formats._repair import without_surrogates
from any2ds.readers.paths import list_of
from any2ds.storage import lists
from any2ds.storage.lists import InputFile
from any2ds.storage.stores import Stores

STDIN = "-"
_PARTITION = re.compile(r"[A-Za-z_][\w.-]*=.*")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_LOOKED_AT = 1000  # objects whose keys are the names of columns


class Extent:
    """The size of an input, and how much of it was read; other threads read it."""

    def __init__(self, rows: int | None = None, names: Sequence[str] = ()) -> None:
        self.rows = rows  # if that is known
        self.given = 0  # of these
        self.bytes = 0  # read, as they lie in the file
        self.names = names  # of all its columns, as far as they are known with the first rows
        self.notes: Mapping[str, str] = {}  # what the user should know of it, by subject

    def share(self, size: int) -> float:
        """The share, 0 to 1, that was read of a file of `size` bytes."""
        return min(1.0, self.given / self.rows if self.rows else self.bytes / size)


@dataclass(frozen=True, slots=True)
class File:
    """A file; or, if `file` is None, standard input or the pipe at `stream`, read once as it arrives."""

    file: InputFile | None
    format: str
    form: Form = field(default=AS_USUAL, compare=False)
    compression: str | None = None
    is_compression_given: bool = False  # by input_format; then the first bytes are checked too
    stream: str = STDIN
    extent: Extent = field(default_factory=Extent, compare=False)
    pieces: Callable[[], Iterator[bytes]] | None = None  # some of its lines, which are read in place of all
    given: str = field(default="", compare=False)  # the file, folder or glob by which it was found
    below: str = field(default="", compare=False)  # its path below that folder, or the folders without wildcards
    passed_over: tuple[str, ...] = field(default=(), compare=False)  # txt files in that folder that are not read

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
    def is_separated(self) -> bool:
        """Whether its rows are values between separators, below a header unless its columns are named."""
        return self.format in ("csv", "tsv")

    @property
    def description(self) -> str:
        return f"{'standard input' if self.name == STDIN else self.name} (read as {self.format})"

    def format_of(self, error: WrongFormat) -> str | None:
        """The value of `input_format` that would read the file."""
        if error.format is None or not error.format.startswith("."):
            return error.format and ".".join(filter(None, (error.format, self.compression)))
        return None if self.compression else f"{self.format}{error.format}"  # it is compressed twice

    @property
    def partitions(self) -> dict[str, str | None]:
        """The values that stand in the names of its folders, as Hive writes them: `lang=en/part-0.parquet`."""
        folders = [part.partition("=") for part in self.below.split("/")[:-1] if _PARTITION.fullmatch(part)]
        return {name: None if value == _NO_VALUE else unquote(value) for name, _, value in folders}

    def blocks(self, wanted: Wanted) -> Generator[Block, None, None]:
        reader = self.reader()
        with ExitStack() as opened:
            source = self._open(opened, reader.seekable)
            content = self.content(source, opened, reader.seekable)
            for block in reader.blocks(content, wanted.without(self.partitions)):
                self.extent.rows = getattr(reader, "rows", None)
                self.extent.names = getattr(reader, "names", ())
                self.extent.notes = getattr(reader, "notes", {})
                self.extent.given += block.rows
                if self.file is not None and not source.closed:  # by a decompressor at its end
                    self.extent.bytes = source.tell()
                yield self.with_partitions(block, wanted)

    def with_partitions(self, block: Block, wanted: Wanted) -> Block:
        """The rows of the file with the wanted columns that its folders give, and the file has not."""
        names = [name for name in self.partitions if name in wanted.names and _is_absent(block.values.get(name))]
        constants: dict[str, Any] = {name: [self.partitions[name]] * block.rows for name in names}
        if not isinstance(block.values[wanted.url], list):
            constants = {name: pa.array(texts, pa.string()) for name, texts in constants.items()}
        return replace(block, values={**block.values, **constants}, of_folders=names) if names else block

    @property
    def has_row_groups(self) -> bool:
        """Whether it has row groups that can be read in any order."""
        return self.file is not None and self.compression is None and hasattr(self.reader(), "row_groups")

    def row_groups(self, opened: ExitStack, wanted: Wanted) -> Any:
        """The reader's row groups; the file is closed with `opened`."""
        content = self.content(self._open(opened, True), opened, True)
        return self.reader().row_groups(content, wanted.without(self.partitions))

    def reader(self) -> Any:
        return plugins.load("readers", self.format)(self.form)

    def content(self, source: BinaryIO, opened: ExitStack, seekable: bool) -> BinaryIO:
        """`source` decompressed; with `seekable`, a copy on disk of what cannot seek, which is closed with `opened`."""
        if self.compression is not None:
            source = compressed.opened(source, self.compression, by_content=self.is_compression_given)
        stream = cast(BinaryIO, _Guarded(source, patient=seekable))
        if not seekable or stream.seekable():
            return stream
        spool = opened.enter_context(tempfile.TemporaryFile(prefix="any2ds-"))  # noqa: SIM115 - closed with `opened`
        shutil.copyfileobj(stream, spool, 2**20)
        spool.seek(0)
        return cast(BinaryIO, spool)

    def _open(self, opened: ExitStack, seekable: bool) -> BinaryIO:
        if self.name == STDIN:
            if sys.stdin is None:
                raise InputError("there is no standard input")
            return sys.stdin.buffer
        if self.pieces is not None:
            return cast(BinaryIO, PieceFile(self.pieces()))
        try:
            if self.file is None:
                return opened.enter_context(open(self.stream, "rb"))
            return opened.enter_context(self.file.open(seekable and self.compression is None))
        except Any2dsError:
            raise
        except FileNotFoundError as error:
            cause = error.__cause__  # fsspec raises this for any answer of a web server, and without one
            if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == 404:
                raise InputError(f"{self.name}: no such file") from error
            raise InputError(f"{self.name}: cannot be opened: {one_line(cause) or type(cause).__name__}") from error
        except Exception as error:  # every file system has exceptions of its own
            raise InputError(f"{self.name}: cannot be opened: {one_line(error) or type(error).__name__}") from error


class OpenRowGroups:
    """The row groups of several files; a file is open while one of its row groups is read."""

    def __init__(self, files: Sequence[File], wanted: Wanted) -> None:
        self._files, self._wanted = files, wanted
        self._open: dict[int, tuple[ExitStack, Any]] = {}
        self._readers: Counter[int] = Counter()  # of each open file

    def sizes(self, file: int) -> list[tuple[int, int]]:
        """The rows and bytes of each row group of a file. Called by several threads."""
        with ExitStack() as opened:
            sizes: list[tuple[int, int]] = self._files[file].row_groups(opened, self._wanted).sizes
        extent = self._files[file].extent
        extent.rows, extent.given = sum(rows for rows, _ in sizes), 0
        return sizes

    def blocks(self, file: int, number: int) -> Generator[Block, None, None]:
        """The rows of a row group."""
        if file not in self._open:
            with ExitStack() as opened:
                groups = self._files[file].row_groups(opened, self._wanted)
                self._open[file] = opened.pop_all(), groups
        self._readers[file] += 1
        try:
            for block in self._open[file][1].blocks(number):
                self._files[file].extent.given += block.rows
                yield self._files[file].with_partitions(block, self._wanted)
        finally:
            self._readers[file] -= 1
            if not self._readers[file]:
                self._open.pop(file)[0].close()


def _is_absent(values: Any) -> bool:
    """Whether a column has no values."""
    if isinstance(values, pa.Array):
        return bool(values.null_count == len(values))
    return values is None or all(value is None for value in values)


class _Guarded(io.RawIOBase):
    """A stream that raises every failure as ReadError, without a place.

    Unless it is `patient`, a read returns what has arrived instead of waiting for more, if the stream can.
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
class Given:
    """Rows that were given as a Python list, or as an Arrow table or stream."""

    description: str
    extent: Extent
    read: Callable[[Wanted], Iterator[Block]]
    is_used_up: bool = False  # it can be read only once
    has_only_urls: bool = False  # it has no columns but that of the URLs
    hint: str = ""  # what may be a mistake of the user

    @property
    def name(self) -> str:
        return ""

    def blocks(self, wanted: Wanted) -> Generator[Block, None, None]:
        if list_of(wanted.url) is not None:
            self.extent.rows = None
        yield from self.read(wanted)


Input = File | Given


def _of_urls(urls: Sequence[Any], url_col: str) -> Given:
    """An item that is not a string is a row without a URL."""
    texts = [without_surrogates(url) if isinstance(url, str) else None for url in urls]
    given = [text for text in texts if text]
    hint = ""
    if given and not any("://" in url for url in given):
        hint = (
            f"url_list: none of the {len(urls):,} texts has a scheme such as https://, so each row fails;"
            " if they are names of files, give them as Path"
        )
    elif given and all(list_format(url)[0] for url in given):
        hint = (
            f"url_list: each URL ends in the extension of a list ({one_line(given[0])}), and is fetched as any other"
            " file; input_format=… reads them as lists"
        )
    found = _of_arrow(pa.table({url_col: pa.array(texts, pa.string())}), len(urls))
    return replace(found, description="a list of URLs", has_only_urls=True, hint=hint)


def _of_objects(objects: Sequence[Mapping[str, Any]]) -> Given:
    extent = Extent(len(objects), list(dict.fromkeys(str(key) for item in objects[:_LOOKED_AT] for key in item)))

    def groups() -> Iterator[Group]:
        start = size = 0
        for end, item in enumerate(objects, 1):  # one text may stand in all of them
            size += sum(len(value) for value in item.values() if isinstance(value, (str, bytes, list, tuple, dict)))
            if end - start == BATCH_ROWS or size > BATCH_BYTES or end == len(objects):
                yield Group(objects[start:end], range(start + 1, end + 1))
                start, size = end, 0

    def read(wanted: Wanted) -> Iterator[Block]:
        keys: list[str] = []
        extent.names = keys
        return object_blocks(groups(), wanted, "row", keys)

    return Given("a list of dicts", extent, read)


def _of_arrow(stream: Any, rows: int | None) -> Given:
    """Without a number of `rows` it can be read only once."""
    extent = Extent(rows, stream.schema.names if hasattr(stream, "schema") else ())

    def read(wanted: Wanted) -> Iterator[Block]:
        try:
            with pa.RecordBatchReader.from_stream(stream) as reader:
                extent.names = reader.schema.names
                names = wanted.found_in(names_with_paths(reader.schema, wanted.names))
                yield from arrow_blocks(flat_batches(reader, names, list_of(wanted.url), BATCH_BYTES))
        except (pa.ArrowException, OSError) as error:
            raise ReadError("", one_line(error)) from error

    return Given("an Arrow table", extent, read, is_used_up=rows is None)


def inputs_of(options: InputOptions, stores: Stores) -> list[Input]:
    given, format = options.url_list, options.input_format
    if any(hasattr(given, method) for method in ("__arrow_c_stream__", "__arrow_c_array__", "to_frame")):
        rows = len(given) if hasattr(given, "__len__") else None
        try:
            return [_of_arrow(_stream(given, options.url_col), rows)]
        except (UnicodeEncodeError, OverflowError):  # halves of surrogate pairs, integers of more than 64 bits
            if not hasattr(given, "to_dict"):
                raise
            return (
                [_of_objects(given.to_dict("records"))]
                if hasattr(given, "columns")
                else [_of_urls(given.tolist(), options.url_col)]
            )
    if isinstance(given, (str, Path)):
        return [file for part in _split(str(given)) for file in _files(part, options, stores)]
    if getattr(given, "ndim", None) == 1 and hasattr(given, "tolist"):  # a NumPy array
        return [
            _urls(given.tolist(), options.url_col, f"a {type(given).__name__} of this: it holds URLs, one text each")
        ]
    if not isinstance(given, Sequence):
        raise OptionError(f"url_list cannot be a {type(given).__name__}: it takes a path, a list or an Arrow table")
    if not given:
        raise InputError("the url list is empty")
    if all(isinstance(part, Mapping) for part in given):
        return [_of_objects(given)]
    if _are_files(given, format):
        return [file for part in given for file in _files(str(part), options, stores)]
    return [_urls(given, options.url_col, "a list of this: it takes paths, URLs or dicts, not a mixture")]


def _urls(parts: Sequence[Any], url_col: str, what: str) -> Given:
    """Raises OptionError that url_list cannot be `what` if an item is neither a string nor a missing value."""
    if not parts:
        raise InputError("the url list is empty")
    others = [part for part in parts if not isinstance(part, str)]
    try:
        has_urls = pa.array(others, from_pandas=True).null_count == len(others)  # None, NaN, pandas' NA
    except pa.ArrowException:
        has_urls = False
    if not has_urls:
        raise OptionError(f"url_list cannot be {what}")
    return _of_urls(parts, url_col)


def _are_files(parts: Sequence[Any], format: str | None) -> bool:
    """Whether a list holds files and not URLs, as `Source` documents. Raises OptionError for a mixture."""
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
    """Whether it is an existing local path, or ends in an extension of a list."""
    if text == STDIN or list_format(text)[0] is not None:
        return True
    path = os.path.expanduser(text)
    if not path or "://" in path:
        return False
    return os.path.exists(path) or (glob.has_magic(path) and path.isprintable() and bool(glob.glob(path)))


def _split(text: str) -> list[str]:
    """`a.txt,b.txt` is two files, unless a file has this name."""
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
    except (UnicodeEncodeError, OverflowError):
        raise
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(
            f"url_list: this {type(given).__name__} cannot be converted to an Arrow table: {error}"
        ) from error
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not is_text_or_binary(kind) and values.null_count < len(values):
        raise OptionError(f"url_list cannot be a {type(given).__name__} of {kind}: only of strings, which are URLs")
    return pa.table({url_col: values})


def _files(url: str, options: InputOptions, stores: Stores) -> Iterator[File]:
    given = options.input_format
    format, compression = split_format(given)
    form = Form(options.separator, options.quoting, options.comment, options.columns, options.encoding, options.rows)
    default = "csv" if form.separator or form.columns else "txt"  # of names that say nothing, and of .txt

    def file(file: InputFile | None, name: str, **more: Any) -> File:
        found, suffix = list_format(name)
        kind = format or (default if found in (None, "txt") else found)
        return File(file, str(kind), form, compression or suffix, compression is not None, **more)

    if url in (STDIN, "/dev/stdin"):
        yield file(None, STDIN)
        return
    if _is_pipe(url):
        yield file(None, url, stream=url)
        return
    if _is_web(url) and given is None and list_format(url) == (None, None) and "*" not in url:
        raise InputError(
            f"{one_line(url)}: does not end in the format of a list (.txt, .csv, .parquet …), so it looks like one of "
            "the files to download: the first argument is a file with their URLs, one a line. If this is a list, "
            "--input_format=txt reads it"
        )
    files, is_folder = lists.input_files(url, stores)
    has_folders = is_folder or glob.has_magic(url)
    fixed = url if is_folder else re.split(r"[*?\[]", url, maxsplit=1)[0].rpartition("/")[0]
    root = stores.open(fixed)[1].rstrip("/") if has_folders and fixed else ""  # of the folders that may be partitions
    passed_over: tuple[str, ...] = ()
    if is_folder:
        files = _outside_datasets(url, files, root)
        kinds = [(each, *list_format(each.name)) for each in files]
        matching = [(each, suffix) for each, kind, suffix in kinds if kind is not None and format in (None, kind)]
        if format is None and any(kind != "txt" for _, kind, _ in kinds if kind):  # notes and checksums beside lists
            passed_over = tuple(each.name for each, kind, _ in kinds if kind == "txt")
            matching = [(each, suffix) for each, suffix in matching if each.name not in passed_over]
        compressed_so = [each for each, suffix in matching if compression in (None, suffix)]
        files = compressed_so or [each for each, _ in matching] or files
    for each in files:
        below = each.path.removeprefix(f"{root}/") if root else ""
        yield file(each, each.name, given=url, below=below, passed_over=passed_over)


def _is_pipe(path: str) -> bool:
    """Whether it is a named pipe, or `<(...)` of a shell."""
    if path.startswith(("/dev/fd/", "/proc/self/fd/")):
        return True
    try:
        mode = os.stat(os.path.expanduser(path)).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _outside_datasets(url: str, files: list[InputFile], root: str) -> list[InputFile]:
    """The files of the folder `root` that are not in a dataset, which is known by its stats files."""
    places = [file.path.rpartition("/") for file in files]
    datasets = {folder for folder, _, name in places if layout.finished_shards([name])}
    if root in datasets:
        raise InputError(
            f"{url}: is a dataset that was written here, not a folder of lists; name the lists in it, if it holds some"
        )
    inside = tuple(f"{folder}/" for folder in datasets)
    return [file for file in files if not file.path.startswith(inside)]
