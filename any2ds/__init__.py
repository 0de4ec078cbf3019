"""any2ds: from a list of URLs to a dataset.

from any2ds import download
download(url_list="urls.parquet", output_folder="dataset", output_format="webdataset")
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from any2ds.core.version import __version__ as __version__

# Module -> its public names. Most bring pyarrow with them, which a worker or `any2ds --help` should not have to wait
# for; what type checkers know of them is in `__init__.pyi`.
_PUBLIC = {
    "core.declaration": "transform",
    "core.errors": "Any2dsError RunError UsageError",
    "core.reports": "IncompleteRun RunReport",
    "core.samples": "Sample",
    "describe.card.card": "card",
    "dataset.add_columns": "add_columns",
    "dataset.features": "Audio Bytes ClassLabel Image Optional Scalar Tensor Text Video parse_bool",
    "describe.inspect": "inspect",
    "load.collate": "collate",
    "load.load": "load",
    "load.splits": "split",
    "describe.report.report": "report",
    "dataset.verify.verify": "verify",
    "estimate.estimate": "estimate",
    "recipes.build": "build",
    "recipes.info": "Info",
    "recipes.recipe": "Recipe RecipeConfig UrlRows",
    "run.download": "download",
    "run.retry": "retry",
    "writers.example_records": "parse_example",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted([*_MODULES, "Sequence", "__version__", "beam"])  # noqa: PLE0605


class _Package(ModuleType):
    """Keeps the name of a command where a room has the same: an import of the room would bind it to the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    """The public names: what completion offers."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name == "beam":
        return importlib.import_module("any2ds.beam")
    if name == "Sequence":  # which has another name where it is defined
        return importlib.import_module("any2ds.dataset.features").Sequence_
    if name in _MODULES:
        return getattr(importlib.import_module(f"any2ds.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
