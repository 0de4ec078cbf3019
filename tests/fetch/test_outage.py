"""The network goes away in the middle of a run, over real sockets: no row is lost to it."""

import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import NetworkDown
from any2ds.core.failures import Failure
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.testing.server import serve
from tests.support.cable import Cable, cable_to
from tests.support.fetching import rows_of
from tests.support.params import sampled

OUTAGE = 7.0  # seconds


def fetch_while(cable: Cable, urls: list[str], how: str, seconds: float, **options: float) -> list[Fetched]:
    chosen = Config.from_options({"url_list": "-", "timeout": 3, "connect_timeout": 2, "thread_count": 32}).fetch
    chosen = replace(chosen, **options)
    found: list[Fetched] = []
    plug = threading.Timer(seconds, cable.plug)
    with (
        closing(Buffer(chosen.max_buffered_bytes, 32)) as buffer,
        closing(UrlFetcher(chosen, buffer)) as fetcher,
    ):
        try:
            for batch in fetcher.fetch(rows_of(urls)):
                for fetched in batch:
                    found.append(fetched)
                    if isinstance(fetched.outcome, Payload):
                        fetched.outcome.body.release()
                    if len(found) == 100:
                        cable.pull(how)
                        plug.start()
        finally:
            plug.cancel()
    return found


@pytest.mark.parametrize("how", sampled(["refuse", "hang"]))
def test_an_outage_loses_no_row(tmp_path: Path, how: str) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + bytes(5000))
    with serve(tmp_path, {"a.jpg": ["slow:0.02"]}) as server, cable_to("127.0.0.1", server.port) as cable:
        urls = [f"http://127.0.0.1:{cable.port}/a.jpg?{number}" for number in range(1000)]
        urls += [f"http://127.0.0.1:{cable.port}/missing?{number}" for number in range(10)]
        before = time.monotonic()
        found = fetch_while(cable, urls, how, OUTAGE)
        assert time.monotonic() - before > OUTAGE  # or there was none
    outcomes = {fetched.row.position: fetched.outcome for fetched in found}
    assert len(found) == len(outcomes) == len(urls)
    lost = [outcome for position, outcome in outcomes.items() if position < 1000 and isinstance(outcome, Failure)]
    assert lost == []
    assert max(fetched.attempts for fetched in found) > 1  # though there are no retries


@pytest.mark.slow
def test_an_outage_without_end_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + bytes(5000))
    with serve(tmp_path, {}) as server, cable_to("127.0.0.1", server.port) as cable:
        urls = [f"http://127.0.0.1:{cable.port}/a.jpg?{number}" for number in range(1000)]
        with pytest.raises(NetworkDown, match="nothing has answered"):
            fetch_while(cable, urls, "hang", 60.0, outage_patience=6)


def test_hosts_that_are_down_are_no_outage(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + bytes(5000))
    with serve(tmp_path, {"hang": ["timeout"]}) as server:
        urls = [server.url("a.jpg") + f"?{number}" for number in range(300)]
        urls += [server.url("hang") + f"?{number}" for number in range(20)]
        urls += [f"http://127.0.0.1:1/{number}" for number in range(300)]
        chosen = Config.from_options({"url_list": "-", "timeout": 3, "thread_count": 64}).fetch
        chosen = replace(chosen, outage_patience=1)
        with closing(Buffer(1 << 30, 64)) as buffer, closing(UrlFetcher(chosen, buffer)) as fetcher:
            found = [fetched for batch in fetcher.fetch(rows_of(urls)) for fetched in batch]
            codes = [getattr(fetched.outcome, "code", "ok") for fetched in sorted(found, key=lambda f: f.row.position)]
    assert codes == ["ok"] * 300 + ["timeout_total"] * 20 + ["connect"] * 300


@pytest.mark.slow
def test_silent_and_slow_rows_at_the_end_of_a_list_are_no_outage(tmp_path: Path) -> None:
    for name in ("a.jpg", "slow.jpg"):
        (tmp_path / name).write_bytes(b"\xff\xd8" + bytes(5000))
    with serve(tmp_path, {"hang": ["timeout"], "slow.jpg": ["slow:4.5"]}) as server:
        names = ["a.jpg"] * 200 + ["hang"] * 12 + ["slow.jpg"] * 20
        chosen = Config.from_options({"url_list": "-", "thread_count": 64}).fetch
        with closing(Buffer(1 << 30, 64)) as buffer, closing(UrlFetcher(chosen, buffer)) as fetcher:
            urls = [f"{server.url(name)}?{number}" for number, name in enumerate(names)]
            found = [fetched for batch in fetcher.fetch(rows_of(urls)) for fetched in batch]
    failed = {fetched.row.position for fetched in found if isinstance(fetched.outcome, Failure)}
    assert failed == set(range(200, 212))
    assert all(fetched.attempts == 1 for fetched in found)


def test_a_host_without_a_name_is_no_outage_though_its_robots_txt_waits(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + bytes(5000))
    with serve(tmp_path, {}) as server:
        chosen = Config.from_options({"url_list": "-", "timeout": 2, "thread_count": 8, "robots": "respect"}).fetch
        with closing(Buffer(1 << 30, 8)) as buffer, closing(UrlFetcher(chosen, buffer)) as fetcher:
            urls = ["http://127.0.0.1:1/x", "http://127.0.0.1:1/y", server.url("a.jpg"), "http://127.0.0.1:1/z"]
            found = [fetched for batch in fetcher.fetch(rows_of(urls)) for fetched in batch]
    codes = {fetched.row.position: getattr(fetched.outcome, "code", "ok") for fetched in found}
    assert codes == {0: "connect", 1: "connect", 2: "ok", 3: "connect"}
