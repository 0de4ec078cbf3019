"""Tests come in by a few doors, so that walls can be moved: the public interface, values, and decisions that are pure.

What a run does is played from outside (`tests.support.play`). Files that were written before this rule are listed in
`doors.txt`, which only becomes shorter: whoever rebuilds a room replaces its tests, and takes their files off the list.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LISTED = TESTS / "doors.txt"
PUBLIC = ("any2ds", "any2ds.testing", "any2ds.cli")
# Values that flow from room to room, and functions of values alone: their tests need no files, sockets or clock.
PURE = {
    "core": "digests errors failures filetypes histogram layout manifest metrics processes.watchdog reports rows"
    " samples schemes signatures stats text version",
    "config": "command_line commands datasets declare help options parsers needs",
    "fetch": "policy urls host_slots robots_files engines.encodings",
    "readers": "plan sources formats._repair",
    "transforms": "chain image steps._charset steps._clips",
    "writers": "formats._offsets",
    "run": "ledger diagnosis monitor place",
    "dataset": "expected shards",
    "load": "expressions order splits",
    "describe": "summary sums",
    "estimate": "advice facts model sketches",
}
_OPEN = [*PUBLIC, *(f"any2ds.{room}.{name}" for room, names in PURE.items() for name in names.split())]
_PATH = re.compile(r"any2ds(\.\w+)+")  # of what a test patches by its name
FILES = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}


def is_open(module: str) -> bool:
    """Whether a test may import it; of a package that is open, all is."""
    return module == "any2ds" or any(
        module == door or module.startswith(f"{door}.") for door in _OPEN if door != "any2ds"
    )


@cache
def closed_doors(name: str) -> frozenset[str]:
    """The modules that a file imports, or patches by their names, and may not; or another test that it imports from."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= (
                {"any2ds"} if node.module == "any2ds" else set(map(_module, names))
            )  # a room may be called as a name
        elif isinstance(node, ast.Import):
            found |= {_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
            "setattr",
            "delattr",
            "setitem",
            "patch",
        ):
            found |= {_module(text) for text in _texts(node) if _PATH.fullmatch(text)}
    others = {module for module in found if ".test_" in module and module.startswith("tests.")}
    return frozenset({module for module in found if module.startswith("any2ds") and not is_open(module)} | others)


def _texts(call: ast.Call) -> list[str]:
    return [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _module(name: str) -> str:
    """The module that a dotted name is, or is in."""
    root = TESTS.parent
    parts = name.split(".")
    while len(parts) > 1 and not (root.joinpath(*parts).is_dir() or root.joinpath(*parts).with_suffix(".py").is_file()):
        parts.pop()
    return ".".join(parts)


def listed() -> list[str]:
    return [line for line in LISTED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", [name for name in FILES if name not in listed()])
def test_a_test_comes_in_by_the_doors(name: str) -> None:
    assert not closed_doors(name), "play it from outside, or test a decision that is pure: see CONTRIBUTING.md"


def test_the_list_has_only_files_that_need_it() -> None:
    assert listed() == sorted(name for name in listed() if name in FILES and closed_doors(name))
