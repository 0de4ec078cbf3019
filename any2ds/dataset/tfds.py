"""The files by which TensorFlow Datasets opens the folder of a dataset: features.json and dataset_info.json.

Both are JSON of TFDS's messages (tensorflow_datasets/core/proto/{dataset_info,feature}.proto), in which 64-bit numbers
are texts. They are written by hand, because TFDS needs TensorFlow, or at least 250 MB, to write them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from any2ds.config.options import OutputOptions
from any2ds.core.errors import redacted
from any2ds.core.layout import TFDS_FEATURES, TFDS_INFO, Layout
from any2ds.core.metadata import MOST_SPLITS, without_credentials
from any2ds.core.metadata import SPLIT as SPLIT_COLUMN
from any2ds.core.tables import is_bytes

if TYPE_CHECKING:
    from any2ds.dataset.shards import ShardEntry

SPLIT = "train"
VERSION = "1.0.0"
"""TFDS wants one of three numbers. What a dataset was made of and when is in `.any2ds/run` and in the stats."""

IMAGES = frozenset({"bmp", "jpg", "png"})
"""Extensions of what TFDS's Image decodes to height, width and 3; gif and webp come out with a fourth dimension."""

FORMATS = {"tfrecord": "tfrecord", "arrayrecord": "array_record"}  # what TFDS calls them
LABELS_END = ".labels.txt"  # of a file with the names of the classes of a feature
_MADE = "Made by any2ds from a list of URLs."
_TOO_LONG = (
    "It has no split, because TensorFlow Datasets needs names of one length, and shard numbers have outgrown theirs: "
    "make it anew with a larger oom_shard_count, or read the shards without TensorFlow Datasets."
)
_MIXED = (
    " All samples are in one split. The column `split` names others, which any2ds.load reads; TensorFlow Datasets "
    "knows splits as sets of files, and {problem}."
)
_NAME = re.compile(r"(?!all$)[A-Za-z0-9_-]+")  # that it can ask for
_DIGITS = 5  # of a number in TFDS's names of files, at least; as many as the number of shards has, if that is more
_CLASSES = "tensorflow_datasets.core.features"


