"""Tells what kind of file a body is: by its first bytes, else by what the server said."""

from __future__ import annotations

import mimetypes
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
}
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
