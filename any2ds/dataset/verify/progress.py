"""Shows the progress of `verify`: live on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.text import Text

from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.terminal.stderr import stderr_console
from any2ds.core.text import percent, size, time_left
from any2ds.dataset.verify.shard import Checked

if TYPE_CHECKING:
    from any2ds.core.terminal.live import StatusBlock

_LOG_INTERVAL = 10.0  # seconds between two plain lines


class Progress:
    """Writes to standard error, and only while it is entered."""

    def __init__(self, shards: int, folder: str, quiet: bool) -> None:
        self.checked = Checked()
        self._total, self._folder = shards, printable(redacted(folder))
        self._shards = self._wrong = 0
        self._console = stderr_console()
        self._started = self._printed = time.monotonic()
        self._block: StatusBlock | None = None
        self._is_quiet = quiet

    def __enter__(self) -> Progress:
        if not self._is_quiet and self._console.can_redraw:
            from any2ds.core.terminal.live import StatusBlock

            block = StatusBlock(self._console, self._lines, lambda: self._status().plain, _LOG_INTERVAL)
            self._block = block if block.try_start() else None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._block is not None:
            self._block.stop()

    def add(self, result: Checked) -> None:
        """Count what was checked of a shard."""
        self.checked.add(result)
        self._shards += 1
        self._wrong += bool(result.findings)
        is_due = time.monotonic() - self._printed >= _LOG_INTERVAL
        if self._block is None and not self._is_quiet and is_due:
            self._printed = time.monotonic()
            self._console.print(self._status())

    def _lines(self, columns: int) -> list[Text]:
        """The status in as many lines as it takes."""
        return list(self._status().wrap(self._console, columns - 1))

    def _status(self) -> Text:
        seconds = max(1e-3, time.monotonic() - self._started)
        left = (self._total - self._shards) * seconds / self._shards if self._shards else None
        return Text.assemble(
            (f"{self._shards:,} of {shard_count(self._total)}", "bold"),
            f" checked ({percent(self._shards, self._total)}), ",
            (f"{self._wrong:,} with findings, ", "yellow") if self._wrong else "",
            f"{time_left(left)}, " if left is not None else "",
            f"{self.checked.rows:,} rows, {size(self.checked.bytes_read / seconds)}/s: {self._folder}",
        )
