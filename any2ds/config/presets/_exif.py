"""The names that img2dataset has for what EXIF says, which are those of ExifRead: `Image Make`, `EXIF ExposureTime`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

_GPS = "GPSInfo"
# The tags of the part that is called EXIF (CIPA DC-008, tables 4 and 5), but for what Windows has put among them.
_OF_EXIF = ((0x829A, 0x829D), (0x8822, 0x8822), (0x8824, 0x8824), (0x8827, 0x8835), (0x9000, 0x9C9A), (0xA000, 0xA5FF))
# Where ExifRead calls a tag otherwise than Pillow, whose names ours are.
_OTHERWISE = {
    "CFAPattern": "CVAPattern",
    "ExifImageHeight": "ExifImageLength",
    "ExifInteroperabilityOffset": "InteroperabilityOffset",
    "GPSDateStamp": "GPSDate",
    "IPTCNAA": "IPTC/NAA",
    "JpegIFByteCount": "JPEGInterchangeFormatLength",
    "JpegIFOffset": "JPEGInterchangeFormat",
    "NewSubfileType": "SubfileType",
    "NumberOfInks": "NumberofInks",
    "PrintImageMatching": "PrintIM",
    "SubfileType": "OldSubfileType",
    "SubjectLocation": "SubjectArea",
    "SubsecTime": "SubSecTime",
    "SubsecTimeDigitized": "SubSecTimeDigitized",
    "SubsecTimeOriginal": "SubSecTimeOriginal",
    "XMLPacket": "ApplicationNotes",
}


def by_other_names(exif: str) -> str:
    """The same JSON object, with the values as they are."""
    values: dict[str, Any] = json.loads(exif)
    gps = values.pop(_GPS, None)
    found = {_named("EXIF" if name in _names_of_exif() else "Image", name): value for name, value in values.items()}
    if isinstance(gps, Mapping):
        found |= {_named("GPS", name): value for name, value in gps.items()}
    return json.dumps(found, ensure_ascii=False)


def _named(part: str, name: str) -> str:
    return f"{part} {_OTHERWISE.get(name, name)}"


@cache
def _names_of_exif() -> frozenset[str]:
    from PIL import ExifTags  # there where any image was decoded

    return frozenset(
        name for tag, name in ExifTags.TAGS.items() if any(first <= tag <= last for first, last in _OF_EXIF)
    )
