"""Made-up photographs, the same for the same seed, and the steps that files of media are put through.

It needs any2ds[image].
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import cv2
import numpy as np
from PIL import Image

from any2ds.config.media import AudioOptions, ImageOptions, MediaOptions, TransformOptions, VideoOptions
from any2ds.config.options import parse_groups
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.failures import SUCCESS
from any2ds.core.filetypes import recognize
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from tests.support import steps

_OCTAVES = (4, 8, 16, 32, 64, 128, 256)  # pixels that a patch of one brightness measures
_ROUGHNESS = 0.7  # how much less the small ones count
_SHAPES = 12


def photograph(width: int, height: int, seed: int = 0, noise: float = 2.0) -> Any:
    """An array of height x width x 3 (BGR), uint8, with smooth and rough places and edges; `noise` is that of a sensor,
    in levels of 256."""
    random = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 3), np.float32)
    for size in _OCTAVES:
        rough = random.normal(size=(height // size + 2, width // size + 2, 3)).astype(np.float32)
        grey = rough.mean(axis=2, keepdims=True)
        pixels += (
            cv2.resize(0.8 * grey + 0.2 * rough, (width, height), interpolation=cv2.INTER_CUBIC) * size**_ROUGHNESS
        )
    low, high = np.percentile(pixels, (1, 99))
    pixels = (pixels - low) / (high - low) * 255
    for _ in range(_SHAPES):
        where = tuple(int(part) for part in random.integers(0, (width, height)))
        axes = tuple(int(part) for part in random.integers(4, max(5, min(width, height) // 6), 2))
        colour = tuple(float(part) for part in random.uniform(0, 255, 3))
        cv2.ellipse(pixels, where, axes, float(random.uniform(0, 180)), 0, 360, colour, -1, cv2.LINE_8)
    pixels += random.normal(scale=noise, size=(height, width, 1))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def jpeg(pixels: Any, quality: int = 90) -> bytes:
    """As OpenCV writes it: baseline, with half as much colour each way."""
    return bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1])


def jpeg_of(pixels: Any, size: int) -> bytes:
    """In the quality with which it comes nearest to `size` bytes."""
    low, high = 1, 100
    while low < high:
        middle = (low + high) // 2
        if len(jpeg(pixels, middle)) < size:
            low = middle + 1
        else:
            high = middle
    return min((jpeg(pixels, quality) for quality in {max(1, low - 1), low}), key=lambda data: abs(len(data) - size))


def encoded(pixels: Any, format: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """As Pillow writes `format`, in `mode`, with `options` of its own."""
    sink = io.BytesIO()
    if format == "AVIF":
        options = {"speed": 9, **options}
    Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)).convert(mode).save(sink, format, **options)
    return sink.getvalue()


def through(data: bytes, media_type: str | None = None, row: Mapping[str, Any] | None = None, **options: Any) -> Sample:
    """What becomes of a file, served as `media_type`, with `options` for images; `row` are columns of the list."""
    files, images = parse_groups({"file_size": 256, **options}, (TransformOptions, ImageOptions))
    (made,) = _Steps(MediaOptions(files, images), "image")(data, media_type, row)
    return made


class _Steps:
    """Steps of these names, and what they make of a file."""

    def __init__(self, options: MediaOptions, *names: str) -> None:
        modules = {name: import_module(f"any2ds.transforms.steps.{name}") for name in names}
        self._steps = [getattr(module, f"{name.title()}Transform")(options) for name, module in modules.items()]

    def __call__(
        self, data: bytes, media_type: str | None = None, row: Mapping[str, Any] | None = None
    ) -> list[Sample]:
        """What becomes of a file, served as `media_type`; `row` are columns of the list."""
        return steps.through(_sample(data, media_type, row), *self._steps)

    def memory(self, data: bytes, media_type: str | None = None) -> int:
        """Bytes that the steps say they need for it."""
        return steps.memory_of(_sample(data, media_type, None), *self._steps)


def media_steps(*names: str, **options: Any) -> _Steps:
    """Steps of these names with options as they are after parsing."""

    def of(group: Any) -> Any:
        return group(**{name: options.pop(name) for name in list(options) if name in group.__dataclass_fields__})

    media = MediaOptions(of(TransformOptions), of(ImageOptions), of(AudioOptions), of(VideoOptions))
    assert not options
    return _Steps(media, *names)


def _sample(data: bytes, media_type: str | None, row: Mapping[str, Any] | None) -> Sample:
    mime_type, ext = recognize(data, media_type)
    fields = {"status": SUCCESS, "mime_type": mime_type, "ext": ext}
    return Sample(Row(0, 0, "000000000", "http://x", extra=row), StoredBody.of(data), ext, fields)
