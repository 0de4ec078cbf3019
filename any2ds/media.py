"""Tells what kind of file a body is: by its first bytes, else by what the server said."""

from __future__ import annotations

import mimetypes
import re
from functools import lru_cache
from pathlib import PurePosixPath

import filetype

UNKNOWN_EXT = "flat"

# Only the types that Python itself knows: the system's own list would make names differ from machine to machine.
_BUILT_IN_TYPES = mimetypes.MimeTypes(filenames=())
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
    "audio/ac3": "ac3",
    "audio/eac3": "eac3",
}
# Of a transport stream: ISO/IEC 13818-1, 2.4.3.2.
_PACKET = rb"G[\x00-\x7f].[\x10-\x3f\x50-\x7f\x90-\xbf\xd0-\xff].{184}"
# What `filetype` does not know: how it begins, and its media type and extension.
_FURTHER = tuple(
    (re.compile(start, re.DOTALL), media_type, ext)
    for start, media_type, ext in (
        (rb"(?:%b){5}" % _PACKET, "video/mp2t", "ts"),
        (rb"(?:.{4}%b){5}" % _PACKET, "video/mp2t", "m2ts"),  # Blu-ray's: a time before each packet
        (rb"RF64.{4}WAVE", "audio/x-wav", "wav"),  # with room for more than 4 GB
        (rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1", "audio/x-w64", "w64"),
        (rb"caff\x00\x01", "audio/x-caf", "caf"),
        (rb"\.snd\x00", "audio/basic", "au"),
        (rb"wvpk", "audio/x-wavpack", "wv"),
        (rb"TTA1", "audio/x-tta", "tta"),
        (rb"\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl", "jxl"),
    )
)
_TYPES_BY_EXT = {ext: kind for kind, ext in reversed(_PREFERRED.items()) if ext != UNKNOWN_EXT}
# `<key>.txt` is the caption and `<key>.json` the metadata. Readers of webdataset decode by the last part of the name.
_TAKEN = {"txt": "data.txt", "json": "data.json"}


def recognize(head: bytes, media_type: str | None) -> tuple[str | None, str]:
    """Media type and extension (without dot) of a file that begins with `head`, served as `media_type`.

    The extension is `flat` where neither tells, and never the caption's `txt` or the metadata's `json`.
    """
    if head[257:262] == b"ustar":  # before the name of its first file is taken for a signature: BM is a bitmap's
        return "application/x-tar", "tar"
    kind = filetype.guess(head)
    if kind is not None:
        return kind.mime, _TAKEN.get(kind.extension, kind.extension)
    for start, told, ext in _FURTHER:
        if start.match(head):
            return told, ext
    return media_type, _ext_of(media_type)


def type_of_name(name: str) -> str | None:
    """The media type that the end of a file's name stands for."""
    ext = PurePosixPath(name.replace("\\", "/")).suffix.lower()
    return _TYPES_BY_EXT.get(ext[1:]) or _BUILT_IN_TYPES.types_map[True].get(ext)


@lru_cache(maxsize=4096)
def _ext_of(media_type: str | None) -> str:
    if media_type is None:
        return UNKNOWN_EXT
    ext = _PREFERRED.get(media_type) or (_BUILT_IN_TYPES.guess_extension(media_type) or UNKNOWN_EXT).lstrip(".")
    return _TAKEN.get(ext, ext)
