"""How a dataset is loaded: a few lines of Python for each library that reads its format, as they stand ready to run.

The README, the report and the dataset card show them; tests run each of them with the library that it is for. Every
snippet leaves `samples`, what is stored and nothing else, to be iterated over.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.failures import SUCCESS
from any2ds.core.filetypes import type_of_name
from any2ds.dataset import shard_list
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.shard_list import ShardList, entry_of, pattern
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import body_columns

KINDS = ("image", "audio", "video", "text")
DRAWN = frozenset({"svg", "svgz", "heic", "heif", "jxl"})  # images of which Pillow makes no pixels
_LONGEST_PATTERN = 120  # characters; with many gaps the files are listed instead
_SHOWN = ("key", "url", "caption", "status", "ext", "bytes")
_CATS = {"s3": "aws s3 cp {} -", "gs": "gcloud storage cat {}", "gcs": "gcloud storage cat {}"}  # stores from a shell
_SPAWNED = 'In a script, macOS and Windows want the lines that begin with `samples` under `if __name__ == "__main__":`.'
_HTTP = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Snippet:
    """Lines of Python that load a dataset."""

    loader: str  # what it is called among people: PyTorch
    install: str  # what pip installs for it
    code: str
    note: str = ""  # a sentence, where there is something to know


@dataclass(frozen=True, slots=True)
class Loadable:
    """What loading a dataset depends on."""

    folder: str  # path or URL
    output_format: str
    pattern: str | None = None  # of the data files: {00000..00041}.tar
    kind: str = ""  # one of `KINDS` that nearly all files are; "" for mixed ones, or if nobody knows
    exts: tuple[str, ...] = ()  # of the files, the most frequent first
    columns: tuple[str, ...] = ("key", "url", "status", "ext")  # of the metadata, without the files
    data_column: str = "data"  # of parquet
    is_decoded: bool = False  # parquet: Hugging Face's datasets knows what the column is
    is_gzipped: bool = False  # tfrecord
    has_tfds: bool = False  # TensorFlow Datasets finds its files
    position_digits: int = 4  # at the end of the key of a row; before them is the name of its shard
    extensions_of_kind: tuple[str, ...] = field(default=())  # of `exts`, those of `kind`

    @classmethod
    def of(cls, dataset: Dataset) -> Loadable:
        """By what lies in the folder; reads the list of shards (or their stats) and one shard's columns."""
        options: Mapping[str, object] = dataset.run.options if dataset.run else {}
        columns, data_column, is_decoded = _columns(dataset)
        exts = extensions(dataset) or ({data_column: 1} if dataset.is_foreign and data_column != "data" else {})
        kind = kind_of(exts)
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
            extensions_of_kind=tuple(ext for ext in exts if kind_of_ext(ext) == kind),
        )

    @property
    def is_remote(self) -> bool:
        return "://" in self.folder

    @property
    def scheme(self) -> str:
        """Of a remote folder: s3."""
        return self.folder.partition("://")[0]


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
    """What nine in ten files are, one of `KINDS`; "" if they are of no one kind."""
    kinds: Counter[str] = Counter()
    for ext, files in exts.items():
        kinds[kind_of_ext(ext)] += files
    for kind, files in kinds.most_common(1):
        return kind if files >= 0.9 * kinds.total() else ""
    return ""


def kind_of_ext(ext: str) -> str:
    if ext.lower() in DRAWN:
        return ""
    kind = (type_of_name(f"file.{ext}") or "").partition("/")[0]
    return kind if kind in KINDS else _FURTHER.get(ext.lower(), "")


# Extensions that Python's own list of types lacks, some of them in some of its versions.
_FURTHER = {
    **dict.fromkeys(("avif", "webp", "heic", "heif", "jp2", "jxl"), "image"),
    **dict.fromkeys(("flac", "m4a", "opus", "ogg", "oga", "aac", "amr"), "audio"),
    **dict.fromkeys(("mkv", "webm", "avi", "flv", "m4v", "wmv", "3gp", "ts", "m2ts"), "video"),
}


