"""Any sequence of runs that end early, lists that grow and runs to the end: every row has exactly one outcome."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from any2ds.config.options import Config
from any2ds.core import plugins
from any2ds.core.layout import Layout, finished_shards
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Facts, Reporter
from any2ds.testing.server import Server, serve
from any2ds.testing.writing import read

STORED = 5  # of the files on the server; there is one more name, whose rows fail


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(STORED):
        (media / str(n)).write_bytes(b"\x01file %d" % n)
    with serve(media) as running:
        yield running


class CtrlC(Reporter):
    """A person who watches, and stops the run when so many shards are done."""

    def __init__(self, shards: int) -> None:
        self._left = shards

    def report(self, event: str, facts: Facts) -> None:
        self._left -= event == "shard_finished"
        if event == "shard_finished" and self._left <= 0:
            raise KeyboardInterrupt


@dataclass
class Story:
    """A list that grows, and the dataset that is made of it."""

    server: Server
    folder: Path
    layout: Layout
    output_format: str
    rows: list[str] = field(default_factory=list)

    def grow(self, count: int) -> None:
        start = len(self.rows)
        self.rows += [self.server.url(f"{n % (STORED + 1)}") + f"?row={n}" for n in range(start, start + count)]
        (self.folder / "list.txt").write_text("".join(f"{url}\n" for url in self.rows))

    def run(self, stop_after: int | None = None) -> None:
        finished = {n for shard, count in self._finished().items() for n in self._numbers(shard)[:count]}
        before = len(self.server.requests)
        options = {"url_list": self.folder / "list.txt", "output_folder": self.folder / "out", "quiet": True}
        options |= {"number_sample_per_shard": self.layout.rows_per_shard, "oom_shard_count": self.layout.shard_digits}
        config = Config.from_options({**options, "output_format": self.output_format, "distributor": "inline"})
        try:
            make_dataset(config, more=[] if stop_after is None else [CtrlC(stop_after)])
        except KeyboardInterrupt:
            assert stop_after is not None
        asked = [int(request.target.partition("=")[2]) for request in self.server.requests[before:]]
        assert len(set(asked)) == len(asked)
        assert not finished & set(asked)  # what is done is not done again
        found = self.check()
        if stop_after is None:
            assert found == list(range(len(self.rows)))
            assert not list((self.folder / "out").glob(".any2ds/tmp/*"))

    def check(self) -> list[int]:
        """What is finished is right, and readable to its end; the numbers of the rows in it."""
        found = []
        for shard, count in sorted(self._finished().items()):
            numbers = self._numbers(shard)
            assert len(numbers) == count
            table = pq.read_table(self.folder / "out" / self.layout.metadata_name(shard)).to_pylist()
            keys = [self.layout.key(shard, position) for position in range(count)]
            assert [(row["key"], row["url"]) for row in table] == [
                (key, self.rows[n]) for key, n in zip(keys, numbers, strict=True)
            ]
            is_stored = [n % (STORED + 1) < STORED for n in numbers]
            assert [row["error_code"] for row in table] == [None if stored else "http_404" for stored in is_stored]
            writer: Any = plugins.load("writers", self.output_format)
            path = self.folder / "out" / f"{self.layout.shard_name(shard)}.{writer.extension}".rstrip(".")
            samples = [(key, data) for key, _, data in read(writer, path)] if path.exists() else []
            assert samples == [
                (key, b"\x01file %d" % (n % (STORED + 1)))
                for key, n, stored in zip(keys, numbers, is_stored, strict=True)
                if stored
            ]
            found += numbers
        return found

    def _finished(self) -> dict[int, int]:
        """Number of each finished shard -> rows in it."""
        out = self.folder / "out"
        shards = finished_shards(path.name for path in out.glob("*")) if out.exists() else ()
        return {s: json.loads((out / self.layout.stats_name(s)).read_bytes())["count"] for s in shards}

    def _numbers(self, shard: int) -> list[int]:
        """Numbers of the rows of a shard, by what the segments of the dataset say."""
        files = sorted((self.folder / "out" / ".any2ds" / "segments").glob("????"))
        begun = [(found["first_shard"], found["start_row"]) for found in map(json.loads, map(Path.read_bytes, files))]
        first_shard, start_row = max(place for place in begun if place[0] <= shard)
        ends = [row for _, row in begun if row > start_row]
        start = start_row + (shard - first_shard) * self.layout.rows_per_shard
        return list(range(start, min(start + self.layout.rows_per_shard, *ends, len(self.rows))))


steps = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 9)),
    st.tuples(st.just("stop"), st.integers(1, 3)),
    st.tuples(st.just("run"), st.just(0)),
)


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.sampled_from(["webdataset", "parquet", "files"]),
    st.lists(steps, min_size=1, max_size=5),
)
@example(7, 3, "webdataset", [("stop", 1), ("grow", 1), ("run", 0), ("grow", 4), ("stop", 1)])
@example(5, 5, "files", [("run", 0), ("run", 0), ("grow", 1)])
@example(6, 4, "parquet", [("run", 0), ("grow", 1), ("stop", 1), ("grow", 2)])
def test_every_row_has_one_outcome_whatever_happened_before(
    server: Server, rows: int, rows_per_shard: int, output_format: str, story: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reported = Story(server, Path(folder), Layout(rows_per_shard, 2), output_format)
        reported.grow(rows)
        for step, number in story:
            if step == "grow":
                reported.grow(number)
            else:
                reported.run(stop_after=number if step == "stop" else None)
        reported.run()
