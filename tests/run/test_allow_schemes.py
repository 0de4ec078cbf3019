"""Rows that are read with the user's own rights, of lists that somebody else may have written."""

from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds import Recipe, download
from any2ds.core.errors import OptionError, UsageError
from any2ds.recipes import spool
from any2ds.recipes.recipe import UrlRows


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret.bin").write_text("secret")
    return (tmp_path / "secret.bin").as_uri()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("files", r"one of .*file.*did you mean file\?"),
        ("gs,s4", "one of .*gs"),
        ("https", "schemes other than https, which needs no leave: .*file"),
        ("zip", "one of .*file"),
    ],
)
def test_what_is_no_such_scheme_is_refused_before_anything_is_made(written: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"invalid allow_schemes='{written}': expected {message}"):
        download(["data:,a"], tmp_path / "out", allow_schemes=written)
    assert not (tmp_path / "out").exists()


def recipe(rows: UrlRows) -> type[Recipe]:
    class Local(Recipe):
        def info(self) -> any2ds.Info:
            return any2ds.Info(features={"file": any2ds.Bytes()})

        def splits(self, dl: Any) -> Any:
            return {"train": rows}

    return Local


def test_a_recipe_allows_the_schemes_of_its_own_rows(secret: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "distributor": "inline", "quiet": True}
    options |= {"output_format": "parquet", "overwrite": True}
    rows = [{"url": secret}]
    assert any2ds.build(recipe(UrlRows(rows)), **options).successes == 0
    assert any2ds.build(recipe(UrlRows(rows)), allow_schemes="file", **options).successes == 1
    assert any2ds.build(recipe(UrlRows(rows, allow_schemes=("file",))), **options).successes == 1
    with pytest.raises(UsageError, match=r"UrlRows: invalid allow_schemes=.*: expected one of .*mean file"):
        any2ds.build(recipe(UrlRows(rows, allow_schemes=("fle",))), **options)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("by_recipe", [True, False])
def test_a_build_that_goes_on_takes_the_schemes_of_the_recipe_and_not_of_a_stranger(
    by_recipe: bool, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    class Local(recipe(UrlRows([{"url": secret}], allow_schemes=("file",) if by_recipe else ()))):  # type: ignore[misc]
        def splits(self, dl: Any) -> Any:
            runs.append(dl)
            return super().splits(dl)

    record = spool.record

    def record_and_break(folder: Path, samples: dict[str, Any]) -> None:
        record(folder, {**samples, "allow_schemes": ["file"]})
        raise Interrupted

    options: dict[str, Any] = {"data_dir": tmp_path / "data", "distributor": "inline", "quiet": True}
    with monkeypatch.context() as patch:
        patch.setattr(spool, "record", record_and_break)
        with pytest.raises(Interrupted):
            any2ds.build(Local, output_format="parquet", **options)
    assert any2ds.build(Local, output_format="parquet", **options).successes == by_recipe
    assert len(runs) == (1 if by_recipe else 2)