def names_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The files for TFDS in a dataset with these options, as `.any2ds/run` has them.

    There are none for formats that TFDS does not read. What it calls parquet is a
    single column of `tf.train.Example`. Nor with a preset, whose tool does not write any.
    """
    if options.get("preset"):
        return ()
    return (TFDS_FEATURES, TFDS_INFO) if options.get("output_format") in FORMATS else ()


def names_for(options: OutputOptions) -> tuple[str, ...]:
    return names_of(asdict(options))


def files(entries: Sequence[ShardEntry], options: OutputOptions, schema: pa.Schema | None) -> Mapping[str, bytes]:
    """Name -> content of these files, for the finished shards `entries` of a dataset whose metadata have `schema`.

    Without a split, and with a text that says so, if shard numbers have more than `oom_shard_count` digits: in TFDS all
    have the same length.
    """
    if schema is None or not names_for(options):
        return {}
    of_splits, problem = _by_split(entries, has_column=SPLIT_COLUMN in schema.names)
    info = dataset_info(dataset_name(options.output_folder), VERSION, of_splits, entries, options)
    info["description"] = _MADE + problem if info["splits"] else _TOO_LONG
    exts, samples = sum((Counter(entry.exts) for entry in entries), Counter[str]()), sum(e.samples for e in entries)
    return {TFDS_FEATURES: to_json(features(schema, _files_in(schema, exts, samples))), TFDS_INFO: to_json(info)}


def dataset_info(
    name: str,
    version: str,
    splits: Mapping[str, Sequence[ShardEntry]],
    entries: Sequence[ShardEntry],
    options: OutputOptions,
) -> dict[str, Any]:
    """Content of dataset_info.json that all datasets have, with the shards of each split; without splits where shard
    numbers are too long."""
    shards = 1 + max((entry.shard_id for entry in entries), default=-1)
    template = shard_template(options.layout, shards)
    file_name = f"{template}.{options.output_format}"
    described = [_split_info(split, own, shards, file_name) for split, own in splits.items()] if template else []
    return {"name": name, "version": version, "fileFormat": FORMATS[options.output_format], "splits": described}


def _files_in(schema: pa.Schema, exts: Mapping[str, int], samples: int) -> dict[str, bool]:
    """The features of files in a record, and whether each is an image that all of so many `samples` have.

    There is one, or where samples have several, one for each member, of which columns tell.
    """
    from any2ds.writers.formats._example import DATA

    names = [name.removesuffix("_status") for name in schema.names if name.endswith("_status")]
    members = [name for name in names if {f"{name}_url", f"{name}_error_code", f"{name}_ext"} <= set(schema.names)]
    if not (exts and members and {ext.partition(".")[0] for ext in exts} <= set(members)):
        return {DATA: exts.keys() <= IMAGES}
    of = {name: {ext.partition(".")[2]: n for ext, n in exts.items() if ext.startswith(f"{name}.")} for name in members}
    return {name: own.keys() <= IMAGES and sum(own.values()) == samples for name, own in of.items()}


def _by_split(entries: Sequence[ShardEntry], has_column: bool) -> tuple[dict[str, list[ShardEntry]], str]:
    """Split -> its shards, in the order of their numbers; and why all are in one, as text, or "".

    Those that the column `split` names, if each shard has samples of one; else all in `SPLIT`.
    """
    found: dict[str, list[ShardEntry]] = {}
    try:
        for entry in sorted(entries, key=lambda entry: entry.shard_id) if has_column else ():
            if entry.samples:
                found.setdefault(split_of(entry, _NAME), []).append(entry)
            if len(found) > MOST_SPLITS:
                raise ValueError(f"here are more than {MOST_SPLITS}")
    except ValueError as problem:
        return {SPLIT: list(entries)}, _MIXED.format(problem=problem)
    return found or {SPLIT: list(entries)}, ""


def split_of(entry: ShardEntry, names: re.Pattern[str]) -> str:
    """The split of a shard with samples, by its column `split`. Raises ValueError, with the reason, if its samples are
    not all of one, or `names` does not match that."""
    name = next(iter(entry.splits), "")
    if len(entry.splits) != 1 or not name:
        raise ValueError(f"shard {entry.shard_id} has samples of several, or of none")
    if not names.fullmatch(name):
        raise ValueError(f"cannot be asked for {name!r}")
    return name


def _split_info(name: str, entries: Sequence[ShardEntry], shards: int, template: str) -> dict[str, Any]:
    """A split in dataset_info.json, with the samples of each of so many `shards`. One without any is to TFDS an empty
    one, whose file it does not look for."""
    lengths = ["0"] * shards
    for entry in entries:
        lengths[entry.shard_id] = str(entry.samples)
    size = str(sum(entry.data_bytes for entry in entries))
    return {"name": name, "shardLengths": lengths, "numBytes": size, "filepathTemplate": template}


def features(schema: pa.Schema, files: Mapping[str, bool]) -> dict[str, Any]:
    """The types in a record: a feature for each column, and those of `files`, with whether they are images."""
    of_columns = {field.name: _feature(field.type) for field in schema}
    image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}  # of any height and width
    of_files = {
        name: class_of("image_feature.Image", image=image) if holds_images else _bytes()
        for name, holds_images in files.items()
    }
    return class_of("features_dict.FeaturesDict", featuresDict={"features": {**of_columns, **of_files}})


def shard_template(layout: Layout, shards: int) -> str | None:
    """A format string that makes the names of `shards` shards of TFDS's `SHARD_INDEX`, which is a text of digits.

    None if their names differ in length.
    """
    digits = layout.shard_digits
    if shards > 10**digits:
        return None
    theirs = max(_DIGITS, len(str(shards)))
    if digits >= theirs:
        return "0" * (digits - theirs) + "{SHARD_INDEX}"
    return "".join(f"{{SHARD_INDEX[{place}]}}" for place in range(theirs - digits, theirs))


def dataset_name(output_folder: str) -> str:
    """A name that TFDS takes (a letter, then letters, digits and _), of the folder's."""
    shown = without_credentials(redacted(output_folder))
    parts = [part for part in re.split(r"[\\/]", shown.rpartition("://")[2]) if part]
    name = re.sub(r"[^A-Za-z0-9]+", "_", parts[-1] if parts else "").strip("_")
    if not name:
        return "dataset"
    return name if name[0].isalpha() else f"dataset_{name}"


def _feature(type: pa.DataType) -> dict[str, Any]:
    """Numbers have the types of the record; bools are int64 there, as TFDS stores them."""
    from any2ds.writers.formats._example import feature_kind

    found = feature_kind(type)
    if found.is_list:
        return class_of("sequence_feature.Sequence", sequence={"feature": _feature(type.value_type), "length": "-1"})
    if pa.types.is_dictionary(type):
        type = type.value_type
    if found.kind == "int64":
        return _scalar("bool" if pa.types.is_boolean(type) else "int64")
    if found.kind == "float":
        return _scalar("float32")
    return _bytes() if is_bytes(type) else class_of("text_feature.Text", text={})


def _scalar(dtype: str, name: str = "scalar.Scalar") -> dict[str, Any]:
    return class_of(name, tensor={"shape": {}, "dtype": dtype, "encoding": "none"})


def _bytes() -> dict[str, Any]:
    return _scalar("string", "tensor_feature.Tensor")  # Text is the same to TFDS, but shown as text


def class_of(name: str, **content: Any) -> dict[str, Any]:
    """A feature in features.json."""
    return {"pythonClassName": f"{_CLASSES}.{name}", **content}


def to_json(value: Any) -> bytes:
    return bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
