"""The options that say what becomes of the files: made smaller, taken apart, or left as they came."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from any2ds.parsers import (
    boolean,
    byte_count,
    integer,
    number,
    one_of,
    option,
    optional,
    text,
    words,
)

_INTERPOLATIONS = ("nearest", "linear", "cubic", "area", "lanczos")


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """What becomes of the files"""

    file_size: int = option("pixels that images are made smaller to (see resize_mode); 0 keeps them", integer(0), 256)
    disable_all_reencoding: bool = option(
        "decode nothing: images, sound and video are stored byte for byte", boolean, False
    )
    unpack: bool = option("files in archives (zip, tar, gz, tar.xz, tar.zst ...) become samples", boolean, False)
    unpack_max_files: int = option("an archive with more files fails as unpacks_too_large", integer(1), 10_000)
    unpack_max_bytes: int = option("and so does one that unpacks to more than this", byte_count, 2**30, "1GiB")
    unpack_max_ratio: int = option("or to more than so many times its own size", integer(1), 200)
    extract_text: bool = option("the text of web pages and PDF files beside them, as .txt", boolean, False)
    transform: Any = option(
        "steps of your own, separated by commas: module:function, or my_step.py:clean", optional(words), None
    )


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What becomes of images"""

    resize_mode: str = option(
        "keep_ratio: the shorter side becomes file_size; keep_ratio_largest: the longer one; center_crop, border: a"
        " square; no",
        one_of("keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"),
        "keep_ratio",
    )
    resize_only_if_bigger: bool = option("never make an image larger", boolean, True)
    upscale_interpolation: str = option("used to make images larger", one_of(*_INTERPOLATIONS), "lanczos")
    downscale_interpolation: str = option("used to make them smaller", one_of(*_INTERPOLATIONS), "area")
    encode_format: str = option(
        "jpg, png, webp, avif, or keep, that of the file", one_of("keep", "jpg", "png", "webp", "avif"), "keep"
    )
    encode_quality: int = option(
        "1 to 100 (jpg, webp, avif), or 0 to 9, how hard png is compressed", integer(0, 100), 95
    )
    skip_reencode: bool = option("an image for which nothing has to be done keeps its bytes", boolean, True)
    min_image_size: int = option("an image with a shorter side below this fails as too_small", integer(0), 0)
    max_image_area: float = option(
        "one with more pixels fails as too_many_pixels, before it is decoded", number(1), 200_000_000, "200 million"
    )
    max_aspect_ratio: float | None = option(
        "one whose longer side is more times its shorter one fails as aspect_ratio",
        optional(number(1)),
        None,
        "no limit",
    )
    extract_exif: bool = option("EXIF as JSON into the metadata", boolean, False)
    bbox_col: str | None = option(
        "column of boxes to blur, [[left, top, right, bottom], ...] as parts of width and height", optional(text), None
    )
    animated: str = option(
        "of animated GIF, PNG, WebP and AVIF: first, a still image; keep, the file", one_of("first", "keep"), "first"
    )


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What becomes of sound"""

    audio_rate: int | None = option("samples per second", optional(integer(1000, 768_000)), None, "as it is")
    audio_channels: int | None = option("1 for mono, 2 for stereo", optional(integer(1, 2)), None, "as it is")
    audio_format: str = option(
        "flac, ogg, opus, mp3, wav, or keep, that of the file",
        one_of("keep", "flac", "ogg", "opus", "mp3", "wav"),
        "keep",
    )
    min_duration: float = option("seconds; shorter sound or video fails as too_short", number(0), 0.0)
    max_duration: float | None = option(
        "seconds; longer sound or video fails as too_long", optional(number(0)), None, "no limit"
    )
    audio_trim: float = option("seconds of sound that are kept, from its beginning; 0 for all", number(0), 0.0)

    @property
    def limits_duration(self) -> bool:
        """Whether it matters how long a file lasts."""
        return self.min_duration > 0 or self.max_duration is not None


@dataclass(frozen=True, slots=True)
class VideoOptions:
    """What becomes of video"""

    video_size: int = option("pixels that the shorter side is made smaller to; 0 keeps it", integer(0, 16_384), 0)
    video_fps: float | None = option("frames per second", optional(number(0.001, 1000)), None, "as it is")
    video_format: str = option(
        "mp4, webm, mkv, or keep, that of the file", one_of("keep", "mp4", "webm", "mkv"), "keep"
    )
    clip_seconds: float = option("cut into clips of so many seconds, each a sample; 0 for not", number(0), 0.0)
    clips_col: str | None = option(
        "column with [start, end] pairs in seconds, each of which becomes a sample", optional(text), None
    )
    frames: int = option("so many images instead of the video, evenly spaced; 0 for none", integer(0, 100_000), 0)
    frame_interval: float = option("an image every so many seconds instead of the video; 0 for none", number(0), 0.0)
    video_audio: str = option(
        "the sound of video: keep, drop, or split, into a further member, .wav or as audio_format says",
        one_of("keep", "drop", "split"),
        "keep",
    )


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """All of them, for the steps."""

    files: TransformOptions = dataclasses.field(default_factory=TransformOptions)
    image: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    audio: AudioOptions = dataclasses.field(default_factory=AudioOptions)
    video: VideoOptions = dataclasses.field(default_factory=VideoOptions)

    def changed(self) -> dict[str, Any]:
        """The options whose values are not their defaults, and what these are."""
        return {
            field.name: value
            for group in self._groups()
            for field in dataclasses.fields(group)
            if (value := getattr(group, field.name)) != field.default
        }

    def looks_at(self, column: str) -> bool:
        """Whether a step may look at this column of the list; those of the user's own at any."""
        own = [step for step in self.files.transform or () if not str(step).startswith("any2ds.")]
        return bool(own) or column in (self.image.bbox_col, self.video.clips_col)

    def _groups(self) -> tuple[Any, ...]:
        return (self.files, self.image, self.audio, self.video)


@dataclass(frozen=True, slots=True)
class TransformLimits:
    """What the steps may take in one process."""

    threads: int = 1
    timeout: float = 300.0  # seconds for one file; 0 for no limit
    max_decoded_bytes: int = 2**30


MEDIA_GROUPS: tuple[Any, ...] = (TransformOptions, ImageOptions, AudioOptions, VideoOptions)


def as_made(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the `_run.json` of a dataset, completed where an earlier version wrote it, which stored every file
    as it came."""
    if "file_size" in options:
        return dict(options)
    defaults = {field.name: field.default for group in MEDIA_GROUPS for field in dataclasses.fields(group)}
    return {**defaults, **options, "disable_all_reencoding": True}


def _values(group: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(group, field.name)) for field in dataclasses.fields(group))
