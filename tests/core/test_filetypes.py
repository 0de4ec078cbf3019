"""Which kind a file is: by its bytes, by what the server said; and which extension it has in a dataset."""

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.core.errors import OptionError
from any2ds.core.filetypes import recognize_file
from any2ds.testing.server import serve
from tests.support.shards import stored_body


def npy() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.arange(6))
    return sink.getvalue()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    return sink.getvalue()


LONG = json.dumps([{"text": "größe " * 10, "n": n} for n in range(12_000)], ensure_ascii=False).encode()
KINDS = {
    "doctype": (b"<!DOCTYPE html>\n<p>words", "html", "text/html"),
    "root": (b"\xef\xbb\xbf\n <!-- one --> <!-- two --><HTML lang=de>", "html", "text/html"),
    "xhtml": (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">', "html", "text/html"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "svg", "image/svg+xml"),
    "drawn": (
        b'<?xml version="1.0"?><!-- by hand --><!DOCTYPE svg PUBLIC "x" [<!ENTITY a "b">]>',
        "svg",
        "image/svg+xml",
    ),
    "prefixed": (b"<svg:svg>", "svg", "image/svg+xml"),
    "object": (b'{"a": [1, 2.5, null]}\n', "json", "application/json"),
    "array": (b'\xef\xbb\xbf [{"a": "\xc3\xa9"}]', "json", "application/json"),
    "long": (LONG, "json", "application/json"),
    "npy": (npy(), "npy", "application/x-npy"),
    "parquet": (parquet(), "parquet", "application/vnd.apache.parquet"),
}
WORDS = {
    "footnote": b"[1] Smith, J. (2001)",
    "draft": b"[draft] of a letter",
    "section": b"[section]\nkey = 1\n",
    "template": b"{{ title }} is {what}",
    "tex": b"{\\bf bold}",
    "lines": b'{"a": 1}\n{"a": 2}\n',
    "open": b"[1, 2",
    "cut": LONG[:500_000],
    "long lines": b"\n".join(json.dumps([n, "x" * 20_000]).encode() for n in range(100)),
    "number": b"42",
    "angle": b"<words> in brackets",
    "about": b"how to write <html> and <svg>",
    "element": b"<html-like>",
    "comment": b"<!-- nothing but this",
    "magic": b"PAR1 is what it begins with",
    "spaces": b" \n" * 5000,
}


def kind(data: bytes, served: str | None) -> tuple[str | None, str]:
    return recognize_file(stored_body(data), served)


@pytest.mark.parametrize("served", [None, "text/plain", "application/octet-stream", "application/x-download"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_are_known_by_their_content_where_the_server_does_not_tell(name: str, served: str | None) -> None:
    data, ext, media_type = KINDS[name]
    assert kind(data, served) == (media_type, ext)


@pytest.mark.parametrize("name", WORDS)
def test_a_text_that_looks_a_little_like_another_kind_is_a_text(name: str) -> None:
    assert kind(WORDS[name], "text/plain") == ("text/plain", "txt")
    assert kind(WORDS[name], None) == (None, "flat")


def test_a_file_of_more_than_a_megabyte_is_json_if_it_begins_so() -> None:
    assert len(LONG) > 1 << 20
    assert kind(LONG[:-1], "text/plain") == ("application/json", "json")
    assert kind(b"[" + b"1 2" * 500_000 + b"]", "text/plain") == ("text/plain", "txt")


def test_a_media_type_that_tells_counts() -> None:
    assert kind(b"words", "application/json") == ("application/json", "json")
    assert kind(b"<svg/>", "text/css") == ("text/css", "css")
    assert kind(b"{}", "text/csv") == ("text/csv", "csv")
    assert kind(npy(), "text/csv") == ("application/x-npy", "npy")  # a signature tells more


PAGE = b"<!DOCTYPE html><html><body>Not found</body></html>"
TEXTS = {  # what servers answer in the place of a file
    "page": (PAGE, "text/html", "html"),
    "behind blanks": (b"\r\n\t" + b" " * 20_000 + PAGE, "text/html", "html"),
    "behind a comment": (b"\xef\xbb\xbf<!-- " + b"x" * 20_000 + b" -->" + PAGE, "text/html", "html"),
    "utf-16": (PAGE.decode().encode("utf-16"), "text/html", "html"),
    "utf-16 without a mark": (PAGE.decode().encode("utf-16-be"), "text/html", "html"),
    "latin-1": ("<html>Non trouvé".encode("latin-1"), "text/html", "html"),
    "part of a page": (b"<h1>404</h1>", "text/html", "html"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml", "svg"),
    "xml": (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "text/xml", "xml"),
    "bare xml": (b"<Error>\n<Code>AccessDenied</Code></Error>\n", "text/xml", "xml"),
    "json": (b'{"error": "gone"}', "application/json", "json"),
    "words": ("Accès refusé\n".encode(), "text/plain", "txt"),
    "words in utf-16": ("Accès refusé\n".encode("utf-16"), "text/plain", "txt"),
}
BINARY = {  # without a signature that is known
    "tga": b"\0\0\2" + bytes(9) + b"\x20\0\x20\0\x18\0" + bytes(range(256)) * 12,
    "bright pixels": bytes(range(32, 256)) * 40,
    "noise": bytes(range(255, -1, -1)) * 40,
    "noise behind the mark of UTF-16": b"\xff\xfe" + bytes(range(255, -1, -1)) * 40,
}


@pytest.mark.parametrize("served", ["image/jpeg", "image/png", "image/x-tga", "audio/mpeg", "video/mp4"])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_no_image_sound_or_video_whatever_it_is_served_as(name: str, served: str) -> None:
    data, media_type, ext = TEXTS[name]
    assert kind(data, served) == (media_type, ext)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("served", ["image/jpeg", "image/x-tga", "audio/L16", "video/mp4"])
def test_bytes_that_are_no_text_are_what_they_are_served_as(name: str, served: str) -> None:
    assert kind(BINARY[name], served)[0] == served


def test_images_and_playlists_that_are_text_stay_what_they_are_served_as() -> None:
    assert kind(b"P3\n1 1\n255\n255 0 0\n", "image/x-portable-pixmap") == ("image/x-portable-pixmap", "ppm")
    assert kind(b"SIMPLE  =                    T".ljust(9000), "image/fits")[0] == "image/fits"
    assert kind(b"#EXTM3U\na.mp3\n", "audio/x-mpegurl")[0] == "audio/x-mpegurl"
    assert kind(b"<!DOCTYPE drawing><svg/>", "image/svg+xml") == ("image/svg+xml", "svg")
    assert kind(PAGE, "application/zip") == ("application/zip", "zip")  # which fails when it is unpacked
    assert kind(PAGE, "audio/x-mpegurl") == ("text/html", "html")


@pytest.mark.parametrize(
    "words", ["BMW", "MZ", "GIF images", "ID3 tags", "%! is", "OggS and fLaC", "PK are", "CWS", "Rar!"]
)
def test_a_text_that_begins_as_a_binary_file_does_is_a_text(words: str) -> None:
    text = f"{words} are words.\n".encode()
    assert kind(text, "text/plain") == ("text/plain", "txt")
    assert kind(text, "text/csv") == ("text/csv", "csv")
    assert kind(text, None) == (None, "flat")


def test_files_of_newer_brands_are_known_by_their_first_bytes() -> None:
    for brand, media_type in ((b"heix", "image/heic"), (b"hevc", "image/heic"), (b"avis", "image/avif"),
                              (b"iso5", "video/mp4"), (b"dash", "video/mp4"), (b"f4v ", "video/mp4")):  # fmt: skip
        assert kind(b"\0\0\0\x10ftyp" + brand + bytes(200), None)[0] == media_type
    assert kind(b"\xff\x0a" + bytes(200), None) == ("image/jxl", "jxl")


FILES = {"a.txt": b"some words", "b.json": b'{"a": 1}', "c.bin": b"<!doctype html><p>A page.", "d.txt": b"<svg/>"}
FORMATS = ["webdataset", "files", "parquet", "tfrecord"]


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def make(media: Path, out: Path, script: dict[str, list[str]] | None = None, **options: Any) -> list[dict[str, Any]]:
    """A dataset of the files, a row of each, with a caption in every other one; its samples."""
    with serve(media, script or {}) as server:
        rows = [
            {"url": server.url(name), "words": f"caption of {name}" if n % 2 else None} for n, name in enumerate(FILES)
        ]
        any2ds.download(rows, output_folder=out, distributor="inline", quiet=True, **options)
        if script:
            any2ds.retry(out, codes="all", distributor="inline", quiet=True)
    report = any2ds.verify(out, quiet=True)
    assert report.ok, report.findings
    found = list(any2ds.load(out))
    return sorted(found, key=lambda sample: str(sample["key"]))  # what a retry brought stands in a later shard


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("script", [{"a.txt": ["404", "ok"]}, {"b.json": ["404", "ok"]}], ids=["text", "json"])
def test_texts_and_json_have_plain_extensions_where_no_other_file_has_them(
    output_format: str, script: dict[str, list[str]], media: Path, tmp_path: Path
) -> None:
    found = make(media, tmp_path / "plain", script, output_format=output_format)
    has_members = output_format in ("webdataset", "files")
    assert [sample["ext"] for sample in found] == ["txt", "data.json" if has_members else "json", "html", "svg"]
    assert [sample["data"] for sample in found] == list(FILES.values())
    captioned = make(media, tmp_path / "captioned", script, output_format=output_format, caption_col="words")
    exts = ["data.txt", "data.json"] if has_members else ["txt", "json"]
    assert [sample["ext"] for sample in captioned][:2] == exts  # also where the caption is null
    assert [sample["data"] for sample in captioned] == list(FILES.values())


@pytest.mark.parametrize("has_captions", [False, True])
def test_a_text_that_a_step_adds_keeps_its_extension_and_the_text_file_gives_way(
    has_captions: bool, media: Path, tmp_path: Path
) -> None:
    captions = {"caption_col": "words"} if has_captions else {}
    make(media, tmp_path / "out", output_format="webdataset", extract_text=True, **captions)
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        names = [name for name in tar.getnames() if not name.endswith(".json") or "data" in name]
    of_caption = [["000000000.txt"], ["000000001.txt"], ["000000002.txt"], ["000000003.txt"]]
    expected = [
        ["000000000.data.txt"],
        ["000000001.data.json"],
        ["000000002.html", "000000002.text.txt" if has_captions else "000000002.txt"],
        ["000000003.svg"],
    ]
    rows = [own + (more if has_captions else []) for own, more in zip(expected, of_caption, strict=True)]
    assert names == [name for row in rows for name in row]


def test_one_extension_for_all_files_is_accepted_where_it_is_free(media: Path, tmp_path: Path) -> None:
    for number, options in enumerate(
        (
            {"file_ext": "txt", "output_format": "webdataset"},
            {"file_ext": "json", "output_format": "parquet"},
            {"file_ext": "TXT", "output_format": "tfrecord", "caption_col": "words", "extract_text": True},
        )
    ):
        found = make(media, tmp_path / f"{number}", **options)
        assert {sample["ext"] for sample in found} == {options["file_ext"]}
        assert [sample["data"] for sample in found] == list(FILES.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file_ext": "json"}, "with output_format=files .json is the extension of the metadata"),
        ({"file_ext": "txt", "caption_col": "words"}, ".txt is the extension of the caption"),
        ({"file_ext": "TXT", "extract_text": True}, ".txt is the extension of the text that a step adds"),
    ],
)
def test_and_refused_where_it_is_not(options: dict[str, Any], words: str, media: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        make(media, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_web_page_in_the_place_of_an_image_is_stored_as_one_however_it_comes(tmp_path: Path) -> None:
    """From a server, a data URL, a file, and in an archive."""
    media = tmp_path / "media"
    media.mkdir()
    (media / "a.jpg").write_bytes(PAGE)
    with zipfile.ZipFile(media / "b.zip", "w") as archive:
        archive.writestr("c.jpg", PAGE)
        archive.writestr("d.mp3", b'{"error": "gone"}')
    with serve(media) as server:
        local = f"file://{media / 'a.jpg'}"
        rows = [server.url("a.jpg"), f"data:image/png,{quote(PAGE)}", local, server.url("b.zip")]
        options = {"allow_schemes": "file", "unpack": True, "output_format": "webdataset", "quiet": True}
        any2ds.download(rows, tmp_path / "out", **options)  # type: ignore[arg-type]
        with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
            exts = [name.partition(".")[2] for name in tar.getnames() if "json" not in name or "data" in name]
        assert exts == ["html", "html", "html", "html", "data.json"]
    types = pq.read_table(tmp_path / "out" / "00000.parquet")["mime_type"].to_pylist()
    assert types == ["text/html"] * 4 + ["application/json"]