def _columns(dataset: Dataset) -> tuple[tuple[str, ...], str, bool]:
    """Columns of the metadata, that of the files, and whether `datasets` knows what it holds."""
    for files in dataset.finished[:20]:
        with contextlib.suppress(Exception), dataset.file_in_sight(files) as file:  # it is broken, as others will tell
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
    by_format = {
        "webdataset": (_webdataset, _webdataset_pipe, _torch_webdataset, _datasets_folder),
        "parquet": (_datasets_parquet, _torch_parquet),
        "tfrecord": (_tf_data, _tfds),
        "arrayrecord": (_grain, _tfds),
        "files": (_files, _torch_files),
    }
    tables = (_pandas, _pyarrow, _duckdb, _polars, _daft)
    makers = (*by_format.get(found.output_format, ()), *tables)
    return [snippet for make in makers if (snippet := make(found)) is not None]


# --- words that stand in the code ---


def _path(found: Loadable) -> str:
    """The folder as libraries take it on every system."""
    folder = found.folder if found.is_remote else found.folder.replace(os.sep, "/")
    return folder if folder == "/" else folder.rstrip("/")


def _glob(found: Loadable, extension: str) -> str:
    """All files of shards with it: those of others, and of people, do not begin with a digit."""
    folder = _path(found)
    return f"{folder if found.is_remote else glob.escape(folder)}/[0-9]*.{extension}"


def _parquet_files(found: Loadable) -> tuple[str, str]:
    """An import, and an expression for the sorted paths of the metadata."""
    pattern = _glob(found, "parquet")
    if found.is_remote:
        lister = f"fsspec.filesystem({_text(found.scheme)})"
        return "import fsspec", f"[{lister}.unstrip_protocol(path) for path in sorted({lister}.glob({_text(pattern)}))]"
    return "import glob", f"sorted(glob.glob({_text(pattern)}))"


def _shown(found: Loadable) -> list[str]:
    return [name for name in _SHOWN if name in found.columns]


def _reported(found: Loadable) -> list[str]:
    """Columns to print of a sample."""
    return [str(name) for name in ("key", "caption", "url") if name in found.columns][:2]


def _text(value: str) -> str:
    """As Python writes it, in double quotes; what no one can see or type is escaped."""
    own = {'"': '\\"', "\\": "\\\\"}
    shown = (own.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode("ascii")) for c in value)
    return f'"{"".join(shown)}"'


def _texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _lines(*lines: str | None) -> str:
    return "\n".join(line for line in lines if line is not None) + "\n"


# --- tar files ---


def _shards(found: Loadable, shell: str | None = None) -> tuple[str | None, str] | None:
    """An import, and an expression for the tar files as webdataset takes them; through a `shell` command, if given."""
    folder = _path(found)
    if shell is not None:
        if not found.pattern or len(found.pattern) > _LONGEST_PATTERN or _expands(folder):
            return None
        return None, _text(f"pipe:{shell.format(shlex.quote(f'{folder}/') + found.pattern)}")
    if found.is_remote:
        if not found.pattern or len(found.pattern) > _LONGEST_PATTERN or _expands(folder):
            return None
        return None, _text(f"{folder}/{found.pattern}")
    if re.match("[A-Za-z]:/", folder):  # a drive, which would be taken for the scheme of a URL
        folder = f"file:{folder}"
    elif ":" in folder.partition("/")[0]:
        folder = f"./{folder}"
    if found.pattern and len(found.pattern) <= _LONGEST_PATTERN and not _expands(folder):
        return None, _text(f"{folder}/{found.pattern}")
    return "import glob\n", f"sorted(glob.glob({_text(f'{glob.escape(folder)}/[0-9]*.tar')}))"


def _expands(folder: str) -> bool:
    """Whether webdataset would take the name for a pattern, or for several."""
    return any(mark in folder for mark in ("{", "}", "\\", "::", "$"))


def _decoding(found: Loadable, decoder: str) -> str:
    """What follows `WebDataset(...)`. Originals are stored unseen, so a damaged image may be among them."""
    return f".decode({_text(decoder)}, handler=wds.warn_and_continue)" if found.kind == "image" else ".decode()"


