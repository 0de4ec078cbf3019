"""`.any2ds/recipe`: what a recipe says of its dataset, and the files for TensorFlow Datasets that are made from it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from any2ds.config.options import OutputOptions
from any2ds.core import layout, text
from any2ds.core.errors import UsageError
from any2ds.dataset import tfds
from any2ds.dataset.features import Features
from any2ds.storage.folders import OutputFolder

if TYPE_CHECKING:
    from any2ds.dataset.shards import ShardEntry


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a dataset, which has shards of its own."""

    name: str
    rows: int  # that it was made of
    first_shard: int
    shards: int
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason -> samples that the recipe has left out

    @property
    def numbers(self) -> range:
        """Its shards."""
        return range(self.first_shard, self.first_shard + self.shards)


@dataclass(frozen=True)
class RecipeFile:
    """Content of `.any2ds/recipe`."""

    name: str
    version: str
    features_spec: Mapping[str, Any]
    splits: tuple[Split, ...]
    config: str = ""  # "" for a recipe without configs
    is_default: bool = True  # whether it is the config that the name alone stands for
    config_description: str = ""
    description: str = ""
    homepage: str = ""
    license: str = ""
    citation: str = ""
    tags: tuple[str, ...] = ()
    supervised_keys: Any = None  # nested lists and dicts of names
    release_notes: Mapping[str, str] = field(default_factory=dict)
    download_bytes: int = 0  # of the files that the recipe has downloaded by itself
    module: str = ""  # that defines it
    disable_shuffling: bool = False
    trial: int | None = None  # of each split only so many samples were made, to try the recipe
    state: str = ""  # changes with the code, features and options that it was made with

    def __reduce__(self) -> tuple[Callable[[bytes], RecipeFile], tuple[bytes]]:
        return RecipeFile.parse, (self.to_json(),)

    @cached_property
    def features(self) -> Features:
        """Raises ValueError if they cannot be understood."""
        try:
            return Features.of_spec(self.features_spec)
        except (KeyError, TypeError, UsageError) as error:
            raise ValueError(f"its features cannot be understood: {error}") from error

    @property
    def full_name(self) -> str:
        """`flowers/small:1.1.0`."""
        return f"{self.name}{f'/{self.config}' if self.config else ''}:{self.version}"

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def parse(cls, content: bytes) -> RecipeFile:
        """Raises ValueError if `to_json` has not written it."""
        try:
            found = orjson.loads(content)
            known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
            known["splits"] = tuple(Split(**split) for split in found["splits"])
            known["tags"] = tuple(found["tags"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no description of a recipe: {type(error).__name__}: {error}") from error

    @classmethod
    def of(cls, output: OutputFolder) -> RecipeFile | None:
        """Recipe of a dataset; None if no recipe has made it. Raises ValueError if it cannot be understood."""
        content = output.read(layout.RECIPE_FILE)
        return None if content is None else cls.parse(content)

    @classmethod
    def found(cls, output: OutputFolder, names: Container[str]) -> RecipeFile | None:
        """Recipe of a dataset with files of these names; None as well if it cannot be understood."""
        with suppress(ValueError):
            return cls.of(output) if layout.RECIPE_FILE in names else None
        return None

    def tfds_files(self, entries: Sequence[ShardEntry], options: OutputOptions) -> Mapping[str, bytes]:
        """Name -> content of the files for TFDS, as `tfds.files`: with all features, splits and names of classes."""
        if not tfds.names_for(options):
            return {}
        splits = {split.name: self._entries_of(split, entries) for split in self.splits}
        info = {
            **tfds.dataset_info(self.name, self.version, splits, entries, options),
            "description": self.description,
            "citation": self.citation,
            "moduleName": self.module,
            "disableShuffling": self.disable_shuffling,
            "downloadSize": str(self.download_bytes),
            "releaseNotes": dict(self.release_notes),
            **({"configName": self.config, "configDescription": self.config_description} if self.config else {}),
            **({"configTags": list(self.tags)} if self.tags else {}),
            **({"location": {"urls": [self.homepage]}} if self.homepage else {}),
            **({"redistributionInfo": {"license": self.license}} if self.license else {}),
            **({"supervisedKeys": _nest(self.supervised_keys)} if self.supervised_keys else {}),
        }
        labels = {
            name: "".join(f"{each}\n" for each in names).encode() for name, names in self.features.labels().items()
        }
        return {
            **labels,
            layout.TFDS_FEATURES: tfds.to_json(self.features.tfds()),
            layout.TFDS_INFO: tfds.to_json(info),
        }

    @property
    def end(self) -> int:
        """The number after that of the last shard of a split; behind it are those of retries, of one split each."""
        return max((split.numbers.stop for split in self.splits), default=0)

    def _entries_of(self, split: Split, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
        """The shards of a split, and those of retries of its samples."""
        numbers = split.numbers
        return [
            entry
            for entry in entries
            if entry.shard_id in numbers or (entry.shard_id >= self.end and split.name in entry.splits)
        ]


def trial_text(most: int) -> str:
    """For a person: that only `most` samples of each split were made."""
    return f"a trial, with no more than {text.rows(most).replace('row', 'sample')} of each split"


def _nest(keys: Any) -> dict[str, Any]:
    """As `SupervisedKeys`: two or three names, or nested tuples and dicts."""
    if all(isinstance(key, str) for key in keys) and len(keys) == 2:
        return {"input": keys[0], "output": keys[1]}
    return {"tuple": {"items": [_part(key) for key in keys]}}


def _part(key: Any) -> dict[str, Any]:
    if isinstance(key, str):
        return {"featureKey": key}
    if isinstance(key, Mapping):
        return {"dict": {"dict": {name: _part(each) for name, each in key.items()}}}
    return {"tuple": {"items": [_part(each) for each in key]}}
