"""How results look where they are printed, and in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, inspect, verify


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = str(tmp_path_factory.mktemp("results") / "<b>out")
    options: dict[str, Any] = {"distributor": "inline", "quiet": True, "report": False}
    made = download([{"url": "nope://<script>"}, {"url": "x"}], out, **options)
    return {"run": made, "verify": verify(out, quiet=True), "inspect": inspect(out)}


@pytest.mark.parametrize("name", ["run", "verify", "inspect"])
def test_a_result_is_short_in_the_repl(results: dict[str, Any], name: str) -> None:
    shown = repr(results[name])
    assert "\n" not in shown
    assert len(shown.replace(str(Path(results["inspect"].output_folder).parent), "")) < 120
    assert "2 rows" in shown


@pytest.mark.parametrize(
    ("name", "expected"), [("run", "2 rows: 0 stored, 2 failed"), ("verify", "no problems"), ("inspect", "bad_url")]
)
def test_a_notebook_shows_it_in_its_own_colours_and_as_text(results: dict[str, Any], name: str, expected: str) -> None:
    page = results[name]._repr_html_()
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(page)
    assert set(tags) <= {"pre", "span"}
    assert "background" not in page  # it may be light or dark
    assert expected in page


def test_a_broken_dataset_is_named_as_such(results: dict[str, Any]) -> None:
    out = Path(results["inspect"].output_folder)
    (out / "00000.parquet").write_bytes(b"none")
    found = verify(str(out), quiet=True)
    assert not found.ok
    assert repr(found) == f"<VerifyReport {out}: 1 shard, 2 rows, 1 finding>"