def _webdataset(found: Loadable) -> Snippet | None:
    if (where := _shards(found)) is None:
        return None
    imported, shards = where
    is_fsspec = found.is_remote and not found.folder.startswith(_HTTP)
    opener = f"wds.gopen_schemes[{_text(found.scheme)}] = lambda url, mode, buffer: fsspec.open(url, mode).open()\n"
    code = _lines(
        f"{imported}import webdataset as wds\n"
        if imported
        else ("import fsspec\n" if is_fsspec else "") + "import webdataset as wds\n",
        opener if is_fsspec else None,
        f"shards = {shards}",
        "samples = wds.WebDataset(shards, shardshuffle=False)",
        f"samples = samples{_decoding(found, 'pil')}",
        "for sample in samples:",
        '    print(sample["__key__"], sample["json"]["url"], list(sample))',
    )
    needs = " pillow" if found.kind == "image" else ""
    return Snippet("webdataset", f"webdataset{needs}{_store(found)}", code)


def _webdataset_pipe(found: Loadable) -> Snippet | None:
    shell = _CATS.get(found.scheme) if found.is_remote else None
    if shell is None or (where := _shards(found, shell)) is None:
        return None
    code = _lines(
        "import webdataset as wds\n",
        f"shards = {where[1]}",
        "samples = wds.WebDataset(shards, shardshuffle=False)",
        f"samples = samples{_decoding(found, 'pil')}",
        "for sample in samples:",
        '    print(sample["__key__"], sample["json"]["url"], list(sample))',
    )
    needs = " pillow" if found.kind == "image" else ""
    return Snippet("webdataset, through a pipe", f"webdataset{needs}", code, f"Needs the program {shell.split()[0]}.")


def _torch_webdataset(found: Loadable) -> Snippet | None:
    # Through a pipe where it is remote: the threads of fsspec do not outlive the fork to the workers.
    shell = _CATS.get(found.scheme) if found.is_remote else None
    if found.is_remote and shell is None and not found.folder.startswith(_HTTP):
        return None
    if (where := _shards(found, shell)) is None:
        return None
    imported, shards = where
    code = _lines(
        f"{imported or ''}import webdataset as wds",
        "from torch.utils.data import DataLoader\n",
        f"shards = {shards}",
        "dataset = wds.WebDataset(shards, shardshuffle=100, empty_check=False)",
        f"dataset = dataset.shuffle(1000){_decoding(found, 'torchrgb')}",
        "samples = DataLoader(dataset, batch_size=None, num_workers=2)",
        "for sample in samples:",
        '    print(sample["__key__"], list(sample))',
    )
    return Snippet("PyTorch", "torch webdataset" + (" pillow" if found.kind == "image" else ""), code, _SPAWNED)


