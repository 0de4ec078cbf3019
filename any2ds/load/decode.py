"""Files of samples as arrays and texts, for training.

    image   uint8 array, height x width x 3 (RGB), upright as its Exif data say; with the channels that a recipe says,
            1 (grey) or 4 (RGBA); of 16 bits a channel uint16
    audio   float32 array, samples x channels, between -1 and 1; the sample has its `rate` (Hz) as well
    video   a `Video`, whose frames are decoded when they are asked for, also by time
    text    str, as UTF-8; what is none becomes U+FFFD

Everything else stays bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from any2ds.core import plugins
from any2ds.core.errors import DamagedShard, MissingExtra, error_text
from any2ds.core.kinds import kind_of_ext
from any2ds.transforms.image import head

_MOST_PIXELS = 178_000_000  # of an image or frame: Pillow decodes no more
_EXIF_WITHIN = 1 << 18  # bytes of a JPEG, before its pixels
_kind = lru_cache(1024)(kind_of_ext)


@dataclass(frozen=True, slots=True)
class Sound:
    """The form of sound when it is decoded."""

    rate: int | None = None  # Hz to which it is resampled; None: its own
    mono: bool = False  # whether its channels are mixed into one


AS_STORED = Sound()


def decoded(
    sample: dict[str, Any],
    members: Sequence[str] = (),
    channels: Mapping[str, int] = MappingProxyType({}),
    shard: Callable[[], str] = str,
    sound: Sound = AS_STORED,
) -> dict[str, Any]:
    """The sample, whose `data` are decoded by the kind of its file, and so are its `members`, where it has several.

    `channels` has those of `data` or members that are images of others than 3; `shard` describes the one of the sample,
    for errors of videos, which are decoded later. Raises DamagedShard, which names the key, and MissingExtra.
    """
    data, ext = sample.get("data"), sample.get("ext")
    if not members:
        if data is None or not ext:
            return sample
        return _decoded(sample, "data", ext, "rate", channels.get("data", 3), shard, sound)
    for member in members:
        if (found := sample.get(member)) is not None and (own := sample.get(f"{member}_ext")):
            if data is not None and found is data and ext == f"{member}.{own}":
                _decoded(sample, member, own, "rate", channels.get(member, 3), shard, sound)
                sample["data"], data = sample[member], None
                if "rate" in sample:
                    sample[f"{member}_rate"] = sample["rate"]
            else:
                _decoded(sample, member, own, f"{member}_rate", channels.get(member, 3), shard, sound)
    if data is not None and ext:  # its member is not among the columns
        member, _, own = ext.rpartition(".")
        _decoded(sample, "data", own, "rate", channels.get(member, 3), shard, sound)
    return sample


def _decoded(  # a file of a sample, and what is known of it
    sample: dict[str, Any], name: str, ext: str, rate: str, channels: int, shard: Callable[[], str], sound: Sound
) -> dict[str, Any]:
    """It, with the file `name` decoded; `rate` is the column of the sample rate of sound."""
    kind = _kind(ext)
    found = decoded_file(sample[name], kind, file_name(sample, ext), channels, shard, sound)
    if kind == "audio":
        found, sample[rate] = found
    sample[name] = found
    return sample


def decoded_file(
    data: bytes, kind: str, name: str, channels: int, shard: Callable[[], str], sound: Sound = AS_STORED
) -> Any:
    """A file of a kind; sound with its rate. `name` is for messages. Raises DamagedShard, MissingExtra."""
    try:
        if kind == "image":
            return image(data, channels)
        if kind == "audio":
            return audio(data, sound)
        if kind == "video":
            return Video(data, f"{shard()}: {name}")
    except Exception as error:  # each library has its own
        raise translated(error, name) from error
    return data.decode("utf-8-sig", "replace") if kind == "text" else data


def file_name(sample: Mapping[str, Any], ext: str) -> str:
    """For messages."""
    return f"{sample.get('key')!r}: its {ext}"


def translated(error: Exception, file: str) -> Exception:
    """DamagedShard or MissingExtra for what a library raises that decodes a file."""
    if isinstance(error, ImportError):
        return plugins.missing_extra(f"decode: {file.rpartition(' ')[2]}", error)
    if isinstance(error, (DamagedShard, MissingExtra)):
        return error
    return DamagedShard(f"{file} cannot be decoded: {error_text(error)}")


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Of Pillow, by the channels of an image."""
_MODES_OF_JPEG = {**MODES, 1: "GRAY"}  # as simplejpeg calls them


_IS_DAMAGED = re.compile(r"Corrupt JPEG data: (?!\d extraneous bytes before marker 0xd9)")
"""What libjpeg says of pixels that it made up; some programs write a few bytes between the picture and its end."""


