"""Hugging Face's datasets takes `any2ds.load`, and reads tar files and parquet without it."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import given
from PIL import Image

import any2ds
from any2ds import download
from any2ds.testing.server import Server
from tests.support.values import COLUMNS, FEW, FORMATS, TABLES, dataset_of, is_same, rows_of, web_of_rows


def pixels(image: Any) -> bytes:
    return bytes(image.convert("RGB").tobytes())


def expect_images(rows: Any, made: Any, column: str = "data") -> None:
    found = {row["key"]: row for row in rows}
    assert list(found) == list(made.files)
    for key, content in made.files.items():
        assert pixels(found[key][column]) == pixels(Image.open(io.BytesIO(content)))
        assert found[key]["caption"] == made.captions[key]
        assert found[key]["label"] == made.labels[key]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_samples_of_every_format(output_format: str, streaming: bool, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    found = any2ds.load("dataset").to_hf(streaming=streaming)
    assert found.features["data"] == datasets.Image()
    assert found.features["label"] == datasets.Value("int64")
    expect_images(found, made)


def test_what_any2ds_has_decoded_is_left_to_that_library(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = any2ds.load("dataset", columns=["data"], decode=True).to_hf()
    assert found.column_names == ["data"]
    assert [pixels(row["data"]) for row in found] == [
        pixels(Image.open(io.BytesIO(content))) for content in made.files.values()
    ]
    stored = found.cast_column("data", datasets.Image(decode=False))
    assert [row["data"]["bytes"] for row in stored] == list(made.files.values())
    assert stored[0]["data"]["path"] == "000000.jpg"


def test_sound_other_files_and_texts(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset", "audio")
    assert any2ds.load("dataset").to_hf(streaming=True).features["data"] == datasets.Audio()
    found = any2ds.load("dataset").to_hf()  # torchcodec, which would decode it, is not here
    assert found.features["data"] == datasets.Audio()
    stored = found.cast_column("data", datasets.Audio(decode=False))
    assert [row["data"]["bytes"] for row in stored] == list(made.files.values())
    made = dataset("webdataset", "mixed")
    assert {row["key"]: row["data"] for row in any2ds.load("dataset").to_hf()} == made.files
    texts = any2ds.load("dataset", where="ext = 'data.txt'", decode=True).to_hf()
    assert [row["data"].encode() for row in texts] == [each for each in made.files.values() if each[:4] == b"Text"]


def test_categories_are_class_labels(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    breeds = ["pug", "collie", None, "pug", "husky", "collie"]
    urls = [server.url(f"{n:02d}.jpg") for n in (0, 1, 2, 3, 5, 6)]
    rows = pa.table({"url": urls, "breed": pa.array(breeds).dictionary_encode()})
    how = {"number_sample_per_shard": 2, "distributor": "inline", "quiet": True, "robots": "ignore"}
    for output_format in ("webdataset", "parquet"):
        download(
            rows, output_folder=output_format, output_format=output_format, save_additional_columns=["breed"], **how
        )
        for streaming in (False, True):
            found = any2ds.load(output_format, columns=["breed"]).to_hf(streaming=streaming)
            label = found.features["breed"]
            assert label == datasets.ClassLabel(names=["collie", "husky", "pug"])
            assert [None if row["breed"] is None else label.int2str(row["breed"]) for row in found] == breeds
            some = any2ds.load(output_format, where="breed = 'pug'", columns=["breed"]).to_hf(streaming=streaming)
            assert some.features["breed"] == label


@pytest.mark.parametrize("output_format", FORMATS)
@FEW
@given(columns=TABLES)
def test_every_value_comes_back(output_format: str, columns: dict[str, list[Any]]) -> None:
    with web_of_rows() as server, dataset_of(columns, output_format, server) as (folder, table):
        ds = any2ds.load(folder)
        for streaming, stored in ((False, table.to_pylist()), (True, rows_of(table))):
            found = list(ds.to_hf(streaming=streaming))
            for name in COLUMNS:
                assert is_same([row[name] for row in found], [row[name] for row in stored]), (streaming, name)


def test_a_copy_is_found_again_until_the_dataset_changes(dataset: Callable[..., Any]) -> None:
    """Also where a shard has as many bytes as before."""
    dataset("webdataset")
    first = any2ds.load("dataset").to_hf()
    assert any2ds.load("dataset").to_hf().cache_files == first.cache_files
    assert any2ds.load("dataset", columns=["key"]).to_hf().cache_files != first.cache_files
    before = Path("dataset/00000.tar").stat().st_size
    changed = dataset("webdataset", file_ext="jpg")
    assert Path("dataset/00000.tar").stat().st_size == before
    second = any2ds.load("dataset").to_hf()
    assert [row["ext"] for row in second] == ["jpg"] * len(changed.files)


def test_shards_are_shared_out(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = any2ds.load("dataset", columns=["key"]).to_hf(streaming=True)
    assert found.num_shards == 3
    parts = [[row["key"] for row in found.shard(3, n)] for n in range(3)]
    assert [len(part) for part in parts] == [9, 10, 5]
    assert [key for part in parts for key in part] == list(made.files)
    assert sorted(row["key"] for row in found.shuffle(seed=1, buffer_size=5)) == list(made.files)
    parallel = any2ds.load("dataset", columns=["key"]).to_hf(num_proc=2)
    assert parallel["key"][:] == list(made.files)


@pytest.mark.parametrize(
    "chosen",
    [{"split": "train[5:15]"}, {"split": "train[80%:]+train[:20%]"}, {"where": "label = 1"}, {"where": "label = 9"}],
    ids=str,
)
def test_parts_of_a_dataset(chosen: dict[str, str], dataset: Callable[..., Any]) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset", **chosen)
    assert [row["key"] for row in ds.to_hf(streaming=True)] == sorted(ds.keys)  # shard by shard
    assert [row["key"] for row in ds.to_hf()] == list(ds.keys)


def test_what_the_page_shows(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("tfrecord")
    assert len(readme("Hugging Face datasets")["stdout"].splitlines()) == len(made.files)


def test_without_any2ds(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("parquet")
    expect_images(readme("Without any2ds", 2)["images"], made)
    made = dataset("parquet", parquet_data="image")
    uncast = {'images = images.cast_column("data", datasets.Image())\n': ""}
    expect_images(readme("Without any2ds", 2, replace=uncast)["images"], made)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["images", "audio", "mixed"])
def test_failed_rows_have_no_file_and_the_others_theirs(
    kind: str, streaming: bool, dataset: Callable[..., Any], dead: str
) -> None:
    feature = datasets.Audio(decode=False) if kind == "audio" else datasets.Image(decode=False)
    made = dataset("parquet", kind, parquet_data="audio" if kind == "audio" else "image")
    rows = datasets.load_dataset("parquet", data_files="dataset/*.parquet", split="train", streaming=streaming)
    assert type(rows.features["data"]) is type(feature)
    found = {row["key"]: row["data"] for row in rows.cast_column("data", feature)}
    assert found.pop(dead) is None
    assert {key: value["bytes"] for key, value in found.items()} == made.files
    assert all(value["path"].startswith(f"{key}.") for key, value in found.items())


def test_a_first_shard_of_failures_alone_has_the_features_of_the_others(
    listed: Callable[..., Any], dead: str, tmp_path: Path
) -> None:
    download(
        listed().rows.slice(int(dead), 4),
        output_folder=tmp_path,
        output_format="parquet",
        parquet_data="image",
        number_sample_per_shard=1,
        distributor="inline",
        quiet=True,
    )
    images = datasets.load_dataset("parquet", data_files=f"{tmp_path}/*.parquet", split="train")
    assert [row["data"] and row["data"].size for row in images] == [None, (32, 32), (32, 32), (32, 32)]


def test_what_is_no_image_is_left_out_by_its_extension(dataset: Callable[..., Any]) -> None:
    made = dataset("parquet", "mixed", parquet_data="image")
    images = datasets.load_dataset(
        "parquet", data_files="dataset/*.parquet", split="train", filters=[("ext", "in", ["jpg", "png"])]
    )
    found = {row["key"]: pixels(row["data"]) for row in images}
    assert found == {key: pixels(Image.open(io.BytesIO(made.files[key]))) for key in found}
    assert len(found) == 9


def test_sounds_can_be_opened(dataset: Callable[..., Any]) -> None:
    import soundfile

    dataset("parquet", "audio", parquet_data="audio")
    rows = datasets.load_dataset("parquet", data_files="dataset/*.parquet", split="train")
    assert rows.features["data"] == datasets.Audio()
    sounds = [row["data"] for row in rows.cast_column("data", datasets.Audio(decode=False)) if row["data"]]
    assert {soundfile.info(io.BytesIO(sound["bytes"])).frames for sound in sounds} == {800}


@pytest.mark.parametrize("streaming", [False, True])
def test_tar_files(streaming: bool, dataset: Callable[..., Any]) -> None:
    """That library wants the same extension in all samples."""
    made = dataset("webdataset", file_ext="jpg")
    samples = datasets.load_dataset("webdataset", data_files="dataset/*.tar", split="train", streaming=streaming)
    found = {sample["__key__"]: sample for sample in samples}
    assert list(found) == list(made.files)
    for key, content in made.files.items():
        assert pixels(found[key]["jpg"]) == pixels(Image.open(io.BytesIO(content)))
        assert (found[key]["txt"], found[key]["json"]["label"]) == (made.captions[key], made.labels[key])


LABEL = any2ds.ClassLabel(["red", "green", "blue"])
ROWS = range(6)


class Squares(any2ds.Recipe):
    """Squares of one colour, with a value of every feature."""

    VERSION = "1.0.0"

    def info(self) -> any2ds.Info:
        part = {"name": any2ds.Text(), "corner": any2ds.Tensor((2,), "float32"), "label": LABEL}
        return any2ds.Info(
            features={
                "image": any2ds.Image(),
                "label": LABEL,
                "class": any2ds.ClassLabel(num_classes=6),
                "second": any2ds.Optional(LABEL),
                "pair": {
                    "mask": any2ds.Image(channels=1),
                    "more": any2ds.Optional(any2ds.Image()),
                    "about": {"n": "int32"},
                },
                "frames": any2ds.Sequence(any2ds.Image()),
                "numbers": any2ds.Sequence("uint64"),
                "lines": any2ds.Sequence(any2ds.Sequence(any2ds.Text())),
                "two": any2ds.Sequence("bool", length=2),
                "parts": any2ds.Sequence(part),
                "line": any2ds.Tensor((3,), "float64"),
                "grid": any2ds.Tensor((2, 3), "int64"),
                "boxes": any2ds.Tensor((None, 4), "float32"),
                "any": any2ds.Tensor((None, 2, 2), "uint8"),
                "words": any2ds.Tensor((2, 2), "str"),
                "sound": any2ds.Audio(),
                "film": any2ds.Video(),
                "raw": any2ds.Bytes(),
                "text": any2ds.Text(),
            }
        )

    def splits(self, dl: Any) -> Any:
        return {"train": ((number, sample(number)) for number in ROWS)}


def square(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (4, 4), tuple(255 * (number % 3 == n) for n in range(3))).save(content, "png")
    return content.getvalue()


def sample(number: int) -> dict[str, Any]:
    label = ("red", "green", "blue")[number % 3]
    part = {"name": label, "corner": [0.5, number], "label": label}
    return {
        "image": square(number),
        "label": label,
        "class": number,
        "second": label if number % 2 else None,
        "pair": {"mask": square(number), "more": square(number) if number % 2 else None, "about": {"n": number}},
        "frames": [square(number)] * number,
        "numbers": [2**62 + number] * number,
        "lines": [[label] * line for line in range(number)],
        "two": [True, number > 2],
        "parts": [part] * (number % 3),
        "line": [1, 2, number],
        "grid": [[number] * 3] * 2,
        "boxes": [[number, 0, 1, 0.25]] * (number % 3),
        "any": [[[number, 1]] * 2] * number,
        "words": [[label, "x"], ["", "ü"]],
        "sound": b"RIFF%d" % number,
        "film": b"film%d" % number,
        "raw": b"\x00\xff%d" % number,
        "text": label,
    }


def as_lists(value: Any) -> Any:
    """A stream has tensors as arrays."""
    if isinstance(value, list):
        return [as_lists(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def features_of_squares() -> dict[str, Any]:
    label = datasets.ClassLabel(names=["red", "green", "blue"])
    text, rgb = datasets.Value("string"), datasets.Image(mode="RGB")
    return {
        "image": rgb,
        "label": label,
        "class": datasets.ClassLabel(num_classes=6),
        "second": label,
        "pair": {"mask": datasets.Image(mode="L"), "more": rgb, "about": {"n": datasets.Value("int32")}},
        "frames": datasets.List(rgb),
        "numbers": datasets.List(datasets.Value("uint64")),
        "lines": datasets.List(datasets.List(text)),
        "two": datasets.List(datasets.Value("bool"), length=2),
        "parts": {
            "name": datasets.List(text),
            "corner": datasets.Array2D((None, 2), "float32"),
            "label": datasets.List(label),
        },
        "line": datasets.List(datasets.Value("float64"), length=3),
        "grid": datasets.Array2D((2, 3), "int64"),
        "boxes": datasets.Array2D((None, 4), "float32"),
        "any": datasets.Array3D((None, 2, 2), "uint8"),
        "words": datasets.List(datasets.List(text, length=2), length=2),
        "sound": datasets.Audio(),
        "film": datasets.Video(),
        "raw": datasets.Value("binary"),
        "text": text,
    }


@pytest.fixture(scope="module", params=["webdataset", "parquet", "tfrecord"])
def squares(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    any2ds.build(
        Squares(), data_dir=place, output_format=request.param, number_sample_per_shard=2, quiet=True, report=False
    )
    return place


@pytest.mark.parametrize("streaming", [False, True])
def test_the_dataset_of_a_recipe_has_its_features(streaming: bool, squares: Path) -> None:
    ds = any2ds.load("squares", data_dir=squares)
    found = ds.to_hf(streaming=streaming)
    own = features_of_squares()
    assert {name: found.features[name] for name in own} == own
    assert set(found.features) == ds[0].keys() - {"data"}
    # Without torchcodec that library neither decodes sound and films nor streams them.
    silent = any2ds.load("squares", data_dir=squares, columns=[name for name in own if name not in ("sound", "film")])
    rows = {row["class"]: row for row in silent.to_hf(streaming=streaming)}
    assert list(ROWS) == sorted(rows)
    for number, row in rows.items():
        expected = sample(number)
        colour = tuple(255 * (number % 3 == n) for n in range(3))
        pair = row["pair"]
        assert (row["image"].mode, row["image"].getpixel((0, 0))) == ("RGB", colour)
        assert (pair["mask"].mode, pair["mask"].size, pair["about"]) == ("L", (4, 4), {"n": number})
        assert pair["more"] is None if not number % 2 else pair["more"].getpixel((0, 0)) == colour
        assert row["label"] == number % 3
        assert [image.getpixel((0, 0)) for image in row["frames"]] == [colour] * number
        for same in ("numbers", "lines", "two", "line", "grid", "boxes", "any", "words", "raw", "text"):
            assert as_lists(row[same]) == expected[same], same
        parts = {name: [part[name] for part in expected["parts"]] for name in ("name", "corner", "label")}
        assert {name: as_lists(each) for name, each in row["parts"].items()} == {
            **parts,
            "label": [number % 3] * len(parts["label"]),
        }
        assert row["second"] == (number % 3 if number % 2 else None)


def test_sound_and_films_of_a_recipe_are_there_as_they_were(squares: Path) -> None:
    found = any2ds.load("squares", data_dir=squares, columns=["class", "sound", "film"]).to_hf()
    assert found.column_names == ["class", "sound", "film"]
    plain = found.cast_column("sound", datasets.Audio(decode=False)).cast_column("film", datasets.Video(decode=False))
    for row in plain:
        assert row["sound"]["bytes"] == b"RIFF%d" % row["class"]
        assert row["film"]["bytes"] == b"film%d" % row["class"]


def test_columns_of_a_recipe_and_a_copy_of_them_that_is_found_again(squares: Path) -> None:
    def opened() -> Any:
        wanted = ["pair/mask", "data", "parts", "key"]
        return any2ds.load("squares", data_dir=squares, columns=wanted, decode=True).to_hf()

    found = opened()
    own = features_of_squares()
    assert found.features == {
        "pair/mask": own["pair"]["mask"],
        "data": own["image"],
        "parts": own["parts"],
        "key": datasets.Value("string"),
    }
    assert (found[0]["pair/mask"].mode, found[0]["data"].mode) == ("L", "RGB")
    assert opened().cache_files == found.cache_files
    split = any2ds.load("squares", data_dir=squares, where="class > 9", columns=["pair", "label"])
    assert split.to_hf().features == {"pair": own["pair"], "label": own["label"]}
    assert len(split.to_hf()) == len(list(split.to_hf(streaming=True))) == 0


@pytest.mark.parametrize("output_format", ["parquet", "webdataset"])
def test_each_file_of_a_sample_is_a_feature(output_format: str, pairs: Callable[[str], Any]) -> None:
    made = pairs(output_format)
    found = any2ds.load("dataset").to_hf()
    assert (found.features["image"], found.features["mask"]) == (datasets.Image(), datasets.Image())
    for (image, mask), row in zip(made, found, strict=True):
        assert pixels(row["image"]) == pixels(Image.open(io.BytesIO(image)))
        assert pixels(row["mask"]) == pixels(Image.open(io.BytesIO(mask)))
