"""The step for sound: what its header says goes into the metadata; resampled, mixed, cut and encoded as options say."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.errors import NotDecodable
from any2ds.core.samples import Sample

if TYPE_CHECKING:
    from any2ds.transforms.steps._av import Facts
    from any2ds.transforms.steps._sound import Target

log = logging.getLogger(__name__)

_OTHERS = ("midi", "mpegurl", "x-scpls", "x-ms-asx")  # notes and playlists are no sound
_LEAST_RATE = 100  # samples per second
_DECODER = 8 << 20  # bytes that FFmpeg takes for a decoder, an encoder and the tables of both, about
_HEADER = 2 << 20  # and for reading a header


class AudioTransform:
    extra: ClassVar[str] = "audio"
    options: ClassVar[frozenset[str]] = frozenset(
        {
            "decode_check",
            "audio_rate",
            "audio_channels",
            "audio_format",
            "min_duration",
            "max_duration",
            "audio_trim",
        }
    )
    columns: Mapping[str, pa.DataType] = {
        "duration": pa.float64(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
        "codec": pa.string(),
    }

    def __init__(self, media: MediaOptions) -> None:
        self._options, self._max_pixels = media.audio, media.image.max_image_area
        self._limit = media.files.unpack_max_bytes
        self._checks = media.files.decode_check
        splits = media.video.video_audio == "split"
        names = ("audio_trim",) if splits else ("audio_rate", "audio_channels", "audio_format", "audio_trim")
        # The options that change sound files, and leave the sound of video as it is:
        self._not_for_video = [name for name in names if getattr(media.audio, name) not in (None, 0, "keep")]
        self._warning = threading.Lock()  # acquired once, by the thread that warns of them

    @classmethod
    def of(cls, media: MediaOptions) -> AudioTransform:
        """Raises ImportError without PyAV, and OptionError for what its build cannot encode."""
        from any2ds.transforms.steps import _sound

        _sound.check(media.audio)
        return cls(media)

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        return ("av",)

    @staticmethod
    def takes(sample: Sample) -> bool:
        """Containers of video too: there may be sound alone in them."""
        kind, _, name = sample.mime_type.partition("/")
        return kind in ("audio", "video") and not name.endswith(_OTHERS)

    @staticmethod
    def unsupported(sample: Sample) -> str:
        kind, _, name = sample.mime_type.partition("/")
        return f"{sample.mime_type} is no sound" if kind == "audio" and name.endswith(_OTHERS) else ""

    def memory(self, sample: Sample) -> int:
        """It is decoded, encoded and written piece by piece: what grows is the result, by sound of little entropy."""
        wanted = self._options
        if wanted.audio_format == "keep" and not (wanted.audio_rate or wanted.audio_channels or wanted.audio_trim):
            return _DECODER if self._checks else _HEADER
        facts = self._facts(sample)
        if facts.picture is not None or facts.sound is None or (plan := self._plan(facts)) is None:
            return _HEADER
        target, seconds = plan
        rate = target.form.bit_rate / 8 or target.rate * (4 if target.bits > 16 else 2)
        size = int((seconds if seconds is not None else facts.duration or 0) * rate * target.channels)
        return _DECODER + 2 * min(size, self._limit)

    def __call__(self, sample: Sample) -> Sample:
        """A file with moving pictures is left to the step for these."""
        from any2ds.transforms.steps import _av

        is_sound = sample.mime_type.startswith("audio/")
        try:
            facts = _av.facts_of(sample.data, self._max_pixels, self._options.limits_duration)
        except _av.TooManyPixels as error:
            return sample.failed("too_many_pixels", str(error)) if is_sound else sample
        except NotDecodable:
            if is_sound:
                raise
            return sample  # video, which concerns the step for that, if there is one
        if facts.picture is not None:
            return self.of_video(sample, facts)
        return self.of_sound(sample, facts)

    def of_video(self, sample: Sample, facts: Facts) -> Sample:
        """A video, marked as not processed if the options for sound have no effect on its sound; logs that once."""
        if not self._not_for_video or facts.sound is None:
            return sample
        names = ", ".join(self._not_for_video)
        if self._warning.acquire(blocking=False):
            hint = "" if names == "audio_trim" else " (--video_audio=split stores it in a file of its own, as they say)"
            log.warning("%s: no effect on the sound of video%s", names, hint)
        return sample.left_as_is(f"{names}: no effect on the sound of video")

    def of_sound(self, sample: Sample, facts: Facts) -> Sample:
        """What becomes of a file of sound alone. Raises NotDecodable."""
        from any2ds.transforms.steps import _av, _sound

        sound = facts.sound
        assert sound is not None
        reported = sample.with_fields(
            duration=facts.duration, sample_rate=sound.rate, channels=sound.channels, codec=sound.codec
        )
        if failed := of_wrong_length(reported, facts.duration, self._options.min_duration, self._options.max_duration):
            return failed
        if self._checks:
            _av.decode_all(sample.data, self._max_pixels)
        form = None if self._options.audio_trim else _sound.copied_to(self._options, facts.container, sound)
        plan = self._plan(facts) if form is None else None
        if form is None and plan is None:
            return self._named(reported)
        try:
            if form is not None:
                return reported.with_data(
                    _sound.copied(sample.data, form, self._max_pixels, self._limit), form.ext, form.mime_type
                )
            assert plan is not None
            target, seconds = plan
            data, duration = _sound.encoded(sample.data, target, self._max_pixels, self._limit, end=seconds)
        except _sound.TooMuch as error:
            return reported.failed("unpacks_too_large", str(error))
        expected = min(facts.duration or 0.0, seconds or math.inf)
        if duration < _av.LEAST_PART * expected - _av.LATE:
            raise NotDecodable(f"it says that it lasts {expected:.2f} s, and {duration:.2f} s of it can be decoded")
        return reported.with_data(
            data,
            target.form.ext,
            target.form.mime_type,
            duration=duration,
            sample_rate=target.rate,
            channels=target.channels,
            codec=target.codec,
        )

    def _facts(self, sample: Sample) -> Facts:
        from any2ds.transforms.steps import _av

        return _av.facts_of(sample.data, self._max_pixels)

    def _plan(self, facts: Facts) -> tuple[Target, float | None] | None:
        """What it becomes, and after how many seconds it is cut off; None if it stays."""
        from any2ds.transforms.steps import _sound

        assert facts.sound is not None
        target = _sound.target_of(self._options, facts.container, facts.sound)
        trim = self._options.audio_trim
        seconds = trim if trim and (facts.duration is None or facts.duration > trim) else None
        if target is None and seconds is not None:
            target = _sound.same(facts.container, facts.sound)
        if target is not None and facts.sound.rate < _LEAST_RATE:  # 10 KB would become hours
            raise NotDecodable(f"its sound has {facts.sound.rate} samples per second, too few to encode it anew")
        return None if target is None else (target, seconds)

    def _named(self, sample: Sample) -> Sample:
        """Files that are in the format wanted already have the extension of those that were made so."""
        from any2ds.transforms.steps import _sound

        wanted = self._options.audio_format
        if wanted == "keep" or sample.ext == (ext := _sound.FORMATS[wanted].ext):
            return sample
        return dataclasses.replace(sample, ext=ext, fields={**sample.fields, "ext": ext})


def of_wrong_length(sample: Sample, duration: float | None, least: float, most: float | None) -> Sample | None:
    """Its failure if it is too short or too long."""
    if duration is None:
        return None
    if duration < least:
        return sample.failed("too_short", f"{duration:.3f} s; --min_duration is {least:g}")
    if most is not None and duration > most:
        return sample.failed("too_long", f"{duration:.3f} s; --max_duration is {most:g}")
    return None


PART = AudioTransform
