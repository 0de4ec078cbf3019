"""Outcomes that come in any order, from rows of many shards at once: what is stored is the list, each row once."""

import contextlib
import hashlib
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any2ds.config.options import Config
from any2ds.core import plugins
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.failures import Failure
from any2ds.core.layout import Layout
from any2ds.core.metrics import Traffic
from any2ds.core.reports import RobotsCost, ShardReport
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import cuts
from any2ds.testing.writing import read
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan


def content(url: str) -> bytes:
    return b"\x01" + url.encode() * 100


class Shuffled:
    """A fetcher that has up to `ahead` rows at once, and is done with them in random order. URLs in 3 are absent."""

    activity = 0

    def __init__(self, buffer: Buffer, ahead: int, seed: int) -> None:
        self._buffer, self._ahead, self._random = buffer, ahead, random.Random(seed)
        self.asked: Counter[str] = Counter()

    def fetch(self, rows: Iterable[Row]) -> Iterator[Sequence[Fetched]]:
        coming = SimpleQueue[Row | None]()
        threading.Thread(target=_pull, args=(rows, coming), daemon=True).start()  # because it may wait for a disk
        taken: list[Row] = []
        ended = False
        while taken or not ended:
            with contextlib.suppress(Empty):
                while not ended and len(taken) < self._ahead:
                    row = coming.get(timeout=0.1)
                    ended = row is None
                    taken += [] if row is None else [row]
            if not taken:
                yield []
                continue
            done = [taken.pop(self._random.randrange(len(taken))) for _ in range(self._random.randint(1, len(taken)))]
            yield [self._fetched(row) for row in done]

    def _fetched(self, row: Row) -> Fetched:
        self.activity += 1
        assert row.url is not None
        self.asked[row.url] += 1
        if row.url.endswith("3"):
            return Fetched(row, Failure("fetch", "http_404", http_status=404))
        body = Body(self._buffer)
        body.write(content(row.url))
        return Fetched(row, Payload(body, None, 200, None, 0.0))

    def traffic(self) -> Traffic:
        return Traffic()

    def robots_cost(self) -> RobotsCost:
        return RobotsCost()

    def close(self) -> None:
        """Nothing is open."""


def _pull(rows: Iterable[Row], coming: "SimpleQueue[Row | None]") -> None:
    try:
        for row in rows:
            coming.put(row)
    finally:
        coming.put(None)


@dataclass(frozen=True)
class Wanted:
    """What a row is to become, from the list alone."""

    url: str
    expected: str | None
    status: str

    @classmethod
    def of(cls, number: int, expected: str) -> "Wanted":
        url = f"http://host/{number}"
        digest = hashlib.md5(content(url)).hexdigest()
        written = {"none": None, "right": digest, "wrong": digest[::-1]}[expected]
        status = "failed_to_download" if number % 10 == 3 else "dropped" if expected == "wrong" else "success"
        return cls(url, written, status)


rows_of_a_list = st.lists(
    st.builds(Wanted.of, st.integers(0, 12), st.sampled_from(["none", "right", "wrong"])), min_size=1, max_size=40
)


@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet"])
@settings(max_examples=40, deadline=None)
@given(
    wanted=rows_of_a_list,
    rows_per_shard=st.integers(1, 12),
    ahead=st.integers(1, 50),
    seed=st.integers(0, 2**32),
    memory=st.sampled_from(["1KB", "1GB"]),
    dedupe=st.sampled_from(["shard", "run", "none"]),
)
@pytest.mark.slow
def test_samples_are_in_the_order_of_the_list_each_once(
    output_format: str, wanted: list[Wanted], rows_per_shard: int, ahead: int, seed: int, memory: str, dedupe: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = {"verify_hash": "h:md5", "on_hash_mismatch": "drop", "compute_md5": False, "dedupe": dedupe}
        config = Config.from_options(
            {
                "url_list": "-",
                "output_folder": folder,
                "output_format": output_format,
                "number_sample_per_shard": rows_per_shard,
                "max_buffered_bytes": memory,
                **options,
            }
        )
        buffers: list[Buffer] = []
        fetchers: list[Shuffled] = []

        def new_fetcher(_: Any, buffer: Buffer) -> Shuffled:
            buffers.append(buffer)
            fetchers.append(Shuffled(buffer, ahead, seed))
            return fetchers[-1]

        table = pa.table(
            {
                "url": pa.array([row.url for row in wanted], pa.string()),
                "expected_hash": pa.array([row.expected for row in wanted], pa.string()),
                "number": list(range(len(wanted))),
            }
        )
        layout = Layout(rows_per_shard, 5)
        batches, schema = iter(table.to_batches()), table.schema
        if dedupe == "run":
            batches, schema = mark_duplicates(batches, schema, layout)
        worker = ShardWorker(config.output, config.fetch, new_fetcher)
        reports = [e for e in worker(plan(cuts(batches, rows_per_shard), schema)) if isinstance(e, ShardReport)]

        places = [divmod(n, rows_per_shard) for n in range(len(wanted))]
        keys = [layout.key(*place) for place in places]
        firsts: dict[Any, int] = {}
        statuses = []
        for n, row in enumerate(wanted):
            first = firsts.setdefault((row.url, row.expected, None if dedupe == "run" else places[n][0]), n)
            statuses.append("duplicate" if dedupe == "run" and first != n else row.status)
        assert sum((fetcher.asked for fetcher in fetchers), Counter()) == Counter(
            wanted[n].url for n in (range(len(wanted)) if dedupe == "none" else firsts.values())
        )
        out = Path(folder)
        found = [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        assert [(row["key"], row["number"], row["url"], row["expected_hash"]) for row in found] == [
            (key, n, row.url, row.expected) for n, (key, row) in enumerate(zip(keys, wanted, strict=True))
        ]
        assert [row["status"] for row in found] == statuses

        writer = plugins.load("writers", output_format)
        names = [f"{layout.shard_name(shard)}.{writer.extension}".rstrip(".") for shard in sorted(dict(places))]
        stored = []
        for name in names:
            if (out / name).exists():
                stored += [(key, data) for key, _, data in read(writer, out / name)]
        assert stored == [
            (key, content(row.url))
            for key, row, status in zip(keys, wanted, statuses, strict=True)
            if status == "success"
        ]
        assert sorted(report.shard_id for report in reports) == sorted(dict(places))
        assert sum((Counter(report.status_dict) for report in reports), Counter()) == Counter(
            "http_404" if status == "failed_to_download" else status for status in statuses
        )
        assert sum(report.count for report in reports) == len(wanted)
        assert all(buffer.used == 0 for buffer in buffers)
