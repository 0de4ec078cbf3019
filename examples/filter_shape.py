"""A step of your own that filters: only pictures that are not too long and narrow.  python examples/filter_shape.py

For this alone there is --max_aspect_ratio; it shows how a step is written, and what becomes of what it filters.

Needs Pillow: pip install 'any2ds[image]'
"""

import io
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from demo_server import demo_urls
from PIL import Image, UnidentifiedImageError

import any2ds

LONGEST = 1.4  # times the shorter side
OUTPUT = Path("shape_output")


@any2ds.transform(columns={"aspect_ratio": float})
def shapely(sample: any2ds.Sample) -> any2ds.Sample:
    """Called with each file, from several threads. A column that it fills is declared above."""
    try:
        width, height = Image.open(io.BytesIO(sample.data)).size
    except UnidentifiedImageError:
        return sample.filtered("no picture")
    ratio = max(width, height) / min(width, height)
    if ratio > LONGEST:
        return sample.filtered(f"too long for its height: {width} x {height}")
    return sample.with_fields(aspect_ratio=ratio)


if __name__ == "__main__":  # the file is imported for its step, too
    with demo_urls() as url_list:
        any2ds.download(
            url_list,
            output_folder=OUTPUT,
            output_format="webdataset",
            caption_col="caption",
            transform=f"{__file__}:shapely",  # on the command line --transform=filter_shape.py:shapely
            timeout=2,
            incremental_mode="overwrite",
        )
    rows = [row for file in sorted(OUTPUT.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    print(Counter(row["status"] for row in rows))
    reasons = Counter((row["error_message"] or "").partition(":")[0] for row in rows if row["status"] == "filtered")
    for reason, count in reasons.most_common():
        print(f"{count:>5}  {reason}")
