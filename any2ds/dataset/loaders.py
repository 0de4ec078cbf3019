"""How a dataset is loaded: a few lines of Python for each library that reads its format, as they stand ready to run.

The documentation, the report and the dataset card show them; tests run each of them with the library that it is for.
The code is in `templates/loaders.jinja`.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.dataset import shard_list
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.kinds import kind_of_ext
from any2ds.dataset.rendering import environment, literal
from any2ds.dataset.shard_list import ShardList, entry_of, pattern
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import body_columns

_LONGEST_PATTERN = 120  # characters; with many gaps the files are listed instead
_SHOWN = ("key", "url", "caption", "status", "ext", "bytes")
_CATS = {"s3": "aws s3 cp {} -", "gs": "gcloud storage cat {}", "gcs": "gcloud storage cat {}"}  # stores from a shell
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}
_SPAWNED = 'In a script, macOS and Windows want the lines that begin with `samples` under `if __name__ == "__main__":`.'


@dataclass(frozen=True, slots=True)
class Snippet:
    """Lines of Python that load a dataset."""

    loader: str  # the library's usual name: PyTorch
    install: str  # what pip installs for it
    code: str
    note: str = ""  # a sentence, where there is something to know


_EXTRAS = {
    "s3": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "hf": "hf",
    "http": "https",
    "https": "https",
}
_OTHERS = "Grain takes `samples` as well; `to_tf()`, `to_hf()` and `to_webdataset()` make datasets of other libraries."

# Macro of the template -> name, what pip installs, note. In braces, a library that some datasets need as well: `image`
# to decode images, `store` for a remote folder, `feature` for what Hugging Face's datasets decodes.
_LOADERS = {
    "load_torch": ("any2ds and PyTorch", "{any2ds} torch", f"{_OTHERS} {_SPAWNED}"),
    "load_grain": ("any2ds and Grain", "{any2ds} grain", ""),
    "webdataset": ("webdataset", "webdataset {image} {store}", ""),
    "webdataset_pipe": ("webdataset, through a pipe", "webdataset {image}", "Needs the program {program}."),
    "torch_webdataset": ("PyTorch", "torch webdataset {image}", _SPAWNED),
    "datasets_folder": (
        "Hugging Face datasets",
        "datasets {image}",
        "It goes by the README.md in the folder, which `any2ds card` writes.",
    ),
    "datasets_parquet": ("Hugging Face datasets", "datasets {feature} {store}", ""),
    "torch_parquet": ("PyTorch", "torch pyarrow", _SPAWNED),
    "tf_data": ("tf.data", "tensorflow", ""),
    "tfds": ("TensorFlow Datasets", "tensorflow_datasets {records}", ""),
    "grain": ("Grain", "grain array_record", ""),
    "files": ("plain files", "pandas pyarrow {store}", ""),
    "torch_files": ("PyTorch", "torch pandas pyarrow", _SPAWNED),
    "pandas": ("pandas", "pandas pyarrow {store}", ""),
    "pyarrow": ("pyarrow", "pyarrow {store}", ""),
    "duckdb": ("DuckDB", "duckdb {store}", ""),
    "polars": ("Polars", "polars", ""),
    "daft": ("Daft", "daft", ""),
}
_BY_FORMAT = {
    "webdataset": ("load_torch", "webdataset", "webdataset_pipe", "torch_webdataset", "datasets_folder"),
    "parquet": ("load_torch", "datasets_parquet", "torch_parquet"),
    "tfrecord": ("load_torch", "tf_data", "tfds"),
    "arrayrecord": ("load_grain", "grain", "tfds"),
    "files": ("load_torch", "files", "torch_files"),
}
_OF_METADATA = ("pandas", "pyarrow", "duckdb", "polars", "daft")  # and of parquet with the files in it


@dataclass(frozen=True, slots=True)
class Loadable:
    """What loading a dataset depends on."""

    folder: str  # path or URL
    output_format: str
    pattern: str | None = None  # of the data files: {00000..00041}.tar
    kind: str = ""  # one of `kinds.KINDS` that nearly all files are; "" for mixed ones, or if nobody knows
    exts: tuple[str, ...] = ()  # of the files, the most frequent first
    columns: tuple[str, ...] = ("key", "url", "status", "ext")  # of the metadata, without the files
    data_column: str = "data"  # of parquet
    is_decoded: bool = False  # parquet: Hugging Face's datasets knows what the column is
    is_gzipped: bool = False  # tfrecord
    has_tfds: bool = False  # TensorFlow Datasets finds its files
    position_digits: int = 4  # at the end of the key of a row; before them is the name of its shard
    is_only_kind: bool = False  # all files are of `kind`
    is_encoded: bool = False  # the run has decoded and encoded all images
    is_one_size: bool = False  # and made them squares of one size

    @classmethod
    def of(cls, dataset: Dataset, exts: Mapping[str, int] | None = None) -> Loadable:
        """By what lies in the folder. It reads one shard's columns, and the list of shards (or their stats) for the
        extensions of the files, unless `exts` tells how many files have which."""
        options: Mapping[str, object] = dataset.run.options if dataset.run else {}
        columns, data_column, is_decoded = _columns(dataset)
        if exts is None:
            exts = extensions(dataset)
        if not exts and dataset.is_img2dataset and data_column != "data":
            exts = {data_column: 1}
        exts = {ext: files for ext, files in exts.items() if ext}
        kind = kind_of(exts)
        is_only_kind = all(kind_of_ext(ext) == kind for ext in exts)
        is_encoded = kind == "image" and is_only_kind and _is_encoded(options)
        names = dataset.layout
        finished = [files.shard_id for files in dataset.finished]
        shards = pattern(finished, names, dataset.writer.extension) if names and dataset.writer else None
        return cls(
            folder=redacted(dataset.folder.url),
            output_format=dataset.output_format or "",
            pattern=shards,
            kind=kind,
            exts=tuple(exts),
            columns=columns,
            data_column=data_column,
            is_decoded=is_decoded,
            is_gzipped=options.get("tfrecord_compression") == "gzip",
            has_tfds={layout.TFDS_FEATURES, layout.TFDS_INFO} <= dataset.entries.keys(),
            position_digits=names.position_digits if names else 4,
            is_only_kind=is_only_kind,
            is_encoded=is_encoded,
            is_one_size=is_encoded and _is_one_size(options),
        )

    @property
    def is_remote(self) -> bool:
        return "://" in self.folder

    @property
    def is_fsspec(self) -> bool:
        """Whether its files are opened through fsspec."""
        return self.is_remote and not self.folder.startswith(("http://", "https://"))

    @property
    def scheme(self) -> str:
        """Of a remote folder: s3."""
        return self.folder.partition("://")[0]

    @property
    def path(self) -> str:
        """The folder as libraries take it on every system."""
        folder = self.folder if self.is_remote else self.folder.replace(os.sep, "/")
        return folder if folder == "/" else folder.rstrip("/")

    def glob(self, extension: str) -> str:
        """All files of shards with it: those of others, and of people, do not begin with a digit."""
        return f"{self.path if self.is_remote else glob.escape(self.path)}/[0-9]*.{extension}"

    @property
    def parquet_files(self) -> str:
        """An expression for the sorted paths of the metadata."""
        files = literal(self.glob("parquet"))
        if not self.is_remote:
            return f"sorted(glob.glob({files}))"
        lister = f"fsspec.filesystem({literal(self.scheme)})"
        return f"[{lister}.unstrip_protocol(path) for path in sorted({lister}.glob({files}))]"

    def shards(self, through_pipe: bool = False) -> str | None:
        """An expression for the tar files as webdataset takes them, or for commands that write them out; None where
        webdataset cannot read them so."""
        folder = self.path
        # webdataset would take the name for a pattern, or for several.
        expands = any(mark in folder for mark in ("{", "}", "\\", "::", "$"))
        pattern = self.pattern if self.pattern and len(self.pattern) <= _LONGEST_PATTERN and not expands else None
        if through_pipe:
            shell = _CATS.get(self.scheme) if self.is_remote else None
            return literal(f"pipe:{shell.format(shlex.quote(f'{folder}/') + pattern)}") if shell and pattern else None
        if self.is_remote:
            return literal(f"{folder}/{pattern}") if pattern else None
        if re.match("[A-Za-z]:/", folder):  # a drive, which would be taken for the scheme of a URL
            folder = f"file:{folder}"
        elif ":" in folder.partition("/")[0]:
            folder = f"./{folder}"
        return (
            literal(f"{folder}/{pattern}")
            if pattern
            else f"sorted(glob.glob({literal(f'{glob.escape(folder)}/[0-9]*.tar')}))"
        )

    @property
    def feature(self) -> str | None:
        """What Hugging Face's datasets makes of the column of files, if it decodes them."""
        known = {"image": "Image", "audio": "Audio"}.get(self.kind)
        return (known or "bytes") if self.is_decoded else known if self.is_only_kind else None

    @property
    def shown(self) -> list[str]:
        """Columns of a table that people look at."""
        return [name for name in _SHOWN if name in self.columns]

    @property
    def printed(self) -> list[str]:
        """Columns to print of a sample."""
        return [str(name) for name in ("key", "caption", "url") if name in self.columns][:2]

    @property
    def libraries(self) -> dict[str, str]:
        """What pip has to install for this dataset beside the libraries that read its format."""
        feature = {"image": "pillow", "audio": "torchcodec"}.get(self.kind, "") if self.feature else ""
        record = {"tfrecord": "tfrecord", "arrayrecord": "arrayrecord"}.get(self.output_format)
        store = _EXTRAS.get(self.scheme) if self.is_remote else None
        extras = [extra for extra in ("image" if self.is_encoded else None, record, store) if extra]
        return {
            "image": "pillow" if self.kind == "image" else "",
            "store": _LIBRARIES.get(self.scheme, "fsspec") if self.is_remote else "",
            "feature": feature,
            "any2ds": f"'any2ds[{','.join(extras)}]'" if extras else "any2ds",
            "records": "array_record" if self.output_format == "arrayrecord" else "tensorflow",
        }


