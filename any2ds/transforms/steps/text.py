"""Extracts the text of documents into an additional file `.txt`: the main text of web pages, PDF files page by page."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pypdfium2  # noqa: F401 - for children, which import it again
import trafilatura

from any2ds.config.media import MediaOptions
from any2ds.core.processes.child_process import ChildEnded
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Plan
from any2ds.transforms.steps._charset import decoded
from any2ds.transforms.steps._pdf import MOST_MEMORY, MOST_SECONDS, PdfReader

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PDF = frozenset({"application/pdf", "application/x-pdf"})
_OTHERS = frozenset({"application/msword", "application/rtf", "text/rtf", "application/epub+zip"})
_OFFICE = (
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
    "application/vnd.ms-word",
    "application/vnd.openxmlformats-",
    "application/vnd.oasis.opendocument.",
)
_MOST_HTML = 5 << 20  # bytes, as many as Common Crawl keeps; a page of nothing but table cells takes 8 s for each MB
_UNSAID = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_MARKUP = re.compile(rb"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
# libxml2 compares each attribute of a tag with all others: 20 000 of them took half a minute.
_LONG_TAG = re.compile(r"<([^\s<>/]+)\s[^<>]{10000,}")
_MOST_ATTRIBUTES = 500
_PER_BYTE, _PER_TAG = 30, 1500  # bytes of memory that a page takes, measured
_PDF_BYTES = 64 << 20  # that pdfium takes in its process for a document, about, besides the file


class TextTransform:
    file_columns = ("pages",)
    columns: ClassVar[Mapping[str, pa.DataType]] = {"pages": pa.int32()}
    members: ClassVar[Mapping[str, pa.DataType]] = {"txt": pa.string()}

    def __init__(self, media: MediaOptions) -> None:
        # Libraries that log something for each malformed page.
        for name in ("trafilatura", "htmldate", "courlan", "charset_normalizer", "justext", "pypdfium2"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._pdf_text = PdfReader()

    def plan(self, sample: Sample) -> Plan | str | None:
        kind = sample.mime_type
        if kind in _PDF:
            memory = min(MOST_MEMORY, _PDF_BYTES + 3 * sample.size)
            return Plan(lambda: memory, lambda: self._of_pdf(sample))
        if kind in _HTML or (kind in _UNSAID and _is_markup(sample)):
            return Plan(lambda: _memory_of_page(sample.data[:_MOST_HTML]), lambda: _of_page(sample))
        return f"{kind}: its text is not extracted" if kind in _OTHERS or kind.startswith(_OFFICE) else None

    @staticmethod
    def describe(sample: Sample) -> Mapping[str, Any]:
        """Nothing: to count pages takes a process."""
        return {}

    def _of_pdf(self, sample: Sample) -> Sample:
        try:
            found = self._pdf_text(sample.data)
        except ChildEnded as error:
            if error.late:
                return sample.failed("transform_timeout", f"its text took more than {MOST_SECONDS:g} s")
            return sample.failed("transform_crash", f"the process of pdfium {error}")
        return sample.with_fields(pages=found.pages).with_member("txt", found.text.encode("utf-8", "replace"))


PART = TextTransform


def _is_markup(sample: Sample) -> bool:
    """Whether a file of an unknown type begins as a web page does."""
    head = b"" if sample.body is None else sample.body.head()[:1024]
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<") and bool(_MARKUP.search(head))


def _memory_of_page(page: bytes) -> int:
    return _PER_BYTE * len(page) + _PER_TAG * page.count(b"<")


def _of_page(sample: Sample) -> Sample:
    return sample.with_member("txt", main_text(sample.data[:_MOST_HTML]).encode("utf-8", "replace"))


def main_text(page: bytes) -> str:
    """The main text of a page in lines, without navigation and comments; may be empty."""
    return trafilatura.extract(_LONG_TAG.sub(_with_few_attributes, decoded(page)), include_comments=False) or ""


def _with_few_attributes(tag: re.Match[str]) -> str:
    """The beginning of a tag, without its attributes if there are too many."""
    found = tag[0]
    return found if max(len(found.split()), found.count("=")) <= _MOST_ATTRIBUTES else f"<{tag[1]}"
