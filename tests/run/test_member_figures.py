"""What people are told of the files of samples that have several: which of them failed how often, and why."""

import re
from pathlib import Path
from typing import Any

import pytest

from any2ds import card, download, inspect, report, retry
from any2ds.testing.server import serve

FAILED = {"image": {"http_404": 1}, "mask": {"http_404": 2, "http_503": 1}}


def write_files(folder: Path, count: int) -> Path:
    """Images and masks, with their numbers."""
    folder.mkdir()
    for n in range(count):
        for name in "im":
            (folder / f"{name}{n}.bin").write_bytes(f"{name}{n}".encode())
    return folder


def test_each_place_tells_which_member_failed_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_files(tmp_path / "files", 10)
    script: dict[str, Any] = {"m1.bin": ["404"], "m4.bin": ["404"], "i4.bin": ["404"], "m7.bin": ["503", "503", "ok"]}
    with serve(folder, script) as server:
        rows = [{"img": server.url(f"i{n}.bin"), "seg": server.url(f"m{n}.bin")} for n in range(10)]
        rows[9]["seg"] = ""
        options: dict[str, Any] = {"url_col": "image:img,mask:seg", "output_format": "files", "require": "image"}
        made = download(rows, str(tmp_path / "out"), number_sample_per_shard=3, processes_count=1, **options)
        screen = capsys.readouterr().err
        assert made.examples == {"http_404": server.url("i4.bin")}
    folder = tmp_path / "out"
    absent = {"image": {}, "mask": {"absent": 1}}
    arrived = {"image": {"success": 9}, "mask": {"success": 6}}
    assert made.members == {name: {**arrived[name], **FAILED[name], **absent[name]} for name in FAILED}
    assert "mask: 6 arrived, 3 failed (http_404 2, http_503 1), 1 absent" in " ".join(screen.split())
    assert "image: 9 arrived, 1 failed (http_404 1)" in " ".join(screen.split())
    for member in inspect(str(folder)).members:
        assert (member.arrived, member.failed) == {"image": (9, 1), "mask": (6, 3)}[member.name]
    report(str(folder), samples=0)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'data-member="(\w+)" data-failed="(\d+)"', page) == [("image", "1"), ("mask", "3")]
    hosts = re.findall(r"<h2 id=.hosts.*?</section>", page, re.DOTALL)
    assert len(hosts) == 1
    assert ">4<" in hosts[0]
    assert ">19<" in hosts[0]  # of the URLs, of which one is blank
    types = inspect(str(folder)).types
    assert {name: each.files for name, each in types.items()} == {"application/octet-stream": 15}  # 9 images, 6 masks
    card(str(folder))
    shown = (folder / "README.md").read_text(encoding="utf-8")
    assert "| mask | 6 | 3 | 1 | http" in shown
    assert "| `image_*`, `mask_*` | |" in shown
    assert "| `image_http_status` |" not in shown


@pytest.mark.parametrize("times", [1, 2])
def test_members_of_rows_that_were_tried_again_count_once(times: int, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "files", 4)
    script: dict[str, Any] = {"m1.bin": [*["503"] * times, "ok"], "i2.bin": ["404"]}
    options: dict[str, Any] = {
        "url_col": "image:img,mask:seg",
        "retries": 0,
        "number_sample_per_shard": 3,
        "quiet": True,
    }
    with serve(folder, script) as server:
        rows = [{"img": server.url(f"i{n}.bin"), "seg": server.url(f"m{n}.bin")} for n in range(4)]
        download(rows, str(tmp_path / "out"), **options)
        for _ in range(times):
            retry(str(tmp_path / "out"), codes="all", quiet=True)
        download(rows, str(tmp_path / "alone"), **options)
    found, expected = inspect(str(tmp_path / "out")), inspect(str(tmp_path / "alone"))
    assert found.members == expected.members
    assert [(member.arrived, member.failed) for member in found.members] == [(3, 1), (4, 0)]
    assert found.outcomes == expected.outcomes == {"success": 3, "http_404": 1}
