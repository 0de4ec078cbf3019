"""Makes an image as options want it. Needs OpenCV, Pillow and simplejpeg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np

from any2ds.config.media import ImageOptions, MediaOptions
from any2ds.core.errors import NotDecodable, OptionError
from any2ds.core.processes.resources import keep_freed_memory
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Rejected
from any2ds.transforms.image import boxes, colour, decode, exif, head, resize
from any2ds.transforms.image.boxes import Box
from any2ds.transforms.image.colour import Pixels
from any2ds.transforms.image.encode import HOLD_ALPHA, MIME_TYPES, encoded, format_for, is_in, too_long_for
from any2ds.transforms.image.geometry import Fit, Sizing, reduction
from any2ds.transforms.image.head import Head

# Bytes of memory for a pixel while it is decoded, of the libraries and ours (measured: 4 to 19).
_PER_PIXEL = {"png": 10, "gif": 10, "bmp": 9, "tiff": 14, "avif": 14, "webp": 18, "jp2": 20}
_MOST_MEMORY = 1_200_000_000  # bytes for one image, and more only where a larger --max_image_area asks for it
_MEMORY_PER_AREA = 6  # bytes, with which --max_image_area at its default of 200 million comes to `_MOST_MEMORY`
_CHECKED_BY = 8  # an image that keeps its bytes is decoded to see whether it can be: as little of it as possible


class ImageWork:
    """For one run; called from several threads at once."""

    def __init__(self, media: MediaOptions) -> None:
        """Raises OptionError for values that exclude each other."""
        self._options = options = media.image
        quality = options.encode_quality
        if options.encode_format == "png" and quality > 9 and quality != ImageOptions().encode_quality:
            raise OptionError(f"encode_quality={quality}: for png it is how hard it is compressed, from 0 to 9")
        if options.encode_format != "png" and quality == 0:
            raise OptionError("encode_quality=0: a whole number from 1 to 100")
        size = media.files.file_size or 0
        self._sizing = Sizing(options.resize_mode, size, options.resize_only_if_bigger)
        self._too_small = f"too small for {size} x {size} pixels; --resize_only_if_bigger=False enlarges images"
        # Without a size and a format originals are wanted, as they are.
        self._normalises = size > 0 or options.encode_format != "keep"
        self._up = resize.INTERPOLATIONS[options.upscale_interpolation]
        self._down = resize.INTERPOLATIONS[options.downscale_interpolation]
        decode.be_single()
        keep_freed_memory()

    def memory(self, found: Head | None) -> int:
        """Bytes that decoding and resizing it take, about; none for an image that is refused."""
        if found is None or self.refusal(*_upright_size(found)) is not None or self._too_large(found):
            return 0
        return self._memory(found)

    def _memory(self, found: Head) -> int:
        fit = self._fit(found)
        pixels = found.width * found.height
        channels = min(found.channels, 4)
        depth = 1 if found.bits <= 8 else 2
        resized = channels * depth * (2 * pixels if fit is None else fit.width * fit.height)
        if found.kind == "jpeg":
            coefficients = 2 * channels * pixels if found.is_progressive else 0
            reduced = channels * pixels // self._reduction(found, fit) ** 2
            return int(coefficients + reduced + (0 if fit is None and self._may_stay(found) else resized))
        return pixels * _PER_PIXEL[found.kind] * depth + (resized if fit is not None else 0)

    def _too_large(self, found: Head) -> str:
        """Why an image is too large for memory though not for `max_image_area`; "" if it is not."""
        need = self._memory(found)
        if need <= max(_MOST_MEMORY, _MEMORY_PER_AREA * self._options.max_image_area):
            return ""
        size, area = f"{found.width} x {found.height}", -(-need // _MEMORY_PER_AREA)
        return f"{size}: decoding takes {need / 1e9:.1f} GB (--max_image_area={area} allows that)"

    def made(self, sample: Sample, found: Head | None) -> Sample:
        """The sample as options want it; `found` is its head, None of what has no pixels that can be decoded.

        Raises NotDecodable, Rejected.
        """
        to_blur = self._boxes(sample)
        if found is None:
            return _untouched(sample, to_blur)
        data = sample.data
        width, height = _upright_size(found)
        sample = sample.with_fields(original_width=width, original_height=height)
        if self._options.extract_exif and found.exif:
            sample = sample.with_fields(exif=exif.as_json(found.exif))
        if (refusal := self.refusal(width, height)) is not None:
            return sample.failed(*refusal)
        if message := self._too_large(found):
            return sample.failed("too_many_pixels", message)
        if self._sizing.size and self._sizing.leaves_too_small(width, height):
            sample = sample.left_as_is(self._too_small)
        try:
            made = self._pixels(data, found, to_blur)
        except decode.Unfit:
            return _untouched(sample.with_fields(width=width, height=height), to_blur)
        if made is None:
            return sample.with_fields(width=width, height=height)
        pixels, format = made
        height, width = pixels.shape[:2]
        if message := too_long_for(format, width, height):
            return sample.failed("not_encodable", message)
        return sample.with_data(
            encoded(pixels, format, self._options.encode_quality),
            ext=format,
            mime_type=MIME_TYPES[format],
            width=width,
            height=height,
        )

    @staticmethod
    def describe(sample: Sample) -> Mapping[str, Any]:
        """Width and height of the image that a sample has now. Raises NotDecodable."""
        found = head_of(sample.data) if sample.mime_type in head.KINDS else None
        if found is None:
            return {}
        width, height = _upright_size(found)
        return {"width": width, "height": height}

    def of_pixels(self, sample: Sample, pixels: Pixels) -> Sample:
        """The sample with an image that was never a file, such as a frame of a video; BGR, 8 bits, upright, in sRGB.

        What it was made from has been asked for its `refusal` already.
        """
        height, width = pixels.shape[:2]
        found = Head("", width, height)
        if (fit := self._fit(found)) is not None:
            pixels = self._resized(pixels, found, fit, 1)
            if fit.side is not None:
                pixels = _square(pixels, fit.side)
        height, width = pixels.shape[:2]
        format = format_for("", self._options.encode_format, has_alpha=False)
        data = encoded(pixels, format, self._options.encode_quality)
        return sample.with_data(data, format, MIME_TYPES[format], width=width, height=height)

    def _pixels(self, data: bytes, found: Head, to_blur: Sequence[Box]) -> tuple[Pixels, str] | None:
        """The pixels and their format; None if the file stays as it is. Raises NotDecodable, Unfit, Rejected."""
        options = self._options
        if found.is_animated and options.animated == "keep":
            if to_blur:
                message = "an animated image cannot be blurred: --animated=first makes it a still one"
                raise Rejected("not_blurrable", message)
            decode.decoded(data, found)
            return None
        fit = self._fit(found)
        if fit is None and not to_blur and self._may_stay(found):
            decode.decoded(data, found, _CHECKED_BY if found.kind == "jpeg" else 1)
            return None
        by = self._reduction(found, fit)
        is_png = format_for(found.kind, options.encode_format, has_alpha=True) == "png"
        is_foreign = colour.is_foreign(found.profile, "RGB")
        pixels = decode.decoded(data, found, by, 16 if is_png and not is_foreign else 8)
        pixels = colour.without_idle_alpha(pixels)
        has_alpha = pixels.ndim == 3 and pixels.shape[2] == 4
        format = format_for(found.kind, options.encode_format, has_alpha)
        if format != "png" or is_foreign:
            pixels = colour.in_8_bits(pixels)
        if has_alpha:
            pixels = colour.premultiplied(pixels)
        if fit is not None:
            pixels = self._resized(pixels, found, fit, by)
        if has_alpha:
            pixels = colour.divided(pixels) if format in HOLD_ALPHA else colour.on_white(pixels)
        pixels = _upright(colour.into_srgb(pixels, found.profile if found.channels != 4 or has_alpha else None), found)
        if to_blur:
            pixels = boxes.blurred(pixels, to_blur)
        if fit is not None and fit.side is not None:
            pixels = _square(pixels, fit.side)
        return pixels, format

    def refusal(self, width: int, height: int) -> tuple[str, str] | None:
        """Code and message for an image that is rejected because of its size, upright."""
        options = self._options
        shorter, longer = sorted((width, height))
        size = f"{width} x {height}"
        if shorter < options.min_image_size:
            return "too_small", size
        if width * height > options.max_image_area:
            return "too_many_pixels", size
        if options.max_aspect_ratio is not None and longer > options.max_aspect_ratio * shorter:
            return "aspect_ratio", size
        return None

    def _fit(self, found: Head) -> Fit | None:
        return self._sizing.fit(*_upright_size(found))

    def _may_stay(self, found: Head) -> bool:
        """Whether an image that needs no resizing keeps its bytes."""
        if not self._options.skip_reencode or not is_in(found.kind, self._options.encode_format):
            return False
        if not self._normalises:
            return not (found.is_animated and self._options.animated == "first")
        is_cmyk = found.kind == "jpeg" and found.channels == 4
        is_upright = found.orientation == 1 and not found.is_turned_by_decoder
        return is_upright and not found.is_animated and not is_cmyk and not colour.is_foreign(found.profile, "RGB")

    def _reduction(self, found: Head, fit: Fit | None) -> int:
        """By averaging, which is what libjpeg does, only where averaging is asked for."""
        if fit is None or found.kind != "jpeg" or self._down != cv2.INTER_AREA:
            return 1
        return reduction(*_upright_size(found), fit)

    def _resized(self, pixels: Pixels, found: Head, fit: Fit, by: int) -> Pixels:
        """`pixels` are as the file has them, reduced `by` so much, and not upright."""
        width, height = (fit.height, fit.width) if found.is_turned else (fit.width, fit.height)
        smaller = width < found.width or height < found.height
        # Sizes are rounded up by reduction: by the true factor, what is beyond the edge of the image is left out.
        return resize.resized(
            pixels,
            (width, height),
            (by * width / found.width, by * height / found.height),
            self._down if smaller else self._up,
            is_of_jpeg=found.kind == "jpeg",
        )

    def _boxes(self, sample: Sample) -> Sequence[Box]:
        if (column := self._options.bbox_col) is None:
            return ()
        return boxes.boxes_of(sample.row.of_list(column), column)


def head_of(data: bytes) -> Head | None:
    """None for a drawing, which passes untouched. Raises NotDecodable."""
    kind = head.kind_of(data)
    if kind is None:
        if head.is_svg(data):
            return None
        raise NotDecodable("not an image")
    return head.of_jpeg(data) if kind == "jpeg" else decode.head_by_pillow(data, kind)


def _untouched(sample: Sample, to_blur: Sequence[Box]) -> Sample:
    """Raises Rejected rather than leave in the clear what was to be blurred."""
    if to_blur:
        message = "it cannot be blurred: it has no pixels of 8 or 16 bits, or they cannot be decoded"
        raise Rejected("not_blurrable", message)
    return sample.left_as_is(f"{sample.mime_type}: no pixels of 8 or 16 bits")


def _upright_size(found: Head) -> tuple[int, int]:
    return (found.height, found.width) if found.is_turned else (found.width, found.height)


def _upright(pixels: Pixels, found: Head) -> Pixels:
    orientation = found.orientation
    if orientation in (5, 6, 7, 8):
        pixels = cv2.transpose(pixels)
    flips = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}
    return cv2.flip(pixels, flips[orientation]) if orientation in flips else pixels


def _square(pixels: Pixels, side: int) -> Pixels:
    """Cropped, or with a white border."""
    height, width = pixels.shape[:2]
    left, top = max(0, (width - side) // 2), max(0, (height - side) // 2)
    pixels = pixels[top : top + side, left : left + side]
    height, width = pixels.shape[:2]
    if (height, width) == (side, side):
        return pixels
    left, top = (side - width) // 2, (side - height) // 2
    white: Any = [int(np.iinfo(pixels.dtype).max)] * 4
    return cv2.copyMakeBorder(
        pixels, top, side - height - top, left, side - width - left, cv2.BORDER_CONSTANT, value=white
    )
