"""Whether the report in an output folder was written by any2ds: only that one may be replaced or removed."""

from __future__ import annotations

from any2ds.core import layout
from any2ds.storage.folders import OutputFolder


def is_others_report(output: OutputFolder) -> bool:
    """Whether there is a file named as the report that any2ds did not write. Raises what the file system raises."""
    try:
        with output.open(layout.REPORT_FILE) as page:
            return layout.REPORT_MARK not in page.read(4096)
    except FileNotFoundError:
        return False
