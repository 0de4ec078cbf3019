"""`Info`: what a recipe says of its dataset, checked when it is said."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from any2ds.core import suggestions
from any2ds.core.errors import UsageError
from any2ds.dataset.features import Features

README, CITATIONS, TAGS = "README.md", "CITATIONS.bib", "TAGS.txt"
"""Files beside a recipe, which hold its description, citation and tags where `Info` does not."""

_TAG = re.compile(
    r"(?:language:|content\.language\.)(?P<language>[a-z]{2,3})"
    r"|(?P<group>content\.(?:(?:data-type|subject|language-formality)\.)?|ml\.(?:task|fairness)\.)?(?P<name>[a-z0-9-]+)"
)
_IN_OUR_LIST = {
    "financial": "finance",
    "graph": "graphs",
    "image": "images",
    "point-cloud": "point-clouds",
    "tabular": "tables",
    "trajectory": "trajectories",
    "web-page": "web",
}
"""Names of TensorFlow Datasets for what our list has in another form."""

_ENTRY = re.compile(r"@\s*(\w+)\s*([{(])\s*([^\s,{}()\"]+)\s*,", re.ASCII)
_FIELD = re.compile(r"\s*([A-Za-z][\w:.+-]*)\s*=\s*", re.ASCII)
_PLAIN = re.compile(r"[\w.:+-]+", re.ASCII)


@dataclass(frozen=True)
class Info:
    """The description that a recipe gives of its dataset. Raises UsageError, which names what is wrong."""

    features: Mapping[str, Any]  # name -> feature, or a dict of features
    description: str = ""  # default: the README.md beside the recipe, else the docstring of its class
    homepage: str = ""  # an http(s) URL
    license: str = ""  # such as CC-BY-4.0
    citation: str = ""  # BibTeX; default: the CITATIONS.bib beside the recipe
    tags: Sequence[str] = ()  # of `any2ds.recipes.info.known_tags()`; default: the TAGS.txt beside the recipe
    supervised_keys: tuple[Any, ...] | None = None  # the features that are input and target, and maybe a weight
    disable_shuffling: bool = False  # samples are stored in the order of their keys, not of a hash of these

    def __post_init__(self) -> None:
        if not isinstance(self.features, Mapping):
            raise UsageError(f"Info: features={self.features!r}: expected a dict of features by name")
        object.__setattr__(self, "features", dict(self.features))
        for name in ("description", "homepage", "license", "citation"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"Info: {name}={getattr(self, name)!r}: expected a text")
        if self.homepage and not re.fullmatch(r"https?://[^\s/]+\S*", self.homepage):
            raise UsageError(f"Info: homepage={self.homepage!r}: expected a URL that begins with https://")
        object.__setattr__(self, "description", inspect.cleandoc(self.description))
        object.__setattr__(self, "citation", checked_citation(self.citation, "Info"))
        object.__setattr__(self, "tags", checked_tags(self.tags, "Info"))
        found = Features(self.features)  # raises for those that there cannot be
        if self.supervised_keys is not None:
            keys = self.supervised_keys
            if not isinstance(keys, tuple) or len(keys) not in (2, 3):
                raise UsageError(f"Info: supervised_keys={keys!r}: expected two features, or three with a weight")
            for name in _names(keys):
                if name not in found.tree.parts:
                    hint = suggestions.for_name(str(name), found.tree.parts) or f"one of {', '.join(found.tree.parts)}"
                    raise UsageError(f"Info: supervised_keys: no feature is called {name!r}: {hint}")

    def completed(self, folder: Path | None, docstring: str) -> Info:
        """A copy, completed by the files beside the recipe and by the docstring of its class. Raises UsageError."""
        found = {"description": self.description, "citation": self.citation, "tags": self.tags}
        if folder is not None:
            for field, name in (("description", README), ("citation", CITATIONS), ("tags", TAGS)):
                path = folder / name
                if found[field] or not path.is_file():
                    continue
                text = path.read_text(encoding="utf-8-sig")
                text = re.sub(r"\A\s*# .*\n", "", text) if field == "description" else text  # its title is the name
                found[field] = _tags_in(text) if field == "tags" else text.strip()
            checked_citation(str(found["citation"]), CITATIONS)
            checked_tags(tuple(found["tags"]), TAGS)
        found["description"] = found["description"] or docstring
        others = {name: getattr(self, name) for name in ("features", "homepage", "license", "supervised_keys")}
        return Info(**others, **found, disable_shuffling=self.disable_shuffling)  # type: ignore[arg-type]


def _names(keys: Any) -> list[Any]:
    if isinstance(keys, Mapping):
        return [name for each in keys.values() for name in _names(each)]
    return [name for each in keys for name in _names(each)] if isinstance(keys, tuple) else [keys]


@cache
def known_tags() -> tuple[str, ...]:
    """The tags that a recipe may have."""
    return tuple(_tags_in((files("any2ds.recipes") / "tags.txt").read_text(encoding="utf-8")))


def is_known_tag(tag: str) -> bool:
    """Whether it is one of the list, a language, or one of TensorFlow Datasets."""
    match = _TAG.fullmatch(tag)
    if match is None or match["language"]:
        return match is not None
    name = match["name"]
    return name in known_tags() or (bool(match["group"]) and _IN_OUR_LIST.get(name, "") in known_tags())


def _tags_in(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def checked_tags(tags: Any, where: str) -> tuple[str, ...]:
    """Raises UsageError for one that is not known."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"{where}: tags={tags!r}: expected a list of texts")
    for tag in tags:
        if not is_known_tag(tag):
            hint = suggestions.for_name(tag, known_tags()) or f"any2ds new lists all {len(known_tags())} in {TAGS}"
            raise UsageError(f"{where}: unknown tag {tag!r}: {hint}")
    return tuple(dict.fromkeys(tags))


