"""Makes a small picture of an image, a sound or a video.

This runs in a child process, see `preview`, and imports nothing that decoding does not need: pyarrow alone would take
longer to import than all pictures of a report take to make.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from any2ds.config.media import ImageOptions, MediaOptions, TransformOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.failures import SUCCESS
from any2ds.core.processes.resources import end_first_when_memory_is_short
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.core.text import duration
from any2ds.transforms.image import head

log = logging.getLogger(__name__)

Kind = Literal["image", "audio", "video", "text", "other"]

SIDE = 256  # pixels of the longer side of a picture
_WAVE = (320, 96)  # pixels of a waveform
_MOST_SECONDS = 60  # of sound that a waveform shows
_MOST_PIXELS = 64_000_000  # of an image, or of a frame


@dataclass(frozen=True, slots=True)
class Picture:
    """Small enough for a web page: of some kilobytes."""

    data: bytes
    mime_type: str  # image/jpeg, image/png, image/gif, image/webp; image/svg+xml, for <img> alone, where nothing acts
    width: int  # pixels; 0 where that is not known
    height: int


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see of a file: nothing of what cannot be shown."""

    kind: Kind
    picture: Picture | None = None
    text: str = ""  # the beginning of a text
    facts: str = ""  # in words: "640 x 480", "3.2 s"


class PreviewMaker:
    """Answers with what there is to see of a file."""

    def __init__(self) -> None:
        end_first_when_memory_is_short()
        self._images: Any = None

    def __call__(self, asked: tuple[Kind, bytes, str]) -> View:
        kind, data, mime_type = asked
        try:
            if kind == "image":
                return self._image(data, mime_type)
            return _waveform(data) if kind == "audio" else self._frame(data)
        except Exception as error:  # of libraries that are missing, and over broken files of any kind
            log.debug("no thumbnail: %s: %s", type(error).__name__, error)
            return View(kind)

    def _image(self, data: bytes, mime_type: str) -> View:
        if head.is_svg(data):
            return View("image")
        made = self._small(data, mime_type)
        size = made.fields.get("original_width"), made.fields.get("original_height")
        facts = "{} x {}".format(*size) if all(size) else ""
        if made.failure is not None or made.ext != "jpg":
            return View("image", facts=facts)
        return View("image", _as_picture(made), facts=facts)

    def _small(self, data: bytes, mime_type: str) -> Sample:
        """The step for images knows how to turn them, what their colours mean, and what is a bomb."""
        if self._images is None:
            from any2ds.transforms.image.work import ImageWork

            options = ImageOptions(
                resize_mode="keep_ratio_largest",
                encode_format="jpg",
                encode_quality=82,
                skip_reencode=False,
                max_image_area=_MOST_PIXELS,
            )
            self._images = ImageWork(MediaOptions(TransformOptions(file_size=SIDE), options))
        fields = {"mime_type": mime_type, "status": SUCCESS}
        small: Sample = self._images(Sample(Row(0, 0, "", None), StoredBody.of(data), "", fields))
        return small

    def _frame(self, data: bytes) -> View:
        """A frame from the first tenth of a video, since many begin in black."""
        from any2ds.transforms.steps import _av

        facts = _av.facts_of(data, _MOST_PIXELS)
        if facts.picture is None:
            return _waveform(data)
        width, height = facts.picture.shown
        seen = f"{width} x {height}" + (f", {duration(facts.duration)}" if facts.duration else "")
        scale = min(1.0, SIDE / max(width, height))
        turned = facts.picture.turn in (90, 270)
        size = [max(2, round(side * scale)) for side in ((height, width) if turned else (width, height))]
        with _av.opened(data, _MOST_PIXELS) as container, _av.reading():
            stream = _av.picture_of(container)
            _av.seek(container, Fraction(facts.duration or 0) / 10)
            frame = next(_av.decoded(container, stream), None)
            if frame is None:
                return View("video", facts=seen)
            pixels = frame.to_ndarray(format="rgb24", width=size[0], height=size[1])
        pixels = _turned(pixels, facts.picture.turn)
        png = _png(pixels.tobytes(), pixels.shape[1], pixels.shape[0], 2)
        with contextlib.suppress(ImportError):  # a tenth of the size, where the image libraries are installed
            return View("video", _as_picture(self._small(png, "image/png")), facts=seen)
        return View("video", Picture(png, "image/png", pixels.shape[1], pixels.shape[0]), facts=seen)


def _as_picture(made: Sample) -> Picture:
    return Picture(made.data, "image/jpeg", made.fields["width"], made.fields["height"])


def _turned(pixels: Any, turn: int) -> Any:
    import numpy as np

    return np.ascontiguousarray(np.rot90(pixels, -turn // 90))


def _waveform(data: bytes) -> View:
    """The waveform of the first minute."""
    import av
    import numpy as np

    from any2ds.transforms.steps import _av

    facts = _av.facts_of(data, _MOST_PIXELS)
    if facts.sound is None:
        return View("audio")
    rate, peaks = 8000, []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
    with _av.opened(data, _MOST_PIXELS) as container, _av.reading():
        left = _MOST_SECONDS * rate
        for frame in _av.decoded(container, _av.sound_of(container)):
            frame.pts = None
            for piece in resampler.resample(frame):
                values = np.abs(piece.to_ndarray().reshape(-1).astype(np.int32))
                peaks.append(values)
                left -= len(values)
            if left <= 0:
                break
    values = np.concatenate(peaks) if peaks else np.zeros(1, np.int32)
    heard = f"{facts.sound.rate:,} Hz, {facts.sound.channels} ch"
    if facts.duration:
        heard = f"{duration(facts.duration)}, {heard}"
    width, height = _WAVE
    columns = width // 4
    edges = np.linspace(0, len(values), columns + 1).astype(int)
    tops = [int(values[start : max(start + 1, stop)].max(initial=0)) for start, stop in itertools.pairwise(edges)]
    loudest = max(max(tops), 328)  # near silence is to look like it
    grid = np.zeros((height, width), np.uint8)
    for number, top in enumerate(tops):
        half = max(1, round(top / loudest * (height / 2 - 2)))
        grid[height // 2 - half : height // 2 + half, 4 * number : 4 * number + 3] = 1
    return View("audio", Picture(_png(grid.tobytes(), width, height, 3), "image/png", width, height), facts=heard)


def _png(pixels: bytes, width: int, height: int, colours: Literal[2, 3]) -> bytes:
    """A PNG (3rd edition, 5): of RGB bytes (2), or of numbers in a palette (3) of nothing and a blue that is seen on
    white as on black."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = len(pixels) // height
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, len(pixels), row))
    palette = chunk(b"PLTE", bytes((0, 0, 0, 91, 141, 239))) + chunk(b"tRNS", b"\0") if colours == 3 else b""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + palette + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
