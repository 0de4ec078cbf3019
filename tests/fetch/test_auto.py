"""thread_count=auto over real sockets."""

import contextlib
from pathlib import Path

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import OptionError
from any2ds.core.samples import Payload
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.testing.server import Server, serve
from tests.support.fetching import rows_of


def fetch(server: Server, count: int, most: int | None = None, path: str = "a.jpg") -> int:
    """How many of `count` rows succeed; each comes back once."""
    options = Config.from_options(
        {"url_list": "-", "thread_count": "auto", "timeout": 30, "max_per_host": 1_000_000}
    ).fetch
    good, seen = 0, set()
    buffer = Buffer(options.max_buffered_bytes, most or options.most_transfers)
    with contextlib.closing(UrlFetcher(options, buffer)) as fetcher:
        for batch in fetcher.fetch(rows_of([server.url(path)] * count)):
            for fetched in batch:
                seen.add(fetched.row.position)
                if isinstance(fetched.outcome, Payload):
                    good += 1
                    fetched.outcome.body.release()
    assert seen == set(range(count))
    assert buffer.used == 0
    return good


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff" + bytes(1000))
    return tmp_path


def test_the_window_grows_where_a_server_makes_us_wait(folder: Path) -> None:
    with serve(folder, {"a.jpg": ["slow:0.1"]}) as server:
        assert fetch(server, 4000) == 4000
        assert server.max_concurrent > 64


def test_the_window_stays_under_what_the_system_allows(folder: Path) -> None:
    with serve(folder, {"a.jpg": ["slow:0.1"]}) as server:
        assert fetch(server, 1000, most=40) == 1000
        assert 32 < server.max_concurrent <= 40


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_short_lists_end(folder: Path, count: int) -> None:
    with serve(folder) as server:
        assert fetch(server, count) == count


def test_rows_that_fail_are_told_apart(folder: Path) -> None:
    with serve(folder, {"a.jpg": ["503"]}) as server:
        assert fetch(server, 500) == 0


def test_auto_is_a_word_and_bounded_by_memory() -> None:
    def most(**options: object) -> int:
        return Config.from_options({"url_list": "-", **options}).fetch.most_transfers

    assert most(thread_count=7) == 7
    assert most(thread_count="auto", max_buffered_bytes="16MiB") == 128
    assert most(thread_count="auto") == most() == 8192
    with pytest.raises(OptionError, match="auto, or a whole number of at least 1"):
        most(thread_count="many")
