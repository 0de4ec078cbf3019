"""The step for sound, also for sound alone in containers of video: its header goes into the metadata; it is resampled,
mixed, cut and encoded as options say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from any2ds.config.media import AudioOptions, MediaOptions
from any2ds.core.errors import NotDecodable
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Plan, Rejected
from any2ds.transforms.steps import _av, _clips, _sound
from any2ds.transforms.steps._av import Facts
from any2ds.transforms.steps._clips import Clip
from any2ds.transforms.steps._sound import Target

_LEAST_RATE = 100  # samples per second
_DECODER = 8 << 20  # bytes that FFmpeg takes for a decoder, an encoder and the tables of both, about
_HEADER = 2 << 20  # and for reading a header
_NOT_SOUND = ("midi", "mpegurl", "x-scpls", "x-ms-asx")  # notes and playlists


class AudioTransform:
    file_columns: tuple[str, ...] = ("duration", "sample_rate", "channels", "codec")
    columns: Mapping[str, pa.DataType] = {
        "duration": pa.float64(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
        "codec": pa.string(),
    }

    def __init__(self, media: MediaOptions) -> None:
        """Raises OptionError for what this build of PyAV cannot encode."""
        _sound.check(media.audio)
        self._options, self._max_pixels = media.audio, media.image.max_image_area
        self._video = media.video  # whose clips are those of sound, too
        # Whether packets are asked how long it lasts: a header may claim centuries, each second of it a clip.
        self._is_judged = media.audio.limits_duration or media.video.clip_seconds > 0
        if _clips.are_wanted(media.video):
            self.columns = {**self.columns, **_clips.COLUMNS}
        self._limit = media.files.unpack_max_bytes
        self._checks = media.files.decode_check
        splits = media.video.video_audio == "split"
        names = ("audio_trim",) if splits else ("audio_rate", "audio_channels", "audio_format", "audio_trim")
        # The options that change sound files, and leave the sound of video as it is:
        self._not_for_video = [name for name in names if getattr(media.audio, name) not in (None, 0, "keep")]

    @staticmethod
    def takes(sample: Sample) -> bool:
        """Whether it may be sound: there may be sound alone in containers of video, too."""
        kind, _, name = sample.mime_type.partition("/")
        return kind in ("audio", "video") and not name.endswith(_NOT_SOUND)

    def plan(self, sample: Sample) -> Plan | str | None:
        if self.takes(sample):
            facts = cache(lambda: self._facts(sample))
            return Plan(lambda: self._memory(sample, facts), lambda: self._made(sample, facts()))
        kinds = {"audio": "is not sound", "video": "is a playlist"}
        kind = sample.mime_type.partition("/")[0]
        return f"{sample.mime_type} {kinds[kind]}" if kind in kinds else None

    def _facts(self, sample: Sample) -> Facts | None:
        """None for video that cannot be read: no option asks for it. Raises as `facts_of`."""
        try:
            return _av.facts_of(sample.data, self._max_pixels, self._is_judged)
        except (NotDecodable, Rejected):
            if sample.mime_type.startswith("audio/"):
                raise
            return None

    def _memory(self, sample: Sample, read: Callable[[], Facts | None]) -> int:
        wanted = self._options
        is_cut = wanted.audio_trim or _clips.are_wanted(self._video)
        if wanted.audio_format == "keep" and not (wanted.audio_rate or wanted.audio_channels or is_cut):
            return _DECODER if self._checks else _HEADER
        facts = read()
        return _HEADER if facts is None or facts.picture is not None else self.memory_for(facts)

    def memory_for(self, facts: Facts) -> int:
        """Bytes for a file of sound alone.

        It is decoded, encoded and written piece by piece: what grows is the result, by sound of little entropy.
        """
        if facts.sound is None:
            return _HEADER
        end = self._end(facts)
        if (target := self._target(facts, is_cut=bool(_clips.are_wanted(self._video) or math.isfinite(end)))) is None:
            return _HEADER
        rate = target.form.bit_rate / 8 or target.rate * (4 if target.bits > 16 else 2)
        seconds = end if math.isfinite(end) else facts.duration or 0
        return _DECODER + 2 * min(int(seconds * rate * target.channels), self._limit)

    def _made(self, sample: Sample, facts: Facts | None) -> Sample | Sequence[Sample]:
        if facts is None:
            return sample
        return self.of_sound(sample, facts) if facts.picture is None else self.of_video(sample, facts)

    def describe(self, sample: Sample) -> Mapping[str, Any]:
        """The columns of the sound that a sample has now. Raises NotDecodable, Rejected."""
        facts = _av.facts_of(sample.data, self._max_pixels) if self.takes(sample) else None
        return {} if facts is None or facts.picture is not None else _av.sound_columns(facts)

    def of_video(self, sample: Sample, facts: Facts) -> Sample:
        """A video, marked as not processed if the options for sound have no effect on its sound."""
        if not self._not_for_video or facts.sound is None:
            return sample
        return sample.left_as_is(f"{', '.join(self._not_for_video)}: no effect on the sound of video")

    def of_sound(self, sample: Sample, facts: Facts) -> Sample | Sequence[Sample]:
        """The outcome of a file of sound alone: itself, or its clips. Raises NotDecodable."""
        reported = sample.with_fields(**_av.sound_columns(facts))
        try:
            check_length(facts, self._options)
            if self._checks:
                _av.decode_all(facts)
            end = self._end(facts)
            duration = end if math.isfinite(end) else facts.duration
            if clips := _clips.clips_of(self._video, reported, duration, self._options.min_duration):
                return list(self._cut(reported, facts, clips, duration))
            return self._whole(reported, facts, end)
        except Rejected as error:
            return reported.failed(error.code, str(error))

    def _whole(self, sample: Sample, facts: Facts, end: float) -> Sample:
        """The sample up to `end`, which is infinite for all of it, in the format that options ask for."""
        if not self._options.audio_trim and (form := _sound.copied_to(self._options, facts)) is not None:
            return sample.with_data(_sound.copied(facts, form, self._limit), form.ext, form.mime_type)
        if (target := self._target(facts, is_cut=math.isfinite(end))) is None:
            return self._named(sample)
        return self._encoded(sample, facts, target, Clip(0.0, end), self._limit)

    def _cut(self, sample: Sample, facts: Facts, clips: Sequence[Clip], duration: float | None) -> Iterator[Sample]:
        """The clips, in the format that options ask for; those of a file of `duration` seconds."""
        target = self._target(facts, is_cut=True)
        assert target is not None
        left = self._limit
        for clip in clips:
            marked, part = _clips.clipped(sample, duration, clip)
            if part is None:
                yield marked
                continue
            try:
                made = self._encoded(marked, facts, target, part, left)
            except NotDecodable:
                if not part.start or duration is None or duration - part.start > _av.MOST_PADDING:
                    raise
                # Headers count the padding of encoders, which decoders leave out: the sound ends before this clip.
                if self._video.clips_col:
                    yield marked.failed("too_short", f"the clip from {part.start:g} s begins behind the last sound")
                continue
            left -= made.size
            yield made

    def _encoded(self, sample: Sample, facts: Facts, target: Target, clip: Clip, limit: int) -> Sample:
        data, duration = _sound.encoded(facts, target, limit, clip)
        expected = min(facts.duration or 0.0, clip.end) - clip.start
        if duration < _av.LEAST_PART * expected - _av.LATE:
            raise NotDecodable(f"its header claims {expected:.2f} s, and {duration:.2f} s of it can be decoded")
        return sample.with_data(data, target.form.ext, target.form.mime_type, duration=duration, **target.fields)

    def _end(self, facts: Facts) -> float:
        """After how many seconds a file is cut off; infinite if it is not."""
        trim = self._options.audio_trim
        return trim if trim and (facts.duration is None or facts.duration > trim) else math.inf

    def _target(self, facts: Facts, is_cut: bool) -> Target | None:
        """The target of a file, or of each of its clips; None if it stays."""
        assert facts.sound is not None
        target = _sound.target_of(self._options, facts, is_cut)
        if target is not None and facts.sound.rate < _LEAST_RATE:  # 10 KB would become hours
            raise NotDecodable(f"its sound has {facts.sound.rate} samples per second, too few to encode it anew")
        return target

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
