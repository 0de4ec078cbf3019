"""Recipes make datasets by code: samples, splits, downloads, rows with URLs, and what is wrong with them."""

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import pytest

import any2ds
from tests.support.play import Outcome, Play, Row, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
HEAD = '''
import any2ds

class Birds(any2ds.Recipe):
    """Birds of the play."""

    VERSION = "1.2.0"
    RELEASE_NOTES = {"1.2.0": "First."}
'''
BIRDS = (
    HEAD
    + """
    CONFIGS = [any2ds.RecipeConfig("small"), any2ds.RecipeConfig("big")]

    def info(self):
        return any2ds.Info(
            features={
                "image": any2ds.Image(),
                "label": any2ds.ClassLabel(["owl", "crow"]),
                "n": int,
                "words": any2ds.Sequence(any2ds.Text()),
                "place": {"x": "float32", "y": "float32"},
                "grid": any2ds.Tensor((None, 2), "int16"),
            },
            license="CC-BY-4.0",
        )

    def splits(self, dl):
        paths = dl.download([f"{web}{n}.jpg" for n in range(4)])
        count = 3 if self.config.name == "small" else 2
        return {"train": self.samples(paths[:count]), "test": self.samples(paths[3:])}

    def samples(self, paths):
        for path in paths:
            n = int(path.read_bytes()[-1])
            yield f"k{path.stat().st_size}-{n}-{path.name}", {
                "image": path, "label": "crow", "n": n, "words": ["a", "b"][: n % 3],
                "place": {"x": 0.5, "y": n}, "grid": [[1, 2], [3, 4]],
            }
"""
)
WEB = {f"{n}.jpg": Row(body=body_of(f"{n}.jpg") + bytes([n])) for n in range(4)}


class Built:
    """A recipe in the folder of a play, and the dataset that is built of it."""

    def __init__(self, code: str, rows: Any = WEB, **options: Any) -> None:
        self.play = Play(rows)
        self.play.environment["ANY2DS_DATA_DIR"] = str(self.play.folder / "data")
        self.play.environment["ANY2DS_CACHE"] = str(self.play.folder / "cache")
        (self.play.folder / "birds.py").write_text(code.replace("{web}", self.play.web.base_url))
        self.options = {"report": False, "distributor": "inline", **options}

    def build(self, recipe: str = "birds.py", **options: Any) -> Outcome:
        try:
            return self.play.run("build", recipe, **{**self.options, **options})
        finally:
            sys.modules.pop("birds", None)

    def load(self, name: str = "birds", **options: Any) -> Any:
        return any2ds.load(name, data_dir=str(self.play.folder / "data"), **options)


def samples(text: str, feature: str = '{"text": any2ds.Text()}', info: str = "") -> str:
    """The code of a recipe whose splits are this expression."""
    return f"""{HEAD}
    def info(self):
        return any2ds.Info(features={feature}{info})

    def splits(self, dl):
        return {text}
"""


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_recipe_is_built_and_read_in_each_format(output_format: str) -> None:
    built = Built(BIRDS)
    outcome = built.build(output_format=output_format)
    assert outcome.exit_code == 0
    assert outcome.requests == {f"{n}.jpg": 1 for n in range(4)}
    ds = built.load("birds", split="train")
    assert sorted(sample["n"] for sample in ds) == [0, 1, 2]
    for sample in ds:
        n = sample["n"]
        assert sample["image"] == body_of(f"{n}.jpg") + bytes([n])
        assert (sample["label"], list(sample["words"])) == (1, ["a", "b"][: n % 3])
        assert sample["place"] == {"x": 0.5, "y": float(n)}
        assert numpy.array_equal(sample["grid"], [[1, 2], [3, 4]])
    assert [sample["n"] for sample in built.load("birds", split="test")] == [3]
    assert built.load("birds").recipe.features["label"].int2str(1) == "crow"
    built.play.out = "birds"
    assert built.play.run("verify").exit_code == 0
    assert "birds" in built.play.run("inspect").stdout


def test_configs_are_datasets_of_their_own() -> None:
    built = Built(BIRDS)
    assert built.build("birds.py/big:1.2.0").exit_code == 0
    assert len(built.load("birds/big", split="train")) == 2
    with pytest.raises(any2ds.Any2dsError):
        built.load("birds/small")
    listed = built.play.run("recipes").stdout
    assert "birds/big:1.2.0" in listed
    assert "train 2" in listed


