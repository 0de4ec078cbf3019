"""What is told of a run while it goes on, and in the stats of its shards, agrees with what it did."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.config.options import Config
from any2ds.core.errors import BrokenStep
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import WorkerMetrics
from any2ds.core.processes import child_process, resources
from any2ds.core.reports import Event, Progress, RunReport, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.core.stats import Stats
from any2ds.distributors import _process
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.run.monitor import Monitor
from any2ds.testing.server import Server, serve
from any2ds.worker import worker_metrics
from any2ds.worker.worker import ShardWorker
from tests.support.stuck import StuckFetchers

SECRET = "s3cret"


class Watched:
    """Runs over a site of which `seen` has the events and `snapshots` what was shown of them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.seen: list[Event] = []
        self.snapshots: list[Any] = []

    @property
    def metrics(self) -> list[WorkerMetrics]:
        return [event.metrics for event in self.seen if isinstance(event, Progress) and event.metrics is not None]

    @property
    def reported(self) -> Counter[str]:
        reported: Counter[str] = Counter()
        for event in self.seen:
            if isinstance(event, Progress):
                reported.update(event.outcomes)
        return +reported

    def rows(self, names: list[str]) -> list[dict[str, str]]:
        return [{"url": self.server.url(name)} for name in names]

    def download(self, rows: Any, **options: Any) -> RunReport:
        usual = {"output_folder": str(self.folder / "out"), "distributor": "inline", "dedupe": "none", "retries": 0}
        return any2ds.download(rows, quiet=True, report=False, **{**usual, **options})

    def stats(self, shard: int) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads((self.folder / "out" / f"{shard:05d}_stats.json").read_bytes())
        return found


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.txt").write_bytes(b"some text")
    (site / "later.txt").write_bytes(b"more text")
    with serve(site, {"twice.txt": ["503", "ok"], "later.txt": ["503", "ok"]}) as server:
        (site / "twice.txt").write_bytes(b"more text")
        found = Watched(server, tmp_path)
        take, snapshot = Monitor.take, Monitor.progress

        def taken(self: Monitor, event: Event) -> None:
            found.seen.append(event)
            take(self, event)

        def shown(self: Monitor) -> Any:
            facts = snapshot(self)
            found.snapshots.append(SimpleNamespace(**facts))
            return facts

        monkeypatch.setattr(Monitor, "take", taken)
        monkeypatch.setattr(Monitor, "progress", shown)
        yield found


