"""Sounds with captions and tags, in the form of Freesound: a table, and an archive of files named by their number."""

import csv
import wave

import any2ds

URLS = {"table": "https://example.org/sounds.csv", "files": "https://example.org/sounds.zip"}


class Sounds(any2ds.Recipe):
    """Short sounds with captions and tags."""

    VERSION = "1.0.0"
    RELEASE_NOTES = {"1.0.0": "First release."}
    SKIPPED = (wave.Error, EOFError)  # a broken file is left out, and counted

    def info(self):
        return any2ds.Info(
            features={
                "sound": any2ds.Audio(),
                "caption": any2ds.Text(),
                "keywords": any2ds.Sequence(any2ds.Text()),
                "rate": any2ds.Scalar("int32"),
                "stereo": any2ds.Scalar(bool),
                "place": any2ds.Optional(any2ds.Tensor((2,), "float64")),
            },
            homepage="https://freesound.org/",
            license="CC0-1.0",
            tags=["audio", "captions"],
            supervised_keys=("sound", "caption"),
        )

    def splits(self, dl):
        found = dl.download(URLS)
        return {"train": self.samples(found["table"], dl.extract(found["files"]))}

    def samples(self, table, folder):
        with open(table, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                path = folder / f"{row['number']}.wav"
                if not path.exists():
                    self.skip(row["number"], "no file")
                    continue
                yield row["number"], lambda row=row, path=path: self.sample(row, path)

    def sample(self, row, path):
        with wave.open(str(path)) as sound:
            rate = sound.getframerate()
        place = [float(row["latitude"]), float(row["longitude"])] if row["latitude"] else None
        return {
            "sound": path,
            "caption": row["caption"],
            "keywords": row["tags"].split(),
            "rate": rate,
            "stereo": any2ds.parse_bool(row["stereo"]),
            "place": place,
        }
