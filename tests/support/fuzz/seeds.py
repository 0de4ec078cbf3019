"""Small files of every kind, made on the spot by real encoders."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True, slots=True)
class File:
    name: str
    media_type: str  # as a server would call it
    data: bytes

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]


def seeds() -> tuple[File, ...]:
    """All of them, always the same ones."""
    single = [*_images(), *_sounds(), *_videos(), *_texts()]
    return (*single, *_archives(single))


def _images() -> Iterator[File]:
    from PIL import Image

    color = Image.effect_mandelbrot((96, 64), (-2.2, -1.2, 1.2, 1.2), 100).convert("RGB")
    color.putalpha(color.getchannel(0))
    rgb, gray = color.convert("RGB"), color.convert("L")
    frames = [rgb.rotate(turn) for turn in (0, 30, 60)]
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    several: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 40}
    made: list[tuple[str, Any, str, dict[str, Any]]] = [
        ("jpeg", rgb, "JPEG", {"exif": exif}),
        ("jpeg-progressive", rgb, "JPEG", {"progressive": True, "quality": 50}),
        ("jpeg-gray", gray, "JPEG", {}),
        ("jpeg-cmyk", rgb.convert("CMYK"), "JPEG", {}),
        ("png", rgb, "PNG", {}),
        ("png-alpha", color, "PNG", {}),
        ("png-palette", rgb.quantize(16), "PNG", {}),
        ("png-16", gray.convert("I;16"), "PNG", {}),
        ("png-animated", frames[0], "PNG", several),
        ("gif", rgb.quantize(64), "GIF", {}),
        ("gif-animated", frames[0], "GIF", several),
        ("webp", rgb, "WEBP", {}),
        ("webp-lossless", color, "WEBP", {"lossless": True}),
        ("webp-animated", frames[0], "WEBP", several),
        ("tiff", rgb, "TIFF", {}),
        ("tiff-lzw", rgb, "TIFF", {"compression": "tiff_lzw"}),
        ("tiff-jpeg", rgb, "TIFF", {"compression": "jpeg"}),
        ("tiff-group4", gray.convert("1"), "TIFF", {"compression": "group4"}),
        ("tiff-pages", frames[0], "TIFF", {"save_all": True, "append_images": frames[1:]}),
        ("bmp", rgb, "BMP", {}),
        ("avif", rgb, "AVIF", {}),
        ("jp2", rgb, "JPEG2000", {}),
    ]
    for name, image, form, options in made:
        stream = io.BytesIO()
        image.save(stream, form, **options)
        yield File(f"image-{name}", Image.MIME[form], stream.getvalue())
    yield File("image-svg", "image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>')


_SOUNDS = (
    ("wav", "audio/wav", "wav", "pcm_s16le"),
    ("flac", "audio/flac", "flac", "flac"),
    ("mp3", "audio/mpeg", "mp3", "libmp3lame"),
    ("opus", "audio/ogg", "ogg", "libopus"),
    ("aac", "audio/mp4", "mp4", "aac"),
    ("adts", "audio/aac", "adts", "aac"),
    ("aiff", "audio/aiff", "aiff", "pcm_s16be"),
)
_VIDEOS = (
    ("mp4", "video/mp4", "mp4", "libx264", "aac"),
    ("mpeg4", "video/mp4", "mp4", "mpeg4", None),
    ("webm", "video/webm", "webm", "libvpx", "libopus"),
    ("mkv", "video/x-matroska", "matroska", "libvpx-vp9", "libopus"),
    ("avi", "video/x-msvideo", "avi", "mpeg4", "libmp3lame"),
    ("mov", "video/quicktime", "mov", "mjpeg", "pcm_s16le"),
    ("ts", "video/mp2t", "mpegts", "mpeg2video", "mp2"),
    ("flv", "video/x-flv", "flv", "flv", None),
)


def _sounds() -> Iterator[File]:
    for name, media_type, container, codec in _SOUNDS:
        yield File(f"sound-{name}", media_type, _recorded(container, None, codec))


def _videos() -> Iterator[File]:
    for name, media_type, container, codec, sound in _VIDEOS:
        yield File(f"video-{name}", media_type, _recorded(container, codec, sound))


def _recorded(container: str, video: str | None, audio: str | None) -> bytes:
    """0.4 s of a tone, and 8 frames of moving stripes."""
    import av
    import numpy as np

    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        if video:
            pictures: Any = out.add_stream(video, rate=20)
            pictures.width, pictures.height = 64, 48
            pictures.pix_fmt = "yuvj420p" if video == "mjpeg" else "yuv420p"
        if audio:
            rate = 48_000
            sound: Any = out.add_stream(audio, rate=rate)
            sound.layout = "mono"
        if video:
            rows, columns = np.mgrid[0:48, 0:64]
            for number in range(8):
                pixels = ((rows * 3 + columns * 5 + number * 16) % 256).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(np.repeat(pixels[:, :, None], 3, 2), "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 20)
                out.mux(pictures.encode(frame))
            out.mux(pictures.encode(None))
        if audio:
            tone = (np.sin(np.arange(rate * 2 // 5) / 20) * 9000).astype(np.int16)
            resampler = av.AudioResampler(sound.format, "mono", rate)
            fifo = av.AudioFifo()
            given: Any = av.AudioFrame.from_ndarray(tone[None], "s16", "mono")
            given.sample_rate, given.pts = rate, 0
            for one in resampler.resample(given):
                fifo.write(one)
            size = sound.codec_context.frame_size or 1024
            while (piece := fifo.read(size, partial=True)) is not None:
                out.mux(sound.encode(piece))
            out.mux(sound.encode(None))
    return stream.getvalue()


def _texts() -> Iterator[File]:
    words = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 6
    page = (
        f"<html><head><title>Foxes</title></head><body><article><h1>On foxes</h1><p>{words}</p><p>{words}</p></article>"
    )
    yield File("text-html", "text/html", page.encode())
    yield File("text-html-latin", "text/html; charset=iso-8859-1", page.replace("lazy", "träge").encode("latin-1"))
    yield File("text-html-utf16", "text/html", page.encode("utf-16"))
    yield File("text-plain", "text/plain", words.encode())
    yield File("text-json", "application/json", b'{"a": [1, 2, {"b": null}]}')
    yield File("text-pdf", "application/pdf", pdf(("Foxes, page one", "Foxes, page two")))


def pdf(pages: Sequence[str], others: Sequence[str] = ()) -> bytes:
    """One with a line of text on each page; `others` are objects behind them."""
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    for number, words in enumerate(pages):
        drawn = f"BT /F1 24 Tf 72 700 Td ({words}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * number} 0 R"
            f" /Resources << /Font << /F1 {font} >> >> >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    return pdf_of([*objects, *others])


def pdf_of(objects: Sequence[str]) -> bytes:
    """A file of such objects, of which the first is the catalogue, with a table of where they are."""
    found = b"%PDF-1.7\n"
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(found))
        found += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    tail = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return found + f"{tail}startxref\n{len(found)}\n%%EOF\n".encode()


def _archives(files: Sequence[File]) -> Iterator[File]:
    by_name = {file.name: file for file in files}
    some = {f"folder/{name}": by_name[name].data for name in ("image-jpeg", "text-html", "text-pdf", "sound-wav")}
    for name, media_type in ARCHIVES.items():
        yield File(f"archive-{name}", media_type, packed(name, some))
    yield File("archive-gz", "application/gzip", gzip.compress(by_name["text-html"].data, mtime=0))
    yield File("archive-bz2", "application/x-bzip2", bz2.compress(by_name["text-html"].data))


ARCHIVES: Mapping[str, str] = {
    "zip": "application/zip",
    "tar": "application/x-tar",
    "tar.gz": "application/gzip",
    "tar.xz": "application/x-xz",
    "tar.zst": "application/zstd",
}


def packed(kind: str, files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return stream.getvalue()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    plain = stream.getvalue()
    if kind == "tar.gz":
        return gzip.compress(plain, mtime=0)
    if kind == "tar.xz":
        return lzma.compress(plain, preset=1)
    if kind == "tar.zst":
        import zstandard

        return zstandard.compress(plain)
    return plain
