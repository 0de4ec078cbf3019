"""Comma-separated lists with a header."""

from __future__ import annotations

from any2ds.readers.formats._separated import Separated


class Csv(Separated):
    delimiter = ","


PART = Csv
