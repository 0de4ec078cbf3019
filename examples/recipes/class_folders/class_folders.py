"""An archive of images with a folder for each class, which is read without being unpacked."""

from pathlib import PurePosixPath

import any2ds

URLS = {"train": "https://example.org/train.tar.gz", "test": "https://example.org/test.zip"}


class ClassFolders(any2ds.Recipe):
    """Images of roses and tulips."""

    VERSION = "1.1.0"
    RELEASE_NOTES = {"1.1.0": "A test split.", "1.0.0": "First release."}
    SUPPORTED_VERSIONS = ("1.0.0",)
    CONFIGS = (
        any2ds.RecipeConfig("both", description="Both kinds.", kinds=("rose", "tulip")),
        any2ds.RecipeConfig("roses", description="Roses alone.", kinds=("rose",)),
    )

    def info(self):
        return any2ds.Info(
            features={"image": any2ds.Image(), "label": any2ds.ClassLabel(["rose", "tulip"])},
            homepage="https://example.org/",
            license="CC-BY-4.0",
            citation="@misc{flowers, title = {Roses and tulips}, year = {2026}}",
            tags=["images", "classification"],
            supervised_keys=("image", "label"),
        )

    def splits(self, dl):
        names = ["train"] if self.version == "1.0.0" else ["train", "test"]
        archives = dl.download({name: URLS[name] for name in names})
        return {name: self.samples(name, dl.iter_archive(path)) for name, path in archives.items()}

    def samples(self, split, files):
        for name, file in files:
            path = PurePosixPath(name)
            if path.suffix == ".png" and path.parent.name in self.config.kinds:
                yield f"{split}/{path.parent.name}/{path.stem}", {"image": file.read(), "label": path.parent.name}
