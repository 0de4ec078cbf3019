"""Words about rows of a list that cannot be read: the place and the reason, such as `row 7: 2 values for 3 columns`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from any2ds.core.errors import printable, redacted

_SHOWN = 200  # characters of a line


def excerpt(line: str | bytes, at_most: int = _SHOWN) -> str:
    """A line of the list for a message: short, on one line, without credentials."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    text = redacted(" ".join(text[: 10 * at_most].split()))
    text = text if text.isprintable() else printable(text)
    return text if len(text) <= at_most else f"{text[:at_most]}…"


def shown(value: Any, at_most: int = 50) -> str:
    """The beginning of a value as Python writes it, for a message."""
    try:
        return excerpt(repr(value[: 2 * at_most] if isinstance(value, (str, bytes, list)) else value), at_most)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, a nested value
        return f"a long {type(value).__name__}"


def misfit(column: str, type: pa.DataType, value: Any, is_declared: bool = False) -> str:
    """Why a value does not fit the type of its column, and what helps."""
    why = (
        "the type that --column_types declares"
        if is_declared
        else f"the type of the first rows; --column_types={column}:string declares another"
    )
    return f"column {column!r}: {shown(value)} is not {type}, {why}"


def one_line(text: Any, at_most: int = _SHOWN) -> str:
    """`text` for an error message."""
    message = printable(" ".join(str(text).split()))
    return message if len(message) <= at_most else f"{message[:at_most]}…"
