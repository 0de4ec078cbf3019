"""The text of a web page: which characters its bytes stand for."""

from __future__ import annotations

import codecs
import re

from any2ds.transforms.steps._latin import latin_charset

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LOOKED_AT = 4096  # bytes in which a page has to say its charset; browsers look at 1024
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_GUESSED_FROM = 32 << 10  # bytes: guessing takes 50 to 500 ms for so many
# What browsers take these names for (WHATWG, Encoding): the charset that contains the one of that name.
_MEANT = {
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "iso8859-1": "cp1252",
    "latin1": "cp1252",
    "latin-1": "cp1252",
    "iso-8859-9": "cp1254",
    "iso-8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "shift-jis": "cp932",
    "sjis": "cp932",
    "x-sjis": "cp932",
    "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949",
    "x-mac-cyrillic": "mac-cyrillic",
    "utf-16": "utf-8",  # a page that can be read that far is none
    "utf-16le": "utf-8",
    "utf-16be": "utf-8",
}
# Python has others, such as punycode, that are no charsets of pages, and slow on purpose of somebody.
_CHARSETS = re.compile(
    r"utf-?8|windows-\d+|cp\d+|iso-?8859-\d+|iso-2022-[a-z0-9-]+|koi8-[ru]|gb18030|big5hkscs|euc-jp|mac[a-z-]*"
)
# Those that pages are in; others (of DOS, of the Macintosh) are what noise looks like. UTF-8 was tried before.
_ON_THE_WEB = (
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874", "koi8_r"),
    *("koi8_u", "iso8859_2", "iso8859_5", "iso8859_7", "cp932", "cp949", "gb18030", "big5hkscs"),
)
_FEW_KANA = 8  # of so many characters of Japanese at least one is kana
_FEW = 20  # a charset that fits has at least so many good characters beyond ASCII for each bad one


def decoded(data: bytes) -> str:
    """By a byte order mark, else UTF-8 if it is that, else what the page says if that fits, else by the look of it.

    The server's word is not asked: pages that come from archives or are looked at another day have none, and whatever
    is valid UTF-8 beyond ASCII is hardly ever anything else.
    """
    for bom, charset in _BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(charset, "replace")
    if wide := _utf16(data):
        return data.decode(wide, "replace")
    declared = _declared(data)
    # ISO-2022 is ASCII to the eye, and so UTF-8.
    for charset in [declared] if declared.startswith("iso-2022") else ["utf-8", declared]:
        if (text := _fitting(data, charset)) is not None:
            return text
    return data.decode(_guessed(data) or "cp1252", "replace")


def _utf16(data: bytes) -> str | None:
    head = data[:_LOOKED_AT]
    if head[:512].count(b"\0") * 3 <= len(head[:512]):
        return None
    return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"


def _declared(data: bytes) -> str:
    found = _DECLARED.search(data[:_LOOKED_AT])
    name = found[1].decode("ascii").lower() if found else ""
    name = _MEANT.get(name, name)
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


def _guessed(data: bytes) -> str | None:
    # Where it becomes interesting, up to a character that no other charset has as part of one.
    first = next((match.start() for match in re.finditer(rb"[\x80-\xff]", data)), 0)
    start = max(0, first - _GUESSED_FROM // 4)
    piece = data[start : start + _GUESSED_FROM]
    if start + len(piece) < len(data):
        piece = piece[: piece.rfind(b"<")] or piece
    if charset := latin_charset(piece):
        return charset
    if _is_euc_jp(piece):
        return "euc_jp"
    from charset_normalizer import from_bytes

    best = from_bytes(piece, cp_isolation=list(_ON_THE_WEB)).best()
    return best.encoding if best else None


def _is_euc_jp(data: bytes) -> bool:
    """As which it is Japanese: as EUC-KR, which all of it is as well, it would have letters that no word has."""
    text = data.decode("euc_jp", "replace")
    beyond = sum(not character.isascii() for character in text)
    kana = sum("\u3040" <= character <= "\u30ff" for character in text)
    return text.count("\ufffd") * _FEW <= beyond and kana * _FEW_KANA >= beyond
