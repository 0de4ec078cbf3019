"""Changes the product at random places, one at a time, and says which changes no play notices.

    .venv/bin/python tools/mutate.py --count=100 --seed=1
    .venv/bin/python tools/mutate.py any2ds/fetch/policy --count=20 --tests=tests/fetch

Each change is made in a copy of the working tree, in which the tests run until one fails. A change by which one fails
or hangs is caught. The others are what the plays do not promise yet, or make no difference (a size of a buffer, a
shortcut).
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
_SLACK = 60.0  # seconds that a run may take beside three times as long as without a change


@dataclass(frozen=True)
class Mutation:
    """One change of one file: the bytes from `start` to `end` become `text`."""

    path: Path  # relative to the project
    line: int
    start: int
    end: int
    before: str
    text: str

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
    for node in _executed(ast.parse(source)):
        for target, text in _changes(node):
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[(target.end_lineno or target.lineno) - 1] + (target.end_col_offset or 0)
            yield Mutation(path, target.lineno, start, end, source[start:end].decode(), text)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are run, from the top down."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _executed(child)


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


def main() -> None:
    """Prints each change with its fate, and how many were caught; ends with 1 if fewer than `--least` percent were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("any2ds")], help="files or folders to change")
    parser.add_argument("--count", type=int, default=100, help="changes to try [100]")
    parser.add_argument("--seed", type=int, default=0, help="of their choice [0]")
    parser.add_argument("--tests", default="tests/plays", help="what has to notice them [tests/plays]")
    parser.add_argument("--least", type=int, default=0, help="percent that have to be caught [0]")
    parser.add_argument("--processes", default="2", help="that run the tests [2]")
    given = parser.parse_args()
    files = [file for path in given.paths for file in _files(path)]
    possible = [mutation for file in files for mutation in mutations(file)]
    chosen = random.Random(given.seed).sample(possible, min(given.count, len(possible)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        _copy_project(copy)
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            given.processes,
            given.tests,
        ]
        started = time.monotonic()
        if subprocess.run(tests, cwd=copy).returncode:
            raise SystemExit("the tests fail without a change")
        limit = 3 * (time.monotonic() - started) + _SLACK
        slipped = [mutation for mutation in chosen if not _is_caught(mutation, copy, tests, limit)]
    caught = len(chosen) - len(slipped)
    sys.stdout.write(f"{caught} of {len(chosen)} changes were caught, of {len(possible)} that are possible\n")
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


def _is_caught(mutation: Mutation, copy: Path, tests: Sequence[str], limit: float) -> bool:
    file = copy / mutation.path
    original = file.read_bytes()
    file.write_bytes(mutation.apply(original))
    with subprocess.Popen(
        tests, cwd=copy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            is_caught = run.wait(limit) != 0
        except subprocess.TimeoutExpired:
            _kill_session(run.pid)
            is_caught = True
    file.write_bytes(original)
    sys.stdout.write(f"{'caught ' if is_caught else 'SLIPPED'} {mutation}\n")
    sys.stdout.flush()
    return is_caught


def _kill_session(pid: int) -> None:
    import os
    import signal

    os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
