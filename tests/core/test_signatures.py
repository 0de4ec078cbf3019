"""Types of files by their first bytes."""

import random

import pytest

from any2ds.core.signatures import type_by_signature


def iso(*brands: bytes, size: int | None = None) -> bytes:
    content = b"ftyp" + brands[0] + b"\0\0\2\0" + b"".join(brands[1:])
    return (4 + len(content) if size is None else size).to_bytes(4, "big") + content


def zipped(*names: bytes, between: int = 40) -> bytes:
    return b"".join(b"PK\3\4" + bytes(26) + name + bytes(between) for name in names)


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(len(b"word").to_bytes(4, "big") + name + b"wordcrc!" for name in chunks)


SKIPPED = b"\x50\x2a\x4d\x18\0\0\0\0"  # a frame of zstd that holds nothing

HEADS: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"some text", None),
    (b"\xff\xd8\xff\xe0", "jpg"),
    (png(b"IHDR", b"IDAT"), "png"),
    (png(b"IHDR", b"acTL", b"IDAT"), "apng"),
    (png(b"IHDR", b"IEND", b"acTL"), "png"),
    (b"GIF89a", "gif"),
    (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
    (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
    (b"RIFF\0\0\0\0AVI LIST", "avi"),
    (b"II*\0" + bytes(8), "tif"),
    (b"BM" + bytes(257 - 2) + b"ustar", "tar"),
    (bytes(128) + b"DICM\2", "dcm"),
    (iso(b"heic", b"mif1"), "heic"),
    (iso(b"mif1", b"avif"), "avif"),
    (iso(b"isom", b"mp41"), "mp4"),
    (iso(b"none", b"none", b"isom"), "mp4"),
    (iso(b"none", b"none", b"isom", size=16), None),
    (iso(b"qt  "), "mov"),
    (iso(b"M4A "), "m4a"),
    (b"ID3\4", "mp3"),
    (b"OggS", "ogg"),
    (b"fLaC", "flac"),
    (b"\x1aE\xdf\xa3" + bytes(9) + b"\x42\x82\x84webm", "webm"),
    (b"\x1aE\xdf\xa3\x42\x82\x84webm\x42\x82\x88matroska", "mkv"),
    (b"\x1aE\xdf\xa3" + bytes(9000) + b"\x42\x82\x84webm", None),
    (b"%PDF-1.7", "pdf"),
    (b"\xef\xbb\xbf%PDF-1.7", "pdf"),
    (zipped(b"a.txt"), "zip"),
    (zipped(b"word/a"), "docx"),
    (zipped(b"[Content_Types].xml", b"other", b"xl/a"), "xlsx"),
    (zipped(b"docProps/x", b"other", b"ppt/a", between=6100), "zip"),
    (zipped(b"mimetypeapplication/vnd.oasis.opendocument.text"), "odt"),
    (zipped(b"mimetypeapplication/epub+zip"), "epub"),
    (b"\x1f\x8b\x08", "gz"),
    (b"BZh9", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (SKIPPED * 1023 + b"\x28\xb5\x2f\xfd", "zst"),
    (b"\x5f\x2a\x4d\x18\xff\xff\xff\xff", None),
    (b"\x93NUMPY\1\0", "npy"),
    (b"caff\0\1", "caf"),
]


@pytest.mark.parametrize(("head", "ext"), HEADS, ids=lambda value: repr(value)[:20])
def test_a_file_is_known_by_its_first_bytes(head: bytes, ext: str | None) -> None:
    found = type_by_signature(head)
    assert (found and found[1]) == ext


def test_any_beginning_is_looked_at_without_an_error() -> None:
    chance = random.Random(0)
    for first in range(256):
        for head, _ in [*HEADS, (bytes([first]), None)]:
            type_by_signature(head[: chance.randrange(len(head) + 1)] + bytes([first]) + chance.randbytes(300))
