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
from any2ds.dataset.dataset import Dataset


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


def snippets(of: Dataset | str, shown_as: str | None = None) -> list[Snippet]:
    """The ways to load a dataset, or the one in a folder, with `shown_as` in the place of its path.

    Raises OutputError for a folder that holds none.
    """
    dataset = Dataset(of) if isinstance(of, str) else of
    options = dataset.run.options if dataset.run else {}
    has_tfds = {layout.TFDS_FEATURES, layout.TFDS_INFO} <= dataset.entries.keys()
    folder = redacted(dataset.folder.url) if shown_as is None else shown_as
    return lines_for(folder, dataset.output_format or "dummy", str(options.get("data_column") or "data"), has_tfds)


def lines_for(folder: str, output_format: str, data_column: str = "data", has_tfds: bool = False) -> list[Snippet]:
    """For each library the lines through any2ds, and at last without, from a folder on this machine."""
    is_remote = "://" in folder
    path = folder if is_remote else folder.replace(os.sep, "/")
    path = path if path == "/" else path.rstrip("/")
    local = path if ":" not in path.partition("/")[0] else f"./{path}"  # no scheme of a URL
    names = {"FOLDER": literal(path), "DATA_COLUMN": literal(data_column)}
    for end in _SHARD_ENDS:  # names of shards begin with a digit, unlike those of all other files
        names[f"SHARDS_{end.upper()}"] = literal(f"{glob.escape(local)}/[0-9]*.{end}")
    found = []
    for block in _TEMPLATE.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        head, _, code = block.partition("\n")
        loader, install, formats = head.split(" | ")
        is_shown = output_format in formats.split() or (has_tfds and f"{output_format}_with_tfds" in formats)
        if is_shown and not (is_remote and loader.endswith(_WITHOUT)):
            code = _NAME.sub(lambda match: names[match[0]], code.rstrip())
            found.append(Snippet(loader, install, f"{code}\n"))
    return found


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
