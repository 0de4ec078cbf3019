"""Real runs over loopback that are made slow in one way each say what it is that makes them slow."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from any2ds.config.options import Config
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Facts, Reporter
from any2ds.testing.server import Server, serve
from tests.support.dns import serve_dns
from tests.support.s3 import enter, serve_buckets

BODY = b"some text, and more of it\n" * 400


class Verdict(NamedTuple):
    """What limits a run, and the message for a person."""

    limit: str
    message: str


class Recorder(Reporter):
    """Keeps the progress that it is told of."""

    def __init__(self) -> None:
        self.seen: list[Facts] = []

    def report(self, event: str, facts: Facts) -> None:
        if event == "progress":
            self.seen.append(facts)


class Runs:
    def __init__(self, folder: Path, server: Server, recorder: Recorder) -> None:
        self.folder, self.server, self._recorder = folder, server, recorder

    def limit(self, rows: Any, **options: Any) -> Verdict:
        """What was said most often to limit it."""
        usual = {"distributor": "inline", "output_folder": str(self.folder / "out"), "dedupe": "none", "retries": 0}
        usual["output_format"] = "webdataset"
        rows = [{"url": url} for url in rows] if isinstance(rows, list) else rows
        config = Config.from_options({"url_list": rows, "quiet": True, "report": False, **usual, **options})
        report = make_dataset(config, more=[self._recorder])
        assert report.successes == report.count
        last = self._recorder.seen[-1]
        assert last["rows"] == report.count
        assert last["attempts"] >= report.attempts > 0
        said = [Verdict(each["limit"], each["limit_words"]) for each in self._recorder.seen if each["limit"]]
        (limit, _), *_ = Counter(verdict.limit for verdict in said).most_common(1)
        found = [verdict for verdict in said if verdict.limit == limit]
        return found[len(found) // 2]  # in the middle of it

    def urls(self, name: str, count: int) -> list[str]:
        return [self.server.url(name)] * count


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    recorder = Recorder()
    site = tmp_path / "site"
    site.mkdir()
    for name in ("a.txt", "slow.txt", "flow.txt", "silent.txt"):
        (site / name).write_bytes(BODY)
    (site / "big.bin").write_bytes(bytes(range(256)) * (1 << 15))
    script = {
        "slow.txt": ["slow:0.2"],
        "flow.txt": ["flow:0.3"],
        "silent.txt": ["ok"] * 10 + ["hold"],
    }
    with serve(site, script) as server:
        yield Runs(tmp_path, server, recorder)


def test_servers_that_take_long_to_answer_ask_for_more_places(runs: Runs) -> None:
    verdict = runs.limit(runs.urls("slow.txt", 60), thread_count=4)
    assert verdict.limit == "nothing"
    assert "--thread_count" in verdict.message


def test_bodies_that_come_slowly_are_the_network(runs: Runs) -> None:
    verdict = runs.limit(runs.urls("flow.txt", 32), thread_count=4)
    assert verdict.limit == "bodies"
    assert "B/s in all" in verdict.message


def test_a_host_that_may_be_asked_now_and_then_only(runs: Runs) -> None:
    verdict = runs.limit(runs.urls("a.txt", 120), host_delay=0.05)
    assert verdict.limit == "hosts"
    assert "127.0.0.1" in verdict.message


def test_name_servers_that_take_long(runs: Runs) -> None:
    names = [f"h{number}.test" for number in range(36)]
    port = runs.server.base_url.rpartition(":")[2].strip("/")
    with serve_dns({name: ["delay:0.3 a:127.0.0.1"] for name in names}) as dns:
        verdict = runs.limit([f"http://{name}:{port}/a.txt" for name in names], thread_count=4, nameservers=dns.address)
    assert verdict.limit == "dns"
    assert "--nameservers" in verdict.message


@pytest.mark.slow
def test_a_store_that_takes_long(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_buckets() as new_bucket, ExitStack() as stack:
        bucket = new_bucket()
        enter(bucket, monkeypatch)
        stack.enter_context(bucket.slow("PUT", 0.08))
        verdict = runs.limit(runs.urls("a.txt", 45), output_folder=bucket.url, number_sample_per_shard=5)
    assert verdict.limit == "store"


@pytest.mark.slow
def test_a_list_that_takes_long(runs: Runs) -> None:
    schema = pa.schema([("url", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(120):  # long enough for several verdicts before its end
            time.sleep(0.05)
            yield pa.record_batch([[runs.server.url("a.txt")]], schema=schema)

    verdict = runs.limit(pa.RecordBatchReader.from_batches(schema, batches()), number_sample_per_shard=10)
    assert verdict.limit == "rows"
    assert "The url list" in verdict.message


@pytest.mark.slow
def test_a_process_that_is_always_busy(runs: Runs) -> None:
    verdict = runs.limit(
        runs.urls("big.bin", 240),
        distributor="multiprocessing",
        processes_count=1,
        compute_hash="sha512",
        output_format="dummy",
    )
    assert verdict.limit == "cpu"
    assert "CPU" in verdict.message
