"""Whether a report was written by any2ds: only such a file may be replaced or removed."""

from __future__ import annotations

from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import OutputError
from any2ds.storage.folders import OutputFolder

_HEAD = 4096  # bytes in which a report has its mark
_MARKS = {"html": layout.REPORT_MARK, "md": b"| rows stored |", "json": b'"output_folder"'}


def is_others_report(output: OutputFolder) -> bool:
    """Whether there is a file named as the report that any2ds did not write. Raises what the file system raises."""
    try:
        with output.open(layout.REPORT_FILE) as page:
            return layout.REPORT_MARK not in page.read(_HEAD)
    except FileNotFoundError:
        return False


def refuse_others_file(path: Path, form: str, option: str) -> None:
    """Raises OutputError if the file at `path`, which `option` names, is not empty and no report of this form. Raises
    OSError if it cannot be read."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head and _MARKS[form] not in head:
        raise OutputError(
            f"{option}={path} is there already, and is no report that any2ds wrote: name another file, or remove it"
        )
