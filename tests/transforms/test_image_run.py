"""Images in a run: what is in the shard, and what the metadata say of it."""

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.testing.server import serve
from tests.support.pictures import jpeg, photograph

VIDEO = next((Path(__file__).parents[2] / "examples" / "data").rglob("*.mp4"))


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
