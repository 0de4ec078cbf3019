"""What a recipe costs: beside `tfds build` for generated samples, and beside `download` for rows with URLs. And what
rows with two URLs cost beside two runs with one URL each.

    python benchmarks/recipes.py [--samples=100000] [--rows=10000] [--pairs=10000] [--rounds=1] [--tfds=PYTHON]

Each side is a process of its own, whose CPU seconds (its children's included) are measured; sides take turns, and the
ratio is taken within a round. Both write the same samples as tfrecord. `--tfds` is the Python that has TensorFlow
Datasets (default: .venv-tensorflow). Goals: half of the CPU of `tfds build`, 1.05 times that of `download`, and 1.1
times that of two runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

from any2ds.recipes.new import _png
from any2ds.testing.server import serve

ROOT = Path(__file__).resolve().parent.parent
MOST_OF_TFDS, MOST_OF_DOWNLOAD, MOST_OF_TWO_RUNS = 0.5, 1.05, 1.1

OURS = """
import sys
sys.path.insert(0, {root!r})
import any2ds

IMAGES = {images!r}

class Small(any2ds.Recipe):
    '''Small samples.'''
    def info(self):
        return any2ds.Info({{"image": any2ds.Image(), "label": any2ds.ClassLabel(num_classes=10), "text": any2ds.Text(),
                            "score": "float32"}})
    def splits(self, dl):
        return {{"train": self.samples()}}
    def samples(self):
        for n in range({samples}):
            yield n, {{"image": IMAGES[n % 10], "label": n % 10, "text": f"sample {{n}}", "score": n / 7}}

if __name__ == "__main__":
    any2ds.build(Small, data_dir={folder!r}, output_format="tfrecord", compute_md5=False, quiet=True, report=False)
"""

THEIRS = """
import io
import numpy as np
import tensorflow_datasets as tfds

IMAGES = {images!r}

class Small(tfds.core.GeneratorBasedBuilder):
    '''Small samples.'''
    VERSION = tfds.core.Version("1.0.0")
    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({{
            "image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=10),
            "text": tfds.features.Text(), "score": np.float32}}))
    def _split_generators(self, dl):
        return {{"train": self._generate_examples()}}
    def _generate_examples(self):
        for n in range({samples}):
            yield n, {{"image": io.BytesIO(IMAGES[n % 10]), "label": n % 10, "text": f"sample {{n}}", "score": n / 7}}

if __name__ == "__main__":
    Small(data_dir={folder!r} + "-theirs", file_format="tfrecord").download_and_prepare()  # what `tfds build` does
"""

FETCHED = """
import sys
sys.path.insert(0, {root!r})
import any2ds

OPTIONS = dict(output_format="tfrecord", quiet=True, report=False, processes_count=1, robots="ignore")

class Linked(any2ds.Recipe):
    '''Files of a list.'''
    def info(self):
        return any2ds.Info({{"image": any2ds.Image(), "label": "int64", "text": any2ds.Text()}})
    def splits(self, dl):
        return {{"train": any2ds.UrlRows({list!r})}}

if __name__ == "__main__":
    if {is_recipe}:
        any2ds.build(Linked, data_dir={folder!r}, **OPTIONS)
    else:
        any2ds.download({list!r}, {folder!r} + "/downloaded", save_additional_columns=["label", "text"], **OPTIONS)
"""

TWO_URLS = """
import sys
sys.path.insert(0, {root!r})
import any2ds

OPTIONS = dict(output_format="webdataset", quiet=True, report=False, processes_count=1, robots="ignore")

if __name__ == "__main__":
    any2ds.download({list!r}, {folder!r} + "/" + sys.argv[2], url_col=sys.argv[1], **OPTIONS)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tfds", default=str(ROOT / ".venv-tensorflow" / "bin" / "python"))
    options = parser.parse_args()
    if options.samples:
        pairs = [generated(options.samples, options.tfds) for _ in range(options.rounds)]
        show(f"{options.samples:,} generated samples", "any2ds build", "tfds build", pairs, MOST_OF_TFDS)
    if options.rows:
        pairs = [fetched(options.rows) for _ in range(options.rounds)]
        show(f"{options.rows:,} rows with URLs", "any2ds build", "any2ds download", pairs, MOST_OF_DOWNLOAD)
    if options.pairs:
        pairs = [with_two_urls(options.pairs) for _ in range(options.rounds)]
        show(f"{options.pairs:,} rows with two URLs", "one run", "two runs", pairs, MOST_OF_TWO_RUNS)


def generated(samples: int, python: str) -> tuple[float, float]:
    """CPU seconds of both sides."""
    folder = Path(tempfile.mkdtemp(prefix="any2ds-recipes-"))
    try:
        values = {
            "root": str(ROOT),
            "samples": samples,
            "folder": str(folder / "data"),
            "images": list(map(_png, range(10))),
        }
        (folder / "ours.py").write_text(OURS.format(**values))
        (folder / "small").mkdir()
        (folder / "small" / "small.py").write_text(THEIRS.format(**values))
        ours = cpu([sys.executable, str(folder / "ours.py")], folder)
        return ours, cpu([python, str(folder / "small" / "small.py")], folder / "small")
    finally:
        shutil.rmtree(folder)


@contextmanager
def listed(rows: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a list of so many rows, with two URLs each, and what the scripts are told of both."""
    folder = Path(tempfile.mkdtemp(prefix="any2ds-recipes-"))
    try:
        (folder / "served").mkdir()
        for number in range(10):
            (folder / "served" / f"{number}.png").write_bytes(_png(number))
        with serve(folder / "served") as server:
            path = folder / "list.jsonl"
            with path.open("w") as file:
                for number in range(rows):
                    url = f"{server.url(f'{number % 10}.png')}?{number}"
                    row = {"url": url, "second": f"{url}&second", "label": number, "text": f"row {number}"}
                    file.write(json.dumps(row) + "\n")
            yield folder, {"root": str(ROOT), "folder": str(folder), "list": str(path)}
    finally:
        shutil.rmtree(folder)


def fetched(rows: int) -> tuple[float, float]:
    """CPU seconds of both sides."""
    with listed(rows) as (folder, values):
        found = []
        for is_recipe in (True, False):
            (folder / "fetched.py").write_text(FETCHED.format(**values, is_recipe=is_recipe))
            found.append(cpu([sys.executable, str(folder / "fetched.py")], folder))
        return found[0], found[1]


def with_two_urls(rows: int) -> tuple[float, float]:
    """CPU seconds of one run of rows with two URLs, and of two runs with one."""
    with listed(rows) as (folder, values):
        (folder / "two.py").write_text(TWO_URLS.format(**values))
        script = [sys.executable, str(folder / "two.py")]
        one, two = (cpu([*script, column, column], folder) for column in ("url", "second"))
        return cpu([*script, "image:url,mask:second", "both"], folder), one + two


def cpu(command: list[str], folder: Path) -> float:
    """CPU seconds of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(what: str, ours: str, theirs: str, pairs: list[tuple[float, float]], most: float) -> None:
    ratio = statistics.median(own / other for own, other in pairs)
    own, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    print(f"{what}: {ours} {own:.2f} s of CPU, {theirs} {other:.2f} s: {ratio:.2f} x (goal: at most {most})")


if __name__ == "__main__":
    main()
