"""Which case has which number: a file, what was done to it, and the options it is taken through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from any2ds.config.media import AudioOptions, ImageOptions, MediaOptions, TransformOptions, VideoOptions
from tests.support.fuzz.bombs import bombs
from tests.support.fuzz.damage import damaged
from tests.support.fuzz.seeds import File, seeds

_BOMBS = 0.06  # of all cases


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    file: File
    damage: tuple[str, ...]
    setting: str  # name of one of SETTINGS

    @property
    def name(self) -> str:
        return f"{self.number} {self.file.name} ({', '.join(self.damage) or 'whole'}; {self.setting})"


def case(seed: int, number: int) -> Case:
    random = Random(f"{seed} {number}")
    files = _seeds()
    damage: tuple[str, ...] = ()
    if random.random() < _BOMBS:
        file = random.choice(_bombs())
        if random.random() < 0.3:
            file, damage = damaged(file, files, random)
    else:
        file, damage = damaged(random.choice(files), files, random)
    return Case(number, file, damage, random.choice(list(SETTINGS)))


@cache
def _seeds() -> tuple[File, ...]:
    return seeds()


@cache
def _bombs() -> tuple[File, ...]:
    return bombs(_seeds())


# Small limits, so that what goes beyond them stands out, and the machine bears it.
_FILES = TransformOptions(file_size=48, unpack=True, extract_text=True, unpack_max_files=200, unpack_max_bytes=16 << 20)
_IMAGE = ImageOptions(max_image_area=4e6)
SETTINGS: Mapping[str, MediaOptions] = {
    "plain": MediaOptions(_FILES, _IMAGE, given=frozenset({"audio_format", "video_format"})),  # looked at, not changed
    "re-encoded": MediaOptions(
        _FILES,
        ImageOptions(resize_mode="center_crop", encode_format="webp", extract_exif=True, max_image_area=4e6),
        AudioOptions(audio_rate=16_000, audio_channels=1, audio_format="flac"),
        VideoOptions(video_size=32, video_fps=5.0, video_format="mp4", video_audio="drop"),
    ),
    "taken apart": MediaOptions(
        _FILES,
        ImageOptions(resize_mode="border", encode_format="png", animated="keep", max_image_area=4e6),
        AudioOptions(audio_format="opus", audio_trim=0.2),
        VideoOptions(frames=3),
    ),
    "clips": MediaOptions(
        _FILES,
        ImageOptions(resize_mode="keep_ratio_largest", encode_format="jpg", skip_reencode=False, max_image_area=4e6),
        AudioOptions(audio_format="mp3", max_duration=5.0),
        VideoOptions(clip_seconds=0.2, video_audio="split"),
    ),
}
