"""Decodes web pages: by their byte order mark, as UTF-8, as they declare, else as charset-normalizer detects."""

from __future__ import annotations

import codecs
import re

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEAD = 4096  # bytes in which a page declares its charset; browsers look at 1024
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_DETECTED_FROM = 32 << 10  # bytes; detection takes 50 to 500 ms for so many
# Charsets that stand for a larger one (WHATWG, Encoding), by Python's names.
_LARGER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "utf-16": "utf-8",  # since the declaration could be read as ASCII
    "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
}
# Python has further codecs, such as punycode, which no page is in and which can be made slow.
_CHARSETS = re.compile(r"utf-8|cp\d+|iso8859-\d+|iso2022_[a-z0-9_]+|koi8-[ru]|gb18030|big5hkscs|euc_jp|mac[a-z-]*")
# Charsets of pages, but for UTF-8, which is tried before. Noise is often taken for others (DOS, Macintosh).
_ON_THE_WEB = (
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "koi8_r"),
    *("koi8_u", "iso8859_2", "iso8859_5", "iso8859_7", "cp932", "euc_jp", "cp949", "gb18030", "big5hkscs"),
)
_DEFAULT = "cp1252"  # that of most locales by the HTML standard
_FEW = 20  # a charset that fits has at least so many good characters beyond ASCII for each bad one


def decoded(data: bytes) -> str:
    """The text of a page. Bytes that its charset does not have become U+FFFD.

    The charset of the Content-Type header is not used: pages in archives have none, and the same page would have two
    texts. Valid UTF-8 with characters beyond ASCII is hardly ever in another charset.
    """
    for bom, charset in _BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(charset, "replace")
    if wide := _utf16(data):
        return data.decode(wide, "replace")
    declared = _declared(data)
    # ISO-2022 is ASCII to the eye, and so UTF-8.
    for charset in [declared] if declared.startswith("iso2022") else ["utf-8", declared]:
        if (text := _fitting(data, charset)) is not None:
            return text
    return data.decode(_detected(data), "replace")


def _utf16(data: bytes) -> str | None:
    head = data[:_HEAD]
    if head[:512].count(b"\0") * 3 <= len(head[:512]):
        return None
    return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"


def _declared(data: bytes) -> str:
    found = _DECLARED.search(data[:_HEAD])
    label = found[1].decode("ascii").lower().removeprefix("x-") if found else ""
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    name = _LARGER.get(name, name)
    return name if _CHARSETS.fullmatch(name) else ""


def _fitting(data: bytes, charset: str) -> str | None:
    """The text, if there are hardly any bytes in it that `charset` has no character for."""
    try:
        return data.decode(charset)
    except UnicodeDecodeError:
        text = data.decode(charset, "replace")
    except LookupError:
        return None
    bad = text.count("\ufffd")
    good = sum(not character.isascii() for character in text) - bad
    return text if bad * _FEW <= good else None


def _detected(data: bytes) -> str:
    """The default, unless charset-normalizer finds a charset in which the text is less of a mess."""
    from charset_normalizer import from_bytes

    # From shortly before the first byte beyond ASCII, up to a character that is in no charset a part of another.
    first = next((match.start() for match in re.finditer(rb"[\x80-\xff]", data)), 0)
    start = max(0, first - _DETECTED_FROM // 4)
    piece = data[start : start + _DETECTED_FROM]
    if start + len(piece) < len(data):
        piece = piece[: piece.rfind(b"<")] or piece
    matches = from_bytes(piece, cp_isolation=list(_ON_THE_WEB))
    best = matches.best()
    if best is None or any(match.encoding == _DEFAULT and match.chaos <= best.chaos for match in matches):
        return _DEFAULT
    return best.encoding
