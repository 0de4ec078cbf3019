"""Finds a recipe: by the path of its code, among those that were imported, or by the entry points of other packages."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from any2ds.core import suggestions
from any2ds.core.errors import UsageError, error_text
from any2ds.core.paths import expanded
from any2ds.recipes.recipe import Recipe, registered

log = logging.getLogger(__name__)

GROUP = "any2ds.recipes"
_REFERENCE = re.compile(r"(?P<name>[^/:]+)(?:/(?P<config>[^/:]+))?(?::(?P<version>[\d.*]+))?")


@dataclass(frozen=True, slots=True)
class Found:
    """A recipe that there is."""

    name: str
    origin: str  # where it was found, for a person
    kind: type[Recipe] | None = None  # None: it is not loaded
    problem: str = ""  # why it cannot be loaded


def recipe_of(given: Any, imports: Iterable[str] = ()) -> Recipe:
    """The recipe that is named, with its config and version; a class or an object stands for itself.

    Raises UsageError for one that there is not, and whatever its code raises when it is loaded.
    """
    load_imports(imports)
    if isinstance(given, Recipe):
        return given
    if isinstance(given, type) and issubclass(given, Recipe):
        return given()
    if not isinstance(given, str):
        raise UsageError(f"a recipe is a name, a path or a class, not {type(given).__name__}")
    if (by_path := _by_path(given)) is not None:
        kind, config, version = by_path
        return kind(config, version)
    match = _REFERENCE.fullmatch(given)
    if match is None:
        raise UsageError(f"no recipe {given!r}: expected name, name/config, name:1.0.0, or the path of its file")
    return _by_name(match["name"])(match["config"], match["version"])


def load_imports(names: Iterable[str]) -> None:
    """Import modules, which define recipes. Raises UsageError for one that there is not."""
    for name in names:
        try:
            if os.getcwd() not in sys.path and "" not in sys.path:
                sys.path.insert(0, os.getcwd())  # as `python` has it
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"--imports={name}: {error}") from error


def found_recipes(imports: Iterable[str] = ()) -> list[Found]:
    """All that are to be had without a path, and those in the working folder, by name."""
    load_imports(imports)
    found = {point.name: _of_entry_point(point) for point in _entry_points().values()}
    for path in sorted(Path().glob("*/")):
        if (file := _file_in(path)) is not None and _mentions_recipe(file):
            found.setdefault(path.name, Found(path.name, f"./{file}"))
    for path in sorted(Path().glob("*.py")):
        if _mentions_recipe(path):
            found.setdefault(path.stem, Found(path.stem, f"./{path}"))
    for name, kind in registered().items():
        found.setdefault(name, Found(name, kind.__module__, kind))
    return [found[name] for name in sorted(found)]


def _mentions_recipe(path: Path) -> bool:
    try:
        return re.search(r"\(\s*(any2ds\.)?Recipe\s*\)", path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False


def _of_entry_point(point: EntryPoint) -> Found:
    origin = f"package {point.dist.name}" if point.dist else point.value
    try:
        return Found(point.name, origin, _loaded(point))
    except Exception as error:  # of other people's code
        return Found(point.name, origin, problem=error_text(error))


def _loaded(point: EntryPoint) -> type[Recipe]:
    """Raises UsageError for what is no recipe, and whatever its code raises."""
    kind = point.load()
    if not isinstance(kind, type) or not issubclass(kind, Recipe):
        raise UsageError(f"the entry point {point.name} of {GROUP} is no recipe: {point.value}")
    return kind


def _entry_points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _by_name(name: str) -> type[Recipe]:
    if name in registered():
        return registered()[name]
    if (point := _entry_points().get(name)) is not None:
        return _loaded(point)
    if "." in name:  # a module
        try:
            return _only_one(_import_of(name), name)
        except ModuleNotFoundError as error:
            raise UsageError(f"no recipe {name!r}: {error}") from error
    known = sorted({*registered(), *_entry_points()})
    hint = suggestions.for_name(name, known) or "any2ds recipes lists them; a file is given by its path, ./flowers.py"
    raise UsageError(f"no recipe {name!r}: {hint}")


def _import_of(name: str) -> ModuleType:
    load_imports([name])
    return sys.modules[name]


def _by_path(given: str) -> tuple[type[Recipe], str | None, str | None] | None:
    """For a path, with a config and a version behind it; None if it is none."""
    text, colon, version = given.rpartition(":")
    if not colon or not re.fullmatch(r"[\d.*]+", version):
        text, version = given, ""
    path, config = expanded(text), None
    if not path.exists() and path.parent.exists() and path.parent != Path("."):
        path, config = path.parent, path.name
    if path.is_dir():
        file = _file_in(path)
        if file is None:
            if config is None and (os.sep in text or text.startswith(".")):
                raise UsageError(f"{text}: no recipe in this folder: expected {path.name}.py or recipe.py in it")
            return None
    elif path.suffix == ".py" and path.is_file():
        file = path
    else:
        if text.endswith(".py"):
            raise UsageError(f"{text}: no such file")
        return None
    return _only_one(load_file(file), str(file)), config, version or None


def _file_in(folder: Path) -> Path | None:
    names = [f"{folder.resolve().name}.py", "recipe.py"]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def load_file(path: Path) -> ModuleType:
    """The module in a file, which is run; once for each file."""
    path = path.resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and getattr(module, "__name__", "") != "__main__":
            return module
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as pickle finds it
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # what the recipe imports beside it, also in worker processes
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _only_one(module: ModuleType, where: str) -> type[Recipe]:
    kinds = list(_recipes_in(module))
    if len(kinds) != 1:
        names = ", ".join(kind.name() for kind in kinds)
        what = f"defines several recipes ({names}): a file has one" if kinds else "defines no recipe"
        raise UsageError(f"{where}: {what}")
    return kinds[0]


def _recipes_in(module: ModuleType) -> Iterator[type[Recipe]]:
    for kind in vars(module).values():
        is_recipe = isinstance(kind, type) and issubclass(kind, Recipe) and not inspect.isabstract(kind)
        if is_recipe and kind.__module__ == module.__name__ and not kind.__name__.startswith("_"):
            yield kind
