"""The step for video: what its header says goes into the metadata; scaled, cut into clips or taken as images, its sound
kept, dropped or split off, as options say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions, VideoOptions
from any2ds.core.errors import NotDecodable, OptionError
from any2ds.core.samples import Sample
from any2ds.transforms.steps import _clips, image
from any2ds.transforms.steps._clips import Clip
from any2ds.transforms.steps.audio import AudioTransform, of_wrong_length

if TYPE_CHECKING:
    from any2ds.transforms.image.work import ImageWork
    from any2ds.transforms.steps._av import Facts, Picture
    from any2ds.transforms.steps._sound import Format, Target
    from any2ds.transforms.steps._video import Plan

_HEADER = 8 << 20  # bytes for reading one, in which FFmpeg may look at the first frames
_OTHERS = ("mpegurl",)  # playlists
_EITHER = frozenset({"audio/ogg", "audio/mp4"})  # what looks like sound by its first bytes, and may be video
_MOST_STILLS = 100_000
_PER_PIXEL = 12  # bytes of an image that is made smaller: itself, in floats, and what becomes of it


class VideoTransform:
    extra: ClassVar[str] = "video"
    options: ClassVar[frozenset[str]] = frozenset(
        {
            "decode_check",
            "min_duration",
            "max_duration",
            "video_size",
            "video_fps",
            "video_format",
            "clip_seconds",
            "clips_col",
            "frames",
            "frame_interval",
            "video_audio",
        }
    )
    columns: Mapping[str, pa.DataType] = {
        "duration": pa.float64(),
        "fps": pa.float64(),
        "width": pa.int32(),
        "height": pa.int32(),
        "original_width": pa.int32(),
        "original_height": pa.int32(),
        "video_codec": pa.string(),
        "codec": pa.string(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
    }

    def __init__(self, media: MediaOptions, images: ImageWork | None = None) -> None:
        """`images`: what becomes of frames that are taken as images."""
        self._options, self._sound = media.video, media.audio
        self._max_pixels, self._limit = media.image.max_image_area, media.files.unpack_max_bytes
        self._alone = AudioTransform(media)  # for files without pictures that look like video
        self._takes_stills = bool(self._options.frames or self._options.frame_interval)
        self._images = images
        self._checks = media.files.decode_check
        self._has_audio_step = not AudioTransform.options.isdisjoint(media.asked())
        if self._is_cut:
            self.columns = {**self.columns, "clip_start": pa.float64(), "clip_end": pa.float64()}
        if self._takes_stills:
            self.columns = {**self.columns, "frame_time": pa.float64()}
        self.members: Mapping[str, pa.DataType] = {self._split_form.ext: pa.binary()} if self._splits else {}

    @classmethod
    def of(cls, media: MediaOptions) -> VideoTransform:
        """Raises ImportError without PyAV or OpenCV, and OptionError for what cannot be, or not be encoded here."""
        from any2ds.transforms.steps import _sound, _video

        wanted = media.video
        for one, other in (("frames", "frame_interval"), ("clip_seconds", "clips_col")):
            if getattr(wanted, one) and getattr(wanted, other):
                raise OptionError(f"{one} and {other}: only one of them")
        _video.check(wanted)
        _sound.check(media.audio)
        if wanted.frames or wanted.frame_interval:
            if media.image.bbox_col:
                raise OptionError("bbox_col: boxes are blurred in images, not in those that frames makes of video")
            if wanted.video_audio == "split":
                raise OptionError("video_audio=split: there is no place for sound beside the images that frames makes")
            for name in ("video_fps", "video_format"):
                if getattr(wanted, name) != VideoOptions.__dataclass_fields__[name].default:
                    message = "there is no video where frames makes images of it (encode_format says which)"
                    raise OptionError(f"{name}: {message}")
            image.check(media.image)
            from any2ds.transforms.image.work import ImageWork

            return cls(media, ImageWork(media))
        return cls(media)

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        return ("av", *(image.LIBRARIES if media.video.frames or media.video.frame_interval else ()))

    @staticmethod
    def takes(sample: Sample) -> bool:
        kind, _, name = sample.mime_type.partition("/")
        return (kind == "video" and not name.endswith(_OTHERS)) or sample.mime_type in _EITHER

    @staticmethod
    def unsupported(sample: Sample) -> str:
        kind, _, name = sample.mime_type.partition("/")
        return f"{sample.mime_type} is a playlist" if kind == "video" and name.endswith(_OTHERS) else ""

    def memory(self, sample: Sample) -> int:
        from any2ds.transforms.steps import _video

        if not (_video.changes(self._options) or self._checks):
            return _HEADER
        facts = self._facts(sample)
        if facts.picture is None:
            return self._alone.memory(sample)
        if self._takes_stills:
            width, height = facts.picture.shown
            return _HEADER + _video.memory(facts, None) + _PER_PIXEL * width * height + min(self._limit, sample.size)
        plan = _video.plan_of(self._options, facts, sample.ext, self._is_cut)
        if plan is None and self._checks:
            return _HEADER + _video.memory(facts, None)
        if plan is None or plan.encoder is None:
            return _HEADER + 2 * sample.size
        return _HEADER + _video.memory(facts, plan) + 2 * sample.size

    def __call__(self, sample: Sample) -> Sample | Sequence[Sample]:
        from any2ds.transforms.steps import _av

        try:
            facts = _av.facts_of(sample.data, self._max_pixels, self._is_judged)
        except _av.TooManyPixels as error:
            return sample.failed("too_many_pixels", str(error))
        picture = facts.picture
        if picture is None:  # sound alone
            is_done = self._has_audio_step or sample.mime_type in _EITHER
            return sample if is_done else self._alone.of_sound(sample, facts)
        if not AudioTransform.takes(sample):
            sample = self._alone.of_video(sample, facts)
        reported = _reported(sample, facts, picture)
        if failed := of_wrong_length(reported, facts.duration, self._sound.min_duration, self._sound.max_duration):
            return failed
        if self._checks:
            _av.decode_all(sample.data, self._max_pixels)
        try:
            clips = self._clips(reported, facts)
        except _clips.TooMany as error:
            return reported.failed("unpacks_too_large", str(error))
        except ValueError as error:
            return reported.failed("bad_clips", f"{self._options.clips_col}: expected {error}")
        try:
            if self._images is not None:
                if (refusal := self._images.refusal(*picture.shown)) is not None:
                    return reported.failed(*refusal)
                return list(self._stills(reported, facts, clips, self._images))
            if clips is None:
                return self._whole(reported, facts)
            return list(self._cut(reported, facts, clips))
        except self._too_much as error:
            return reported.failed("unpacks_too_large", str(error))

    @property
    def _too_much(self) -> type[Exception]:
        from any2ds.transforms.steps import _sound

        return _sound.TooMuch

    @property
    def _is_judged(self) -> bool:
        """Whether its packets are asked how long it lasts: a header may claim centuries, each second of it a clip."""
        return self._sound.limits_duration or self._options.clip_seconds > 0

    @property
    def _is_cut(self) -> bool:
        return bool(self._options.clip_seconds or self._options.clips_col)

    def _facts(self, sample: Sample) -> Facts:
        from any2ds.transforms.steps import _av

        return _av.facts_of(sample.data, self._max_pixels)

    def _clips(self, sample: Sample, facts: Facts) -> list[Clip] | None:
        """None: it stays whole. Raises ValueError for what is no list of clips, and TooMany."""
        wanted = self._options
        if wanted.clips_col:
            column = wanted.clips_col
            value = (sample.row.extra or {}).get(column, sample.fields.get(column))
            return _clips.of_value(value) or None
        if wanted.clip_seconds and facts.duration:
            return _clips.of_one_length(facts.duration, wanted.clip_seconds, self._sound.min_duration)
        return None

    # --- video ---

    def _whole(self, sample: Sample, facts: Facts) -> Sample:
        from any2ds.transforms.steps import _video

        plan = _video.plan_of(self._options, facts, sample.ext, is_clip=False)
        if plan is None:
            return self._named(sample)
        data = _video.encoded(sample.data, facts, plan, self._max_pixels, self._limit)
        return self._with_sound(_stored(sample, data, plan, facts), sample.data, facts, 0.0, None)

    def _named(self, sample: Sample) -> Sample:
        """A file that is in the format wanted already is called as those that were made so."""
        from any2ds.transforms.steps import _video

        wanted = self._options.video_format
        if wanted == "keep" or sample.ext == wanted:
            return sample
        reported = {**sample.fields, "ext": wanted, "mime_type": _video.CONTAINERS[wanted].mime_type}
        return replace(sample, ext=wanted, fields=reported)

    def _cut(self, sample: Sample, facts: Facts, clips: Sequence[Clip]) -> Iterator[Sample]:
        from any2ds.transforms.steps import _video

        plan = _video.plan_of(self._options, facts, sample.ext, is_clip=True)
        assert plan is not None
        data, left = sample.data, self._limit
        for clip, end, failed in self._within(sample, facts, clips):
            if failed is not None:
                yield failed
                continue
            video = _video.encoded(data, facts, plan, self._max_pixels, left, clip.start, end)
            left -= len(video)
            made = _stored(sample, video, plan, facts).with_fields(
                duration=end - clip.start, clip_start=clip.start, clip_end=end
            )
            yield self._with_sound(made, data, facts, clip.start, end)

    def _within(
        self, sample: Sample, facts: Facts, clips: Sequence[Clip]
    ) -> Iterator[tuple[Clip, float, Sample | None]]:
        """Each clip, where it ends, and its failure if it begins where there is nothing any more."""
        for clip in clips:
            if facts.duration is not None and clip.start >= facts.duration:
                message = f"the clip from {clip.start:g} s begins behind the end, which is at {facts.duration:.3f} s"
                reported = sample.with_fields(clip_start=clip.start, clip_end=clip.end)
                yield clip, clip.end, reported.failed("too_short", message)
            else:
                yield clip, min(clip.end, facts.duration or clip.end), None

    @property
    def _splits(self) -> bool:
        return self._options.video_audio == "split"

    @property
    def _split_form(self) -> Format:
        """What sound that is split off is encoded as."""
        from any2ds.transforms.steps import _sound

        return _sound.FORMATS["wav" if self._sound.audio_format == "keep" else self._sound.audio_format]

    def _with_sound(self, made: Sample, data: bytes, facts: Facts, start: float, end: float | None) -> Sample:
        """With its sound beside it, if that is to be split off."""
        from any2ds.transforms.steps import _sound

        if not self._splits or facts.sound is None:
            return made
        target = self._split_target(facts)
        try:
            sound, _ = _sound.encoded(data, target, self._max_pixels, self._limit, start, end)
        except NotDecodable:
            if start or end is not None:  # there may be no sound in this part of it
                return made
            raise
        return made.with_member(target.form.ext, sound).with_fields(
            codec=target.codec, sample_rate=target.rate, channels=target.channels
        )

    def _split_target(self, facts: Facts) -> Target:
        from any2ds.transforms.steps import _sound

        assert facts.sound is not None
        wanted = self._sound
        return _sound.nearest(self._split_form, facts.sound, wanted.audio_rate, wanted.audio_channels)

    # --- images ---

    def _stills(
        self, sample: Sample, facts: Facts, clips: Sequence[Clip] | None, images: ImageWork
    ) -> Iterator[Sample]:
        """They are treated as any image is, and never were a file before."""
        from any2ds.transforms.steps import _av, _video

        assert facts.picture is not None
        parts = list(self._parts(sample, facts, clips))
        if self._count(parts) > _MOST_STILLS:  # a header may claim centuries: count by the packets
            facts = _av.facts_of(sample.data, self._max_pixels, exact=True)
            parts = list(self._parts(sample, facts, clips))
            if self._count(parts) > _MOST_STILLS:
                raise self._too_many_stills()
        assert facts.picture is not None
        size = _video.size_of(facts.picture, self._options.video_size)
        data, left, once = sample.data, self._limit, not self._options.frames
        for clip, end, failed in parts:
            if failed is not None:
                yield failed
                continue
            reported = {"clip_start": clip.start, "clip_end": end} if clips else {}
            times, last = self._times(clip.start, end), end if math.isfinite(end) else None
            for at, pixels in _video.stills(data, facts, self._max_pixels, times, last, size, once):
                made = images.of_pixels(sample.with_fields(frame_time=at, **reported), pixels)
                left -= made.size
                if left < 0:
                    raise self._too_much(f"its images are more than {self._limit:,} bytes (--unpack_max_bytes)")
                yield made

    def _parts(
        self, sample: Sample, facts: Facts, clips: Sequence[Clip] | None
    ) -> Iterator[tuple[Clip, float, Sample | None]]:
        """The clips as `_within` gives them, or all of the video; its end is infinite where nothing tells it."""
        assert facts.picture is not None
        known = [seconds for seconds in (facts.picture.seconds, facts.duration) if seconds]
        end = min(known) if known else 0.0 if self._options.frames else math.inf
        return self._within(sample, facts, clips or [Clip(0.0, end)])

    def _count(self, parts: Sequence[tuple[Clip, float, Sample | None]]) -> float:
        """How many images these parts become at most; those without a known end are counted while they are made."""
        lengths = [end - clip.start for clip, end, failed in parts if failed is None and math.isfinite(end)]
        return sum(map(self._count_in, lengths))

    def _count_in(self, seconds: float) -> float:
        if self._options.frames:
            return self._options.frames
        found = seconds / self._options.frame_interval + 1 - 1e-9
        return max(1, math.floor(found)) if math.isfinite(found) else math.inf

    def _times(self, start: float, end: float) -> Iterator[float]:
        """In the middle of so many equal parts, or from the start on every so many seconds."""
        count, every = self._options.frames, self._options.frame_interval
        if count:
            yield from (start + (end - start) * (2 * number + 1) / (2 * count) for number in range(count))
            return
        count = int(min(self._count_in(end - start), _MOST_STILLS + 1))
        yield from (start + number * every for number in range(count))
        if count > _MOST_STILLS:  # asked for only if the last one was on screen
            raise self._too_many_stills()

    def _too_many_stills(self) -> Exception:
        named = "frames" if self._options.frames else "frame_interval"
        return self._too_much(f"it becomes more than {_MOST_STILLS:,} images (--{named})")


def _reported(sample: Sample, facts: Facts, picture: Picture) -> Sample:
    width, height = picture.shown
    sound = facts.sound
    return sample.with_fields(
        duration=facts.duration,
        fps=picture.fps,
        width=width,
        height=height,
        original_width=width,
        original_height=height,
        video_codec=picture.codec,
        codec=sound and sound.codec,
        sample_rate=sound and sound.rate,
        channels=sound and sound.channels,
    )


def _stored(sample: Sample, data: bytes, plan: Plan, facts: Facts) -> Sample:
    """The sample with a video that was made as `plan` says."""
    from any2ds.transforms.steps import _video

    container = plan.container
    known: dict[str, Any] = {}
    if plan.encoder is not None:
        known["video_codec"] = _video.CODECS[plan.encoder]
    if plan.sound is not None:
        known |= {"codec": plan.sound.codec, "sample_rate": plan.sound.rate, "channels": plan.sound.channels}
    elif not plan.has_sound:
        known |= {"codec": None, "sample_rate": None, "channels": None}
    if plan.fps:
        known["fps"] = plan.fps
    return sample.with_data(data, container.name, container.mime_type, width=plan.width, height=plan.height, **known)


PART = VideoTransform