def extensions(dataset: Dataset) -> dict[str, int]:
    """Extension -> files that are stored with it, the most frequent first; empty where no stats tell."""
    found: Counter[str] = Counter()
    for entry in _entries(dataset):
        found.update({str(ext): files for ext, files in entry.exts.items() if ext})
    return dict(found.most_common())


def _entries(dataset: Dataset) -> Iterator[shard_list.ShardEntry]:
    """By the list of shards if it is true, else from the stats of each."""
    with contextlib.suppress(Exception):  # of any file system; ValueError of one that is none
        listed = ShardList.parse(dataset.read(layout.SHARDS_FILE))
        if not listed.is_open and listed.entries.keys() == {files.shard_id for files in dataset.finished}:
            yield from listed.entries.values()
            return
    names = {files.stats: files.shard_id for files in dataset.finished if files.stats}
    for name, content in dataset.folder.read_many(list(names)):
        with contextlib.suppress(ValueError):
            yield entry_of(names[name], content)


def kind_of(exts: Mapping[str, int]) -> str:
    """What nine in ten files are, one of `kinds.KINDS`; "" if they are of no one kind."""
    kinds: Counter[str] = Counter()
    for ext, files in exts.items():
        kinds[kind_of_ext(ext)] += files
    for kind, files in kinds.most_common(1):
        return kind if files >= 0.9 * kinds.total() else ""
    return ""


