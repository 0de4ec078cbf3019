"""Serves a small set of pictures with the shape of CIFAR-10 on loopback, and makes a url list for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from any2ds.testing.server import serve

CLASSES, SIDE = 10, 32


@contextmanager
def cifar_like_urls(pictures: int = 600) -> Iterator[Path]:
    """A tsv file with the columns url and label (0 to 9), for PNG and JPEG files of 32 by 32 pixels."""
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="any2ds-cifar-") as name:
        folder = Path(name)
        with serve(folder) as server:
            lines = ["url\tlabel"]
            for number in range(pictures):
                label = number % CLASSES
                encode, ext = (tf.io.encode_png, "png") if number % 3 else (tf.io.encode_jpeg, "jpg")
                (folder / f"{number}.{ext}").write_bytes(encode(picture(label, chance)).numpy())
                lines.append(f"{server.url(f'{number}.{ext}')}\t{label}")
            url_list = folder / "urls.tsv"
            url_list.write_text("\n".join(lines) + "\n", encoding="utf-8")
            yield url_list


def picture(label: int, chance: np.random.Generator) -> np.ndarray:
    """A disc in the colour of its class, somewhere on a noisy ground: SIDE by SIDE by 3 bytes."""
    colour = tf.image.hsv_to_rgb([label / CLASSES, chance.uniform(0.7, 1), chance.uniform(0.6, 1)]).numpy()
    x, y, radius = chance.uniform([10, 10, 6], [SIDE - 10, SIDE - 10, 10])
    rows, columns = np.mgrid[:SIDE, :SIDE]
    is_inside = ((rows - y) ** 2 + (columns - x) ** 2 < radius**2)[..., None]
    return (np.where(is_inside, colour, chance.random((SIDE, SIDE, 3)) / 2) * 255).astype(np.uint8)
