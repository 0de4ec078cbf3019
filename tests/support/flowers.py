"""Recipes that tests build: flowers with features of many kinds, and whatever a test yields."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import any2ds

FORMATS = ("webdataset", "parquet", "files", "tfrecord", "arrayrecord")


def picture(shade: int, kind: str = "png") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade % 256, 0, 0)).save(stream, kind)
    return stream.getvalue()


class Flowers(any2ds.Recipe):
    """Photographs of flowers."""

    VERSION = "1.1.0"
    SUPPORTED_VERSIONS = ("1.0.0",)
    CONFIGS = (
        any2ds.RecipeConfig("small", count=25),
        any2ds.RecipeConfig("full", count=60, description="All of them."),
    )

    def info(self) -> any2ds.Info:
        return any2ds.Info(
            features={
                "image": any2ds.Image(),
                "label": any2ds.ClassLabel(["rose", "tulip"]),
                "caption": any2ds.Text(),
                "box": any2ds.Tensor((None, 2), "float32"),
                "parts": any2ds.Sequence({"name": any2ds.Text(), "size": any2ds.Scalar("int64")}),
                "about": {"width": "int32", "is_red": bool},
                "mask": any2ds.Image(channels=1),
                "note": any2ds.Optional(any2ds.Text()),
            },
            homepage="https://example.org/flowers",
            license="CC-BY-4.0",
            citation="@article{flowers, title = {Flowers}, year = 2024}",
            tags=["images", "captions"],
            supervised_keys=("image", "label"),
        )

    def splits(self, dl: Any) -> Any:
        return {"train": self.samples(0, self.config.count), "test": self.samples(1000, 7), "empty": iter(())}

    def samples(self, first: int, count: int) -> Iterator[tuple[str, Any]]:
        for number in range(first, first + count):
            if number % 10 == 3:
                self.skip(number, "corrupt")
                continue
            yield (
                f"flower_{number}",
                {
                    "image": picture(number, "jpeg"),
                    "label": "tulip" if number % 2 else "rose",
                    "caption": f"flower {number}",
                    "box": [[number, 0.5]] * (number % 3),
                    "parts": [{"name": f"part {part}", "size": part} for part in range(number % 4)],
                    "about": {"width": 4, "is_red": number % 2 == 0},
                    "mask": picture(number),
                    "note": None if number % 2 else "a note",
                },
            )


def build(recipe: Any, folder: Path, **options: Any) -> any2ds.RunReport:
    return any2ds.build(recipe, data_dir=folder, **{"distributor": "inline", "quiet": True, "report": False, **options})


def one_split(samples: Any, **features: Any) -> any2ds.Recipe:
    class Small(any2ds.Recipe):
        """A few samples."""

        def info(self) -> any2ds.Info:
            return any2ds.Info(features or {"text": any2ds.Text()})

        def splits(self, dl: Any) -> Any:
            return samples() if callable(samples) else samples

    return Small()


NESTED: dict[str, Any] = {
    "words": any2ds.Sequence(any2ds.Sequence(any2ds.Text()), doc="The words of each line."),
    "deep": any2ds.Sequence(any2ds.Sequence(any2ds.Sequence("int64"))),
    "boxes": any2ds.Sequence(any2ds.Sequence(any2ds.Tensor((2,), "float32"))),
    "pairs": any2ds.Sequence(any2ds.Tensor((2,), "int64")),
    "frames": any2ds.Sequence({"time": float, "objects": any2ds.Sequence({"name": str, "at": {"x": int}})}),
    "grid": any2ds.Tensor((None, 3, 2), "int16", doc="A map."),
    "maybe": any2ds.Optional(any2ds.Tensor((None, 2), bool)),
    "large": any2ds.Scalar("uint64"),
    "many": any2ds.Sequence("uint64"),
    "steps": any2ds.Sequence({"action": int, "done": bool}, as_dataset=True),
}
SAMPLES: dict[str, dict[str, Any]] = {
    "full": {
        "words": [["a", "rose"], [], ["ü"]],
        "deep": [[[1], []], [], [[2, 3], [4]]],
        "boxes": [[[0.5, 1.0]], [], [[2.0, 3.0], [4.0, 5.0]]],
        "pairs": [[1, 2], [3, 4]],
        "frames": [
            {"time": 0.5, "objects": [{"name": "cat", "at": {"x": 1}}, {"name": "dog", "at": {"x": 2}}]},
            {"time": 1.5, "objects": []},
        ],
        "grid": np.arange(12, dtype=np.int16).reshape(2, 3, 2),
        "maybe": [[True, False]],
        "large": 2**64 - 1,
        "many": [1, 2**63],
        "steps": [{"action": 1, "done": False}, {"action": 2, "done": True}],
    },
    "empty": {
        "words": [],
        "deep": [[], [[]]],
        "boxes": [],
        "pairs": [],
        "frames": [],
        "grid": np.zeros((0, 3, 2), np.int16),
        "maybe": None,
        "large": 0,
        "many": [],
        "steps": [],
    },
}
