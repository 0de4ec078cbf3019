"""Which charset a page in Latin letters is in that does not say so: that in which one language explains its letters.

Statistical detectors are poor at this, since a page has few letters beyond ASCII, and the charsets differ in few:
charset-normalizer took French for Baltic, and Swedish and Portuguese for Central European, however long they were.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

# In the order in which they are taken where several explain the letters as well: that of how common they are.
_LANGUAGES = (
    ("cp1252", "àâæçéèêëîïôœùûüÿ"),  # French, and English with words from there
    ("cp1252", "äöüßé"),
    ("cp1252", "áéíñóúüçª\u00ba"),
    ("cp1252", "ãáâàçéêíóôõúüª\u00ba"),
    ("cp1252", "àèéìíîòóùú\u00ba"),
    ("cp1252", "åäöéü"),  # Swedish and Finnish
    ("cp1252", "æøåéóòô"),
    ("cp1252", "áéèëïíóöúü"),  # Dutch
    ("cp1252", "àçèéíïòóúü"),  # Catalan
    ("cp1250", "ąćęłńóśźż"),
    ("iso8859_2", "ąćęłńóśźż"),
    ("cp1250", "áčďéěíňóřšťúůýž"),
    ("iso8859_2", "áčďéěíňóřšťúůýž"),
    ("cp1250", "áäčďéíĺľňóôŕšťúýž"),
    ("iso8859_2", "áäčďéíĺľňóôŕšťúýž"),
    ("cp1250", "áéíóöőúüű"),
    ("cp1250", "čćđšž"),
    ("iso8859_2", "čćđšž"),
    ("cp1250", "ăâîşţ"),
    ("cp1254", "çğıöşüâîû"),
    ("cp1252", "áéíóúýþæöð"),  # Icelandic
    ("cp1257", "ąčęėįšųūž"),
    ("cp1257", "āčēģīķļņšūž"),
    ("cp1257", "äöõüšž"),
)
_HIGH = re.compile(rb"[\x80-\xff]+")
_LONG = 5  # letters beyond ASCII that hardly ever stand together in these languages; at most one of five does
_BAD = 3  # letters that fit for one that does not
_IN_WORDS = re.compile(rb"(?<=[A-Za-z])[\x80-\xff](?=[A-Za-z])")
_AT_WORDS = re.compile(rb"(?<=[A-Za-z])[\xa0-\xff]|[\xa0-\xff](?=[A-Za-z])")
_APOSTROPHES = frozenset("\u2019\u2018\u00b4`·\u00ad\u2013\u2014\u2026")  # signs that stand between letters


def latin_charset(data: bytes) -> str | None:
    """None if it does not look like words in Latin letters."""
    runs = _HIGH.findall(data)
    if not runs or sum(len(run) for run in runs if len(run) >= _LONG) * _LONG > sum(map(len, runs)):
        return None
    single, inside = Counter(b"".join(runs)), Counter(b"".join(_IN_WORDS.findall(data)))
    if not _AT_WORDS.search(data) and not any(map(_is_letter, single)):
        return "cp1252"  # nothing but signs, which the others would have letters for
    best, most = None, 0
    for charset, alphabet in _LANGUAGES:
        score = _score(charset, frozenset(alphabet), single, inside)
        if best is None or score > most:
            best, most = charset, score
    return best if most > 0 else None


def _score(charset: str, alphabet: frozenset[str], single: Counter[int], inside: Counter[int]) -> int:
    """Letters of a language, less what would be no text in it."""
    score = 0
    for byte, count in single.items():
        character = bytes([byte]).decode(charset, "replace")
        kind = unicodedata.category(character)[0]
        if character.lower().replace("i\u0307", "\u0131") in alphabet:
            score += count
        elif kind == "L" or kind == "C" or character == "\ufffd":
            score -= _BAD * count
        elif character not in _APOSTROPHES:
            score -= _BAD * inside[byte]
    return score


def _is_letter(byte: int) -> bool:
    return bytes([byte]).decode("cp1252", "replace").isalpha()
