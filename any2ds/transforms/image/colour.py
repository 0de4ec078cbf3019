"""Colours: into sRGB by the profile that a file brings, and onto white where there is no alpha."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageCms

Pixels = Any
"""An array as OpenCV has them: height x width, or height x width x 3 (BGR) or 4 (BGRA), of uint8 or uint16."""

STRIP_PIXELS = 1 << 20  # of an image that is converted strip by strip, to have no second one in memory
_SRGB = ImageCms.createProfile("sRGB")
_SPACES = {"RGB ": "RGB", "CMYK": "CMYK"}  # of profiles -> Pillow's mode


def strips(height: int, width: int) -> Iterator[slice]:
    """The rows of an image in strips of `STRIP_PIXELS`, at least a row each."""
    step = max(1, STRIP_PIXELS // width)
    for top in range(0, height, step):
        yield slice(top, min(top + step, height))


def is_foreign(profile: bytes | None, mode: str) -> bool:
    """Whether `profile` says that pixels of `mode` ("RGB" or "CMYK") are not in sRGB."""
    return profile is not None and _transform(profile, mode) is not None


def into_srgb(pixels: Pixels, profile: bytes | None) -> Pixels:
    """Pixels with three channels or four, of 8 bits; others, and without a profile, as they are."""
    if profile is None or pixels.ndim == 2 or pixels.dtype != np.uint8:
        return pixels
    transform = _transform(profile, "RGB")
    if transform is None:
        return pixels
    converted = np.empty_like(pixels)
    for rows in strips(*pixels.shape[:2]):
        image = Image.fromarray(cv2.cvtColor(pixels[rows, :, :3], cv2.COLOR_BGR2RGB))
        ImageCms.applyTransform(image, transform, inPlace=True)
        converted[rows, :, :3] = cv2.cvtColor(np.asarray(image), cv2.COLOR_RGB2BGR)
        converted[rows, :, 3:] = pixels[rows, :, 3:]
    return converted


def cmyk_into_rgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    transform = _transform(profile, "CMYK") if profile is not None else None
    if transform is None:
        return image.convert("RGB")
    return ImageCms.applyTransform(image, transform) or image.convert("RGB")


@lru_cache(maxsize=64)  # one for CMYK takes 20 ms to make, and most files have one of a few
def _transform(profile: bytes, mode: str) -> Any:
    """None where there is nothing to do, or nothing that can be done."""
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if _SPACES.get(opened.profile.xcolor_space) != mode:
            return None
        if mode == "RGB" and "sRGB" in (opened.profile.profile_description or ""):
            return None
        return ImageCms.buildTransform(opened, _SRGB, mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def in_8_bits(pixels: Pixels) -> Pixels:
    return pixels if pixels.dtype == np.uint8 else cv2.convertScaleAbs(pixels, alpha=1 / 257)


def without_idle_alpha(pixels: Pixels) -> Pixels:
    """Without an alpha channel that is opaque everywhere."""
    if pixels.ndim == 3 and pixels.shape[2] == 4 and pixels[..., 3].min() == np.iinfo(pixels.dtype).max:
        return np.ascontiguousarray(pixels[..., :3])
    return pixels


def premultiplied(pixels: Pixels) -> Pixels:
    """Colours times alpha, which can be averaged: what cannot be seen does not bleed into what can."""
    made = np.empty_like(pixels)
    for rows in strips(*pixels.shape[:2]):
        strip = pixels[rows]
        alpha = cv2.merge([strip[..., 3]] * 3)
        made[rows, :, :3] = cv2.multiply(strip[..., :3], alpha, scale=1 / np.iinfo(pixels.dtype).max)
        made[rows, :, 3] = strip[..., 3]
    return made


def divided(pixels: Pixels) -> Pixels:
    """The pixels of a premultiplied image, no longer multiplied."""
    alpha = cv2.merge([pixels[..., 3]] * 3)
    return np.dstack((cv2.divide(pixels[..., :3], alpha, scale=np.iinfo(pixels.dtype).max), pixels[..., 3]))


def on_white(pixels: Pixels) -> Pixels:
    """The pixels of a premultiplied image on white, without alpha."""
    rest = np.iinfo(pixels.dtype).max - pixels[..., 3]
    return cv2.add(np.ascontiguousarray(pixels[..., :3]), cv2.merge([rest] * 3))