def test_a_process_that_dies_leaves_no_rows_that_are_counted_twice(watched: Watched, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    report = watched.download(
        watched.rows(["a.txt"] * 40),
        distributor="multiprocessing",
        processes_count=1,
        number_sample_per_shard=10,
        transform=_step(tmp_path, mark),
    )
    assert mark.exists()
    assert report.successes == 40
    assert watched.reported == {"success": 40}
    assert watched.snapshots[-1].outcomes == {"success": 40}


def test_a_run_that_breaks_off_takes_back_what_it_told_of_open_shards(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "steps_that_break.py").write_text(
        """
import time
from any2ds.core.errors import BrokenStep
count = 0
def breaks(sample):
    global count
    count += 1
    time.sleep(0.03)
    if count == 60:
        raise BrokenStep("no more")
    return sample
"""
    )
    step = f"{tmp_path / 'steps_that_break.py'}:breaks"
    with pytest.raises(BrokenStep):
        watched.download(watched.rows(["a.txt"] * 80), transform=step, transform_threads=1)
    assert any(event.outcomes.get("success", 0) > 0 for event in watched.seen if isinstance(event, Progress))
    assert watched.reported == {}


def _step(folder: Path, mark: Path) -> str:
    """One that kills its process once, when half a second's worth of rows have been told."""
    code = f"""
import os, signal, time
from pathlib import Path
mark = Path({str(mark)!r})
count = 0
def once(sample):
    global count
    count += 1
    time.sleep(0.03)
    if count == 32 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    return sample
"""
    (folder / "steps_that_kill.py").write_text(code)
    return f"{folder / 'steps_that_kill.py'}:once"


def test_stats_have_what_transfers_took_and_an_example_of_each_failure(watched: Watched) -> None:
    host = watched.server.base_url.removeprefix("http://").strip("/")
    rows = [
        *watched.rows(["a.txt", "missing.txt", "gone.txt", "twice.txt"]),
        {"url": ""},
        {"url": f"ftp4://me:{SECRET}@{host}/{'x' * 5000}"},
    ]
    report = watched.download(rows, retries=1)
    stats = watched.stats(0)
    assert stats["attempts"] == report.attempts == sum(_attempts(watched))
    assert stats["examples"] == report.examples
    assert report.examples["http_404"] == watched.server.url("missing.txt")
    assert "bad_url" not in report.examples
    assert len(report.examples["unsupported_scheme"]) == 300
    assert SECRET not in str(stats)
    assert len(Histogram.from_json(stats["latencies"])) == 2


def test_copies_of_a_row_are_one_transfer(watched: Watched) -> None:
    report = watched.download(watched.rows(["a.txt"] * 10), dedupe="shard")
    assert (report.successes, report.attempts) == (10, 1)
    assert len(Histogram.from_json(watched.stats(0)["latencies"])) == 1


def test_a_resumed_run_counts_its_own_rows_only(watched: Watched) -> None:
    rows = watched.rows(["a.txt"] * 50)
    watched.download(rows, number_sample_per_shard=10)
    for shard in (1, 3):
        (watched.folder / "out" / f"0000{shard}_stats.json").unlink()
    watched.snapshots.clear()
    watched.download(rows, number_sample_per_shard=10)
    assert {snapshot.total_rows for snapshot in watched.snapshots} == {20}
    last = watched.snapshots[-1]
    assert (last.outcomes, last.share, last.shards_before) == ({"success": 20}, 1.0, 3)


def _attempts(watched: Watched) -> list[int]:
    table = pq.read_table(watched.folder / "out" / "00000.parquet")
    return [count or 0 for count in table["attempts"].to_pylist()]


def test_rows_of_a_fetcher_that_was_stuck_are_counted_once(watched: Watched) -> None:
    def run() -> Iterator[Event]:
        config = Config.from_options(
            {"url_list": "-", "output_folder": str(watched.folder / "out"), "dedupe": "none", "watchdog_timeout": 2}
        )
        (watched.folder / "out").mkdir()
        worker = ShardWorker(config.output, config.fetch, StuckFetchers(loses="missing"))
        rows = pa.table({"url": [row["url"] for row in watched.rows(["a.txt", "missing.txt", *["a.txt"] * 300])]})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        jobs = iter([ShardJob(0, sink.getvalue().to_pybytes(), rows.num_rows)])
        return MultiprocessingDistributor(config.run).map(worker, jobs)

    watched.seen += run()
    report = next(event for event in watched.seen if isinstance(event, ShardReport))
    assert report.status_dict == {"success": 301, "watchdog": 1}
    assert watched.reported == report.status_dict
    assert sum(each.attempts for each in watched.metrics) >= report.attempts > 0


# --- the list ---


# --- one process ---


@pytest.mark.parametrize(("reported", "least", "most"), [("150000 100000", 0.5, 1.5), ("50000 100000", 0.5, 0.5)])
def test_a_container_has_the_cores_that_it_is_bounded_to(
    reported: str, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = resources.share()
    (tmp_path / "cpu.max").write_text(reported)
    monkeypatch.setattr(resources, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(resources, "share", resources.share.__wrapped__)
    assert least <= resources.share() == min(given, most)
    assert resources.cores() == -(-resources.share() // 1)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert resources.share() == given


def test_the_footprint_of_a_process_has_that_of_its_children() -> None:
    memory, cpu = resources.memory(), resources.cpu()
    assert memory > 1 << 20
    assert resources.name().endswith(f":{os.getpid()}")
    sum(range(1_000_000))
    assert resources.cpu() > cpu
    child = child_process.start(_process.__name__)
    assert child.pid in child_process.running()
    child.kill()
    child.communicate()
    assert child.pid not in child_process.running()


def test_waits_add_up_whatever_was_measured() -> None:
    assert worker_metrics.adding_up({"hosts": 1.0, "dns": 0.0}, 4.0) == {"hosts": 1.0, "cpu": 3.0}
    assert worker_metrics.adding_up({"hosts": 3.0, "disk": 3.0}, 4.0) == {"hosts": 2.0, "disk": 2.0}
    assert worker_metrics.adding_up({}, 1.0) == {"cpu": 1.0}


@pytest.mark.parametrize("found", [{"1000000000": 1}, {"-1000000000": 1}, {"3": -1}, {"x": 1}])
def test_counts_that_nobody_can_have_made_are_refused(found: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"not a histogram|invalid literal|no count"):
        Histogram.from_json(found)
    figures = {"count": 1, "successes": 1, "failed_to_download": 0, "failed_to_subsample": 0, "latencies": found}
    with pytest.raises(ValueError, match=r"not a histogram|invalid literal|no count"):
        Stats.parse(orjson.dumps(figures))
