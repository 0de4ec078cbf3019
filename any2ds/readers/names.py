"""Names of samples that a column of the list gives (`key_col`): safe in every format and file system, and one a row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from hashlib import blake2b
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.command_line import flag
from any2ds.core.errors import InputError, ReadError
from any2ds.core.metadata import shown_urls
from any2ds.core.rows import BAD_ROW_COLUMN, KEY_COLUMN
from any2ds.readers.seen_texts import SeenTexts

_LONGEST = 128  # characters; file systems take 255 bytes, with the extensions of members and steps
_PLAIN = "^[0-9A-Za-z-]{5,128}$"  # texts that are names as they stand, which are recognised in a third of the time
_OF_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)  # which are no files for Windows
_LIKE_A_PART = re.compile(r"_(?=\d{4,}$)")  # as `samples.sample_key` numbers the samples of one row


def safe_name(text: str) -> str:
    """The text with percent-escapes for all but letters, digits, `-` and `_`: `urllib.parse.unquote` gives it back.

    A long one is cut, and ends in `~` and a hash. `~` begins the names of rows that could not be read.
    """
    name = quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
    name = _LIKE_A_PART.sub("%5F", name)
    if _OF_DEVICES.fullmatch(name):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 33]}~{blake2b(text.encode(), digest_size=16).hexdigest()}"
    return name


def safe_names(texts: pa.Array) -> pa.Array:
    """The names that texts stand for, without blanks around them; null where there is none."""
    texts = pc.utf8_trim_whitespace(texts)
    if pc.all(pc.fill_null(pc.match_substring_regex(texts, _PLAIN), True)).as_py():
        return texts
    texts = shown_urls(texts)  # credentials are in no key, as they are in no metadata
    return pa.array([safe_name(text) if text else None for text in texts.to_pylist()], pa.string())


def refuse_unusable_names(batches: Iterable[pa.RecordBatch], column: str, ignores_case: bool) -> None:
    """Raises InputError for the first row without a name, and for the first whose name an earlier row has.

    Rows that could not be read have no name, and need none. Where the list breaks off, the rows before it are checked.
    """
    start = 0
    with closing(SeenTexts()) as seen:
        try:
            for batch in batches:
                names, good = batch[KEY_COLUMN], batch[BAD_ROW_COLUMN].is_null()
                if (row := pc.index(pc.and_(names.is_null(), good), True).as_py()) >= 0:
                    raise InputError(f"key_col: row {start + row + 1:,} of the list has no text in {column!r}")
                seen.add(pc.ascii_lower(names) if ignores_case else names, start)
                start += batch.num_rows
        except ReadError:
            pass
        for row, first in seen.duplicates():
            same = "the same but for the case of letters, which disks may ignore" if ignores_case else "the same"
            raise InputError(
                f"key_col: rows {first + 1:,} and {row + 1:,} of the list have {same} in {column!r}, which is to name"
                f" one: leave the second out, or carry the column by {flag('save_additional_columns', column)} instead"
            )
