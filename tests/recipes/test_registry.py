"""How a recipe is found: by the entry points of an installed package, and in modules that are imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = '''
import any2ds


class {name}(any2ds.Recipe):
    """From elsewhere."""

    def info(self):
        return any2ds.Info({{"text": any2ds.Text()}})

    def splits(self, dl):
        yield "a", {{"text": "x"}}
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed package of recipes, as pip leaves it."""
    folder = tmp_path / "site"
    package = folder / "meadow_pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(RECIPE.format(name="Meadow"))
    info = folder / "meadow_pack-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: meadow-pack\nVersion: 2.0\n")
    points = {
        "meadow": "meadow_pack:Meadow",
        "broken": "meadow_pack:NoSuchThing",
        "odd": "meadow_pack:__name__",
    }
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[any2ds.recipes]\n{lines}")
    return folder


def any2ds_with(path: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in `cwd`, where `path` is one that Python imports from."""
    found = os.pathsep.join([str(path), str(Path(__file__).parents[2])])
    command = [sys.executable, "-m", "any2ds", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, "PYTHONPATH": found}, capture_output=True, text=True, check=False
    )


def test_a_recipe_of_an_installed_package_is_listed_and_built_by_its_name(site: Path, tmp_path: Path) -> None:
    listed = any2ds_with(site, "recipes", f"--data_dir={tmp_path}/data", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "meadow  (package meadow-pack)\n    From elsewhere.\n    version 1.0.0\n" in listed.stdout
    assert "broken  (package meadow-pack)\n    cannot be loaded: " in listed.stdout
    assert "odd  (package meadow-pack)\n    cannot be loaded: the entry point odd" in listed.stdout
    options = [f"--data_dir={tmp_path}/data", "--quiet", "--noreport"]
    built = any2ds_with(site, "build", "meadow", *options, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "data" / "meadow" / "1.0.0" / "00000.tar").is_file()
    unknown = any2ds_with(site, "build", "meadows", *options, cwd=tmp_path)
    assert unknown.returncode == 2
    assert "no recipe 'meadows': did you mean meadow" in unknown.stderr
    odd = any2ds_with(site, "build", "odd", *options, cwd=tmp_path)
    assert odd.returncode == 2
    assert "the entry point odd of any2ds.recipes is no recipe: meadow_pack:__name__" in odd.stderr


def test_imports_name_modules_with_recipes(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(RECIPE.format(name="Hill") + RECIPE.format(name="Valley"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = ["--imports=my_module", f"--data_dir={tmp_path}/data"]
    listed = any2ds_with(elsewhere, "recipes", *options, cwd=tmp_path)
    assert "hill  (my_module)" in listed.stdout
    assert "valley  (my_module)" in listed.stdout
    built = any2ds_with(elsewhere, "build", "valley", *options, "--quiet", "--noreport", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "data" / "valley" / "1.0.0" / "00000.tar").is_file()
    missing = any2ds_with(elsewhere, "recipes", "--imports=my_modul", cwd=tmp_path)
    assert missing.returncode == 2
    assert "--imports=my_modul: No module named 'my_modul'" in missing.stderr
