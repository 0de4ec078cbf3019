"""--extract_text from outside: documents behind a server, and the text that lies beside them afterwards."""

import hashlib
import json
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.errors import MissingExtra
from any2ds.testing.server import serve

Rows = list[dict[str, Any]]
Extracted = Callable[..., Rows]

_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")


def page(text: str, head: str = "") -> str:
    return (
        f"<!doctype html><html><head>{head}<title>A page</title></head><body>"
        "<nav><a href='/'>Home</a> <a href='/b'>About</a></nav>"
        f"<article><h1>Headline</h1><p>{text}</p></article>"
        "<footer>All rights reserved. Cookies.</footer></body></html>"
    )


def rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    i = j = 0
    out = bytearray()
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)


def pdf(pages: Sequence[Sequence[str]], password: str | None = None, packed: bool = False) -> bytes:
    """A document with these lines on its pages. `password` ("" for none to open it) encrypts it (RC4, 40 bits)."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(pages)))
    objects = {
        1: b"<</Type/Catalog/Pages 2 0 R>>",
        2: b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        3: b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    }
    key, trailer = b"", b""
    if password is not None:
        padded = (password.encode() + _PADDING)[:32]
        owner = rc4(hashlib.md5((b"owner" + _PADDING)[:32]).digest()[:5], padded)
        key = hashlib.md5(padded + owner + b"\xfc\xff\xff\xff" + b"0123456789abcdef").digest()[:5]
        secrets = owner.hex().encode(), rc4(key, _PADDING).hex().encode()
        objects[99] = b"<</Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4>>" % secrets
        trailer = b"/Encrypt 99 0 R/ID[<%s><%s>]" % ((b"0123456789abcdef".hex().encode(),) * 2)
    for number, lines in enumerate(pages):
        content = b"BT /F1 12 Tf 72 720 Td " + b" 0 -14 Td ".join(b"(%s) Tj" % line.encode() for line in lines) + b" ET"
        own = 5 + 2 * number
        if key:
            content = rc4(hashlib.md5(key + own.to_bytes(3, "little") + bytes(2)).digest()[:10], content)
        coded = b"/Filter/FlateDecode" if packed else b""
        content = zlib.compress(content) if packed else content
        about = b"/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F1 3 0 R>>>>"
        objects[own - 1] = b"<</Type/Page%s/Contents %d 0 R>>" % (about, own)
        objects[own] = b"<</Length %d%s>>stream\n%s\nendstream" % (len(content), coded, content)
    body, places = b"%PDF-1.4\n", {}
    for number, content in objects.items():
        places[number] = len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 %c \n" % (places.get(n, 0), b"fn"[n in places]) for n in range(100))
    return body + b"xref\n0 100\n%strailer<</Size 100/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (
        table,
        trailer,
        len(body),
    )


@pytest.fixture
def extracted(tmp_path: Path, fetched: Callable[..., Any]) -> Extracted:
    """The metadata of a run over these files, with `data` and `txt`, in their order."""

    def run(files: Mapping[str, bytes], **options: Any) -> Rows:
        folder = tmp_path / "served"
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        with serve(folder) as server:
            fetched([server.url(name) for name in files], **{"extract_text": True, **options})
        rows: Rows = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
        return rows

    return run


# --- web pages ---

LONG = "The main text of this page goes on for a while, so that nobody takes it for anything else. " * 4


def test_the_text_of_a_page_is_without_what_is_around_it(extracted: Extracted) -> None:
    original = page(LONG).encode()

    (row,) = extracted({"a.html": original})

    assert row["data"] == original
    assert row["stored_bytes"] is None
    assert row["txt"].splitlines() == ["Headline", LONG.strip()]
    assert row["pages"] is None


def test_a_page_without_text_has_an_empty_one_and_other_files_have_none(extracted: Extracted) -> None:
    rows = extracted(
        {
            "a.html": b"<html><body><script>draw()</script></body></html>",
            "b.html": b"",
            "c.html": b"\0\1\2<<<>>>&#x110000;" * 50,
            "d.css": b"p {}",
            "e.bin": b"\0\1\2\3",
        }
    )

    assert [row["txt"] for row in rows] == ["", None, "", None, None]
    assert [row["status"] for row in rows] == ["success", "failed_to_download", "success", "success", "success"]


def test_a_page_that_nobody_called_one_is_recognised(extracted: Extracted) -> None:
    for_all = {"a.bin": page(LONG).encode(), "b.bin": b"\xef\xbb\xbf\n<!-- x --><html><p>" + LONG.encode()}

    rows = extracted(for_all)

    assert all(LONG.strip() in row["txt"] for row in rows)


GERMAN = "Über größere Flüsse führen öfter schöne Brücken, die müde Fußgänger gern überqueren. " * 5
RUSSIAN = "Через большие реки часто ведут красивые мосты, по которым охотно ходят усталые люди. " * 5
JAPANESE = "大きな川には美しい橋が架かっていることが多く、疲れた人々が喜んで渡ります。" * 8
CHINESE = "大河上常常有美丽的桥梁\uff0c疲惫的行人喜欢从上面走过\uff0c看着水慢慢流向大海。" * 8
CURLY = "It\u2019s a \u201cquoted\u201d page \u2013 with a few marks that are none of ASCII\u2019s. " * 5


def meta(charset: str) -> str:
    return f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">'


CHARSETS = {
    "utf-8": (GERMAN, page(GERMAN).encode()),
    "utf-8 under a wrong name": (GERMAN, page(GERMAN, meta("iso-8859-1")).encode()),
    "utf-8 with a bad byte": (GERMAN, page(GERMAN).encode().replace(b"Headline", b"Head\xffline")),
    "utf-8 with a mark": (GERMAN, page(GERMAN, meta("iso-8859-1")).encode("utf-8-sig")),
    "utf-16 with a mark": (RUSSIAN, page(RUSSIAN).encode("utf-16")),
    "utf-16": (GERMAN, page(GERMAN).encode("utf-16-be")),
    "latin-1, named": (GERMAN, page(GERMAN, meta("iso-8859-1")).encode("latin-1")),
    "latin-1": (GERMAN, page(GERMAN).encode("latin-1")),
    "windows-1252 under the name of latin-1": (CURLY, page(CURLY, meta("ISO-8859-1")).encode("cp1252")),
    "windows-1251": (RUSSIAN, page(RUSSIAN).encode("cp1251")),
    "koi8-r, named": (RUSSIAN, page(RUSSIAN, meta("koi8-r")).encode("koi8-r")),
    "windows-1251 under a wrong name": (RUSSIAN, page(RUSSIAN, meta("utf-8")).encode("cp1251")),
    "shift_jis, named": (JAPANESE, page(JAPANESE, meta("Shift_JIS")).encode("cp932")),
    "euc-jp, named": (JAPANESE, page(JAPANESE, meta("euc-jp")).encode("euc-jp")),
    "iso-2022-jp, named": (JAPANESE, page(JAPANESE, meta("iso-2022-jp")).encode("iso-2022-jp")),
    "gbk under the name of gb2312": (CHINESE, page(CHINESE, meta("gb2312")).encode("gbk")),
    "gbk": (CHINESE, page(CHINESE).encode("gbk")),
    "a name that is none": (GERMAN, page(GERMAN, meta("punycode")).encode("cp1252")),
}


def test_pages_are_read_in_the_characters_that_they_are_written_in(extracted: Extracted) -> None:
    rows = extracted({f"{number:02d}.html": data for number, (_, data) in enumerate(CHARSETS.values())})

    found = {name: row["txt"] for name, row in zip(CHARSETS, rows, strict=True)}
    assert {name for name, (text, _) in CHARSETS.items() if text.strip() not in found[name]} == set()


def test_tags_with_thousands_of_attributes_lose_them(extracted: Extracted) -> None:
    """libxml2 takes half a minute for 20 000, while no other thread runs."""
    many = " ".join(f"a{number}=1" for number in range(20_000))
    pages = {
        "a.html": f"<html><body {many}><article><p {many}>{LONG}</p></article>",
        "b.html": f"<html><body><article><p class='{'x' * 20_000}'>{LONG}</p>",
    }
    rows = extracted({name: text.encode() for name, text in pages.items()}, transform_timeout=10)
    assert [row["txt"].strip() for row in rows] == [LONG.strip()] * 2


def test_a_page_of_any_size_is_read_up_to_a_bound(extracted: Extracted) -> None:
    long = page(LONG, "<style>" + " " * (4 << 20) + "</style>").encode()

    rows = extracted({"a.html": long, "b.html": b"<html>" + b" " * (6 << 20) + page(LONG).encode()})

    assert LONG.strip() in rows[0]["txt"]
    assert rows[1]["txt"] == ""
    assert len(rows[1]["data"]) > 6 << 20


# --- where it lies ---


@pytest.mark.parametrize("output_format", ["webdataset", "files"])
@pytest.mark.parametrize("captions", [False, True])
def test_the_text_is_a_file_beside_the_original(
    tmp_path: Path, fetched: Callable[..., Any], output_format: str, captions: bool
) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a.pdf").write_bytes(pdf([["Hello"]]))
    with serve(tmp_path / "served") as server:
        rows = [{"url": server.url("a.pdf"), "caption": "a file"}]
        fetched(rows, output_format=output_format, extract_text=True, caption_col="caption" if captions else None)
    if output_format == "webdataset":
        with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
            tar.extractall(tmp_path / "out" / "00000", filter="data")

    files = {path.name.partition(".")[2]: path.read_bytes() for path in (tmp_path / "out" / "00000").iterdir()}
    text = {"text.txt": b"Hello\n\f", "txt": b"a file"} if captions else {"txt": b"Hello\n\f"}
    assert {ext: data for ext, data in files.items() if "txt" in ext} == text
    assert json.loads(files["json"])["pages"] == 1
    assert files["pdf"] == pdf([["Hello"]])


# --- PDF files ---


def test_the_pages_of_a_pdf_end_with_form_feeds(extracted: Extracted) -> None:
    rows = extracted(
        {
            "a.pdf": pdf([["Hello", "wor-", "ld"], [], ["last page"]]),
            "b.pdf": pdf([["anybody may read, and not print"]], password=""),
            "c.pdf": b"junk before it\n" + pdf([["late"]], packed=True),
        }
    )

    assert [(row["pages"], row["txt"]) for row in rows] == [
        (3, "Hello\nwor-\nld\n\f\n\flast page\n\f"),
        (1, "anybody may read, and not print\n\f"),
        (1, "late\n\f"),
    ]
    assert {row["stored_bytes"] for row in rows} == {None}


def test_a_pdf_that_cannot_be_read_is_a_failed_row(extracted: Extracted) -> None:
    whole = pdf([["Hello"]])

    rows = extracted(
        {
            "a.pdf": pdf([["secret"]], password="x"),
            "b.pdf": pdf([]),
            "c.pdf": whole[:60],
            "d.pdf": b"<html>Please log in</html>",
            "e.pdf": whole,
        }
    )

    assert [row["error_code"] for row in rows] == ["not_decodable"] * 4 + [None]
    assert "password" in rows[0]["error_message"]
    assert all("broken" in row["error_message"] for row in rows[1:4])


@pytest.mark.slow
def test_a_pdf_that_takes_all_memory_is_the_only_one_that_fails(extracted: Extracted) -> None:
    # 14 MB of instructions, from 14 KB, for which pdfium takes 1.2 GB.
    bomb = pdf([["x) Tj " + "q " * (7 << 20) + "(x"]], packed=True)

    rows = extracted({"a.pdf": bomb, "b.pdf": pdf([["Hello"]])})

    limited = sys.platform == "linux"
    assert [row["error_code"] for row in rows] == ["transform_crash" if limited else None, None]
    assert rows[1]["txt"] == "Hello\n\f"


# --- without the libraries ---


def test_without_its_libraries_extract_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    monkeypatch.delitem(sys.modules, "any2ds.transforms.steps.text", raising=False)  # which has imported it

    with pytest.raises(MissingExtra, match=r"any2ds\[text\]"):
        download(["http://127.0.0.1:9/a"], output_folder=tmp_path / "out", extract_text=True, quiet=True)
