"""No value of a row costs its shard: what a table or a format cannot hold is the failure, or the null, of one row."""

from __future__ import annotations

import base64
import http.server
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import download, retry, verify
from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.core.tables import take
from any2ds.testing.server import serve
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats.arrayrecord import ArrayrecordWriter
from any2ds.writers.formats.parquet import ParquetWriter
from any2ds.writers.formats.tfrecord import TfrecordWriter


def png(width: int, height: int) -> bytes:
    """Its header speaks of so many pixels, and there are none."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


def bmp(width: int, height: int) -> bytes:
    return (
        b"BM"
        + struct.pack("<IHHI", 70, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, *[0] * 6)
        + bytes(16)
    )


def tiff(width: int, height: int) -> bytes:
    fields = [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 1)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in fields)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(fields)) + entries + bytes(4)


HUGE = {
    "image/png": [png(2**31, 1), png(1, 2**32 - 1)],
    "image/bmp": [bmp(1, -(2**31)), bmp(2**31 - 1, 1)],
    "image/tiff": [tiff(2**32 - 1, 1), tiff(2**31, 2**31)],
}


@pytest.mark.parametrize("options", [{"file_size": 64}, {"extract_exif": True, "decode_check": True}])
@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_header_that_claims_a_side_of_billions_fails_its_row_alone(
    output_format: str, options: dict[str, Any], tmp_path: Path
) -> None:
    images = [(kind, data) for kind, several in HUGE.items() for data in several]
    urls = [f"data:{kind};base64,{base64.b64encode(data).decode()}" for kind, data in images]
    rows = [{"url": url} for url in ("data:,before", *urls, "data:,behind")]
    out = tmp_path / "out"
    report = download(rows, out, output_format=output_format, distributor="inline", quiet=True, **options)
    assert (report.successes, report.failed_to_subsample) == (2, len(images))
    found = pq.read_table(out / "00000.parquet", columns=["status", "error_code", "width"]).to_pylist()
    assert [row["status"] for row in found] == ["success", *["failed_to_subsample"] * len(images), "success"]
    assert {row["error_code"] for row in found[1:-1]} <= {"too_many_pixels", "not_decodable"}
    assert {row["width"] for row in found} == {None}
    assert [sample["data"] for sample in any2ds.load(out)] == [b"before", b"behind"]
    assert verify(out).ok


def test_a_value_that_its_column_cannot_hold_is_null_and_the_others_stay(tmp_path: Path) -> None:
    given = [7, 2**31, -(2**40), 2**70, None, 8]
    rows = pa.table({"url": pa.array([f"http://127.0.0.1/{n}" for n in range(len(given))], pa.string())})
    columns = {"width": pa.int32(), "tags": pa.list_(pa.int8())}
    table = MetadataTable(rows, (), columns, folder=tmp_path)
    for n, value in enumerate(given):
        fields = {"status": "success", "width": value, "tags": [1, value], "etag": f"\udcff{n}"}
        table.add(Sample(Row(0, n, str(n), None), None, "", fields))
    found = table.table().to_pydict()
    assert found["width"] == [7, None, None, None, None, 8]
    assert found["tags"] == [[1, 7], None, None, None, [1, None], [1, 8]]
    assert found["etag"] == [f"?{n}" for n in range(len(given))]
    assert found["status"] == ["success"] * len(given)


LIMITED: dict[str, tuple[type[ShardWriter], str]] = {
    "parquet": (ParquetWriter, "most_bytes"),
    "tfrecord": (TfrecordWriter, "most_sample_bytes"),
    "arrayrecord": (ArrayrecordWriter, "most_sample_bytes"),
}


@pytest.mark.parametrize("output_format", LIMITED)
def test_a_file_that_is_too_large_for_its_format_fails_its_row_alone(
    output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that is lowered: the real one is tried by a slow test."""
    writer, limit = LIMITED[output_format]
    assert 2**30 < getattr(writer, limit) < 2**31
    monkeypatch.setattr(writer, limit, 1000)
    web = tmp_path / "web"
    web.mkdir()
    for name, size in {"a": 1000, "b": 1001, "c": 10}.items():
        (web / name).write_bytes(b"\1" * size)
    given: dict[str, Any] = {"output_format": output_format, "distributor": "inline", "quiet": True}
    with serve(web, {"b": ["503", "ok"]}) as server:
        names = ["a", "b", "c", "b"]
        report = download([server.url(name) for name in names], tmp_path / "out", retries=0, **given)
        assert report.status_dict == {"success": 2, "http_503": 2}
        tried = retry(tmp_path / "out", distributor="inline", quiet=True)
        assert tried.status_dict == {"too_large": 2}
    found = pq.read_table(tmp_path / "out" / "00001.parquet", columns=["status", "error_code", "error_message"])
    (bad,) = {tuple(row.values()) for row in found.to_pylist() if row["error_code"]}
    assert bad[:2] == ("failed_to_subsample", "too_large")
    assert "1,001 bytes" in bad[2]
    assert f"--output_format={output_format}" in bad[2]
    assert "--output_format=webdataset or files stores it" in bad[2]
    assert [len(sample["data"]) for sample in any2ds.load(tmp_path / "out")] == [1000, 10]
    assert verify(tmp_path / "out").ok


