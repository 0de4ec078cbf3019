"""A dataset of the images in examples/data, which the examples with Grain train on."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from demo_server import demo_urls
from pyarrow import csv

from any2ds import download

SIDE = 32  # pixels


def download_images(folder: Path) -> None:
    """155 images of many topics, SIDE by SIDE pixels, in tar files of 20; what lay in the folder is replaced."""
    with demo_urls() as url_list:
        rows = csv.read_csv(url_list)
        images = rows.filter(pc.and_(pc.match_substring(rows["url"], "/images/"), pc.not_equal(rows["topic"], "dead")))
        download(
            images,
            str(folder),
            caption_col="caption",
            save_additional_columns=["topic"],
            output_format="webdataset",
            number_sample_per_shard=20,
            file_size=SIDE,
            resize_mode="center_crop",
            resize_only_if_bigger=False,
            encode_format="png",
            incremental_mode="overwrite",
        )
