"""Boxes to blur: reads them from a column of the list, and blurs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cv2

from any2ds.transforms.contract import Rejected, column_value
from any2ds.transforms.image.colour import Pixels

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, as parts of width and height."""

_EXPECTED = "expected [[left, top, right, bottom], ...] as parts of width and height, left < right and top < bottom"
_MARGIN = 0.1  # of the longer side, around each: detectors cut close
_STRENGTH = 0.1  # standard deviation, of the longer side
_SLACK = 0.5  # so far a box may reach over the edge; beyond that it must be meant in pixels


def boxes_of(value: Any, column: str) -> Sequence[Box]:
    """The boxes in the column of a row: lists, or JSON text; none for null, blank text and an empty list.

    Raises Rejected for anything else: better no image than one in the clear.
    """
    try:
        found = column_value(value)
    except ValueError:
        raise _bad(value, column) from None
    if found is None:
        return ()
    if not isinstance(found, (list, tuple)):
        raise _bad(value, column)
    return [_box(box, column) for box in found]


def _box(box: Any, column: str) -> Box:
    if not isinstance(box, (list, tuple)) or len(box) != 4 or any(isinstance(side, bool) for side in box):
        raise _bad(box, column)
    try:
        left, top, right, bottom = map(float, box)
    except (TypeError, ValueError, OverflowError):
        raise _bad(box, column) from None
    is_box = -_SLACK <= left < right <= 1 + _SLACK and -_SLACK <= top < bottom <= 1 + _SLACK
    if not (is_box and left < 1 and top < 1 and right > 0 and bottom > 0):  # it overlaps the image
        raise _bad(box, column)
    return left, top, right, bottom


def _bad(value: Any, column: str) -> Rejected:
    return Rejected("bad_boxes", f"{column}: {_EXPECTED}; not {value!r:.100}")


def blurred(pixels: Pixels, boxes: Sequence[Box]) -> Pixels:
    """The image, with everything inside the boxes blurred beyond recognition."""
    height, width = pixels.shape[:2]
    found = pixels.copy()
    for box in boxes:
        left, top, right, bottom = box[0] * width, box[1] * height, box[2] * width, box[3] * height
        longer = max(right - left, bottom - top)
        margin = _MARGIN * longer
        x0, x1 = _within(left - margin, right + margin, width)
        y0, y1 = _within(top - margin, bottom + margin, height)
        if x0 >= x1 or y0 >= y1:
            continue
        sigma = max(1.0, _STRENGTH * longer)
        around = math.ceil(3 * sigma)  # pixels around it that it is mixed with
        u0, v0 = max(0, x0 - around), max(0, y0 - around)
        part = found[v0 : y1 + around, u0 : x1 + around]
        soft = cv2.GaussianBlur(part, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
        found[y0:y1, x0:x1] = soft[y0 - v0 : y1 - v0, x0 - u0 : x1 - u0]
    return found


def _within(start: float, end: float, size: int) -> tuple[int, int]:
    return max(0, math.floor(start)), min(size, math.ceil(end))
