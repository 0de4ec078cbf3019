"""Templates of what people read: the report and the dataset card.

Whatever comes from a list, a server or the name of a file is text in them, and nothing else.
"""

from __future__ import annotations

import contextlib
import re
import sys
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined, select_autoescape
from jinja2.bccache import Bucket

from any2ds.core import text
from any2ds.core.errors import printable
from any2ds.core.failures import known_outcome, meaning_of
from any2ds.core.terminal.results import write_file

_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST = 500  # characters of a text in Markdown
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()#+.!|~$:@-])")


class _CompiledTemplates(BytecodeCache):
    """Keeps templates compiled, as Python keeps modules: in `__pycache__`, where that can be written. To compile that
    of the report takes as much of the processor as half an import of pyarrow."""

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError), open(self._path(bucket), "rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        path = self._path(bucket)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True, parents=True)
            write_file(path, bucket.bytecode_to_string())

    def _path(self, bucket: Bucket) -> Path:
        return Path(cache_from_source(str(_TEMPLATES / f"{bucket.key}.py")))


@cache
def environment() -> Environment:
    """The templates in `templates/`; those of HTML escape what they are given."""
    found = Environment(
        bytecode_cache=_CompiledTemplates(),
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(
        number=text.number,
        size=text.size,
        duration=text.duration,
        rows=text.rows,
        moment=text.moment,
        meaning=meaning,
        advice=advice,
        md=plain,
        code=code,
        fenced=fenced,
    )
    found.globals["percent"] = text.percent
    return found


def meaning(code: str) -> str:
    """Meaning of an outcome, in one sentence; empty for codes of other tools."""
    return "what is rarer than these" if code == "other" else meaning_of(code)


def advice(code: str) -> str:
    """Advice about an outcome, if there is any."""
    known = known_outcome(code)
    return known.advice if known is not None else ""


def plain(value: object) -> str:
    """A text as Markdown and HTML show it: on one line, without markup, links, or an end to a cell of a table."""
    shown = printable(" ".join(str(value)[:_LONGEST].split()))
    return _PUNCTUATION.sub(r"\\\1", shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def code(value: object) -> str:
    """A span of code in Markdown, also in a table."""
    shown = printable(str(value)[:_LONGEST])
    fence = "`" * (1 + _longest_run(shown))
    pad = " " if shown[:1] in ("`", "") or shown[-1:] == "`" or shown != shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def fenced(value: str, language: str) -> str:
    """A block of code in Markdown."""
    fence = "`" * max(3, 1 + _longest_run(value))
    return f"{fence}{language}\n{value.rstrip()}\n{fence}"


def _longest_run(value: str) -> int:
    """The length of the longest run of backquotes."""
    return max(map(len, re.findall("`+", value)), default=0)
