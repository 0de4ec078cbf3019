"""Common parts of the dataset classes of other libraries: the library itself, and of which kind the files are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import UsageError
from any2ds.core.kinds import kind_of_ext

if TYPE_CHECKING:
    from any2ds.load.source import Source


def imported(library: str, wanted: str) -> Any:
    """Raises UsageError, which says what to install."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise UsageError(f"{wanted} needs a library that is not installed: pip install {library}") from error


def kind_of_files(source: Source, member: str = "") -> str:
    """The kind of the files of samples, or of a member, one of `kinds.KINDS`; "" if they differ, or are no media."""
    kinds = {kind_of_ext(ext) for ext in source.extensions_of(member)}
    return kinds.pop() if len(kinds) == 1 else ""
