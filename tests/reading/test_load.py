"""`any2ds.load` as the page on loading shows it first; the other files have the rest."""

from collections.abc import Callable
from typing import Any


def test_what_the_page_shows(dataset: Callable[..., Any], page: Callable[..., list[str]]) -> None:
    dataset("webdataset")
    for code in page("Loading"):
        exec(compile(code, "Loading", "exec"), {"__name__": "page"})
