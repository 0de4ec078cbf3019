"""`--only_images`: what no step has decoded as an image fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Plan


class OnlyImages:
    """Comes after the steps that decode: images of archives and frames of videos are images, too."""

    columns: ClassVar[Mapping[str, pa.DataType]] = {}

    def __init__(self, media: MediaOptions) -> None:
        """`media` is not used: the step has no options."""

    @staticmethod
    def plan(sample: Sample) -> Plan | None:
        """None for an image that was decoded, which drawings (SVG) and HEIC are not; the failure of all else."""
        if sample.fields.get("width") is not None and sample.mime_type.startswith("image/"):
            return None
        message = f"no image of pixels: {sample.mime_type or 'of an unknown type'}"
        return Plan(lambda: 0, lambda: sample.failed("not_decodable", message))


PART = OnlyImages
