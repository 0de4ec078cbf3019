"""Compares the files that arrive with the hashes that the list expects, and says what becomes of those that differ."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

import pyarrow as pa

from any2ds.errors import printable, redacted
from any2ds.metadata import HASH_MATCHES, HASHES
from any2ds.parsers import HashCheck
from any2ds.types import DROPPED, Failure, Row

_SIZES = {kind: hashlib.new(kind).digest_size for kind in HASHES}  # in bytes
_HEX = re.compile(rb"[0-9A-Fa-f]*")
_NAMED = re.compile(r"(md5|sha-?256|sha-?512)\s*[:=-]\s*(.*)", re.IGNORECASE)  # as in OCI, Digest and SRI
_SHOWN = 200  # characters of a value that is no digest


class Expectations:
    """Judges files by the hash that the list expects of their rows.

    Nothing is tried again: a transfer that broke is known to have, by its length, and a file that has become another
    one stays so.
    """

    def __init__(self, check: HashCheck, on_mismatch: str) -> None:
        self._kind = check.kind
        self._on_mismatch = on_mismatch  # drop, flag or fail_row

    def __call__(self, row: Row, fields: dict[str, Any]) -> Failure | None:
        """Add the verdict to the `fields` of the file that has arrived, its hash among them. They go on telling what
        arrived; it is to be stored only if its status is success still."""
        found = fields[self._kind]
        expected = (row.expected_hash or "").strip()
        matches = is_digest(expected, found, self._kind) if expected else None
        fields[HASH_MATCHES.name] = matches
        if matches is not False or self._on_mismatch == "flag":
            return None
        fields["error_message"] = words = self._words(expected, found)
        fields["ext"] = None  # which is that of a stored file
        if self._on_mismatch == "drop":
            fields["status"] = DROPPED
            return None
        failure = Failure("transform", "hash_mismatch", words, fields["http_status"], fields["final_url"])
        fields["status"], fields["error_code"] = failure.status, failure.code
        return failure

    def _words(self, expected: str, found: str) -> str:
        if digest_in(expected, self._kind) is not None:
            return f"its {self._kind} is {found}, expected was {expected}"
        shown = printable(redacted(expected[:_SHOWN])) + "…" * (len(expected) > _SHOWN)
        return f"its {self._kind} is {found}, and what the list expects, {shown!r}, is no {self._kind}"


def is_digest(written: str, digest: str, kind: str) -> bool:
    """Whether `written` is the `digest`, which is given in lower hexadecimal."""
    return written.lower() == digest or digest_in(written, kind) == bytes.fromhex(digest)


def digest_in(written: str, kind: str) -> bytes | None:
    """The digest that somebody has written, None if it is none of this kind.

    In hexadecimal or base64 (also its URL-safe form, padded or not), with or without the name of the kind before it:
    `sha256:9f86…`, `sha256-n4bQ…`. The lengths tell the spellings apart.
    """
    found = _decoded(written, _SIZES[kind])
    if found is None and (named := _NAMED.fullmatch(written)) and named[1].lower().replace("-", "") == kind:
        found = _decoded(named[2], _SIZES[kind])
    return found


def _decoded(written: str, size: int) -> bytes | None:
    """The `size` bytes that are written in hexadecimal or base64."""
    try:
        encoded = written.encode("ascii")
        if len(encoded) == 2 * size:
            return bytes.fromhex(written) if _HEX.fullmatch(encoded) else None
        padded = written.rstrip("=").replace("-", "+").replace("_", "/") + "=" * (-size % 3)
        digest = base64.b64decode(padded, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return digest if len(digest) == size else None


def as_text(digests: pa.Array) -> pa.Array:
    """Binary values as text: digests in hexadecimal, and what was text already as it is."""
    return pa.array([_as_text(value) for value in digests.cast(pa.binary()).to_pylist()], pa.string())


def _as_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    is_raw = len(value) in _SIZES.values() and not _HEX.fullmatch(value)
    return value.hex() if is_raw else value.decode("utf-8", "replace")
