"""A recipe of two samples."""

import any2ds


class Recipe(any2ds.Recipe):
    VERSION = "1.0.0"

    def info(self):
        return any2ds.Info(features={"text": any2ds.Text()})

    def splits(self, dl):
        return {"train": [("a", {"text": "x"}), ("b", {"text": "y"})]}
