"""The columns of a dataset and those of its list: which are wanted, and how they are called."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from any2ds.config.command_line import flag
from any2ds.config.options import InputOptions
from any2ds.config.parsers import HashCheck, HashChecks, arrow_type
from any2ds.core.errors import OptionError
from any2ds.core.members import URL, Members, column, columns_of
from any2ds.core.metadata import EXPECTED_HASH, HASHES, reserved_columns
from any2ds.core.rows import KEY_COLUMN, RENAMED
from any2ds.readers.contract import Field
from any2ds.readers.paths import EACH, NUMBER, list_of
from any2ds.readers.urls import UrlRules

ALL = "*"

_WORDS_FOR_URLS = {"url", "urls", "uri", "link", "links", "href", "src"}
_LONGEST_NAME = 100  # characters of the name of a column that is worth to be repeated


def wanted_columns(
    options: InputOptions, own: Mapping[str, str], hashes: Collection[str], existing: Sequence[str] = ()
) -> dict[str, str]:
    """Maps each column of the dataset to its name in the list, or to the path of its values; `own` are those of
    expected hashes and of names, `existing` the columns of the list that `*` stands for.

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
    wanted |= own
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


def fields_of(
    columns: Mapping[str, str], options: InputOptions, url_columns: Collection[str], own: Collection[str]
) -> list[Field]:
    """The columns of the dataset, by their names in the list; those of the URL template are text unless declared.

    Raises OptionError if a type is declared for a column that is not wanted, or is text.
    """
    types = {name: arrow_type(type) for name, type in (options.column_types or {}).items()}

    def kind(name: str) -> str:
        if name in url_columns:
            return "url"
        if name in own:
            return "name" if name == KEY_COLUMN else "hash"
        return name if name == "caption" else ""

    of_template = dict.fromkeys(UrlRules.of(options).columns, pa.string())
    fields = [Field(name, source, kind(name), (of_template | types).get(source)) for name, source in columns.items()]
    for source, type in types.items():
        uses = [field.kind for field in fields if field.source == source]
        if not uses:
            raise OptionError(f"column_types: {source!r} is not a column of save_additional_columns")
        if all(uses) and not pa.types.is_string(type):
            raise OptionError(f"column_types: the column {source!r} is text, not {type}")
    return fields
