"""From pixels to files."""

from __future__ import annotations

import io

import cv2
from PIL import Image

from any2ds.transforms.image.colour import Pixels

MIME_TYPES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "avif": "image/avif"}
HOLD_ALPHA = frozenset({"png", "webp", "avif"})
_OWN = {"jpeg": "jpg", "png": "png", "webp": "webp", "avif": "avif"}
_PNG_LEVEL = 3
# Pixels of a side: VP8's header (RFC 6386 9.1), libjpeg's JPEG_MAX_DIMENSION, what libavif reads unless told otherwise.
_LONGEST_SIDE = {"webp": 16_383, "jpg": 65_500, "avif": 32_768}


def format_for(kind: str, wanted: str, has_alpha: bool) -> str:
    """The format, one of `MIME_TYPES`, of a file of `kind` if `wanted` (of --encode_format) is asked for."""
    if wanted != "keep":
        return wanted
    return _OWN.get(kind) or ("png" if has_alpha else "jpg")


def is_in(kind: str, wanted: str) -> bool:
    """Whether a file of `kind` is in the format that is wanted."""
    return wanted in ("keep", _OWN.get(kind))


def too_long_for(format: str, width: int, height: int) -> str:
    """Why an image of that size cannot be in that format; "" if it can."""
    limit = _LONGEST_SIDE.get(format)
    if limit is None or max(width, height) <= limit:
        return ""
    return f"{width} x {height}: {format} holds no more than {limit:,} pixels a side (--encode_format=png does)"


def encoded(pixels: Pixels, format: str, quality: int) -> bytes:
    """`quality` is 1 to 100, or how hard png is compressed, 0 to 9; beyond that png is as usual."""
    if format == "avif":
        return _avif(pixels, quality)
    if format == "png":
        parameters = [cv2.IMWRITE_PNG_COMPRESSION, quality if quality <= 9 else _PNG_LEVEL]
    elif format == "webp":
        parameters = [cv2.IMWRITE_WEBP_QUALITY, quality]
    else:
        parameters = [cv2.IMWRITE_JPEG_QUALITY, quality]
    done, data = cv2.imencode(f".{format}", pixels, parameters)
    if not done:
        raise ValueError(f"it cannot be encoded as {format}")
    return data.tobytes()


def _avif(pixels: Pixels, quality: int) -> bytes:
    """By Pillow, whose wheels know AVIF on every system."""
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "AVIF", quality=quality, max_threads=1)
    return sink.getvalue()
