"""Tells what kind of file a body is: by its first bytes, by its text, by what the server said.

A media type that a server declares is believed unless the bytes contradict it: a web page is no JPEG, whatever its
Content-Type says.
"""

from __future__ import annotations

import codecs
import mimetypes
import re
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import orjson

from any2ds.core.signatures import type_by_signature, types_by_ext

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

# Formats of image, sound and video that are text, or have a header of text that may be longer than a head.
_TEXT_FORMATS = re.compile(
    r"image/(?:x-portable-|x-xpixmap|x-xpm|x-xbitmap|x-xbm|vnd\.dxf|x-dxf|fits|x-fits|x-eps|eps|vnd\.radiance|x-hdr)"
    r"|audio/(?:x-)?(?:mpegurl|scpls|pn-realaudio)|video/(?:vnd\.mpegurl|x-ms-as[fx]|x-ms-wvx)"
)
# Types by signature of files that may be text from end to end.
_TEXT_WITH_SIGNATURE = frozenset({"application/pdf", "application/rtf"})

_PREFERRED = {
    "text/plain": "txt",
    "text/html": "html",
    "text/xml": "xml",
    "application/xml": "xml",
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
# Extension -> media type of files that are known by their first bytes.
_FURTHER_TYPES = {**types_by_ext(), "flac": "audio/flac"}
_BOM = codecs.BOM_UTF8
_CONTROLS = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffe\uffff]")  # that no text contains
_WIDE = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"<\0", "utf-16-le"),  # without a mark, as XML, appendix F, has it
    (b"\0<", "utf-16-be"),
)
# The root element of a document, behind declarations and comments.
_BEFORE_ROOT = re.compile(r"(?:\s+|<\?.*?\?>|<!--.*?-->)*", re.DOTALL)
_ROOT = re.compile(r"<(?:!doctype\s+)?(?:\w+:)?(html|svg)(?![\w-])", re.IGNORECASE)
_MARKUP = {"html": ("text/html", "html"), "svg": ("image/svg+xml", "svg")}
# Tags that a page without a root begins with (WHATWG, MIME Sniffing, 7.1).
_PART_OF_PAGE = re.compile(
    r"<(?:head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p|center|meta)[\s/>]", re.IGNORECASE
)
_XML_ROOT = re.compile(r"<([A-Za-z_][\w:.-]*)[\s/>]", re.ASCII)
_MOST_MARKUP = 1 << 16  # bytes in which a root element is looked for
_TAIL = 256  # bytes at the end, where its end tag is
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
    return _by_signature(head, media_type) or (media_type, _ext_of(media_type))


def recognize_file(body: Body | StoredBody, media_type: str | None) -> tuple[str | None, str]:
    """As `recognize`, and by a look at the file where it has no signature: HTML, SVG, XML, JSON, Parquet.

    A file served as image, sound or video is what its text says if it has no signature and reads as text.
    """
    head = body.head()
    return _by_signature(head, media_type) or _by_content(body, head, media_type) or (media_type, _ext_of(media_type))


def _by_signature(head: bytes, media_type: str | None) -> tuple[str, str] | None:
    """The type that the first bytes stand for; None for a text that begins as a binary file does, such as `BMW is`."""
    by_signature = type_by_signature(head)
    if by_signature is None or by_signature[0] in {media_type, *_TEXT_WITH_SIGNATURE} or head.startswith(b"%!PS"):
        return by_signature
    return None if _is_text(head) else by_signature


def _is_text(head: bytes) -> bool:
    """Whether a file that begins so reads as text: UTF-8, or UTF-16 or UTF-32 with a mark, without control characters.

    Text in other charsets is not told from pixels or sound.
    """
    charset = next((charset for mark, charset in _WIDE if head.startswith(mark)), "utf-8")
    try:
        text = codecs.getincrementaldecoder(charset)().decode(head)  # without half a character at the end
    except UnicodeDecodeError:
        return False
    return bool(text) and not _CONTROLS.search(text)


def _by_content(body: Body | StoredBody, head: bytes, media_type: str | None) -> tuple[str, str] | None:
    """The type of a file without a signature by what is in it; None where `media_type` is to be believed."""
    is_unhelpful = media_type in _UNHELPFUL
    if not is_unhelpful and not (media_type or "").startswith(("image/", "audio/", "video/")):
        return None
    is_strict = is_unhelpful or _TEXT_FORMATS.match(media_type or "") is not None
    start = head.removeprefix(_BOM).lstrip()
    if start.startswith((b"{", b"[")) and _is_json(body, head):
        return "application/json", "json"
    if is_unhelpful and head.startswith(b"PAR1") and _tail(body, 4) == b"PAR1":
        return "application/vnd.apache.parquet", "parquet"
    is_markup = not start or start.startswith((b"<", *(mark for mark, _ in _WIDE)))
    if is_markup and (by_markup := _by_markup(body, is_strict)):
        return by_markup
    if is_strict or (is_markup and media_type == "image/svg+xml") or not _is_text(head):
        return None
    return "text/plain", "txt"


def _by_markup(body: Body | StoredBody, is_strict: bool) -> tuple[str, str] | None:
    """The type of a document by its root element; unless `is_strict`, also of parts of a page and of bare XML."""
    text = _decoded(_first(body, _MOST_MARKUP))
    prolog = _BEFORE_ROOT.match(text)
    at = prolog.end() if prolog else 0
    if root := _ROOT.match(text, at):
        return _MARKUP[root[1].lower()]
    if not is_strict and _PART_OF_PAGE.match(text, at):
        return "text/html", "html"
    element = _XML_ROOT.match(text, at)
    if text.lstrip().startswith("<?xml") and (element or text.startswith("<!DOCTYPE", at)):
        return "text/xml", "xml"
    if not is_strict and element and _decoded(_tail(body, _TAIL)).rstrip().endswith(f"</{element[1]}>"):
        return "text/xml", "xml"
    return None


def _decoded(data: bytes) -> str:
    """The text, as far as tags are concerned: of charsets other than UTF-16 and UTF-32, only ASCII is right."""
    for mark, charset in _WIDE:
        if data.startswith(mark):
            return data.decode(charset, "replace").removeprefix("\ufeff")
    return data.removeprefix(_BOM).decode("latin-1")


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
    found = _TYPES_BY_EXT.get(ext[1:]) or _built_in_types().types_map[True].get(ext)
    return found or _FURTHER_TYPES.get(ext[1:])


@lru_cache(maxsize=4096)
def _ext_of(media_type: str | None) -> str:
    if media_type is None:
        return UNKNOWN_EXT
    return _PREFERRED.get(media_type) or (_built_in_types().guess_extension(media_type) or UNKNOWN_EXT).lstrip(".")
