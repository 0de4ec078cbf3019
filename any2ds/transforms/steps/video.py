"""The step for video: its header goes into the metadata; it is scaled, cut into clips or taken as images, its sound
kept, dropped or split off, as options say. Files of sound alone go the way of the step for sound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.config.media import MediaOptions, VideoOptions
from any2ds.core.errors import NotDecodable, OptionError
from any2ds.core.samples import Sample
from any2ds.transforms.contract import STEPS, Plan, Rejected
from any2ds.transforms.steps import _av, _clips, _sound, _video
from any2ds.transforms.steps._av import Facts, Picture
from any2ds.transforms.steps._clips import WHOLE, Clip
from any2ds.transforms.steps._video import Encoding
from any2ds.transforms.steps.audio import AudioTransform, check_length

if TYPE_CHECKING:
    from any2ds.transforms.image.work import ImageWork

_HEADER = 8 << 20  # bytes for reading one, in which FFmpeg may look at the first frames
_MOST_STILLS = 100_000
_PER_PIXEL = 12  # bytes of an image that is made smaller: itself, in floats, and what becomes of it
_EITHER = frozenset({"audio/ogg", "audio/mp4"})  # what looks like sound by its first bytes, and may be video


class VideoTransform(AudioTransform):
    """Takes the place of the step for sound where both are asked for."""

    columns: Mapping[str, pa.DataType] = {
        **AudioTransform.columns,
        "fps": pa.float64(),
        "width": pa.int32(),
        "height": pa.int32(),
        "original_width": pa.int32(),
        "original_height": pa.int32(),
        "video_codec": pa.string(),
    }

    file_columns: tuple[str, ...] = (*AudioTransform.file_columns, "fps", "width", "height", "video_codec")

    def __init__(self, media: MediaOptions) -> None:
        """Raises ImportError without OpenCV, OptionError for what cannot be, or not be encoded here."""
        _check(media)
        super().__init__(media)
        self._has_sound_options = not STEPS["audio"].options.isdisjoint(media.asked())
        self._is_cut = _clips.are_wanted(media.video)
        self._images: ImageWork | None = None
        if media.video.frames or media.video.frame_interval:
            from any2ds.transforms.image.work import ImageWork

            self._images = ImageWork(media)
        # The format of sound that is split off:
        split_form = _sound.FORMATS["wav" if media.audio.audio_format == "keep" else media.audio.audio_format]
        self._split_form = split_form if media.video.video_audio == "split" else None
        self.members: Mapping[str, pa.DataType] = {split_form.ext: pa.binary()} if self._split_form else {}
        if self._images is not None:
            self.columns = {**self.columns, "frame_time": pa.float64()}

    def plan(self, sample: Sample) -> Plan | str | None:
        is_sound = sample.mime_type.startswith("audio/") and sample.mime_type not in _EITHER
        return None if is_sound and not self._has_sound_options else super().plan(sample)

    def _facts(self, sample: Sample) -> Facts:
        return _av.facts_of(sample.data, self._max_pixels, self._is_judged)

    def _memory(self, sample: Sample, read: Callable[[], Facts | None]) -> int:
        if not (_video.changes(self._video) or self._checks or self._has_sound_options):
            return _HEADER
        facts = read()
        if facts is None or facts.picture is None:
            return super()._memory(sample, read)
        if self._images is not None:
            width, height = facts.picture.shown
            return _HEADER + _video.memory(facts, None) + _PER_PIXEL * width * height + min(self._limit, sample.size)
        encoding = _video.encoding_of(self._video, facts, sample.ext, self._is_cut)
        if encoding is None and self._checks:
            return _HEADER + _video.memory(facts, None)
        if encoding is None or encoding.encoder is None:
            return _HEADER + 2 * sample.size
        return _HEADER + _video.memory(facts, encoding) + 2 * sample.size

    def describe(self, sample: Sample) -> Mapping[str, Any]:
        """The columns of the video, sound or frame that a sample has now. Raises NotDecodable, Rejected."""
        if self._images is not None and sample.mime_type.startswith("image/"):
            return self._images.describe(sample)
        if not self.takes(sample):
            return self._of_split_sound(sample)
        facts = _av.facts_of(sample.data, self._max_pixels)
        found = _av.sound_columns(facts) if facts.picture is None else _columns(facts, facts.picture)
        return {**found, **self._of_split_sound(sample)}

    def _of_split_sound(self, sample: Sample) -> dict[str, Any]:
        """The columns that tell of the sound that lies beside its video, if there is one."""
        if self._split_form is None or self._split_form.ext not in sample.members:
            return {}
        return {name: sample.fields.get(name) for name in ("codec", "sample_rate", "channels")}

    def _made(self, sample: Sample, facts: Facts | None) -> Sample | Sequence[Sample]:
        if facts is None or (picture := facts.picture) is None:
            return super()._made(sample, facts)
        sample = self.of_video(sample, facts)
        reported = _reported(sample, facts, picture)
        try:
            check_length(facts, self._options)
            if self._checks:
                _av.decode_all(facts)
            clips = _clips.clips_of(self._video, reported, facts.duration, self._options.min_duration)
            if self._images is not None:
                if (refusal := self._images.refusal(*picture.shown)) is not None:
                    raise Rejected(*refusal)
                return list(self._stills(reported, facts, clips, self._images))
            return list(self._cut_video(reported, facts, clips)) if clips else self._whole_video(reported, facts)
        except Rejected as error:
            return reported.failed(error.code, str(error))

    # --- video ---

    def _whole_video(self, sample: Sample, facts: Facts) -> Sample:
        encoding = _video.encoding_of(self._video, facts, sample.ext, is_clip=False)
        if encoding is None:
            return self._renamed(sample)
        data = _video.encoded(facts, encoding, self._limit, WHOLE)
        return self._with_sound(_stored(sample, data, encoding), facts, WHOLE)

    def _renamed(self, sample: Sample) -> Sample:
        """A file that is in the format wanted already is called as those that are made so."""
        wanted = self._video.video_format
        if wanted == "keep" or sample.ext == wanted:
            return sample
        reported = {**sample.fields, "ext": wanted, "mime_type": _video.CONTAINERS[wanted].mime_type}
        return replace(sample, ext=wanted, fields=reported)

    def _cut_video(self, sample: Sample, facts: Facts, clips: Sequence[Clip]) -> Iterator[Sample]:
        encoding = _video.encoding_of(self._video, facts, sample.ext, is_clip=True)
        assert encoding is not None
        left = self._limit
        for clip in clips:
            marked, part = _clips.clipped(sample, facts.duration, clip)
            if part is None:
                yield marked
                continue
            video = _video.encoded(facts, encoding, left, part)
            left -= len(video)
            made = _stored(marked.with_fields(duration=part.end - part.start), video, encoding)
            yield self._with_sound(made, facts, part)

    def _with_sound(self, made: Sample, facts: Facts, clip: Clip) -> Sample:
        """With its sound in an extra file, if that is to be split off."""
        wanted = self._options
        if self._split_form is None or facts.sound is None:
            return made
        target = _sound.nearest(self._split_form, facts.sound, wanted.audio_rate, wanted.audio_channels)
        try:
            sound, _ = _sound.encoded(facts, target, self._limit, clip)
        except NotDecodable:
            if clip != WHOLE:  # there may be no sound in this part of it
                return made
            raise
        return made.with_member(target.form.ext, sound).with_fields(**target.fields)

    # --- images ---

    def _stills(self, sample: Sample, facts: Facts, clips: Sequence[Clip], images: ImageWork) -> Iterator[Sample]:
        """The frames as images, which are treated as any image is but never were a file before."""
        assert facts.picture is not None
        size = _video.size_of(facts.picture, self._video.video_size)
        left, count, once = self._limit, 0, not self._video.frames
        for marked, clip in self._parts(sample, facts, clips):
            if clip is None:
                yield marked
                continue
            for at, pixels in _video.stills(facts, self._times(clip), clip.end, size, once):
                made = images.of_pixels(marked.with_fields(frame_time=at), pixels)
                left -= made.size
                count += 1
                if left < 0:
                    message = f"its images are more than {self._limit:,} bytes (--unpack_max_bytes)"
                    raise Rejected("unpacks_too_large", message)
                if count > _MOST_STILLS:
                    raise _too_many_stills()
                yield made

    def _parts(self, sample: Sample, facts: Facts, clips: Sequence[Clip]) -> list[tuple[Sample, Clip | None]]:
        """The clips, see `_clips.clipped`, or all of the video; its end is infinite where nothing tells it."""
        if clips:
            return [_clips.clipped(sample, facts.duration, clip) for clip in clips]
        assert facts.picture is not None
        known = [seconds for seconds in (facts.picture.seconds, facts.duration) if seconds]
        return [(sample, Clip(0.0, min(known) if known else 0.0 if self._video.frames else math.inf))]

    def _times(self, clip: Clip) -> Iterator[float]:
        """In the middle of so many equal parts, or from the start on every so many seconds: as many as a clip has.

        Its end is infinite where nothing tells it: times are asked for as long as there are frames.
        """
        frames, every = self._video.frames, self._video.frame_interval
        if frames:
            part = (clip.end - clip.start) / (2 * frames)
            yield from (clip.start + part * (2 * number + 1) for number in range(frames))
            return
        for number in range(_MOST_STILLS):
            at = clip.start + number * every
            if number and at >= clip.end - 1e-9 * every:
                return
            yield at
        raise _too_many_stills()


PART = VideoTransform


def _too_many_stills() -> Rejected:
    return Rejected("unpacks_too_large", f"it becomes more than {_MOST_STILLS:,} images (--frames, --frame_interval)")


def _check(media: MediaOptions) -> None:
    """Raises OptionError for options that exclude each other, and for what this build of PyAV cannot encode."""
    wanted = media.video
    for one, other in (("frames", "frame_interval"), ("clip_seconds", "clips_col")):
        if getattr(wanted, one) and getattr(wanted, other):
            raise OptionError(f"{one} and {other}: only one of them")
    _video.check(wanted)
    if not (wanted.frames or wanted.frame_interval):
        return
    if media.image.bbox_col:
        raise OptionError("bbox_col: boxes are blurred in images, not in those that frames makes of video")
    if wanted.video_audio == "split":
        raise OptionError("video_audio=split: there is no place for sound beside the images that frames makes")
    for name in ("video_fps", "video_format"):
        if getattr(wanted, name) != getattr(VideoOptions(), name):
            raise OptionError(f"{name}: frames makes images instead of video (encode_format is their format)")


def _reported(sample: Sample, facts: Facts, picture: Picture) -> Sample:
    width, height = picture.shown
    return sample.with_fields(**_columns(facts, picture), original_width=width, original_height=height)


def _columns(facts: Facts, picture: Picture) -> dict[str, Any]:
    """The columns of the metadata for a file with moving pictures."""
    width, height = picture.shown
    of_picture = {"fps": picture.fps, "width": width, "height": height, "video_codec": picture.codec}
    return {**_av.sound_columns(facts), **of_picture}


def _stored(sample: Sample, data: bytes, encoding: Encoding) -> Sample:
    """The sample with a video that was encoded so."""
    container = encoding.container
    known: dict[str, Any] = {}
    if encoding.encoder is not None:
        known["video_codec"] = _video.CODECS[encoding.encoder]
    if encoding.sound is not None:
        known |= encoding.sound.fields
    elif not encoding.has_sound:
        known |= {"codec": None, "sample_rate": None, "channels": None}
    if encoding.fps:
        known["fps"] = encoding.fps
    size = {"width": encoding.width, "height": encoding.height}
    return sample.with_data(data, container.name, container.mime_type, **size, **known)
