"""What a worker does with a shard that was tried before, and what an attempt that ends badly costs."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import Config
from any2ds.core.reports import Event, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.readers.plan import cuts
from any2ds.testing.server import Server, serve
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    media = tmp_path / "media"
    media.mkdir()
    for name in ("ok", "bad"):
        (media / name).write_bytes(name.encode() * 1000)
    with serve(media) as running:
        yield running


def config_of(out: Path, **options: Any) -> Config:
    out.mkdir(exist_ok=True)
    given = {"output_format": "webdataset", "number_sample_per_shard": 5, "processes_count": 1, **options}
    return Config.from_options({"url_list": "-", "dedupe": "none", "output_folder": out, **given})


def jobs_for(urls: list[str]) -> Iterator[ShardJob]:
    table = pa.table({"url": urls})
    return plan(cuts(table.to_batches(), 5), table.schema)


def reports(events: list[Event]) -> list[ShardReport]:
    return sorted((event for event in events if isinstance(event, ShardReport)), key=lambda report: report.shard_id)


class DiesWithItsReport(ShardWorker):
    """Its process ends, once, when shard 1 is published and nobody was told."""

    def __call__(self, jobs: Any) -> Iterator[Event]:
        died = Path(self._options.output_folder).parent / "died"
        for event in super().__call__(jobs):
            if isinstance(event, ShardReport) and event.shard_id == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
            yield event


def test_a_shard_whose_report_was_lost_with_its_process_is_not_made_twice(tmp_path: Path, server: Server) -> None:
    config = config_of(tmp_path / "out")
    urls = [server.url("ok") + f"?{n}" for n in range(15)]
    worker = DiesWithItsReport(config.output, config.fetch)
    events = list(MultiprocessingDistributor(config.run).map(worker, jobs_for(urls)))
    assert (tmp_path / "died").exists()
    assert [report.shard_id for report in reports(events)] == [0, 1, 2]
    requests = Counter(request.target for request in server.requests)
    assert [requests[f"/ok?{n}"] for n in range(5, 10)] == [1] * 5
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [table["status"].to_pylist() for table in tables] == [["success"] * 5] * 3


def test_statistics_of_other_rows_go_before_their_shard_is_made_again(tmp_path: Path, server: Server) -> None:
    config = config_of(tmp_path / "out")
    (job,) = (replace(job, attempt=1) for job in jobs_for([server.url("ok")]))
    stats = tmp_path / "out" / "00000_stats.json"
    for content in ("", "{}", json.dumps(ShardReport(shard_id=0, count=5).to_json())):
        stats.write_text(content)
        (report,) = reports(list(ShardWorker(config.output, config.fetch)(iter([job]))))
        assert (report.successes, report.bytes) == (1, 2000)
    stats.write_text(json.dumps(ShardReport(shard_id=0, count=1, bytes=77).to_json()))
    (report,) = reports(list(ShardWorker(config.output, config.fetch)(iter([job]))))
    assert report.bytes == 77


class Raises(UrlFetcher):
    def fetch(self, rows: Any) -> Any:
        for batch in super().fetch(rows):
            if any("bad" in str(fetched.row.url) for fetched in batch):
                raise OSError("the fetcher has had enough")
            yield batch


def test_a_fetcher_that_raises_costs_the_open_shards_alone(tmp_path: Path, server: Server) -> None:
    config = config_of(tmp_path / "out", thread_count=1)
    urls = [server.url("bad" if n == 7 else "ok") for n in range(10)]
    events: list[Event] = []
    worker = ShardWorker(config.output, config.fetch, Raises)
    with pytest.raises(OSError, match="had enough"), closing(worker(jobs_for(urls))) as made:  # type: ignore[type-var]
        events.extend(made)
    assert [report.shard_id for report in reports(events)] == [0]
    assert {path.name for path in (tmp_path / "out").glob("0000*")} >= {"00000_stats.json", "00000.tar"}
    assert not list((tmp_path / "out").glob("00001*"))
    assert not (tmp_path / "out" / ".any2ds/tmp").exists()
