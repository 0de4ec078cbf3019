"""Rows with several URLs, whose files make one sample: what is stored, in every format, and what a retry fetches."""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds import download, load, retry, verify
from any2ds.core.errors import OptionError
from any2ds.testing.server import Server, serve

FORMATS = ("webdataset", "files", "parquet", "tfrecord", "arrayrecord")
URL_COL = "image:img,mask:seg"
KINDS = {"image": "jpg", "mask": "png"}


def picture(kind: str, shade: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (40, 30), shade).save(content, kind)
    return content.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for n in range(6):
        (folder / f"i{n}.jpg").write_bytes(picture("JPEG", n))
        (folder / f"m{n}.png").write_bytes(picture("PNG", 100 + n))
    return folder


@pytest.fixture
def server(files: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Masks 2 and 3 are missing: the former for ever, the latter twice."""
    script = {"m2.png": ["404"] * 99, "m3.png": ["503", "503", "ok"], "i5.jpg": ["404"] * 99, "m5.png": ["404"] * 99}
    with serve(files, script) as server:
        yield server


def rows(server: Server, count: int = 6) -> list[dict[str, Any]]:
    """Row 4 has no URL of a mask; of row 5 nothing is there."""
    found = [{"img": server.url(f"i{n}.jpg"), "seg": server.url(f"m{n}.png"), "text": f"no {n}"} for n in range(count)]
    if count > 4:
        found[4]["seg"] = None
    return found


def make(server: Server, folder: Path, **options: Any) -> Any:
    fixed = {"url_col": URL_COL, "caption_col": "text", "number_sample_per_shard": 4, "distributor": "inline"}
    return download(rows(server), str(folder), quiet=True, **{**fixed, **options})


def table(folder: Path, shard: str = "00000") -> dict[str, list[Any]]:
    found = pq.read_table(folder / f"{shard}.parquet")
    return {name: found[name].to_pylist() for name in found.schema.names}


def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    """Key -> member -> file, as `load` gives them."""
    return {
        sample["key"]: {name: bytes(sample[name]) for name in ("image", "mask") if sample[name] is not None}
        for sample in load(folder)
    }


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize(
    ("require", "stored"),
    [("all", {0: "im", 1: "im"}), ("any", {0: "im", 1: "im", 2: "i", 3: "i", 4: "i"}), ("mask", {0: "im", 1: "im"})],
)
def test_a_row_is_a_success_if_what_is_required_is_there(
    server: Server, files: Path, tmp_path: Path, output_format: str, require: str, stored: dict[int, str]
) -> None:
    report = make(server, tmp_path, output_format=output_format, require=require)
    assert report.successes == len(stored)
    keys = {n: f"{n // 4:05d}{n % 4}" for n in range(6)}
    expected = {
        keys[n]: {
            name: (files / f"{name[0]}{n}.{ext}").read_bytes()
            for name, ext in (("image", "jpg"), ("mask", "png"))
            if name[0] in there
        }
        for n, there in stored.items()
    }
    assert contents(tmp_path) == expected
    assert all(bytes(sample["data"]) == expected[sample["key"]]["image"] for sample in load(tmp_path))
    assert not verify(str(tmp_path), quiet=True).findings


def test_members_stand_side_by_side_in_a_tar_file(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, output_format="webdataset")
    with tarfile.open(tmp_path / "00000.tar") as tar:
        assert tar.getnames()[:4] == ["000000.image.jpg", "000000.mask.png", "000000.txt", "000000.json"]


def test_each_member_has_columns_of_its_own(server: Server, files: Path, tmp_path: Path) -> None:
    report = make(server, tmp_path, output_format="files")
    assert report.examples["http_503"] == server.url("m3.png")  # the URL that failed, not the first of its row
    found = table(tmp_path)
    assert found["url"] == found["image_url"] == [server.url(f"i{n}.jpg") for n in range(4)]
    assert found["mask_url"] == [server.url(f"m{n}.png") for n in range(4)]
    assert found["status"] == ["success", "success", "failed_to_download", "failed_to_download"]
    assert found["image_status"] == ["success"] * 4
    assert found["mask_error_code"] == [None, None, "http_404", "http_503"]
    assert found["error_code"] == [None, None, "http_404", "http_503"]
    assert found["error_message"][2].startswith("mask: ")
    assert found["ext"] == ["image.jpg", "image.jpg", None, None]
    assert found["mask_ext"] == ["png", "png", None, None]
    md5 = hashlib.md5((files / "m0.png").read_bytes()).hexdigest()
    assert found["mask_md5"][0] == md5
    assert found["attempts"] == [2, 2, 2, 2]


def test_a_member_without_url_is_absent_unless_it_is_required(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "any", require="image", output_format="files")
    of_any = table(tmp_path / "any", "00001")
    assert (of_any["status"][0], of_any["mask_status"][0], of_any["mask_url"][0]) == ("success", None, None)
    make(server, tmp_path / "all", output_format="files")
    of_all = table(tmp_path / "all", "00001")
    assert (of_all["status"][0], of_all["error_code"][0]) == ("failed_to_download", "bad_url")
    assert server.counts["i4.jpg"] == 1  # the row is not fetched in vain


@pytest.mark.parametrize("output_format", [*FORMATS, "dummy"])
@pytest.mark.parametrize("require", ["all", "image"])
def test_a_retry_fetches_rows_that_failed_as_a_whole(
    server: Server, files: Path, tmp_path: Path, output_format: str, require: str
) -> None:
    make(server, tmp_path, output_format=output_format, require=require)
    before = dict(server.counts)
    found = [retry(str(tmp_path), distributor="inline", quiet=True) for _ in range(3)]
    if require == "image":  # a row without a file that is not required is a success
        assert (dict(server.counts), [report.count for report in found]) == (before, [0, 0, 0])
        return
    assert dict(server.counts) == {**before, "i3.jpg": 3, "m3.png": 3}
    assert [report.status_dict.get("success", 0) for report in found] == [0, 1, 0]
    last = table(tmp_path, "00003")
    assert (last["key"], last["mask_status"], last["status"]) == (["000003"], ["success"], ["success"])
    assert not verify(str(tmp_path), quiet=True).findings
    if output_format != "dummy":
        expected = {"image": (files / "i3.jpg").read_bytes(), "mask": (files / "m3.png").read_bytes()}
        assert contents(tmp_path)["000003"] == expected


def test_a_url_in_several_rows_is_fetched_once_in_a_shard(server: Server, files: Path, tmp_path: Path) -> None:
    given = [{"img": server.url("i0.jpg"), "seg": server.url(name)} for name in ("m0.png", "m1.png", "i0.jpg")]
    report = download(
        given, str(tmp_path), url_col=URL_COL, output_format="webdataset", distributor="inline", quiet=True
    )
    assert report.successes == 3
    assert server.counts["i0.jpg"] == 1
    assert contents(tmp_path)["000000002"] == dict.fromkeys(("image", "mask"), (files / "i0.jpg").read_bytes())


def test_rows_with_the_same_urls_are_duplicates_in_a_run(server: Server, tmp_path: Path) -> None:
    given = [{"img": server.url("i0.jpg"), "seg": server.url(f"m{n}.png")} for n in (0, 1, 0)]
    report = download(
        given, str(tmp_path), url_col=URL_COL, dedupe="run", output_format="files", distributor="inline", quiet=True
    )
    assert report.status_dict == {"success": 2, "duplicate": 1}


@pytest.mark.parametrize("output_format", FORMATS)
def test_verify_finds_a_member_that_is_not_the_one_that_arrived(
    server: Server, tmp_path: Path, output_format: str
) -> None:
    make(server, tmp_path, output_format=output_format)
    changed = table(tmp_path)["mask_md5"][1]
    (stored,) = [
        path for path in tmp_path.rglob("*") if path.name in ("00000.tar", "00000.tfrecord", "00000.arrayrecord")
    ] or [tmp_path / ("00000/000001.mask.png" if output_format == "files" else "00000.parquet")]
    content = stored.read_bytes()
    at = content.rindex(b"IDAT") + 6
    stored.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert changed
    assert verify(str(tmp_path), quiet=True).findings


def test_verify_finds_that_a_member_is_gone(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, output_format="files")
    (tmp_path / "00000/000001.mask.png").unlink()
    assert ["mask" in finding.message for finding in verify(str(tmp_path), quiet=True).findings] == [True]


def test_a_list_in_which_another_url_of_a_row_has_changed_is_refused(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, output_format="files")
    given = rows(server)
    given[1]["seg"] = server.url("m0.png")
    with pytest.raises(any2ds.UsageError, match="other URLs"):
        download(given, str(tmp_path), url_col=URL_COL, caption_col="text", number_sample_per_shard=4, quiet=True)


def test_steps_know_the_member(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, output_format="webdataset", transform=shout, file_size=20, encode_format="png")
    sample = load(tmp_path)[0]
    assert (sample["image_width"], sample["mask_width"], sample["width"]) == (27, 27, 27)
    assert (sample["image_which"], sample["mask_which"], sample["which"]) == ("IMAGE", "MASK", "IMAGE")
    assert not verify(str(tmp_path), quiet=True).findings


@any2ds.transform(columns={"which": str})
def shout(sample: Any) -> Any:
    return sample.with_fields(which=sample.member.upper())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url_col": "image:img,data:seg"}, "data"),
        ({"url_col": "http:img,mask:seg"}, "http_status"),
        ({"require": "sound"}, "sound"),
        ({"url_col": "img", "require": "any"}, "require"),
        ({"unpack": True}, "unpack"),
        ({"preset": "img2dataset"}, "preset"),
        ({"url_col": {"image": "img"}}, "two members"),
    ],
)
def test_what_cannot_be_is_refused(server: Server, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        make(server, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_user_names_and_passwords_are_stored_nowhere(server: Server, tmp_path: Path) -> None:
    secret = server.url("m0.png").replace("://", "://user:hidden@")
    given = [{"img": server.url("i0.jpg"), "seg": secret}, {"img": secret, "seg": server.url("i0.jpg")}]
    download(given, str(tmp_path), url_col=URL_COL, output_format="files", distributor="inline", quiet=True)
    assert load(tmp_path)[0]["mask_url"] == server.url("m0.png")
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()]


def test_the_example_of_the_page_runs(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {f"{name}_url": [server.url(f"{name[0]}{n}.{ext}") for n in range(2)] for name, ext in KINDS.items()}
    pq.write_table(pa.table(given), tmp_path / "pairs.parquet")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/lists.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "pairs.parquet" in block]
    found: dict[str, Any] = {}
    exec(example, found)
    assert found["sample"]["mask_mime_type"] == "image/png"


def test_processes_and_a_second_run_make_the_same_dataset(files: Path, tmp_path: Path) -> None:
    with serve(files, {"m3.png": ["503"]}) as server:
        for name, distributor in (("one", "inline"), ("many", "multiprocessing")):
            make(server, tmp_path / name, output_format="webdataset", distributor=distributor, processes_count=2)
        (tmp_path / "many/00000_stats.json").unlink()  # as if it had been killed before the end of its first shard
        make(server, tmp_path / "many", output_format="webdataset", distributor="multiprocessing")
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_large_members_wait_on_disk(files: Path, tmp_path: Path) -> None:
    """The mask of the first row comes last: with little memory all that arrives before it is in the spool."""
    for n in range(8):
        (files / f"big{n}.bin").write_bytes(bytes([n]) * (3 << 20))
    with serve(files, {"m0.png": ["slow:0.2"]}) as server:
        given = [{"img": server.url(f"big{n}.bin"), "seg": server.url(f"big{7 - n}.bin")} for n in range(8)]
        given[0]["seg"] = server.url("m0.png")
        report = download(
            given,
            str(tmp_path),
            url_col=URL_COL,
            output_format="parquet",
            max_buffered_bytes="1MiB",
            distributor="inline",
            quiet=True,
        )
    assert report.successes == 8
    assert all(bytes(sample["mask"]) == bytes([7 - n]) * (3 << 20) for n, sample in enumerate(load(tmp_path)) if n)
    assert not verify(str(tmp_path), quiet=True).findings


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_to_webdataset_gives_each_file_by_its_member(server: Server, tmp_path: Path, output_format: str) -> None:
    make(server, tmp_path, output_format=output_format)
    sample = next(iter(load(tmp_path).to_webdataset()))
    assert {"image.jpg", "mask.png", "json", "txt"} <= sample.keys()
    assert b"IDAT" in sample["mask.png"]
    assert len(sample["json"]) < 4000  # no file is in it
