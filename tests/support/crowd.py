"""A list of which all rows are on one host, and a server that counts what this host sees of all machines together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from any2ds import inspect
from any2ds.testing.processes import wait_until
from any2ds.testing.server import Server, serve

ROWS = 48
MOST = 3  # transfers at once: an odd number, so that machines get unequal shares


@dataclass(frozen=True)
class Crowd:
    """Runs get many short tasks; the first is held until `server.release()`, and others begin and end beside it."""

    server: Server
    urls: list[str]

    @property
    def options(self) -> dict[str, Any]:
        """Of `download`."""
        made = {"output_format": "files", "number_sample_per_shard": 4, "subjob_size": 4, "timeout": 0}
        how = {"processes_count": 2, "max_per_host": MOST, "report": False, "quiet": True}
        return {"url_list": self.urls, **made, **how}

    def wait_for_requests(self, count: int) -> None:
        wait_until(lambda: len(self.server.requests) >= count)

    def expect_polite(self, out: Path) -> None:
        """All rows are stored, and the host never had more transfers than it allows, although it was used well."""
        assert inspect(out).successes == ROWS
        assert 1 < self.server.max_concurrent <= MOST


@contextmanager
def crowd(folder: Path) -> Iterator[Crowd]:
    script = {str(n): ["slow:0.1"] for n in range(ROWS)} | {"0": ["hold"]}
    for n in range(ROWS):
        (folder / str(n)).write_bytes(b"file %d" % n)
    with serve(folder, script) as server:
        yield Crowd(server, [server.url(str(n)) for n in range(ROWS)])
