"""Shows how far the checking of a dataset has come: live on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.text import Text

from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.terminal.live import Live
from any2ds.core.terminal.notebook import Cell, kernel
from any2ds.core.terminal.stderr import StderrConsole
from any2ds.core.terminal.text import left, percent, size

_LOG_INTERVAL = 10.0  # seconds between two plain lines
_CELL_INTERVAL = 1.0


class Progress:
    """Writes to standard error, and only while it is entered."""

    def __init__(self, shards: int, folder: str, quiet: bool) -> None:
        self._total, self._folder = shards, printable(redacted(folder))
        self._shards = self._rows = self._bytes = self._wrong = 0
        self._console = StderrConsole()
        self._started = self._told = time.monotonic()
        self._live: Live | None = None
        self._cell: Cell | None = None
        self._is_quiet = quiet
        if not quiet and kernel() is not None:
            self._cell = Cell()
        elif not quiet and self._console.can_redraw:
            self._live = Live(
                self._console, lambda columns: [self._status()], lambda: self._status().plain, _LOG_INTERVAL
            )

    def __enter__(self) -> Progress:
        self._started = self._told = time.monotonic()
        if self._live is not None and not self._live.start():
            self._live = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def on_shard(self, rows: int, bytes_read: int, is_wrong: bool) -> None:
        self._shards += 1
        self._rows += rows
        self._bytes += bytes_read
        self._wrong += is_wrong
        if self._live is not None:
            self._live.refresh()
        elif not self._is_quiet and self._is_time():
            self._told = time.monotonic()
            if self._cell is not None:
                self._cell.show(self._status().plain)
            else:
                self._console.print(self._status(), soft_wrap=True)

    def _is_time(self) -> bool:
        interval = _LOG_INTERVAL if self._cell is None else _CELL_INTERVAL
        return time.monotonic() - self._told >= interval or (self._cell is not None and self._shards == self._total)

    def _status(self) -> Text:
        seconds = max(1e-3, time.monotonic() - self._started)
        rest = (self._total - self._shards) * seconds / self._shards if self._shards else None
        return Text.assemble(
            (f"{self._shards:,} of {shard_count(self._total)}", "bold"),
            f" checked ({percent(self._shards, self._total)}), ",
            (f"{self._wrong:,} with findings, ", "yellow") if self._wrong else "",
            f"{left(rest)}, " if rest is not None else "",
            f"{self._rows:,} rows, {size(self._bytes / seconds)}/s: {self._folder}",
        )
