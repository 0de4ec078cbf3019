"""The step for sound: its header goes into the metadata; it is resampled, mixed, cut and encoded as options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import AudioOptions, MediaOptions
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Transform

_OTHERS = ("midi", "mpegurl", "x-scpls", "x-ms-asx")  # notes and playlists are no sound


class AudioTransform:
    """What is known of the step without its library; `AudioWork` does the work."""

    extra: ClassVar[str] = "audio"
    options: ClassVar[frozenset[str]] = frozenset({"decode_check", *AudioOptions.__dataclass_fields__})
    columns: Mapping[str, pa.DataType] = {
        "duration": pa.float64(),
        "sample_rate": pa.int32(),
        "channels": pa.int32(),
        "codec": pa.string(),
    }

    @classmethod
    def of(cls, media: MediaOptions) -> Transform:
        """Raises ImportError without PyAV, and OptionError for what its build cannot encode."""
        from any2ds.transforms.steps._audio_work import AudioWork

        return AudioWork(media)

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


PART = AudioTransform
