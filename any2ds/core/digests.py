"""Digests as people write them in a list: hexadecimal, base64, raw bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

import pyarrow as pa

from any2ds.core.metadata import HASHES

_SIZES = {kind: hashlib.new(kind).digest_size for kind in HASHES}  # in bytes
_HEX = re.compile(rb"[0-9A-Fa-f]*")
_NAMED = re.compile(r"(md5|sha-?256|sha-?512)\s*[:=-]\s*(.*)", re.IGNORECASE)  # as in OCI, Digest and SRI


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
