"""The rows of a url list: read from its inputs, in the columns and types of the dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.hashes import hash_columns
from any2ds.config.options import Config, InputOptions
from any2ds.config.parsers import HashCheck, HashChecks
from any2ds.core.errors import InputError, MissingColumns, OptionError, ReadError, WrongFormat, redacted
from any2ds.core.manifest import ListFile
from any2ds.core.members import Members, columns_of
from any2ds.core.metadata import HASHES
from any2ds.core.rows import KEY_COLUMN, RENAMED
from any2ds.readers.columns import ALL, fields_of, hash_sources, url_column_advice, wanted_columns
from any2ds.readers.contract import Field, Wanted
from any2ds.readers.first_rows import LOOKED_AT, column_with_urls, has_url, no_urls, refuse_columns
from any2ds.readers.inputs import Extent, File, Given, Input, OpenRowGroups, inputs_of
from any2ds.readers.look import refuse_unreadable
from any2ds.readers.names import refuse_unusable_names
from any2ds.readers.paths import EACH, NUMBER, list_of, path_of
from any2ds.readers.rows import TypedRows
from any2ds.readers.shuffle import RowGroup, mixed, shuffled
from any2ds.readers.urls import UrlRules, has_references
from any2ds.storage.lists import InputFile, stamps
from any2ds.storage.stores import Stores

Batches = Generator[pa.RecordBatch, None, None]

_OPENED_AT_ONCE = 8  # files whose row groups are looked up

log = logging.getLogger(__name__)


class Source:
    """The rows of a url list, which can be read once.

    `options.url_list` is a file, a folder, a glob or a list of these, local or on any fsspec file system; `-` is
    standard input, which is read once as it arrives, as are named pipes and `<(...)` of a shell. A folder stands for
    its files at any depth, by name: those with an extension of a list (csv, tsv, json, jsonl, parquet, also
    compressed; txt where there are no others), or all if none has one; with `input_format` those of this format, or all
    if there are none. Datasets
    in it are skipped. From Python it can also be

    - a list of dicts: rows;
    - a list of strings: URLs, one row each. None, NaN, an empty string and a string without a scheme are rows that
      fail. It is a list of files, folders and globs instead if each string is an existing path or ends in an
      extension of a list, and none is an http(s) URL;
    - a list with a Path in it, or any list of strings if `input_format` is given: files, folders and globs;
    - an Arrow table, record batch or stream, or what converts to one (a pandas or polars DataFrame): rows;
    - an Arrow or NumPy array of strings, or what converts to one (a Series): URLs.

    A single string is never a URL to fetch: an http(s) URL is that of a list.

    The constructor opens the first file and reads its first rows. It raises UsageError for a missing file, a list
    without rows, an absent column or a missing library; and ReadError if the list is broken from its start.

    `verify_hash` has the columns of expected hashes, if they are to be verified; `hashes` are the columns of computed
    ones; `key_col` gives the names of samples. A list of URLs alone (txt) has no columns: wanted columns are ignored
    with `ignores_columns`, else refused. With `is_looked_at` another Source has found that all files can be read, and
    logged what is odd in them.
    """

    def __init__(
        self,
        options: InputOptions,
        verify_hash: HashCheck | HashChecks | None = None,
        stores: Stores | None = None,
        hashes: Collection[str] = HASHES,
        ignores_columns: bool = False,
        is_looked_at: bool = False,
        key_col: str | None = None,
    ) -> None:
        members = Members(columns_of(options.url_col))
        hash_cols = hash_sources(verify_hash, members)
        urls = UrlRules.of(options)
        self._inputs = self._found_inputs(options, stores or Stores())
        existing = self._columns_of_list(options, urls) if _asks_for_names(options) else ()
        own = hash_cols if key_col is None else {**hash_cols, KEY_COLUMN: key_col}
        columns = wanted_columns(options, own, hashes, existing)
        self._all = frozenset(existing if ALL in (options.save_additional_columns or ()) else ())
        if urls.columns:
            columns["url"] = urls.columns[0]
        self.ignored_columns: tuple[str, ...] = ()  # by their names in the list
        if all(part.has_only_urls for part in self._inputs):
            only = "url" if all(isinstance(part, File) for part in self._inputs) else options.url_col
            absent = tuple(dict.fromkeys(name for name in (*columns.values(), *urls.columns) if name != only))
            if absent and not ignores_columns:
                raise _without_columns(self._inputs[0], absent)
            columns = {"url": only, **{name: source for name, source in columns.items() if source not in absent}}
            self.ignored_columns = absent
        if urls.columns:
            columns["url"] = ""
        self._url_columns = ("url", *members.url_columns)
        self._fields = fields_of(columns, options, self._url_columns, own)
        sources = (field.source for field in self._fields if field.kind == "url")
        self._url_sources = urls.columns or tuple(dict.fromkeys(sources))
        self._typed = TypedRows(self._fields, urls, options.on_bad_row == "stop")
        self._stops_at_bad_row = options.on_bad_row == "stop"
        files = self.input_files
        if not is_looked_at:
            refuse_unreadable(
                [part for part in self._inputs if isinstance(part, File)], self._wanted(is_first=False), self._fields
            )
        # With sizes and times, before reading, so that a file that changes meanwhile counts as changed; empty if some
        # rows do not come from files.
        self.list_files: tuple[ListFile, ...] = stamps(files) if len(files) == len(self._inputs) else ()
        self._seed, self._limit = None if self.is_in_order else options.shuffle, options.limit
        self._given, self._is_read = 0, False  # rows; all of them
        self._noted: set[str] | None = None if is_looked_at else set()  # subjects of warnings
        self._rows = self._read()
        # Read to see whether there are any; None once `batches` has begun.
        self.first_rows = next(self._rows, None)
        if self.first_rows is None:
            names = f" in {', '.join(self.files[:3])}" if self.files else ""
            raise InputError(f"the url list is empty: no rows{names}")
        self._read_ahead = [self.first_rows]  # and more of them, where these had no URL
        self._failure: ReadError | None = None  # where the list broke off meanwhile
        self._check_first_rows()

    @classmethod
    def of(cls, config: Config, in_list_order: bool = False, is_looked_at: bool = False) -> Source:
        """The source of a run, with all columns that the run needs. `is_looked_at` is as in the constructor.

        With `key_col` the list is read once to compare the keys. A limit is one of rows in the order of the run: of a
        shuffled list all rows are compared.
        """
        recipe = presets.find(config.output.preset)
        opened = partial(
            cls,
            verify_hash=config.output.verify_hash,
            stores=Stores(config.storage.storage_options),
            hashes=hash_columns(config.output),
            ignores_columns=recipe is not None and recipe.ignores_columns_of_txt,
            key_col=config.output.key_col,
        )
        options = dataclasses.replace(config.input, shuffle=None) if in_list_order else config.input
        if config.output.key_col is not None and not is_looked_at:
            limit = None if options.shuffle is not None else options.limit
            with opened(dataclasses.replace(options, shuffle=None, limit=limit)) as source:
                if not source.can_be_read_again:
                    raise InputError(
                        "key_col: the list is read twice: give a file, not standard input, a pipe or a stream"
                    )
                ignores_case = config.output.output_format == "files"
                refuse_unusable_names(source.batches(), config.output.key_col, ignores_case)
            is_looked_at = True
        source = opened(options, is_looked_at=is_looked_at)
        for column in config.media.step_columns:
            if column in source.ignored_columns:  # what was to be blurred must not be stored unblurred
                raise _without_columns(source._inputs[0], [column])
        return source

    def _columns_of_list(self, options: InputOptions, urls: UrlRules) -> tuple[str, ...]:
        """The names of all columns of the first input, and of the folders of its partitions; none of a txt."""
        part = self._inputs[0]
        if part.has_only_urls or isinstance(part, Given):
            return () if part.has_only_urls else tuple(part.extent.names)
        if part.is_used_up:
            if ALL not in (options.save_additional_columns or ()):
                return ()
            raise OptionError(f"save_additional_columns: {ALL!r} takes a list that can be read twice: name the columns")
        url = (*urls.columns, *columns_of(options.url_col).values(), options.url_col)[0]
        fresh = dataclasses.replace(part, extent=Extent())
        with contextlib.suppress(InputError, ReadError), closing(fresh.blocks(Wanted.only(url))) as blocks:
            next(blocks, None)  # what is wrong with it is told when its rows are read
        names = fresh.extent.names
        made = {url, f"{list_of(url)}{NUMBER}"} if path_of(url).root in names and path_of(url).is_nested else ()
        return (*(name for name in names if name not in made), *fresh.partitions)

    def _check_first_rows(self) -> None:
        """Raises InputError if none of the first rows has a URL, or if the lines of a txt have several columns."""
        part, batches = self._inputs[0], self._read_ahead
        is_txt = part.has_only_urls and isinstance(part, File)
        wanted = min(LOOKED_AT, self._limit or LOOKED_AT)
        if is_txt:
            if not part.is_used_up and batches[0].num_rows < wanted:  # rows of a pipe are not waited for
                self._look_ahead()
            lines = [url for batch in batches for url in batch["url"].to_pylist() if url]
            refuse_columns(lines[:LOOKED_AT], part.description)
        while not any(has_url(batch, self._url_columns) for batch in batches):
            rows = sum(batch.num_rows for batch in batches)
            if rows < wanted and self._look_ahead():
                continue
            is_short_and_from_python = rows < LOOKED_AT and any(isinstance(part, Given) for part in self._inputs)
            if self._failure is not None or is_short_and_from_python:  # raised when the run comes there; rows that fail
                return
            urls = [url for batch in batches for url in batch["url"].to_pylist()][:wanted]
            names = None if is_txt else part.extent.names
            raise no_urls(urls, part.description, names, self._url_sources[0], self._column_with_urls(part))

    def _column_with_urls(self, part: Input) -> str | None:
        """A column of a file that has URLs, in place of the one that has none."""
        if not isinstance(part, File) or part.is_used_up or len(part.extent.names) < 2:
            return None
        names = tuple(dict.fromkeys(part.extent.names))
        again = dataclasses.replace(part, extent=Extent())
        rows = TypedRows([Field(name, name) for name in names])
        try:
            with closing(again.blocks(Wanted.only(*names))) as blocks:
                return column_with_urls(next(rows.batches(blocks)))
        except (InputError, ReadError, StopIteration):
            return None

    def _wanted(self, is_first: bool) -> Wanted:
        """The columns of a file: the first one must have them all, the others what is needed to fetch and to check."""
        others = [field.source for field in self._fields if field.source]
        names = tuple(dict.fromkeys([*self._url_sources, *others]))
        needed = [field.source for field in self._fields if field.kind in ("hash", "name")]
        required = frozenset(names if is_first else [*self._url_sources, *needed])
        return Wanted(names, required, self._url_sources, is_first and any(not field.kind for field in self._fields))

    def _look_ahead(self) -> bool:
        """Read the next rows, which `batches` gives once more. Returns whether there are any."""
        try:
            batch = next(self._rows, None)
        except ReadError as error:
            self._failure, batch = error, None
        if batch is not None:
            self._read_ahead.append(batch)
        return batch is not None

    def _found_inputs(self, options: InputOptions, stores: Stores) -> list[Input]:
        return inputs_of(options, stores)

    @property
    def inputs(self) -> Sequence[Input]:
        return self._inputs

    @property
    def is_in_order(self) -> bool:
        """Whether a seed does not shuffle its rows."""
        return False

    @property
    def schema(self) -> pa.Schema:
        """`url`, then `caption` and `expected_hash` if the list has them, as strings; then the additional columns."""
        if self._typed.schema is None:
            raise AssertionError("the types are known since the first rows were read")
        return pa.schema([field for field in self._typed.schema if field.name != KEY_COLUMN])

    @property
    def files(self) -> list[str]:
        """The absolute paths or URLs of the files in the order of reading; `-` for standard input, none for rows."""
        return [part.name for part in self._inputs if part.name]

    @property
    def input_files(self) -> list[InputFile]:
        """The files that exist as such: not standard input and pipes."""
        return [part.file for part in self._inputs if isinstance(part, File) and part.file is not None]

    @property
    def given(self) -> list[str]:
        """The files, folders and globs by which its files were found."""
        return sorted({part.given for part in self._inputs if isinstance(part, File) and part.given})

    @property
    def rows(self) -> int | None:
        """The number of rows, or None if it is not known yet; with a limit no more than that, and that if it is not
        known. Thread-safe."""
        counts = [part.extent.rows for part in self._inputs]
        rows = self._given if self._is_read else None if None in counts else sum(count or 0 for count in counts)
        if self._limit is None:
            return rows
        return self._limit if rows is None else min(rows, self._limit)

    @property
    def has_row_groups(self) -> bool:
        """Whether its rows can be read in any order."""
        return list_of(self._url_sources[0]) is None and all(
            isinstance(part, File) and part.has_row_groups for part in self._inputs
        )

    def share_of(self, rows: int) -> float | None:
        """The share, 0 to 1, of the list that its first `rows` are, by bytes of files; None if unknown. Thread-safe."""
        if self._limit is not None:
            return min(1.0, rows / self._limit) or None
        sizes = [file.size or 0 for file in self.list_files]
        if len(sizes) != len(self._inputs) or not all(sizes) or not self._given:
            return None
        read = sum(size * part.extent.share(size) for part, size in zip(self._inputs, sizes, strict=True))
        return min(1.0, read / sum(sizes) * min(1.0, rows / self._given)) or None

    @property
    def hints(self) -> tuple[str, ...]:
        """Messages for the log about what may be a mistake of the user."""
        found = [part.hint for part in self._inputs if isinstance(part, Given) and part.hint]
        passed_over = {part.given: part.passed_over for part in self._inputs if isinstance(part, File)}
        for folder, names in passed_over.items():
            if names:
                which = os.path.basename(names[0]) + (f" and {len(names) - 1:,} more txt" if len(names) > 1 else "")
                found.append(f"{redacted(folder)}: {which} beside other lists is not read: --input_format=txt reads it")
        if self.first_rows is not None and has_references(self.first_rows["url"], least=0.02):
            found.append("many URLs of the list have &amp; or the like in them: --unescape_html makes these characters")
        renamed = (field for field in self._fields if field.name == RENAMED + field.source)
        found += (
            f"the list's column {field.source!r} is stored as {field.name!r}: any2ds writes a {field.source!r} itself"
            for field in renamed
        )
        if self.ignored_columns:
            columns = ", ".join(self.ignored_columns)
            found.append(f"the url list holds nothing but URLs, so these columns are ignored: {columns}")
        return tuple(found)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns of the first input that the dataset does not keep, by their names in it."""
        kept = {field.source for field in self._fields}
        return tuple(name for name in self._inputs[0].extent.names if name not in kept)

    @property
    def can_be_read_again(self) -> bool:
        """Whether another Source with the same options has the same rows."""
        return not any(part.is_used_up for part in self._inputs)

    def batches(self, ends: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows up to the limit, in batches of `schema`; with `ends`, an empty batch after each file.

        Further columns are BAD_ROW_COLUMN and, with names, KEY_COLUMN. With a seed the rows are shuffled, with `ends`
        within each file. Raises ReadError where the list breaks off, after yielding the rows before; of a shuffled list
        some of these are missing.
        """
        with closing(self._in_order(ends) if self._seed is None else self._shuffled(self._seed, ends)) as rows:
            yield from rows if self._limit is None else _first_rows(rows, self._limit)
        self._is_read = True

    def _in_order(self, ends: bool) -> Batches:
        with closing(self._rows):
            for batch in self._unread_rows():
                self._given += batch.num_rows
                if ends or batch.num_rows:
                    yield batch

    def _unread_rows(self) -> Iterator[pa.RecordBatch]:
        self.first_rows = None
        while self._read_ahead:
            yield self._read_ahead.pop(0)
        if self._failure is not None:
            raise self._failure
        yield from self._rows

    def _shuffled(self, seed: int, ends: bool) -> Batches:
        if self.has_row_groups:
            files = [part for part in self._inputs if isinstance(part, File)]
            self._rows.close()
            self.first_rows, self._rows = None, self._by_row_groups(files, seed, ends)
            self._read_ahead.clear()
            yield from self._rows
            return
        with closing(self._in_order(ends)) as rows:
            yield from mixed(rows, seed)

    def _by_row_groups(self, files: Sequence[File], seed: int, ends: bool) -> Batches:
        row_groups = OpenRowGroups(files, self._wanted(is_first=False))

        def groups_of(number: int) -> list[RowGroup]:
            try:
                sizes = row_groups.sizes(number)
            except (InputError, ReadError) as error:
                raise self._named(error, files[number], "row 0") from error.__cause__
            return [RowGroup(number, group, rows, size) for group, (rows, size) in enumerate(sizes) if rows]

        def read(group: RowGroup) -> Batches:
            part, place = files[group.file], f"row group {group.number}"
            try:
                with closing(row_groups.blocks(group.file, group.number)) as blocks:
                    for batch in self._typed.batches(blocks, f"{self._place(part)}{place}, "):
                        self._given += batch.num_rows
                        yield batch
            except (InputError, ReadError) as error:
                raise self._named(error, part, place) from error.__cause__

        with ThreadPoolExecutor(_OPENED_AT_ONCE, thread_name_prefix="any2ds-lists") as pool:
            groups = list(pool.map(groups_of, range(len(files))))
        for part in groups if ends else [[group for each in groups for group in each]]:
            with closing(shuffled(part, read, seed)) as rows:
                yield from rows
            if ends and part:
                yield self._typed.no_rows()

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
                with closing(part.blocks(self._wanted(is_first=self._typed.schema is None))) as blocks:
                    for batch in self._typed.batches(blocks, self._place(part)):
                        self._warn_of(part)
                        yield batch
                        used += batch.num_rows
            except (InputError, ReadError) as error:
                raise self._named(error, part, f"row {used}") from error.__cause__
            if used:
                yield self._typed.no_rows()  # the end of the file

    def _named(self, error: InputError | ReadError, part: Input, place: str) -> Exception:
        """An error that names the input, and unless there were no rows before, how far it was read."""
        if isinstance(error, ReadError):
            return error.in_file(part.name, place)
        if isinstance(error, MissingColumns):
            advice = url_column_advice(error.existing) if self._url_sources[0] in error.missing else ""
            error = MissingColumns(error.missing, error.existing, part.description, advice)
        elif isinstance(error, WrongFormat) and isinstance(part, File):
            error = WrongFormat(error.reason, part.format_of(error), part.description)
        if self._typed.schema is None:
            return error
        return ReadError(place, str(error).removeprefix(f"{part.description}: "), part.name)

    def _warn_of(self, part: Input) -> None:
        """Tell of the input what was not told of an earlier one."""
        if self._noted is None:
            return
        notes = dict(part.extent.notes)
        known = {*self._all, *(field.source for field in self._fields)}
        if self._all and (further := [name for name in part.extent.names if name not in known]):
            names = ", ".join(further[:10])
            notes[ALL] = (
                f"has columns that the first list has not, and {ALL!r} leaves out: {names}. Name them to carry them."
            )
        for subject in notes.keys() - self._noted:
            self._noted.add(subject)
            log.warning("%s: %s", redacted(part.name), notes[subject])

    def _place(self, part: Input) -> str:
        """The file, before the place of a bad row. If the list stops at bad rows, the error names the file."""
        if self._stops_at_bad_row or len(self._inputs) == 1 or not part.name:
            return ""
        return re.split(r"[/\\]", redacted(part.name))[-1] + ", "


def _asks_for_names(options: InputOptions) -> bool:
    """Whether the columns of the list say what names mean: `*`, and `tags[]` and `dc:title`, which may be a column."""
    more = options.save_additional_columns or ()
    has_lists = any(EACH in name for name in (options.url_col, options.caption_col or "", *more))
    return has_lists or any(name == ALL or ":" in name for name in more)


def _first_rows(batches: Batches, limit: int) -> Batches:
    missing = limit
    for batch in batches:
        yield batch.slice(0, missing)
        missing -= batch.num_rows
        if missing <= 0:
            return


def _without_columns(part: Input, columns: Sequence[str]) -> InputError:
    return InputError(
        f"{part.description} holds nothing but URLs, and has no column {', '.join(map(repr, columns))}: columns take a"
        " csv, tsv, json, jsonl or parquet list"
    )
