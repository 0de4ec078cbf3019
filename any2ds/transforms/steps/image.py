"""Images: made smaller, turned upright, in sRGB and the format that is wanted; or left as they came, and checked.

head ─▶ limits ─▶ decode (reduced) ─▶ resize ─▶ upright, sRGB, blur ─▶ crop or border ─▶ encode
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Plan
from any2ds.transforms.image.head import KINDS
from any2ds.transforms.image.work import ImageWork, head_of

_SIZES = ("width", "height", "original_width", "original_height")


class ImageTransform(ImageWork):
    file_columns = ("width", "height")

    def __init__(self, media: MediaOptions) -> None:
        super().__init__(media)
        self._blurs = media.image.bbox_col is not None
        exif = {"exif": pa.string()} if media.image.extract_exif else {}
        self.columns = {**dict.fromkeys(_SIZES, pa.int32()), **exif}

    def plan(self, sample: Sample) -> Plan | str | None:
        if sample.mime_type in KINDS:
            head = cache(lambda: head_of(sample.data))
            return Plan(lambda: self.memory(head()), lambda: self.made(sample, head()))
        if not sample.mime_type.startswith("image/"):
            return None
        if self._blurs:  # it may have boxes: it must not be stored in the clear
            return Plan(lambda: 0, lambda: self.made(sample, None))
        return f"{sample.mime_type} is not decoded"


PART = ImageTransform
