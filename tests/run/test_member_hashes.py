"""Hashes that the list expects of each file of a sample: what is compared, what a mismatch means, what a retry does."""

import hashlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds import download, load, retry, verify
from any2ds.core.errors import OptionError
from any2ds.testing.server import Server, serve

FORMATS = ("webdataset", "files", "parquet", "tfrecord", "arrayrecord")
CHECKS = "image:isum:sha256,mask:msum:md5"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for n in range(5):
        for name in "im":
            (folder / f"{name}{n}.bin").write_bytes(f"{name}{n}".encode() * 50)
    return folder


def rows(server: Server, files: Path) -> list[dict[str, Any]]:
    """The mask of row 1 is another, the image of row 2 too; row 3 expects nothing of its image, row 4 has no mask."""
    found = []
    for n in range(5):
        image, mask = ((files / f"{name}{n}.bin").read_bytes() for name in "im")
        sums = {"isum": hashlib.sha256(image).hexdigest(), "msum": hashlib.md5(mask).hexdigest()}
        found.append({"img": server.url(f"i{n}.bin"), "seg": server.url(f"m{n}.bin"), **sums})
    found[1]["msum"] = "0" * 32
    found[2]["isum"] = hashlib.sha256(b"other").hexdigest()
    found[3]["isum"] = None
    found[4]["seg"] = None
    return found


def make(server: Server, files: Path, folder: Path, **options: Any) -> Any:
    fixed = {"url_col": "image:img,mask:seg", "verify_hash": CHECKS, "number_sample_per_shard": 3}
    running = {"output_format": "files", "distributor": "inline", "quiet": True}
    return download(rows(server, files), str(folder), **{**fixed, **running, **options})


def table(folder: Path) -> dict[str, list[Any]]:
    found = [pq.read_table(path) for path in sorted(folder.glob("0000?.parquet"))]
    return {name: [value for each in found for value in each[name].to_pylist()] for name in found[0].schema.names}


def test_each_file_is_compared_with_the_hash_of_its_member(files: Path, tmp_path: Path) -> None:
    with serve(files) as server:
        make(server, files, tmp_path, require="any")
        expected = rows(server, files)
    found = table(tmp_path)
    assert found["image_hash_matches"] == [True, True, False, None, True]
    assert found["mask_hash_matches"] == [True, False, True, True, None]
    assert found["image_error_code"] == [None, None, "hash_mismatch", None, None]
    assert found["mask_error_code"] == [None, "hash_mismatch", None, None, None]
    assert found["image_expected_hash"] == [row["isum"] for row in expected]
    assert found["mask_expected_hash"] == [row["msum"] for row in expected]
    assert found["image_sha256"][0] == expected[0]["isum"]
    assert found["status"] == ["success"] * 5
    assert not {"isum", "msum", "expected_hash", "hash_matches"} & found.keys()
    assert not verify(str(tmp_path), quiet=True).findings


@pytest.mark.parametrize(
    ("on_mismatch", "outcomes"),
    [
        ("fail_row", ["success", "failed_to_subsample", "failed_to_subsample", "success", "failed_to_download"]),
        ("drop", ["success", "dropped", "dropped", "success", "failed_to_download"]),
        ("flag", ["success", "success", "success", "success", "failed_to_download"]),
    ],
)
def test_a_mismatch_of_one_file_is_one_of_its_row(
    files: Path, tmp_path: Path, on_mismatch: str, outcomes: list[str]
) -> None:
    with serve(files) as server:
        make(server, files, tmp_path, on_hash_mismatch=on_mismatch)
    assert table(tmp_path)["status"] == outcomes
    assert not verify(str(tmp_path), quiet=True).findings


@pytest.mark.parametrize("output_format", [*FORMATS, "dummy"])
def test_a_retry_compares_what_it_fetches(files: Path, tmp_path: Path, output_format: str) -> None:
    with serve(files, {"m0.bin": ["503", "ok"], "i2.bin": ["503", "ok"]}) as server:
        make(server, files, tmp_path, output_format=output_format)
        before = dict(server.counts)
        retry(str(tmp_path), distributor="inline", quiet=True)
        assert {name: count - before[name] for name, count in server.counts.items() if count > before[name]} == {
            "i0.bin": 1,
            "m0.bin": 1,
            "i2.bin": 1,
            "m2.bin": 1,
        }
    found = pq.read_table(tmp_path / "00002.parquet").to_pydict()
    assert (found["key"], found["status"]) == (["000000", "000002"], ["success", "failed_to_subsample"])
    assert (found["image_hash_matches"][0], found["mask_hash_matches"][0]) == (True, True)
    assert (found["image_error_code"][1], found["image_hash_matches"][1]) == ("hash_mismatch", False)
    assert not verify(str(tmp_path), quiet=True).findings
    if output_format != "dummy":
        masks = {row["key"]: bytes(row["mask"]) for row in load(tmp_path)}
        assert masks["000000"] == (files / "m0.bin").read_bytes()


def test_one_member_alone_may_have_hashes(files: Path, tmp_path: Path) -> None:
    with serve(files) as server:
        report = make(server, files, tmp_path, verify_hash={"mask": ["msum", "md5"]})
    assert report.status_dict == {"success": 3, "hash_mismatch": 1, "bad_url": 1}
    found = table(tmp_path)
    assert found["mask_hash_matches"] == [True, False, True, True, None]
    assert found["image_hash_matches"] == [None] * 5
    assert "image_expected_hash" not in found


def test_rows_with_one_url_share_a_transfer_only_if_they_expect_the_same(files: Path, tmp_path: Path) -> None:
    with serve(files) as server:
        given = rows(server, files)[:2] * 2
        given[3] = {**given[3], "msum": hashlib.md5((files / "m1.bin").read_bytes()).hexdigest()}
        options = {"url_col": "image:img,mask:seg", "verify_hash": CHECKS, "distributor": "inline", "quiet": True}
        report = download(given, str(tmp_path), **options)
        assert (server.counts["i0.bin"], server.counts["m0.bin"], server.counts["m1.bin"]) == (1, 1, 2)
    assert report.status_dict == {"success": 3, "hash_mismatch": 1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"verify_hash": "isum:sha256"}, "for none of image, mask"),
        ({"verify_hash": "sound:isum:sha256"}, "sound:isum:sha256 is for none of"),
        ({"verify_hash": "image:isum:sha256,image:msum:md5"}, "each member once"),
        ({"verify_hash": {"image": "isum:crc"}}, "md5, sha256 or sha512"),
        ({"url_col": "img"}, "needs several URLs"),
    ],
)
def test_what_cannot_be_is_refused(files: Path, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with serve(files) as server, pytest.raises(OptionError, match=named):
        make(server, files, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
