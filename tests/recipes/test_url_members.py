"""Recipes whose samples have several files at URLs, of which some have options of their own or need not be there."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import any2ds
from any2ds.core.errors import UsageError
from any2ds.testing.server import Server, serve


def picture(kind: str, width: int = 64, height: int = 48) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width) % 3).save(stream, kind)
    return stream.getvalue()


def recipe_of(server: Server, **of_rows: Any) -> type[any2ds.Recipe]:
    class _Masked(any2ds.Recipe):
        def info(self) -> any2ds.Info:
            return any2ds.Info(features={"image": any2ds.Image(), "mask": any2ds.Optional(any2ds.Image(channels=1))})

        def splits(self, dl: Any) -> Any:
            rows = [{"i": server.url(f"i{n}.jpg"), "m": server.url(f"m{n}.png")} for n in range(3)]
            rows[1]["m"] = None
            return {"train": any2ds.UrlRows(rows, **{"url_col": {"image": "i", "mask": "m"}, **of_rows})}

    _Masked.NAME = "masked_pairs"
    return _Masked


@pytest.fixture
def server(tmp_path: Path) -> Any:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(3):
        (folder / f"i{n}.jpg").write_bytes(picture("JPEG"))
        (folder / f"m{n}.png").write_bytes(picture("PNG"))
    with serve(folder, {"m2.png": ["404"]}) as running:
        yield running


def build(recipe: Any, folder: Path, **options: Any) -> Any:
    return any2ds.build(recipe, data_dir=str(folder), quiet=True, distributor="inline", **options)


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_a_mask_has_options_of_its_own_and_may_be_absent(server: Server, tmp_path: Path, output_format: str) -> None:
    of_mask = {"mask": {"file_size": 24, "encode_format": "png", "downscale_interpolation": "nearest_exact"}}
    recipe = recipe_of(server, member_options=of_mask)
    build(recipe, tmp_path / "data", output_format=output_format, file_size=12, encode_format="jpg")
    samples = list(any2ds.load(tmp_path / "data/masked_pairs/1.0.0", decode=True))
    assert len(samples) == 3
    assert {sample["image"].shape for sample in samples} == {(12, 16, 3)}
    masks = [sample["mask"] for sample in samples if sample["mask"] is not None]
    assert [(mask.shape, sorted(set(mask.ravel()))) for mask in masks] == [((24, 32, 1), [0, 1, 2])]


def test_options_of_the_command_win(server: Server, tmp_path: Path) -> None:
    recipe = recipe_of(server, member_options={"mask": {"file_size": 24}})
    build(recipe, tmp_path / "data", member_options="mask:file_size=6")
    samples = any2ds.load(tmp_path / "data/masked_pairs/1.0.0", decode=True)
    assert [sample["mask"].shape[:2] for sample in samples if sample["mask"] is not None] == [(6, 8)]


@pytest.mark.parametrize(
    ("of_rows", "named"),
    [
        ({"member_options": {"sound": {"audio_rate": 8000}}}, "'sound' is none of image, mask"),
        ({"member_options": {"mask": {"file_siez": 3}}}, "file_siez"),
        ({"url_col": "i", "member_options": {"image": {"file_size": 3}}}, "without several URLs"),
    ],
)
def test_what_cannot_be_is_refused(server: Server, tmp_path: Path, of_rows: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        build(recipe_of(server, **of_rows), tmp_path / "data")


class _Hashed(any2ds.Recipe):
    """Pictures, of which the third is another one than its hashes say."""

    NAME = "hashed"
    server: Server
    url_col: Any = "url"

    def info(self) -> any2ds.Info:
        mask = {"mask": any2ds.Image()} if self.url_col != "url" else {}
        return any2ds.Info({"image": any2ds.Image(), **mask, "n": int})

    def splits(self, dl: Any) -> Any:
        rows = [
            {
                "url": self.server.url(f"i{n}.jpg"),
                "second": self.server.url(f"m{n}.png"),
                "n": n,
                "md5": hashlib.md5(picture("JPEG") + b"." * (n == 2)).digest(),  # as numbers, where a list has them so
                "sha": hashlib.sha256(picture("PNG")).hexdigest().upper() if n else None,
            }
            for n in range(3)
        ]
        return {"train": any2ds.UrlRows(pa.Table.from_pylist(rows), url_col=self.url_col)}


def test_hashes_of_members_are_verified(server: Server, tmp_path: Path) -> None:
    recipe = type("_Two", (_Hashed,), {"server": server, "url_col": {"image": "url", "mask": "second"}})
    report = build(recipe, tmp_path, verify_hash="image:md5:md5,mask:sha:sha256")
    assert report.status_dict == {"success": 2, "hash_mismatch": 1}
    folder = tmp_path / "hashed/1.0.0"
    assert {sample["n"]: sample["mask_hash_matches"] for sample in any2ds.load(folder)} == {0: None, 1: True}
    (tmp_path / "media" / "i2.jpg").write_bytes(picture("JPEG") + b".")
    report = any2ds.retry(folder, codes="hash_mismatch,http_404", quiet=True, report=False)
    assert report.status_dict == {"http_404": 1}  # that of the mask, which stays
    assert any2ds.verify(folder, quiet=True).ok


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dedupe": "run"}, "dedupe=run cannot be given here"),
        ({"bbox_col": "boxes"}, "'boxes' is no feature of hashed"),
        ({"clips_col": "parts"}, "'parts' is no feature of hashed"),
        ({"verify_hash": "md4:md5"}, "row 0 of split train has no column 'md4', it has url, second, n, md5, sha"),
        ({"verify_hash": "image:md5:md5,mask:sha:sha256"}, "needs several URLs"),
    ],
)
def test_what_rows_cannot_have_is_refused(server: Server, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        build(type("_One", (_Hashed,), {"server": server}), tmp_path, **options)
    assert not (tmp_path / "hashed/1.0.0").exists()


class _Made(any2ds.Recipe):
    """A picture that is no URL."""

    NAME = "made"

    def info(self) -> any2ds.Info:
        return any2ds.Info({"image": any2ds.Image()})

    def splits(self, dl: Any) -> Any:
        return {"a": [], "b": [("a", {"image": picture("PNG")})]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("file_size", 10),
        ("encode_format", "jpg"),
        ("only_images", True),
        ("decode_check", True),
        ("unpack", True),
        ("verify_hash", "md5:md5"),
        ("dedupe", "none"),
        ("transform_threads", 2),
    ],
)
def test_what_only_rows_with_urls_have_is_refused_for_samples(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{name} has no effect on made:1.0.0: no split of it has rows with URLs"):
        build(_Made, tmp_path, **{name: value})


class _Generated(any2ds.Recipe):
    """Splits that are generators; `asked` is what they and `splits` have done."""

    NAME = "generated"
    asked: list[str]
    feature: Any = any2ds.Image()
    later: Any = ()

    def info(self) -> any2ds.Info:
        return any2ds.Info({"image": self.feature})

    def splits(self, dl: Any) -> Any:
        self.asked.append("splits")
        return {name: self.samples(name) for name in ("train", "test")} | ({"urls": self.later} if self.later else {})

    def samples(self, split: str) -> Any:
        self.skip(split, "first")
        for n in range(3):
            self.asked.append(f"{split}{n}")
            yield f"{split}{n}", {"image": picture("PNG")}


def test_an_option_without_effect_is_refused_as_soon_as_that_is_known(tmp_path: Path) -> None:
    asked: list[str] = []
    recipe = type("_Known", (_Generated,), {"asked": asked, "feature": any2ds.Text()})
    with pytest.raises(UsageError, match="file_size has no effect on generated"):
        build(recipe, tmp_path, file_size=8)
    assert not asked  # rows with URLs are of files, of which it has none
    recipe = type("_Looked", (_Generated,), {"asked": asked})
    with pytest.raises(UsageError, match="file_size has no effect on generated"):
        build(recipe, tmp_path, file_size=8)
    assert asked == ["splits", "train0", "test0"]


def test_splits_whose_beginning_was_looked_at_are_whole(server: Server, tmp_path: Path) -> None:
    rows = ({"url": server.url(f"i{n}.jpg")} for n in range(2))
    recipe = type("_Mixed", (_Generated,), {"asked": [], "later": rows})
    build(recipe, tmp_path, file_size=8)
    found = any2ds.load(tmp_path / "generated/1.0.0")
    assert found.recipe is not None
    assert {split.name: split.rows for split in found.recipe.splits} == {"train": 3, "test": 3, "urls": 2}
    skipped = {split.name: dict(split.skipped) for split in found.recipe.splits}
    assert skipped == {"train": {"first": 1}, "test": {"first": 1}, "urls": {}}
    assert recipe.asked == ["splits", "train0", "test0", "train1", "train2", "test1", "test2"]
