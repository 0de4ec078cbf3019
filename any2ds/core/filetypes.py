"""Tells what kind of file a body is: by its first bytes, by what the server said, else by a look at its text."""

from __future__ import annotations

import codecs
import mimetypes
import re
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import orjson

from any2ds.core.signatures import type_by_signature

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Body
    from any2ds.core.bodies.stored import StoredBody

UNKNOWN_EXT = "flat"
# Media types that say nothing of a file: servers give them where they do not know better.
_UNHELPFUL = frozenset(
    {
        None,
        "",
        "*/*",
        "text/plain",
        "application/octet-stream",
        "binary/octet-stream",
        "application/unknown",
        "unknown/unknown",
        "application/download",
        "application/x-download",
        "application/force-download",
    }
)

_PREFERRED = {
    "text/plain": "txt",
    "text/html": "html",
    "image/jpeg": "jpg",
    "image/tiff": "tif",
    "audio/mpeg": "mp3",
    "audio/x-wav": "wav",
    "audio/wav": "wav",
    "video/mp4": "mp4",
    "application/x-gzip": "gz",
    "application/gzip": "gz",
    "application/octet-stream": UNKNOWN_EXT,
    "binary/octet-stream": UNKNOWN_EXT,
    "application/jsonl": "jsonl",
    "application/x-ndjson": "jsonl",
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "application/x-npy": "npy",
    "audio/ac3": "ac3",
    "audio/eac3": "eac3",
}
_TYPES_BY_EXT = {ext: kind for kind, ext in reversed(_PREFERRED.items()) if ext != UNKNOWN_EXT}
_BOM = codecs.BOM_UTF8
# The root element of a document, behind declarations and comments.
_BEFORE_ROOT = re.compile(rb"(?:\s+|<\?.*?\?>|<!--.*?-->)*", re.DOTALL)
_ROOT = re.compile(rb"<(?:!doctype\s+)?(?:\w+:)?(html|svg)(?![\w-])", re.IGNORECASE)
_MARKUP = {b"html": ("text/html", "html"), b"svg": ("image/svg+xml", "svg")}
_MOST_JSON = 1 << 20  # bytes that are parsed to see whether they are JSON; of a longer file the first are


@cache
def _built_in_types() -> mimetypes.MimeTypes:
    """Only the types that Python itself knows: the system's own list would make names differ from machine to machine.

    It is read all the same, which takes a while.
    """
    return mimetypes.MimeTypes(filenames=())


def recognize(head: bytes, media_type: str | None) -> tuple[str | None, str]:
    """Media type and extension (without dot) of a file that begins with `head`, served as `media_type`.

    The extension is `flat` where neither tells.
    """
    return type_by_signature(head) or (media_type, _ext_of(media_type))


def recognize_file(body: Body | StoredBody, media_type: str | None) -> tuple[str | None, str]:
    """As `recognize`; where neither signature nor media type tells, by a look at the file: HTML, SVG, JSON, Parquet."""
    head = body.head()
    if found := type_by_signature(head):
        return found
    return (_looked_at(body, head) if media_type in _UNHELPFUL else None) or (media_type, _ext_of(media_type))


def _looked_at(body: Body | StoredBody, head: bytes) -> tuple[str, str] | None:
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"<"):
        before = _BEFORE_ROOT.match(text)
        root = _ROOT.match(text, before.end() if before else 0)
        return None if root is None else _MARKUP[root[1].lower()]
    if text.startswith((b"{", b"[")):
        return ("application/json", "json") if _is_json(body, head) else None
    if head.startswith(b"PAR1") and _tail(body, 4) == b"PAR1":
        return "application/vnd.apache.parquet", "parquet"
    return None


def _is_json(body: Body | StoredBody, head: bytes) -> bool:
    """Whether all of it is; of a file too long to be parsed, whether its first part is the beginning of JSON."""
    if not _is_json_up_to_its_end(head):  # which is enough for most texts
        return False
    if body.size > _MOST_JSON:
        return _is_json_up_to_its_end(_first(body, _MOST_JSON))
    try:
        orjson.loads(body.read().removeprefix(_BOM))
    except orjson.JSONDecodeError:
        return False
    return True


def _is_json_up_to_its_end(part: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(part)  # without half a character at the end
    except UnicodeDecodeError:
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return error.pos >= len(text)  # nothing is wrong but that it ends
    return True


def _first(body: Body | StoredBody, size: int) -> bytes:
    found = bytearray()
    for chunk in body.chunks():
        found += chunk[: size - len(found)]
        if len(found) == size:
            break
    return bytes(found)


def _tail(body: Body | StoredBody, size: int) -> bytes:
    found = b""
    for chunk in body.chunks():
        found = (found + bytes(chunk[-size:]))[-size:]
    return found


def type_of_name(name: str) -> str | None:
    """The media type that the end of a file's name stands for."""
    ext = PurePosixPath(name.replace("\\", "/")).suffix.lower()
    return _TYPES_BY_EXT.get(ext[1:]) or _built_in_types().types_map[True].get(ext)


@lru_cache(maxsize=4096)
def _ext_of(media_type: str | None) -> str:
    if media_type is None:
        return UNKNOWN_EXT
    return _PREFERRED.get(media_type) or (_built_in_types().guess_extension(media_type) or UNKNOWN_EXT).lstrip(".")
