"""Other sizes for pixels, by OpenCV."""

from __future__ import annotations

import cv2
import numpy as np

from any2ds.transforms.image.colour import Pixels

INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "nearest_exact": cv2.INTER_NEAREST_EXACT,
    "linear": cv2.INTER_LINEAR,
    "cubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
_NEARLY = 2.0  # times smaller: four pixels are mixed for each, and there are no more than that
_SOFTER = 0.17  # of a pixel's two neighbours, for each time that it is smaller: least squares against INTER_AREA


def resized(
    pixels: Pixels,
    size: tuple[int, int],
    factors: tuple[float, float],
    interpolation: int,
    is_of_jpeg: bool = False,
) -> Pixels:
    """`size` and `factors` are of width and height; `is_of_jpeg`: these are not the pixels of the camera anyway."""
    width, height = size
    if pixels.shape[:2] == (height, width):
        return pixels
    is_nearly = 1 / _NEARLY <= min(factors) <= max(factors) <= 1
    if interpolation == cv2.INTER_AREA and is_of_jpeg and is_nearly:
        return _nearly_averaged(pixels, factors)[:height, :width]
    return _scaled(pixels, factors, interpolation)[:height, :width]


def _nearly_averaged(pixels: Pixels, factors: tuple[float, float]) -> Pixels:
    """The pixels that averaging gives, but for a sixth of the difference that encoding makes, in a third of its time.

    They are interpolated between pixels that have a little of their neighbours in them (measured in
    tests/transforms/test_image_quality.py).
    """
    sides = (_SOFTER * (1 / factor - 1) for factor in factors)
    across, down = (np.array([side, 1 - 2 * side, side], np.float32) for side in sides)
    return _scaled(cv2.sepFilter2D(pixels, -1, across, down), factors, cv2.INTER_LINEAR)


def _scaled(pixels: Pixels, factors: tuple[float, float], interpolation: int) -> Pixels:
    return cv2.resize(pixels, None, fx=factors[0], fy=factors[1], interpolation=interpolation)
