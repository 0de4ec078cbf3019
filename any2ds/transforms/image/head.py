"""The header of an image, read without decoding it: kind, size, profile, EXIF; of a JPEG also whether it is complete.

JPEG is read here, as decoders do not agree on what is cut off; Pillow opens the other kinds (`decode.py`). Sources:
ITU-T T.81 B.1 (JPEG), ICC.1 B.4 (profiles in it), PNG 3rd edition 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import error as StructError  # noqa: N812 - it has the name of a module
from struct import unpack_from

from any2ds.core.errors import NotDecodable

KINDS = {
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/pjpeg": "jpeg",
    "image/png": "png",
    "image/x-png": "png",
    "image/apng": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "image/bmp": "bmp",
    "image/x-ms-bmp": "bmp",
    "image/tiff": "tiff",
    "image/jp2": "jp2",
    "image/jpx": "jp2",
}
"""Media types -> kinds of images that can be decoded. All others pass untouched."""

_SIGNATURE = re.compile(
    rb"""(?P<jpeg>\xff\xd8\xff) | (?P<png>\x89PNG\r\n\x1a\n) | (?P<gif>GIF8[79]a) | (?P<webp>RIFF....WEBP) | (?P<bmp>BM)
    | (?P<tiff>II[*+]\0 | MM\0[*+]) | (?P<avif>....ftyp(?:avi[fs]|m[is]f1))
    | (?P<jp2>\0\0\0\x0cjP[ ][ ]\r\n\x87\n | \xff\x4f\xff\x51)""",
    re.DOTALL | re.VERBOSE,
)
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # JPEG markers without a length
_MOST_SCANS = 100  # of a JPEG; encoders make 20 at most, and each goes through the whole image again
_SCANNED_OVER = re.compile(rb"\xff+(?![\xff\x00\xd0-\xd7])", re.DOTALL)  # a marker behind compressed data


@dataclass(frozen=True, slots=True)
class Head:
    """An image before it is decoded. Sizes are in pixels, as they are stored."""

    kind: str
    width: int
    height: int
    channels: int = 3  # as they are stored: 1 grey, 4 CMYK or with alpha; of a palette, 1
    bits: int = 8  # of each
    orientation: int = 1  # of EXIF, 1 to 8
    exif: bytes | None = None  # from its TIFF header on
    profile: bytes | None = None  # ICC
    is_animated: bool = False
    is_progressive: bool = False  # a JPEG that is decoded as a whole: progressive, or a scan for each channel
    is_turned_by_decoder: bool = False  # which leaves nothing for `orientation` to say

    @property
    def is_turned(self) -> bool:
        """Whether width and height change places when it is upright."""
        return self.orientation >= 5


def kind_of(data: bytes) -> str | None:
    """By signature alone; None if it is none of `KINDS`."""
    found = _SIGNATURE.match(data)
    return found.lastgroup if found else None


def is_svg(data: bytes) -> bool:
    """Whatever it was served as."""
    start = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith((b"<svg", b"<?xml", b"<!--", b"<!DOCTYPE svg")) and b"<svg" in data[:65536]


def of_jpeg(data: bytes) -> Head:
    """The head of a JPEG. Raises NotDecodable for one that is cut off or damaged, as far as its structure shows."""
    try:
        return _jpeg(data)
    except (StructError, IndexError):
        raise NotDecodable("truncated") from None


def orientation_of(exif: bytes | None) -> int:
    """1 to 8; 1 where EXIF does not say, or is broken."""
    try:
        if not exif or exif[:4] not in (b"II*\0", b"MM\0*"):
            return 1
        order = "<" if exif[:1] == b"I" else ">"
        (start,) = unpack_from(order + "I", exif, 4)
        (count,) = unpack_from(order + "H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * min(count, 512), 12):
            if unpack_from(order + "H", exif, entry)[0] == 0x0112:
                value: int = unpack_from(order + "H", exif, entry + 8)[0]
                return value if 1 <= value <= 8 else 1
    except StructError:
        return 1
    return 1


# --- JPEG ---


def _jpeg(data: bytes) -> Head:
    frame: tuple[int, int, int, int, int] | None = None
    is_whole = False  # all of it is in memory before there is a pixel
    exif: bytes | None = None
    profile: dict[int, bytes] = {}
    for marker, start, end in _segments(data):
        if marker in _SOF:
            bits, height, width, channels = unpack_from(">BHHB", data, start)
            frame = marker, bits, height, width, channels
        elif marker == 0xE1 and exif is None and data.startswith(b"Exif\0", start):
            exif = data[start + 6 : end]
        elif marker == 0xE2 and data.startswith(b"ICC_PROFILE\0", start):
            profile.setdefault(data[start + 12], data[start + 14 : end])
        elif marker == 0xDA:
            # 0xff stands for itself in compressed data only with a zero behind it, so this is no other than the end.
            if data.rfind(b"\xff\xd9", end) < 0:
                raise NotDecodable("truncated")
            is_whole = frame is not None and (frame[0] not in (0xC0, 0xC1) or data[start] < frame[4])
            if is_whole and _has_too_many_scans(data, end):
                raise NotDecodable(f"more than {_MOST_SCANS} scans")
            break
    else:
        raise NotDecodable("contains no image")
    if frame is None or not frame[2] or not frame[3]:
        raise NotDecodable("its header has no size")
    marker, bits, height, width, channels = frame
    whole = b"".join(profile[number] for number in sorted(profile)) or None
    return Head(
        "jpeg",
        width,
        height,
        channels,
        bits,
        orientation_of(exif),
        exif,
        whole,
        is_progressive=is_whole,
    )


def _has_too_many_scans(data: bytes, position: int) -> bool:
    """Whether more begin behind `position`, where the data of the first begin, than any encoder makes."""
    scans = 1
    while scans <= _MOST_SCANS:
        found = _SCANNED_OVER.search(data, position)
        if found is None or found.end() + 3 > len(data) or data[found.end()] == 0xD9:
            return False
        scans += data[found.end()] == 0xDA
        (length,) = unpack_from(">H", data, found.end() + 1)
        position = found.end() + 1 + length
    return True


def jpeg_end(data: bytes) -> int:
    """Where the first image of a file that `read` has read ends; cameras put others behind it."""
    return data.find(b"\xff\xd9", next(end for marker, _, end in _segments(data) if marker == 0xDA))


def jpeg_core(data: bytes) -> bytes:
    """The JPEG without the bytes that lie between the segments before its image."""
    parts, image = [data[:2]], len(data)
    for marker, start, end in _segments(data):
        parts.append(bytes((0xFF, marker)) + data[start - 2 : end])
        if marker == 0xDA:
            image = end
            break
    return b"".join((*parts, data[image:]))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of the payload of each, until the image begins."""
    position = 2
    while True:
        position = data.find(b"\xff", position)
        if position < 0:
            raise NotDecodable("truncated")
        while (marker := data[position]) == 0xFF:
            position += 1
        position += 1
        if marker == 0xD9:
            return
        if marker in _ALONE or not marker:
            continue
        (length,) = unpack_from(">H", data, position)
        if position + length > len(data) or length < 2:
            raise NotDecodable("truncated")
        yield marker, position + 2, position + length
        position += length


# --- PNG ---


def png_exif(data: bytes) -> bytes | None:
    """The EXIF of a PNG, which may lie behind its pixels, where Pillow finds it by decoding them.

    Raises NotDecodable for a PNG without an end, which Pillow decodes as long as it has the pixels.
    """
    chunks = {name: data[start:end] for name, start, end in _chunks(data) if name in (b"eXIf", b"IEND")}
    if b"IEND" not in chunks:
        raise NotDecodable("truncated")
    return chunks.get(b"eXIf")


def png_core(data: bytes) -> bytes:
    """The PNG with its pixels alone: libpng prints warnings about other chunks."""
    kept = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
    return data[:8] + b"".join(data[start - 8 : end + 4] for name, start, end in _chunks(data) if name in kept)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    position = 8
    while position + 12 <= len(data):
        (length,) = unpack_from(">I", data, position)
        if position + 12 + length > len(data):
            return
        name = data[position + 4 : position + 8]
        yield name, position + 8, position + 8 + length
        if name == b"IEND":
            return
        position += 12 + length
