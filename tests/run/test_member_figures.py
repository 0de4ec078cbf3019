"""What people are told of the files of samples that have several: which of them failed how often, and why."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from any2ds import card, download, inspect, report, retry
from any2ds.testing.server import serve

FAILED = {"image": {"http_404": 1}, "mask": {"http_404": 2, "http_503": 1}}


def test_each_place_tells_which_member_failed_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(10):
        for name in "im":
            (folder / f"{name}{n}.bin").write_bytes(f"{name}{n}".encode())
    script: dict[str, Any] = {"m1.bin": ["404"], "m4.bin": ["404"], "i4.bin": ["404"], "m7.bin": ["503", "503", "ok"]}
    with serve(folder, script) as server:
        rows = [{"img": server.url(f"i{n}.bin"), "seg": server.url(f"m{n}.bin")} for n in range(10)]
        rows[9]["seg"] = ""
        options: dict[str, Any] = {"url_col": "image:img,mask:seg", "output_format": "files", "require": "image"}
        made = download(rows, str(tmp_path / "out"), number_sample_per_shard=3, processes_count=1, **options)
        screen = capsys.readouterr().err
        again = retry(str(tmp_path / "out"), distributor="inline", quiet=True)
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
    assert inspect(str(folder)).mime_types == {"application/octet-stream": 15}  # nine images, six masks
    card(str(folder))
    shown = (folder / "README.md").read_text(encoding="utf-8")
    assert "| mask | 6 | 3 | 1 | http" in shown
    assert "| `image_*`, `mask_*` | |" in shown
    assert "| `image_http_status` |" not in shown

    # After the retry the statistics are those of the dataset, those of the retry of what it tried.
    found = Counter[tuple[str, str]]()
    for path in folder.glob("*_stats.json"):
        for name, outcomes in json.loads(path.read_bytes())["members"].items():
            found.update({(name, code): files for code, files in outcomes.items()})
    codes = [*FAILED["mask"], "success", "absent"]
    assert {code: found["mask", code] for code in codes} == {"http_404": 2, "http_503": 1, "success": 6, "absent": 1}
    assert again.members["mask"] == {"http_503": 1}


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
def test_each_file_that_a_step_leaves_as_it_came_is_counted(output_format: str, tmp_path: Path) -> None:
    """Those of a row whose other file fails at first, when they are stored."""
    folder = tmp_path / "files"
    folder.mkdir()
    for n in range(4):
        for name in "im":
            (folder / f"{name}{n}.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    Image.new("L", (64, 64)).save(folder / "m0.svg", "png")
    out = str(tmp_path / "out")
    with serve(folder, {"m2.svg": ["503", "503", "ok"], "i3.svg": ["404"]}) as server:
        rows = [{"img": server.url(f"i{n}.svg"), "seg": server.url(f"m{n}.svg")} for n in range(4)]
        options: dict[str, Any] = {"distributor": "inline", "quiet": True, "report": False}
        made = download(rows, out, url_col="image:img,mask:seg", output_format=output_format, file_size=8, **options)
        assert made.not_processed == {"image/svg+xml is not decoded": 3}
        found = [made.not_processed]
        for _ in range(2):
            retry(out, **options)
            found.append(inspect(out).not_processed)
        assert server.counts["i2.svg"] == 1
    assert [sum(each.values()) for each in found] == [3, 3, 5]
