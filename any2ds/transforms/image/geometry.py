"""The size that an image becomes, and how much of it need be decoded for that. Pure.

Sizes, and when one changes, are those of img2dataset: which side counts, what bigger means, how halves are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

_REDUCTIONS = (8, 4, 2)  # what libjpeg does while decoding
_NARROW = 64  # pixels; below, a pixel that is rounded up is much, and little is gained


@dataclass(frozen=True, slots=True)
class Fit:
    """An image is scaled to `width` x `height`, and with a `side` then cropped or bordered to `side` x `side`."""

    width: int
    height: int
    side: int | None = None

    @property
    def final(self) -> tuple[int, int]:
        return (self.width, self.height) if self.side is None else (self.side, self.side)


@dataclass(frozen=True, slots=True)
class Sizing:
    """The options for the size of an image."""

    mode: str  # of --resize_mode
    size: int  # pixels; 0: nothing is resized
    only_if_bigger: bool

    def fit(self, width: int, height: int) -> Fit | None:
        """For an upright image of that size; None if it stays as it is."""
        if not self.size or self.mode == "no":
            return None
        by_shorter = self.mode in ("keep_ratio", "center_crop")
        side = min(width, height) if by_shorter else max(width, height)
        if self.only_if_bigger and side <= self.size:
            return None
        scale = self.size / side
        scaled = max(1, round(width * scale)), max(1, round(height * scale))
        fit = Fit(*scaled, self.size if self.mode in ("center_crop", "border") else None)
        return None if scaled == fit.final == (width, height) else fit

    def leaves_too_small(self, width: int, height: int) -> bool:
        """Whether squares are asked for, and an upright image of that size is too small to become one."""
        is_square = (width, height) == (self.size, self.size)
        return self.mode in ("center_crop", "border") and not is_square and self.fit(width, height) is None


def reduction(width: int, height: int, fit: Fit) -> int:
    """By how much a JPEG may be made smaller while it is decoded: no more than leaves as many pixels as are wanted.

    With that the result differs from decoding it in full by less than encoding it again does (measured in
    tests/transforms/test_image_quality.py).
    """
    if min(width, height) < _NARROW:
        return 1
    return next((n for n in _REDUCTIONS if width >= n * fit.width and height >= n * fit.height), 1)
