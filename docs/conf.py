"""The documentation site: Sphinx with MyST. `make docs` builds it.

Pages on options and the Python API are made here from the code; the architecture, the recipes and other
documents of the repository are taken from where they are.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import any2ds
from any2ds.config.commands import COMMANDS
from any2ds.config.declare import declared
from any2ds.core.version import HOMEPAGE, __version__

project, author, release = "any2ds", "the any2ds authors", __version__
copyright = author
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"any2ds {__version__}"
exclude_patterns = ["build"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nitpicky = True
smartquotes = False  # they make a dash of the two hyphens of an option
html_static_path = ["static"]
html_css_files = ["options.css"]
suppress_warnings = ["misc.highlighting_failure"]

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "made"  # what is written here is not in the repository
_SOURCE = f"{HOMEPAGE}/blob/main/"
_PAGES = {  # documents of the repository -> pages of the site
    "ARCHITECTURE.md": "made/architecture.md",
    "CONTRIBUTING.md": "made/contributing.md",
    "CHANGELOG.md": "made/changelog.md",
    "benchmarks/README.md": "made/benchmarks.md",
    **{
        f"dataset_examples/{path.name}": f"made/recipes/{path.name}"
        for path in (ROOT / "dataset_examples").glob("*.md")
    },
}


def main() -> None:
    for name, page in _PAGES.items():
        if name.endswith(".md") and (ROOT / name).exists():
            _write(page, _relinked((ROOT / name).read_text(encoding="utf-8"), Path(name).parent, Path(page).parent))
    _write("made/options.md", "\n".join(_options()))
    _write("made/api.md", "\n".join(_api()))


def setup(app: Any) -> None:
    """Pages of the guide link to files of the repository, which works there; on the site the links lead to pages."""

    def relink(app: Any, name: str, source: list[str]) -> None:
        if not name.startswith("made/"):
            source[0] = _relinked(source[0], Path("docs", name).parent, Path(name).parent)

    app.connect("source-read", relink)


def _write(page: str, text: str) -> None:
    path = DOCS / page
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx reads again what has changed
        path.write_text(text, encoding="utf-8")


def _relinked(text: str, folder: Path, page: Path) -> str:
    """Links to other documents lead to their pages, links to other files to the repository."""

    def link(match: re.Match[str]) -> str:
        target, anchor = match[1].partition("#")[::2]
        if "://" in target or not target:
            return match[0]
        there = _normal(folder / target)
        up = "../" * len(page.parts)
        if there in _PAGES:
            return f"]({up}{_PAGES[there]}{'#' * bool(anchor)}{anchor})"
        if there.startswith("docs/"):
            return f"]({up}{there.removeprefix('docs/')}{'#' * bool(anchor)}{anchor})"
        return f"]({_SOURCE}{there})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _options() -> Iterable[str]:
    yield "# All options"
    yield ""
    yield "```bash\nany2ds --help=all\nany2ds --config=run.yaml --timeout=30    # the command line wins\n```"
    yield ""
    yield (DOCS / "options.txt").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        yield f"## any2ds {name}\n"
        yield f"`{command.usage}`: {command.summary}.\n"
        if name == "retry":
            names = {info.name for info in declared(COMMANDS["download"].groups)}
            infos = [
                info for info in declared(command.groups) if info.name not in names or info.name == "output_folder"
            ]
            yield "Besides the options of `any2ds download` on storing, downloading, running and watching:\n"
        else:
            infos = list(declared(command.groups))
        group = ""
        for info in infos:
            if info.group != group:
                group = info.group
                yield f"\n### {group}{'' if name == 'download' else f' ({name})'}\n"
                yield "| option | default | meaning |\n|---|---|---|"
            yield f"| `{info.name}` | {_cell(info.shown)} | {_cell(info.help)} |"
        yield ""


def _api() -> Iterable[str]:
    yield "# Python API"
    yield ""
    yield '```python\nfrom any2ds import download, inspect, retry, verify\n\ndownload("urls.txt", "dataset")\n```'
    yield ""
    yield "The functions take the [options of the command line](options.md) as keywords; editors know them."
    for name in sorted(any2ds.__all__):
        value = getattr(any2ds, name)
        if isinstance(value, str):
            continue
        yield f"\n## {name}\n"
        doc = inspect.getdoc(value) or ""
        if (command := name.replace("_", "-")) in COMMANDS:  # its options are on a page of their own
            first = ", ".join(COMMANDS[command].positional)
            summary = doc.partition("\n\n")[0]
            ending = doc.rpartition("what is given here wins")[2].strip()
            yield f"```python\nany2ds.{name}({first}, **options)\n```\n"
            yield f"{summary}\n\n{_text(name, doc, summary)}{ending}\n"
        else:
            yield _prose(doc)
            if dataclasses.is_dataclass(value):
                yield "\n| attribute | type | meaning |\n|---|---|---|"
                yield from (
                    f"| `{field}` | `{_cell(type_)}` | {_cell(text)} |" for field, type_, text in _fields(value)
                )


def _prose(doc: str) -> str:
    """A docstring; a list in it, which is indented, keeps its lines."""
    parts = re.split(r"((?:^.*[^.]\n(?:[ \t]+.+\n?)+)+)", doc, flags=re.MULTILINE)
    return "\n".join(f"```text\n{part.strip()}\n```" if number % 2 else part for number, part in enumerate(parts))


def _fields(kind: type) -> Iterable[tuple[str, str, str]]:
    """Name, type and comment of each field of a dataclass that has one."""
    names = {field.name: field.type for field in dataclasses.fields(kind)}
    source = "".join(inspect.getsource(each) for each in reversed(kind.__mro__) if dataclasses.is_dataclass(each))
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", source, re.MULTILINE))
    return ((name, str(type_), comments[name]) for name, type_ in names.items() if name in comments)


def _text(name: str, doc: str, summary: str) -> str:
    """What a docstring says between its summary and the options, whose groups are indented titles or the start."""
    first_group = next(declared(COMMANDS[name.replace("_", "-")].groups)).group
    between = doc.removeprefix(summary).partition(f"{first_group}:\n")[0].strip("\n")
    return f"{_prose(between)}\n\n" if between.strip() else ""


def _cell(text: str) -> str:
    escaped = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return re.sub(r"(?<![\w`-])--[a-z]\w*(?:=[\w.]*\w)?", r"`\g<0>`", escaped)  # options, which then do not break


main()
