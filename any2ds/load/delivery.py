"""Prepares a stored sample when it is given: its file is compared and decoded, and nulls are filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from any2ds.load import hashes
from any2ds.load.decode import AS_STORED, Sound, decoded
from any2ds.load.features import RecipeFeatures

CLASS = "cls"
"""The extension of the file that has the number of a class, in datasets of webdataset."""


@dataclass(frozen=True)
class Delivery:
    """The steps between a sample as it is stored and what is given. Small, and can be pickled."""

    columns: tuple[str, ...] | None = None  # that were asked for; None: all
    members: tuple[str, ...] = ()  # columns of the files of a sample that has several
    decode: bool = False  # whether files become arrays and texts
    sound: Sound = AS_STORED
    features: RecipeFeatures | None = None  # of the recipe that has made the dataset
    hashes: tuple[str, ...] = ()  # columns with hashes that files are compared with
    has_classes: bool = False  # whether `cls` is the number of a class as text, as webdataset writes it
    data_names: tuple[str, ...] = ()  # extensions by which `columns` name the file of a sample
    fill: Mapping[str, Any] = field(default_factory=dict)  # column -> what stands in the place of a null
    transform: Callable[[dict[str, Any]], Any] | None = None  # the user's function, whose result is given at last

    @cached_property
    def asked(self) -> tuple[str, ...] | None:
        """The columns that were asked for, as they are stored."""
        return self.columns if self.features is None else self.features.stored(self.columns)

    @cached_property
    def stored(self) -> tuple[str, ...] | None:
        """The columns that have to be read. None: all."""
        if self.asked is None or not self.is_needed:
            return self.asked
        kinds: tuple[str, ...] = ("data", "ext") if self.data_names else ()
        if self.decode or self.hashes:  # the kind of a file is that of its extension
            kinds += ("ext", "key", *(f"{member}_ext" for member in self.members if member in self.asked))
            kinds += hashes.columns(self.hashes, self.members) if self.hashes else ()
        return tuple(dict.fromkeys((*(name for name in self.asked if name not in self.data_names), *kinds)))

    @cached_property
    def is_needed(self) -> bool:
        """Whether a sample is another one than what is stored."""
        has_files = self.asked is None or not {"data", *self.members}.isdisjoint(self.asked)
        steps = (self.decode, self.features, self.has_classes, self.data_names, self.fill, self.transform)
        return any(steps) or bool(self.hashes and has_files)

    def __call__(self, sample: dict[str, Any], shard: Callable[[], str]) -> dict[str, Any]:
        """All steps but `transform`. `shard` describes the one of the sample, for messages. Raises DamagedShard."""
        if self.hashes:
            hashes.compare(sample, self.hashes, self.members)
        if self.has_classes and sample.get(CLASS) is not None:
            sample[CLASS] = int(sample[CLASS])
        if self.decode:
            channels = self.features.channels if self.features is not None else {}
            sample = decoded(sample, self.members, channels, shard, self.sound)
        if self.features is not None:
            rate = {"rate": sample["rate"]} if self.columns is not None and "rate" in sample else {}
            sample = self.features(sample, self.columns, self.decode, shard) | rate
        elif self.columns is not None:
            sample = self._chosen(sample, self.columns)
        for name, value in self.fill.items():
            if name in sample and sample[name] is None:
                sample[name] = value
        return sample

    def _chosen(self, sample: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
        """The columns that were asked for, and the rates of sound among them."""
        for name in self.data_names:
            sample[name] = sample["data"] if sample["ext"] == name else sample.get(name)
        found = {name: sample[name] for name in columns}
        if "rate" in sample and not {"data", *self.data_names}.isdisjoint(found):
            found["rate"] = sample["rate"]
        for member in self.members:
            if member in found and (rate := sample.get(f"{member}_rate")) is not None:
                found[f"{member}_rate"] = rate
        return found
