"""Suggestions for an unknown name or path: the nearest one that there is. Pure."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping

_LIKENESS = 0.78  # of two names, by difflib: below it a suggestion is more often wrong than right


def for_name(given: str, known: Collection[str]) -> str:
    """`did you mean timeout?` for a name that is not among `known`; empty if nothing is likely.

    `known` may map each name to others for the same thing, separated by blanks, such as those of other tools.
    """
    others = known if isinstance(known, Mapping) else {}
    name = given.strip("-").replace("-", "_").lower()
    return question([ours for ours, theirs in others.items() if name in theirs.split()] or _nearest(name, known))


def for_path(given: str, names: Collection[str]) -> str:
    """A suggestion for a path on this machine at which there is nothing, by the `names` in its folder."""
    folder, name = os.path.split(given)
    return question([os.path.join(folder, near) for near in _nearest(name, names) if near != name])


def question(meant: Collection[str]) -> str:
    """`did you mean a or b?`; empty if nothing was."""
    return f"did you mean {' or '.join(meant)}?" if meant else ""


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    plain = {_letters(one): one for one in known}  # urllist is url_list
    return [plain[one] for one in difflib.get_close_matches(_letters(name), plain, n=1, cutoff=_LIKENESS)]


def _letters(name: str) -> str:
    return re.sub("[-_]", "", name.lower())
