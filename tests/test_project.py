"""The files around the package agree with it: requirements, workflows, Dockerfile, devcontainer, citation."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import any2ds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted(path.name for path in (ROOT / ".github" / "workflows").glob("*.yml"))


def _requirements(lines: Iterable[str]) -> list[Requirement]:
    """Without comments, other files and extras of any2ds itself."""
    stripped = (line.partition("#")[0].strip() for line in lines)
    found = [Requirement(line) for line in stripped if line and not line.startswith("-r")]
    return [requirement for requirement in found if requirement.name != "any2ds"]


def _requirements_of(file_name: str) -> list[Requirement]:
    return _requirements((ROOT / file_name).read_text(encoding="utf-8").splitlines())


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Extra -> what it requires; "core" is what everybody installs.
REQUIRED = {
    "core": _requirements_of("requirements.txt"),
    **{extra: _requirements(lines) for extra, lines in PROJECT["optional-dependencies"].items()},
}


def _lower_bound(requirement: Requirement) -> Version | None:
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==")]
    return max(bounds, default=None)


@pytest.mark.parametrize("extra", REQUIRED)
def test_each_requirement_has_a_lower_bound_that_pip_cannot_go_under(extra: str) -> None:
    assert [str(each) for each in REQUIRED[extra] if _lower_bound(each) is None] == []


@pytest.mark.parametrize("file_name", sorted(path.name for path in ROOT.glob("requirements-*.txt")))
def test_the_tests_run_with_no_older_version_than_users_get(file_name: str) -> None:
    promised = {each.name.lower(): _lower_bound(each) for extra in REQUIRED.values() for each in extra}
    older = [
        str(each)
        for each in _requirements_of(file_name)
        if (bound := promised.get(each.name.lower())) and (_lower_bound(each) or Version("0")) < bound
    ]
    assert older == []


def _jobs(name: str) -> dict[str, Any]:
    content = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return dict(content["jobs"])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_what_there_is(name: str) -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets is not None
    commands = [step["run"] for job in _jobs(name).values() for step in job["steps"] if "run" in step]
    for command in commands:
        for made in re.findall(r"(?<!\S)make ([a-z\- ]+?)(?: [A-Z]|$)", command):
            assert set(made.split()) <= set(targets[1].split()), command
        for path in re.findall(r"\b(?:tests|tools)/[\w/.]+|requirements[\w-]*\.txt", command):
            assert (ROOT / path).exists(), command


def test_the_tests_run_on_each_python_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for job in ("test", "windows"):
        assert _jobs("test.yml")[job]["strategy"]["matrix"]["python"] == named


def test_the_image_is_built_from_files_that_are_there_and_are_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert ignored[0] == "*"
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}" in ignored


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["title"]) == (any2ds.__version__, "any2ds")


def test_the_devcontainer_installs_with_the_makefile() -> None:
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert content["postCreateCommand"].endswith("make install")
