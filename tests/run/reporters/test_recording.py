"""What jsonl, tensorboard and prometheus record of whole runs, read by the libraries that it is for."""

import json
import logging
import socket
import sys
import threading
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import any2ds
from any2ds import download, retry
from any2ds.config.options import WatchOptions
from any2ds.core.errors import OptionError
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters.prometheus import Prometheus
from any2ds.storage.folders import OutputFolder, StorageOptions
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in

PICTURES = Path(__file__).parents[3] / "examples" / "data" / "images"
NAMES = sorted(path.name for path in PICTURES.glob("bars-0*.jpg"))[:4]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(PICTURES) as server:
        yield server


def made(server: Server, folder: Any, **options: Any) -> RunReport:
    defaults = {"output_format": "webdataset", "number_sample_per_shard": 3, "log_interval": 0.1, "log_level": "info"}
    urls = [server.url(name) for name in (*NAMES, "missing")]
    report = download(urls, output_folder=folder, distributor="inline", quiet=True, **{**defaults, **options})
    assert isinstance(report, RunReport)
    return report


def lines(folder: Path) -> list[list[dict[str, Any]]]:
    files = sorted((folder / ".any2ds/progress").iterdir())
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_jsonl_tells_of_each_run_and_the_folder_stays_a_dataset(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made(server, out, reporters="jsonl,tensorboard", headers="X-Key: hunter2")
    retry(out, codes="all", distributor="inline", quiet=True, reporters="jsonl")
    first, second = lines(out)
    assert [line["event"] for line in first if line["event"] != "progress"] == ["start", "shard", "shard", "finish"]
    assert {line["shard_id"]: line["status_dict"] for line in first if line["event"] == "shard"} == {
        0: {"success": 3},
        1: {"success": 1, "http_404": 1},
    }
    last = [line for line in first if line["event"] == "progress"][-1]
    assert last["outcomes"] == {"success": 4, "http_404": 1}
    assert set(last) >= set(Snapshot.__dataclass_fields__)
    assert first[-1]["successes"] == 4
    assert first[0]["options"]["number_sample_per_shard"] == 3
    assert "hunter2" not in json.dumps(first)
    assert (second[0]["command"], second[-1]["count"]) == ("retry", 1)
    checked = any2ds.verify(out, quiet=True)
    assert checked.ok
    assert not checked.findings
    assert not any2ds.inspect(out).problems
    assert made(server, out).skipped_shards == 2  # a run goes on beside these files
    made(server, out, incremental_mode="overwrite")  # and they go with the dataset of which they tell
    assert not {".any2ds/progress", ".any2ds/tensorboard"} & names_in(out)


def test_jsonl_in_a_store_is_objects(server: Server, s3_server: None) -> None:
    from s3fs import S3FileSystem

    S3FileSystem().mkdir("bucket-of-progress")
    made(server, "s3://bucket-of-progress/out", reporters="jsonl")
    store = S3FileSystem(use_listings_cache=False)
    (name,) = store.ls("bucket-of-progress/out/.any2ds/progress")
    reported = [json.loads(line)["event"] for line in store.cat_file(name).splitlines()]
    assert (reported[0], reported[-1]) == ("start", "finish")


def scalars(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Or it would import TensorFlow where that is installed.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_tensorboard_reads_what_is_written_for_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, there = tmp_path / "out", "tensorflow" in sys.modules
    made(server, out, reporters="tensorboard")
    made(server, tmp_path / "other", reporters="tensorboard", tensorboard_dir=tmp_path / "board")
    (out / "00001_stats.json").unlink()
    made(server, out, reporters="tensorboard")
    assert ("tensorflow" in sys.modules) == there  # libcurl does not go with it
    found = scalars(out / ".any2ds/tensorboard", monkeypatch)
    rows = found.Scalars("live/rows")
    steps = [value.step for value in rows]
    assert steps == sorted(set(steps))
    assert rows[-1].value == 2
    assert 5 in [value.value for value in rows]
    assert found.Scalars("live/success_ratio")[-1].value == 0.5
    assert found.Scalars("outcomes/http_404")[-1].value == 1
    assert scalars(tmp_path / "board", monkeypatch).Scalars("live/rows")[-1].value == 5
    assert not (tmp_path / "other" / ".any2ds/tensorboard").exists()


def scraped(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    started: list[Prometheus] = []

    def start(port: int) -> Prometheus:
        output = OutputFolder(str(tmp_path / "out"))
        run = RunInfo("download", output, {}, StorageOptions(), output.identity)
        started.append(Prometheus(WatchOptions(metrics_port=port), run))
        return started[-1]

    yield start
    for reporter in started:
        reporter.cancel()


def test_prometheus_gets_the_newest_figures_by_its_own_conventions(prometheus: Any) -> None:
    reporter = prometheus(0)
    reporter.on_start(0)
    assert scraped(reporter.port)["any2ds_stored_bytes_total", ""] == 0
    now = Snapshot(2.0, {"success": 7, "http_404": 2}, bytes=70, received=100, attempts=11, latency_p50=0.25, share=0.5)
    reporter.on_progress(now)
    found = scraped(reporter.port)
    assert found["any2ds_rows_total", "success"] == 7
    assert found["any2ds_rows_total", "http_404"] == 2
    assert (found["any2ds_stored_bytes_total", ""], found["any2ds_received_bytes_total", ""]) == (70, 100)
    assert found["any2ds_attempts_total", ""] == 11
    assert found["any2ds_latency_seconds", "0.5"] == 0.25
    assert ("any2ds_latency_seconds", "0.95") not in found  # nobody knows
    assert found["any2ds_done_ratio", ""] == 0.5
    assert ("any2ds_remaining_seconds", "") not in found
    reporter.on_progress(Snapshot(3.0, {"success": 5}))  # of a shard that failed; counters do not fall
    assert scraped(reporter.port)["any2ds_rows_total", "success"] == 7
    assert not [
        name for name, _ in found if name.startswith(("python_", "process_"))
    ]  # of the process, whose it is not


def test_prometheus_asks_during_a_run_and_the_port_is_free_afterwards(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Waiting(logging.Handler):
        """Asks as soon as it hears where."""

        found: Any = None

        def emit(self, record: logging.LogRecord) -> None:
            if "Prometheus" in record.getMessage():
                self.port = int(record.getMessage().rpartition(":")[2].partition("/")[0])
                self.found = scraped(self.port)

    handler = Waiting()
    logging.getLogger("any2ds").addHandler(handler)
    try:
        made(server, tmp_path / "out", metrics_port=0)
    finally:
        logging.getLogger("any2ds").removeHandler(handler)
    assert handler.found["any2ds_run_info", f"download,{any2ds.__version__}"] == 1
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("0.0.0.0", handler.port))
    assert not [thread for thread in threading.enumerate() if thread.name == "any2ds-prometheus"]


def test_a_port_in_use_is_refused_before_anything_is_made(server: Server, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OptionError, match=f"metrics_port={port} is not available: .*choose another one, or 0"):
            made(server, tmp_path / "out", metrics_port=port)
    assert not (tmp_path / "out").exists()
