"""The step for sound: its header goes into the metadata; it is resampled, mixed, cut and encoded as options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from any2ds.config.media import AudioOptions, MediaOptions
from any2ds.core.samples import Sample

if TYPE_CHECKING:
    from any2ds.transforms.steps._audio_work import AudioWork

_OTHERS = ("midi", "mpegurl", "x-scpls", "x-ms-asx")  # notes and playlists are no sound


class AudioTransform:
    """The step for sound. `AudioWork` does the work, and needs the library."""

    extra: ClassVar[str] = "audio"
    options: ClassVar[frozenset[str]] = frozenset({"decode_check", *AudioOptions.__dataclass_fields__})
    columns: Mapping[str, pa.DataType] = {
        "duration": pa.float64(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
        "codec": pa.string(),
    }

    def __init__(self, work: AudioWork) -> None:
        self._work = work

    @classmethod
    def of(cls, media: MediaOptions) -> AudioTransform:
        """Raises ImportError without PyAV, and OptionError for what its build cannot encode."""
        from any2ds.transforms.steps._audio_work import AudioWork

        return cls(AudioWork(media))

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
        return f"{sample.mime_type} is not sound" if kind == "audio" and name.endswith(_OTHERS) else ""

    def memory(self, sample: Sample) -> int:
        return self._work.memory(sample)

    def __call__(self, sample: Sample) -> Sample:
        return self._work(sample)


PART = AudioTransform
