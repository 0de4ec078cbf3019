"""The options that say what becomes of the files: made smaller, taken apart, or left as they came."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from any2ds.config.declare import declared, option, parse_nested
from any2ds.config.parsers import (
    accepting,
    boolean,
    byte_count,
    integer,
    number,
    one_of,
    optional,
    optional_limit,
    steps,
    text,
)
from any2ds.core.errors import OptionError
from any2ds.core.members import Members
from any2ds.core.rows import RENAMED

_INTERPOLATIONS = ("nearest", "nearest_exact", "linear", "cubic", "area", "lanczos")


@accepting("str")
def member_options(value: Any) -> dict[str, dict[str, Any]]:
    """Member -> option -> value, of `mask:encode_format=png,file_size=0,sound:audio_rate=16000` or a mapping.

    An option without a member before it is of the last one that was named. Raises ValueError for what is no such thing,
    OptionError that names member and option.
    """
    given = _by_member(value) if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not all(isinstance(own, Mapping) for own in given.values()):
        raise ValueError("options by member: mask:encode_format=png,file_size=0,sound:audio_rate=16000")
    options = {each.name: each for each in declared(MEDIA_GROUPS)}
    parsed: dict[str, dict[str, Any]] = {}
    for member, own in given.items():
        place = f"member_options: {member}"
        if several := [name for name in own if name in options and options[name].scope == "splits"]:
            raise OptionError(
                f"{place}: {several[0]}: a row of several URLs is one sample, and its files stay one each"
            )
        parsed[str(member)] = parse_nested(place, own, options, lambda each: not each.scope, "members")
    return parsed


def _by_member(written: str) -> dict[str, dict[str, Any]]:
    """Raises ValueError, OptionError for an option that is given twice."""
    found: dict[str, dict[str, Any]] = {}
    member = ""
    for part in written.split(","):
        name, equals, value = part.strip().partition("=")
        before, colon, name = name.rpartition(":")
        member = before.strip() if colon else member
        name = name.strip()
        if not (member and name and equals):
            raise ValueError("member:option=value,option=value, such as mask:encode_format=png,file_size=0")
        own = found.setdefault(member, {})
        if name in own:
            raise OptionError(f"member_options: {member}: {name} is given twice")
        own[name] = value.strip()
    return found


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """What becomes of the files"""

    file_size: int | None = option(
        "size of images in pixels (see resize_mode); 0 keeps them",
        optional(integer(0, 65_535)),
        None,
        "originals are kept",
        needs="not resize_mode=no",
        off=0,
        task="Images, sound and video",
        hints="size resolution image_size",
    )
    decode_check: bool = option(
        "decode files: damaged ones fail as not_decodable; adds width, duration … to the metadata",
        boolean,
        False,
        off=False,
        task="Images, sound and video",
    )
    disable_all_reencoding: bool = option("decode nothing: store all byte for byte", boolean, False)
    unpack: bool = option(
        "files in archives (zip, tar, gz …) become samples", boolean, False, off=False, scope="splits"
    )
    unpack_max_files: int = 10_000  # archives with more files fail as unpacks_too_large
    unpack_max_bytes: int = option(
        "what unpacks to more fails",
        byte_count,
        2**30,
        "1GiB",
        needs="unpack, audio_*, video_*, clip* or frame*",
        scope="run",
    )
    extract_text: bool = option("store the text of web pages and PDF files as .txt", boolean, False, off=False)
    transform: Any = option(
        "steps of your own: module:function, or my_step.py:clean",
        optional(steps),
        None,
        off=(),
        scope="run",
        task="Images, sound and video",
    )
    member_options: Mapping[str, Mapping[str, Any]] | None = option(
        "other options for a URL column: mask:encode_format=png,file_size=0",
        optional(member_options),
        None,
        scope="run",
    )


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What becomes of images"""

    resize_mode: str = option(
        "file_size is the shorter side: keep_ratio; the longer: keep_ratio_largest; a square: center_crop, border",
        one_of("keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"),
        "keep_ratio",
        needs="file_size",
        off="no",
        task="Images, sound and video",
    )
    resize_only_if_bigger: bool = option("keep small images", boolean, True, needs="file_size")
    upscale_interpolation: str = option(
        "for enlarging images", one_of(*_INTERPOLATIONS), "lanczos", needs="file_size and resize_only_if_bigger=False"
    )
    downscale_interpolation: str = option(
        "for shrinking images; nearest_exact for masks", one_of(*_INTERPOLATIONS), "area", needs="file_size"
    )
    encode_format: str = option(
        "jpg, png, webp, avif, or keep",
        one_of("keep", "jpg", "png", "webp", "avif"),
        "keep",
        task="Images, sound and video",
    )
    encode_quality: int = option(
        "1 to 100; of png 0 to 9, its compression",
        integer(0, 100),
        95,
        needs="file_size, encode_format, skip_reencode=False, bbox_col, animated, frames or frame_interval",
        hints="quality",
    )
    skip_reencode: bool = option("keep the bytes of unchanged images", boolean, True)
    only_images: bool = option("what is no image fails as not_decodable", boolean, False, off=False)
    min_image_size: int = option("a side of fewer pixels fails as too_small", integer(0), 0, off=0)
    max_image_area: float = option(
        "more pixels fail as too_many_pixels", number(1, math.inf), 200_000_000, "200 million"
    )
    max_aspect_ratio: float | None = option(
        "longer / shorter side, at most", optional(number(1, math.inf)), None, "no limit"
    )
    extract_exif: bool = option("add EXIF to the metadata, as JSON", boolean, False, off=False)
    bbox_col: str | None = option(
        "column of boxes to blur: [[left, top, right, bottom], …], parts of width and height", optional(text), None
    )
    animated: str | None = option(
        "of animated images: first, a still one; keep, the file",
        optional(one_of("first", "keep")),
        None,
        "first if images are resized or encoded",
        off="keep",
    )


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """What becomes of sound"""

    audio_rate: int | None = option(
        "sample rate of sound files in Hz; of video with video_audio=split", optional(integer(1000, 768_000)), None
    )
    audio_channels: int | None = option("1 for mono, 2 for stereo; of the same files", optional(integer(1, 2)), None)
    audio_format: str = option(
        "flac, ogg, opus, mp3, wav or keep", one_of("keep", "flac", "ogg", "opus", "mp3", "wav"), "keep"
    )
    min_duration: float = option("seconds; shorter files fail as too_short", number(0), 0.0, off=0)
    max_duration: float | None = option(
        "seconds; longer ones fail as too_long; 0: no limit", optional_limit(number(0)), None
    )
    audio_trim: float = option("seconds to keep from the start of sound; 0: all", number(0), 0.0, off=0)

    @property
    def limits_duration(self) -> bool:
        """Whether it matters how long a file lasts."""
        return self.min_duration > 0 or self.max_duration is not None


