"""The step for sound: its header goes into the metadata; it is resampled, mixed, cut and encoded as options say."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import AudioOptions, MediaOptions
from any2ds.core.errors import NotDecodable
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Rejected
from any2ds.transforms.steps import _av, _sound
from any2ds.transforms.steps._av import Facts
from any2ds.transforms.steps._clips import Clip
from any2ds.transforms.steps._sound import Target

log = logging.getLogger(__name__)

_LEAST_RATE = 100  # samples per second
_DECODER = 8 << 20  # bytes that FFmpeg takes for a decoder, an encoder and the tables of both, about
_HEADER = 2 << 20  # and for reading a header
_NOT_SOUND = ("midi", "mpegurl", "x-scpls", "x-ms-asx")  # notes and playlists


class AudioTransform:
    columns: ClassVar[Mapping[str, pa.DataType]] = {
        "duration": pa.float64(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
        "codec": pa.string(),
    }

    def __init__(self, media: MediaOptions) -> None:
        """Raises OptionError for what this build of PyAV cannot encode."""
        _sound.check(media.audio)
        self._options, self._max_pixels = media.audio, media.image.max_image_area
        self._limit = media.files.unpack_max_bytes
        self._checks = media.files.decode_check
        splits = media.video.video_audio == "split"
        names = ("audio_trim",) if splits else ("audio_rate", "audio_channels", "audio_format", "audio_trim")
        # The options that change sound files, and leave the sound of video as it is:
        self._not_for_video = [name for name in names if getattr(media.audio, name) not in (None, 0, "keep")]
        self._warning = threading.Lock()  # acquired once, by the thread that warns of them

    @staticmethod
    def takes(sample: Sample) -> bool:
        """Containers of video too: there may be sound alone in them."""
        kind, _, name = sample.mime_type.partition("/")
        return kind in ("audio", "video") and not name.endswith(_NOT_SOUND)

    @staticmethod
    def unsupported(sample: Sample) -> str:
        kind, _, name = sample.mime_type.partition("/")
        return f"{sample.mime_type} is not sound" if kind == "audio" and name.endswith(_NOT_SOUND) else ""

    def memory(self, sample: Sample) -> int:
        """It is decoded, encoded and written piece by piece: what grows is the result, by sound of little entropy."""
        wanted = self._options
        if wanted.audio_format == "keep" and not (wanted.audio_rate or wanted.audio_channels or wanted.audio_trim):
            return _DECODER if self._checks else _HEADER
        facts = _av.facts_of(sample.data, self._max_pixels)
        if facts.picture is not None or facts.sound is None or (plan := self._plan(facts)) is None:
            return _HEADER
        target, end = plan
        rate = target.form.bit_rate / 8 or target.rate * (4 if target.bits > 16 else 2)
        seconds = end if math.isfinite(end) else facts.duration or 0
        return _DECODER + 2 * min(int(seconds * rate * target.channels), self._limit)

    def __call__(self, sample: Sample) -> Sample:
        """A file with moving pictures is left to the step for these."""
        try:
            facts = _av.facts_of(sample.data, self._max_pixels, self._options.limits_duration)
        except (NotDecodable, Rejected):
            if sample.mime_type.startswith("audio/"):
                raise
            return sample  # video, which concerns the step for that, if there is one
        return self.of_sound(sample, facts) if facts.picture is None else self.of_video(sample, facts)

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
        sound = facts.sound
        assert sound is not None
        reported = sample.with_fields(
            duration=facts.duration, sample_rate=sound.rate, channels=sound.channels, codec=sound.codec
        )
        try:
            check_length(facts, self._options)
            if self._checks:
                _av.decode_all(facts)
            return self._encoded(reported, facts)
        except Rejected as error:
            return reported.failed(error.code, str(error))

    def _encoded(self, sample: Sample, facts: Facts) -> Sample:
        """The sample in the format that options ask for."""
        if not self._options.audio_trim and (form := _sound.copied_to(self._options, facts)) is not None:
            return sample.with_data(_sound.copied(facts, form, self._limit), form.ext, form.mime_type)
        if (plan := self._plan(facts)) is None:
            return self._named(sample)
        target, end = plan
        data, duration = _sound.encoded(facts, target, self._limit, Clip(0.0, end))
        expected = min(facts.duration or 0.0, end)
        if duration < _av.LEAST_PART * expected - _av.LATE:
            raise NotDecodable(f"its header claims {expected:.2f} s, and {duration:.2f} s of it can be decoded")
        return sample.with_data(data, target.form.ext, target.form.mime_type, duration=duration, **target.fields)

    def _plan(self, facts: Facts) -> tuple[Target, float] | None:
        """What it becomes, and after how many seconds it is cut off; None if it stays."""
        assert facts.sound is not None
        trim = self._options.audio_trim
        end = trim if trim and (facts.duration is None or facts.duration > trim) else math.inf
        target = _sound.target_of(self._options, facts, is_cut=math.isfinite(end))
        if target is not None and facts.sound.rate < _LEAST_RATE:  # 10 KB would become hours
            raise NotDecodable(f"its sound has {facts.sound.rate} samples per second, too few to encode it anew")
        return None if target is None else (target, end)

    def _named(self, sample: Sample) -> Sample:
        """A file that is in the format wanted already gets the extension of those that are made so."""
        wanted = self._options.audio_format
        if wanted == "keep" or sample.ext == (ext := _sound.FORMATS[wanted].ext):
            return sample
        return dataclasses.replace(sample, ext=ext, fields={**sample.fields, "ext": ext})


PART = AudioTransform


def check_length(facts: Facts, options: AudioOptions) -> None:
    """Raises Rejected for a file that is too short or too long."""
    duration, most = facts.duration, options.max_duration
    if duration is not None and duration < options.min_duration:
        raise Rejected("too_short", f"{duration:.3f} s; --min_duration is {options.min_duration:g}")
    if duration is not None and most is not None and duration > most:
        raise Rejected("too_long", f"{duration:.3f} s; --max_duration is {most:g}")
