"""Habits of TensorFlow Datasets that recipes take over: a recipe in its folder, texts about it, URLs of other kinds."""

from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.cli import run
from any2ds.core.errors import UsageError
from tests.support.flowers import build, one_split


def test_a_recipe_is_built_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letters.py").write_text(
        "import any2ds\n\n\nclass Letters(any2ds.Recipe):\n    '''Letters.'''\n\n    def info(self):\n"
        "        return any2ds.Info({'text': any2ds.Text()})\n\n    def splits(self, dl):\n"
        "        yield 'a', {'text': 'A'}\n"
    )
    monkeypatch.chdir(tmp_path / "letters")
    assert run(["build", ".", f"--data_dir={tmp_path}/data", "--quiet", "--noreport"]) == 0
    assert any2ds.load("letters", data_dir=tmp_path / "data")[0]["text"] == "A"


def test_what_the_guide_shows_of_info_is_taken() -> None:
    info = any2ds.Info(
        {"image": any2ds.Image(), "label": any2ds.ClassLabel(num_classes=5, doc="Which animal it is")},
        description="""
        Markdown that is *dedented*.
          - with a list
        """,
        citation=r"""
        @article{my-awesome-dataset-2020,
                 author = {Smith, John},}
        """,
        supervised_keys=("image", "label"),
    )
    assert info.description == "Markdown that is *dedented*.\n  - with a list"
    assert info.citation.startswith("@article{my-awesome-dataset-2020,")


def test_a_recipe_downloads_what_the_engine_knows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file")

    class Fetching(any2ds.Recipe):
        """A text of a URL that is none of the web."""

        def info(self) -> any2ds.Info:
            return any2ds.Info({"text": any2ds.Text()})

        def splits(self, dl: Any) -> Any:
            yield "a", {"text": dl.download(f"file://{tmp_path}/a.txt").read_text()}

    build(Fetching, tmp_path / "data", download_dir=tmp_path / "cache")
    assert any2ds.load("fetching", data_dir=tmp_path / "data")[0]["text"] == "from a file"
    with pytest.raises(UsageError, match="expected"):
        build(one_split(7), tmp_path / "data")
