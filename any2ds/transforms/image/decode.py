"""From files to pixels: libjpeg-turbo for JPEG, made smaller while it is decoded, Pillow for everything else.

Pillow's classes are called by format, not through `Image.open`, which tries all of them and has a limit of its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cv2
import numpy as np
import simplejpeg
from PIL import AvifImagePlugin, Image, ImageCms
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from any2ds.core.errors import NotDecodable, error_text
from any2ds.transforms.image import colour
from any2ds.transforms.image.colour import Pixels
from any2ds.transforms.image.head import Head, jpeg_core, jpeg_end, orientation_of, png_core, png_exif

_OPENERS: dict[str, Callable[..., ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "gif": GifImageFile,
    "webp": WebPImageFile,
    "avif": AvifImageFile,
    "bmp": BmpImageFile,
    "tiff": TiffImageFile,
    "jp2": Jpeg2KImageFile,
}
_REDUCED = {
    1: (cv2.IMREAD_GRAYSCALE, cv2.IMREAD_COLOR),
    2: (cv2.IMREAD_REDUCED_GRAYSCALE_2, cv2.IMREAD_REDUCED_COLOR_2),
    4: (cv2.IMREAD_REDUCED_GRAYSCALE_4, cv2.IMREAD_REDUCED_COLOR_4),
    8: (cv2.IMREAD_REDUCED_GRAYSCALE_8, cv2.IMREAD_REDUCED_COLOR_8),
}
_CHANNELS = {"1": 1, "L": 1, "P": 1, "I;16": 1, "I;16B": 1, "I": 1, "F": 1, "LA": 2, "RGB": 3}
_SIXTEEN = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
_PNG_BITS = 24  # where a PNG says how many bits a channel has
# Warnings of libjpeg (its jerror.h, JWRN_...) where the pixels are not what they were.
_DAMAGE = re.compile("Corrupt JPEG data: |Premature end of JPEG")
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
_PADDING = 2  # bytes that some cameras leave between the pixels and the end, whatever is in them


class Unfit(Exception):
    """An image whose values are no colours (floating point, 32 bits): it is left as it came."""


def be_single() -> None:
    """Each image in one thread; there are other images for the other cores. Pillow's limit gives way to ours."""
    cv2.setNumThreads(1)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.MAX_IMAGE_PIXELS = None


def head_by_pillow(data: bytes, kind: str) -> Head:
    """The head of an image that is no JPEG. Raises NotDecodable."""
    with _translated(), _opened(data, kind) as image:
        exif: bytes | None = png_exif(data) if kind == "png" else image.info.get("exif")
        is_deep = image.mode in _SIXTEEN or (kind == "png" and data[_PNG_BITS] == 16)  # of which Pillow makes RGB
        exif = exif.removeprefix(b"Exif\0\0") if exif else None
        return Head(
            kind,
            image.width,
            image.height,
            _CHANNELS.get(image.mode, 4),
            16 if is_deep else 8,
            # Pillow turns TIFF itself; its sizes are upright.
            1 if kind == "tiff" else orientation_of(exif),
            exif or (image.getexif().tobytes() or None if kind == "tiff" else None),
            image.info.get("icc_profile"),
            is_animated=kind != "tiff" and getattr(image, "is_animated", False),
            is_turned_by_decoder=isinstance(image, TiffImageFile) and image.tag_v2.get(0x0112, 1) != 1,
        )


