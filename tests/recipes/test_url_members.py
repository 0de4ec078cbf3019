"""Recipes whose samples have several files at URLs, of which some have options of their own or need not be there."""

import io
from pathlib import Path
from typing import Any

import numpy as np
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
    assert [(mask.shape[:2], sorted(set(mask.ravel()))) for mask in masks] == [((24, 32), [0, 1, 2])]


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
