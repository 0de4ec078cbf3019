"""Makes a small picture of an image, a sound or a video.

This runs in a child process, see `preview`, and imports nothing that decoding does not need: pyarrow alone would take
longer to import than all pictures of a report take to make.
"""

from __future__ import annotations

import io
import itertools
import logging
import wave
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
_SECONDS_HEARD, _RATE = 4, 8000  # of the sound inside a page: 32 KB
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
    """The view of a file, empty where it cannot be shown."""

    kind: Kind
    picture: Picture | None = None
    text: str = ""  # the beginning of a text
    facts: str = ""  # in words: "640 x 480", "3.2 s"
    sound: bytes = b""  # the first seconds, as WAV


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
        from any2ds.transforms.image.work import ImageWork, head_of

        if self._images is None:
            options = ImageOptions(
                resize_mode="keep_ratio_largest",
                encode_format="jpg",
                encode_quality=82,
                skip_reencode=False,
                max_image_area=_MOST_PIXELS,
            )
            self._images = ImageWork(MediaOptions(TransformOptions(file_size=SIDE), options))
        sample = Sample(Row(0, 0, "", None), StoredBody.of(data), "", {"mime_type": mime_type, "status": SUCCESS})
        small: Sample = self._images.made(sample, head_of(data) if mime_type in head.KINDS else None)
        return small

    def _frame(self, data: bytes) -> View:
        """A frame from the first tenth of a video, since many begin in black."""
        import numpy as np

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
        pixels = np.rot90(pixels, -facts.picture.turn // 90)
        return View("video", _jpeg(np.ascontiguousarray(pixels)), facts=seen)


def _jpeg(pixels: Any) -> Picture:
    """A picture of RGB pixels, encoded by FFmpeg: the image libraries may not be installed."""
    import av

    codec: Any = av.CodecContext.create("mjpeg", "w")
    codec.height, codec.width, _ = pixels.shape
    codec.pix_fmt, codec.time_base, codec.color_range = "yuv420p", Fraction(1), 2
    codec.options = {"qmin": "4", "qmax": "4"}
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p", dst_color_range="JPEG")
    data = b"".join(bytes(packet) for packet in (*codec.encode(frame), *codec.encode(None)))
    return Picture(data, "image/jpeg", codec.width, codec.height)


def _as_picture(made: Sample) -> Picture:
    return Picture(made.data, "image/jpeg", made.fields["width"], made.fields["height"])


def _waveform(data: bytes) -> View:
    """The waveform of the first minute, and the first seconds to listen to."""
    import av
    import numpy as np

    from any2ds.transforms.steps import _av

    facts = _av.facts_of(data, _MOST_PIXELS)
    if facts.sound is None:
        return View("audio")
    resampler = av.AudioResampler(format="u8", layout="mono", rate=_RATE)
    pieces: list[Any] = [np.zeros(0, np.uint8)]
    left = _MOST_SECONDS * _RATE
    with _av.opened(data, _MOST_PIXELS) as container, _av.reading():
        for frame in _av.decoded(container, _av.sound_of(container)):
            frame.pts = None
            for piece in resampler.resample(frame):
                pieces.append(piece.to_ndarray().reshape(-1))
                left -= len(pieces[-1])
            if left <= 0:
                break
    sound = np.concatenate(pieces)
    heard = f"{facts.sound.rate:,} Hz, {facts.sound.channels} ch"
    if facts.duration:
        heard = f"{duration(facts.duration)}, {heard}"
    picture = Picture(_wave_svg(np.abs(sound.astype(np.int32) - 128)), "image/svg+xml", *_WAVE)
    return View("audio", picture, facts=heard, sound=_wav(sound[: _SECONDS_HEARD * _RATE].tobytes()))


def _wave_svg(levels: Any) -> bytes:
    """The loudest of `levels`, 0 to 128, in each column of a waveform."""
    import numpy as np

    width, height = _WAVE
    edges = np.linspace(0, len(levels), width // 4 + 1).astype(int)
    tops = [int(levels[start : max(start + 1, stop)].max(initial=0)) for start, stop in itertools.pairwise(edges)]
    loudest = max(max(tops), 2)  # near silence is to look like it
    halves = [max(1, round(top / loudest * (height / 2 - 2))) for top in tops]
    path = "".join(f"M{4 * n + 2} {height // 2 - half}v{2 * half}" for n, half in enumerate(halves))
    line = f'<path stroke="#5b8def" stroke-width="3" d="{path}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">{line}</svg>'.encode()


def _wav(samples: bytes) -> bytes:
    """A file that every browser plays."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 1, _RATE, 0, "NONE", ""))
        out.writeframes(samples)
    return file.getvalue()
