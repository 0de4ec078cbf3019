"""Refuses a list whose first rows are no URLs, before anything is sent: it is read with a wrong format or column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.command_line import flag
from any2ds.core.errors import InputError
from any2ds.readers.bad_rows import excerpt
from any2ds.readers.columns import is_word_for_urls, url_column_advice

LOOKED_AT = 1000  # rows
_URL = r"^\s*[A-Za-z][A-Za-z0-9+.-]*:(?:[/\\]|data:)|^\s*data:"
# A file, a comma and words. URLs may have commas and blanks in them, but then the file comes last.
_FILE_AND_WORDS = re.compile(r"\w+://[^,\t?]*\.\w{2,5}\s*,[^/]*\s[^/]*")
# //host/a.jpg, www.host.com, host.com/a.jpg
_HOST_FIRST = re.compile(r"\s*(?://\w|www\.|(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?/)", re.IGNORECASE)
_ENDS_AS_FILE = re.compile(r"\.\w{2,5}$")
# Of the first lines: with fewer, some lines of a good list are odd. Commas belong to many URLs, tabs to none.
_COLUMNS_FROM = {",": 0.9, "\t": 0.1}
_ONE_A_LINE = "a txt holds one URL a line: keep the first URL of each line, and leave out lines that are none"


def has_url(rows: pa.RecordBatch, columns: Sequence[str]) -> bool:
    """Whether one of the first rows has a URL in one of `columns`."""
    first = rows.slice(0, LOOKED_AT)
    return any(pc.any(pc.match_substring_regex(first[name], _URL)).as_py() for name in columns)


def column_with_urls(rows: pa.RecordBatch) -> str | None:
    """The first column of texts of which one is a URL, in the first rows."""
    kinds = (pa.string(), pa.large_string())
    texts = (field.name for field in rows.schema if field.type in kinds)
    return next((name for name in texts if has_url(rows, [name])), None)


def no_urls(
    rows: Iterable[str | None], source: str, existing: Sequence[str] | None, url_col: str, better: str | None
) -> InputError:
    """The error for a list of which none of the first `rows` is a URL; `existing` are its columns, None for a txt.

    They were read from the column `url_col`; `better` is one that has URLs.
    """
    texts = list(rows)
    which = "the first row is no URL" if len(texts) == 1 else f"none of the first {len(texts):,} rows is a URL"
    example = next((text for text in texts if text), None)
    shown = f"such as https://host/a.jpg, but {excerpt(example)!r}" if example else "since they are empty"
    if better is not None:
        advice = f"the column {better!r} has some: {flag('url_col', better)}"
    elif example is not None and _HOST_FIRST.match(example):
        advice = "https:// is missing in front"
    elif existing is None:
        advice = _format_advice([text for text in texts if text])
        allow = flag("allow_schemes", "file")
        advice = advice or f"a path of this machine is written file:///folder/a.jpg, and read with {allow}"
    else:
        others = url_column_advice([name for name in existing if name != url_col])
        advice = f"the column {url_col!r} holds none" + f"; {others}" * bool(others)
    return InputError(f"{source}: {which} {shown}" + f"; {advice}" * bool(advice))


def refuse_columns(lines: Sequence[str], source: str) -> None:
    """Raises InputError if the first `lines` of a txt have further columns behind or before their URLs: the servers
    would be asked for URLs with captions in them."""
    if advice := _format_advice(lines):
        example = next((line for line in lines if "\t" in line), lines[0])
        raise InputError(f"{source}: its lines have several columns ({excerpt(example)!r}); {advice}")


def _format_advice(lines: Sequence[str]) -> str:
    """How to read lines that have columns; empty for lines that are URLs."""
    for separator, format in (("\t", "tsv"), (",", "csv")):
        names = lines[0].split(separator) if lines else []
        is_header = len(names) > 1 and any(map(is_word_for_urls, names))
        is_certain = separator == "\t" or is_header
        rows = [line for line in lines if separator in line and (is_certain or _has_further_columns(line))]
        if len(rows) < _COLUMNS_FROM[separator] * max(1, len(lines)) or not rows:
            continue
        if separator == "\t" and all("://" in value for line in rows for value in line.split("\t")):
            return _ONE_A_LINE  # aria2 takes such lists, with mirrors
        header, *others = (line.split(separator) for line in lines)
        if "://" in lines[0] or len(header) == 1:
            return f"put a line with the names of the columns in front, and read it with --input_format={format}"
        column = next((n for n, value in enumerate(others[0] if others else ()) if "://" in value), None)
        is_other = column is not None and column < len(header) and header[column].strip() != "url"
        url_col = f" {flag('url_col', header[column].strip())}" if is_other and column is not None else ""
        return f"--input_format={format}{url_col} reads it"
    return ""


def _has_further_columns(line: str) -> bool:
    """Whether the commas in a line are no part of its URL."""
    if re.match(_URL, line):
        return _FILE_AND_WORDS.fullmatch(line) is not None and _ENDS_AS_FILE.search(line) is None
    return True
