"""Small files that claim, or turn out, to be huge, deep or endless."""

from __future__ import annotations

import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO

from tests.support.fuzz.seeds import File, packed, pdf, pdf_of

_HUGE = 60_000  # pixels
_ZEROS = 24 << 20  # bytes


def bombs(seeds: Sequence[File]) -> tuple[File, ...]:
    """All of them, always the same ones."""
    return (*_images(seeds), *_videos(seeds), *_archives(), *_texts())


def png(width: int, height: int, depth: int, color: int, raw: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(raw)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _images(seeds: Sequence[File]) -> Iterator[File]:
    by_name = {file.name: file for file in seeds}
    yield File("bomb-png-header", "image/png", png(_HUGE, _HUGE, 8, 6, b"\0" * 1000))
    yield File("bomb-png-most", "image/png", png(0x7FFFFFFF, 0x7FFFFFFF, 16, 6, b""))
    yield File("bomb-png-bits", "image/png", png(12_000, 12_000, 1, 0, b"\0" * (1501 * 12_000)))  # it is complete
    profile = b"profile\0\0" + zlib.compress(b"\0" * (_ZEROS // 4))
    texts = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * (_ZEROS // 4))) + _chunk(b"iCCP", profile)
    whole = png(8, 8, 8, 0, b"\0" * 72)
    yield File("bomb-png-texts", "image/png", whole[:33] + texts + whole[33:])
    screen = struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\x00;"
    yield File("bomb-gif-screen", "image/gif", b"GIF89a" + screen + frame)
    yield File("bomb-gif-frames", "image/gif", b"GIF89a" + screen + frame[:-1] * 20_000 + b";")
    size = struct.pack("<I", 16383 - 1)[:3] * 2
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + size
    yield File("bomb-webp", "image/webp", b"RIFF" + struct.pack("<I", len(body)) + body)
    webp = bytearray(by_name["image-webp"].data)
    webp[26:30] = struct.pack("<HH", 16383, 16383)  # of the frame's own header
    yield File("bomb-webp-frame", "image/webp", bytes(webp))
    entries = [(256, 4, _HUGE), (257, 4, _HUGE), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1)]
    entries += [(278, 4, _HUGE), (279, 4, 0xFFFFFFFF)]
    ifd = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, kind, 1, v) for tag, kind, v in entries)
    yield File("bomb-tiff", "image/tiff", b"II*\0" + struct.pack("<I", 8) + ifd + b"\0" * 4)
    yield File("bomb-tiff-loop", "image/tiff", b"II*\0" + struct.pack("<I", 8) + ifd + struct.pack("<I", 8))
    bmp = b"BM" + struct.pack("<IHHI", 200, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, _HUGE, -_HUGE, 1, 24, *[0] * 6)
    yield File("bomb-bmp", "image/bmp", bmp + b"\0" * 200)
    for name in ("image-jpeg", "image-jpeg-progressive"):
        jpeg = by_name[name].data
        marker = b"\xff\xc2" if "progressive" in name else b"\xff\xc0"
        at = jpeg.index(marker) + 5
        yield File(f"bomb-{name}", "image/jpeg", jpeg[:at] + struct.pack(">HH", 65500, 65500) + jpeg[at + 4 :])
    scans = by_name["image-jpeg-progressive"].data
    at = scans.rindex(b"\xff\xda")
    yield File("bomb-jpeg-scans", "image/jpeg", scans[:-2] + scans[at:-2] * 3000 + b"\xff\xd9")
    for name, box in (("image-avif", b"ispe"), ("image-jp2", b"ihdr")):
        data = by_name[name].data
        at = data.index(box) + (8 if box == b"ispe" else 4)
        huge = struct.pack(">II", _HUGE, _HUGE)
        yield File(f"bomb-{name}", by_name[name].media_type, data[:at] + huge + data[at + 8 :])


def _videos(seeds: Sequence[File]) -> Iterator[File]:
    """Sizes, rates and counts in their headers are made huge, wherever the true ones stand."""
    for file in seeds:
        if file.kind == "video":
            for order in "><":
                small, huge = struct.pack(order + "HH", 64, 48), struct.pack(order + "HH", 60_000, 60_000)
                if small in file.data:
                    yield File(f"bomb-{file.name}", file.media_type, file.data.replace(small, huge))
            small, huge = struct.pack("<II", 64, 48), struct.pack("<II", 30_000, 30_000)
            if small in file.data:
                yield File(f"bomb-{file.name}-32", file.media_type, file.data.replace(small, huge))
        if file.kind in ("video", "sound"):
            for order in "><":
                small = struct.pack(order + "I", 48_000)
                if small in file.data:
                    huge = struct.pack(order + "I", 0x7FFFFFFF)
                    yield File(f"bomb-{file.name}-rate", file.media_type, file.data.replace(small, huge))
    wav = b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 65535, 0xFFFFFFFF, 0xFFFFFFFF, 65535, 32)
    yield File("bomb-wav", "audio/wav", wav + b"data\xff\xff\xff\xff" + b"\0" * 2000)
    slow = struct.pack("<IHHIIHH", 16, 1, 1, 1, 2, 2, 16)
    yield File("bomb-wav-slow", "audio/wav", b"RIFF\x24\x27\0\0WAVEfmt " + slow + b"data\x10\x27\0\0" + b"\0" * 10_000)


