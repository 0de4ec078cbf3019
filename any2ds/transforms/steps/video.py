"""The step for video: its header goes into the metadata; it is scaled, cut into clips or taken as images, its sound
kept, dropped or split off, as options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions, VideoOptions
from any2ds.core.samples import Sample
from any2ds.transforms.steps import image

if TYPE_CHECKING:
    from any2ds.transforms.steps._video_work import VideoWork

_OTHERS = ("mpegurl",)  # playlists
_EITHER = frozenset({"audio/ogg", "audio/mp4"})  # what looks like sound by its first bytes, and may be video


class VideoTransform:
    """The step for video. `VideoWork` does the work, and needs the libraries."""

    extra: ClassVar[str] = "video"
    options: ClassVar[frozenset[str]] = frozenset(
        {"decode_check", "min_duration", "max_duration", *VideoOptions.__dataclass_fields__}
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

    def __init__(self, media: MediaOptions, work: VideoWork) -> None:
        self._work = work
        self.members: Mapping[str, pa.DataType] = dict.fromkeys(work.members, pa.binary())
        wanted, times = media.video, list[str]()
        if wanted.clip_seconds or wanted.clips_col:
            times += ["clip_start", "clip_end"]
        if wanted.frames or wanted.frame_interval:
            times.append("frame_time")
        self.columns = {**self.columns, **dict.fromkeys(times, pa.float64())}

    @classmethod
    def of(cls, media: MediaOptions) -> VideoTransform:
        """Raises ImportError without PyAV or OpenCV, and OptionError for what cannot be, or not be encoded here."""
        from any2ds.transforms.steps._video_work import VideoWork

        return cls(media, VideoWork(media))

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
        return self._work.memory(sample)

    def __call__(self, sample: Sample) -> Sample | Sequence[Sample]:
        return self._work(sample)


PART = VideoTransform