@dataclass(frozen=True, slots=True)
class VideoOptions:
    """What becomes of video"""

    video_size: int = option("shorter side in pixels; 0 keeps it", integer(0, 16_384), 0, off=0)
    video_fps: float | None = option("frames per second", optional(number(0.001, 1000)), None)
    video_format: str = option("mp4, webm, mkv or keep", one_of("keep", "mp4", "webm", "mkv"), "keep")
    clip_seconds: float = option(
        "cut sound and video into so many seconds; 0: no", number(0), 0.0, off=0, scope="splits"
    )
    clips_col: str | None = option(
        "column of [start, end] pairs in seconds, each a sample of sound or video", optional(text), None, scope="splits"
    )
    frames: int = option(
        "store so many evenly spaced images in place of a video; 0: none", integer(0, 100_000), 0, off=0, scope="splits"
    )
    frame_interval: float = option(
        "store an image every so many seconds in place of a video; 0: none", number(0), 0.0, off=0, scope="splits"
    )
    video_audio: str = option(
        "sound of video: keep; drop; or split, into a file of its own", one_of("keep", "drop", "split"), "keep"
    )


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """All of them, for the steps."""

    files: TransformOptions = dataclasses.field(default_factory=TransformOptions)
    image: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    audio: AudioOptions = dataclasses.field(default_factory=AudioOptions)
    video: VideoOptions = dataclasses.field(default_factory=VideoOptions)
    given: frozenset[str] = frozenset()  # options that were set explicitly, maybe to their defaults
    members: Members | None = None  # what a row consists of, if it has several URLs

    def of(self, member: str) -> MediaOptions:
        """The options for the files of a member: its own in place of the options for all.

        Where it has `disable_all_reencoding` of its own, no others are left but the steps of the user.
        """
        given = dict((self.files.member_options or {}).get(member, {}))
        start = self
        if given.get("disable_all_reencoding"):
            start = MediaOptions(TransformOptions(transform=self.files.transform), members=self.members)
        if given.get("encode_format") == "png":  # of which the quality of other formats is none
            given.setdefault("encode_quality", ImageOptions.__dataclass_fields__["encode_quality"].default)
        groups: list[Any] = []
        for group in start.groups():
            own = {field.name: given[field.name] for field in dataclasses.fields(group) if field.name in given}
            groups.append(replace(group, **own))
        groups[0] = replace(groups[0], member_options=None)
        files, image, audio, video = groups
        return MediaOptions(files, image, audio, video, start.given - {"member_options"} | given.keys(), self.members)

    def by_member(self) -> dict[str, MediaOptions]:
        """Member -> the options for its files; those for all under "" where no member has others."""
        if self.members is None or not self.files.member_options:
            return {"": self}
        return {name: self.of(name) for name in self.members.names}

    @property
    def step_columns(self) -> tuple[str, ...]:
        """The columns of the list that steps of any2ds read."""
        each = self.by_member().values()
        found = (column for media in each for column in (media.image.bbox_col, media.video.clips_col))
        return tuple(dict.fromkeys(column for column in found if column is not None))

    def asked(self) -> tuple[str, ...]:
        """The options that ask for a step: given, or not the default; but for values that turn something off.

        Those that only a member has are one, `member_options`.
        """
        return tuple(
            each.name
            for group in self.groups()
            for each in declared([group])
            if (value := getattr(group, each.name)) not in (None, each.off)
            and (value != each.default or each.name in self.given)
        )

    def splitting(self) -> list[str]:
        """The options asked for that make several samples of a file."""
        splitting = {each.name for each in declared(MEDIA_GROUPS) if each.scope == "splits"}
        return [name for name in self.asked() if name in splitting]

    def looks_at(self, column: str) -> bool:
        """Whether a step may look at this column of the list; those of the user's own at any."""
        own = [step for step in self.files.transform or () if not str(step).startswith("any2ds.")]
        return bool(own) or not {column, column.removeprefix(RENAMED)}.isdisjoint(self.step_columns)

    def groups(self) -> tuple[TransformOptions, ImageOptions, AudioOptions, VideoOptions]:
        return (self.files, self.image, self.audio, self.video)


@dataclass(frozen=True, slots=True)
class TransformLimits:
    """Limits of the steps in one process."""

    threads: int = 1
    timeout: float = 300.0  # seconds for one file; 0 for no limit
    max_decoded_bytes: int = 2**30
    is_shared: bool = False  # the threads are divided by the number of processes at work on the machine


MEDIA_GROUPS: tuple[Any, ...] = (TransformOptions, ImageOptions, AudioOptions, VideoOptions)