def image(data: bytes, channels: int = 3) -> Any:
    """uint8 array, height x width x channels: 3, 1 (grey) or 4 (RGBA); uint16 where it has 16 bits a channel. Raises
    ValueError for a damaged JPEG, and for an image of 32 bits."""
    import numpy as np
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    if data[:2] == b"\xff\xd8":
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
            _check_size(width, height)
            pixels = simplejpeg.decode_jpeg(data, _MODES_OF_JPEG[channels])
            return _upright(pixels, _orientation_of_jpeg(data))
        except ValueError as error:
            if isinstance(error, _TooLarge) or _IS_DAMAGED.match(str(error)):
                raise
            # Pillow reads what simplejpeg does not know: rare ways of sampling, CMYK in its older versions.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # which is below our own limit
        try:
            opened = Image.open(io.BytesIO(data))
        except UnidentifiedImageError:
            raise ValueError("it is no image, or one of an unknown kind") from None
        with opened:
            _check_size(opened.width, opened.height)
            if opened.mode in ("I", "F"):
                raise ValueError("its pixels have 32 bits, of which nothing says how they become 8")
            if opened.mode.startswith("I;16"):
                opened.load()  # a PNG may have its Exif data behind its pixels
                pixels = _of_16_bits(np.asarray(opened).astype(np.uint16), channels)
            elif data[24:25] == b"\x10" and opened.format == "PNG":  # bits of a channel, of which Pillow reads 8
                opened.load()
                pixels = _of_16_bits(_png_of_16_bits(data), channels)
            else:
                pixels = np.array(opened.convert(MODES[channels]))  # a copy, which can be written to
            pixels = _upright(pixels, _orientation_of(opened))
            return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _png_of_16_bits(data: bytes) -> Any:
    """Pixels of a PNG with several channels: height x width x 3 or 4. Raises ValueError."""
    import cv2
    import numpy as np

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("it is a damaged PNG")
    return cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB)


def _of_16_bits(pixels: Any, channels: int) -> Any:
    """Grey, RGB or RGBA pixels of 16 bits with as many channels as are wanted."""
    import cv2

    there = 1 if pixels.ndim == 2 else pixels.shape[2]
    names = {1: "GRAY", 3: "RGB", 4: "RGBA"}
    return (
        pixels if there == channels else cv2.cvtColor(pixels, getattr(cv2, f"COLOR_{names[there]}2{names[channels]}"))
    )


class _TooLarge(ValueError):
    """An image has more pixels than are decoded."""


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS:
        raise _TooLarge(f"it has {width:,} x {height:,} pixels, and no more than {_MOST_PIXELS:,} are decoded")


def _orientation_of_jpeg(data: bytes) -> int:
    """1 to 8, as Exif has it."""
    if data.find(b"Exif\0", 0, _EXIF_WITHIN) < 0:
        return 1
    return head.of_jpeg(data).orientation


def _orientation_of(opened: Any) -> int:
    """Orientation of a loaded picture of Pillow, 1 to 8; 1 if its Exif data are unusable.

    Not by `ImageOps.exif_transpose`, which raises for unusable Exif data, and follows XMP as well, which transforms
    do not. Pillow turns TIFF itself, and keeps no Exif data of it here.
    """
    exif = opened.info.get("exif")  # a text of a PNG may be called so, too
    return head.orientation_of(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else 1


def _upright(pixels: Any, orientation: int) -> Any:
    """A picture that is turned and mirrored as its orientation of Exif says (section 4.6.4 of its standard)."""
    import numpy as np

    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def audio(data: bytes, sound: Sound = AS_STORED) -> tuple[Any, int]:
    """float32 array, samples x channels, and the sample rate. Raises NotDecodable for a file that is cut off."""
    import av
    import numpy as np

    from any2ds.transforms.steps import _av

    _av.check_end(data)
    with _av.opened(data, _MOST_PIXELS) as container:
        stream = _av.sound_of(container)
        if stream is None:
            raise ValueError("it has no sound")
        rate = sound.rate or int(stream.codec_context.sample_rate)
        resampler = av.AudioResampler(format="fltp", layout="mono" if sound.mono else None, rate=rate)
        parts = [
            plane.to_ndarray()
            for frame in (*_av.decoded(container, stream), None)
            for plane in resampler.resample(frame)
        ]
        if not parts:
            raise ValueError("it has no sound")
        found = np.ascontiguousarray(np.concatenate(parts, axis=1).T)
        _av.check_duration(container, stream, data, len(found) / rate)
    return found, rate


@dataclass(frozen=True, slots=True)
class Video:
    """A video as it is stored. Iteration and `at` raise DamagedShard, which names shard and key, where it cannot be
    decoded, also for one that is cut off."""

    data: bytes = field(repr=False)
    name: str = field(default="a video", repr=False)  # for messages

    def __iter__(self) -> Iterator[Any]:
        """All frames: uint8 arrays, height x width x 3."""
        for _, frame in self._frames(0.0):
            yield frame.to_ndarray(format="rgb24")

    def at(self, seconds: float) -> Any:
        """The frame that is shown at this time; the last one beyond the end."""
        (found,) = self.frames([seconds])
        return found

    def frames(self, times: Sequence[float]) -> list[Any]:
        """The frames that are shown at these times, in seconds and in any order; what lies between is read once."""
        found: dict[float, Any] = {}
        wanted = sorted(set(times))
        last: Any = None
        for time, frame in self._frames(wanted[0]) if wanted else ():
            while last is not None and wanted and wanted[0] < time:
                found[wanted.pop(0)] = last.to_ndarray(format="rgb24")
            if not wanted:
                break
            last = frame
        found.update((time, last.to_ndarray(format="rgb24")) for time in wanted)
        return [found[time] for time in times]

    def _frames(self, start: float) -> Iterator[tuple[float, Any]]:
        """At least one."""
        try:
            from any2ds.transforms.steps import _av

            _av.check_end(self.data)
            with _av.opened(self.data, _MOST_PIXELS) as container:
                stream = _av.picture_of(container)
                if stream is None:
                    raise ValueError("it has no picture")
                if start > 0:
                    _av.seek(container, Fraction(start))
                is_empty = True
                for frame in _av.decoded(container, stream):
                    is_empty = False
                    yield frame.time or 0.0, frame
                if is_empty:
                    raise ValueError("it has no frame")
        except Exception as error:  # of FFmpeg; who takes the frames raises nothing here
            raise translated(error, self.name) from error
