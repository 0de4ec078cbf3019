"""What the files for TensorFlow Datasets say; that it opens a folder by them is shown in tests/reading."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from any2ds import download, retry, verify
from any2ds.config.options import OutputOptions
from any2ds.core.errors import OutputError
from any2ds.core.layout import Layout
from any2ds.dataset import tfds
from any2ds.dataset.shards import ShardEntry
from any2ds.testing.pixel import png
from any2ds.testing.server import serve

SCHEMA = pa.schema([("key", pa.string()), ("caption", pa.string()), ("bytes", pa.int64())])


def entry(shard_id: int, successes: int = 5, **exts: int) -> ShardEntry:
    return ShardEntry(shard_id, count=7, samples=successes, bytes=90, data_bytes=100, exts=exts or {"jpg": successes})


def written(*entries: ShardEntry, schema: pa.Schema | None = SCHEMA, **options: Any) -> dict[str, Any]:
    given = OutputOptions(**{"output_folder": "/data/my set", "output_format": "tfrecord", **options})
    return {name: orjson.loads(content) for name, content in tfds.files(entries, given, schema).items()}


def split(*entries: ShardEntry, **options: Any) -> dict[str, Any]:
    (found,) = written(*entries, **options)["dataset_info.json"]["splits"]
    return found


def data_of(*entries: ShardEntry) -> str:
    features = written(*entries)["features.json"]["featuresDict"]["features"]
    return str(features["data"]["pythonClassName"]).rpartition(".")[2]


def test_lengths_are_successes_and_absent_shards_have_none() -> None:
    assert split(entry(0), entry(3, 2), entry(1, 0))["shardLengths"] == ["5", "0", "0", "2"]


def of_split(shard_id: int, *names: str, samples: int = 5) -> ShardEntry:
    return replace(entry(shard_id, samples), splits=dict.fromkeys(names, 1))


def splits(*entries: ShardEntry) -> tuple[dict[str, list[str]], str]:
    """Split -> lengths of its shards, and the description."""
    info = written(*entries, schema=SCHEMA.append(pa.field("split", pa.string())))["dataset_info.json"]
    return {each["name"]: each["shardLengths"] for each in info["splits"]}, info["description"]


def test_values_of_a_column_are_splits_if_shards_have_one_each() -> None:
    entries = [of_split(4, "test"), of_split(0, "train"), of_split(1, "train"), of_split(3, "train-2")]
    lengths, description = splits(*entries, entry(2, 0))
    assert lengths == {
        "train": ["5", "5", "0", "0", "0"],
        "train-2": ["0", "0", "0", "5", "0"],
        "test": ["0", "0", "0", "0", "5"],
    }
    assert "splits" not in description
    assert splits(of_split(0, "test"))[0] == {"test": ["5"]}
    assert splits(entry(0, 0))[0] == {"train": ["0"]}


@pytest.mark.parametrize(
    ("of_one", "problem"),
    [
        (["train", "test"], "shard 1 has samples of several, or of none"),
        (["train", ""], "shard 1 has samples of several, or of none"),
        ([""], "shard 1 has samples of several, or of none"),
        ([], "shard 1 has samples of several, or of none"),
        (["all"], "cannot be asked for 'all'"),
        (["très"], "cannot be asked for 'très'"),
    ],
)
def test_splits_that_cannot_be_are_explained(of_one: list[str], problem: str) -> None:
    lengths, description = splits(of_split(0, "train"), of_split(1, *of_one))
    assert lengths == {"train": ["5", "5"]}
    assert problem in description


def test_too_many_splits_are_none() -> None:
    lengths, description = splits(*(of_split(number, f"of-{number}") for number in range(101)))
    assert list(lengths) == ["train"]
    assert "more than 100" in description


def test_files_are_written_for_what_can_be_read_alone() -> None:
    assert written(entry(0), output_format="arrayrecord")["dataset_info.json"]["fileFormat"] == "array_record"
    for output_format in ("parquet", "webdataset", "files", "dummy"):
        assert written(entry(0), output_format=output_format) == {}
    assert written(entry(0), schema=None) == {}


@pytest.mark.parametrize("digits", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("shards", [1, 9, 10, 99, 100, 1000, 99_999, 100_000, 100_001, 1_000_000])
def test_names_are_those_of_the_shards(digits: int, shards: int) -> None:
    layout = Layout(10, digits)
    template = tfds.shard_template(layout, shards)
    if len(layout.shard_name(shards - 1)) > digits:
        assert template is None
        return
    assert template is not None
    width = max(5, len(str(shards)))  # as TFDS numbers them
    for shard_id in {0, shards // 2, shards - 1}:
        assert template.format(SHARD_INDEX=f"{shard_id:0{width}d}") == layout.shard_name(shard_id)


def test_numbers_that_outgrew_their_digits_are_told() -> None:
    assert split(entry(9), oom_shard_count=1)
    info = written(entry(10), oom_shard_count=1)["dataset_info.json"]
    assert info["splits"] == []
    assert "larger oom_shard_count" in info["description"]


def test_data_are_images_if_all_files_are() -> None:
    assert data_of(entry(0, jpg=4, png=1), entry(1, bmp=5)) == "Image"
    assert data_of(replace(entry(0, 0), exts={}), entry(1)) == "Image"
    assert data_of(entry(0, jpg=4, png=1), entry(1, jpg=4, pdf=1)) == "Tensor"
    assert data_of(entry(0, jpg=4, webp=1)) == "Tensor"  # TensorFlow decodes it to four dimensions


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/data/my set", "my_set"),
        ("s3://bucket/laion-400m/", "laion_400m"),
        ("s3://bucket", "bucket"),
        ("ftp://me:secret@127.0.0.1:2121/", "dataset_127_0_0_1_2121"),
        ("C:\\data\\Birds", "Birds"),
        ("2026-01", "dataset_2026_01"),
        (".", "dataset"),
        ("größe", "gr_e"),
        ("日本", "dataset"),
        ("memory://", "dataset"),
    ],
)
def test_the_name_is_that_of_the_folder(folder: str, name: str) -> None:
    assert tfds.dataset_name(folder) == name
    assert written(entry(0), output_folder=folder)["dataset_info.json"]["name"] == name


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.string(), "Text"),
        (pa.large_string(), "Text"),
        (pa.binary(), "string"),
        (pa.int8(), "int64"),
        (pa.uint32(), "int64"),
        (pa.uint64(), "Text"),  # which no int64 holds
        (pa.bool_(), "bool"),
        (pa.float64(), "float32"),
        (pa.timestamp("us"), "Text"),
        (pa.decimal128(10, 2), "Text"),
        (pa.dictionary(pa.int32(), pa.string()), "Text"),
        (pa.list_(pa.int32()), ["int64"]),
        (pa.list_(pa.string()), ["Text"]),
        (pa.list_(pa.binary()), ["string"]),
        (pa.list_(pa.list_(pa.int32())), "Text"),
        (pa.struct([("x", pa.int64())]), "Text"),
    ],
    ids=str,
)
def test_columns_are_typed(type: pa.DataType, expected: str | list[str]) -> None:
    def shown(feature: dict[str, Any]) -> str | list[str]:
        if "sequence" in feature:
            return [str(shown(feature["sequence"]["feature"]))]
        if "tensor" in feature:
            return str(feature["tensor"]["dtype"])
        return str(feature["pythonClassName"]).rpartition(".")[2]

    features = tfds.features(pa.schema([("x", type)]), files={})["featuresDict"]["features"]
    assert shown(features["x"]) == expected


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a dataset of two pictures and a dead row, in shards of two."""
    (tmp_path / "files").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / "files" / name).write_bytes(png(name.encode()))
    with serve(tmp_path / "files", {"late.png": ["404", "ok"]}) as server:
        (tmp_path / "files" / "late.png").write_bytes(png(b"late"))

        def make(split: Sequence[Any] = (), **options: Any) -> Path:
            given = {"output_format": "tfrecord", "number_sample_per_shard": 2, **options}
            rows = {"url": [server.url(name) for name in ("a.png", "late.png", "b.png")]}
            if split:
                rows["split"], given["save_additional_columns"] = split, ["split"]
            download(pa.table(rows), output_folder=str(tmp_path / "birds"), quiet=True, distributor="inline", **given)
            return tmp_path / "birds"

        yield make


