"""What a row goes through between the fetcher and its shard: described, and taken through the steps of the pipeline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.samples import Fetched
from any2ds.worker.describe import Describe

if TYPE_CHECKING:
    from any2ds.transforms.pipeline import PipelineRunner
    from any2ds.worker.open_shards import OpenShards

_WAIT = 0.1  # seconds, at most, between two looks at everything else


class Steps:
    """Hands what was fetched to `shards`, at once or when the steps are through with it."""

    def __init__(self, describe: Describe, transforming: PipelineRunner | None, shards: OpenShards) -> None:
        self._describe, self._transforming, self._shards = describe, transforming, shards

    @property
    def activity(self) -> int:
        """Grows with every sign of life."""
        return self._transforming.activity if self._transforming else 0

    @property
    def pending(self) -> int:
        """Rows that are on their way."""
        return self._transforming.pending if self._transforming else 0

    def take(self, fetched: Fetched, buffer: Buffer | None = None) -> None:
        """`buffer` is that of its body, if it has one."""
        sample = self._describe(fetched)
        if buffer is not None and self._transforming is not None and self._transforming.wants(sample):
            self._transforming.submit(sample, buffer, self._shards.any_tried_before)
        else:
            self._shards.take((sample,))

    def turn(self, buffer: Buffer, is_ending: bool = False, seconds: float = 0.0) -> None:
        """Hand over what has passed all steps; `buffer` gets to know whether more is wanted."""
        if self._transforming is not None:
            for samples in self._transforming.turn(is_ending, seconds):
                self._shards.take(samples)
            buffer.paused = self._transforming.holds_back

    def wait(self, buffer: Buffer) -> None:
        """For something to be through, but not for long. To be called when nothing more is coming."""
        since, cpu = time.monotonic(), time.thread_time()
        self.turn(buffer, is_ending=True, seconds=_WAIT)
        busy = time.thread_time() - cpu
        self._shards.metrics.waited("transforms", time.monotonic() - since - busy)
