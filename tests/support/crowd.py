"""A list of rows on two hosts with limits, and servers that see what these hosts get from all machines together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from any2ds import inspect
from any2ds.testing.processes import wait_until
from any2ds.testing.server import Server, serve

ROWS = 48  # on the host that allows few transfers at once
MOST = 3  # of these: an odd number, so that machines get unequal shares
DELAY = 0.4  # seconds that the other host wants between two requests; one row of a shard is there
SHARD = 5  # rows


@dataclass(frozen=True)
class Crowd:
    """Runs get many short tasks; the first is held until `server.release()`, and others begin and end beside it."""

    server: Server
    calm: Server  # the host that wants time between two requests
    urls: list[str]

    @property
    def options(self) -> dict[str, Any]:
        """Of `download`."""
        made = {"output_format": "files", "number_sample_per_shard": SHARD, "subjob_size": 4}
        hosts = {_host(self.server): {"max_per_host": MOST}, _host(self.calm): {"host_delay": DELAY}}
        patience = {"timeout": 0, "stall_timeout": 0}  # a row is held for as long as a node takes to start
        how = {"processes_count": 2, "hosts": hosts, "report": False, "quiet": True, **patience}
        return {"url_list": self.urls, **made, **how}

    def wait_for_requests(self, count: int) -> None:
        wait_until(lambda: len(self.server.requests) >= count)

    def expect_polite(self, out: Path) -> None:
        """All rows are stored, and no host saw more than it allows, although the first was used well."""
        assert inspect(out).successes == len(self.urls)
        self.expect_limits()

    def expect_limits(self) -> None:
        assert 1 < self.server.max_concurrent <= MOST
        # Between tasks that know nothing of each other, half of the gaps are so short. A busy machine brings one late.
        gaps = [later - earlier for earlier, later in pairwise(sorted(each.at for each in self.calm.requests))]
        assert sum(gap < DELAY / 2 for gap in gaps) <= len(gaps) // 6, sorted(gaps)


def _host(server: Server) -> str:
    return f"{server.host}:{server.port}"


@contextmanager
def crowd(folder: Path) -> Iterator[Crowd]:
    script = {str(n): ["slow:0.1"] for n in range(ROWS)} | {"0": ["hold"]}
    for n in range(ROWS):
        (folder / str(n)).write_bytes(b"file %d" % n)
    with serve(folder, script) as server, serve(folder, host="127.0.0.2") as calm:
        urls = [server.url(str(n)) for n in range(ROWS)]
        for shard in range(ROWS // (SHARD - 1)):
            urls.insert(SHARD * shard, calm.url(str(shard)))
        yield Crowd(server, calm, urls)
