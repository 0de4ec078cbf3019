"""Tab-separated lists with a header."""

from __future__ import annotations

from any2ds.readers.formats._separated import Separated


class Tsv(Separated):
    delimiter = "\t"


PART = Tsv
