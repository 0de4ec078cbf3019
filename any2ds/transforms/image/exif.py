"""EXIF as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from PIL import ExifTags, Image

_LONGEST = 1024  # bytes of a value; maker notes and thumbnails have more
_PARTS = {  # of the whole, by the tag that points at them
    "GPSInfo": (ExifTags.IFD.GPSInfo, ExifTags.GPSTAGS),
    "ExifOffset": (ExifTags.IFD.Exif, ExifTags.TAGS),
}
# Tags of TIFF in the same list that are not EXIF: where its pixels are, and blocks in other formats.
_NO_EXIF = (
    *("StripOffsets", "StripByteCounts", "TileOffsets", "TileByteCounts", "FreeOffsets", "FreeByteCounts", "SubIFDs"),
    *("JPEGTables", "InterColorProfile", "ImageResources", "IPTCNAA", "XMLPacket"),
)


def as_json(exif: bytes) -> str | None:
    """Values by the standard's names of the tags, GPS in an object of its own; None if there are none, or it is broken.

    Texts are texts, rationals numbers, several values a list.
    """
    try:
        found = Image.Exif()
        found.load(b"Exif\0\0" + exif)
        values = _named(found, ExifTags.TAGS)
        for name in _NO_EXIF:
            values.pop(name, None)
        for name, (part, tags) in _PARTS.items():
            values.pop(name, None)
            if inner := _named(found.get_ifd(part), tags):
                values.update(inner if name == "ExifOffset" else {name: inner})
    except MemoryError:
        raise
    except Exception:  # Pillow's parser raises whatever a broken value leads it to
        return None
    return json.dumps(values, ensure_ascii=False) if values else None


def _named(values: Mapping[int, Any], tags: Mapping[int, str]) -> dict[str, Any]:
    plain = {tags.get(tag, f"0x{tag:04x}"): _plain(value) for tag, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _plain(value: Any) -> Any:
    """The value as JSON has it; None for a value that nobody reads."""
    if isinstance(value, bytes):
        if len(value) > _LONGEST:
            return None
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.replace("\0", "").strip()[:_LONGEST]
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value] if len(value) <= _LONGEST else None
    if isinstance(value, int):
        return value
    number = float(value)
    return (int(number) if number == int(number) else number) if math.isfinite(number) else None
