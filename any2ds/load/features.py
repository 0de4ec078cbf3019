"""Samples of a recipe's dataset by the names of its features, as the recipe has given them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from any2ds.core.kinds import kind_of_ext
from any2ds.core.samples import member_column
from any2ds.dataset.features import Features, Optional, Scalar, Sequence_, Tensor
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.load import decode


@dataclass(frozen=True)
class RecipeFeatures:
    """The facts about a recipe that `load` needs. Small, and can be pickled."""

    recipe: RecipeFile
    has_members: bool  # whether further files are members, whose extension is a part of their name
    of_urls: bool = False  # whether each file of a sample has a URL of its own

    def __reduce__(self) -> tuple[type[RecipeFeatures], tuple[Any, ...]]:
        return RecipeFeatures, (self.recipe, self.has_members, self.of_urls)

    @cached_property
    def features(self) -> Features:
        return self.recipe.features

    @cached_property
    def channels(self) -> dict[str, int]:
        """`data`, or the names of files with URLs of their own -> the channels of images that have others than 3."""
        leaves = self.features.files if self.of_urls else self.features.files[:1]
        found = {leaf.column if self.of_urls else "data": _channels(leaf.plain) for leaf in leaves}
        return {name: channels for name, channels in found.items() if channels != 3}

    def known(self) -> list[str]:
        """The names that `columns` may have besides those of the metadata."""
        tops = list(self.features.tree.parts)
        return [*tops, *(leaf.column for leaf in (*self.features.columns, *self.features.files))]

    def stored(self, wanted: Sequence[str] | None) -> tuple[str, ...] | None:
        """The stored columns to be read for the columns that are wanted; None: all."""
        if wanted is None:
            return None
        leaves = (*self.features.columns, *self.features.files)
        found: list[str] = []
        for name in wanted:
            own = [leaf for leaf in leaves if name in (leaf.column, leaf.path[0])]
            if any(leaf in self.features.files[1:] for leaf in own) and self.has_members and not self.of_urls:
                return None
            data = () if self.of_urls else self.features.files[:1]
            found += ["data" if leaf in data else leaf.column for leaf in own] or [name]
        return tuple(dict.fromkeys(found))

    def types(self, stored: Mapping[str, pa.DataType], wanted: Sequence[str] | None) -> dict[str, pa.DataType]:
        """The columns of a sample with Arrow's types: dicts are structs, tensors lists of lists, files bytes.

        `stored` are those of its shard.
        """
        leaves = (*self.features.columns, *self.features.files)
        own = {leaf.column: _arrow_type(leaf.feature) for leaf in leaves}
        found: dict[str, Any] = {name: type for name, type in stored.items() if name not in own}
        for leaf in leaves:
            place = found
            for name in leaf.path[:-1]:
                place = place.setdefault(name, {})
            place[leaf.path[-1]] = own[leaf.column]
        if wanted is None:
            return {name: _struct(type) for name, type in found.items()}
        return {name: _struct(found.get(name, own.get(name, stored.get(name)))) for name in wanted}

    def __call__(
        self, sample: dict[str, Any], wanted: Sequence[str] | None, decodes: bool, shard: Callable[[], str] = str
    ) -> dict[str, Any]:
        """A sample as its shard has it, with the features in the place of the columns that hold them.

        With `decodes` further files become arrays and texts, as its `data` have; `shard` describes that of the sample.
        Raises DamagedShard.
        """
        features = self.features
        found = dict(sample)
        flat = {leaf.column: found.pop(leaf.column) for leaf in features.columns if leaf.column in found}
        for number, leaf in enumerate(features.files):
            if self.of_urls and leaf.column in found:  # decoded already, and none of `data`, which are the first there
                flat[leaf.column] = found.pop(leaf.column)
                continue
            if not number:
                if "data" in sample and not self.of_urls:
                    flat[leaf.column] = sample["data"]
                continue
            name = leaf.column if leaf.column in found else self._member(leaf.column, found)
            if name is not None:
                content = found.pop(name)
                if decodes and content is not None:
                    content = _decoded(content, name, leaf, sample.get("key"), shard)
                flat[leaf.column] = content
            elif wanted is None or leaf.is_among(wanted):
                flat[leaf.column] = None
        nested = features.decoded(flat)
        found.update(nested)
        if wanted is None:
            return found
        found.update({name: _at(nested, name) for name in wanted if "/" in name})
        return {name: found.get(name) for name in wanted}

    @staticmethod
    def _member(column: str, sample: Mapping[str, Any]) -> str | None:
        beginning = re.escape(member_column(column.replace("/", ".")))
        return next((name for name in sample if re.fullmatch(rf"{beginning}_[A-Za-z0-9]+", name)), None)


def _arrow_type(feature: Any) -> pa.DataType:
    """The type of a value as `Feature.decode` gives it, with its arrays as lists."""
    if isinstance(feature, Optional):
        return _arrow_type(feature.feature)
    if isinstance(feature, Sequence_):
        return pa.list_(_arrow_type(feature.feature))
    if isinstance(feature, Tensor):
        found = Scalar(feature.dtype).arrow_type()
        for _ in feature.shape:
            found = pa.list_(found)
        return found
    return feature.arrow_type()


def _struct(type: Any) -> pa.DataType:
    """A dict of types is that of a dict of values."""
    if isinstance(type, dict):
        return pa.struct([(name, _struct(part)) for name, part in type.items()])
    return type


def _at(nested: Mapping[str, Any], path: str) -> Any:
    value: Any = nested
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _channels(feature: Any) -> int:
    return int(getattr(feature, "channels", 3) or 3)


def _decoded(content: bytes, name: str, leaf: Any, key: Any, shard: Callable[[], str]) -> Any:
    """`name` is that of the column of a file. Raises DamagedShard."""
    ext = name.rpartition("_")[2]
    kind = kind_of_ext(ext)
    if kind not in ("image", "audio", "video"):
        kind = {"Image": "image", "Audio": "audio", "Video": "video"}.get(type(leaf.plain).__name__, kind)
    found = decode.decoded_file(content, kind, decode.file_name({"key": key}, ext), _channels(leaf.plain), shard)
    return found[0] if kind == "audio" else found
