"""A source as a dataset of Hugging Face's library, whose features say what its columns are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.dataset.features import ClassLabel, Optional
from any2ds.dataset.load.libraries import imported, kind_of_files
from any2ds.dataset.load.metadata import dataset_of
from any2ds.dataset.load.shards import ShardSet
from any2ds.storage.reading import version_of
from any2ds.writers.formats._huggingface import STORAGE

if TYPE_CHECKING:
    from any2ds.dataset.load.source import Source

_FEATURES = {"image": "Image", "audio": "Audio"}
_MOST_LABELS = 10_000
_TEXT, _MEDIA = "text", "media"


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a row becomes. A dataset is cached by it."""

    names: tuple[str, ...]
    # What becomes of each file: `_TEXT`, `_MEDIA`, or it stays bytes; by column, with that of its extension.
    files: Mapping[str, tuple[str, str]]
    version: str = ""  # of the shards


def dataset(source: Source, shards: ShardSet, streaming: bool, options: Mapping[str, Any]) -> Any:
    """A `Dataset`, which is a copy in the cache of that library, or with `streaming` an `IterableDataset`.

    Images and sound are for that library to decode, whether the source decodes or not; making the dataset needs no
    decoder. `options` are those of `from_generator`. Raises UsageError without the library.
    """
    datasets = imported("datasets", "to_hf")
    types = source.features
    kinds = {name: kind_of_files(source, name) for name in source.members if name in types}
    if "data" in types:
        kinds["data"] = kind_of_files(source)
    media = {name: kind for name, kind in kinds.items() if kind in _FEATURES}
    texts = [name for name, kind in kinds.items() if kind == "text" and source.is_decoded]
    exts = {name: "ext" if name == "data" else f"{name}_ext" for name in kinds}
    files = {name: (_MEDIA, exts[name]) for name in media} | {name: (_TEXT, exts[name]) for name in texts}
    shape = _Shape(tuple(types), files)
    plain = {name: _plain(type) for name, type in types.items()}
    plain |= dict.fromkeys(media, STORAGE) | dict.fromkeys(texts, pa.string())
    features = datasets.Features.from_arrow_schema(pa.schema(list(plain.items())))
    for name, labels in {**_labels(shards, types), **_labels_of_recipe(source)}.items():
        features[name] = datasets.ClassLabel(names=labels)
    if not len(source) and not streaming:  # of which `from_generator` makes none
        found = datasets.Dataset.from_dict({name: [] for name in features}, features)
    else:
        read = source.undecoded(*(("key", *map(exts.__getitem__, media)) if media else ()))
        version = "" if streaming else _version(shards)
        is_shared_out = streaming or options.get("num_proc")
        parts = read.shards if is_shared_out and len(read) else [read]  # else in the order of the source
        given = {"shards": parts, "shape": replace(shape, version=version)}
        library = datasets.IterableDataset if streaming else datasets.Dataset
        found = library.from_generator(_rows, features=features, gen_kwargs=given, **options)
    for name, kind in media.items():
        found = found.cast_column(name, getattr(datasets, _FEATURES[kind])())
    return found


def _rows(shards: Sequence[Source], shape: _Shape) -> Iterator[dict[str, Any]]:
    """`shards` is a list, of which workers of that library take different ones."""
    for shard in shards:
        for sample in shard:
            row = {name: sample.get(name) for name in shape.names}
            for name, (becomes, ext) in shape.files.items():
                if (content := row[name]) is None:
                    continue
                if becomes == _TEXT:
                    row[name] = content.decode("utf-8-sig", "replace")
                else:
                    row[name] = {"bytes": content, "path": f"{sample['key']}.{sample[ext]}"}
            yield row


def _plain(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


def _labels(shards: ShardSet, types: Mapping[str, pa.DataType]) -> dict[str, list[str]]:
    """The names of classes of columns that Arrow has as dictionaries of text, pandas as categories: all that the
    metadata have, sorted, so that each part of a dataset has the same."""
    wanted = [name for name, type in types.items() if pa.types.is_dictionary(type) and _is_text(type.value_type)]
    if not wanted:
        return {}
    table = dataset_of(shards, pa.schema([(name, types[name]) for name in wanted])).to_table()
    found = {name: pc.unique(table[name].cast(pa.string())).drop_null().to_pylist() for name in wanted}
    return {name: sorted(labels) for name, labels in found.items() if 0 < len(labels) <= _MOST_LABELS}


def _labels_of_recipe(source: Source) -> dict[str, list[str]]:
    """The names of classes, of the columns that have one for each sample."""
    if source.recipe is None:
        return {}
    found = {}
    for leaf in source.recipe.features.columns:
        kind = getattr(leaf.feature, "feature", None) if isinstance(leaf.feature, Optional) else leaf.feature
        if isinstance(kind, ClassLabel) and kind.names and leaf.column in source.features:
            found[leaf.column] = list(kind.names)
    return found


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type))


def _version(shards: ShardSet) -> str:
    """Another one when a shard was made again: that library knows a dataset in its cache by what it is made with."""
    names = {*shards.names, *shards.tables}
    digest = hashlib.sha256()
    for info in sorted(shards.folder.listed(), key=lambda info: str(info["name"])):
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        if name in names:
            digest.update(f"{name} {info.get('size')} {version_of(info)}\n".encode())
    return digest.hexdigest()
