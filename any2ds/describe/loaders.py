"""How a dataset is loaded: for each library the lines that go through `any2ds.load`, and one way without any2ds.

The report and the dataset card show them; tests run each of them as it stands, with the library that it is for.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.kinds import kind_of_ext
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.shard_sample import MOST_SHARDS, listed_table
from any2ds.dataset.shards import ShardEntry, ShardTable
from any2ds.describe.sums import spread
from any2ds.storage.stores import Stores


@dataclass(frozen=True, slots=True)
class Snippet:
    """Lines of Python that load a dataset."""

    loader: str  # the library's usual name: PyTorch
    install: str  # what pip installs for it
    code: str


_TEMPLATE = Path(__file__).parent / "templates" / "loaders.txt"
_SHARD_ENDS = ("tar", "parquet", "tfrecord")
_WITHOUT = ", without any2ds"
_NAME = re.compile(r"\b(FOLDER|SHARDS_\w+|DATA_COLUMN)\b")
_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "hf": "hf", "https": "https"}


@dataclass(frozen=True, slots=True)
class Loadable:
    """Facts that loading a dataset depends on."""

    folder: str  # path or URL
    output_format: str
    is_of_images: bool = False
    data_column: str = "data"  # of tfrecord
    has_tfds: bool = False  # TensorFlow Datasets finds its files

    @classmethod
    def of(cls, dataset: Dataset, exts: Mapping[str, int]) -> Loadable:
        """Facts of the folder; `exts` tells how many files have which extension."""
        options: Mapping[str, object] = dataset.run.options if dataset.run else {}
        return cls(
            redacted(dataset.folder.url),
            dataset.output_format or "",
            kind_of(exts) == "image",
            str(options.get("data_column") or "data"),
            {layout.TFDS_FEATURES, layout.TFDS_INFO} <= dataset.entries.keys(),
        )

    @property
    def is_remote(self) -> bool:
        return "://" in self.folder

    @property
    def path(self) -> str:
        """The folder as libraries take it on every system."""
        folder = self.folder if self.is_remote else self.folder.replace(os.sep, "/")
        return folder if folder == "/" else folder.rstrip("/")


def snippets(of: Loadable | str, stores: Stores | None = None) -> list[Snippet]:
    """How to load a dataset: for each library through any2ds, and at last without, from a folder on this machine.

    `of` is what `Loadable` says, or the folder of a dataset; raises OutputError if that holds none.
    """
    if isinstance(of, str):
        dataset = Dataset(of, stores)
        of = Loadable.of(dataset, shard_table(dataset).totals.exts)
    names = _literals(of)
    made = []
    for block in _TEMPLATE.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        head, _, code = block.partition("\n")
        loader, install, formats = head.split(" | ")
        is_ours = not loader.endswith(_WITHOUT)
        is_shown = (of.output_format or "dummy") in formats.split()
        is_shown |= "tfds" in formats and of.output_format == "arrayrecord" and of.has_tfds
        if not is_shown or (of.is_remote and not is_ours):
            continue
        is_decoded = loader == "PyTorch" and of.is_of_images
        names["FOLDER"] = literal(of.path) + (", decode=True" if is_decoded else "")
        code = _NAME.sub(lambda match: names[match[0]], code.rstrip())
        made.append(Snippet(loader, f"{_package(of, is_decoded)} {install}" if is_ours else install, f"{code}\n"))
    return made


def _package(of: Loadable, is_decoded: bool) -> str:
    """any2ds as pip takes it, with the extras for the format and the store."""
    record = of.output_format if of.output_format in ("tfrecord", "arrayrecord") else ""
    store = _EXTRAS.get(of.folder.partition("://")[0], "") if of.is_remote else ""
    extras = [extra for extra in ("image" if is_decoded else "", record, store) if extra]
    return f"'any2ds[{','.join(extras)}]'" if extras else "any2ds"


def _literals(of: Loadable) -> dict[str, str]:
    """Values of the names in the template, as Python writes them. Names of shards begin with a digit, unlike those of
    all other files."""
    path = of.path if ":" not in of.path.partition("/")[0] else f"./{of.path}"  # no scheme of a URL
    return {
        **{f"SHARDS_{end.upper()}": literal(f"{glob.escape(path)}/[0-9]*.{end}") for end in _SHARD_ENDS},
        "DATA_COLUMN": literal(of.data_column),
    }


def shard_table(dataset: Dataset) -> ShardTable:
    """The finished shards, by the list of shards if it is true, else from their statistics: in a store those of 10,000
    shards at most."""
    if (table := listed_table(dataset)) is not None:
        return table
    read = dataset.finished if dataset.folder.is_local else spread(dataset.finished, MOST_SHARDS)
    return ShardTable.of(
        ShardEntry.of_stats(files.shard_id, stats) for files, stats in dataset.stats(read) if isinstance(stats, Stats)
    )


def kind_of(exts: Mapping[str, int]) -> str:
    """Kind of nine in ten files, one of `kinds.KINDS`; "" if they are of no one kind."""
    kinds: Counter[str] = Counter()
    for ext, files in exts.items():
        kinds[kind_of_ext(ext)] += files
    for kind, files in kinds.most_common(1):
        return kind if files >= 0.9 * kinds.total() else ""
    return ""


def literal(value: str) -> str:
    """A string as Python writes it, in double quotes; what no one can see or type is escaped."""
    own = {'"': '\\"', "\\": "\\\\"}
    shown = (own.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode("ascii")) for c in value)
    return f'"{"".join(shown)}"'
