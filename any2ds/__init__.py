"""any2ds: from a list of URLs to a dataset.

from any2ds import download
download(url_list="urls.parquet", output_folder="dataset", output_format="webdataset")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from any2ds.errors import Any2dsError, IncompleteRun, RunError, UsageError
from any2ds.types import RunReport
from any2ds.version import __version__

if TYPE_CHECKING:
    from any2ds.api import download

__all__ = ["Any2dsError", "IncompleteRun", "RunError", "RunReport", "UsageError", "__version__", "download"]


def __getattr__(name: str) -> Any:
    """`download` brings pyarrow with it, which a worker or `any2ds --help` should not have to wait for."""
    if name == "download":
        from any2ds.api import download

        return download
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
