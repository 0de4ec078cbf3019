"""Texts of strangers, as they may be shown to people: in the report, the card and other pages."""

from __future__ import annotations

import re

from any2ds.core.errors import redacted
from any2ds.core.metadata import without_credentials

# Controls but for tab and newline, what changes the direction of what stands around it, and halves of characters.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def shown(text: str, most: int | None = None) -> str:
    """As it may stand in a text for people, of at most so many characters: without controls."""
    text = _UNSHOWN.sub("", text)
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def shown_url(url: str) -> str:
    """Without what lets anybody in who has it, and what could be taken for something else."""
    return shown(redacted(without_credentials(url)), 2000)
