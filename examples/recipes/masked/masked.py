"""Two URLs in a row: an image and its mask, which are one sample."""

import any2ds

LIST = "https://example.org/masked.jsonl"


class Masked(any2ds.Recipe):
    """Images with a mask of what they show."""

    VERSION = "1.0.0"
    RELEASE_NOTES = {"1.0.0": "First release."}

    def info(self):
        return any2ds.Info(
            features={"image": any2ds.Image(), "mask": any2ds.Image(channels=1), "caption": any2ds.Text()},
            tags=["images", "masks", "segmentation"],
            supervised_keys=("image", "mask"),
        )

    def splits(self, dl):
        return {"train": any2ds.UrlRows(dl.download(LIST), url_col="image:image_url,mask:mask_url")}
