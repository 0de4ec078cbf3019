"""any2ds: from a list of URLs to a dataset.

from any2ds import download
download(url_list="urls.parquet", output_folder="dataset", output_format="webdataset")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import Any2dsError, RunError, UsageError
from any2ds.core.reports import IncompleteRun, RunReport
from any2ds.core.samples import Sample
from any2ds.core.version import __version__

if TYPE_CHECKING:
    from any2ds import beam
    from any2ds.core.declaration import transform
    from any2ds.dataset.features import (
        Audio,
        Bytes,
        ClassLabel,
        Image,
        Optional,
        Scalar,
        Tensor,
        Text,
        Video,
        parse_bool,
    )
    from any2ds.dataset.features import Sequence_ as Sequence
    from any2ds.dataset.verify.verify import verify
    from any2ds.describe.card.card import card
    from any2ds.describe.inspect import inspect
    from any2ds.describe.report.report import report
    from any2ds.forecast.estimate import estimate
    from any2ds.loading.load import load
    from any2ds.loading.splits import split
    from any2ds.recipes.build import build
    from any2ds.recipes.info import Info
    from any2ds.recipes.recipe import Recipe, RecipeConfig, UrlRows
    from any2ds.run.download import download
    from any2ds.run.finish import finish
    from any2ds.run.retry import retry
    from any2ds.writers.example_records import parse_example

__all__ = [
    "Any2dsError",
    "Audio",
    "Bytes",
    "ClassLabel",
    "Image",
    "IncompleteRun",
    "Info",
    "Optional",
    "Recipe",
    "RecipeConfig",
    "RunError",
    "RunReport",
    "Sample",
    "Scalar",
    "Sequence",
    "Tensor",
    "Text",
    "UrlRows",
    "UsageError",
    "Video",
    "__version__",
    "beam",
    "build",
    "card",
    "download",
    "estimate",
    "finish",
    "inspect",
    "load",
    "parse_bool",
    "parse_example",
    "report",
    "retry",
    "split",
    "transform",
    "verify",
]

_FEATURES = ("Audio", "Bytes", "ClassLabel", "Image", "Optional", "Scalar", "Tensor", "Text", "Video", "parse_bool")
_COMMANDS = {
    **dict.fromkeys(_FEATURES, "dataset.features"),
    "Info": "recipes.info",
    "Recipe": "recipes.recipe",
    "RecipeConfig": "recipes.recipe",
    "UrlRows": "recipes.recipe",
    "build": "recipes.build",
    "card": "describe.card.card",
    "download": "run.download",
    "estimate": "forecast.estimate",
    "finish": "run.finish",
    "inspect": "describe.inspect",
    "load": "loading.load",
    "parse_example": "writers.example_records",
    "report": "describe.report.report",
    "retry": "run.retry",
    "split": "loading.splits",
    "transform": "core.declaration",
    "verify": "dataset.verify.verify",
}


def __dir__() -> list[str]:
    """The public names: what completion offers."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """The commands bring pyarrow with them, which a worker or `any2ds --help` should not have to wait for."""
    if name == "beam":
        return importlib.import_module("any2ds.beam")
    if name == "Sequence":  # which has another name where it is defined
        return importlib.import_module("any2ds.dataset.features").Sequence_
    if name in _COMMANDS:
        return getattr(importlib.import_module(f"any2ds.{_COMMANDS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
