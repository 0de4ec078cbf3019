"""How a dataset is loaded: for each library the line that goes through `any2ds.load`, and a few that do without any2ds.

The report and the dataset card show them; tests run each of them as it stands, with the library that it is for. What
does without any2ds is in `templates/loaders.jinja`.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.kinds import kind_of_ext
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.shard_sample import MOST_SHARDS, listed_table
from any2ds.dataset.shards import ShardEntry, ShardTable, pattern
from any2ds.describe.rendering import environment, literal
from any2ds.describe.sums import spread
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import body_columns

_LONGEST_PATTERN = 120  # characters


@dataclass(frozen=True, slots=True)
class Snippet:
    """Lines of Python that load a dataset."""

    loader: str  # the library's usual name: PyTorch
    install: str  # what pip installs for it
    code: str
    note: str = ""  # a sentence, where there is something to know


# Library -> what pip installs beside any2ds, what is imported, what follows `ds = any2ds.load(...)`.
_WITH_ANY2DS = {
    "PyTorch": (
        "torch",
        "from torch.utils.data import DataLoader",
        "batches = DataLoader(ds, batch_size=16, shuffle=True, collate_fn=list)",
    ),
    "Grain": (
        "grain",
        "import grain",
        "samples = grain.MapDataset.source(ds).shuffle(seed=0).to_iter_dataset(ds.read_options())",
    ),
    "tf.data": ("tensorflow", "", "samples = ds.to_tf(shuffle=True)"),
    "Hugging Face datasets": ("datasets {decoder}", "", "samples = ds.to_hf()"),
    "webdataset": ("webdataset", "", "samples = ds.to_webdataset(shuffle=True)"),
    "Ray Data": (
        "'ray[data]'",
        "import ray",
        'samples = ray.data.range(len(ds.shards)).flat_map(lambda row: ds.shards[row["id"]])',
    ),
    "Spark": (
        "pyspark",
        "from pyspark.sql import SparkSession",
        "samples = ds.to_spark(SparkSession.builder.getOrCreate())",
    ),
    "Daft": ("daft", "import daft", "samples = daft.from_arrow(ds.to_arrow())"),
    "DuckDB": ("duckdb", "import duckdb", 'samples = duckdb.sql("select key, ext, octet_length(data) from ds")'),
    "Polars": ("polars", "import polars", "samples = polars.scan_pyarrow_dataset(ds.metadata).collect()"),
    "pandas": ("pandas", "", "samples = ds.metadata.to_pandas()"),
}
_PYTORCH = "PyTorch"
# For PyTorch: it makes batches of arrays of one size itself, and no others.
_ONE_SIZE = (
    ', columns=["data", "key"], decode=True',
    'batches = DataLoader(ds, batch_size=16, shuffle=True)  # ["data"]: uint8, images x height x width x 3',
)
_SEVERAL_SIZES = (
    ", decode=True",
    "batches = DataLoader(ds, batch_size=16, shuffle=True, collate_fn=list)  # lists: images of several sizes",
)
_OF_COMPRESSED = "tf.data"  # which takes records that have no numbers

# Format of the data -> macro of the template, name, what pip installs.
_WITHOUT_ANY2DS = {
    "webdataset": ("webdataset", "webdataset", "webdataset {store}"),
    "parquet": ("datasets", "Hugging Face datasets", "datasets {store}"),
    "tfrecord": ("tf_data", "tf.data", "tensorflow"),
    "arrayrecord": ("tfds", "TensorFlow Datasets", "tensorflow_datasets array_record"),
    "files": ("files", "plain files", "pandas pyarrow"),
}
_OF_METADATA = "pandas", "pandas", "pandas pyarrow {store}"  # where there are no data
_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "hf": "huggingface_hub"}
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


@dataclass(frozen=True, slots=True)
class Loadable:
    """What loading a dataset depends on."""

    folder: str  # path or URL
    output_format: str
    pattern: str | None = None  # of the data files: {00000..00041}.tar
    kind: str = ""  # one of `kinds.KINDS` that nearly all files are; "" for mixed ones, or if nobody knows
    exts: tuple[str, ...] = ()  # of the files, the most frequent first
    columns: tuple[str, ...] = ("key", "url", "status", "ext")  # of the metadata, without the files
    data_column: str = "data"  # of parquet and tfrecord
    is_decoded: bool = False  # parquet: Hugging Face's datasets knows what the column is
    is_gzipped: bool = False  # tfrecord
    has_tfds: bool = False  # TensorFlow Datasets finds its files
    images: tuple[str, ...] = ()  # extensions of the files that are to be loaded as images, if the dataset is of images
    is_one_size: bool = False  # the run has made squares of one size of these

    @classmethod
    def of(cls, dataset: Dataset, exts: Mapping[str, int] | None = None) -> Loadable:
        """By what lies in the folder. It reads one shard's columns, and the list of shards (or their stats) for the
        extensions of the files, unless `exts` tells how many files have which."""
        options: Mapping[str, object] = dataset.run.options if dataset.run else {}
        columns, data_column, is_decoded = _columns(dataset)
        if exts is None:
            exts = exts_of(dataset)
        if not exts and dataset.is_img2dataset and data_column != "data":
            exts = {data_column: 1}
        exts = {ext: files for ext, files in exts.items() if ext}
        names = dataset.layout
        finished = dataset.finished.ids
        shards = pattern(finished, names, dataset.writer.extension) if names and dataset.writer else None
        kind = kind_of(exts)
        is_one_size = dataset.members is None and _is_one_size(options)
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
            images=_images(exts, options if is_one_size else {}) if is_one_size or kind == "image" else (),
            is_one_size=is_one_size,
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

    @property
    def shards(self) -> str | None:
        """An expression for the tar files as webdataset takes them; None where there are too many gaps to name them."""
        if self.is_remote:
            is_short = self.pattern is not None and len(self.pattern) <= _LONGEST_PATTERN
            return literal(f"{self.path}/{self.pattern}") if is_short else None
        files = self.glob("tar")
        if re.match("[A-Za-z]:/", files):  # to webdataset the scheme of a URL
            return f'["file:" + path for path in sorted(glob.glob({literal(files)}))]'
        is_scheme = ":" in files.partition("/")[0]
        return f"sorted(glob.glob({literal(f'./{files}' if is_scheme else files)}))"

    @property
    def libraries(self) -> dict[str, str]:
        """What pip has to install for this dataset beside the libraries that read its format."""
        record = {"tfrecord": "tfrecord", "arrayrecord": "arrayrecord"}.get(self.output_format)
        store = _EXTRAS.get(self.scheme) if self.is_remote else None
        extras = [extra for extra in (record, store) if extra]
        return {
            "store": _LIBRARIES.get(self.scheme, "fsspec") if self.is_remote else "",
            "decoder": {"image": "pillow", "audio": "torchcodec"}.get(self.kind, ""),
            "any2ds": f"'any2ds[{','.join(extras)}]'" if extras else "any2ds",
            "any2ds_image": f"'any2ds[{','.join(['image', *extras])}]'",
        }


def exts_of(dataset: Dataset) -> dict[str, int]:
    """Extension -> files, the most frequent first; empty where no statistics tell."""
    return {ext: files for ext, files in shard_table(dataset).totals.exts.items() if ext}


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
    """What nine in ten files are, one of `kinds.KINDS`; "" if they are of no one kind."""
    kinds: Counter[str] = Counter()
    for ext, files in exts.items():
        kinds[kind_of_ext(ext)] += files
    for kind, files in kinds.most_common(1):
        return kind if files >= 0.9 * kinds.total() else ""
    return ""


def _images(exts: Iterable[str], options: Mapping[str, object]) -> tuple[str, ...]:
    """Extensions of images; those in a format that all images are encoded in have this one."""
    encoded = options.get("encode_format") or "keep"
    found = (ext for ext in exts if kind_of_ext(ext) == "image" and re.fullmatch(r"[\w.]+", ext))
    return tuple(ext for ext in found if encoded in ("keep", ext))


def _is_one_size(options: Mapping[str, object]) -> bool:
    """Whether a run with these options makes squares of all images."""
    is_square = options.get("resize_mode") in ("border", "center_crop") and not options.get("resize_only_if_bigger")
    is_encoded = options.get("file_size") and not options.get("disable_all_reencoding")
    return bool(is_square and is_encoded and not options.get("transform"))


def _columns(dataset: Dataset) -> tuple[tuple[str, ...], str, bool]:
    """Columns of the metadata, that of the files, and whether `datasets` knows what it holds."""
    for files in dataset.finished[:20]:
        with contextlib.suppress(Exception), dataset.visible_file(files) as file:  # it is broken, as others will tell
            schema = file.schema_arrow
            if dataset.output_format != "parquet":
                options = dataset.run.options if dataset.run else {}
                return tuple(schema.names), str(options.get("data_column") or "data"), False
            bodies = body_columns(schema)
            own = tuple(name for name in schema.names if name not in bodies)
            return own, bodies[0] if bodies else "data", b"huggingface" in (schema.metadata or {})
    return ("key", "url", "status"), "data", False


def snippets(of: Loadable | str, stores: Stores | None = None) -> list[Snippet]:
    """How to load it: for each library through any2ds, and at last without.

    `of` is what `Loadable` says, or the folder of a dataset; raises OutputError if that holds none.
    """
    found = Loadable.of(Dataset(of, stores)) if isinstance(of, str) else of
    libraries = found.libraries
    made = []
    for name, (install, importing, line) in _WITH_ANY2DS.items():
        if found.output_format in _WITHOUT_ANY2DS and (not found.is_gzipped or name == _OF_COMPRESSED):
            imports = "\n".join(filter(None, ("import any2ds", importing)))
            how, needs = "", "any2ds"
            if name == _PYTORCH and found.images:
                how, line = _ONE_SIZE if found.is_one_size else _SEVERAL_SIZES
                how, needs = f"{_where(found)}{how}", "any2ds_image"
            code = f"{imports}\n\nds = any2ds.load({literal(found.path)}{how})\n{line}\n"
            made.append(Snippet(name, _joined(f"{{{needs}}} {install}", libraries), code))
    macro, name, install = _WITHOUT_ANY2DS.get(found.output_format, _OF_METADATA)
    if code := str(getattr(environment().get_template("loaders.jinja").module, macro)(found)):
        made.append(Snippet(f"{name}, without any2ds", _joined(install, libraries), code))
    return made


def _where(found: Loadable) -> str:
    """The condition that leaves out files of other kinds, if there are any."""
    if set(found.images) == set(found.exts) or "ext" not in found.columns:
        return ""
    names = ", ".join(f"'{ext}'" for ext in found.images)
    return f", where={literal(f'ext in ({names})' if len(found.images) > 1 else f'ext = {names}')}"


def _joined(install: str, libraries: Mapping[str, str]) -> str:
    return " ".join(install.format(**libraries).split())
