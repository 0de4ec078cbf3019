"""Runs workers in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from any2ds.config.options import RunOptions
from any2ds.core.processes.resources import cores
from any2ds.distributors._child import LocalLink
from any2ds.distributors._team import Place, TeamDistributor


class MultiprocessingDistributor(TeamDistributor):
    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        self.processes_count = options.processes_count or cores()

    @contextmanager
    def _place(self) -> Iterator[Place]:
        yield Place(self.processes_count, LocalLink, is_one_machine=True)


PART = MultiprocessingDistributor
