"""Rows with URLs as a split: read from a list in any format, checked against the features, and sorted like samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds.config.media import member_options
from any2ds.config.options import Config, InputOptions
from any2ds.config.parsers import allowed_schemes, url_columns
from any2ds.core.errors import MissingColumns, UsageError
from any2ds.core.members import ALL, ANY, Members
from any2ds.core.members import columns_of as columns_of_members
from any2ds.core.rows import BAD_ROW_COLUMN as BAD_ROWS
from any2ds.core.tables import rows_of
from any2ds.dataset.features import Features, Optional, WrongValue
from any2ds.readers.columns import hash_sources
from any2ds.readers.contract import Wanted
from any2ds.readers.inputs import inputs_of
from any2ds.readers.rows import rows_as_listed
from any2ds.recipes.recipe import Recipe, UrlRows
from any2ds.recipes.spool import Spool
from any2ds.storage.stores import Stores

_KEY = "key"


def spool_rows(  # what a split of a build consists of
    rows: UrlRows, into: Spool, features: Features, recipe: Recipe, split: str, limit: int | None, config: Config
) -> None:
    """Put the rows of a split into its spool. Raises UsageError for a row with a wrong value."""
    if not features.files:
        raise UsageError(f"split {split}: rows with URLs need a feature that is a file, such as any2ds.Image()")
    members = members_of(rows, features, split)
    column_of = _columns(rows, features)
    expected = [*expected_hashes(config, members).values()]
    skipped = tuple(recipe.SKIPPED)
    for number, row in enumerate(islice(_rows(rows, [*column_of.values(), *expected], config), limit)):
        if row.get(BAD_ROWS) is not None:
            recipe.skip(number, "bad_row")
            continue
        key = row.get(rows.key_col or _KEY)
        if key is None:
            if rows.key_col is not None:
                raise UsageError(f"split {split}: row {number} has no key in the column {rows.key_col!r}")
            key = f"{split}-{number}"
        sample = _nested({name: row.get(column) for name, column in column_of.items()}, features)
        try:
            values, _ = features.encode(key, sample, with_files=False)
        except WrongValue as error:
            if skipped and isinstance(error.__cause__, skipped):
                recipe.skip(key, type(error.__cause__).__name__)
                continue
            raise UsageError(f"split {split}: row {number}: {error}") from error
        if absent := [column for column in expected if column not in row]:
            names = ", ".join(map(str, row))
            raise UsageError(f"verify_hash: row {number} of split {split} has no column {absent[0]!r}, it has {names}")
        urls = [row.get(column) for column in members.values()] if members else [row.get(str(rows.url_col))]
        hashes = [_digest(row[column]) for column in expected]
        into.add(key, [urls[0], *(urls if members else ()), *hashes, *values], (), (), str(urls[0] or ""))


def expected_hashes(config: Config, members: Mapping[str, str]) -> dict[str, str]:
    """Column of the dataset with the hashes that are expected of files -> its name in the list."""
    return hash_sources(config.output.verify_hash, Members(members))


def _digest(value: Any) -> str | None:
    return value.hex() if isinstance(value, bytes) else None if value is None else str(value)


def members_of(rows: UrlRows, features: Features, split: str) -> dict[str, str]:
    """Feature -> the column of its URLs, where a sample has several files; else empty. Raises UsageError."""
    try:
        members = columns_of_members(url_columns(rows.url_col))
    except ValueError as error:
        raise UsageError(f"UrlRows: invalid url_col={rows.url_col!r}: expected {error}") from None
    own = [leaf.column for leaf in features.files]
    if unknown := [name for name in members if name not in own]:
        raise UsageError(f"UrlRows: url_col: {unknown[0]!r} is none of the features that are files: {', '.join(own)}")
    given = members or dict.fromkeys(own[:1])
    for leaf in features.files:
        if leaf.column not in given and not isinstance(leaf.feature, Optional):
            raise UsageError(f"split {split}: url_col names no column with the URLs of the feature {leaf.column!r}")
    return members


def member_record(rows: UrlRows, features: Features, members: Mapping[str, str]) -> dict[str, Any] | None:
    """The options of a run over rows with several URLs; None if they have one. An optional feature need not arrive."""
    if not members:
        if rows.member_options:
            raise UsageError("UrlRows: member_options has no effect without several URLs: url_col=image:...,mask:...")
        return None
    needed = [leaf.column for leaf in features.files if not isinstance(leaf.feature, Optional)]
    require = ALL if len(needed) == len(members) else ",".join(needed) or ANY
    options = None if rows.member_options is None else member_options(rows.member_options)
    return {"url_col": url_columns(rows.url_col), "require": require, "member_options": options}


def schemes_of(rows: UrlRows) -> tuple[str, ...]:
    """The schemes that the recipe allows its rows. Raises UsageError for what is none."""
    try:
        return allowed_schemes(rows.allow_schemes) if rows.allow_schemes else ()
    except ValueError as error:
        raise UsageError(f"UrlRows: invalid allow_schemes={rows.allow_schemes!r}: expected {error}") from None


def _columns(rows: UrlRows, features: Features) -> dict[str, str]:
    """Feature -> the column of the list that holds it."""
    known = [leaf.column for leaf in features.columns]
    for name in rows.columns or {}:
        if name not in known:
            raise UsageError(f"UrlRows: columns: no feature is called {name!r}: {', '.join(known)}")
    return {name: (rows.columns or {}).get(name, name) for name in known}


def _nested(flat: Mapping[str, Any], features: Features) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for leaf in features.columns:
        place = found
        for name in leaf.path[:-1]:
            place = place.setdefault(name, {})
        place[leaf.path[-1]] = flat[leaf.column]
    return found


def _rows(rows: UrlRows, wanted: Sequence[str], config: Config) -> Iterator[Mapping[str, Any]]:
    """The rows of a list, by the names of its columns, of which those that are `wanted` are read from files."""
    given = rows.url_list
    if any(hasattr(given, name) for name in ("__arrow_c_stream__", "__arrow_c_array__")):
        with pa.RecordBatchReader.from_stream(given) as reader:
            for batch in reader:
                yield from rows_of(batch)
    elif isinstance(given, (str, os.PathLike)) or (isinstance(given, (list, tuple)) and _are_files(given)):
        yield from _in_files(rows, wanted, config)
    else:
        for number, row in enumerate(given):
            if isinstance(row, str):
                row = {rows.url_col: row}
            if not isinstance(row, Mapping):
                raise UsageError(f"row {number} of the list is {type(row).__name__}, expected a dict or a URL")
            yield row


def _are_files(given: Sequence[Any]) -> bool:
    return bool(given) and all(isinstance(each, os.PathLike) for each in given)


def _in_files(rows: UrlRows, wanted: Sequence[str], config: Config) -> Iterator[Mapping[str, Any]]:
    """With the columns that are wanted, as far as the list has them, and that of the keys."""
    given = rows.url_list
    paths = [os.fspath(each) for each in (given if isinstance(given, (list, tuple)) else [given])]
    files: Any = list(map(Path, paths)) if len(paths) > 1 else paths[0]
    options = InputOptions(url_list=files, input_format=rows.input_format)
    stores = Stores(config.storage.storage_options)
    names = dict.fromkeys([*wanted, rows.key_col or _KEY])
    columns: tuple[str, ...] = ()
    for part in inputs_of(options, stores):
        if not columns:
            existing = columns_of(part)
            if rows.key_col is not None and rows.key_col not in existing:
                raise MissingColumns([rows.key_col], sorted(existing))
            url_col, *more = columns_of_members(url_columns(rows.url_col)).values() or [str(rows.url_col)]
            others = [name for name in names if name in existing and name != url_col]
            columns = tuple(dict.fromkeys([url_col, *more, *others]))
        for batch in rows_as_listed(part.blocks, columns):
            yield from rows_of(batch)


def columns_of(part: Any) -> list[str]:
    """The columns of a list; none of a list of URLs alone."""
    if part.has_only_urls:
        return []
    try:
        with closing(part.blocks(Wanted.only("\x00"))) as blocks:
            next(blocks, None)
    except MissingColumns as error:
        return list(error.existing)
    return []
