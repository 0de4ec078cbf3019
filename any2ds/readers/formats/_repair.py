"""Repairs what Python writes as JSON: NaN and Infinity, which are no JSON, and halves of surrogate pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_SIGNS = (b"NaN", b"Infinity", rb"\ud", rb"\uD")  # without one of them, nothing is to be repaired
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|-?Infinity|NaN', re.DOTALL)
# An escaped backslash, a pair of surrogates, and a half of one.
_ESCAPE = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)", re.DOTALL)
# An escape at the end of a piece that may go on in the next one.
_OPEN_ESCAPE = re.compile(rb"(?:\\u[dD][89abAB]..)?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z", re.DOTALL)
_LONGEST_ESCAPE = 12  # bytes, of a pair
_LONGEST_NUMBER = 9  # bytes, of -Infinity


def repaired(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON document in which NaN and Infinity are null, and a half of a surrogate pair is U+FFFD; pieces keep their
    size, about."""
    rest, is_in_string = b"", False
    for piece in chain(pieces, [None]):
        data = rest + (piece or b"")
        end = len(data) if piece is None else _before_open_token(data)
        data, rest = data[:end], data[end:]
        # A quote behind an escape does not end its string.
        quotes = data.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')
        if any(sign in data for sign in _SIGNS):
            opening = b'"' * is_in_string
            yield _TOKEN.sub(_repaired_token, opening + data)[len(opening) :]
        elif data:
            yield data
        is_in_string ^= quotes % 2 == 1


def _before_open_token(data: bytes) -> int:
    """Where an escape or a word begins at the end of `data` that may go on behind it; else the length of `data`."""
    escape = _OPEN_ESCAPE.search(data, max(0, len(data) - _LONGEST_ESCAPE))
    at = escape.start() if escape else len(data)
    if at < len(data):
        backslashes = at - len(data[:at].rstrip(b"\\"))
        return at if backslashes % 2 == 0 else len(data)  # an odd one before it escapes this one
    word = data[-_LONGEST_NUMBER:]
    start = len(data) - len(word) + len(word.rstrip(b"-INafinty"))
    return len(data) if data[:start].endswith(b"\\") else start


def _repaired_token(token: re.Match[bytes]) -> bytes:
    return _ESCAPE.sub(_repaired_escape, token[0]) if token[0].startswith(b'"') else b"null"


def _repaired_escape(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def without_surrogates(value: Any) -> Any:
    """A value, as JSON has them, whose texts can be encoded: pairs of surrogates are joined, halves become U+FFFD."""
    if isinstance(value, str):
        if value.isascii() or not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_surrogates(part) for part in value]
    return value


def is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def without_nan(value: Any) -> Any:
    """A value with None in the place of NaN and infinite numbers, as JSON writes them."""
    if isinstance(value, Mapping):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if is_not_finite(value) else value
