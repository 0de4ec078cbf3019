"""Parts for tests of any2ds and of its plugins: a server with scripted faults, and contracts of the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from any2ds.testing.recipes import RecipeTestCase as RecipeTestCase


def __getattr__(name: str) -> Any:
    if name == "RecipeTestCase":
        from any2ds.testing.recipes import RecipeTestCase

        return RecipeTestCase
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
