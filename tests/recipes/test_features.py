"""What features take: classes from a file or without names, images as arrays; and what `Info` refuses."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import any2ds
from any2ds.core.errors import UsageError
from tests.support.flowers import FORMATS, NESTED, SAMPLES, build, one_split


def test_the_names_of_classes_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\ufeffrose\n\n tulip \nÄster\n", encoding="utf-8")
    label = any2ds.ClassLabel(tmp_path / "names.txt")
    assert (label.names, label.num_classes) == (("rose", "tulip", "Äster"), 3)
    build(one_split([("a", {"label": "Äster"}), ("b", {"label": -1})], label=label), tmp_path)
    found = any2ds.load("small", data_dir=tmp_path)
    assert {sample["recipe_key"]: sample["label"] for sample in found} == {"a": 2, "b": -1}
    assert found.recipe is not None
    assert found.recipe.features["label"].int2str(2) == "Äster"
    with pytest.raises(UsageError, match=r"the file of names .*none\.txt' cannot be read"):
        any2ds.ClassLabel(str(tmp_path / "none.txt"))
    (tmp_path / "names.txt").write_text("rose\nrose\n")
    with pytest.raises(UsageError, match="the name 'rose' stands there twice"):
        any2ds.ClassLabel(tmp_path / "names.txt")


def test_classes_may_have_no_names(tmp_path: Path) -> None:
    label = any2ds.ClassLabel(num_classes=3)
    build(one_split([("a", {"label": 2}), ("b", {"label": "1"})], label=label), tmp_path)
    found = any2ds.load("small", data_dir=tmp_path)
    assert {sample["recipe_key"]: sample["label"] for sample in found} == {"a": 2, "b": 1}
    assert found.recipe is not None
    assert found.recipe.features["label"].int2str(2) == "2"
    for value, message in ((3, "there are 3 classes, from 0 to 2"), ("rose", "it is none of the classes")):
        with pytest.raises(UsageError, match=message):
            build(one_split([("a", {"label": value})], label=label), tmp_path / "wrong")
    for given in ({}, {"names": ["a"], "num_classes": 1}):
        with pytest.raises(UsageError, match="takes names, or num_classes"):
            any2ds.ClassLabel(**given)


PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
GREY = PIXELS[..., 0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (PIXELS, PIXELS),
        (GREY, GREY),
        (GREY[..., np.newaxis], GREY),
        (Image.fromarray(PIXELS), PIXELS),
        (Image.fromarray(GREY), GREY),
    ],
    ids=["color", "grey", "one channel", "pillow", "grey pillow"],
)
def test_an_image_may_be_an_array_or_of_pillow(value: Any, expected: Any, tmp_path: Path) -> None:
    build(one_split([("a", {"image": value})], image=any2ds.Image()), tmp_path)
    (sample,) = any2ds.load("small", data_dir=tmp_path)
    with Image.open(io.BytesIO(sample["image"])) as stored:
        assert stored.format == "PNG"
        assert np.array_equal(np.asarray(stored), expected)


@pytest.mark.parametrize("output_format", FORMATS)
def test_files_in_sequences_are_read_as_bytes(output_format: str, tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, "png")
    png = content.getvalue()
    samples = {key: {"frames": [png] * count, "parts": [{"mask": png}] * count} for key, count in (("a", 2), ("b", 0))}
    features = {"frames": any2ds.Sequence(any2ds.Image()), "parts": any2ds.Sequence({"mask": any2ds.Image()})}
    build(one_split(list(samples.items()), **features), tmp_path, output_format=output_format)
    found = {sample["recipe_key"]: sample for sample in any2ds.load("small", data_dir=tmp_path)}
    for key, count in (("a", 2), ("b", 0)):
        assert found[key]["frames"] == [png] * count
        assert found[key]["parts"] == {"mask": [png] * count}


def test_arrays_may_be_stored_as_jpeg_and_others_are_refused(tmp_path: Path) -> None:
    jpeg = any2ds.Image(encoding_format="jpeg")
    build(one_split([("a", {"image": PIXELS})], image=jpeg), tmp_path)
    assert any2ds.load("small", data_dir=tmp_path)[0]["image"][:2] == b"\xff\xd8"
    for value, message in (
        (PIXELS.astype(float), r"an array of float64 \(4, 4, 3\): expected uint8"),
        (GREY[0], r"an array of uint8 \(4,\): expected uint8, height x width x channels"),
        (7, "expected an image: bytes, a path, an open binary file, an array or a Pillow image"),
    ):
        with pytest.raises(UsageError, match=rf"sample 'a': feature 'image' .*{message}"):
            build(one_split([("a", {"image": value})], image=jpeg), tmp_path / "wrong")


def test_a_citation_that_is_no_bibtex_and_what_can_be_no_tag_are_refused() -> None:
    for wrong, message in (
        ({"citation": "Smith, Flowers, 2026"}, "the citation is not BibTeX"),
        ({"tags": ["images", "Two words"]}, "invalid tag 'Two words'"),
        ({"tags": "images"}, "expected a list of texts"),
    ):
        with pytest.raises(UsageError, match=message):
            any2ds.Info({"text": any2ds.Text()}, **wrong)  # type: ignore[arg-type]
    assert len(any2ds.Info({"text": any2ds.Text()}, tags=["language:de", "ml.task.image-to-text"]).tags) == 2


def test_the_files_beside_a_recipe_are_checked_as_well(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(
        "import any2ds\n\n\nclass Beside(any2ds.Recipe):\n    def info(self):\n"
        "        return any2ds.Info({'text': any2ds.Text()})\n\n    def splits(self, dl):\n"
        "        yield 1, {'text': 'a'}\n"
    )
    (tmp_path / "README.md").write_text("# Beside\n\nWhat it is.\n\n# Use\n\nNone.\n")
    for name, content, message in (
        ("TAGS.txt", "# all\nimages\nPictures # in capitals\n", "TAGS.txt: invalid tag 'Pictures'"),
        ("CITATIONS.bib", "by me\n", "CITATIONS.bib: the citation is not BibTeX"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=message):
            build(str(tmp_path), tmp_path / "data")
        (tmp_path / name).unlink()
    (tmp_path / "TAGS.txt").write_text("# all\nimages  # of flowers\nlanguage:de\n")
    (tmp_path / "CITATIONS.bib").write_text('@misc{a, title = "A " # jan}\n')
    build(str(tmp_path), tmp_path / "data")
    (made,) = (tmp_path / "data" / "beside").iterdir()
    card = any2ds.card(made).text
    assert "What it is" in card
    assert "# Beside" not in card  # the title of the file: the card has its own
    assert 'language:\n- "de"\n' in card
    assert '- "images"\n' in card
    assert "\n# beside\n" in card
    assert "@misc{a" in card


@pytest.mark.parametrize("output_format", FORMATS)
def test_nested_features_are_the_same_in_every_format(output_format: str, tmp_path: Path) -> None:
    build(one_split(list(SAMPLES.items()), **NESTED), tmp_path, output_format=output_format)
    assert any2ds.verify(tmp_path / "small" / "1.0.0", quiet=True).ok
    source = any2ds.load("small", data_dir=tmp_path)
    found = {sample["recipe_key"]: sample for sample in source}
    full, empty = found["full"], found["empty"]
    for name in ("words", "deep", "large", "many"):
        assert full[name] == SAMPLES["full"][name]
        assert empty[name] == SAMPLES["empty"][name]
    assert [boxes.tolist() for boxes in full["boxes"]] == SAMPLES["full"]["boxes"]
    assert full["pairs"].tolist() == SAMPLES["full"]["pairs"]
    assert empty["pairs"].shape == (0, 2)
    objects = {"name": [["cat", "dog"], []], "at": {"x": [[1, 2], []]}}
    assert full["frames"] == {"time": [0.5, 1.5], "objects": objects}
    assert full["grid"].dtype == np.int16
    assert np.array_equal(full["grid"], SAMPLES["full"]["grid"])
    assert empty["grid"].shape == (0, 3, 2)
    assert full["maybe"].tolist() == [[True, False]]
    assert empty["maybe"] is None
    assert full["steps"] == {"action": [1, 2], "done": [False, True]}
    (one,) = any2ds.load("small", data_dir=tmp_path, split="train[:1]", columns=["words", "grid"])
    assert one["words"] in (SAMPLES["full"]["words"], [])


def test_what_a_sequence_or_tensor_cannot_be_is_refused(tmp_path: Path) -> None:
    for feature, message in (
        (lambda: any2ds.Sequence(any2ds.Tensor((None,), "int64")), "cannot hold a Tensor of an unknown size"),
        (lambda: any2ds.Sequence({"a": any2ds.Optional("int64")}), "cannot hold an Optional"),
        (lambda: any2ds.Sequence(any2ds.Sequence({"a": int}, as_dataset=True)), "cannot hold a dataset"),
        (lambda: any2ds.Tensor((2, None), str), "only the first size may be unknown"),
        (lambda: any2ds.Text(doc=7), "Text: doc=7: expected a text"),
    ):
        with pytest.raises(UsageError, match=message):
            feature()
    for name, value, message in (
        ("grid", [[[1, 2, 3]]], r"its shape is \(1, 1, 3\), expected \(None, 3, 2\)"),
        ("grid", [[[1, 2]], [[1, 2], [3, 4]]], "its lists have several lengths"),
        ("words", ["a rose"], "expected a list"),
        ("large", -1, "uint64 is from 0 to 18,446,744,073,709,551,615"),
    ):
        with pytest.raises(UsageError, match=rf"feature '{name}' cannot be .*: {message}"):
            build(one_split([("a", SAMPLES["full"] | {name: value})], **NESTED), tmp_path)


def test_the_card_shows_the_texts_about_features(tmp_path: Path) -> None:
    build(one_split(list(SAMPLES.items()), **NESTED), tmp_path)
    card = any2ds.card(tmp_path / "small" / "1.0.0").text
    assert "| `words` | `Sequence(feature=Sequence(feature=Text()))`: The words of each line\\. |" in card
