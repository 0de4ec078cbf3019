"""Boxes that are to be blurred: what the list says of them, and the blurring."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import cv2

from any2ds.transforms.image.colour import Pixels

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, as parts of width and height."""

_WORDS = "wants [[left, top, right, bottom], ...], as parts of width and height, from 0 to 1"
_MARGIN = 0.1  # of the longer side, around each: detectors cut close
_STRENGTH = 0.1  # standard deviation, of the longer side
_SLACK = 0.5  # so far a box may reach over the edge; beyond that it must be meant in pixels


def boxes_of(value: Any, column: str) -> Sequence[Box]:
    """Those in the column of a row: lists, or JSON; none for null. Raises ValueError: better no image than one in the
    clear."""
    try:
        if isinstance(value, (str, bytes)):
            value = json.loads(value) if value.strip() else None
        boxes = [tuple(map(float, box)) for box in value or ()]
    except (TypeError, ValueError):
        raise ValueError(f"{column} {_WORDS}") from None
    for box in boxes:
        if len(box) != 4 or not all(-_SLACK <= side <= 1 + _SLACK for side in box):
            raise ValueError(f"{column} {_WORDS}; not {box}")
    return boxes  # type: ignore[return-value]


def blurred(pixels: Pixels, boxes: Sequence[Box]) -> Pixels:
    """The same with what is in the boxes blurred beyond recognition."""
    height, width = pixels.shape[:2]
    found = pixels.copy()
    for box in boxes:
        left, right = sorted((box[0] * width, box[2] * width))
        top, bottom = sorted((box[1] * height, box[3] * height))
        longer = max(right - left, bottom - top)
        margin = _MARGIN * longer
        x0, x1 = _within(left - margin, right + margin, width)
        y0, y1 = _within(top - margin, bottom + margin, height)
        if x0 >= x1 or y0 >= y1:
            continue
        sigma = max(1.0, _STRENGTH * longer)
        around = math.ceil(3 * sigma)  # what it is mixed with from beside it
        u0, v0 = max(0, x0 - around), max(0, y0 - around)
        part = found[v0 : y1 + around, u0 : x1 + around]
        soft = cv2.GaussianBlur(part, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
        found[y0:y1, x0:x1] = soft[y0 - v0 : y1 - v0, x0 - u0 : x1 - u0]
    return found


def _within(start: float, end: float, size: int) -> tuple[int, int]:
    return max(0, math.floor(start)), min(size, math.ceil(end))
