"""Samples that a recipe generates become a dataset, in every format, split by split."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import any2ds
from any2ds.cli import run
from any2ds.core.errors import DamagedShard, OutputError, UsageError
from any2ds.core.layout import RECIPE_FILE
from tests.support.flowers import FORMATS, Flowers, build, one_split, picture


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_recipe_becomes_a_dataset_in_every_format(output_format: str, tmp_path: Path) -> None:
    report = build(Flowers(), tmp_path, output_format=output_format, number_sample_per_shard=10)
    assert (report.successes, report.shards) == (22 + 6, 3 + 1)
    folder = tmp_path / "flowers" / "small" / "1.1.0"
    assert any2ds.verify(folder, quiet=True).ok
    assert any2ds.inspect(folder).rows == 28
    train = any2ds.load(folder, split="train")
    assert len(train) == 22
    assert len(any2ds.load(folder, split="test")) == 6
    assert len(any2ds.load(folder, split="empty")) == 0
    for shard in any2ds.load(folder).shards:
        assert len({sample["split"] for sample in shard}) == 1
    found = next(sample for sample in train if sample["recipe_key"] == "flower_11")
    assert found["image"] == found["data"] == picture(11, "jpeg")
    assert pickle.loads(pickle.dumps(train))[0]["image"] == train[0]["image"]  # as processes take it
    assert found["mask"] == picture(11)
    assert (found["label"], found["caption"], found["split"]) == (1, "flower 11", "train")
    assert found["box"].tolist() == [[11.0, 0.5], [11.0, 0.5]]
    assert found["parts"] == {"name": ["part 0", "part 1", "part 2"], "size": [0, 1, 2]}
    assert found["about"] == {"width": 4, "is_red": False}
    assert not found["note"]
    assert train.recipe is not None
    assert train.recipe.features["label"].int2str(found["label"]) == "tulip"
    assert {split.name: dict(split.skipped) for split in train.recipe.splits}["train"] == {"corrupt": 3}
    table = train.to_arrow().read_all()
    assert {*table.column_names} == {*train.features} - {"data"} == {*train[0]} - {"data"}
    row = table.filter(pc.field("recipe_key") == "flower_11").to_pylist()[0]
    same = ("image", "mask", "label", "caption", "parts", "about", "key", "note")
    assert {name: row[name] for name in same} == {name: found[name] for name in same}
    assert row["box"] == found["box"].tolist()
    wanted = ["mask", "parts/size", "about", "data"]
    assert any2ds.load(folder, columns=wanted).to_arrow().read_all().column_names == wanted
    decoded = any2ds.load(folder, split="test", columns=["image", "mask", "parts"], decode=True)[0]
    assert list(decoded) == ["image", "mask", "parts"]
    assert (decoded["image"].shape, decoded["mask"].shape) == ((4, 4, 3), (4, 4, 1))


def test_a_split_by_hash_is_the_same_in_every_format_and_order(tmp_path: Path) -> None:
    parts = []
    for output_format, per_shard in (("webdataset", 10), ("parquet", 3)):
        build(Flowers("full"), tmp_path, output_format=output_format, number_sample_per_shard=per_shard, overwrite=True)
        open_ = lambda split: [s["recipe_key"] for s in any2ds.load("flowers/full", data_dir=tmp_path, split=split)]  # noqa: E731
        first, rest = open_(any2ds.split("train", 0.6)), open_(any2ds.split("train", 0.6, 1))
        assert sorted(first + rest) == sorted(open_("train"))
        assert 20 < len(first) < 50
        parts.append(set(first))
    assert parts[0] == parts[1]
    with pytest.raises(UsageError, match="a share"):
        any2ds.split("train", 80)


def test_names_find_the_first_config_and_the_newest_version(tmp_path: Path) -> None:
    build(Flowers("full"), tmp_path)
    with pytest.raises(OutputError, match="not its first config: there are full"):
        any2ds.load("flowers", data_dir=tmp_path)
    build(Flowers("small", "1.0.0"), tmp_path)
    build(Flowers("small"), tmp_path)
    load = lambda name: any2ds.load(name, data_dir=tmp_path)  # noqa: E731
    assert load("flowers").recipe.full_name == "flowers/small:1.1.0"
    assert load("flowers:1.0.*").recipe.full_name == "flowers/small:1.0.0"
    assert load("flowers/full").recipe.full_name == "flowers/full:1.1.0"
    assert len(any2ds.load("flowers/small:1.1.0", data_dir=tmp_path, split="train[:50%]+test")) == 11 + 6
    for name, message in (
        ("flowers:9.0.0", "no version 9.0.0"),
        ("flowers/none", "no config 'none'"),
        ("flower", "did you mean flowers"),
    ):
        with pytest.raises(OutputError, match=message):
            load(name)


@pytest.mark.parametrize("file", ["flowers.py", "recipe.py", "notes.txt"])
def test_a_folder_without_a_dataset_does_not_hide_the_dataset_of_that_name(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / file).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANY2DS_DATA_DIR", str(tmp_path / "data"))
    of_code = r"is no dataset but the code of a recipe, and no dataset in .*: any2ds build \./flowers makes it"
    with pytest.raises(OutputError, match="holds no dataset" if file == "notes.txt" else of_code):
        any2ds.load("flowers", split="train")
    build(Flowers(), tmp_path / "data")
    assert len(any2ds.load("flowers", split="train")) == 22


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"one": [("a", {"text": "x"})], "two": [("a", {"text": "x"})]}, "sample 0 of one and sample 0 of two"),
        ([("a", "x")], "sample 'a': expected a dict of features, not 'x'"),
        ([3], r"expected \(key, sample\), got int"),
        ([None, ("a", {"text": "x"})], r"expected \(key, sample\), got NoneType"),
        ([(1.5, {"text": "x"})], "invalid key 1.5"),
        ([("", {"text": "x"})], "invalid key ''"),
        ({"train": None}, "split train: it is None"),
        ({"train": 7}, "split train: expected samples"),
    ],
)
def test_what_is_wrong_is_named(samples: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        build(one_split(samples), tmp_path)
    assert not (tmp_path / "small" / "1.0.0").exists()


def test_a_duplicate_names_both_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(picture(1))
    samples = [("same", {"image": tmp_path / f"{name}.png"}) for name in ("a", "b")]
    with pytest.raises(UsageError, match=r"sample 0 \(.*a\.png\) of train and sample 1 \(.*b\.png\) of train"):
        build(one_split(samples, image=any2ds.Image()), tmp_path)


def test_what_people_put_beside_a_dataset_stays_when_it_is_made_anew(tmp_path: Path) -> None:
    def samples() -> Iterator[Any]:
        yield "a", {"text": "x"}

    build(one_split(samples), tmp_path, output_format="webdataset")
    folder = tmp_path / "small/1.0.0"
    for name in ("README.md", "urls.parquet", "notes/a.txt", "report.html", ".hidden"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    with pytest.raises(OutputError, match="--overwrite makes it anew as tfrecord"):
        build(one_split(samples), tmp_path, output_format="tfrecord")
    build(one_split(samples), tmp_path, output_format="tfrecord", overwrite=True)
    for name in ("README.md", "urls.parquet", "notes/a.txt", "report.html", ".hidden"):
        assert (folder / name).read_text() == "mine"
    assert not (folder / "00000.tar").exists()
    (folder / "00000.arrayrecord").write_text("mine")
    with pytest.raises(OutputError, match=r"holds 00000\.arrayrecord, which any2ds did not write and would write over"):
        build(one_split(samples), tmp_path, output_format="arrayrecord", overwrite=True)
    assert (folder / "00000.arrayrecord").read_text() == "mine"


def test_the_first_samples_of_each_split_are_a_trial_which_the_whole_dataset_replaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "flowers/small/1.1.0"
    assert build(Flowers(), tmp_path, max_examples_per_split=3).successes == 6
    assert (any2ds.inspect(folder).recipe or {})["trial"] == 3
    assert "This is a trial, with no more than 3 samples of each split." in any2ds.card(folder, output="-").text
    assert build(Flowers(), tmp_path, max_examples_per_split=3).skipped_shards == 2
    assert build(Flowers(), tmp_path, max_examples_per_split=2, output_format="parquet").successes == 4
    assert build(Flowers(), tmp_path).successes == 28
    assert "what is there, a trial, with no more than 2 samples of each split, is replaced" in caplog.text
    assert build(Flowers(), tmp_path, max_examples_per_split=3).skipped_shards == 2  # and never the other way round
    assert len(any2ds.load(folder)) == 28
    assert any2ds.inspect(folder).recipe == {
        "name": "flowers/small:1.1.0",
        "splits": {"train": 22, "test": 6, "empty": 0},
        "skipped": {"train": {"corrupt": 3}, "test": {"corrupt": 1}},
        "trial": None,
    }
    assert "trial" not in any2ds.card(folder, output="-").text


def test_commands_take_the_name_of_a_recipe_for_the_folder_of_its_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(Flowers(), tmp_path / "data")
    monkeypatch.setenv("ANY2DS_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "code" / "flowers").mkdir(parents=True)
    (tmp_path / "code" / "flowers" / "flowers.py").write_text("")  # as where a recipe is written
    monkeypatch.chdir(tmp_path / "code")
    for command in ("inspect", "verify", "report", "card", "retry"):
        assert run([command, "flowers/small"]) == 0, command
    out = capsys.readouterr().out
    assert "flowers/small:1.1.0: train 22, test 6, empty 0" in out
    assert "train: 3 corrupt" in out
    assert f"written to {tmp_path}/data/flowers/small/1.1.0/report.html" in out
    assert run(["inspect", "flowers:9.*"]) == 2
    assert "no version 9.*: there are 1.1.0" in capsys.readouterr().err
    assert run(["inspect", "tulips"]) == 2
    assert "'tulips': no such folder" in capsys.readouterr().err
    (tmp_path / "code" / "tulips").mkdir()
    (tmp_path / "code" / "tulips" / "tulips.py").write_text("")
    assert run(["inspect", "tulips"]) == 2
    assert "any2ds build ./tulips makes it" in capsys.readouterr().err


def test_a_dataset_of_no_samples_or_of_one(tmp_path: Path) -> None:
    build(one_split([]), tmp_path / "none")
    assert json.loads((tmp_path / "none/small/1.0.0" / RECIPE_FILE).read_text())["splits"][0]["rows"] == 0
    build(one_split([("a", {"text": "x"})]), tmp_path / "one", output_format="tfrecord")
    assert any2ds.load("small", data_dir=tmp_path / "one")[0]["text"] == "x"


def test_records_have_the_features_under_their_own_names(tmp_path: Path) -> None:
    build(Flowers(), tmp_path, output_format="tfrecord")
    folder = tmp_path / "flowers/small/1.1.0"
    content = (folder / "00000.tfrecord").read_bytes()
    record = any2ds.parse_example(content[12 : 12 + int.from_bytes(content[:8], "little")])
    assert {"image", "mask", "label", "parts/name", "about/width"} <= record.keys()
    features = json.loads((folder / "features.json").read_text())["featuresDict"]["features"]
    assert list(features) == ["image", "label", "caption", "box", "parts", "about", "mask", "note"]
    assert (folder / "label.labels.txt").read_text() == "rose\ntulip\n"
    info = json.loads((folder / "dataset_info.json").read_text())
    assert (info["name"], info["version"], info["configName"]) == ("flowers", "1.1.0", "small")
    assert {split["name"]: split["shardLengths"] for split in info["splits"]} == {
        "train": ["22", "0"],
        "test": ["0", "6"],
        "empty": ["0", "0"],
    }


def test_the_card_shows_what_the_recipe_says(tmp_path: Path) -> None:
    build(Flowers(), tmp_path)
    card = any2ds.card(tmp_path / "flowers/small/1.1.0").text
    for text in (
        "Photographs of flowers",
        "`flowers/small:1.1.0`",
        'license: "cc-by-4.0"',
        "@article{flowers",
        '- "captions"',
        "# flowers/small",
    ):
        assert text in card, text
    assert "| `train` | 22 | 3 corrupt |" in card
    assert "| `label` | `ClassLabel(names=['rose', 'tulip'])` |" in card
    assert "any2ds build flowers/small:1.1.0" in card


def test_the_report_names_the_recipe_and_how_it_is_built(tmp_path: Path) -> None:
    build(Flowers(), tmp_path, output_format="webdataset", number_sample_per_shard=10)
    folder = str(tmp_path / "flowers/small/1.1.0")
    figures = any2ds.report(folder)
    assert figures.recipe is not None
    assert figures.recipe["name"] == "flowers/small:1.1.0"
    wanted = f"any2ds build flowers/small:1.1.0 --data_dir={tmp_path} --output_format=webdataset"
    assert figures.command == f"{wanted} --number_sample_per_shard=10"
    page = Path(folder, "report.html").read_text(encoding="utf-8")
    assert "<h1><bdi>flowers/small 1.1.0</bdi></h1>" in page
    assert "given from Python" not in page


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
def test_hashes_decoding_and_features_go_together(output_format: str, tmp_path: Path) -> None:
    """The bytes are compared as they are stored, then decoded, then given under the names of the features."""
    folder = tmp_path / "flowers" / "small" / "1.1.0"
    build(Flowers(), tmp_path, output_format=output_format)
    stored = any2ds.load(folder, split="train", columns=["data", "caption"])
    wrong = stored[4]["data"]
    options: dict[str, Any] = {"split": "train", "check": True, "decode": True}
    for path in [path for path in folder.rglob("*") if path.is_file() and wrong in path.read_bytes()]:
        path.write_bytes(path.read_bytes().replace(wrong, wrong[:-1] + b"\0"))
    for columns in (None, ["image", "about"], ["image"]):
        ds = any2ds.load(folder, columns=columns, **options)
        found = ds[3]
        assert found["image"].shape == (4, 4, 3)
        assert found.get("about", {"width": 4})["width"] == 4
        assert columns is None or list(found) == columns
        with pytest.raises(DamagedShard, match=r"shard 00000.* of .*: '000000004': the md5 of its file is not that"):
            ds[4]
    labels = any2ds.load(folder, columns=["about", "label"], **options)
    assert set(labels[4]) == {"about", "label"}  # its file is not read
