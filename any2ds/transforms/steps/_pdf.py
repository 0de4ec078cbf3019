"""The text of PDF files, page by page, by pdfium in child processes.

pdfium is not thread-safe, may hang or crash, and takes about 85 bytes of memory for each byte of a page's instructions,
which may be compressed to a thousandth: a file of 30 KB took 2.5 GB. So it runs in processes with limits.
"""

from __future__ import annotations

import re
import weakref
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from any2ds.core.errors import NotDecodable
from any2ds.core.processes.pool import Children
from any2ds.core.processes.resources import limit_memory

MOST_MEMORY = 1 << 30  # bytes that a child may take besides what it has when it begins
MOST_SECONDS = 120.0  # for one document
_MOST_FILE = 256 << 20  # bytes; a document is in the child's memory twice
_MOST_START = 120.0
_MOST_TEXT = 32 << 20  # characters
_END = "\n\f"  # of each page, as pdftotext has it
_HYPHENS = re.compile("[\x02\ufffe]\n?")  # pdfium's mark for a hyphen at the end of a line, and that end
_NO_TEXT = re.compile("[\x00\x0c\uffff]")


@dataclass(frozen=True, slots=True)
class PdfText:
    pages: int
    text: str  # each page ends in a form feed


class PdfReader:
    """Reads documents, for several threads in parallel; children are started on demand."""

    def __init__(self) -> None:
        self._children: Children[bytes, PdfText | str] = Children(_Reading, _MOST_START)
        weakref.finalize(self, self._children.close)

    def __call__(self, data: bytes) -> PdfText:
        """Raises NotDecodable, or ChildEnded if pdfium crashed, took too much memory or too long."""
        if len(data) > _MOST_FILE:
            raise NotDecodable(f"the PDF file has more than {_MOST_FILE >> 20} MiB, which is too much to read its text")
        found = self._children.answer(data, MOST_SECONDS)
        if isinstance(found, str):
            raise NotDecodable(found)
        return found


# --- in the child ---


class _Reading:
    """Returns the text of a document, or the reason why it has none."""

    def __init__(self) -> None:
        import pypdfium2

        self._pdfium: Any = pypdfium2
        limit_memory(MOST_MEMORY)  # beyond it pdfium ends the process; elsewhere than on Linux only time is limited

    def __call__(self, data: bytes) -> PdfText | str:
        try:
            return self._read(data)
        except MemoryError:
            return "its pages need too much memory"
        except self._pdfium.PdfiumError as error:
            if "password" in str(error).lower():
                return "the PDF file is encrypted: it cannot be read without its password"
            return f"a broken PDF file: {error}"

    def _read(self, data: bytes) -> PdfText | str:
        # For a document without pages pdfium sets no error, and would report that of the last document.
        with suppress(self._pdfium.PdfiumError):
            self._pdfium.PdfDocument(b"broken").close()
        with closing(self._pdfium.PdfDocument(data)) as document:
            pages: list[str] = []
            left = _MOST_TEXT
            for number in range(len(document)):
                pages.append(self._page(document, number))
                left -= len(pages[-1])
                if left < 0:
                    return f"the text of the PDF file is longer than {_MOST_TEXT} characters"
            return PdfText(len(pages), "".join(pages))

    def _page(self, document: Any, number: int) -> str:
        """The text of a page; a broken page has none."""
        try:
            with closing(document[number]) as page, closing(page.get_textpage()) as content:
                text = content.get_text_bounded()
        except self._pdfium.PdfiumError:
            return _END
        text = _HYPHENS.sub("-\n", text.replace("\r\n", "\n").replace("\r", "\n"))
        return _NO_TEXT.sub("", text).rstrip() + _END
