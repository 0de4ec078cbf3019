"""Errors and `sys.exit(0)` in the code of a recipe or a step: never a success, and the place is named."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.play import Play

RECIPE = """
import sys
import any2ds

{module}

class Birds(any2ds.Recipe):
    VERSION = "1.0.0"

    def info(self):
        {info}
        return any2ds.Info(features={{"n": int}})

    def splits(self, dl):
        {splits}
        return {{"train": self.samples()}}

    def samples(self):
        yield "first", {{"n": 1}}
        {samples}
"""
PLACES = ("module", "info", "splits", "samples")


@pytest.mark.parametrize("fault", ["sys.exit(0)", "raise KeyError('bug')"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_a_recipe_ends_the_build_with_its_place(place: str, fault: str, tmp_path: Path) -> None:
    code = RECIPE.format(**{**dict.fromkeys(PLACES, "pass"), place: fault})
    (tmp_path / "birds.py").write_text(code)
    line = next(number for number, text in enumerate(code.splitlines(), 1) if text.strip() == fault)
    words = ["build", "birds.py", f"--data_dir={tmp_path / 'data'}", "--distributor=inline", "--report=False"]
    run = [sys.executable, "-m", "any2ds", *words]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode not in (0, 3)
    assert re.search(rf"birds\.py\W+(line )?{line}\b", ended.stderr), ended.stderr


@pytest.mark.parametrize("distributor", ["inline", "multiprocessing"])
def test_a_step_that_exits_fails_its_rows(distributor: str, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("import sys\n\ndef go(sample):\n    sys.exit(0)\n")
    play = Play(lists={"urls.txt": "data:,a\n"}, transform=f"{tmp_path / 'step.py'}:go", distributor=distributor)
    outcome = play.run(way="command")
    assert outcome.exit_code == 4
    assert outcome.codes == {"transform_error": 1}
