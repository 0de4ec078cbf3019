"""The seam between deciding and moving: what a library must do to carry transfers."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from any2ds.core.failures import Failure
from any2ds.core.metrics import Wait
from any2ds.core.samples import Payload
from any2ds.fetch.policy.hosts import Attempt

Phases = Counter[Wait]
"""How many transfers wait for `dns`, `answers` (the first byte of a body) and `bodies` (the rest of it)."""


WITHOUT_FILES = Failure("fetch", "connect", "too many open files (ulimit -n)", blame="open_files")
"""The outcome of an attempt for which no file or socket could be opened."""


class Transport(Protocol):
    """Starts attempts and says how each ended. Every method but `wake` belongs to one thread."""

    @property
    def waited(self) -> float:
        """Seconds that `poll` has slept, ever."""
        ...

    def phases(self) -> Phases:
        """The waits of the transfers in flight, but for late ones; it looks at each of them."""
        ...

    @property
    def backlog(self) -> int:
        """Transfers that are ready to be attended to and wait for `poll`; while there are any, no more are started."""
        ...

    def expect(self, transfers: int) -> None:
        """So many may be in flight from now on."""
        ...

    def start(self, attempt: Attempt, url: str) -> None:
        """Begin to fetch `url`, which has been normalised. Never raises for what is wrong with one URL."""
        ...

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        """Move bytes, waiting at most `wait` seconds for some to move; what ended since the last call.

        Raises OSError if a body could not be buffered on disk.
        """
        ...

    def received(self, attempt: Attempt) -> int:
        """How many bytes of its body have come over the network for an attempt in flight, as far as it is known."""
        ...

    def cancel(self, attempt: Attempt) -> Failure:
        """Give an attempt up because its time is over, and say how far it came. Returns at once."""
        ...

    def wake(self) -> None:
        """End a waiting `poll`; may be called from any thread."""
        ...

    def close(self) -> None:
        """Abort everything and free everything, at once."""
        ...
