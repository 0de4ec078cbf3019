"""Reads containers of sound and video without FFmpeg: is the end missing, how are pictures rotated?

Containers are trees of boxes with sizes (ISO/IEC 14496-12, RIFF, EBML), or rows of pages (Ogg). FFmpeg reads one with a
missing end as far as it goes, and calls that a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_ISO = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide"})
_UNKNOWN = 0x7FFF0000  # and more: sizes in a RIFF file that was written as a stream
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_OGG = b"OggS"
# Tracks, TrackEntry and what is in it: https://www.matroska.org/technical/elements.html
_TRACK = (b"\x16T\xaek", b"\xae")
_VIDEO, _PROJECTION, _ROLL = b"\xe0", b"vp", b"vu"
_FRAME = 40  # bytes of an MP3 before the name of its first frame, at most
_MOST_TAGS = 256 << 10


def missing_end(data: bytes) -> str:
    """A message if the file is shorter than its header claims; "" otherwise, and for unknown formats."""
    if data[4:8] in _ISO:
        claimed = max((end for _, _, end in _boxes(data, 0, len(data))), default=0)
    elif data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"AVI "):
        claimed = _riff_end(data)
    elif data[:4] == _EBML:
        claimed = _matroska_end(data)
    elif data[:4] == _OGG:
        claimed = _ogg_end(data)
    else:
        claimed = 0
    return f"it ends after {len(data):,} of {claimed:,} bytes" if claimed > len(data) else ""


def rotation(data: bytes) -> int:
    """Degrees, clockwise, by which the picture is to be turned for people to see it upright: 0, 90, 180 or 270."""
    if data[:4] == _EBML:
        return _rolled(data)
    for start, end in _tracks(data) if data[4:8] in _ISO else ():
        if _kind(data, start, end) == b"vide":
            return _turned(data, start, end)
    return 0


# --- ISO: MP4, MOV, 3GP ---


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, begin of the content and end of each box there; the last may end behind `end`."""
    while start + 8 <= end:
        size, name, content = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8], start + 8
        if size == 1:
            size, content = int.from_bytes(data[start + 8 : start + 16], "big"), start + 16
        elif size == 0:
            size = end - start
        if size < content - start or not all(32 <= char < 127 or char == 0xA9 for char in name):
            return  # no box: rubbish behind the last one
        yield name, content, start + size
        start += size


def _inside(data: bytes, start: int, end: int, way: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Begin and end of what is in the boxes that `way` leads to, one inside the other."""
    for name, first, last in _boxes(data, start, end):
        if name == way[0]:
            last = min(last, end)
            if len(way) == 1:
                yield first, last
            else:
                yield from _inside(data, first, last, way[1:])


def _tracks(data: bytes) -> Iterator[tuple[int, int]]:
    return _inside(data, 0, len(data), (b"moov", b"trak"))


def _kind(data: bytes, start: int, end: int) -> bytes:
    """`vide` or `soun`, or another one, of a track."""
    return next((data[at + 8 : at + 12] for at, _ in _inside(data, start, end, (b"mdia", b"hdlr"))), b"")


def _turned(data: bytes, start: int, end: int) -> int:
    """By the matrix in the header of a track."""
    for header, last in _inside(data, start, end, (b"tkhd",)):
        at = header + (52 if data[header : header + 1] == b"\1" else 40)  # version 1 has longer times
        if at + 20 > last:
            break
        a, b, _, _, d = struct.unpack_from(">5i", data, at)
        if not a and not d:
            return 90 if b > 0 else 270
        return 180 if a < 0 and d < 0 else 0
    return 0


# --- RIFF: WAV, AVI ---


def _riff_end(data: bytes) -> int:
    """The end of its sound or pictures: nothing is lost where only the list of tags behind them is missing."""
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data" or (name == b"LIST" and data[at + 8 : at + 12] == b"movi"):
            return at + 8 + size if size < _UNKNOWN else 0
        at += 8 + size + size % 2
    return 0


# --- EBML: Matroska, WebM ---


def _matroska_end(data: bytes) -> int:
    size, at = _vint(data, 4)
    at += max(0, size)
    if data[at : at + 4] != _SEGMENT:
        return 0
    size, start = _vint(data, at + 4)
    return start + size if size >= 0 else 0


def _segment(data: bytes) -> int:
    """Where its content begins."""
    size, at = _vint(data, 4)
    return _vint(data, at + max(0, size) + 4)[1]


def _elements(data: bytes, start: int, end: int, way: tuple[bytes, ...]) -> Iterator[bytes]:
    """The content of the elements that `way` leads to, one inside the other."""
    while start < min(end, len(data)):
        name = data[start : start + (9 - data[start].bit_length() if data[start] else 1)]
        size, content = _vint(data, start + len(name))
        if size < 0:
            return  # a stream, whose parts have no sizes from here on
        if name == way[0]:
            if len(way) == 1:
                yield data[content : content + size]
            else:
                yield from _elements(data, content, min(content + size, end), way[1:])
            if name == _TRACK[0]:
                return  # there is one list of tracks
        start = content + size


def _rolled(data: bytes) -> int:
    found = next(_elements(data, _segment(data), len(data), (*_TRACK, _VIDEO, _PROJECTION, _ROLL)), b"")
    if len(found) not in (4, 8):
        return 0
    (degrees,) = struct.unpack(">f" if len(found) == 4 else ">d", found)
    return -round(degrees / 90) * 90 % 360 if -360 <= degrees <= 360 else 0


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, -1 for unknown, and where it ends."""
    if at >= len(data) or not data[at]:
        return -1, at
    length = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (-1 if value == (1 << 7 * length) - 1 else value), at + length


# --- Ogg ---


def _ogg_end(data: bytes) -> int:
    """The end of its last page (RFC 3533, 6)."""
    at = data.rfind(_OGG)
    while at > 0 and (data[at + 4 : at + 5] != b"\0" or data[at + 5 : at + 6] > b"\7"):  # in the middle of a page
        at = data.rfind(_OGG, 0, at)
    if at + 27 > len(data):
        return at + 27
    sizes = data[at + 27 : at + 27 + data[at + 26]]
    return at + 27 + data[at + 26] + sum(sizes)


# --- MP3 ---


def tells_its_length(data: bytes) -> bool:
    """Whether an MP3 begins with a frame that holds the number of frames."""
    return bool(_xing(data))


def has_its_length(data: bytes) -> bool:
    """Whether its size is about the one in that frame: tags may follow."""
    found = _xing(data)
    if found is None:
        return False
    name, start = found
    if name == b"VBRI":
        size = int.from_bytes(data[start + 10 : start + 14], "big")
    else:
        flags = int.from_bytes(data[start + 4 : start + 8], "big")
        at = start + 8 + (4 if flags & 1 else 0)
        size = int.from_bytes(data[at : at + 4], "big") if flags & 2 else 0
    return size - size // 100 <= len(data) - start + _FRAME <= size + size // 100 + _MOST_TAGS if size else False


def _xing(data: bytes) -> tuple[bytes, int] | None:
    """The name of that frame, and where it stands."""
    tags = 0
    if data[:3] == b"ID3":  # its size has seven bits in each byte
        tags = 10 + sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=False))
    head = data[tags : tags + 256]
    found = [(at, name) for name in (b"Xing", b"Info", b"VBRI") if (at := head.find(name)) >= 0]
    return (min(found)[1], tags + min(found)[0]) if found else None
