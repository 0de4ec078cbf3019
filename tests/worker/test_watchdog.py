"""Whatever gets stuck, the run ends, each row has one outcome, and what is not stuck is complete."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from any2ds.config.options import Config
from any2ds.core.processes.watchdog import Watch
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.fetch.policy.limits import process_limit, watchdog_limit
from any2ds.readers.plan import cuts
from any2ds.testing.distributing import ScriptedWorker, jobs_of
from any2ds.testing.processes import LONG, children
from any2ds.testing.server import Server, serve
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan
from tests.support.stuck import StuckFetchers

SHORT = 2  # seconds, for --watchdog_timeout


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for name in ("ok", "bad"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder


@pytest.fixture
def server(media: Path) -> Iterator[Server]:
    with serve(media) as running:
        yield running


def config_of(out: Path, **options: Any) -> Config:
    out.mkdir(exist_ok=True)
    given = {"output_format": "webdataset", "number_sample_per_shard": 5, "watchdog_timeout": SHORT, **options}
    return Config.from_options({"url_list": "-", "dedupe": "none", "output_folder": out, **given})


def jobs_for(urls: list[str], rows_per_shard: int = 5) -> Iterator[ShardJob]:
    table = pa.table({"url": urls})
    return plan(cuts(table.to_batches(), rows_per_shard), table.schema)


def work(out: Path, urls: list[str], stuck: StuckFetchers, **options: Any) -> list[Event]:
    """Make shards of five rows in one process after the other."""
    return list(run_in_processes(config_of(out, **options), jobs_for(urls), stuck))


def codes(out: Path) -> list[list[str | None]]:
    """Of the rows of each shard that is finished; each row is there once."""
    found = []
    for path in sorted(out.glob("*.parquet")):
        table = pq.read_table(path)
        keys = table["key"].to_pylist()
        assert keys == [f"{path.stem}{n:0{len(str(len(keys) - 1))}}" for n in range(len(keys))]
        stats = json.loads((out / f"{path.stem}_stats.json").read_text())
        rows = table["error_code"].to_pylist()
        assert stats["status_dict"] == dict(Counter(code or "success" for code in rows))
        found.append(rows)
    return found


def reported(events: list[Event]) -> list[int]:
    return sorted(event.shard_id for event in events if isinstance(event, ShardReport))


def told(events: list[Event]) -> dict[str, int]:
    """The outcomes of rows in all Progress together; what is taken back is subtracted."""
    outcomes = Counter[str]()
    for event in events:
        if isinstance(event, Progress):
            outcomes.update(event.outcomes)
    return dict(+outcomes)


# --- the bound ---


def fetch_options(**given: Any) -> Any:
    return Config.from_options({"url_list": "-", **given}).fetch


def test_the_bound_is_longer_than_everything_that_may_pass_in_silence() -> None:
    assert watchdog_limit(fetch_options()) == 10.5 + 60 + 120 + 15 + 30  # an attempt is looked at every 0.5 s
    assert watchdog_limit(fetch_options(timeout=1000, host_delay=500, max_retry_after=0)) == 1050 + 60 + 500 + 30
    assert watchdog_limit(fetch_options(timeout=0, total_timeout=500)) == 500 + 60 + 120 + 15 + 30
    assert watchdog_limit(fetch_options(timeout=10, total_timeout=0)) == watchdog_limit(fetch_options())
    without_total = watchdog_limit(fetch_options(timeout=0, connect_timeout=7, stall_timeout=20))
    assert without_total == 11 * (7 + 20) + 60 + 120 + 15 + 30
    assert watchdog_limit(fetch_options(timeout=0, stall_timeout=0)) < float("inf")


def test_the_bound_can_be_given_and_switched_off() -> None:
    assert watchdog_limit(fetch_options(watchdog_timeout=5)) == 5
    assert watchdog_limit(fetch_options(watchdog_timeout=0)) == process_limit(fetch_options(watchdog_timeout=0)) == 0
    assert process_limit(fetch_options(watchdog_timeout=5)) > 5


def test_only_seconds_in_which_somebody_looks_count() -> None:
    watch = Watch(3.0, now=0.0)
    assert not watch.look(0.5, "a")
    assert not watch.look(1000.0, "a")  # the machine was suspended
    assert not watch.look(1001.0, "a")
    assert watch.look(1002.0, "a")


def test_a_sign_of_life_starts_the_count_anew_and_so_does_having_nothing_to_do() -> None:
    watch = Watch(2.0, now=0.0)
    for now in range(1, 10):
        assert not watch.look(float(now), sign=now)
        assert watch.silent == 0
    for now in range(10, 20):
        assert not watch.look(float(now), sign=9, expected=False)
    assert not watch.look(20.0, sign=9)
    assert watch.look(21.0, sign=9)


def test_a_watch_without_a_limit_never_ends() -> None:
    watch = Watch(0.0, now=0.0)
    assert not any(watch.look(float(now), "a") for now in range(1000))


def test_rows_that_were_under_way_in_two_hangs_are_given_up_and_all_rows_after_the_third() -> None:
    job = ShardJob(0, b"", count=4).after_hang([1, 2])
    assert job.given_up() == {}
    job = job.after_hang([2, 3])
    assert job.given_up() == {2: "2 processes that were to fetch it got stuck"}
    assert job.attempt == 2
    assert set(job.after_hang([]).given_up()) == {0, 1, 2, 3}
    assert set(job.after_hang().given_up()) == {0, 1, 2, 3}


# --- the worker ---


# --- the fetcher ---


def test_a_fetcher_that_ends_early_is_followed_by_another(tmp_path: Path, server: Server) -> None:
    urls = [server.url("bad" if n % 6 == 5 else "ok") for n in range(50)]
    events = work(tmp_path / "out", urls, StuckFetchers(ends_at="bad"), watchdog_timeout=0)
    assert reported(events) == list(range(10))
    found = [code for shard in codes(tmp_path / "out") for code in shard]
    assert set(found) <= {None, "watchdog"}


def test_a_fetcher_that_raises_costs_the_open_shards_alone(tmp_path: Path, server: Server) -> None:
    config = config_of(tmp_path / "out", thread_count=1)
    urls = [server.url("ok")] * 7 + [server.url("bad")] + [server.url("ok")] * 2
    events: list[Event] = []
    with pytest.raises(OSError, match="had enough"):
        events.extend(ShardWorker(config.output, config.fetch, StuckFetchers(raises_at="bad"))(jobs_for(urls)))
    assert reported(events) == [0]
    assert told(events) == {"success": 5}
    assert codes(tmp_path / "out") == [[None] * 5]
    assert not (tmp_path / "out" / ".any2ds/tmp").exists()


def test_the_job_that_a_stuck_fetcher_was_waiting_for_is_done_by_the_next(tmp_path: Path, server: Server) -> None:
    first, second = jobs_for([server.url("bad"), *[server.url("ok")] * 9])
    reported_first = threading.Event()

    def jobs() -> Iterator[ShardJob]:
        yield first
        assert reported_first.wait(LONG)  # until then the first fetcher waits here
        yield second

    config = config_of(tmp_path / "out")
    done = []
    for event in run_in_processes(config, jobs(), StuckFetchers(loses="bad")):
        if isinstance(event, ShardReport):
            done.append(event.shard_id)
            reported_first.set()
    assert done == [0, 1]
    assert codes(tmp_path / "out") == [["watchdog", None, None, None, None], [None] * 5]


def test_a_list_that_makes_us_wait_is_no_reason_to_give_up(tmp_path: Path, server: Server) -> None:
    first, second = jobs_for([server.url("ok")] * 10)
    beats = threading.Semaphore(0)

    def jobs() -> Iterator[ShardJob]:
        yield first
        for _ in range(3 * SHORT * 2):  # Progress comes every half second
            assert beats.acquire(timeout=LONG)
        yield second

    config = config_of(tmp_path / "out")
    for event in ShardWorker(config.output, config.fetch)(jobs()):
        if isinstance(event, Progress):
            beats.release()
    assert codes(tmp_path / "out") == [[None] * 5] * 2


@pytest.mark.slow
def test_attempts_that_have_to_be_made_again_are_signs_of_life(tmp_path: Path, media: Path) -> None:
    with serve(media, {"ok": [*["503:Retry-After=1"] * 4, "ok"]}) as server:
        config = config_of(tmp_path / "out", watchdog_timeout=3)  # less than the four waits together
        events = list(ShardWorker(config.output, config.fetch)(jobs_for([server.url("ok")])))
    assert reported(events) == [0]
    assert codes(tmp_path / "out") == [[None]]


def test_a_hopeless_shard_is_written_without_fetching(tmp_path: Path, server: Server) -> None:
    first, second, third = jobs_for([server.url("ok")] * 15)
    hopeless = ShardJob(second.shard_id, second.rows, second.count).after_hang().after_hang()
    config = config_of(tmp_path / "out")
    events = list(ShardWorker(config.output, config.fetch)(iter([first, hopeless, third])))
    assert reported(events) == [0, 1, 2]
    assert codes(tmp_path / "out") == [[None] * 5, ["watchdog"] * 5, [None] * 5]
    assert server.counts["ok"] == 10


class SlowStore(MemoryFileSystem):
    """A store that takes files only when it is told to."""

    protocol = "slow"
    told = threading.Event()

    def put_file(self, *args: Any, **kwargs: Any) -> None:
        assert self.told.wait(LONG)
        super().put_file(*args, **kwargs)


@pytest.mark.parametrize("most_open", [512, 4])
def test_an_upload_that_takes_long_keeps_telling_that_the_process_is_alive(
    server: Server, monkeypatch: pytest.MonkeyPatch, most_open: int
) -> None:
    monkeypatch.setattr("any2ds.worker.worker.open_files.open_shards", lambda: most_open)
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    SlowStore.told.clear()
    folder = f"slow://out{most_open}"
    options = {"output_folder": folder, "output_format": "webdataset", "number_sample_per_shard": 1}
    config = Config.from_options({"url_list": "-", **options, "watchdog_timeout": SHORT})
    told = []
    for event in ShardWorker(config.output, config.fetch)(jobs_for([server.url("ok")] * 20, 1)):
        told.append(event)
        if sum(isinstance(event, Progress) for event in told) == 8:
            SlowStore.told.set()
    assert reported(told) == list(range(20))


# --- the process ---


def run_in_processes(
    config: Config, jobs: Iterator[ShardJob], stuck: StuckFetchers, processes: int = 1
) -> Iterator[Event]:
    options = Config.from_options({"url_list": "-", "processes_count": processes}).run
    return MultiprocessingDistributor(options).map(ShardWorker(config.output, config.fetch, stuck), jobs)


FROZEN_RUN = """
import json, sys
from any2ds import download
report = download(
    json.loads(sys.argv[1]),
    output_folder=sys.argv[2],
    output_format="webdataset",
    number_sample_per_shard=5,
    processes_count=int(sys.argv[3]),
    watchdog_timeout=float(sys.argv[4]),
    timeout=0,
    quiet=True,
)
print(report.count, report.successes)
"""


@contextmanager
def frozen_run(urls: list[str], out: Path, processes: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", FROZEN_RUN, json.dumps(urls), str(out), str(processes), "3"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def test_a_frozen_process_is_replaced_and_every_shard_is_complete(tmp_path: Path, media: Path) -> None:
    out = tmp_path / "out"
    with serve(media, {"bad": ["hold", "ok"]}) as server:
        urls = [server.url("bad" if n == 12 else "ok") for n in range(100)]
        with frozen_run(urls, out, 1) as running:
            server.wait_for("bad")
            for pid in children(running.pid):
                os.kill(pid, signal.SIGSTOP)
            said, logged = running.communicate(timeout=LONG)
    assert (running.returncode, said) == (0, "100 100\n"), logged
    assert "was killed; others go on with its" in logged
    assert codes(out) == [[None] * 5] * 20


@pytest.mark.slow
def test_a_process_that_never_answers_its_jobs_is_killed_until_there_is_no_hope() -> None:
    worker = ScriptedWorker(hanging=frozenset({1}), patience=3.0)  # a busy machine may be silent for a second
    distributor = MultiprocessingDistributor(Config.from_options({"url_list": "-", "processes_count": 2}).run)
    events = list(distributor.map(worker, jobs_of(6)))
    assert reported(events) == [0, 2, 3, 4, 5]
    errors = [event for event in events if isinstance(event, ShardError)]
    assert [event.shard_id for event in errors] == [1]  # this worker does not know of hopeless jobs
    assert "was killed" in errors[0].reason


def test_a_process_that_waits_for_its_disk_is_waited_for() -> None:
    worker = ScriptedWorker(seconds=6.0, patience=4.0, waiting=True)  # so that one late beat is no silence
    distributor = MultiprocessingDistributor(Config.from_options({"url_list": "-", "processes_count": 1}).run)
    events = list(distributor.map(worker, jobs_of(1)))
    assert reported(events) == [0]
