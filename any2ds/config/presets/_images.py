"""The steps that a dataset of images alone goes through, whose metadata say of each row what img2dataset says."""

from __future__ import annotations

import pyarrow as pa

from any2ds.config.presets._exif import by_other_names
from any2ds.core.declaration import transform
from any2ds.core.samples import Sample

_COLUMNS = {
    "width": pa.int32(),
    "height": pa.int32(),
    "original_width": pa.int32(),
    "original_height": pa.int32(),
    "exif": pa.string(),
}


@transform(columns=_COLUMNS)
def only_images(sample: Sample) -> Sample:
    """What was not decoded as an image fails, drawings (SVG) among it."""
    if sample.fields.get("width") is not None and sample.mime_type.startswith("image/"):
        return sample.with_fields(exif=by_other_names(sample.fields.get("exif") or "{}"))
    return sample.failed("not_decodable", f"no image of pixels: {sample.mime_type or 'of an unknown type'}")


@transform(columns=_COLUMNS)
def as_they_come(sample: Sample) -> Sample:
    """Files that are not decoded have these columns as well, without values."""
    return sample
