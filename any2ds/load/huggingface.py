"""A source as a dataset of Hugging Face's library, whose features say what its columns are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.tables import is_text, scalar_of
from any2ds.dataset.features import (
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Optional,
    Scalar,
    Sequence_,
    Tensor,
    Video,
)
from any2ds.load.decode import MODES
from any2ds.load.libraries import imported, kind_of_files
from any2ds.load.metadata import dataset_of
from any2ds.load.shards import ShardSet
from any2ds.storage.reading import version_of
from any2ds.writers.formats._huggingface import STORAGE

if TYPE_CHECKING:
    from any2ds.load.source import Source

_FEATURES = {"image": "Image", "audio": "Audio"}
_MOST_LABELS = 10_000
_MOST_DIMENSIONS = 5  # of an array of that library
_TEXT, _MEDIA = "text", "media"


@dataclass(frozen=True, slots=True)
class _Shape:
    """The form of a row. A dataset is cached by it."""

    names: tuple[str, ...]
    # The form of each file, `_TEXT` or `_MEDIA` (else it stays bytes), by the names that lead to it, with the
    # column of its extension, "" if there is none.
    files: Mapping[tuple[str, ...], tuple[str, str]]
    version: str = ""  # of the shards
    # Columns of times in nanoseconds, some of which are texts: that library copies them as scalars of Arrow.
    nanoseconds: Mapping[str, pa.DataType] = field(default_factory=dict)


def dataset(source: Source, shards: ShardSet, streaming: bool, options: Mapping[str, Any]) -> Any:
    """A `Dataset`, which is a copy in the cache of that library, or with `streaming` an `IterableDataset`.

    Images and sound are for that library to decode, whether the source decodes or not; making the dataset needs no
    decoder. `options` are those of `from_generator`. Raises UsageError without the library.
    """
    datasets = imported("datasets", "to_hf")
    if source.recipe is None:
        features, shape = _of_columns(source, shards)
    else:
        features, shape = _of_recipe(source, source.recipe.features)
    stored = datasets.Features({name: _stored(feature) for name, feature in features.items()})
    if not len(source) and not streaming:  # of which `from_generator` makes none
        found = datasets.Dataset.from_dict({name: [] for name in stored}, stored)
    else:
        exts = [ext for becomes, ext in shape.files.values() if becomes == _MEDIA and ext]
        read = source.undecoded(*(("key", *exts) if exts else ()), with_features=True)
        if not streaming:
            nanoseconds = {name: type for name, type in source.features.items() if _has_nanoseconds(type)}
            shape = replace(shape, version=_version(shards), nanoseconds=nanoseconds)
        is_shared_out = streaming or options.get("num_proc")
        parts = read.shards if is_shared_out and len(read) else [read]  # else in the order of the source
        given = {"shards": parts, "shape": shape}
        library = datasets.IterableDataset if streaming else datasets.Dataset
        found = library.from_generator(_rows, features=stored, gen_kwargs=given, **options)
    if streaming:
        return found.cast(features)
    info = found.info.copy()
    info.features = features  # of the same types in Arrow: `cast` would copy all files
    return datasets.Dataset(found.data.cast(features.arrow_schema), info, found.split)


def _of_columns(source: Source, shards: ShardSet) -> tuple[Any, _Shape]:
    """The features of a dataset that no recipe has made."""
    datasets = imported("datasets", "to_hf")
    types = source.features
    kinds = {name: kind_of_files(source, name) for name in source.members if name in types}
    if "data" in types:
        kinds["data"] = kind_of_files(source)
    media = {name: kind for name, kind in kinds.items() if kind in _FEATURES}
    texts = [name for name, kind in kinds.items() if kind == "text" and source.is_decoded]
    exts = {name: "ext" if name == "data" else f"{name}_ext" for name in kinds}
    plain = {name: _plain(type) for name, type in types.items()} | dict.fromkeys(texts, pa.string())
    features = datasets.Features.from_arrow_schema(pa.schema(list(plain.items())))
    for name, labels in _labels(shards, types).items():
        features[name] = datasets.ClassLabel(names=labels)
    for name, kind in media.items():
        features[name] = getattr(datasets, _FEATURES[kind])()
    becomes = dict.fromkeys(media, _MEDIA) | dict.fromkeys(texts, _TEXT)
    return features, _Shape(tuple(types), {(name,): (kind, exts[name]) for name, kind in becomes.items()})


def _of_recipe(source: Source, own: Features) -> tuple[Any, _Shape]:
    """The features of a recipe, nested as a sample of the source has them, and the other columns."""
    datasets = imported("datasets", "to_hf")
    types, wanted = source.as_stored.features, source.columns
    leaves = (*own.columns, *own.files)
    by_column = {leaf.column: leaf for leaf in leaves}
    if own.files:
        by_column.setdefault("data", own.files[0])
    names = wanted
    if names is None:  # `data` is the first file once more, or empty
        others = [name for name in types if name not in by_column and name != "data"]
        names = (*own, *others)
    exts = {name: f"{name}_ext" for name in source.members} or {own.main: "ext"}
    features = datasets.Features()
    files: dict[tuple[str, ...], tuple[str, str]] = {}
    for name in names:
        inside = [(leaf.path, leaf) for leaf in leaves if leaf.path[0] == name]
        if not inside and name in by_column:
            inside = [((name,), by_column[name])]
        for path, leaf in inside:
            feature = _feature(leaf.feature)
            place: Any = features
            for part in path[:-1]:
                place = place.setdefault(part, {})
            place[path[-1]] = feature
            if _is_media(feature):
                files[path] = (_MEDIA, exts.get(leaf.column, ""))
        if name not in features:
            features[name] = _value(_plain(types[name]))
    return features, _Shape(tuple(names), files)


def _rows(shards: Sequence[Source], shape: _Shape) -> Iterator[dict[str, Any]]:
    """`shards` is a list, of which workers of that library take different ones."""
    for shard in shards:
        for sample in shard:
            row = {name: sample.get(name) for name in shape.names}
            for path, (becomes, ext) in shape.files.items():
                place: Any = row
                for name in path[:-1]:
                    place = place[name]
                content = place[path[-1]]
                if becomes == _MEDIA:
                    place[path[-1]] = _media(content, f"{sample['key']}.{sample[ext]}" if ext else None)
                elif content is not None:
                    place[path[-1]] = content.decode("utf-8-sig", "replace")
            for name, type in shape.nanoseconds.items():
                if (value := row.get(name)) is not None:
                    row[name] = scalar_of(value, type)
            yield row


def _media(content: Any, name: str | None) -> Any:
    """As `STORAGE`; of files in lists as well. None for an empty file, which is what records have in place of none."""
    if isinstance(content, list):
        return [_media(each, name) for each in content]
    return {"bytes": content, "path": name} if content else None


def _has_nanoseconds(type: pa.DataType) -> bool:
    return bool((pa.types.is_time(type) or pa.types.is_timestamp(type)) and type.unit == "ns")


def _plain(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


def _labels(shards: ShardSet, types: Mapping[str, pa.DataType]) -> dict[str, list[str]]:
    """The names of classes of columns that Arrow has as dictionaries of text, pandas as categories: all that the
    metadata have, sorted, so that each part of a dataset has the same."""
    wanted = [name for name, type in types.items() if pa.types.is_dictionary(type) and is_text(type.value_type)]
    if not wanted:
        return {}
    table = dataset_of(shards, pa.schema([(name, types[name]) for name in wanted])).to_table()
    found = {name: pc.unique(table[name].cast(pa.string())).drop_null().to_pylist() for name in wanted}
    return {name: sorted(labels) for name, labels in found.items() if 0 < len(labels) <= _MOST_LABELS}


def _feature(feature: Feature) -> Any:
    """The library's feature for a column, or a file, of a recipe."""
    datasets = imported("datasets", "to_hf")
    if isinstance(feature, Optional):
        return _feature(feature.feature)
    if isinstance(feature, Sequence_):
        if isinstance(feature.feature, Tensor):  # read as one array
            return _tensor((feature.length, *feature.feature.shape), feature.feature)
        return datasets.List(_feature(feature.feature), length=-1 if feature.length is None else feature.length)
    if isinstance(feature, Tensor):
        return _tensor(feature.shape, feature)
    if isinstance(feature, ClassLabel):
        names = {"names": list(feature.names)} if feature.names is not None else {"num_classes": feature.num_classes}
        return datasets.ClassLabel(**names)
    if isinstance(feature, Image):
        return datasets.Image(mode=MODES[feature.channels])
    if isinstance(feature, (Audio, Video)):
        return getattr(datasets, type(feature).__name__)()
    return _value(feature.arrow_type())