def lengths_in(folder: Path) -> list[str]:
    found = orjson.loads((folder / "dataset_info.json").read_bytes())
    assert found["name"] == "birds"
    return list(found["splits"][0]["shardLengths"])


def test_a_run_writes_the_files_and_a_retry_writes_them_again(make: Callable[..., Path]) -> None:
    out = make()
    assert lengths_in(out) == ["1", "1"]
    retry(str(out), codes="all", quiet=True, distributor="inline")
    assert lengths_in(out) == ["1", "1", "1"]
    assert not verify(str(out), quiet=True).notes
    make(output_format="webdataset", incremental_mode="overwrite")
    assert not {"features.json", "dataset_info.json"} & set(os.listdir(out))


def splits_in(folder: Path) -> dict[str, list[str]]:
    return {
        each["name"]: each["shardLengths"]
        for each in orjson.loads((folder / "dataset_info.json").read_bytes())["splits"]
    }


def test_rows_that_failed_are_of_no_split(make: Callable[..., Path]) -> None:
    assert splits_in(make(["train", "test", "test"])) == {"train": ["1", "0"], "test": ["0", "1"]}


@pytest.mark.parametrize("values", [[1, 1, 2], ["train", "train", None]])
def test_what_is_no_name_is_no_split(make: Callable[..., Path], values: list[Any]) -> None:
    assert splits_in(make(values)) == {"train": ["1", "1"]}


def test_files_of_others_with_these_names_are_kept(make: Callable[..., Path]) -> None:
    out = make(output_format="webdataset")
    (out / "features.json").write_text("mine")
    make(output_format="webdataset", incremental_mode="overwrite")
    with pytest.raises(OutputError, match=r"features\.json, which any2ds did not write"):
        make(incremental_mode="overwrite")
    assert (out / "features.json").read_text() == "mine"
    assert (out / "00000.tar").exists()
