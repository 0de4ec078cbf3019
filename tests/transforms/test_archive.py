"""--unpack from outside: archives behind a server, the samples and metadata that they become, and what is refused."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

from any2ds.testing.server import serve
from tests.support.pictures import media_steps

Rows = list[dict[str, Any]]
Unpacked = Callable[..., Rows]


def jpeg(size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), "red").save(stream, "JPEG")
    return stream.getvalue()


FILES = {
    "photos/red.jpg": jpeg(),
    "page.html": b"<html><p>hello",
    "notes.txt": b"hello",
    "boxes.json": b"{}",
    "inner.zip": b"PK\x05\x06" + bytes(18),
    "labels.cls": b"7",
    "\u00e4/\u65e5\u672c.csv": b"a,b\n",
}
EXTS = ["jpg", "html", "txt", "json", "zip", "flat", "csv"]


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(files: Mapping[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as archive:
        for name, data in files.items():
            archive.addfile(info(name, size=len(data)), io.BytesIO(data))
    return stream.getvalue()


def info(name: str, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def named_gzip(data: bytes, name: str) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile(name, "wb", fileobj=stream) as file:
        file.write(data)
    return stream.getvalue()


@pytest.fixture
def unpacked(tmp_path: Path, fetched: Callable[..., Any]) -> Unpacked:
    """The metadata of a run over these files, with `data`, in the order of the files and of what is in them."""

    def run(files: Mapping[str, bytes], **options: Any) -> Rows:
        folder = tmp_path / "served"
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        options = {"unpack": True, "file_size": 0, **options}
        with serve(folder) as server:
            fetched([server.url(name) for name in files], **options)
        rows: Rows = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
        return rows

    return run


def unpacking(**options: Any) -> Any:
    return media_steps("archive", unpack=True, **options)


def outcome(data: bytes, **options: Any) -> tuple[str, str]:
    """The code and the words of what the step makes of it, if it fails."""
    (made,) = unpacking(**options)(data, "application/zip")
    assert made.failure is not None
    return made.failure.code, made.failure.detail


# --- what becomes of them ---


def test_every_file_of_an_archive_is_a_sample_recognised_by_its_bytes(unpacked: Unpacked) -> None:
    tar = tarred(FILES)
    archives = {
        "a.zip": zipped(FILES),
        "b.tar": tar,
        "c.tar.gz": gzip.compress(tar),
        "d.tar.bz2": bz2.compress(tar),
        "e.tar.xz": lzma.compress(tar),
        "f.tar.zst": zstandard.compress(tar),
        "g.gnu.tar": tarred(FILES, tarfile.GNU_FORMAT),
        "h.stored.zip": zipped(FILES, zipfile.ZIP_STORED),
        "i.bz2.zip": zipped(FILES, zipfile.ZIP_BZIP2),
        "j.two.tgz": gzip.compress(tar[:5000]) + gzip.compress(tar[5000:]) + bytes(100),
    }

    rows = unpacked(archives)

    for number, (name, archive) in enumerate(archives.items()):
        own = [row for row in rows if row["key"].startswith(f"{number:09d}_")]
        assert [row["key"] for row in own] == [f"{number:09d}_{part:04d}" for part in range(len(FILES))], name
        assert [row["path"] for row in own] == list(FILES), name
        assert [row["data"] for row in own] == list(FILES.values()), name
        assert [row["ext"] for row in own] == EXTS, name
        assert [row["stored_bytes"] for row in own] == [len(data) for data in FILES.values()], name
        assert {row["bytes"] for row in own} == {len(archive)}, name
        assert own[0]["mime_type"] == "image/jpeg"
        assert own[5]["mime_type"] is None
    assert len(rows) == len(archives) * len(FILES)


def test_a_name_that_two_kinds_of_files_have_makes_text_no_video(unpacked: Unpacked) -> None:
    (row,) = unpacked({"sources.zip": zipped({"src/app.ts": b"export const answer = 42;\n" * 50})}, file_size=256)
    assert (row["status"], row["path"], row["ext"], row["mime_type"]) == ("success", "src/app.ts", "txt", "text/plain")


def test_later_steps_take_what_was_in_an_archive(unpacked: Unpacked) -> None:
    page = b"<html><body><article><p>" + b"Words of a page. " * 30 + b"</p></article></body></html>"

    (row,) = unpacked({"a.zip": zipped({"page.html": page})}, extract_text=True)

    assert row["data"] == page
    assert row["txt"].startswith("Words of a page.")


def test_one_compressed_file_is_one_sample_under_the_key_of_its_row(unpacked: Unpacked) -> None:
    rows = unpacked(
        {
            "a.gz": named_gzip(b"a,b\n1,2\n", "table.csv"),
            "b.gz": gzip.compress(jpeg()),
            "c.xz": lzma.compress(jpeg()),
            "d.gz": named_gzip(b"x", "../../etc/\u00e9.txt"),
        }
    )

    assert [(row["key"], row["path"], row["ext"]) for row in rows] == [
        ("000000000", "table.csv", "csv"),
        ("000000001", None, "jpg"),
        ("000000002", None, "jpg"),
        ("000000003", "\u00e9.txt", "txt"),  # gzip itself leaves out the folders
    ]
    assert rows[0]["data"] == b"a,b\n1,2\n"


def test_zips_that_are_one_file_to_people_stay_as_they_came(unpacked: Unpacked) -> None:
    documents = {
        "a.docx": {"[Content_Types].xml": b"<x/>", "word/document.xml": b"<x/>"},
        "b.xlsx": {"xl/workbook.xml": b"<x/>", "[Content_Types].xml": b"<x/>"},
        "c.epub": {"mimetype": b"application/epub+zip", "META-INF/container.xml": b"<x/>"},
        "d.odt": {"mimetype": b"application/vnd.oasis.opendocument.text", "content.xml": b"<x/>"},
        "e.jar": {"META-INF/MANIFEST.MF": b"x", "A.class": b"x"},
        "f.apk": {"AndroidManifest.xml": b"x", "classes.dex": b"x"},
        "g.npz": {"a.npy": b"x", "b.npy": b"x"},
        "h.kmz": {"doc.kml": b"x"},
        "i.whl": {"a/__init__.py": b"x", "a-1.dist-info/WHEEL": b"x"},
        "j.pt": {"model/data.pkl": b"x", "model/data/0": b"x"},
    }
    archives = {name: zipped(files) for name, files in documents.items()}

    rows = unpacked(archives)

    assert [row["data"] for row in rows] == list(archives.values())
    assert {row["stored_bytes"] for row in rows} == {None}


def test_folders_links_devices_empty_files_and_junk_are_no_samples(unpacked: Unpacked) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(info("folder", type=tarfile.DIRTYPE))
        tar.addfile(info("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"))
        tar.addfile(info("hard", type=tarfile.LNKTYPE, linkname="real.csv"))
        tar.addfile(info("device", type=tarfile.CHRTYPE, devmajor=1, devminor=5))
        tar.addfile(info("pipe", type=tarfile.FIFOTYPE))
        tar.addfile(info("empty"))
        for name in ("folder/.DS_Store", "._real.csv", "__MACOSX/real.csv", "real.csv"):
            tar.addfile(info(name, size=3), io.BytesIO(b"abc"))
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("Thumbs.db", b"abc")
        archive.writestr("__MACOSX/._real.csv", b"abc")
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, b"/etc/passwd")
        archive.writestr("real.csv", b"abc")

    rows = unpacked({"a.tar": stream.getvalue(), "b.zip": other.getvalue()})

    assert [(row["key"], row["path"]) for row in rows] == [
        ("000000000_0000", "real.csv"),
        ("000000001_0000", "real.csv"),
    ]


NAMES = {
    b"/etc/passwd": "/etc/passwd",
    b"../../../up.txt": "../../../up.txt",
    b"C:\\windows\\x.txt": "C:\\windows\\x.txt",
    b"a//./b.txt": "a//./b.txt",
    b"nul\0byte.txt": "nul\\x00byte.txt",
    "\u00fc.txt".encode(): "\u00fc.txt",
    b"latin-\xe9.txt": "latin-\u0398.txt",  # code page 437, as the format says
    "\u65e5\u672c.txt".encode("shift_jis"): "\u65e5\u672c.txt".encode("shift_jis").decode("cp437"),
    b"line\nbreak.txt": "line\nbreak.txt",
    b"x" * 5000: "x" * 4096,
}


@pytest.mark.parametrize("output_format", ["files", "webdataset"])
def test_names_are_only_ever_text_in_the_metadata(
    tmp_path: Path, fetched: Callable[..., Any], output_format: str
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    for flags in (0, 0x800):  # the second says that names are in UTF-8, also where they are not
        (folder / f"{flags}.zip").write_bytes(raw_zip([(name, b"abc", 3) for name in NAMES], flags))
    names = [name.partition(b"\0")[0] or b"." for name in NAMES]  # in a tar a name ends at a NUL
    (folder / "a.tar").write_bytes(b"".join(raw_tar(name[:100], b"abc") for name in names) + bytes(1024))

    with serve(folder) as server:
        report = fetched(
            [server.url(name) for name in ("0.zip", "2048.zip", "a.tar")],
            unpack=True,
            output_format=output_format,
            metadata_format="parquet,csv,jsonl",
        )

    out = tmp_path / "out"
    rows = pq.read_table(out / "00000.parquet").to_pylist()
    zips, tar = rows[: 2 * len(NAMES)], rows[2 * len(NAMES) :]
    assert [row["path"] for row in zips] == list(NAMES.values()) * 2
    assert [row["path"] for row in tar][:4] == list(NAMES.values())[:4]
    assert tar[6]["path"] == "latin-\\xe9.txt"
    assert report.samples == 3 * len(NAMES)
    written = {path.name for path in out.rglob("[!.]*") if ".any2ds" not in path.parts}
    if output_format == "webdataset":
        with tarfile.open(out / "00000.tar") as data:
            written.update(data.getnames())
    samples = {f"{row['key']}.{ext}" for row in rows for ext in ("json", row["ext"])}
    assert {name for name in written if not name.startswith(("00000", "_"))} == set()
    assert {name for name in written if name.startswith("0000000")} == samples
    assert {path.name for path in tmp_path.iterdir()} == {"served", "out"}


def raw_zip(files: list[tuple[bytes, bytes, int]], flags: int = 0, entries: int = 1) -> bytes:
    """Stored files by name, content and the size that is said; `entries` in the directory for each."""
    body, directory = b"", b""
    for name, data, size in files:
        fields = struct.pack("<4H3I", flags, 0, 0, 0, zlib.crc32(data), len(data), size)
        entry = b"PK\x01\x02" + struct.pack("<2H", 20, 20) + fields
        entry += struct.pack("<5H2I", len(name), 0, 0, 0, 0, 0, len(body)) + name
        body += b"PK\x03\x04" + struct.pack("<H", 20) + fields + struct.pack("<2H", len(name), 0) + name + data
        directory += entry * entries
    count = len(files) * entries % 65536
    return body + directory + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, count, count, len(directory), len(body), 0)


def raw_tar(name: bytes, data: bytes, size: int | None = None, kind: bytes = b"0") -> bytes:
    """One file with its header, by hand."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:124] = b"0000644\0" + b"0000000\0" * 2
    header[124:148] = b"%011o\0" % (len(data) if size is None else size) + b"00000000000\0"
    header[156:157], header[257:265] = kind, b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512)


