"""What processes let each other know of transfers that outlast their turns: on a disk and on S3."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from any2ds.core import layout
from any2ds.fetch import overtime
from any2ds.fetch.overtime import Overtime
from any2ds.fetch.policy.share import LONGEST_REQUEST
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import ONCE
from any2ds.storage.stores import Stores
from any2ds.testing.processes import wait_until
from tests.support.s3 import Bucket, enter, serve_buckets

Places = Callable[[], OutputFolder]


def places(url: str) -> Places:
    return lambda: open_folder(url, stores=Stores(patience=ONCE))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with serve_buckets() as new_bucket:
        found = new_bucket()
        enter(found, monkeypatch)
        yield found


@pytest.fixture(params=["disk", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    (tmp_path / "out" / layout.STATE_FOLDER).mkdir(parents=True)
    if request.param == "disk":
        yield places(str(tmp_path / "out"))
    else:
        yield places(request.getfixturevalue("bucket").url)


@pytest.fixture
def new(output: Places, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Overtime]]:
    monkeypatch.setattr(overtime, "LONGEST_REQUEST", 60.0)  # a busy machine is not a slow store
    made: list[Overtime] = []

    def new() -> Overtime:
        made.append(Overtime(output))
        return made[-1]

    yield new
    for each in made:
        each.close()


def announce(process: Overtime, slots: frozenset[str]) -> None:
    process.announce(slots)
    wait_until(lambda: process.announced() == slots)


def seen(process: Overtime) -> frozenset[str]:
    since = time.monotonic()
    wait_until(lambda: process.of_others(time.monotonic() - since) is not None)
    found = process.of_others(time.monotonic() - since)
    assert found is not None
    return found


def names(output: Places) -> list[str]:
    return output().names(layout.OVERTIME_FOLDER)


def test_others_see_what_a_process_has_announced_until_it_is_over(new: Callable[[], Overtime], output: Places) -> None:
    first, second, third = new(), new(), new()
    assert seen(third) == frozenset()
    many = frozenset(f"{number:04d}" for number in range(50))  # more than a name has room for
    announce(first, many)
    announce(second, frozenset({"abcd"}))
    assert seen(third) == many | {"abcd"}
    assert seen(second) == many
    written = len(names(output))
    announce(first, many | {"more"})
    assert seen(third) == many | {"abcd", "more"}
    assert len(names(output)) == written + 1  # those that were there have stayed
    announce(first, frozenset({"0001"}))
    wait_until(lambda: seen(third) == {"0001", "abcd"})
    announce(first, frozenset())
    wait_until(lambda: seen(third) == {"abcd"})
    second.close()
    assert seen(third) == frozenset()
    first.close()
    third.close()
    assert names(output) == []


def test_what_a_killed_process_has_left_counts_for_a_while(
    new: Callable[[], Overtime], output: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other = new(), new()
    announce(killed, frozenset({"abcd"}))
    assert seen(other) == {"abcd"}
    monkeypatch.setattr(overtime, "CLOCKS", -overtime._LIFE)  # so much later
    wait_until(lambda: seen(other) == frozenset())
    wait_until(lambda: names(output) == [])


def test_an_announcement_is_renewed_as_long_as_it_is_wanted(
    new: Callable[[], Overtime], output: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overtime, "_LIFE", 2.0)
    process, other = new(), new()
    announce(process, frozenset({"abcd"}))
    (first,) = names(output)
    wait_until(lambda: names(output) not in ([first], []) and first not in names(output))
    wait_until(lambda: seen(other) == {"abcd"})
    assert process.announced() == {"abcd"}


def test_a_clock_that_is_far_ahead_blocks_nobody(new: Callable[[], Overtime], output: Places) -> None:
    output().create_folder(layout.OVERTIME_FOLDER)
    until = round((time.time() + 3600) * 1000)
    output().write(f"{layout.OVERTIME_FOLDER}/{until}.0123456789ab.1.abcd", b"any2ds")
    assert seen(new()) == frozenset()


def test_a_folder_that_is_gone_is_not_made_anew_and_keeps_nobody_from_fetching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    process = Overtime(places(str(tmp_path / "gone")))
    process.announce(frozenset({"abcd"}))
    wait_until(lambda: process.announced() == {"abcd"})
    assert seen(process) == frozenset()
    assert not (tmp_path / "gone").exists()
    (tmp_path / "gone" / layout.STATE_FOLDER).mkdir(parents=True)
    wait_until(lambda: len(names(places(str(tmp_path / "gone")))) == 1)
    process.close()
    assert not list(tmp_path.glob("gone/.any2ds/*"))
    warned = [record for record in caplog.records if "--max_per_host" in record.message]
    assert [record.levelno for record in warned[:1]] == [logging.WARNING]
    assert not [record for record in warned[1:] if record.levelno > logging.DEBUG]


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_store_that_is_slow_or_refuses_keeps_nobody_from_fetching(bucket: Bucket, method: str) -> None:
    process = Overtime(places(bucket.url))
    announce(process, frozenset({"0001"}))
    assert seen(process) == frozenset()
    with bucket.slow(method, LONGEST_REQUEST + 0.5):
        process.announce(frozenset({"0001", "abcd"}))
        since = time.monotonic()
        process.of_others(0.0)
        wait_until(lambda: process.announced() == {"0001", "abcd"})
        assert process.of_others(time.monotonic() - since) == frozenset()
    process.close()
