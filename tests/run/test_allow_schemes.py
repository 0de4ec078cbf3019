"""Rows that are read with the user's own rights, of lists that somebody else may have written."""

import json
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds import Recipe, UrlRows, download
from any2ds.core.errors import DiskFull, OptionError, UsageError


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


@pytest.mark.parametrize("by_recipe", [True, False])
def test_a_build_that_goes_on_takes_the_schemes_of_the_recipe_and_not_of_a_stranger(
    by_recipe: bool, secret: str, tmp_path: Path
) -> None:
    runs = []

    class Local(recipe(UrlRows([{"url": secret}], allow_schemes=("file",) if by_recipe else ()))):  # type: ignore[misc]
        def splits(self, dl: Any) -> Any:
            runs.append(dl)
            return super().splits(dl)

    options: dict[str, Any] = {"data_dir": tmp_path / "data", "distributor": "inline", "quiet": True}
    with pytest.raises(DiskFull):
        any2ds.build(Local, output_format="parquet", min_free_bytes="1000TiB", **options)
    (recorded,) = [path for path in tmp_path.rglob("*") if path.is_file() and b'"allow_schemes"' in path.read_bytes()]
    content = json.loads(recorded.read_text())
    recorded.write_text(json.dumps({**content, "allow_schemes": ["file"]}))
    assert any2ds.build(Local, output_format="parquet", **options).successes == by_recipe
    assert len(runs) == (1 if by_recipe else 2)