@pytest.mark.parametrize("recipe", ["birds.py/huge", "birds.py:9.9.9", "nothing.py", "birdz"])
def test_a_recipe_that_is_not_there_is_refused(recipe: str) -> None:
    built = Built(BIRDS)
    outcome = built.build(recipe)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert not (built.play.folder / "data").exists()


def test_a_finished_dataset_is_not_made_again_unless_it_is_overwritten() -> None:
    built = Built(BIRDS)
    built.build()
    folder = built.play.folder / "data/birds/small/1.2.0"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.tar")}
    (folder / "README.md").write_text("mine")
    assert built.build().exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.tar")} == before
    assert built.build(overwrite=True).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.tar")} != before
    assert (folder / "README.md").read_text() == "mine"


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_the_order_of_the_samples_does_not_depend_on_the_code(output_format: str) -> None:
    keys = []
    for order in ("range(20)", "reversed(range(20))"):
        built = Built(samples(f'[(f"k{{n}}", {{"text": str(n)}}) for n in {order}]'), {})
        built.build(output_format=output_format, number_sample_per_shard=6)
        keys.append([sample["text"] for sample in built.load()])
        assert len(built.load().shards) == 4
    assert keys[0] == keys[1] != sorted(keys[0], key=int)


def test_with_shuffling_disabled_samples_have_the_order_of_their_keys() -> None:
    code = samples('[(n, {"text": str(n)}) for n in (10, 9, -1, 100, 2)]', info=", disable_shuffling=True")
    built = Built(code, {})
    built.build(number_sample_per_shard=2)
    assert [sample["text"] for sample in built.load()] == ["-1", "2", "9", "10", "100"]


WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "a key twice": (samples('[("a", {"text": "x"}), ("b", {"text": "y"}), ("a", {"text": "z"})]'), ("'a'",)),
    "a value of another type": (samples('[("a", {"text": 3})]'), ("a", "text", "3")),
    "a feature missing": (samples('[("a", {})]'), ("a", "text")),
    "a feature too many": (samples('[("a", {"text": "x", "more": 1})]'), ("a", "more")),
    "an unknown class": (samples('[("a", {"l": "dog"})]', '{"l": any2ds.ClassLabel(["owl"])}'), ("a", "l", "dog")),
    "a shape": (samples('[("a", {"t": [1, 2, 3]})]', '{"t": any2ds.Tensor((2,), "int8")}'), ("a", "t")),
    "a number too large": (samples('[("a", {"t": 300})]', '{"t": any2ds.Scalar("uint8")}'), ("a", "t", "300")),
    "none": (samples('[("a", {"t": None})]', '{"t": int}'), ("a", "t")),
    "no image": (samples('[("a", {"t": 3})]', '{"t": any2ds.Image()}'), ("a", "t")),
    "the code": (samples("1 / 0"), ("ZeroDivisionError", "birds.py")),
    "no splits": (samples("{}"), ("split",)),
    "a name of a split": (samples('{"a/b": []}'), ("a/b",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_recipe_is_named_and_nothing_is_left(name: str) -> None:
    code, words = WRONG[name]
    built = Built(code, {})
    outcome = built.build()
    assert outcome.exit_code in (1, 2)
    assert all(word in outcome.stderr for word in words), outcome.stderr
    assert not list((built.play.folder / "data").rglob("*.tar"))
    with pytest.raises(any2ds.Any2dsError):
        built.load()


def test_samples_that_are_left_out_are_counted_by_their_reason() -> None:
    code = (
        HEAD
        + """
    SKIPPED = (ZeroDivisionError,)

    def info(self):
        return any2ds.Info(features={"n": int})

    def splits(self, dl):
        def each():
            for n in range(5):
                if n == 1:
                    self.skip(n, "odd one")
                    continue
                yield n, (lambda n=n: {"n": 12 // (n - 2)})
        return each()
"""
    )
    built = Built(code, {})
    assert built.build().exit_code == 0
    ds = built.load()
    assert sorted(sample["n"] for sample in ds) == [-6, 6, 12]
    skipped = ds.recipe.splits[0].skipped
    assert sum(skipped.values()) == 2
    assert "odd one" in skipped


@pytest.mark.parametrize("change", [b"another", None], ids=["other bytes", "the same"])
def test_checksums_of_downloads_are_compared(change: bytes | None) -> None:
    code = samples('{"train": [("a", {"text": dl.download("{web}a.txt").read_text()})]}')
    built = Built(code, {"a.txt": Row(body=b"content")})
    assert built.build(register_checksums=True).exit_code == 0
    assert built.play.web.url("a.txt") in (built.play.folder / "checksums.tsv").read_text()
    if change is not None:
        (built.play.folder / "web" / "a.txt").write_bytes(change)
    outcome = built.build(overwrite=True, download_dir="elsewhere")
    assert outcome.exit_code == (0 if change is None else 1)
    assert built.load()[0]["text"] == "content"
    if change is not None:
        assert "a.txt" in outcome.stderr


ROWS = samples(
    'any2ds.UrlRows([{"url": f"{web}{n}.jpg", "label": n} for n in range(4)])',
    '{"image": any2ds.Image(), "label": int}',
)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord"])
def test_rows_with_urls_go_through_the_engine_and_may_be_retried(output_format: str) -> None:
    built = Built(ROWS, {"0.jpg": "ok", "1.jpg": ["http_503", "ok"], "2.jpg": "http_404", "3.jpg": "ok"})
    outcome = built.build(output_format=output_format, file_size=16, resize_mode="center_crop")
    assert outcome.exit_code == 0
    assert sorted(sample["label"] for sample in built.load()) == [0, 3]
    built.play.out = "data/birds/1.2.0"
    again = built.play.run("retry")
    assert (again.exit_code, again.requests) == (0, {"1.jpg": 1})
    assert [row["error_code"] for row in again.metadata if row["error_code"]] == ["http_404"]
    ds = built.load(decode=True)
    assert sorted((sample["label"], sample["image"].shape) for sample in ds) == [(n, (16, 16, 3)) for n in (0, 1, 3)]


def test_rows_of_which_none_is_stored_end_with_4() -> None:
    outcome = Built(ROWS, {f"{n}.jpg": "http_404" for n in range(4)}).build()
    assert outcome.exit_code == 4
    assert "404" in outcome.stderr


def test_a_killed_build_goes_on() -> None:
    built = Built(BIRDS, WEB | {"3.jpg": Row(["hold"], body=WEB["3.jpg"].body)})
    running = built.play.start("build", "birds.py", **built.options, timeout=0)
    running.until("request 3.jpg")
    running.kill()
    running.wait()
    with pytest.raises(any2ds.Any2dsError):
        built.load()
    built.play.web.release()
    assert built.build().exit_code == 0
    assert len(built.load()) == 4


# --- new, recipes ---


def test_a_new_recipe_of_a_list_is_built_at_once() -> None:
    rows = {f"{n}.jpg": Row(columns={"caption": f"about {n}", "size": n}) for n in range(3)}
    play = Play(rows, list_format="parquet", environment={})
    play.environment["ANY2DS_DATA_DIR"] = str(play.folder / "data")
    (name,) = play.write_list()
    assert play.run("new", "ducks", from_list=name).exit_code == 0
    outcome = play.run("build", "ducks", report=False, distributor="inline")
    assert outcome.exit_code == 0
    ds = any2ds.load("ducks", data_dir=str(play.folder / "data"))
    assert sorted((sample["caption"], sample["size"]) for sample in ds) == [(f"about {n}", n) for n in range(3)]


@pytest.mark.parametrize("name", ["9lives", "a b", "../up", "class", ""])
def test_a_name_that_cannot_be_one_of_a_recipe_is_refused(name: str) -> None:
    play = Play()
    outcome = play.run("new", name)
    assert outcome.exit_code == 2
    assert not [path for path in play.folder.rglob("*") if path.suffix == ".py"]


def test_recipes_lists_those_of_modules_and_of_the_folder() -> None:
    built = Built(BIRDS)
    (built.play.folder / "birds.py").rename(built.play.folder / "birds_of_play.py")
    built.play.environment["PYTHONPATH"] = str(built.play.folder)
    outcome = built.play.run("recipes", imports="birds_of_play", way="command")
    assert outcome.exit_code == 0
    assert all(word in outcome.stdout for word in ("birds", "1.2.0", "small", "Birds of the play."))
    outcome = built.play.run("recipes", imports="nothing_there", way="command")
    assert outcome.exit_code == 2
    assert "nothing_there" in outcome.stderr


class Numbers(any2ds.Recipe):
    """Numbers, as a test gives them."""

    VERSION = "1.0.0"
    RELEASE_NOTES: ClassVar = {"1.0.0": "First."}
    played: Callable[[], Any]

    def info(self) -> any2ds.Info:
        return any2ds.Info(features={"n": any2ds.Scalar("int64")})

    def splits(self, dl: Any) -> Any:
        return type(self).played()
