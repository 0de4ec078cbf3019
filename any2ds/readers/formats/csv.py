"""Comma-separated lists."""

from __future__ import annotations

from any2ds.readers.formats._separated import Separated


class Csv(Separated):
    separator = ","
    is_quoted = True


PART = Csv