def _value(type: pa.DataType) -> Any:
    """The library's feature for a type of Arrow that is not nested."""
    datasets = imported("datasets", "to_hf")
    return datasets.Features.from_arrow_schema(pa.schema([("", type)]))[""]


def _tensor(shape: Sequence[int | None], feature: Tensor) -> Any:
    """An array where the library has one of so many dimensions; else lists."""
    datasets = imported("datasets", "to_hf")
    entry = _value(Scalar(feature.dtype).arrow_type())
    if 2 <= len(shape) <= _MOST_DIMENSIONS and feature.dtype != "str":
        return getattr(datasets, f"Array{len(shape)}D")(shape=tuple(shape), dtype=entry.dtype)
    for size in reversed(shape):
        entry = datasets.List(entry, length=-1 if size is None else size)
    return entry


def _stored(feature: Any) -> Any:
    """The feature with files as they are stored, so that writing them needs none of the libraries that decode them."""
    datasets = imported("datasets", "to_hf")
    if isinstance(feature, dict):
        return {name: _stored(each) for name, each in feature.items()}
    if isinstance(feature, datasets.List):
        return datasets.List(_stored(feature.feature), length=feature.length)
    if isinstance(feature, (datasets.Image, datasets.Audio, datasets.Video)):
        return {field.name: datasets.Value(str(field.type)) for field in STORAGE}
    return feature


def _is_media(feature: Any) -> bool:
    datasets = imported("datasets", "to_hf")
    while isinstance(feature, datasets.List):
        feature = feature.feature
    return isinstance(feature, (datasets.Image, datasets.Audio, datasets.Video))


def _version(shards: ShardSet) -> str:
    """Another one when a shard was made again: that library knows a dataset in its cache by what it is made with."""
    names = {*shards.names, *shards.tables}
    digest = hashlib.sha256()
    for info in sorted(shards.folder.listed(), key=lambda info: str(info["name"])):
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        if name in names:
            digest.update(f"{name} {info.get('size')} {version_of(info)}\n".encode())
    return digest.hexdigest()
