"""Images: made smaller, turned upright, in sRGB and the format that is wanted; or left as they came, and checked.

head ─▶ limits ─▶ decode (reduced) ─▶ resize ─▶ upright, sRGB, blur ─▶ crop or border ─▶ encode
"""

from __future__ import annotations

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.samples import Sample
from any2ds.transforms.image.head import KINDS
from any2ds.transforms.image.work import ImageWork

_SIZES = ("width", "height", "original_width", "original_height")


class ImageTransform(ImageWork):
    file_columns = ("width", "height")

    def __init__(self, media: MediaOptions) -> None:
        super().__init__(media)
        self._blurs = media.image.bbox_col is not None
        exif = {"exif": pa.string()} if media.image.extract_exif else {}
        self.columns = {**dict.fromkeys(_SIZES, pa.int32()), **exif}

    def takes(self, sample: Sample) -> bool:
        """An image of another kind too if it may have boxes: it must not be stored in the clear."""
        return sample.mime_type in KINDS or (self._blurs and sample.mime_type.startswith("image/"))

    @staticmethod
    def unsupported(sample: Sample) -> str:
        kind = sample.mime_type
        return f"{kind} is not decoded" if kind.startswith("image/") and kind not in KINDS else ""


PART = ImageTransform
