"""The kind of media of a file, by its extension."""

from __future__ import annotations

from any2ds.core.filetypes import type_of_name

KINDS = ("image", "audio", "video", "text")
DRAWN = frozenset({"svg", "svgz", "heic", "heif", "jxl"})
"""Images of which Pillow makes no pixels."""

# Extensions that Python's own list of types lacks, some of them in some of its versions.
_FURTHER = {
    **dict.fromkeys(("avif", "webp", "heic", "heif", "jp2", "jxl"), "image"),
    **dict.fromkeys(("flac", "m4a", "opus", "ogg", "oga", "aac", "amr"), "audio"),
    **dict.fromkeys(("mkv", "webm", "avi", "flv", "m4v", "wmv", "3gp", "ts", "m2ts"), "video"),
}


def kind_of_ext(ext: str) -> str:
    """A kind of `KINDS`; "" for others, and for images that have no pixels."""
    if ext.lower() in DRAWN:
        return ""
    kind = (type_of_name(f"file.{ext}") or "").partition("/")[0]
    return kind if kind in KINDS else _FURTHER.get(ext.lower(), "")
