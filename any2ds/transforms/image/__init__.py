"""Images: made smaller, turned upright, in sRGB and the format that is wanted; or left as they came, and checked.

head ─▶ limits ─▶ decode (reduced) ─▶ resize ─▶ upright, sRGB, blur ─▶ crop or border ─▶ encode
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from any2ds.errors import MissingExtra, OptionError
from any2ds.mediaoptions import ImageOptions, MediaOptions, TransformOptions
from any2ds.transforms.image.head import KINDS
from any2ds.types import Sample

if TYPE_CHECKING:
    from any2ds.transforms.image.work import ImageWork

_SIZES = {name: pa.int32() for name in ("width", "height", "original_width", "original_height")}


class ImageTransform:
    """The step for images. What to do is in `work`, which needs the libraries."""

    extra: ClassVar[str] = "image"
    options: ClassVar[frozenset[str]] = frozenset(ImageOptions.__dataclass_fields__)
    columns: Mapping[str, pa.DataType] = _SIZES  # also where the libraries are absent

    def __init__(self, media: MediaOptions, work: ImageWork) -> None:
        self._work = work
        self.columns = {**_SIZES, **({"exif": pa.string()} if media.image.extract_exif else {})}

    @classmethod
    def of(cls, media: MediaOptions) -> ImageTransform:
        check(media.image)
        try:
            from any2ds.transforms.image.work import ImageWork
        except ImportError as error:
            is_asked = bool(cls.options.intersection(media.changed()))
            if not is_asked and media.files.file_size not in (0, TransformOptions().file_size):
                raise MissingExtra(f"--file_size={media.files.file_size}", cls.extra) from error
            raise
        return (Blurring if media.image.bbox_col else cls)(media, ImageWork(media))

    @staticmethod
    def takes(sample: Sample) -> bool:
        return sample.mime_type in KINDS

    def memory(self, sample: Sample) -> int:
        return self._work.memory(sample.data)

    def __call__(self, sample: Sample) -> Sample:
        return self._work(sample)


class Blurring(ImageTransform):
    """Looks at images of every kind: one that it cannot decode is not to be stored in the clear if it has boxes."""

    @staticmethod
    def takes(sample: Sample) -> bool:
        return (sample.mime_type or "").startswith("image/")

    def memory(self, sample: Sample) -> int:
        return super().memory(sample) if ImageTransform.takes(sample) else 0

    def __call__(self, sample: Sample) -> Sample:
        return super().__call__(sample) if ImageTransform.takes(sample) else self._work.unknown(sample)


def check(options: ImageOptions) -> None:
    """Raises OptionError for values that do not go together."""
    quality, default = options.encode_quality, ImageOptions().encode_quality
    if options.encode_format == "png" and quality > 9 and quality != default:
        raise OptionError(f"encode_quality={quality}: for png it is how hard it is compressed, from 0 to 9")
    if options.encode_format != "png" and quality == 0:
        raise OptionError("encode_quality=0: a whole number from 1 to 100")


PART = ImageTransform
