"""Changes the product at random places, one at a time, and says which changes no play notices.

    .venv/bin/python tools/mutate.py --count=100 --seed=1
    .venv/bin/python tools/mutate.py any2ds/fetch/policy --count=20 --tests tests/fetch

The tests run once without a change, to learn which functions each of them calls in its own process. For each change, in
a copy of the working tree, those that call the changed function run until one fails, the quickest first. A change by
which one fails or hangs is caught. The others are what the plays do not promise yet, or make no difference (a size of a
buffer, a shortcut); of a function that only processes of a play call, nothing is known, and the change counts as
slipped.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
}
_SLACK = 120.0  # seconds that a run may take beside three times as long as without a change
_RECORD = "MUTATE_RECORD"  # variable: the file in which the calls of tests are written, one test a line


@dataclass(frozen=True)
class Mutation:
    """One change of one file: the bytes from `start` to `end` become `text`."""

    path: Path  # relative to the project
    line: int
    start: int
    end: int
    before: str
    text: str
    function: int  # first line of the innermost function around it, 0 for the module

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_short(self.before)}  ->  {_short(self.text)}"


def mutations(path: Path) -> Iterator[Mutation]:
    """The changes that can be made to a file, but for annotations and docstrings, which do nothing."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function in _executed(ast.parse(source), 0):
        for target, text in _changes(node):
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[(target.end_lineno or target.lineno) - 1] + (target.end_col_offset or 0)
            if (before := source[start:end].decode()) != text:
                yield Mutation(path, target.lineno, start, end, before, text, function)


def _executed(node: ast.AST, function: int) -> Iterator[tuple[ast.AST, int]]:
    """Nodes that are run, from the top down, and the first line of the function that runs them."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node, function
    within = function
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        within = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _executed(child, within if name == "body" else function)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes to replace, and by what text."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        changed = _COMPARISONS[type(node.ops[0])]
        yield node, f"{ast.unparse(node.left)} {changed} {ast.unparse(node.comparators[0])}"
    elif isinstance(node, ast.BoolOp):
        yield node, f"({(' and ' if isinstance(node.op, ast.Or) else ' or ').join(map(_in_brackets, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, _in_brackets(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield node, f"({_in_brackets(node.left)} {_ARITHMETIC[type(node.op)]} {_in_brackets(node.right)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield node, str(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield node, "return None"
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"not {_in_brackets(node.test)}"
    elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        yield node, "pass"
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield node, f"{ast.unparse(node.target)} -= {ast.unparse(node.value)}"


def _in_brackets(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."


# --- which tests call what ---


@dataclass(frozen=True)
class Played:
    """A test, and what it called."""

    name: str  # node id of pytest
    seconds: float
    functions: frozenset[tuple[str, int]]  # file relative to the project, first line


_failed: set[str] = set()  # node ids


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Writes down the functions of the product that a test calls if it passes, where this file is a plugin."""
    codes: dict[int, CodeType] = {}

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    started = time.monotonic()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        root = f"{Path.cwd()}{os.sep}"
        names = {(code.co_filename.removeprefix(root), code.co_firstlineno) for code in codes.values()}
        functions = sorted(found for found in names if found[0].startswith("any2ds"))
        if item.nodeid not in _failed:
            with Path(os.environ[_RECORD]).open("a") as file:
                print(json.dumps([item.nodeid, time.monotonic() - started, functions]), file=file)


def _record(copy: Path, tests: Sequence[str], processes: int) -> list[Played]:
    """What each test calls that passes without a change, the quickest test first."""
    record = copy.parent / "calls"
    environment = {**os.environ, _RECORD: str(record), "PYTHONPATH": f"{copy}{os.pathsep}{ROOT / 'tools'}"}
    record.touch()
    subprocess.run(_pytest(["-p", "mutate", *tests], processes), cwd=copy, env=environment)
    found = [json.loads(line) for line in record.read_text().splitlines()]
    played = [Played(name, seconds, frozenset(map(tuple, functions))) for name, seconds, functions in found]
    return sorted(played, key=lambda test: test.seconds)


def _callers(mutation: Mutation, played: Sequence[Played], most: float) -> list[Played]:
    """Tests that call the changed function, as many as take `most` seconds together; all of a file for its module."""
    path, found = str(mutation.path), []
    for test in played:
        called = {line for name, line in test.functions if name == path}
        if (mutation.function in called) if mutation.function else called:
            found.append(test)
            most -= test.seconds
            if most < 0:
                break
    return found


def _pytest(arguments: Sequence[str], processes: int) -> list[str]:
    side_by_side = ["-n", str(processes)] if processes > 1 else []
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow"]
    return [sys.executable, "-m", "pytest", *options, *side_by_side, *arguments]


# --- the changes ---


def main() -> None:
    """Prints each change with its fate, and how many were caught; ends with 1 if fewer than `--least` percent were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("any2ds")], help="files or folders to change")
    parser.add_argument("--count", type=int, default=100, help="changes to try [100]")
    parser.add_argument("--seed", type=int, default=0, help="of their choice [0]")
    parser.add_argument("--tests", nargs="+", default=["tests/plays"], help="what has to notice them [tests/plays]")
    parser.add_argument("--least", type=int, default=0, help="percent that have to be caught [0]")
    parser.add_argument("--processes", type=int, default=2, help="that run the tests [2]")
    parser.add_argument("--seconds", type=float, default=120, help="of tests for a change, without one [120]")
    given = parser.parse_args()
    files = [file for path in given.paths for file in _files(path)]
    possible = [mutation for file in files for mutation in mutations(file)]
    chosen = random.Random(given.seed).sample(possible, min(given.count, len(possible)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        _copy_project(copy)
        played = _record(copy, given.tests, given.processes)
        caught = 0
        for mutation in chosen:
            tests = _callers(mutation, played, given.seconds)
            is_caught = bool(tests) and _is_caught(mutation, copy, tests, given.processes)
            caught += is_caught
            print("caught " if is_caught else "SLIPPED" if tests else "UNCALLED", mutation, flush=True)
    print(f"{caught} of {len(chosen)} changes were caught, of {len(possible)} that are possible")
    raise SystemExit(100 * caught < given.least * len(chosen))


def _files(path: Path) -> list[Path]:
    found = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    return [file.relative_to(ROOT) for file in found if "testing" not in file.relative_to(ROOT).parts]


def _copy_project(copy: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)


def _is_caught(mutation: Mutation, copy: Path, tests: Sequence[Played], processes: int) -> bool:
    file = copy / mutation.path
    original = file.read_bytes()
    file.write_bytes(mutation.apply(original))
    command = _pytest(["-x", *(test.name for test in tests)], processes)
    limit = 3 * sum(test.seconds for test in tests) + _SLACK
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            return run.wait(limit) != 0
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return True
        finally:
            file.write_bytes(original)


if __name__ == "__main__":
    main()
