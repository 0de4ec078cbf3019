"""Runs workers in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from any2ds.config.options import RunOptions
from any2ds.core.processes.resources import cores
from any2ds.distributors._child import end_waiting, local_link
from any2ds.distributors._team import Place, TeamDistributor


class MultiprocessingDistributor(TeamDistributor):
    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        self._wanted = options.processes_count
        self.processes_count = self._wanted or cores()

    @contextmanager
    def _place(self) -> Iterator[Place]:
        try:
            yield Place(self.processes_count, local_link, is_one_machine=True, are_wanted=self._wanted is not None)
        finally:
            end_waiting()


PART = MultiprocessingDistributor
