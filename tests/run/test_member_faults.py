"""What is wrong with one of several URLs of a row stays with it, and what cannot be is said before anything is made."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.errors import MissingColumns, OptionError, UsageError
from any2ds.testing.server import serve

OPTIONS: dict[str, Any] = {"url_col": "image:img,mask:seg", "distributor": "inline", "quiet": True}


def table(folder: Path) -> dict[str, list[Any]]:
    found = pq.read_table(folder / "00000.parquet")
    return {name: found[name].to_pylist() for name in found.schema.names}


def test_each_url_fails_for_itself(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in ("a.bin", "late.bin"):
        (folder / name).write_bytes(name.encode())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inside.txt", "text")
    (folder / "packed.zip").write_bytes(packed.getvalue())
    script = {"loop.bin": ["redirect:loop.bin"], "late.bin": ["timeout", "ok"], "gone.bin": ["404"]}
    with serve(folder, script) as server:
        url = server.url
        pairs = [
            (url("a.bin"), url("loop.bin")),
            (url("late.bin"), url("gone.bin")),  # a retry would be in vain: the other one is gone
            (url("a.bin"), url("packed.zip")),  # a file like any other
            (None, " "),
            ("no url", url("a.bin")),
            (url("a.bin"), url("a.bin")),
        ]
        rows = [{"img": image, "seg": mask} for image, mask in pairs]
        report = download(rows, str(tmp_path / "out"), timeout=1, output_format="webdataset", **OPTIONS)
        assert report.successes == 2
        found = table(tmp_path / "out")
        assert found["mask_error_code"] == ["too_many_redirects", "http_404", None, None, None, None]
        late = found["image_error_code"][1]
        assert late.startswith("timeout")
        assert found["image_error_code"] == [None, late, None, "bad_url", "bad_url", None]
        assert found["error_code"] == ["too_many_redirects", late, None, "bad_url", "bad_url", None]
        assert server.counts["a.bin"] == 1  # of four rows


@pytest.mark.parametrize(
    ("url_col", "error", "named"),
    [
        ("image:img,image:seg", OptionError, "'image' is given twice"),
        ("image:img,ma.sk:seg", OptionError, "'ma.sk' cannot be a member"),
        ("image:img,ma/sk:seg", OptionError, "'ma/sk' cannot be a member"),
        ("image:img,Mask:seg", OptionError, "'Mask' cannot be a member"),
        ("image:img,:seg", OptionError, "'' cannot be a member"),
        ("image:img,mask:missing", MissingColumns, "missing"),
        ({"image": "img", "mask": "a,b"}, OptionError, "no comma"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path: Path, url_col: Any, error: type[Exception], named: str) -> None:
    rows = [{"img": "http://127.0.0.1:9/a", "seg": "http://127.0.0.1:9/b"}]
    with pytest.raises(error, match=named):
        download(rows, str(tmp_path / "out"), **{**OPTIONS, "url_col": url_col})
    assert not (tmp_path / "out").exists()


def test_a_list_of_urls_alone_has_no_members(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:9/a\n")
    with pytest.raises(UsageError, match="img"):
        download(str(tmp_path / "urls.txt"), str(tmp_path / "out"), **OPTIONS)
