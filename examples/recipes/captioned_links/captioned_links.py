"""A list of URLs with captions, in the form of CC3M: `caption`, a tab, `url`."""

import any2ds

LIST = "https://storage.googleapis.com/gcc-data/Train/GCC-training.tsv"


class CaptionedLinks(any2ds.Recipe):
    """Images from the web and the texts that stood beside them."""

    VERSION = "1.0.0"
    RELEASE_NOTES = {"1.0.0": "First release."}

    def info(self):
        return any2ds.Info(
            features={"image": any2ds.Image(), "caption": any2ds.Text()},
            homepage="https://ai.google.com/research/ConceptualCaptions/",
            tags=["images", "captions"],
            supervised_keys=("image", "caption"),
        )

    def splits(self, dl):
        return {"train": self.rows(dl.download(LIST))}

    def rows(self, path):
        """The list has no header, so its rows are made here."""
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                caption, url = line.rstrip("\n").split("\t")
                yield {"url": url, "caption": caption}
