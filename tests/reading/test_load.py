"""`any2ds.load` as the page on loading shows it first; the other files have the rest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import any2ds


def test_what_the_page_shows(dataset: Callable[..., Any], page: Callable[..., list[str]]) -> None:
    dataset("webdataset")
    for code in page("Loading"):
        exec(compile(code, "Loading", "exec"), {"__name__": "page"})


def test_numbers_and_masks_of_numpy_and_pandas(dataset: Callable[..., Any]) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset", columns=np.array(["key", "label"]))
    every = list(ds)
    assert {type(name) for sample in every for name in sample} == {str}
    assert ds[np.array(3)] == ds[np.int64(3)] == every[3]
    assert ds[np.array([5, 1])] == ds[pd.Series([5, 1], index=[9, 8])] == ds[[np.uint8(5), 1]] == [every[5], every[1]]
    mask = np.array([sample["label"] == 1 for sample in every])
    assert ds[np.flatnonzero(mask)] == list(any2ds.load("dataset", columns=["key", "label"], where="label = 1"))
    masks = (mask, mask[:2], pd.Series(mask), pd.Series(mask, dtype="boolean"), list(mask), mask[0], np.array(True))
    for wrong in (*masks, pd.Series(mask, dtype=object)):
        with pytest.raises(TypeError, match=r"^samples are read by number, .* ds\[numpy\.flatnonzero\(mask\)\]$"):
            ds[wrong]
    for other in (np.array(3.0), np.array([3.0])):
        with pytest.raises(TypeError, match=r"^samples are read by number, as in ds\[7\]"):
            ds[other]
