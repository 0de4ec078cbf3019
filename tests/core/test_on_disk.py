"""Rows that wait on disk: in one file, however many they are."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from any2ds.core import on_disk

_DESCRIPTORS = Path("/proc/self/fd")


def _batches(count: int) -> list[pa.RecordBatch]:
    """Batches of two schemas, by turns of three."""
    return [pa.record_batch({"ab"[number // 3 % 2]: [f"row {number}", None]}) for number in range(count)]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_disk, "MOST_IN_MEMORY", 40)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 50])
def test_held_batches_are_equal_and_in_order(count: int) -> None:
    assert on_disk.held(iter(_batches(count))) == _batches(count)
    assert on_disk.on_disk(iter(_batches(count))) == _batches(count)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.skipif(not _DESCRIPTORS.is_dir(), reason="descriptors are counted as Linux lists them")
def test_held_batches_take_one_file_descriptor() -> None:
    before = len(os.listdir(_DESCRIPTORS))
    batches = on_disk.held(iter(_batches(500)))
    assert len(os.listdir(_DESCRIPTORS)) <= before + 1
    assert len(batches) == 500
