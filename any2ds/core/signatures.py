"""The types of files that are known by their first bytes.

Where several of the table fit, the first one counts. One expression holds all patterns: a file of no known type costs
half a microsecond, where the library `filetype` takes 30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from functools import cache, partial

MOST = 8192  # bytes that are looked at


def type_by_signature(head: bytes) -> tuple[str, str] | None:
    """Media type and extension of a file that begins with `head`; None if its first bytes do not tell."""
    head, first = head[:MOST], 0
    while (found := _patterns(first).match(head)) is not None:
        number = first + (found.lastindex or 0) - 1
        _, is_it, media_type, ext = _TYPES[number]
        if is_it is None or is_it(head):
            return media_type, ext
        first = number + 1
    return None


@cache
def _patterns(first: int) -> re.Pattern[bytes]:
    """An expression of the patterns from number `first` on, each with an empty group behind it, whose number is that of
    the pattern. A group around it would keep the engine from passing over patterns by their first byte."""
    return re.compile(b"|".join(rb"(?:%b)()" % pattern for pattern, *_ in _TYPES[first:]), re.DOTALL)


def _is_animated(png: bytes) -> bool:
    """Whether a chunk acTL comes before the first IDAT."""
    at = 8
    while at < len(png):
        name = png[at + 4 : at + 8]
        if name in (b"acTL", b"IDAT", b"IEND"):
            return name == b"acTL"
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return False


def _has_brand(wanted: Set[bytes], head: bytes) -> bool:
    """Whether an ISO base media file has one of these brands; the whole of its first box has to be there."""
    size = int.from_bytes(head[:4], "big")
    return size <= len(head) and (head[8:12] in wanted or any(head[at : at + 4] in wanted for at in range(16, size, 4)))


def _contains(part: bytes, head: bytes) -> bool:
    return part in head


def _has_part(name: bytes, zipped: bytes) -> bool:
    """Whether an Office document has a part of that name among the files that it begins with."""
    if zipped.startswith(name, 30):
        return True
    if not zipped.startswith((b"[Content_Types].xml", b"_rels/.rels", b"docProps"), 30):
        return False
    return any(zipped.startswith(name, at + 30) for at in _next_files(zipped))


def _next_files(zipped: bytes) -> Iterator[int]:
    """Where the second to the fifth file begin."""
    at = 0
    for _ in range(4):
        at = zipped.find(b"PK\3\4", at + 4, at + 4 + 6000)
        if at < 0:
            return
        yield at


def _is_zstd(head: bytes) -> bool:
    """Whether a frame follows after those that may be skipped (RFC 8878, 3.1.2)."""
    while _SKIPPABLE.match(head) is not None:
        head = head[8 + int.from_bytes(head[4:8], "little") :]
    return _ZSTD.match(head) is not None


_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18.{4}", re.DOTALL)
_ZSTD = re.compile(rb"[\x22-\x28]\xb5\x2f\xfd")
_HEVC_BRANDS = {brand + kind for brand in (b"hei", b"hev") for kind in (b"c", b"x", b"m", b"s")}  # ISO 23008-12, B.4
_ZIP = rb"PK\x03\x04"
_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN = "application/vnd.oasis.opendocument"
_OPEN_ZIP = _ZIP + rb".{26}mimetypeapplication/vnd\.oasis\.opendocument\."
_FONT = rb"(?:\0\x01\0\0|OTTO|true)"
# A packet of a transport stream: ISO/IEC 13818-1, 2.4.3.2.
_PACKET = rb"G[\x00-\x7f].[\x10-\x3f\x50-\x7f\x90-\xbf\xd0-\xff].{184}"

Check = Callable[[bytes], bool]
# How it begins, what else has to be so, media type and extension.
_TYPES: tuple[tuple[bytes, Check | None, str, str], ...] = (
    (rb".{257}ustar", None, "application/x-tar", "tar"),  # before the name of its first file: BM is a bitmap's
    (rb"\xff\xd8\xff", None, "image/jpeg", "jpg"),
    (rb"\x89PNG\r\n\x1a\n.", _is_animated, "image/apng", "apng"),
    (rb"\x89PNG", None, "image/png", "png"),
    (rb"GIF", None, "image/gif", "gif"),
    (rb"RIFF.{4}WEBPVP", None, "image/webp", "webp"),
    (rb"(?:II\*\0|MM\0\*).{4}(?!CR)..", None, "image/tiff", "tif"),
    (rb"(?:II\*\0|MM\0\*).{4}CR", None, "image/x-canon-cr2", "cr2"),
    (rb"BM", None, "image/bmp", "bmp"),
    (rb"\0\0\0\x0c.{12}ftypjp2 .{27}", None, "image/jpx", "jpx"),
    (rb"8BPS", None, "image/vnd.adobe.photoshop", "psd"),
    (rb"\0\0\x01\0", None, "image/x-icon", "ico"),
    (rb".{4}ftyp(?:heic|mif1|msf1).{4}", partial(_has_brand, {b"heic"}), "image/heic", "heic"),
    (rb".{128}DICM.", None, "application/dicom", "dcm"),
    (rb".{4}ftyp(?:avif|mif1|msf1).{4}", partial(_has_brand, {b"avif"}), "image/avif", "avif"),
    (rb"\xff[\xf1\xf9]", None, "audio/aac", "aac"),
    (rb"MThd", None, "audio/midi", "midi"),
    (rb"ID3|\xff[\xf2\xf3\xfb].", None, "audio/mpeg", "mp3"),
    (rb".{4}ftypM4A|M4A .{7}", None, "audio/mp4", "m4a"),
    (rb"OggS", None, "audio/ogg", "ogg"),
    (rb"fLaC", None, "audio/x-flac", "flac"),
    (rb"RIFF.{4}WAVE", None, "audio/x-wav", "wav"),
    (rb"#!AMR\n.{6}", None, "audio/amr", "amr"),
    (rb"FORM.{4}AIFF", None, "audio/x-aiff", "aiff"),
    (rb".{4}ftyp.{8}", partial(_has_brand, {b"mp41", b"mp42", b"isom"}), "video/mp4", "mp4"),
    (rb"\0\0\0\x1cftypM4V", None, "video/x-m4v", "m4v"),
    (rb"\x1aE\xdf\xa3", partial(_contains, b"\x42\x82\x88matroska"), "video/x-matroska", "mkv"),
    (rb".{4}ftypqt  .{4}", partial(_has_brand, {b"qt  "}), "video/quicktime", "mov"),
    (rb"RIFF.{4}AVI ", None, "video/x-msvideo", "avi"),
    (rb"0&\xb2u\x8ef\xcf\x11\xa6\xd9", None, "video/x-ms-wmv", "wmv"),
    (rb"\0\0\x01[\xb0-\xbf]", None, "video/mpeg", "mpg"),
    (rb"\x1aE\xdf\xa3", partial(_contains, b"\x42\x82\x84webm"), "video/webm", "webm"),
    (rb"FLV\x01", None, "video/x-flv", "flv"),
    (rb"wOFF" + _FONT, None, "application/font-woff", "woff"),
    (rb"wOF2" + _FONT, None, "application/font-woff", "woff2"),
    (rb"\0\x01\0\0\0", None, "application/font-sfnt", "ttf"),
    (rb"OTTO\0", None, "application/font-sfnt", "otf"),
    (_ZIP, partial(_has_part, b"word/"), f"{_OFFICE}.wordprocessingml.document", "docx"),
    (_OPEN_ZIP + b"text", None, f"{_OPEN}.text", "odt"),
    (_ZIP, partial(_has_part, b"xl/"), f"{_OFFICE}.spreadsheetml.sheet", "xlsx"),
    (_OPEN_ZIP + b"spreadsheet", None, f"{_OPEN}.spreadsheet", "ods"),
    (_ZIP, partial(_has_part, b"ppt/"), f"{_OFFICE}.presentationml.presentation", "pptx"),
    (_OPEN_ZIP + b"presentation", None, f"{_OPEN}.presentation", "odp"),
    (_ZIP + rb".{26}mimetypeapplication/epub\+zip", None, "application/epub+zip", "epub"),
    (rb"PK[\x03\x05\x07][\x04\x06\x08]", None, "application/zip", "zip"),
    (rb"Rar!\x1a\x07[\0\x01]", None, "application/x-rar-compressed", "rar"),
    (rb"\x1f\x8b\x08", None, "application/gzip", "gz"),
    (rb"BZh", None, "application/x-bzip2", "bz2"),
    (rb"7z\xbc\xaf'\x1c", None, "application/x-7z-compressed", "7z"),
    (rb"(?:\xef\xbb\xbf)?%PDF", None, "application/pdf", "pdf"),
    (rb"MZ", None, "application/x-msdownload", "exe"),
    (rb"\{\\rtf", None, "application/rtf", "rtf"),
    (rb"%!", None, "application/postscript", "ps"),
    (rb"\xfd7zXZ\0", None, "application/x-xz", "xz"),
    (rb"SQLi", None, "application/x-sqlite3", "sqlite"),
    (rb"\x04\"M\x18", None, "application/x-lz4", "lz4"),
    (rb"[\x22-\x28]\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18.{4}", _is_zstd, "application/zstd", "zst"),
    (rb"(?:%b){5}" % _PACKET, None, "video/mp2t", "ts"),
    (rb"(?:.{4}%b){5}" % _PACKET, None, "video/mp2t", "m2ts"),  # Blu-ray's: a time before each packet
    (rb"RF64.{4}WAVE", None, "audio/x-wav", "wav"),  # with room for more than 4 GB
    (rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1", None, "audio/x-w64", "w64"),
    (rb"caff\x00\x01", None, "audio/x-caf", "caf"),
    (rb"\.snd\x00", None, "audio/basic", "au"),
    (rb"wvpk", None, "audio/x-wavpack", "wv"),
    (rb"TTA1", None, "audio/x-tta", "tta"),
    (rb"\x00\x00\x00\x0cJXL \r\n\x87\n", None, "image/jxl", "jxl"),
    (rb"\x93NUMPY[\x01-\x03]\x00", None, "application/x-npy", "npy"),
    (rb"\xff\x0a", None, "image/jxl", "jxl"),  # a bare codestream
    (rb".{4}ftyp(?:he[iv][cxms]|mif1|msf1).{4}", partial(_has_brand, _HEVC_BRANDS), "image/heic", "heic"),
    (rb".{4}ftyp(?:avis|mif1|msf1).{4}", partial(_has_brand, {b"avis"}), "image/avif", "avif"),
    (rb".{4}ftyp(?:iso[2-9]|dash|f4v |avc1|cmf[cs2]|M4V[HP]|mp71|MSNV).{4}", None, "video/mp4", "mp4"),
)


def types_by_ext() -> dict[str, str]:
    """Extension -> media type; the first one of several."""
    return {ext: media_type for *_, media_type, ext in reversed(_TYPES)}
