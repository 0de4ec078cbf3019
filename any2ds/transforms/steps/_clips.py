"""The pieces of sound or video that are wanted: clips of one length, or the pairs of times that stand in the list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any

import pyarrow as pa

from any2ds.config.media import VideoOptions
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Rejected, column_value

_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
MOST = 100_000  # clips of one file
_EXPECTED = "pairs of seconds, such as [[0, 2.5], [10, 12]]"


@dataclass(frozen=True, slots=True)
class Clip:
    """A part of a file, in seconds from its start."""

    start: float
    end: float  # infinite: to the end of the file

    @property
    def length(self) -> Fraction | None:
        """None: to the end of the file."""
        return Fraction(self.end) - Fraction(self.start) if isfinite(self.end) else None


WHOLE = Clip(0.0, inf)
COLUMNS = {"clip_start": pa.float64(), "clip_end": pa.float64()}


def are_wanted(options: VideoOptions) -> bool:
    """Whether files are cut."""
    return bool(options.clip_seconds or options.clips_col)


def clips_of(options: VideoOptions, sample: Sample, duration: float | None, least: float) -> list[Clip]:
    """The clips of a file of `duration` seconds; empty if it stays whole. Raises Rejected.

    What is left at its end is a clip if it has at least `least` seconds.
    """
    if column := options.clips_col:
        try:
            return of_value(sample.row.of_list(column, sample.fields.get(column)))
        except ValueError as error:
            raise Rejected("bad_clips", f"{column}: {error}") from None
    return of_one_length(duration, options.clip_seconds, least) if options.clip_seconds and duration else []


def clipped(sample: Sample, duration: float | None, clip: Clip) -> tuple[Sample, Clip | None]:
    """The sample with the times of the clip, which ends no later than the file; None if the file ends before it."""
    if duration is not None and clip.start >= duration:
        message = f"the clip from {clip.start:g} s begins behind the end, which is at {duration:.3f} s"
        return sample.with_fields(clip_start=clip.start, clip_end=clip.end).failed("too_short", message), None
    clip = Clip(clip.start, min(clip.end, duration or clip.end))
    return sample.with_fields(clip_start=clip.start, clip_end=clip.end), clip


def of_one_length(duration: float, seconds: float, least: float) -> list[Clip]:
    """One after the other; the last is what is left, if that is at least `least` seconds, and not next to nothing.

    Raises Rejected for more than `MOST` clips: a header may claim that a file of some bytes lasts for centuries.
    """
    if duration / seconds > MOST:
        raise Rejected("unpacks_too_large", f"{duration:.6g} s are more than {MOST:,} clips (--clip_seconds)")
    count = max(1, int(duration / seconds + 1e-6))
    clips = [Clip(number * seconds, (number + 1) * seconds) for number in range(count)]
    rest = duration - count * seconds
    if rest < 0:
        return [Clip(0.0, duration)]
    return [*clips, Clip(count * seconds, duration)] if rest >= max(least, 0.05) else clips


def of_value(value: Any) -> list[Clip]:
    """The clips in a column: a list of pairs or of structs with start and end, one of these, or the same in JSON.

    A time is a number of seconds, or `1:02:03.5`. None, blank text and an empty list are no clips. Raises ValueError
    with what was expected.
    """
    try:
        value = column_value(value)
    except ValueError:
        raise _bad(value) from None
    if value is None:
        return []
    if isinstance(value, Mapping) or (_is_list(value) and value and not any(map(_is_pair, value))):
        value = [value]
    if not _is_list(value):
        raise _bad(value)
    return [_clip(pair) for pair in value]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_pair(value: Any) -> bool:
    return _is_list(value) or isinstance(value, Mapping)


def _clip(pair: Any) -> Clip:
    if isinstance(pair, Mapping):
        pair = [pair.get("start"), pair.get("end")]
    if not _is_list(pair) or len(pair) != 2:
        raise _bad(pair)
    start, end = map(_seconds, pair)
    if not 0 <= start < end < inf:
        raise _bad(f"{start:g} to {end:g}")
    return Clip(start, end)


def _seconds(time: Any) -> float:
    try:
        if isinstance(time, bool):
            raise TypeError
        if isinstance(time, str) and (clock := _CLOCK.fullmatch(time.strip())):
            return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
        return float(time)
    except (TypeError, ValueError, OverflowError):
        raise _bad(time) from None


def _bad(value: Any) -> ValueError:
    return ValueError(f"expected {_EXPECTED}, not {str(value)[:100]}")