def decoded(data: bytes, head: Head, reduction: int = 1, depth: int = 8) -> Pixels:
    """Its first frame, as it is stored (not upright, not in sRGB), but never CMYK; a JPEG smaller by `reduction`.

    With a `depth` of 16 what has that many bits keeps them. Raises NotDecodable, Unfit.
    """
    with _translated():
        if head.kind == "jpeg" and head.channels in (1, 3) and head.bits == 8:
            return _of_jpeg(data, head, reduction)
        if head.kind == "png" and head.bits == depth == 16 and head.channels > 1:
            pixels = cv2.imdecode(np.frombuffer(png_core(data), np.uint8), cv2.IMREAD_UNCHANGED)
            return _checked(pixels, (head.height, head.width))
        if head.kind == "jpeg" and head.channels == 4 and head.bits == 8:
            _check_cmyk(data)
        with _opened(data, head.kind) as image:
            if head.kind == "jpeg" and reduction > 1:
                image.draft(None, (head.width // reduction, head.height // reduction))
            image.load()
            shape = (-(-head.height // reduction), -(-head.width // reduction))
            return _checked(_array(image, head), shape)


def _of_jpeg(data: bytes, head: Head, reduction: int) -> Pixels:
    """Raises NotDecodable also where libjpeg would go on with pixels of its own invention."""
    shape = (-(-head.height // reduction), -(-head.width // reduction))
    least = dict(zip(("min_height", "min_width"), shape, strict=True)) if reduction > 1 else {}
    colours = "BGR" if head.channels == 3 else "GRAY"
    try:
        pixels = _strictly(data, colours, least)
    except NotDecodable:  # which is a ValueError too
        raise
    except ValueError:
        core = jpeg_core(data)
        if len(core) < len(data):  # bytes between its segments, of which libjpeg only warns, and then of nothing else
            return _of_jpeg(core, head, reduction)
        # A form that TurboJPEG does not know may be one that OpenCV knows.
        return _by_opencv(data, head, reduction)
    return _checked(pixels if head.channels == 3 else pixels[..., 0], shape)


def _strictly(data: bytes, colours: str, least: dict[str, int]) -> Pixels:
    """`least` is the size of which it has to be. Raises NotDecodable for damage, ValueError for what it cannot do."""
    try:
        return simplejpeg.decode_jpeg(data, colours, **least)
    except ValueError as error:
        simplejpeg.decode_jpeg_header(data)  # an odd one is a ValueError, and no damage
        if _is_damage(str(error), data):
            raise NotDecodable(f"damaged: {error}") from None
    return simplejpeg.decode_jpeg(data, colours, strict=False, **least)


def _is_damage(warning: str, data: bytes) -> bool:
    """Whether pixels are wrong, by libjpeg's first warning."""
    if (left := _LEFT_OVER.search(warning)) is None:
        return _DAMAGE.search(warning) is not None
    # More data than pixels: one was lost on the way to the end, or the end is padded.
    count, end = int(left[1]), jpeg_end(data)
    return count > _PADDING and len(set(data[end - count : end])) > 1


def _check_cmyk(data: bytes) -> None:
    """Pillow decodes it, and does not say what libjpeg does."""
    try:
        _strictly(data, "CMYK", {"min_height": 1, "min_width": 1})
    except NotDecodable:
        raise
    except ValueError:
        return


def _by_opencv(data: bytes, head: Head, reduction: int) -> Pixels:
    flag = _REDUCED[reduction][head.channels == 3] | cv2.IMREAD_IGNORE_ORIENTATION
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    return _checked(pixels, (-(-head.height // reduction), -(-head.width // reduction)))


def _checked(pixels: Pixels, shape: tuple[int, int]) -> Pixels:
    if pixels is None:
        raise NotDecodable("damaged")
    if pixels.shape[:2] != shape:
        raise NotDecodable("its size differs from its header")
    return pixels


def _array(image: Image.Image, head: Head) -> Pixels:
    """Converted a strip at a time: as a whole it is twice more in memory on the way."""
    if image.mode in _SIXTEEN or image.mode == "I":
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise Unfit
        return values.astype(np.uint16, copy=False)
    if image.mode == "F":
        raise Unfit
    if image.width * image.height <= colour.STRIP_PIXELS:
        return _bgr(image, head)
    pixels: Pixels = None
    for rows in colour.strips(image.height, image.width):
        strip = _bgr(image.crop((0, rows.start, image.width, rows.stop)), head)
        if pixels is None:
            pixels = np.empty((image.height, *strip.shape[1:]), np.uint8)
        pixels[rows] = strip
    return pixels


def _bgr(image: Image.Image, head: Head) -> Pixels:
    mode = image.mode
    if mode == "CMYK":
        image = colour.cmyk_into_rgb(image, head.profile)
    elif mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        image = ImageCms.applyTransform(image, ImageCms.buildTransform(lab, srgb, "LAB", "RGB")) or image
    elif mode in ("LA", "La", "PA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
    elif mode in ("1", "L"):
        image = image.convert("L")
    elif mode != "RGBA":
        image = image.convert("RGB")
    pixels = np.asarray(image)
    if image.mode == "L":
        return pixels
    return cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA if image.mode == "RGBA" else cv2.COLOR_RGB2BGR)


def _opened(data: bytes, kind: str) -> ImageFile:
    return _OPENERS[kind](io.BytesIO(data), None)


@contextmanager
def _translated() -> Iterator[None]:
    """Turns whatever libraries raise over broken files into NotDecodable."""
    try:
        yield
    except (NotDecodable, Unfit, MemoryError):
        raise
    except Exception as error:
        raise NotDecodable(error_text(error)) from error
