"""Damaged media through the real steps, a thousand of the cases of `make fuzz`; damaged lists; and a fair game."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.fuzz import lists
from tests.support.fuzz.play import play
from tests.support.params import sampled


@pytest.mark.parametrize("cases", sampled([200, 1000]))
def test_damaged_files_each_have_an_outcome_and_harm_nobody(cases: int) -> None:
    played = list(play(seed=7, numbers=range(cases), processes=2))
    assert [f"{one.name}: {one.problem}" for one in played if one.problem] == []
    assert sorted(one.number for one in played) == list(range(cases))
    codes = Counter(code for one in played for code in one.codes)
    # Damage of all degrees: some files are still good, most are not.
    assert codes["success"] > cases // 10
    assert codes["not_decodable"] > cases // 10
    assert {"too_many_pixels", "unpacks_too_large"} <= codes.keys()


@pytest.mark.parametrize("cases", sampled([300, 5000]))
def test_a_damaged_list_becomes_rows_or_words(cases: int) -> None:
    found = dict(lists.outcomes(seed=7, numbers=range(cases), parallel=2))
    assert {number: text for number, text in found.items() if text.startswith("fault")} == {}
    assert {"rows", "refused", "broken off"} <= {*found.values()}


@pytest.mark.slow
def test_whatever_goes_wrong_is_noticed(tmp_path: Path) -> None:
    step = tmp_path / "step.py"
    step.write_text(STEP, encoding="utf-8")
    played = list(play(seed=7, numbers=range(60), processes=2, transform=f"{step}:bad"))
    wrong = {one.problem for one in played if one.problem}
    assert len(played) == 60
    assert "its process was killed by signal 11 (SIGSEGV)" in wrong
    assert any(problem.startswith("it took 2") and problem.endswith(" MB") for problem in wrong)
    assert {"not_decodable", "success"} <= {one.code for one in played if not one.problem}


STEP = """
import ctypes

def bad(sample):
    if sample.ext == "wav":
        ctypes.string_at(0)
    if sample.ext == "png":
        return sample.with_data(b"x" * (250 << 20))
    return sample
"""
