"""`any2ds recipes`: the recipes that are to be had, and the datasets that were built of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

from any2ds.config.recipes import RecipesOptions
from any2ds.core.errors import printable, redacted
from any2ds.core.text import rows
from any2ds.dataset.places import built, data_dir, names_in
from any2ds.recipes.recipe import Recipe
from any2ds.recipes.registry import found_recipes
from any2ds.storage.stores import Stores


def lines(options: RecipesOptions) -> Iterator[str]:
    """For the terminal. Raises UsageError for a module or a store that there is not."""
    recipes = found_recipes(options.imports or ())
    for found in recipes:
        yield printable(f"{found.name}  ({found.origin})")
        if found.problem:
            yield printable(f"    cannot be loaded: {found.problem}")
        if found.kind is not None:
            yield from _about(found.kind)
    if not recipes:
        yield "no recipes here: any2ds new flowers makes one, and --imports=MODULE finds those of a module"
    stores = Stores(options.storage_options)
    place = options.data_dir or data_dir()
    made = [each for name in sorted(names_in(place, stores)) for each in built(place, name, stores)]
    if made:
        yield ""
        yield f"built in {redacted(place)}:"
    for each in made:
        splits = ", ".join(f"{split.name} {rows(split.rows)}" for split in each.recipe.splits)
        yield printable(f"    {each.recipe.full_name}  {splits}  {os.path.relpath(each.folder, place)}")


def _about(kind: type[Recipe]) -> Iterator[str]:
    about = (inspect.getdoc(kind) or "").split("\n")[0] if kind.__doc__ else ""
    if about:
        yield printable(f"    {about}")
    versions = ", ".join([kind.VERSION, *kind.SUPPORTED_VERSIONS])
    configs = ", ".join(config.name for config in kind.CONFIGS)
    yield printable(f"    version {versions}" + (f"; configs {configs}" if configs else ""))
