"""any2ds: from a list of URLs to a dataset.

from any2ds import download
download(url_list="urls.parquet", output_folder="dataset", output_format="webdataset")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from any2ds.errors import Any2dsError, IncompleteRun, RunError, UsageError
from any2ds.types import RunReport, Sample
from any2ds.version import __version__

if TYPE_CHECKING:
    from any2ds.api import download, finish, retry
    from any2ds.datasetcard import card
    from any2ds.declaration import transform
    from any2ds.overview import inspect
    from any2ds.records import parse_example
    from any2ds.reportpage import report
    from any2ds.verification import verify

__all__ = [
    "Any2dsError",
    "IncompleteRun",
    "RunError",
    "RunReport",
    "Sample",
    "UsageError",
    "__version__",
    "card",
    "download",
    "finish",
    "inspect",
    "parse_example",
    "report",
    "retry",
    "transform",
    "verify",
]

# No module may have the name of one of these: once imported, it would stand in its place.
_COMMANDS = {
    "card": "datasetcard",
    "download": "api",
    "finish": "api",
    "inspect": "overview",
    "parse_example": "records",
    "report": "reportpage",
    "retry": "api",
    "transform": "declaration",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    """The commands bring pyarrow with them, which a worker or `any2ds --help` should not have to wait for."""
    if name in _COMMANDS:
        return getattr(importlib.import_module(f"any2ds.{_COMMANDS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
