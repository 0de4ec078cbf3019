"""The README and the documentation: commands that the options take, Python that compiles, links that lead somewhere.

The snippets that load datasets are run by tests/reading, those of a step by tests/transforms/test_user.py.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from any2ds.cli import _page, parse
from any2ds.config.commands import COMMANDS
from any2ds.config.declare import declared
from any2ds.config.options import parse_options
from any2ds.core.errors import MissingExtra

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")])
PAGES = [page for page in PAGES if not {"made", "build"} & {*page.relative_to(ROOT).parts}]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for language, block in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The command lines of any2ds on a page, as words."""
    lines = "\n".join(blocks(page, "bash", "")).replace("\\\n", " ").splitlines()
    found = [match[1] for line in lines if (match := re.search(r"(?:^|\| )(any2ds .*)", line))]
    return [shlex.split(command, comments=True)[1:] for command in found]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_one(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for words in commands(page):
        if "run.yaml" in " ".join(words):
            (tmp_path / "run.yaml").write_text("timeout: 5\n")
            monkeypatch.chdir(tmp_path)
        if _page(words) is not None:
            continue
        name, arguments = (words[0], words[1:]) if words[0] in COMMANDS else ("download", words)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("BOXES", "boxes")
            try:
                parse_options(parse(arguments, COMMANDS[name]), COMMANDS[name].groups)
            except MissingExtra as missing:
                pytest.fail(f"{words}: {missing}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_python_compiles_and_knows_its_options(page: Path) -> None:
    known = {name: {info.name for info in declared(command.groups)} for name, command in COMMANDS.items()}
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("any2ds.") in known:
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                assert given <= known[ast.unparse(node.func).removeprefix("any2ds.")] | {"config", "image_size"}, block


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in path:
            if "any2ds/blob/main/" in path:
                assert (ROOT / path.partition("any2ds/blob/main/")[2]).exists(), target
            continue
        there = page.parent / path if path else page
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_target_of_make_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+)(?: [\w-]+)*:", makefile, re.MULTILINE)) | {"black"}
    for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert target in targets


def test_each_page_of_the_guide_begins_with_what_to_type() -> None:
    for page in ROOT.glob("docs/*.md"):
        text = page.read_text(encoding="utf-8")
        assert re.match(r"# .+\n\n```(bash|python)\n", text), page.name