def _datasets_folder(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    code = _lines(
        "import datasets\n",
        f'samples = datasets.load_dataset({_text(_path(found))}, split="train")',
        "for sample in samples:",
        '    print(sample["__key__"], sample["json"]["url"])',
    )
    note = "It goes by the README.md in the folder, which `any2ds card` writes."
    return Snippet("Hugging Face datasets", "datasets" + (" pillow" if found.kind == "image" else ""), code, note)


def _store(found: Loadable) -> str:
    """The library behind the scheme of a store, for pip."""
    if not found.is_remote:
        return ""
    known = {"s3": " s3fs", "gs": " gcsfs", "gcs": " gcsfs", "az": " adlfs", "abfs": " adlfs", "hf": " huggingface_hub"}
    return known.get(found.scheme, "") or " fsspec"


# --- parquet with the files in it ---


def _datasets_parquet(found: Loadable) -> Snippet | None:
    column, feature = found.data_column, {"image": "Image", "audio": "Audio"}.get(found.kind)
    is_cast = feature is not None and not found.is_decoded and set(found.exts) == set(found.extensions_of_kind)
    has_feature = is_cast or found.is_decoded
    shown = f"sample[{_text(column)}]" if has_feature else f"len(sample[{_text(column)}])"
    code = _lines(
        "import datasets\n",
        f"files = {_text(_glob(found, 'parquet'))}",
        f'stored = [("status", "==", "{SUCCESS}")]',
        'samples = datasets.load_dataset("parquet", data_files=files, split="train", filters=stored)',
        f"samples = samples.cast_column({_text(column)}, datasets.{feature}())" if is_cast else None,
        "for sample in samples:",
        f'    print(sample["key"], {shown})',
    )
    needs = {"image": " pillow", "audio": " torchcodec"}.get(found.kind, "") if has_feature else ""
    return Snippet("Hugging Face datasets", f"datasets{needs}{_store(found)}", code)


def _torch_parquet(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    imported, files = _parquet_files(found)
    columns = [*_reported(found), found.data_column]
    inner = '["bytes"]' if found.is_decoded else ""
    code = _lines(
        f"{imported}\n\nimport pyarrow.dataset as ds",
        "from torch.utils.data import DataLoader, IterableDataset, get_worker_info\n\n",
        "class Samples(IterableDataset):",
        "    def __iter__(self):",
        f"        files, worker = {files}, get_worker_info()",
        "        for file in files[worker.id :: worker.num_workers] if worker else files:",
        f'            stored = ds.field("status") == "{SUCCESS}"',
        f"            for rows in ds.dataset(file).to_batches(columns={_texts(columns)}, filter=stored):",
        "                yield from rows.to_pylist()\n\n",
        "samples = DataLoader(Samples(), batch_size=None, num_workers=2)",
        "for sample in samples:",
        f'    print(sample["key"], len(sample[{_text(found.data_column)}]{inner}))',
    )
    return Snippet("PyTorch", "torch pyarrow", code, _SPAWNED)


# --- records ---


def _tf_data(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    compression = ', compression_type="GZIP"' if found.is_gzipped else ""
    names = [*_reported(found)[:2], "data"]
    code = _lines(
        "import glob\n\nimport tensorflow as tf\n",
        f"features = {{name: tf.io.FixedLenFeature([], tf.string) for name in {_texts(names)}}}",
        f"records = tf.data.TFRecordDataset(sorted(glob.glob({_text(_glob(found, 'tfrecord'))})){compression})",
        "samples = records.map(lambda record: tf.io.parse_single_example(record, features))",
        "for sample in samples.as_numpy_iterator():",
        '    print(sample["key"].decode(), len(sample["data"]))',
    )
    return Snippet("tf.data", "tensorflow", code)


def _tfds(found: Loadable) -> Snippet | None:
    if found.is_remote or not found.has_tfds:
        return None
    is_random = found.output_format == "arrayrecord"
    how = "as_data_source" if is_random else "as_dataset"
    key = 'sample["key"].decode()' if is_random else 'sample["key"].numpy().decode()'
    code = _lines(
        "import tensorflow_datasets as tfds\n",
        f"builder = tfds.builder_from_directory({_text(_path(found))})",
        f'samples = builder.{how}(split="train")',
        "for sample in samples:",
        f"    print({key})",
    )
    needs = "array_record" if is_random else "tensorflow"
    return Snippet("TensorFlow Datasets", f"tensorflow_datasets {needs}", code)


def _grain(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    code = _lines(
        "import glob\n\nimport any2ds\nimport grain\n",
        f"files = sorted(glob.glob({_text(_glob(found, 'arrayrecord'))}))",
        "records = grain.sources.ArrayRecordDataSource(files)",
        "samples = grain.MapDataset.source(records).shuffle(seed=0).map(any2ds.parse_example)",
        "for sample in samples:",
        '    print(sample["key"][0].decode(), len(sample["data"][0]))',
    )
    return Snippet("Grain", "grain array_record", code)


# --- files ---


def _files(found: Loadable) -> Snippet | None:
    if "ext" not in found.columns:
        return None
    imported, files = _parquet_files(found)
    opener = "fsspec.open({})" if found.is_remote else 'open({}, "rb")'
    place = f"{{key.partition('_')[0][:-{found.position_digits}]}}/{{key}}.{{ext}}"
    code = _lines(
        f"{imported}\n\nimport pandas as pd\n",
        f"folder = {_text(_path(found))}",
        f"metadata = pd.concat([pd.read_parquet(path) for path in {files}])",
        f'samples = metadata[metadata.status == "{SUCCESS}"]',
        "for key, ext in zip(samples.key, samples.ext):",
        f"    with {opener.format(_f(f'{{folder}}/{place}'))} as file:",
        "        print(key, ext, len(file.read()))",
    )
    return Snippet("plain files", f"pandas pyarrow{_store(found)}", code)


def _f(text: str) -> str:
    return f'f"{text}"'


def _torch_files(found: Loadable) -> Snippet | None:
    if found.is_remote or "ext" not in found.columns:
        return None
    imported, files = _parquet_files(found)
    place = f"{{row.key.partition('_')[0][:-{found.position_digits}]}}/{{row.key}}.{{row.ext}}"
    code = _lines(
        f"{imported}\n\nimport pandas as pd",
        "from torch.utils.data import DataLoader, Dataset\n\n",
        "class Samples(Dataset):",
        "    def __init__(self):",
        f"        metadata = pd.concat([pd.read_parquet(path) for path in {files}])",
        f'        self.rows = metadata[metadata.status == "{SUCCESS}"]\n',
        "    def __len__(self):",
        "        return len(self.rows)\n",
        "    def __getitem__(self, number):",
        "        row = self.rows.iloc[number]",
        f"        folder = {_text(_path(found))}",
        f'        with open({_f(f"{{folder}}/{place}")}, "rb") as file:',
        "            return row.key, file.read()\n\n",
        "samples = DataLoader(Samples(), batch_size=None, shuffle=True, num_workers=2)",
        "for key, content in samples:",
        "    print(key, len(content))",
    )
    return Snippet("PyTorch", "torch pandas pyarrow", code, _SPAWNED)


# --- tables: metadata, and parquet with the files in it ---


def _pandas(found: Loadable) -> Snippet:
    imported, files = _parquet_files(found)
    code = _lines(
        f"{imported}\n\nimport pandas as pd\n",
        f"files = {files}",
        f"columns = {_texts(_shown(found))}",
        "metadata = pd.concat([pd.read_parquet(file, columns=columns) for file in files])",
        f'samples = metadata[metadata.status == "{SUCCESS}"]',
        "print(samples)",
    )
    return Snippet("pandas", f"pandas pyarrow{_store(found)}", code)


def _pyarrow(found: Loadable) -> Snippet:
    imported, files = _parquet_files(found)
    source = "files"
    if found.is_remote:
        source = f"files, filesystem=fsspec.filesystem({_text(found.scheme)})"
        files = f"sorted(fsspec.filesystem({_text(found.scheme)}).glob({_text(_glob(found, 'parquet'))}))"
    code = _lines(
        f"{imported}\n\nimport pyarrow.dataset as ds\n",
        f"files = {files}",
        f"columns = {_texts(_shown(found))}",
        f'stored = ds.field("status") == "{SUCCESS}"',
        f"samples = ds.dataset({source}).to_table(columns=columns, filter=stored)",
        "print(samples)",
    )
    return Snippet("pyarrow", f"pyarrow{_store(found)}", code)


def _duckdb(found: Loadable) -> Snippet:
    code = _lines(
        "import duckdb",
        "import fsspec\n" if found.is_remote else "",
        f"duckdb.register_filesystem(fsspec.filesystem({_text(found.scheme)}))" if found.is_remote else None,
        f"rows = duckdb.read_parquet({_text(_glob(found, 'parquet'))})",
        f"samples = rows.filter(\"status = '{SUCCESS}'\").select({_texts(_shown(found))[1:-1]})",
        "print(samples)",
    )
    return Snippet("DuckDB", f"duckdb{_store(found)}", code)


def _polars(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    code = _lines(
        "import polars as pl\n",
        f"rows = pl.scan_parquet({_text(_glob(found, 'parquet'))})",
        f'samples = rows.filter(pl.col("status") == "{SUCCESS}").select({_texts(_shown(found))}).collect()',
        "print(samples)",
    )
    return Snippet("Polars", "polars", code)


def _daft(found: Loadable) -> Snippet | None:
    if found.is_remote:
        return None
    columns = _shown(found)
    decoded = None
    if found.output_format == "parquet" and found.kind == "image" and not found.is_decoded:
        columns = [*columns, "image"]
        column = f"decode_image(daft.col({_text(found.data_column)}))"
        decoded = f'samples = samples.with_column("image", {column})'
    code = _lines(
        "import daft",
        "from daft.functions import decode_image\n" if decoded else "",
        f'samples = daft.read_parquet({_text(_glob(found, "parquet"))}).where(daft.col("status") == "{SUCCESS}")',
        decoded,
        f"samples = samples.select({_texts(columns)[1:-1]}).collect()",
        "print(samples)",
    )
    return Snippet("Daft", "daft", code)
