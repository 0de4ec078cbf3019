"""Files that only a person can download, because there is a login or a form before them."""

import any2ds


class ByHand(any2ds.Recipe):
    """Texts of an archive that has to be asked for."""

    VERSION = "1.0.0"
    RELEASE_NOTES = {"1.0.0": "First release."}
    MANUAL_DOWNLOAD_INSTRUCTIONS = "log in at https://example.org/texts, and put texts.zip there"

    def info(self):
        return any2ds.Info(features={"text": any2ds.Text(), "name": any2ds.Text()}, tags=["text"])

    def splits(self, dl):
        return {"train": self.samples(dl.iter_archive(dl.manual_dir / "texts.zip"))}

    def samples(self, files):
        for name, file in files:
            yield name, {"text": file.read(), "name": name}
