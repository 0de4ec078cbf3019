"""`Info`: what a recipe says of its dataset, checked when it is said."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from any2ds.core import suggestions
from any2ds.core.errors import UsageError
from any2ds.dataset.features import Features

README, CITATIONS, TAGS = "README.md", "CITATIONS.bib", "TAGS.txt"
"""Files beside a recipe, which hold its description, citation and tags where `Info` does not."""

_TAG = re.compile(r"[a-z0-9][a-z0-9.:_-]*")
_ENTRY = re.compile(r"@\s*\w+\s*[{(]")  # the beginning of an entry of BibTeX


@dataclass(frozen=True)
class Info:
    """The description that a recipe gives of its dataset. Raises UsageError, which names what is wrong."""

    features: Mapping[str, Any]  # name -> feature, or a dict of features
    description: str = ""  # default: the README.md beside the recipe, else the docstring of its class
    homepage: str = ""  # an http(s) URL
    license: str = ""  # such as CC-BY-4.0
    citation: str = ""  # BibTeX; default: the CITATIONS.bib beside the recipe
    tags: Sequence[str] = ()  # such as images, language:en; default: the TAGS.txt beside the recipe
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


def _tags_in(text: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


def checked_tags(tags: Any, where: str) -> tuple[str, ...]:
    """The tags, each once. Raises UsageError for what cannot be one."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"{where}: tags={tags!r}: expected a list of texts")
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{where}: invalid tag {tag!r}: expected small letters, digits, -, _, . and :")
    return tuple(dict.fromkeys(tags))


def checked_citation(text: str, where: str) -> str:
    """The text without its indentation. Raises UsageError if no entry of BibTeX is in it."""
    text = inspect.cleandoc(text).strip()
    if text and not _ENTRY.search(text):
        raise UsageError(f"{where}: the citation is not BibTeX: it has no entry such as @article{{key, ...}}")
    return text
