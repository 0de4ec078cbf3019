"""Images: made smaller, turned upright, in sRGB and the format that is wanted; or left as they came, and checked.

head ─▶ limits ─▶ decode (reduced) ─▶ resize ─▶ upright, sRGB, blur ─▶ crop or border ─▶ encode
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from any2ds.config.media import ImageOptions, MediaOptions
from any2ds.core.errors import OptionError
from any2ds.core.samples import Sample
from any2ds.transforms.image.head import KINDS

if TYPE_CHECKING:
    from any2ds.transforms.image.work import ImageWork

LIBRARIES = ("opencv", "pillow", "simplejpeg")
_SIZES = dict.fromkeys(("width", "height", "original_width", "original_height"), pa.int32())


class ImageTransform:
    """The step for images. `ImageWork` does the work, and needs the libraries."""

    extra: ClassVar[str] = "image"
    options: ClassVar[frozenset[str]] = frozenset({"file_size", "decode_check", *ImageOptions.__dataclass_fields__})
    columns: Mapping[str, pa.DataType]

    def __init__(self, media: MediaOptions, work: ImageWork) -> None:
        self._work, self._blurs = work, media.image.bbox_col is not None
        self.columns = {**_SIZES, **({"exif": pa.string()} if media.image.extract_exif else {})}

    @classmethod
    def of(cls, media: MediaOptions) -> ImageTransform:
        check(media.image)
        from any2ds.transforms.image.work import ImageWork

        return cls(media, ImageWork(media))

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        return LIBRARIES

    def takes(self, sample: Sample) -> bool:
        """An image of another kind too if it may have boxes: it must not be stored in the clear."""
        return sample.mime_type in KINDS or (self._blurs and sample.mime_type.startswith("image/"))

    def unsupported(self, sample: Sample) -> str:
        kind = sample.mime_type
        return f"{kind} is not decoded" if kind.startswith("image/") and kind not in KINDS else ""

    def memory(self, sample: Sample) -> int:
        return self._work.memory(sample)

    def __call__(self, sample: Sample) -> Sample:
        return self._work(sample)


def check(options: ImageOptions) -> None:
    """Raises OptionError for values that do not go together."""
    quality, default = options.encode_quality, ImageOptions().encode_quality
    if options.encode_format == "png" and quality > 9 and quality != default:
        raise OptionError(f"encode_quality={quality}: for png it is how hard it is compressed, from 0 to 9")
    if options.encode_format != "png" and quality == 0:
        raise OptionError("encode_quality=0: a whole number from 1 to 100")


PART = ImageTransform
