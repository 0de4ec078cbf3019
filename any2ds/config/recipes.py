"""The options of the commands on recipes: build, new and recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from any2ds.config.declare import option
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import (
    FetchOptions,
    InputOptions,
    OutputOptions,
    RunOptions,
    ShareOptions,
    StorageOptions,
    WatchOptions,
)
from any2ds.config.parsers import boolean, integer, names, optional, part, path, stores, text


def recipe(value: Any) -> Any:
    """A name or a path; from Python also a class or an object."""
    return str(value) if hasattr(value, "__fspath__") else text(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Which recipe"""

    DECIDED: ClassVar[Sequence[tuple[Sequence[Any], str]]] = (
        (
            (InputOptions,),
            "a recipe says in its splits which lists it takes, and how; --max_examples_per_split=N takes the first N"
            " samples of each",
        ),
        ((ShareOptions,), "machines share a build with --distributor=pyspark, ray or beam"),
    )

    recipe: Any = option(
        "name[/config][:version] of a recipe, or the path of its file", recipe, wording="flowers", task="Which recipe"
    )
    data_dir: str | None = option(
        "folder for datasets, local or remote",
        optional(path),
        None,
        "ANY2DS_DATA_DIR, else ~/any2ds",
        task="Which recipe",
    )
    imports: tuple[str, ...] | None = option("modules that define recipes", optional(names), None, task="Which recipe")
    overwrite: bool = option("make a dataset anew that is there already", boolean, False, task="Which recipe")
    max_examples_per_split: int | None = option(
        "the first N samples of each split only", optional(integer(1)), None, "all", task="Which recipe"
    )
    register_checksums: bool = option(
        "write the checksums of downloads to the recipe's checksums.tsv", boolean, False, task="What it downloads"
    )
    download_dir: str | None = option(
        "folder for what a recipe downloads and unpacks",
        optional(path),
        None,
        "recipes in the cache folder",
        task="What it downloads",
    )
    manual_dir: str | None = option(
        "folder with what was downloaded by hand",
        optional(path),
        None,
        "manual/NAME in data_dir",
        task="What it downloads",
    )


@dataclass(frozen=True, slots=True)
class BuildOutputOptions(OutputOptions):
    """What is written"""

    output_format: str = option(
        "webdataset, parquet, files, tfrecord or arrayrecord", part("writers"), "webdataset", task="The dataset"
    )


@dataclass(frozen=True, slots=True)
class NewOptions:
    """What is made"""

    name: str = option("name of the recipe, which is that of its folder", text, wording="flowers")
    from_list: str | None = option("list of URLs whose columns become the features: urls.parquet", optional(path), None)
    folder: str = option("folder in which that of the recipe is made", path, ".")


@dataclass(frozen=True, slots=True)
class RecipesOptions:
    """Which recipes"""

    imports: tuple[str, ...] | None = option("modules that define recipes", optional(names), None)
    data_dir: str | None = option(
        "folder for datasets, which are listed as well", optional(path), None, "ANY2DS_DATA_DIR, else ~/any2ds"
    )
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()


BUILD_GROUPS: tuple[Any, ...] = (
    BuildOptions,
    BuildOutputOptions,
    StorageOptions,
    *MEDIA_GROUPS,
    FetchOptions,
    RunOptions,
    WatchOptions,
)
"""Those of `build`."""