def test_an_extra_file_is_measured_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetWriter, "most_bytes", 1000)

    @any2ds.transform(members=("npy",))
    def with_numbers(sample: Sample) -> Sample:
        return sample.with_member("npy", bytes(1001 if sample.data == b"a" else 1000))

    given: dict[str, Any] = {"output_format": "parquet", "distributor": "inline", "quiet": True}
    rows = [{"url": "data:,a"}, {"url": "data:,b"}]
    report = download(rows, tmp_path / "out", transform=with_numbers, **given)
    assert report.status_dict == {"too_large": 1, "success": 1}


@contextmanager
def zeros(size: int) -> Iterator[Callable[[str], str]]:
    """A server on loopback whose files are as large as that, if they are called `big`, without being anywhere."""

    class Zeros(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left = size if self.path == "/big" else 10
            self.send_response(200)
            self.send_header("Content-Length", str(left))
            self.end_headers()
            while left:
                left -= self.wfile.write(bytes(min(left, 1 << 20)))

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Zeros) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield lambda name: f"http://127.0.0.1:{server.server_port}/{name}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["parquet", "tfrecord", "arrayrecord"])
def test_a_file_of_more_than_2_gib_fails_its_row_alone(output_format: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"output_format": output_format, "distributor": "inline", "quiet": True}
    with zeros(2_200_000_000) as url:
        urls = [url(name) for name in ("small", "big", "small")]
        report = download(urls, tmp_path / "out", max_file_bytes="4GB", total_timeout=0, **given)
    assert report.status_dict == {"success": 2, "too_large": 1}
    assert verify(tmp_path / "out").ok


@pytest.mark.slow
def test_captions_of_more_than_2_gib_in_a_shard_are_stored(tmp_path: Path) -> None:
    """It takes 7 GB of memory, as such a shard does."""
    rows, text = 36_000, "x" * 60_000
    with pq.ParquetWriter(tmp_path / "list.parquet", pa.schema({"url": pa.string(), "text": pa.string()})) as file:
        for start in range(0, rows, 1000):
            numbers = range(start, start + 1000)
            urls = [f"data:,{n}" if n % 1000 else f"http://127.0.0.1:9/{n}" for n in numbers]
            file.write_table(pa.table({"url": urls, "text": [f"{n} {text}" for n in numbers]}))
    out = tmp_path / "out"
    given: dict[str, Any] = {"caption_col": "text", "output_format": "parquet", "number_sample_per_shard": rows}
    report = download(tmp_path / "list.parquet", out, retries=0, distributor="inline", quiet=True, **given)
    assert (report.count, report.successes) == (rows, rows - 36)
    dataset = any2ds.load(out, columns=["key", "caption"])
    assert [dataset[n]["caption"][:5] for n in (0, len(dataset) - 1)] == ["1 xxx", "35999"]


@pytest.mark.slow
def test_rows_with_more_than_2_gib_of_text_are_taken() -> None:
    piece = pa.array(["x" * (300 << 20)])
    whole = pa.chunked_array([piece] * 8)  # which share their memory
    for numbers in (range(8), [7, 0, 7, 3, 3, 3, 3, 3, None]):
        found = take(whole, list(numbers))
        assert [value.is_valid for value in found] == [number is not None for number in numbers]


def test_a_table_with_much_text_of_its_list_is_written_in_several_pieces(tmp_path: Path) -> None:
    captions = ["x" * (30 << 20)] * 5
    rows = pa.table({"url": [f"http://127.0.0.1/{n}" for n in range(5)], "caption": captions})
    metadata = MetadataTable(rows, ())
    writer = ParquetWriter(tmp_path / "a.parquet", metadata, OutputOptions())
    for n in range(5):
        sample = Sample(Row(0, n, f"{n:05d}", None), StoredBody.of(b"a"), "bin", {"status": "success", "ext": "bin"})
        metadata.add(sample)
        writer.write(sample)
    writer.close()
    assert [table.num_rows for table in metadata.pieces()] == [2, 2, 1]
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 2, 1]
