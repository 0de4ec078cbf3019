"""Images that are small files and large in memory: they fail alone, and their process stays small."""

import io
import re
import struct
import zlib
from pathlib import Path

from PIL import Image

from tests.support.memory import peak
from tests.support.pictures import encoded, photograph, through

SIDE = 14_000
MOST = 1_500_000_000  # bytes of a process


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(side: int, bits: int, colour: int) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


def gif(side: int) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00;"


def saved(kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (300, 301)).save(sink, kind, **options)
    return sink.getvalue()


def webp(side: int) -> bytes:
    size = 0x2F | (side - 1) << 8 | (side - 1) << 22
    body = b"WEBPVP8L" + struct.pack("<I", 20) + size.to_bytes(5, "little") + bytes(15)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bombs() -> dict[str, bytes]:
    def big(side: int) -> bytes:
        return struct.pack(">I", side)

    def little(side: int) -> bytes:
        return struct.pack("<I", side)

    saved("JPEG2000")
    tiff = saved("TIFF", compression="tiff_adobe_deflate")
    for tag, before in ((0x100, 300), (0x101, 301)):
        at = tiff.index(struct.pack("<HHI", tag, 4, 1)) if struct.pack("<HHI", tag, 4, 1) in tiff else -1
        at = at if at >= 0 else tiff.index(struct.pack("<HHI", tag, 3, 1))
        assert struct.unpack_from("<H", tiff, at + 8)[0] == before
        tiff = tiff[: at + 8] + struct.pack("<H", SIDE) + tiff[at + 10 :]
    return {
        "a.gif": gif(SIDE),
        "a.png": png(SIDE, 8, 2),
        "b.png": png(10_000, 16, 2),
        "c.png": png(12_000, 8, 6),
        "a.webp": webp(SIDE),
        "a.avif": saved("AVIF").replace(big(300) + big(301), big(SIDE) * 2),
        "a.bmp": saved("BMP").replace(little(300) + little(301), little(SIDE) * 2),
        "a.jp2": saved("JPEG2000")
        .replace(big(301) + big(300), big(SIDE) * 2)
        .replace(big(300) + big(301), big(SIDE) * 2),
        "a.tiff": tiff,
    }


def with_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is there so many times."""
    data = encoded(photograph(64, 64), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + b"\xff\xd9"


def test_a_process_stays_small_whatever_images_claim(tmp_path: Path) -> None:
    """Here of nine kinds, besides one that is decoded."""
    import pyarrow.parquet as pq

    files = {**bombs(), "most.gif": gif(10_900), "scans.jpg": with_scans(5_000)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "list.txt").write_text("".join(f"file://{tmp_path}/{name}\n" for name in files))
    options = ["--distributor=inline", "--quiet", "--file_size=64", "--allow_schemes=file", "--output_format=parquet"]
    used = peak(["list.txt", "out", *options], tmp_path)
    rows = pq.read_table(tmp_path / "out" / "00000.parquet", columns=["url", "error_code"]).to_pylist()
    codes = {Path(row["url"]).name: row["error_code"] for row in rows}
    assert codes == {**dict.fromkeys(bombs(), "too_many_pixels"), "most.gif": None, "scans.jpg": "not_decodable"}
    assert used < MOST


def test_an_image_with_more_scans_than_encoders_make_is_not_decoded() -> None:
    found = through(with_scans(200), "image/jpeg", file_size=16)
    assert found.failure is not None
    assert found.failure.code == "not_decodable"
    assert found.failure.detail == "more than 100 scans"
    assert through(with_scans(20), "image/jpeg", file_size=16).failure is None


def test_a_larger_area_allows_more_memory() -> None:
    message = re.compile(r"--max_image_area=(\d+) allows that")
    found = through(bombs()["b.png"], "image/png", file_size=16)
    assert found.failure is not None
    asked = message.search(found.failure.detail)
    assert asked is not None
    allowed = through(bombs()["b.png"], "image/png", file_size=16, max_image_area=int(asked[1]))
    assert allowed.failure is not None
    assert allowed.failure.code == "not_decodable"  # it is decoded, and has no pixels
