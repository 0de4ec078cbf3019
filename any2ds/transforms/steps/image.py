"""Images: made smaller, turned upright, in sRGB and the format that is wanted; or left as they came, and checked.

head ─▶ limits ─▶ decode (reduced) ─▶ resize ─▶ upright, sRGB, blur ─▶ crop or border ─▶ encode
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import ImageOptions, MediaOptions
from any2ds.core.errors import OptionError
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Transform
from any2ds.transforms.image.head import KINDS

LIBRARIES = ("opencv", "pillow", "simplejpeg")


class ImageTransform:
    """What is known of the step without its libraries; `ImageWork` does the work."""

    extra: ClassVar[str] = "image"
    options: ClassVar[frozenset[str]] = frozenset({"file_size", "decode_check", *ImageOptions.__dataclass_fields__})
    columns: Mapping[str, pa.DataType] = dict.fromkeys(
        ("width", "height", "original_width", "original_height"), pa.int32()
    )

    @classmethod
    def of(cls, media: MediaOptions) -> Transform:
        check(media.image)
        from any2ds.transforms.image.work import ImageWork

        return ImageWork(media)

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        return LIBRARIES

    def takes(self, sample: Sample) -> bool:
        return sample.mime_type in KINDS

    def unsupported(self, sample: Sample) -> str:
        kind = sample.mime_type
        return f"{kind} is not decoded" if kind.startswith("image/") and kind not in KINDS else ""


def check(options: ImageOptions) -> None:
    """Raises OptionError for values that do not go together."""
    quality, default = options.encode_quality, ImageOptions().encode_quality
    if options.encode_format == "png" and quality > 9 and quality != default:
        raise OptionError(f"encode_quality={quality}: for png it is how hard it is compressed, from 0 to 9")
    if options.encode_format != "png" and quality == 0:
        raise OptionError("encode_quality=0: a whole number from 1 to 100")


PART = ImageTransform
