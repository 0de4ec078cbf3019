"""The stream as PyTorch's DataLoader takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.data import IterableDataset

from any2ds.dataset.load.stream import Stream

if TYPE_CHECKING:
    from any2ds.dataset.load.source import Source


class TorchStream(Stream, IterableDataset):  # type: ignore[misc]  # PyTorch is not there for the type checker
    """Its epoch is shared with the workers of a DataLoader, also with those that live on from epoch to epoch."""

    def __init__(self, source: Source, seed: int, window: int, ranks: tuple[int, int]) -> None:
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        super().__init__(source, seed, window, ranks)

    @property
    def epoch(self) -> int:
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        self._epoch[0] = epoch
