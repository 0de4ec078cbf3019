"""The columns of a dataset and those of its list: which are wanted, their types, and the cast of rows to these."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.command_line import flag
from any2ds.config.options import InputOptions
from any2ds.config.parsers import HashCheck, HashChecks
from any2ds.core.digests import as_text
from any2ds.core.errors import InputError, OptionError, ReadError
from any2ds.core.members import URL, Members, column, columns_of
from any2ds.core.metadata import EXPECTED_HASH, HASHES, reserved_columns
from any2ds.core.rows import RENAMED
from any2ds.readers.bad_rows import misfit
from any2ds.readers.casts import cast_each, decoded, is_view, storable
from any2ds.readers.contract import Columns
from any2ds.readers.formats._paths import path_to_text
from any2ds.readers.formats._text import NO_UTF8_IN_URL, is_text_or_binary, one_line, to_text
from any2ds.readers.paths import EACH, NUMBER, list_of

ALL = "*"

_WORDS_FOR_URLS = {"url", "urls", "uri", "link", "links", "href", "src"}
_LONGEST_NAME = 100  # characters of the name of a column that is worth to be repeated


def wanted_columns(
    options: InputOptions, hash_cols: Mapping[str, str], hashes: Collection[str], existing: Sequence[str] = ()
) -> dict[str, str]:
    """Maps each column of the dataset to its name in the list, or to the path of its values; `hash_cols` are those of
    hashes that are expected, `existing` the columns of the list that `*` stands for.

    An additional column whose name any2ds writes itself is called `list_width`, say. Raises OptionError for other
    names that cannot be, and for paths through several lists.
    """
    reserved = reserved_columns(hashes)
    members = columns_of(options.url_col)
    wanted = {"url": next(iter(members.values()), options.url_col)}
    wanted |= {column(member, URL): source for member, source in members.items()}
    of_members = {column(member, name) for member in members for name in reserved_columns(HASHES)}
    if clash := sorted(of_members & reserved):
        raise OptionError(f"url_col: any2ds writes a column {clash[0]!r} itself: give the member another name")
    reserved |= {*of_members, "caption"}
    if options.caption_col is not None:
        wanted["caption"] = options.caption_col
    elif "caption" in (options.save_additional_columns or ()):
        raise OptionError(
            "a column 'caption' is what caption_col is for: caption_col=caption, or give it another name:"
            " save_additional_columns=caption:text"
        )
    wanted |= hash_cols
    each = None if wanted["url"] in existing else list_of(wanted["url"])
    if each is not None:
        wanted[f"{each.replace('.', '_')}_index"] = each + NUMBER
    reserved |= wanted.keys()
    for given in _additional(options.save_additional_columns or (), existing, wanted):
        source, _, name = ("", "", given) if given in existing else given.rpartition(":")
        if not source:
            source = name
            if wanted.get(name) == name:  # carried already
                continue
            while name in reserved or (name in wanted and given in existing):
                name = RENAMED + name
        if not name or name in reserved or name in wanted:
            raise OptionError(f"save_additional_columns: {given!r}: any2ds writes a column {name!r} itself, or another")
        wanted[name] = source
    if lists := {list_of(source) for source in wanted.values() if source not in existing} - {each, None}:
        raise OptionError(f"{lists.pop()}{EACH}: rows can be the elements of one list only, that of url_col")
    return wanted


def _additional(names: Sequence[str], existing: Sequence[str], wanted: Mapping[str, str]) -> Iterator[str]:
    """`names`, with the columns of the list that are not wanted yet in the place of `*`."""
    named = {*wanted.values(), *names, *(name.rpartition(":")[0] for name in names)}
    for name in names:
        if name == ALL:
            yield from (column for column in dict.fromkeys(existing) if column not in named)
        else:
            yield name


def hash_sources(check: HashCheck | HashChecks | None, members: Members | None) -> dict[str, str]:
    """Column of the dataset with the hashes that are expected of files -> its name in the list; those of members."""
    if check is None:
        return {}
    found = {name: check.of(name) for name in (members.names if members is not None and len(members) else ("",))}
    return {
        column(name, EXPECTED_HASH.name) if name else EXPECTED_HASH.name: each.column
        for name, each in found.items()
        if each is not None
    }


def is_word_for_urls(name: str) -> bool:
    """Whether a column of this name is likely to hold URLs."""
    return bool(_WORDS_FOR_URLS & {*re.split(r"[\W_]+", name.lower())})


def url_column_advice(existing: Collection[str]) -> str:
    """How to name the column of the URLs: the only one that is called so; empty if there are no columns."""
    likely = list(filter(is_word_for_urls, existing))
    is_clear = len(likely) == 1 and likely[0].isprintable() and len(likely[0]) <= _LONGEST_NAME
    option = flag("url_col", likely[0]) if is_clear else "--url_col=..."
    return f"name the column of the URLs with {option}" if existing else ""


def check_types(columns: Columns) -> None:
    """Raises OptionError if a type is declared for a column that is not wanted, or is text."""
    for name, type in columns.types.items():
        if name in columns.texts and not pa.types.is_string(type):
            raise OptionError(f"column_types: the column {name!r} is text, not {type}")
        if name not in columns.names:
            raise OptionError(f"column_types: {name!r} is not a column of save_additional_columns")


def schema_of(batch: pa.RecordBatch, sources: Mapping[str, str], columns: Columns, texts: Collection[str]) -> pa.Schema:
    """The types of the columns of the dataset, of which `texts` are text whatever the list has."""
    fields = []
    for name, source in sources.items():
        type = columns.types.get(source, batch.schema.field(source).type)
        if pa.types.is_run_end_encoded(type) or (pa.types.is_dictionary(type) and is_view(type.value_type)):
            type = type.value_type
        is_text = is_expected_hash(name, source, columns) or name in texts
        if is_text and pa.types.is_nested(type):
            raise InputError(f"the column {source!r} holds {type}, not text{_nested_advice(name, source, type)}")
        field = pa.field(name, pa.string() if is_text or pa.types.is_null(type) else storable(type))
        try:
            _store_nothing(pa.schema([field]))
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"the column {source!r} holds {type}, which cannot be written to Parquet: give it another type, or "
                f"leave it out of save_additional_columns ({one_line(error, 100)})"
            ) from error
        fields.append(field)
    return pa.schema(fields)


def _nested_advice(name: str, source: str, type: pa.DataType) -> str:
    """Which option reads the texts in a nested column, for the end of a message."""
    path = path_to_text(source, type)
    if name == "caption":
        path = path.replace(EACH, "[0]")
        also = f"; --save_additional_columns={source} keeps all" if "[0]" in path else ""
        return f": {flag('caption_col', path)} takes the first{also}" if path else ""
    return f": {flag('url_col', path)} reads those in it" if path and name == "url" else ""


def _store_nothing(schema: pa.Schema) -> None:
    """Raises what writing a shard with these columns would raise."""
    rows = schema.empty_table()
    pq.write_table(rows.take(pa.array([], pa.int64())), pa.BufferOutputStream())


def is_expected_hash(name: str, source: str, columns: Columns) -> bool:
    """Whether a column of the dataset holds the hashes that the list expects of files."""
    return source in columns.expected_hashes and name.endswith(EXPECTED_HASH.name)


def cast_rows(
    batch: pa.RecordBatch, sources: Mapping[str, str], schema: pa.Schema, columns: Columns
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns of `schema`, from their `sources` in the list, of which `columns` tells; and the rows with values
    that do not fit, by position, with the reasons.

    Raises ReadError if no value of a column can fit.
    """
    arrays, reasons = [], dict[int, str]()
    for field in schema:
        name = sources[field.name]
        if name not in batch.schema.names:  # a later file may lack it
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = _castable(batch[name], field, is_expected_hash(field.name, name, columns))
        if pa.types.is_string(field.type) and is_text_or_binary(array.type):
            is_url = field.name == "url" or name in columns.urls
            array = to_text(array, NO_UTF8_IN_URL if is_url else "replace")
        try:
            fitting, misfits = cast_each(array, field.type)
        except pa.ArrowException as error:
            raise ReadError("", f"column {name!r}: {array.type} does not fit {field.type}") from error
        arrays.append(fitting)
        for row in misfits:
            reasons.setdefault(row, misfit(name, field.type, array[row].as_py(), name in columns.types))
    return pa.RecordBatch.from_arrays(arrays, schema=schema), reasons


def _castable(array: pa.Array, field: pa.Field, is_hash: bool) -> pa.Array:
    """The values in a type that Arrow can cast to that of `field`."""
    array = decoded(array, keeps_dictionary=pa.types.is_dictionary(field.type))
    if is_hash and _is_binary(array.type):
        array = as_text(array)
    if pa.types.is_string(field.type) and (pa.types.is_float32(array.type) or pa.types.is_float64(array.type)):
        array = pc.if_else(pc.is_finite(array), array, None)  # pandas has NaN for what is missing
    return array


def _is_binary(type: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(type) or type in (pa.binary(), pa.large_binary(), pa.binary_view())
