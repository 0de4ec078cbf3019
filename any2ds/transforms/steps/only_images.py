"""`--only_images`: what no step has decoded as an image fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.samples import Sample


class OnlyImages:
    """Comes after the steps that decode: images of archives and frames of videos are images, too."""

    columns: ClassVar[Mapping[str, pa.DataType]] = {}

    def __init__(self, media: MediaOptions) -> None:
        """It has no options."""

    @staticmethod
    def takes(sample: Sample) -> bool:
        return True

    @staticmethod
    def memory(sample: Sample) -> int:
        return 0

    def __call__(self, sample: Sample) -> Sample:
        """The sample; its failure if it was not decoded as an image, which drawings (SVG) and HEIC are not."""
        if sample.fields.get("width") is not None and sample.mime_type.startswith("image/"):
            return sample
        return sample.failed("not_decodable", f"no image of pixels: {sample.mime_type or 'of an unknown type'}")


PART = OnlyImages
