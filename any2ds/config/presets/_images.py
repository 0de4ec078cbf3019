"""The steps that a dataset of images alone goes through, whose metadata say of each row what img2dataset says."""

from __future__ import annotations

import pyarrow as pa

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
def with_exif(sample: Sample) -> Sample:
    """Images without EXIF have `{}`."""
    return sample.with_fields(exif=sample.fields.get("exif") or "{}")


@transform(columns=_COLUMNS)
def as_they_come(sample: Sample) -> Sample:
    """Files that are not decoded have these columns as well, without values."""
    return sample