# --- what is wrong with them ---


def test_a_broken_file_in_a_zip_is_the_only_one_that_fails(unpacked: Unpacked) -> None:
    broken = zipped({"a.csv": b"1" * 500, "b.csv": b"2" * 500, "c.csv": b"3" * 500}, zipfile.ZIP_STORED)
    encrypted = bytearray(zipped({"a.csv": b"1" * 500, "b.csv": b"2" * 500}))
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1

    rows = unpacked({"a.zip": broken.replace(b"2" * 500, b"2" * 499 + b"x"), "b.zip": bytes(encrypted)})

    assert [(row["key"], row["path"], row["status"], row["error_code"]) for row in rows] == [
        ("000000000_0000", "a.csv", "success", None),
        ("000000000_0001", "b.csv", "failed_to_subsample", "not_decodable"),
        ("000000000_0002", "c.csv", "success", None),
        ("000000001_0000", "a.csv", "failed_to_subsample", "not_decodable"),
        ("000000001_0001", "b.csv", "success", None),
    ]
    assert rows[3]["error_message"] == "encrypted"


def test_what_is_broken_as_a_whole_fails_as_a_row(unpacked: Unpacked) -> None:
    tar, zip_ = tarred(FILES), zipped(FILES)
    encrypted = bytearray(zipped({"a.csv": b"1" * 500}))
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    broken = {
        "a.zip": zip_[: len(zip_) // 2],
        "b.tar": tar[: len(tar) // 3],
        "c.tar.gz": gzip.compress(tar)[:-9],
        "d.tar.xz": lzma.compress(tar)[:-40],
        "e.tar.zst": zstandard.compress(tar)[:-4],
        "f.tar.bz2": bz2.compress(tar)[:-4],
        "g.tar.gz": gzip.compress(tar)[:-8] + b"12345678",  # another checksum
        "h.tar": tar.replace(b"page.html\0", b"page.html!"),  # a header with another checksum
        "i.zip": bytes(encrypted),
        "j.zip": b"<html>Please log in</html>",
    }

    rows = unpacked(broken)

    assert [(row["key"], row["error_code"]) for row in rows] == [
        (f"{number:09d}", "not_decodable") for number in range(len(broken))
    ]
    assert rows[8]["error_message"] == "a.csv: encrypted"
    assert "not an archive" in rows[9]["error_message"]


def test_an_archive_without_files_fails(unpacked: Unpacked) -> None:
    empty = {
        "a.zip": zipped({}),
        "b.zip": zipped({"folder/": b"", ".DS_Store": b"x"}),
        "c.tar": tarred({}),
        "d.tar.gz": gzip.compress(tarred({})),
        "e.gz": gzip.compress(b""),
    }

    rows = unpacked({**empty, "f.gz": gzip.compress(bytes(10240))})

    assert [row["error_code"] for row in rows] == ["empty_archive"] * len(empty) + [None]
    assert rows[-1]["data"] == bytes(10240)  # nobody called it a tar


def test_a_tar_with_a_zip_at_its_end_is_a_tar(unpacked: Unpacked) -> None:
    rows = unpacked({"a.tar": tarred({"BMW/a.csv": b"abc", "b.zip": zipped({"c.csv": b"abc"})})})

    assert [(row["path"], row["ext"]) for row in rows] == [("BMW/a.csv", "csv"), ("b.zip", "zip")]


# --- what is too much ---

ZEROS = bytes(1 << 20)
MANY_ZEROS = 8 << 20


def bombs() -> dict[str, bytes]:
    zeros = bytes(MANY_ZEROS)
    tar = tarred({"zeros": zeros})
    layered = zipped({f"{n}.zip": zipped({"zeros": ZEROS}) for n in range(16)})
    deflated = zipped({"zeros": ZEROS})
    start = deflated.index(b"PK\x01\x02")
    entry, tail = deflated[start : deflated.index(b"PK\x05\x06")], 4000
    overlapping = deflated[:start] + entry * tail
    overlapping += b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, tail, tail, len(entry) * tail, start, 0)
    # Its directory says 10 bytes for each.
    lying = zipped({"zeros": zeros}, zipfile.ZIP_BZIP2)
    start = lying.index(b"PK\x01\x02")
    lying = lying[: start + 24] + struct.pack("<I", 10) + lying[start + 28 :]
    return {
        "zip": zipped({"zeros": zeros}),
        "zip of zips": layered,
        "zip whose files are one": overlapping,
        "zip that lies": lying,
        "bz2 zip": zipped({"zeros": zeros}, zipfile.ZIP_BZIP2),
        "tar.gz": gzip.compress(tar),
        "tar.bz2": bz2.compress(tar),
        "tar.xz": lzma.compress(tar, preset=1),
        "tar.zst": zstandard.compress(tar),
        "gz": gzip.compress(zeros),
        "bz2": bz2.compress(zeros),
        "sparse tar": sparse_tar(1 << 40),
        "long name": gzip.compress(raw_tar(b"x", zeros, kind=b"L")),
    }


def sparse_tar(size: int) -> bytes:
    """GNU's old form: no data at all, and so many zeros."""
    header = bytearray(raw_tar(b"sparse", b"", 0, b"S"))
    header[257:265] = b"ustar  \0"
    header[386:410] = b"%011o\0" % 0 + b"%011o\0" % 0
    header[483:495] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + raw_tar(b"real.csv", b"abc") + bytes(1024)


def test_a_bomb_costs_no_more_than_the_limits_allow() -> None:
    limit = 2 << 20
    unpack = unpacking(unpack_max_bytes=limit)
    found: dict[str, str] = {}
    for name, bomb in bombs().items():
        tracemalloc.start()
        try:
            promised = unpack.memory(bomb, "application/zip")
            made = unpack(bomb, "application/zip")
            found[name] = "unpacked"
            if len(made) == 1 and made[0].failure:
                is_broken = made[0].failure.code == "not_decodable"
                found[name] = made[0].failure.detail if is_broken else made[0].failure.code
            else:
                assert sum(one.size for one in made) <= promised, name
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert promised <= limit, name
        assert peak < 3 * limit, name

    assert found == {
        **dict.fromkeys(found, "unpacks_too_large"),
        "zip of zips": "unpacked",  # once: those in it are files
        "zip that lies": "zeros: damaged: longer than in the zip's directory",
        "sparse tar": "unpacked",  # but for the sparse file
        "long name": f"invalid tar: a header of {MANY_ZEROS} bytes",
    }


def test_a_sparse_file_fails_alone(unpacked: Unpacked) -> None:
    rows = unpacked({"a.tar": sparse_tar(1 << 40)})

    assert [(row["path"], row["error_code"]) for row in rows] == [("sparse", "not_decodable"), ("real.csv", None)]


def test_each_limit_is_told_by_its_name() -> None:
    files = {f"{n}.csv": os.urandom(1000) for n in range(10)}
    tar = gzip.compress(tarred(files))
    for archive in (zipped(files), tar):
        assert outcome(archive, unpack_max_files=9) == (
            "unpacks_too_large",
            "it has more than 9 files",
        )
        assert outcome(archive, unpack_max_bytes=9999) == (
            "unpacks_too_large",
            "it unpacks to more than 9999 bytes (--unpack_max_bytes)",
        )
        assert len(unpacking(unpack_max_files=10)(archive, "application/zip")) == 10
    zeros = gzip.compress(ZEROS)
    assert outcome(zeros) == (
        "unpacks_too_large",
        f"it unpacks to more than 200 times its {len(zeros)} bytes",
    )


def test_what_is_small_is_no_bomb_however_well_it_is_compressed(unpacked: Unpacked) -> None:
    (row,) = unpacked({"mask.zip": zipped({"mask": bytes(60_000)})})

    assert row["stored_bytes"] == 60_000


@pytest.mark.parametrize("archive", ["zip", "tar"])
def test_entries_without_end_that_are_no_files_are_too_many(archive: str) -> None:
    if archive == "zip":
        data = raw_zip([(b"folder/", b"", 0)], entries=11_000)
    else:
        data = gzip.compress(raw_tar(b"folder", b"", kind=b"5") * 11_000 + bytes(1024), 1)

    code, words = outcome(data, unpack_max_files=100)

    assert code == "unpacks_too_large"
    assert "entries" in words


def test_headers_of_headers_of_a_tar_are_no_way_out() -> None:
    chain = raw_tar(b"x", b"9 path=x\n", kind=b"x") * 5000 + raw_tar(b"real.csv", b"abc") + bytes(1024)

    assert outcome(chain)[0] == "not_decodable"
