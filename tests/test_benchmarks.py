"""The runner of the benchmarks, from outside: what it measures, what it reports, and the pages that are made of it."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.case import read_cases
from benchmarks.tables import PAGES, RESULTS, put_into

ROOT = Path(__file__).parents[1]
CASE = """
tiny:
  about: Programs that do next to nothing.
  rounds: 3
  columns: {seconds: wall seconds, memory: memory MB}
  goals: [[memory, large, small, ">= 2"], [memory, small, large, ">= 2"]]
  sides:
    small: "true"
    large: python -c "x = b'x' * 100_000_000"
    broken: echo it is too late >&2; exit 3
"""


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_a_case_is_measured_and_a_side_that_breaks_is_reported(tmp_path: Path) -> None:
    described = tmp_path / "cases.yaml"
    described.write_text(CASE.replace("python -c", f"{sys.executable} -c"), encoding="utf-8")
    ran = benchmarks("tiny", "--rounds=2", f"--described={described}", f"--results={tmp_path}")
    assert ran.returncode == 1
    assert "tiny: broken broke: exit code 3: it is too late" in ran.stderr
    result = json.loads((tmp_path / "tiny.json").read_bytes())
    assert (result["command"], result["rounds"]) == ("python -m benchmarks tiny --rounds=2", 2)
    assert {"cores", "system", "load", "output"} <= result["machine"].keys()
    small, large, broken = result["sides"]
    assert broken["broken"] == "exit code 3: it is too late"
    for figure in ("wall", "cpu", "memory"):
        assert len(small["figures"][figure]["rounds"]) == len(large["figures"][figure]["rounds"]) == 2
    assert large["figures"]["memory"]["median"] > 100e6 > small["figures"]["memory"]["median"]
    reached, missed = result["comparisons"]
    assert (reached["met"], missed["met"]) == (True, False)
    assert reached["median"] > 2
    row = next(line for line in ran.stdout.splitlines() if line.startswith("| broken"))
    assert "exit code 3: it is too late" in row


def test_a_case_that_does_not_exist_is_refused_with_those_that_do() -> None:
    refused = benchmarks("mesy")
    assert refused.returncode == 2
    assert "no such case: mesy" in refused.stderr
    assert "messy" in refused.stderr
    refused = benchmarks("messy", "--row=3")
    assert refused.returncode == 2
    assert "no such option: --row=3" in refused.stderr
    assert "--rows=" in refused.stderr


def test_the_parts_of_a_quick_run_are_all_cases() -> None:
    parts = [benchmarks("--quick", "--list", f"--part={part}/9").stdout.splitlines() for part in range(9)]
    assert sorted(line.split()[0] for lines in parts for line in lines) == sorted(read_cases())


def test_the_tables_on_the_pages_are_those_of_the_results() -> None:
    cases = read_cases()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert put_into(text, cases, RESULTS) == text, f"python -m benchmarks --pages renews {page.name}"
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in cases if f"<!-- benchmark {name} -->" not in shown] == []
    assert {path.stem for path in RESULTS.glob("*.json")} <= cases.keys()