def checked_citation(text: str, where: str) -> str:
    """The text without its indentation. Raises UsageError if it is not BibTeX: entries with a key and fields."""
    text = inspect.cleandoc(text).strip()
    at = 0
    while at < len(text):
        start = text.find("@", at)
        if start < 0:
            if not at:
                raise UsageError(f"{where}: the citation is not BibTeX: it has no entry such as @article{{key, ...}}")
            break
        at = _after_entry(text, start, where)
    return text


def _after_entry(text: str, start: int, where: str) -> int:
    """Where an entry ends. Raises UsageError."""

    def wrong(at: int, what: str) -> UsageError:
        return UsageError(f"{where}: the citation is not BibTeX: line {text.count(chr(10), 0, at) + 1}: {what}")

    entry = _ENTRY.match(text, start)
    if entry is None:
        raise wrong(start, "expected @type{key, field = {value}}")
    close = "}" if entry[2] == "{" else ")"
    at, fields = entry.end(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if text[at : at + 1] == close:
            if not fields:
                raise wrong(at, f"the entry {entry[3]} has no field")
            return at + 1
        field = _FIELD.match(text, at)
        if field is None:
            raise wrong(at, f"expected field = {{value}} or the end of the entry {entry[3]}")
        at, fields = _after_value(text, field.end()), fields + 1
        if at < 0:
            raise wrong(field.end(), f"the value of {field[1]} does not end")
        while at < len(text) and text[at].isspace():
            at += 1
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != close:
            raise wrong(at, f"expected a comma behind the value of {field[1]}")


def _after_value(text: str, at: int) -> int:
    """Where a value ends: {…}, "…", or a number or name, joined by #; -1 if it does not."""
    while True:
        if text[at : at + 1] in ("{", '"'):
            depth, quoted = 0, text[at] == '"'
            place = at + 1 if quoted else at
            while place < len(text):
                char = text[place]
                if char == "\\":
                    place += 1
                elif char == "{":
                    depth += 1
                elif char == "}":
                    depth -= 1
                if (quoted and char == '"' and not depth) or (not quoted and not depth):
                    break
                place += 1
            if place >= len(text):
                return -1
            at = place + 1
        else:
            plain = _PLAIN.match(text, at)
            if plain is None:
                return -1
            at = plain.end()
        joined = re.compile(r"\s*#\s*").match(text, at)
        if joined is None:
            return at
        at = joined.end()
