"""The rows of a url list: read from its inputs, in the columns and types of the dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.hashes import hash_columns
from any2ds.config.options import Config, InputOptions
from any2ds.config.parsers import HashCheck, HashChecks, arrow_type
from any2ds.core.errors import InputError, MissingColumns, OptionError, ReadError, WrongFormat, redacted
from any2ds.core.manifest import ListFile
from any2ds.core.members import Members, columns_of
from any2ds.core.metadata import HASHES
from any2ds.core.rows import RENAMED
from any2ds.readers.bad_rows import COLUMN, until_bad_row, with_reasons
from any2ds.readers.columns import (
    ALL,
    cast_rows,
    check_types,
    hash_sources,
    schema_of,
    url_column_advice,
    wanted_columns,
)
from any2ds.readers.contract import Columns
from any2ds.readers.first_rows import LOOKED_AT, column_with_urls, has_url, no_urls, refuse_columns
from any2ds.readers.inputs import Batches, Extent, File, Given, Input, OpenRowGroups, inputs_of
from any2ds.readers.look import refuse_unreadable
from any2ds.readers.paths import EACH, NUMBER, list_of, path_of
from any2ds.readers.shuffle import RowGroup, mixed, shuffled
from any2ds.readers.urls import TEMPLATE, UrlRules, has_references
from any2ds.storage.lists import InputFile, stamps
from any2ds.storage.stores import Stores

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
    ones. A list of URLs alone (txt) has no columns: wanted columns are ignored with `ignores_columns`, else refused.
    With `is_looked_at` another Source has found that all of its files can be read.
    """

    def __init__(
        self,
        options: InputOptions,
        verify_hash: HashCheck | HashChecks | None = None,
        stores: Stores | None = None,
        hashes: Collection[str] = HASHES,
        ignores_columns: bool = False,
        is_looked_at: bool = False,
    ) -> None:
        members = Members(columns_of(options.url_col))
        hash_cols = hash_sources(verify_hash, members)
        self._urls = UrlRules.of(options)
        self._inputs = self._found_inputs(options, stores or Stores())
        existing = self._columns_of_list(options) if _asks_for_names(options) else ()
        self._from = wanted_columns(options, hash_cols, hashes, existing)
        self._all = frozenset(existing if ALL in (options.save_additional_columns or ()) else ())
        if self._urls.columns:
            self._from["url"] = self._urls.columns[0]  # until rows are read
        self.ignored_columns: tuple[str, ...] = ()  # by their names in the list
        if all(part.has_only_urls for part in self._inputs):
            is_txt = all(isinstance(part, File) for part in self._inputs)
            own = "url" if is_txt else options.url_col
            needed = (*self._from.values(), *self._urls.columns)
            absent = tuple(dict.fromkeys(name for name in needed if name != own))
            if absent and not ignores_columns:
                raise _without_columns(self._inputs[0], absent)
            kept = {column: name for column, name in self._from.items() if name not in absent}
            self._from = {"url": own, **kept}
            self.ignored_columns = absent
            hash_cols = {name: source for name, source in hash_cols.items() if source not in absent}
        caption = self._from.get("caption") if options.caption_col else None
        urls = self._urls.columns or tuple(members.columns.values())
        texts = ("url", caption and "caption", *hash_cols, *members.url_columns)
        others = [name for column, name in self._from.items() if column not in texts]
        types = {name: arrow_type(type) for name, type in (options.column_types or {}).items()}
        self._columns = Columns(self._from["url"], caption, tuple(others), tuple(hash_cols.values()), types, urls)
        check_types(self._columns)
        if self._urls.columns:
            self._from["url"] = TEMPLATE
        self._url_columns = ("url", *members.url_columns)
        self._texts = {*self._url_columns, "caption"}
        self._stops_at_bad_row = options.on_bad_row == "stop"
        self._schema: pa.Schema | None = None
        files = self.input_files
        if not is_looked_at:
            refuse_unreadable([part for part in self._inputs if isinstance(part, File)], self._columns)
        # With sizes and times, before reading, so that a file that changes meanwhile counts as changed; empty if some
        # rows do not come from files.
        self.list_files: tuple[ListFile, ...] = stamps(files) if len(files) == len(self._inputs) else ()
        self._seed, self._limit = None if self.is_in_order else options.shuffle, options.limit
        self._given, self._is_read = 0, False  # rows; all of them
        self._has_warned = False  # of replaced bytes
        self._warned_of: set[str] = set()  # columns with values that became null
        self._rows = self._read()
        # Read to see whether there are any; None once `batches` has begun.
        self.first_rows = next(self._rows, None)
        if self.first_rows is None:
            names = f" in {', '.join(self.files[:3])}" if self.files else ""
            raise InputError(f"the url list is empty: no rows{names}")
        # Read behind the first rows, where these had no URL; and where the list broke off meanwhile.
        self._read_ahead: list[pa.RecordBatch] = []
        self._failure: ReadError | None = None
        self._check_first_rows(self.first_rows)

    @classmethod
    def of(cls, config: Config, in_list_order: bool = False, is_looked_at: bool = False) -> Source:
        """The source of a run, with all columns that the run needs. `is_looked_at` is as in the constructor."""
        recipe = presets.find(config.output.preset)
        stores, hashes = Stores(config.storage.storage_options), hash_columns(config.output)
        ignores_columns = recipe is not None and recipe.ignores_columns_of_txt
        options = dataclasses.replace(config.input, shuffle=None) if in_list_order else config.input
        source = cls(options, config.output.verify_hash, stores, hashes, ignores_columns, is_looked_at)
        for column in config.media.step_columns:
            if column in source.ignored_columns:  # what was to be blurred must not be stored unblurred
                raise _without_columns(source._inputs[0], [column])
        return source

    def _columns_of_list(self, options: InputOptions) -> tuple[str, ...]:
        """The names of all columns of the first input, and of the folders of its partitions; none of a txt."""
        part = self._inputs[0]
        if part.has_only_urls or isinstance(part, Given):
            return () if part.has_only_urls else tuple(part.extent.names)
        if part.is_used_up:
            if ALL not in (options.save_additional_columns or ()):
                return ()
            raise OptionError(f"save_additional_columns: {ALL!r} takes a list that can be read twice: name the columns")
        url = (*self._urls.columns, *columns_of(options.url_col).values(), options.url_col)[0]
        fresh = dataclasses.replace(part, extent=Extent())
        with contextlib.suppress(InputError, ReadError), closing(fresh.batches(Columns(url), None)) as batches:
            next(batches, None)  # what is wrong with it is told when its rows are read
        names = fresh.extent.names
        made = {url, f"{list_of(url)}{NUMBER}"} if path_of(url).root in names and path_of(url).is_nested else ()
        return (*(name for name in names if name not in made), *fresh.partitions)

    def _check_first_rows(self, first: pa.RecordBatch) -> None:
        """Raises InputError if none of the first rows has a URL, or if the lines of a txt have several columns."""
        part = self._inputs[0]
        is_txt = part.has_only_urls and isinstance(part, File)
        wanted = min(LOOKED_AT, self._limit or LOOKED_AT)
        batches = [first]
        if is_txt:
            if not part.is_used_up and first.num_rows < wanted:  # rows of a pipe are not waited for
                batches += self._look_ahead()
            lines = [url for batch in batches for url in batch["url"].to_pylist() if url]
            refuse_columns(lines[:LOOKED_AT], part.description)
        while not any(has_url(batch, self._url_columns) for batch in batches):
            rows = sum(batch.num_rows for batch in batches)
            more = self._look_ahead() if rows < wanted else []
            if self._failure is not None:  # raised when the run comes there
                return
            if more:
                batches += more
            elif rows >= LOOKED_AT or all(isinstance(part, File) for part in self._inputs):
                urls = [url for batch in batches for url in batch["url"].to_pylist()][:wanted]
                names = None if is_txt else part.extent.names
                raise no_urls(urls, part.description, names, self._columns.url, self._column_with_urls(part))
            else:  # a few rows from Python, which fail as rows do
                return

    def _column_with_urls(self, part: Input) -> str | None:
        """A column of a file that has URLs, in place of the one that has none."""
        if not isinstance(part, File) or part.is_used_up or len(part.extent.names) < 2:
            return None
        first, *others = part.extent.names
        again = dataclasses.replace(part, extent=Extent())
        try:
            with closing(again.batches(Columns(first, None, tuple(others)), None)) as batches:
                return column_with_urls(next(batches))
        except (InputError, ReadError, StopIteration):
            return None

    def _look_ahead(self) -> list[pa.RecordBatch]:
        """The next rows, which `batches` gives once more; none at the end."""
        try:
            batch = next(self._rows, None)
        except ReadError as error:
            self._failure, batch = error, None
        more = [] if batch is None else [batch]
        self._read_ahead += more
        return more

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
        if self._schema is None:
            raise AssertionError("the types are known since the first rows were read")
        return self._schema

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.schema.append(pa.field(COLUMN, pa.string())))

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
        return list_of(self._columns.url) is None and all(
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
        for name, source in self._from.items():
            if name == RENAMED + source:
                found.append(f"the list's column {source!r} is stored as {name!r}: any2ds writes a {source!r} itself")
        if self.ignored_columns:
            columns = ", ".join(self.ignored_columns)
            found.append(f"the url list holds nothing but URLs, so these columns are ignored: {columns}")
        return tuple(found)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns of the first input that the dataset does not keep, by their names in it."""
        kept = set(self._from.values())
        return tuple(name for name in self._inputs[0].extent.names if name not in kept)

    @property
    def can_be_read_again(self) -> bool:
        """Whether another Source with the same options has the same rows."""
        return not any(part.is_used_up for part in self._inputs)

    def batches(self, ends: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows up to the limit, in batches of `schema`; with `ends`, an empty batch after each file.

        A last column is `bad_rows.COLUMN`. With a seed the rows are
        shuffled, with `ends` within each file. Raises ReadError where the list breaks off, after yielding the rows
        before; of a shuffled list some of these are missing.
        """
        with closing(self._in_order(ends) if self._seed is None else self._shuffled(self._seed, ends)) as rows:
            yield from rows if self._limit is None else _first_rows(rows, self._limit)
        self._is_read = True

    def _in_order(self, ends: bool) -> Batches:
        with closing(self._rows):
            if self.first_rows is not None:
                first, self.first_rows = self.first_rows, None
                self._given += first.num_rows
                yield first
            for batch in self._rows_behind_the_first():
                self._given += batch.num_rows
                if ends or batch.num_rows:
                    yield batch

    def _rows_behind_the_first(self) -> Iterator[pa.RecordBatch]:
        yield from self._read_ahead
        self._read_ahead.clear()
        if self._failure is not None:
            raise self._failure
        yield from self._rows

    def _shuffled(self, seed: int, ends: bool) -> Batches:
        if self.has_row_groups:
            files = [part for part in self._inputs if isinstance(part, File)]
            self._rows.close()
            self.first_rows, self._rows = None, self._by_row_groups(files, seed, ends)
            yield from self._rows
            return
        with closing(self._in_order(ends)) as rows:
            yield from mixed(rows, seed)

    def _by_row_groups(self, files: Sequence[File], seed: int, ends: bool) -> Batches:
        def read(group: RowGroup) -> Batches:
            part = files[group.file]
            place = f"{self._place(part)}row group {group.number}, "
            with opened.reading(group) as batches:
                try:
                    for batch in self._typed(batches, place):
                        self._given += batch.num_rows
                        yield batch
                except ReadError as error:
                    raise error.in_file(part.name, f"row group {group.number}") from error.__cause__

        with closing(OpenRowGroups(files, self._columns, self._schema)) as opened:
            groups = opened.groups()
            for part in groups if ends else [[group for each in groups for group in each]]:
                with closing(shuffled(part, read, seed)) as rows:
                    yield from rows
                if ends and part:
                    yield self._no_rows()

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
                        self._warn_of_altered(part)
                        self._warn_of_further_columns(part)
                        yield batch
                        used += batch.num_rows
                if used:
                    yield self._no_rows()  # the end of the file
            except InputError as error:
                if isinstance(error, MissingColumns):
                    advice = url_column_advice(error.existing) if self._columns.url in error.missing else ""
                    error = MissingColumns(error.missing, error.existing, part.description, advice)
                elif isinstance(error, WrongFormat) and isinstance(part, File):
                    error = WrongFormat(error.reason, part.format_of(error), part.description)
                if self._schema is not None:
                    reason = str(error).removeprefix(f"{part.description}: ")
                    raise ReadError(f"row {used}", reason, part.name) from error
                raise error
            except ReadError as error:
                raise error.in_file(part.name, f"row {used}") from error.__cause__

    def _warn_of_further_columns(self, part: Input) -> None:
        if not self._all or ALL in self._warned_of:
            return
        known = {*self._all, *self._columns.names}
        if further := [name for name in part.extent.names if name not in known]:
            self._warned_of.add(ALL)
            log.warning(
                "%s: has columns that the first list has not, and %r leaves out: %s. Name them to carry them.",
                redacted(part.name),
                ALL,
                ", ".join(further[:10]),
            )

    def _warn_of_replaced(self, part: Input) -> None:
        if part.extent.replaced and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %s has bytes that are not UTF-8; such bytes are replaced by U+FFFD. Convert the list to UTF-8.",
                redacted(part.name),
                part.extent.replaced,
            )

        elif part.extent.undecoded and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: some bytes are not %s, and are replaced by U+FFFD, also in URLs: --encoding names another",
                redacted(part.name),
                part.extent.undecoded[0],
            )

    def _warn_of_altered(self, part: Input) -> None:
        for column in part.extent.altered.keys() - self._warned_of:
            self._warned_of.add(column)
            why = part.extent.altered[column]
            log.warning("%s: %s. Rows with such a value have none in that column.", redacted(part.name), why)

    def _schema_in_list(self) -> pa.Schema | None:
        if self._schema is None:
            return None
        types = {self._from[field.name]: field.type for field in reversed(list(self._schema))}  # text wins
        return pa.schema([pa.field(name, types.get(name, pa.string())) for name in self._columns.names])

    def _place(self, part: Input) -> str:
        """The file, before the place of a bad row. If the list stops at bad rows, the error names the file."""
        if self._stops_at_bad_row or len(self._inputs) == 1 or not part.name:
            return ""
        return re.split(r"[/\\]", redacted(part.name))[-1] + ", "

    def _typed(self, batches: Iterable[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        """The rows of an input in `schema`, up to the first bad row if the list stops there. Rows that do not fit are
        bad rows; `place` is written before their numbers."""
        typed = self._fitting(batches, place)
        return until_bad_row(typed) if self._stops_at_bad_row else typed

    def _fitting(self, batches: Iterable[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
        used = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            batch = self._urls.with_template(batch)
            if self._schema is None:
                self._schema = schema_of(batch, self._from, self._columns, self._texts)
            fitted, misfits = cast_rows(batch, self._from, self._schema, self._columns)
            for column in self._url_columns:
                at = fitted.schema.get_field_index(column)
                fitted = fitted.set_column(at, fitted.schema.field(at), self._urls.apply(fitted.column(at)))
            reasons = {row: f"row {used + row + 1}: {why}" for row, why in misfits.items()}
            if COLUMN in batch.schema.names and batch[COLUMN].null_count < batch.num_rows:
                reasons |= {row: why for row, why in enumerate(batch[COLUMN].to_pylist()) if why is not None}
            used += batch.num_rows
            yield with_reasons(fitted, {row: place + why for row, why in reasons.items()})


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
