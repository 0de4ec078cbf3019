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
    from any2ds.dataset.card.card import card
    from any2ds.dataset.inspect import inspect
    from any2ds.dataset.load.load import load
    from any2ds.dataset.report.report import report
    from any2ds.dataset.verify.verify import verify
    from any2ds.forecast.estimate import estimate
    from any2ds.run.download import download
    from any2ds.run.finish import finish
    from any2ds.run.retry import retry
    from any2ds.writers.example_records import parse_example

__all__ = [
    "Any2dsError",
    "IncompleteRun",
    "RunError",
    "RunReport",
    "Sample",
    "UsageError",
    "__version__",
    "beam",
    "card",
    "download",
    "estimate",
    "finish",
    "inspect",
    "load",
    "parse_example",
    "report",
    "retry",
    "transform",
    "verify",
]

_COMMANDS = {
    "card": "dataset.card.card",
    "download": "run.download",
    "estimate": "forecast.estimate",
    "finish": "run.finish",
    "inspect": "dataset.inspect",
    "load": "dataset.load.load",
    "parse_example": "writers.example_records",
    "report": "dataset.report.report",
    "retry": "run.retry",
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
    if name in _COMMANDS:
        return getattr(importlib.import_module(f"any2ds.{_COMMANDS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
