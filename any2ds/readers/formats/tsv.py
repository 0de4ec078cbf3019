"""Tab-separated lists: most of those that are published have no quoted values, and some have."""

from __future__ import annotations

from any2ds.readers.formats._separated import Separated


class Tsv(Separated):
    separator = "\t"
    is_quoted = None


PART = Tsv
