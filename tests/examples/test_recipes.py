"""The recipes among the examples pass their own tests, and so does what `any2ds new` makes."""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import any2ds
from any2ds.cli import run
from any2ds.testing.server import serve
from tests.support.flowers import picture

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


def passes(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{folder.name}_test.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_EXTRAS = """
import runpy, sys
sys.modules |= dict.fromkeys(("aiohttp", "multidict", "pytest"))
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def passes_without_extras(test: Path) -> None:
    """As a program, on a machine that has only what any2ds needs."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(test)]
    done = subprocess.run(command, cwd=test.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 5 tests" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder", [path for path in sorted(RECIPES.iterdir()) if path.is_dir()], ids=lambda p: p.name)
def test_a_shipped_recipe_passes_its_test(folder: Path) -> None:
    assert (folder / "dummy_data").is_dir()
    passes(folder)


def test_a_new_recipe_passes_its_test_and_unittest_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["new", "my_roses", f"--folder={tmp_path}"]) == 0
    folder = tmp_path / "my_roses"
    assert {"README.md", "CITATIONS.bib", "TAGS.txt", "checksums.tsv"} <= {path.name for path in folder.iterdir()}
    passes(folder)
    command = [sys.executable, "-m", "unittest", "my_roses_test"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passes_without_extras(folder / "my_roses_test.py")
    shown = capsys.readouterr().out
    assert f"1. python {folder}/my_roses_test.py builds it from its dummy data" in shown
    assert f"2. put your own URLs and features into {folder}/my_roses.py" in shown
    assert f"3. any2ds build {folder}" in shown
    assert run(["new", "my_roses", f"--folder={tmp_path}"]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recipe_made_of_a_list_passes_its_test_and_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "a.png").write_bytes(picture(1))
    with serve(served) as server:
        row = {"url": server.url("a.png"), "caption": "one", "score": 0.5, "kept": True, "votes": 3}
        (tmp_path / "list.jsonl").write_text(json.dumps(row) + "\n")
        assert run(["new", "linked", f"--from_list={tmp_path}/list.jsonl", f"--folder={tmp_path}"]) == 0
        folder = tmp_path / "linked"
        passes(folder)
        passes_without_extras(folder / "linked_test.py")
        monkeypatch.chdir(tmp_path)
        assert run(["build", "linked", f"--data_dir={tmp_path}/data", "--quiet", "--noreport"]) == 0
    (found,) = any2ds.load("linked", data_dir=tmp_path / "data")
    assert (found["image"], found["caption"], found["score"]) == (picture(1), "one", 0.5)
    capsys.readouterr()
    assert run(["recipes", f"--data_dir={tmp_path}/data"]) == 0
    out = capsys.readouterr().out
    assert "linked  (./linked/linked.py)" in out
    assert "linked:1.0.0  train 1 row" in out


OF_THE_ISSUE = """
import any2ds

class Flowers(any2ds.Recipe):
    \"\"\"Photographs of flowers with captions.\"\"\"
    VERSION = "1.1.0"
    RELEASE_NOTES = {"1.1.0": "Captions in English.", "1.0.0": "First release."}
    CONFIGS = [any2ds.RecipeConfig("small", image_size=256), any2ds.RecipeConfig("full")]

    def info(self):
        return any2ds.Info(
            features={"image": any2ds.Image(), "label": any2ds.ClassLabel(["rose", "tulip"]), "caption": any2ds.Text()},
            homepage="https://…", license="CC-BY-4.0", citation="@article{…}",
            tags=["images", "captions"], supervised_keys=("image", "label"))

    def splits(self, dl):
        archive = dl.download_and_extract({"train": "https://…/train.zip", "test": "https://…/test.tar.gz"})
        return {"train": self.samples(archive["train"]), "test": self.samples(archive["test"])}

    def samples(self, folder):
        for path in sorted(folder.glob("*/*.jpg")):
            yield path.stem, {"image": path, "label": path.parent.name, "caption": path.with_suffix(".txt").read_text()}
"""


def test_a_recipe_with_stems_as_keys_is_made_built_and_loaded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "served"
    for number, (split, label) in enumerate(itertools.product(("train", "test"), ("rose", "tulip"))):
        folder = tmp_path / split / label
        folder.mkdir(parents=True)
        (folder / f"{number}.jpg").write_bytes(picture(number, "jpeg"))
        (folder / f"{number}.txt").write_text(f"a {label}")
    shutil.make_archive(str(served / "train"), "zip", tmp_path / "train")
    shutil.make_archive(str(served / "test"), "gztar", tmp_path / "test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANY2DS_DATA_DIR", str(tmp_path / "data"))
    assert run(["new", "flowers"]) == 0
    with serve(served) as server:
        text = OF_THE_ISSUE.replace("https://…/", server.url("")).replace("{…}", "{flowers, title = {Flowers}}")
        Path("flowers/flowers.py").write_text(text.replace("https://…", "https://example.org"))
        assert run(["build", "flowers/small", f"--download_dir={tmp_path}/cache", "--quiet"]) == 0
    found = any2ds.load("flowers")
    samples = {sample["recipe_key"]: (sample["split"], sample["label"], sample["caption"]) for sample in found}
    assert samples == {
        "0": ("train", 0, "a rose"),
        "1": ("train", 1, "a tulip"),
        "2": ("test", 0, "a rose"),
        "3": ("test", 1, "a tulip"),
    }
