"""The stream as PyTorch's DataLoader takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from any2ds.load.stream import SHARED, Stream, StreamOptions

if TYPE_CHECKING:
    from any2ds.load.source import Source


class TorchStream(Stream, IterableDataset):  # type: ignore[misc]  # PyTorch is not there for the type checker
    """Its epoch is shared with the workers of a DataLoader, also with those that live on from epoch to epoch."""

    def __init__(self, source: Source, options: StreamOptions) -> None:
        super().__init__(source, options, torch.zeros(SHARED, dtype=torch.int64).share_memory_())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # type: ignore[attr-defined]  # a copy, unless a worker was started with it
