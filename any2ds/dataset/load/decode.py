"""Files of samples as arrays and texts, for training.

    image   uint8 array, height x width x 3 (RGB), as it is stored: a turn in its Exif data is not applied; with the
            channels that a recipe says, 1 (grey) or 4 (RGBA)
    audio   float32 array, samples x channels, between -1 and 1; the sample has its `rate` (Hz) as well
    video   a `Video`, whose frames are decoded when they are asked for
    text    str, as UTF-8; what is none becomes U+FFFD

Everything else stays bytes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from any2ds.core import plugins
from any2ds.core.errors import DamagedShard, MissingExtra, error_text
from any2ds.dataset.kinds import kind_of_ext

_MOST_PIXELS = 200_000_000  # of an image or frame, as --max_image_area has it
_kind = lru_cache(1024)(kind_of_ext)


def decoded(
    sample: dict[str, Any], members: Sequence[str] = (), channels: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Any]:
    """The sample, whose `data` are decoded by the kind of its file, and so are its `members`, where it has several.

    `channels` has those of `data` or members that are images of others than 3. Raises DamagedShard, MissingExtra.
    """
    data, ext = sample.get("data"), sample.get("ext")
    if not members:
        return sample if data is None or not ext else _decoded(sample, "data", ext, "rate", channels.get("data", 3))
    for member in members:
        if (found := sample.get(member)) is not None and (own := sample.get(f"{member}_ext")):
            if data is not None and found is data and ext == f"{member}.{own}":
                _decoded(sample, member, own, "rate", channels.get(member, 3))
                sample["data"], data = sample[member], None
                if "rate" in sample:
                    sample[f"{member}_rate"] = sample["rate"]
            else:
                _decoded(sample, member, own, f"{member}_rate", channels.get(member, 3))
    if data is not None and ext:  # its member is not among the columns
        member, _, own = ext.rpartition(".")
        _decoded(sample, "data", own, "rate", channels.get(member, 3))
    return sample


def _decoded(sample: dict[str, Any], name: str, ext: str, rate: str, channels: int) -> dict[str, Any]:
    """It, with the file `name` decoded; `rate` is the column of the sample rate of sound."""
    data, kind = sample[name], _kind(ext)
    try:
        if kind == "image":
            sample[name] = image(data, channels)
        elif kind == "audio":
            sample[name], sample[rate] = audio(data)
        elif kind == "video":
            sample[name] = Video(data)
        elif kind == "text":
            sample[name] = data.decode("utf-8-sig", "replace")
    except ImportError as error:
        raise plugins.missing_extra(f"decode: {ext}", error) from error
    except MissingExtra:
        raise
    except Exception as error:  # each library has its own
        raise DamagedShard(f"{sample.get('key')!r}: its {ext} cannot be decoded: {error_text(error)}") from error
    return sample


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Of Pillow, by the channels of an image."""
_MODES_OF_JPEG = {**MODES, 1: "GRAY"}  # as simplejpeg calls them


def image(data: bytes, channels: int = 3) -> Any:
    """uint8 array, height x width x channels: 3, 1 (grey) or 4 (RGBA)."""
    import numpy as np
    import simplejpeg
    from PIL import Image

    if data[:2] == b"\xff\xd8":
        try:
            return simplejpeg.decode_jpeg(data, _MODES_OF_JPEG[channels])
        except ValueError:  # CMYK, or damaged
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data)) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise ValueError(f"it has {opened.width:,} x {opened.height:,} pixels")
            found = np.array(opened.convert(MODES[channels]))  # a copy, which can be written to
            return found[:, :, None] if channels == 1 else found


def audio(data: bytes) -> tuple[Any, int]:
    """float32 array, samples x channels, and the sample rate."""
    import av
    import numpy as np

    from any2ds.transforms.steps import _av

    with _av.opened(data, _MOST_PIXELS) as container:
        stream = _av.sound_of(container)
        if stream is None:
            raise ValueError("it has no sound")
        rate = int(stream.codec_context.sample_rate)
        resampler = av.AudioResampler(format="fltp", rate=rate)
        parts = [
            plane.to_ndarray()
            for frame in (*_av.decoded(container, stream), None)
            for plane in resampler.resample(frame)
        ]
    if not parts:
        raise ValueError("it has no sound")
    return np.ascontiguousarray(np.concatenate(parts, axis=1).T), rate


@dataclass(frozen=True, slots=True)
class Video:
    """A video as it is stored. Iteration and `at` raise NotDecodable."""

    data: bytes = field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        """All frames: uint8 arrays, height x width x 3."""
        for _, frame in self._frames(0.0):
            yield frame.to_ndarray(format="rgb24")

    def at(self, seconds: float) -> Any:
        """The frame that is shown at this time; the last one beyond the end."""
        found = None
        for time, frame in self._frames(seconds):
            if found is not None and time > seconds:
                break
            found = frame
        if found is None:
            raise ValueError("it has no frame")
        return found.to_ndarray(format="rgb24")

    def _frames(self, start: float) -> Iterator[tuple[float, Any]]:
        from any2ds.transforms.steps import _av

        with _av.opened(self.data, _MOST_PIXELS) as container:
            stream = _av.picture_of(container)
            if stream is None:
                raise ValueError("it has no picture")
            if start > 0:
                _av.seek(container, Fraction(start))
            for frame in _av.decoded(container, stream):
                yield frame.time or 0.0, frame