def _is_encoded(options: Mapping[str, object]) -> bool:
    """Whether a run with these options decodes its images, all of them."""
    asked = bool(options.get("file_size")) or options.get("encode_format") not in ("keep", None)
    return asked and not options.get("disable_all_reencoding")


def _is_one_size(options: Mapping[str, object]) -> bool:
    """Whether a run with these options makes squares of all images."""
    is_square = options.get("resize_mode") in ("border", "center_crop") and not options.get("resize_only_if_bigger")
    return bool(options.get("file_size")) and is_square and not options.get("transform")


def _columns(dataset: Dataset) -> tuple[tuple[str, ...], str, bool]:
    """Columns of the metadata, that of the files, and whether `datasets` knows what it holds."""
    for files in dataset.finished[:20]:
        with contextlib.suppress(Exception), dataset.visible_file(files) as file:  # it is broken, as others will tell
            schema = file.schema_arrow
            if dataset.output_format != "parquet":
                return tuple(schema.names), "data", False
            bodies = body_columns(schema)
            own = tuple(name for name in schema.names if name not in bodies)
            return own, bodies[0] if bodies else "data", b"huggingface" in (schema.metadata or {})
    return ("key", "url", "status"), "data", False


def snippets(of: Loadable | str, stores: Stores | None = None) -> list[Snippet]:
    """How to load it, for each library that fits its format, the most usual one first.

    `of` is what `Loadable` says, or the folder of a dataset; raises OutputError if that holds none.
    """
    found = Loadable.of(Dataset(of, stores)) if isinstance(of, str) else of
    macros = environment().get_template("loaders.jinja").module
    program = _CATS.get(found.scheme, "").partition(" ")[0]
    made = []
    for macro in (*_BY_FORMAT.get(found.output_format, ()), *_OF_METADATA):
        name, install, note = _LOADERS[macro]
        if code := str(getattr(macros, macro)(found)):
            libraries = " ".join(install.format(**found.libraries).split())
            made.append(Snippet(name, libraries, code, note.format(program=program)))
    return made
