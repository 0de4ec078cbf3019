"""What a reader sees of a web page. A module of its own, because its parser is loaded for web pages alone."""

from __future__ import annotations

import contextlib
import html.parser


def words_of(page: str) -> str:
    """The words of a page, or of its beginning, with single spaces between them."""
    parser = _Page()
    with contextlib.suppress(Exception):  # of a page that is none, which is shown as far as it went
        parser.feed(page)
    return " ".join("".join(parser.text).split())


class _Page(html.parser.HTMLParser):
    """Gathers the words of a web page."""

    _SILENT = frozenset({"script", "style", "head", "template", "noscript"})

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._silent: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT and self._silent is None:
            self._silent = tag
        self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._silent:
            self._silent = None
        self.text.append(" ")

    def handle_data(self, data: str) -> None:
        if self._silent is None:
            self.text.append(data)
