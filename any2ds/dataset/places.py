"""Where the datasets of recipes lie: `data_dir`/name/config/version, and how a name is looked up there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from any2ds.core import layout, suggestions
from any2ds.core.errors import OutputError, UsageError, redacted
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores

T = TypeVar("T")
Options = TypeVar("Options")

_NAME = re.compile(r"(?P<name>[A-Za-z]\w*)(?:/(?P<config>[A-Za-z0-9][\w.-]*))?(?::(?P<version>[\d.*]+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def data_dir() -> str:
    """The folder for datasets where none is named: `ANY2DS_DATA_DIR`, else ~/any2ds."""
    return os.environ.get("ANY2DS_DATA_DIR") or os.path.expanduser("~/any2ds")


default_data_dir = data_dir  # beside arguments of that name


@dataclass(frozen=True, slots=True)
class Built:
    """A dataset of a recipe that is complete."""

    folder: str
    recipe: RecipeFile


def is_name(given: str) -> bool:
    """Whether it may be the name of a recipe, and is no folder, but for that of the recipe's own code."""
    return _NAME.fullmatch(given) is not None and (not os.path.exists(given) or is_source(given))


def is_source(folder: str) -> bool:
    """Whether the code of a recipe lies there."""
    try:
        name = os.path.basename(os.path.abspath(folder))
    except FileNotFoundError:  # the working directory has been deleted
        return False
    return any(os.path.isfile(os.path.join(folder, file)) for file in (f"{name}.py", "recipe.py"))


def is_built(given: str, data_dir: str, stores: Stores | None = None) -> bool:
    """Whether it is the name of a recipe of which there is a dataset."""
    match = _NAME.fullmatch(given)
    return match is not None and any(built(data_dir, match["name"], stores))


def folder_of(given: str, data_dir: str, stores: Stores | None = None) -> str:
    """The folder of the dataset that `name[/config][:version]` stands for: of the first config, and the newest version.

    Raises OutputError if there is none.
    """
    match = _NAME.fullmatch(given)
    if match is None:
        raise UsageError(f"{given!r} is neither a folder nor name/config:version of a recipe")
    name, config, version = match["name"], match["config"], match["version"]
    found = list(built(data_dir, name, stores))
    shown = redacted(data_dir)
    if not found:
        known = sorted(names_in(data_dir, stores))
        hint = suggestions.for_name(name, known) if known else ""
        there = "is no dataset but the code of a recipe" if os.path.exists(given) else "is no folder"
        source = f".{os.sep}{name}" if is_source(name) else name
        raise OutputError(f"{given!r} {there}, and no dataset in {shown}: {hint or f'any2ds build {source} makes it'}")
    if config is not None:
        wanted = [each for each in found if each.recipe.config == config]
        problem = f"no config {config!r}: there are {', '.join(sorted({each.recipe.config for each in found} - {''}))}"
    else:
        wanted = [each for each in found if each.recipe.is_default]
        problem = f"not its first config: there are {', '.join(sorted({each.recipe.config for each in found}))}"
    if not wanted:
        raise OutputError(f"{given!r}: {shown} holds {problem}")
    fits = [each for each in wanted if version is None or _fits(each.recipe.version, version)]
    if not fits:
        versions = ", ".join(sorted(each.recipe.version for each in wanted))
        raise OutputError(f"{given!r}: {shown} holds no version {version}: there are {versions}")
    return max(fits, key=lambda each: tuple(map(int, each.recipe.version.split(".")))).folder


def located(wanted: Options, stores: Stores | None = None) -> Options:
    """The options of a command on a dataset, with the folder of it where `output_folder` is the name of a recipe.

    The name of another folder, and one of which nothing was built, stays as it is. Raises OutputError for a config or
    version of which there is no dataset.
    """
    options: Any = wanted
    given, place = options.output_folder, default_data_dir()
    if not (is_name(given) and (is_source(given) or is_built(given, place, stores))):
        return wanted
    return cast(Options, replace(options, output_folder=folder_of(given, place, stores)))


def of_place(open: Callable[[str, Stores], T], place: str, data_dir: str | None, stores: Stores) -> T:
    """Result of `open` for a folder, or for the folder of the recipe of this name (`data_dir=None`: the usual one).

    Raises what `open` raises, and OutputError if there is neither.
    """
    where = default_data_dir() if data_dir is None else data_dir
    if is_name(place):  # or a folder that is not there
        return open(folder_of(place, where, stores), stores)
    try:
        return open(place, stores)
    except OutputError:
        if not is_built(place, where, stores):
            raise
        return open(folder_of(place, where, stores), stores)


def built(data_dir: str, name: str, stores: Stores | None = None) -> Iterator[Built]:
    """The complete datasets of a recipe."""
    root = f"{data_dir.rstrip('/')}/{name}"
    for entry in names_in(root, stores):
        if _VERSION.fullmatch(entry):
            yield from _built(f"{root}/{entry}", stores)
            continue
        for version in names_in(f"{root}/{entry}", stores):
            if _VERSION.fullmatch(version):
                yield from _built(f"{root}/{entry}/{version}", stores)


def _built(folder: str, stores: Stores | None) -> Iterator[Built]:
    output = open_folder(folder, stores=stores)
    try:
        recipe = RecipeFile.of(output)
    except ValueError:
        return
    if recipe is not None and output.exists(layout.RUN_FILE) and not output.exists(layout.BUILDING_FILE):
        yield Built(folder, recipe)


def names_in(folder: str, stores: Stores | None) -> list[str]:
    """Names of what lies in a folder, but for hidden files; none if it is not there."""
    return [name for name in open_folder(folder, stores=stores).names() if name[:1] not in (".", "_")]


def _fits(version: str, wanted: str) -> bool:
    pattern = wanted.split(".")
    pattern += ["*"] * (3 - len(pattern)) if pattern[-1] == "*" else []
    return len(pattern) == 3 and all(each in ("*", own) for own, each in zip(version.split("."), pattern, strict=True))
