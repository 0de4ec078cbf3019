"""The whole road: every input format, plain and compressed, into every output format, read with others' tools."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from any2ds import download
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in
from tests.support.records import examples

# webdataset leaves the last shard that it reads open.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*\.tar:ResourceWarning")

COUNT = 12
DEAD = 7  # its file does not exist


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(COUNT):
        if n != DEAD:
            Image.new("RGB", (16, 16), (n * 20, 0, 0)).save(folder / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media) as running:
        yield running


@pytest.fixture
def rows(server: Server) -> pa.Table:
    return pa.table(
        {
            "url": [server.url(f"{n}.png") for n in range(COUNT)],
            "caption": [f'picture "{n}", größe {n}' for n in range(COUNT)],
            "number": list(range(COUNT)),
        }
    )


def write_list(rows: pa.Table, name: str, folder: Path) -> Path:
    """`rows` as the format that the file name says."""
    form, _, compression = name.partition(".")
    stream = io.BytesIO()
    if form == "txt":
        stream.write("".join(f"{url}\n" for url in rows["url"].to_pylist()).encode())
    elif form in ("csv", "tsv"):
        pa.csv.write_csv(rows, stream, pa.csv.WriteOptions(delimiter="," if form == "csv" else "\t"))
    elif form == "json":
        stream.write(json.dumps(rows.to_pylist()).encode())
    elif form == "jsonl":
        stream.write("".join(json.dumps(row) + "\n" for row in rows.to_pylist()).encode())
    else:
        pq.write_table(rows, stream)
    path = folder / f"urls.{name}"
    path.write_bytes(gzip.compress(stream.getvalue()) if compression else stream.getvalue())
    return path


def expect_images(found: list[tuple[str, bytes]], media: Path) -> None:
    assert [key for key, _ in found] == [f"{n // 5:05d}{n % 5}" for n in range(COUNT) if n != DEAD]
    assert [data for _, data in found] == [(media / f"{n}.png").read_bytes() for n in range(COUNT) if n != DEAD]


def read_webdataset(out: Path) -> list[tuple[str, bytes]]:
    shards = [str(path) for path in sorted(out.glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    return [(sample["__key__"].rsplit("/")[-1], sample["png"]) for sample in dataset]


def read_files(out: Path) -> list[tuple[str, bytes]]:
    return [(path.stem, path.read_bytes()) for path in sorted(out.glob("*/*.png"))]


def read_parquet(out: Path) -> list[tuple[str, bytes]]:
    query = f"select key, data from '{out}/*.parquet' where status = 'success' order by key"
    return [(key, bytes(data)) for key, data in duckdb.sql(query).fetchall()]


def read_records(out: Path) -> list[tuple[str, bytes]]:
    records = [example for path in sorted(out.glob("*.*record")) for example in examples(path)]
    return [(example["key"][0].decode(), example["data"][0]) for example in records]


READ_BACK = {
    "webdataset": read_webdataset,
    "files": read_files,
    "parquet": read_parquet,
    "tfrecord": read_records,
    "arrayrecord": read_records,
    "dummy": None,
}


@pytest.mark.parametrize("output_format", READ_BACK)
@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize("input_format", ["txt", "csv", "tsv", "json", "jsonl", "parquet"])
def test_every_input_into_every_output(
    input_format: str, compression: str, output_format: str, rows: pa.Table, media: Path, tmp_path: Path
) -> None:
    url_list = write_list(rows, input_format + compression, tmp_path)
    columns: dict[str, Any] = {"caption_col": "caption", "save_additional_columns": ["number"]}
    out = tmp_path / "out"
    report = download(
        url_list=url_list,
        output_folder=out,
        output_format=output_format,
        number_sample_per_shard=5,
        distributor="inline",
        quiet=True,
        **({} if input_format == "txt" else columns),
    )
    assert (report.shards, report.count, report.successes) == (3, COUNT, COUNT - 1)
    assert report.status_dict == {"success": COUNT - 1, "http_404": 1}
    if reader := READ_BACK[output_format]:
        expect_images(reader(out), media)
    metadata = pd.concat([pd.read_parquet(path) for path in sorted(out.glob("*.parquet"))], ignore_index=True)
    assert metadata["url"].to_list() == rows["url"].to_pylist()
    assert metadata["error_code"].to_list()[DEAD] == "http_404"
    if input_format != "txt":
        assert metadata["caption"].to_list() == rows["caption"].to_pylist()
        assert metadata["number"].to_list() == rows["number"].to_pylist()
        assert metadata["number"].dtype == "int64"
    counts = [json.loads(path.read_text())["count"] for path in sorted(out.glob("*_stats.json"))]
    assert counts == [5, 5, 2]
    assert {name for name in names_in(out) if name.startswith(".")} == {
        f".any2ds/{name}" for name in ("run", "segments", "shards")
    }


def test_captions_and_metadata_lie_beside_the_file(rows: pa.Table, tmp_path: Path) -> None:
    for output_format in ("webdataset", "files"):
        out = tmp_path / output_format
        download(
            url_list=rows,
            caption_col="caption",
            save_additional_columns="number",
            output_folder=out,
            output_format=output_format,
            quiet=True,
        )
        if output_format == "webdataset":
            with tarfile.open(out / "00000.tar") as tar:
                tar.extractall(out / "00000", filter="data")
        assert (out / "00000" / "000000003.txt").read_text(encoding="utf-8") == 'picture "3", größe 3'
        described = json.loads((out / "00000" / "000000003.json").read_text(encoding="utf-8"))
        assert (described["key"], described["number"], described["status"]) == ("000000003", 3, "success")
        assert not (out / "00000" / f"00000000{DEAD}.json").exists()


def test_plain_tar_and_pandas_read_it(rows: pa.Table, media: Path, tmp_path: Path) -> None:
    download(url_list=rows, output_folder=tmp_path / "out", output_format="webdataset", quiet=True)
    listed = subprocess.run(
        ["tar", "tf", str(tmp_path / "out" / "00000.tar")], capture_output=True, text=True, check=True
    ).stdout.split()
    assert listed[:4] == ["000000000.png", "000000000.json", "000000001.png", "000000001.json"]
    frame = pd.read_parquet(tmp_path / "out" / "00000.parquet")
    assert frame["bytes"].sum() == sum(path.stat().st_size for path in media.iterdir())


def test_items_and_folder_may_be_given_by_position_and_what_is_no_url_is_a_failed_row(
    server: Server, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "urls.txt").write_text(server.url("2.png"))
    monkeypatch.chdir(tmp_path)
    given = [server.url("0.png"), server.url("1.png"), "", None, float("nan"), "urls.txt", str(tmp_path)]
    report = download(given, "out", quiet=True)
    assert dict(report.status_dict) == {"success": 2, "bad_url": 5}
    assert read_files(tmp_path / "out") == [(f"00000000{n}", (media / f"{n}.png").read_bytes()) for n in (0, 1)]


def test_a_script_needs_no_main_guard(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from any2ds import download\n"
        f"print(download([{server.url('0.png')!r}], output_folder='out', quiet=True).successes)\n"
    )
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("1\n", "")
