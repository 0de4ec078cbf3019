"""Lists of one URL a line, whatever the line contains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.readers.arrow import NO_UTF8_IN_URL, arrow_blocks, to_text
from any2ds.readers.contract import Block, Wanted
from any2ds.readers.formats._text import TextReader, whole_lines, without_comments

LONGEST_LINE = 2**16  # bytes


class Txt(TextReader):
    """Lines end with LF, CR or both; blank ones are skipped. Blanks around a URL are stripped, and bytes that are not
    UTF-8 become percent-escapes.

    Of a line of more than 64 KiB the beginning is kept, with dots that make it longer than any URL may be. So it fails
    as a bad URL, and the metadata shows which.
    """

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        wanted.found_in([wanted.url])
        pieces = (piece.replace(b"\r", b"\n") for piece in self._pieces(stream, held=0))
        lines = without_comments(whole_lines(pieces, LONGEST_LINE), self._form.comment)
        return arrow_blocks(pa.record_batch([_urls(text)], [wanted.url]) for text in lines)


def _urls(lines: bytes) -> pa.Array:
    urls = pc.list_flatten(pc.split_pattern(to_text(pa.array([lines], pa.binary()), NO_UTF8_IN_URL), "\n"))
    too_long = pc.greater(pc.binary_length(urls), LONGEST_LINE)
    urls = pc.utf8_trim_whitespace(urls)
    if pc.any(too_long).as_py():
        beginnings = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(urls, 0, LONGEST_LINE))
        urls = pc.if_else(too_long, pc.utf8_rpad(beginnings, LONGEST_LINE + 1, "…"), urls)
    return urls.filter(pc.greater(pc.binary_length(urls), 0))


PART = Txt
