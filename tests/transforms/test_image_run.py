"""Images in a run: what is in the shard, and what the metadata say of it."""

import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from any2ds import download, retry
from any2ds.testing.server import serve
from tests.support.pictures import encoded, jpeg, photograph

VIDEO = next((Path(__file__).parents[2] / "examples" / "data").rglob("*.mp4"))


def test_rows_and_files_tell_of_images_before_and_after(tmp_path: Path) -> None:
    files = tmp_path / "www"
    files.mkdir()
    (files / "large.jpg").write_bytes(jpeg(photograph(600, 400)))
    (files / "small.png").write_bytes(encoded(photograph(60, 40)))
    (files / "cut.jpg").write_bytes(jpeg(photograph(600, 400))[:-100])
    (files / "page.txt").write_bytes(b"no image")
    out = tmp_path / "out"
    with serve(files) as server:
        names = ["large.jpg", "small.png", "cut.jpg", "page.txt"]
        boxes = pa.array([[[0.1, 0.1, 0.5, 0.5]], None, None, None], pa.list_(pa.list_(pa.float64())))
        rows = pa.table({"url": [server.url(name) for name in names], "faces": boxes})
        report = download(
            rows,
            output_folder=str(out),
            output_format="files",
            file_size=256,
            bbox_col="faces",
            encode_format="webp",
            extract_exif=True,
            distributor="inline",
            quiet=True,
        )
        assert dict(report.status_dict) == {"success": 3, "not_decodable": 1}
        reported = pq.read_table(out / "00000.parquet")
        assert reported.schema.field("width").type == pa.int32()
        assert reported.schema.field("exif").type == pa.string()
        large, small, cut, page = reported.to_pylist()
        assert (large["width"], large["height"]) == (384, 256)
        assert (large["original_width"], large["original_height"]) == (600, 400)
        assert (large["ext"], large["mime_type"]) == ("webp", "image/webp")
        assert large["bytes"] == (files / "large.jpg").stat().st_size
        stored = (out / "00000" / "000000000.webp").read_bytes()
        assert large["stored_bytes"] == len(stored)
        assert Image.open(io.BytesIO(stored)).size == (384, 256)
        assert large["faces"] == [[0.1, 0.1, 0.5, 0.5]]
        assert (small["ext"], small["width"], small["original_width"]) == ("webp", 60, 60)
        assert (cut["status"], cut["error_code"], cut["width"]) == ("failed_to_subsample", "not_decodable", None)
        assert (page["stored_bytes"], page["width"]) == (None, None)
        assert (out / "00000" / "000000003.txt").read_bytes() == b"no image"
        # It was mended meanwhile; what a retry does to it, boxes included, is what the run would have done.
        (files / "cut.jpg").write_bytes(jpeg(photograph(600, 400)))
        assert retry(str(out), codes="not_decodable", distributor="inline", quiet=True).successes >= 1
    retried = {row["key"]: row["width"] for row in pq.read_table(out / "00001.parquet").to_pylist()}
    assert retried == {cut["key"]: 384}


OTHERS = {
    "page.txt": b"no image",
    "page.html": b"<!DOCTYPE html><html><p>page</p></html>",
    "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("options", [{"file_size": 64}, {}])
def test_files_of_other_kinds_fail_only_if_asked_for(options: dict[str, Any], tmp_path: Path) -> None:
    files = tmp_path / "www"
    files.mkdir()
    for name, content in {**OTHERS, "a.jpg": jpeg(photograph(60, 40))}.items():
        (files / name).write_bytes(content)
    how: dict[str, Any] = {"output_format": "webdataset", "distributor": "inline", **options}
    with serve(files) as server:
        urls = [server.url(name) for name in (*OTHERS, "a.jpg")]
        mixed = download(urls, str(tmp_path / "mixed"), **how)
        images = download(urls, str(tmp_path / "images"), only_images=True, **how)
    assert mixed.status_dict == {"success": 4}
    assert mixed.exts == {"jpg": 1, "txt": 1, "html": 1, "svg": 1}
    assert images.status_dict == {"success": 1, "not_decodable": 3}
    rows = pq.read_table(tmp_path / "images" / "00000.parquet").to_pylist()
    assert [row["error_message"] for row in rows] == [
        "no image of pixels: text/plain",
        "no image of pixels: text/html",
        "no image of pixels: image/svg+xml",
        None,
    ]


def test_images_of_archives_and_frames_are_images(tmp_path: Path) -> None:
    files = tmp_path / "www"
    files.mkdir()
    with zipfile.ZipFile(files / "a.zip", "w") as archive:
        archive.writestr("a.jpg", jpeg(photograph(60, 40)))
        archive.writestr("b.txt", b"no image")
    shutil.copy(VIDEO, files / "v.mp4")
    out = str(tmp_path / "out")
    with serve(files) as server:
        urls = [server.url("a.zip"), server.url("v.mp4")]
        how: dict[str, Any] = {"only_images": True, "unpack": True, "frames": 2, "distributor": "inline"}
        report = download(urls, out, output_format="parquet", **how)
    assert report.status_dict == {"success": 2}
    rows = pq.read_table(tmp_path / "out" / "00000.parquet", columns=["ext", "error_code"]).to_pylist()
    assert [(row["ext"], row["error_code"]) for row in rows] == [
        ("jpg", None),
        (None, "not_decodable"),
        ("jpg", None),
        ("jpg", None),
    ]
