"""URLs as people write them in lists: made of columns, without a scheme, in quotes, with references of HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.options import InputOptions
from any2ds.core.errors import OptionError
from any2ds.readers.contract import Field

_PART = "any2ds.url."  # before the name of a column that becomes a part of URLs
_COLUMN = r"\{([^{}]+)\}"
_BLANKS = " \t\r\n\ufeff\u00a0\u200b\u200c\u200d\u2060"  # a byte order mark, and what takes no room
_ENCLOSED = r"""^(?:"(.*)"|'(.*)'|<(.*)>)$"""
_REFERENCE = r"&(?:amp|quot|lt|gt|apos|#[0-9]+|#[xX][0-9A-Fa-f]+);"
_NO_SCHEME = r"^(?://[^\s]+|[^/\\:?#\s]+\.[^\s]+)$"
_SCHEME = r"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?:/|\\)|data:)"


@dataclass(frozen=True, slots=True)
class UrlRules:
    """How the texts of a list become URLs."""

    template: str | None = None
    default_scheme: str | None = None
    unescape_html: bool = False

    @classmethod
    def of(cls, options: InputOptions) -> UrlRules:
        if options.url_template is not None and ":" in options.url_col:
            raise OptionError("url_template makes one URL of a row: leave out several columns in url_col")
        return cls(options.url_template, options.default_scheme, options.unescape_html)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the template."""
        return tuple(dict.fromkeys(re.findall(_COLUMN, self.template or "")))

    @property
    def parts(self) -> list[Field]:
        """The columns of the template as texts."""
        return [Field(_PART + name, name, "url") for name in self.columns]

    def made_of(self, parts: Mapping[str, pa.Array]) -> pa.Array:
        """The URLs that the template makes of `parts`: null where one of them is null or an empty text."""
        texts = {
            name: pc.if_else(pc.equal(parts[_PART + name], ""), None, parts[_PART + name]) for name in self.columns
        }
        pieces = re.split(_COLUMN, self.template or "")
        return pc.binary_join_element_wise(*(texts[piece] if n % 2 else piece for n, piece in enumerate(pieces)), "")

    def apply(self, urls: pa.Array) -> pa.Array:
        """The URLs that texts stand for."""
        urls = pc.utf8_trim(urls, _BLANKS)
        if pc.any(pc.match_substring_regex(urls, _ENCLOSED)).as_py():
            urls = pc.utf8_trim(pc.replace_substring_regex(urls, _ENCLOSED, r"\1\2\3"), _BLANKS)
        if self.unescape_html and has_references(urls):
            urls = pa.array([url and _unescaped(url) for url in urls.to_pylist()], pa.string())
        if self.default_scheme is not None:
            lacks = pc.and_(
                pc.match_substring_regex(urls, _NO_SCHEME), pc.invert(pc.match_substring_regex(urls, _SCHEME))
            )
            complete = pc.binary_join_element_wise(f"{self.default_scheme}://", pc.utf8_ltrim(urls, "/"), "")
            urls = pc.if_else(pc.fill_null(lacks, False), complete, urls)
        return urls


def _unescaped(url: str) -> str:
    """The URL without complete references: `html.unescape` alone takes `&curren` of `&currency=` for one too."""
    return re.sub(_REFERENCE, lambda found: html.unescape(found[0]), url)


def has_references(urls: pa.Array, least: float = 0.0) -> bool:
    """Whether more than a share `least` of the URLs have references of HTML."""
    count = pc.sum(pc.match_substring_regex(urls, _REFERENCE)).as_py() or 0
    return bool(count > least * len(urls))
