"""What processes let each other know of transfers that outlast their turns: on a disk and on S3."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from any2ds.config.options import StorageOptions
from any2ds.core import layout
from any2ds.fetch import overtime
from any2ds.fetch.overtime import Overtime
from any2ds.storage.folders import OutputFolder
from any2ds.testing.processes import wait_until
from tests.support.s3 import serve_buckets

Places = Callable[[], OutputFolder]


@pytest.fixture(params=["disk", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    if request.param == "disk":
        yield lambda: OutputFolder.at(str(tmp_path), StorageOptions())
        return
    with serve_buckets() as new_bucket:
        bucket = new_bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()  # those of other tests know another server
        yield lambda: OutputFolder.at(bucket.url, StorageOptions())


@pytest.fixture
def new(output: Places) -> Iterator[Callable[[], Overtime]]:
    made: list[Overtime] = []

    def new() -> Overtime:
        made.append(Overtime(output))
        return made[-1]

    yield new
    for each in made:
        each.close()


def announce(process: Overtime, slots: frozenset[str]) -> None:
    process.announce(slots)
    wait_until(lambda: process.announced(time.time()) == slots)


def seen(process: Overtime) -> frozenset[str]:
    since = time.time()
    wait_until(lambda: process.of_others(since) is not None)
    found = process.of_others(since)
    assert found is not None
    return found


def names(output: Places) -> list[str]:
    return output().names(layout.OVERTIME_FOLDER)


def test_others_see_what_a_process_has_announced_until_it_is_over(new: Callable[[], Overtime], output: Places) -> None:
    first, second, third = new(), new(), new()
    assert seen(third) == frozenset()
    many = frozenset(f"{number:04d}" for number in range(150))  # more than a name has room for
    announce(first, many)
    announce(second, frozenset({"abcd"}))
    assert seen(third) == many | {"abcd"}
    assert seen(second) == many
    announce(first, many | {"more"})
    assert seen(third) == many | {"abcd", "more"}
    announce(first, frozenset({"0001"}))
    assert seen(third) == {"0001", "abcd"}
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
    monkeypatch.setattr(overtime, "_RENEWED", 0.0)  # nobody renews it
    killed, other = new(), new()
    announce(killed, frozenset({"abcd"}))
    assert seen(other) == {"abcd"}
    monkeypatch.setattr(overtime, "CLOCKS", -overtime._LIFE)  # so much later
    wait_until(lambda: seen(other) == frozenset())
    wait_until(lambda: names(output) == [])


def test_an_announcement_is_renewed_as_long_as_it_is_wanted(
    new: Callable[[], Overtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overtime, "_LIFE", 1.0)
    process, other = new(), new()
    announce(process, frozenset({"abcd"}))
    first = process._files.until
    wait_until(lambda: process._files.until > first + 2)
    assert process.announced(time.time()) == {"abcd"}
    assert seen(other) == {"abcd"}


def test_nothing_is_announced_or_known_while_the_folder_is_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    process = Overtime(lambda: OutputFolder.at(str(tmp_path / "file"), StorageOptions()))
    process.announce(frozenset({"abcd"}))
    assert process.of_others(time.time()) is None
    wait_until(lambda: process._thread is not None)
    (tmp_path / "file").unlink()  # and then it can be made
    wait_until(lambda: process.announced(time.time()) == {"abcd"})
    process.close()
    assert not list(tmp_path.glob("file/.any2ds/work/*"))