def _archives() -> Iterator[File]:
    zeros = b"\0" * _ZEROS
    yield File("bomb-gz", "application/gzip", gzip.compress(zeros, mtime=0))
    yield File("bomb-gz-gz", "application/gzip", gzip.compress(gzip.compress(zeros, mtime=0), mtime=0))
    yield File("bomb-xz", "application/x-xz", lzma.compress(zeros, preset=1))
    dictionary = bytearray(lzma.compress(b"small", lzma.FORMAT_ALONE))
    dictionary[1:5] = struct.pack("<I", 0xFFFFFFFF)  # that much memory, it says
    yield File("bomb-lzma", "application/x-xz", bytes(dictionary))
    yield File("bomb-zip", "application/zip", packed("zip", {f"{number}.bin": zeros for number in range(2)}))
    yield File("bomb-zip-many", "application/zip", packed("zip", {f"{number}.txt": b"" for number in range(5000)}))
    yield File("bomb-tar-many", "application/gzip", packed("tar.gz", {f"{number}.txt": b"" for number in range(5000)}))
    yield File("bomb-tar-zst", "application/zstd", packed("tar.zst", {"a.bin": zeros}))
    inner = b"a"
    for _ in range(20):
        inner = packed("zip", {"inner.zip": inner})
    yield File("bomb-zip-deep", "application/zip", inner)
    lying = bytearray(packed("tar", {"a.bin": b"a" * 600}))
    lying[124:136] = b"77777777777\0"
    yield File("bomb-tar-size", "application/x-tar", bytes(lying))
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/passwd", b"x")
        archive.writestr("/" + "deep/" * 5000, b"x")
    yield File("bomb-zip-paths", "application/zip", stream.getvalue())


def _texts() -> Iterator[File]:
    words = "words of no meaning " * 20
    yield File("bomb-html-deep", "text/html", b"<html><body>" + b"<div>" * 50_000 + words.encode())
    yield File("bomb-html-tables", "text/html", b"<html><body>" + b"<table><tr><td>" * 3000 + words.encode())
    yield File("bomb-html-wide", "text/html", b"<html><body>" + b"<p>words</p>" * 10_000)
    yield File("bomb-html-links", "text/html", b"<html><body>" + b'<a href="#">x</a> ' * 20_000)
    yield File(
        "bomb-html-attributes", "text/html", b"<html><body " + b" ".join(b"a%d=1" % n for n in range(20_000)) + b">x"
    )
    yield File("bomb-html-entities", "text/html", b"<html><body><p>" + b"&#x1F600;" * 30_000)
    yield File("bomb-html-open", "text/html", b"<html><body>" + b"<!-- " * 30_000 + b"<" * 30_000)
    nested = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    laughs = f'<?xml version="1.0"?><!DOCTYPE html [<!ENTITY e0 "ha">{nested}]><html><body><p>&e9;</p></body></html>'
    yield File("bomb-html-laughs", "application/xhtml+xml", laughs.encode())
    yield File(
        "bomb-pdf-loop", "application/pdf", pdf_of(["<< /Pages 2 0 R >>", "<< /Kids [2 0 R 2 0 R] /Count 99 >>"])
    )
    count = "<< /Type /Pages /Kids [3 0 R] /Count 99999999 >>"
    yield File("bomb-pdf-pages", "application/pdf", pdf_of(["<< /Pages 2 0 R >>", count, "<< /Type /Page >>"]))
    same = " ".join(["3 0 R"] * 20_000)
    page = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 1e30 1e30] /Contents 4 0 R >>"
    tree = f"<< /Type /Pages /Kids [{same}] /Count 20000 >>"
    drawn = "<< /Length 9 >>\nstream\nBT (x) Tj\nendstream"
    yield File("bomb-pdf-same", "application/pdf", pdf_of(["<< /Type /Catalog /Pages 2 0 R >>", tree, page, drawn]))
    yield File("bomb-pdf-nested", "application/pdf", pdf(("one",), ["[" * 50_000 + "]" * 50_000]))
    form = "<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 5 /Resources << /XObject << /X 5 0 R >> >> >>"
    one = "<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /XObject << /X 5 0 R >> >> >>"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>", one]
    forms = ["<< /Length 5 >>\nstream\n/X Do\nendstream", f"{form}\nstream\n/X Do\nendstream"]
    yield File("bomb-pdf-forms", "application/pdf", pdf_of([*objects, *forms]))
    inflated = zlib.compress(b"BT (x) Tj ET\n" * 500_000).decode("latin-1")
    long = f"<< /Length {len(inflated)} /Filter /FlateDecode >>\nstream\n{inflated}\nendstream"
    plain = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R >>"
    yield File("bomb-pdf-stream", "application/pdf", pdf_of([*objects[:2], plain, long]))
    itself = pdf(("one",))
    at = itself.rindex(b"/Size")
    prev = b"/Prev %d " % itself.rindex(b"xref\n0")
    yield File("bomb-pdf-prev", "application/pdf", itself[:at] + prev + itself[at:])
