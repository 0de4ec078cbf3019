"""Templates of what people read: the report, the dataset card, and the lines of Python that load a dataset.

Whatever comes from a list, a server or the name of a file is text in them, and nothing else.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import (
    Environment,
    FileSystemBytecodeCache,
    FileSystemLoader,
    StrictUndefined,
    pass_eval_context,
    select_autoescape,
)
from jinja2.bccache import Bucket
from jinja2.nodes import EvalContext
from markupsafe import Markup, escape

from any2ds.core import text
from any2ds.core.errors import printable
from any2ds.core.failures import known_outcome, meaning_of

_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST = 500  # characters of a text in Markdown
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B|bytes|ms|s|min|d|rows|MB/s)\b|%)|(?<=\bp\d\d) (?=\d)")
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]()#+.!|~$:@-])")


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates, kept beside them as Python keeps modules: to compile one takes longer than to fill it."""

    def __init__(self) -> None:
        super().__init__(str(_TEMPLATES / "__pycache__"), f"%s.{sys.implementation.cache_tag}.jinja")

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):  # the folder is not ours to write to
            if not sys.dont_write_bytecode:
                Path(self.directory).mkdir(exist_ok=True)
                super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    """The templates in `templates/`; those of HTML escape what they are given."""
    found = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        bytecode_cache=_Compiled(),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters.update(
        number=text.number,
        size=_measure(text.size),
        duration=_measure(text.duration),
        tidy=tidy,
        unbroken=unbroken,
        rows=_measure(text.rows),
        moment=text.moment,
        ticked=ticked,
        meaning=meaning,
        advice=advice,
        md=plain,
        code=code,
        fenced=fenced,
        literal=literal,
        literals=lambda values: ", ".join(map(literal, values)),
    )
    found.globals["percent"] = text.percent
    return found


def _measure(shown: Callable[[Any], str]) -> Callable[[EvalContext, Any], str]:
    """A filter that writes a number and its unit; a page does not break the line between them."""

    @pass_eval_context
    def measure(context: EvalContext, value: Any) -> str:
        return shown(value).replace(" ", "\u00a0") if context.autoescape else shown(value)

    return measure


def tidy(value: object) -> Markup:
    """A text in a page, where no line breaks inside an option or between a number and its unit."""
    escaped = str(escape(value))
    measured = re.sub(
        r"(?<=\bp\d\d) (?=\d)|(?<=\d) (?=(?:%|[kMGT]?B|bytes|ms|s|min|d|rows|MB/s)\b|%)", "\u00a0", escaped
    )
    return Markup(re.sub(r"(?<![\w-])--[a-z]\w*(?:=[^\s,;:.)]+)?", r'<code class="option">\g<0></code>', measured))


def ticked(value: object) -> Markup:
    """A text in a page; what stands between backquotes is code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(value))))


def unbroken(command: str) -> Markup:
    """A command in a page, where no line breaks inside the name of an option."""
    return Markup(re.sub(r"--[a-z]\w*=?", r'<span class="option">\g<0></span>', str(escape(command))))


def meaning(code: str) -> str:
    """What an outcome means, in one sentence; empty for codes of other tools."""
    return "what is rarer than these" if code == "other" else meaning_of(code)


def advice(code: str) -> str:
    """What to do about an outcome, if anything."""
    known = known_outcome(code)
    return known.advice if known is not None else ""


def plain(value: object) -> str:
    """As Markdown and HTML show it: on one line, without markup, links, or an end to a cell of a table."""
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
    """Of backquotes."""
    runs: Iterable[str] = re.findall("`+", value)
    return max(map(len, runs), default=0)


def literal(value: str) -> str:
    """As Python writes it, in double quotes; what no one can see or type is escaped."""
    own = {'"': '\\"', "\\": "\\\\"}
    shown = (own.get(c) or (c if c.isprintable() else c.encode("unicode_escape").decode("ascii")) for c in value)
    return f'"{"".join(shown)}"'
