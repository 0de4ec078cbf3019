"""The look at lists before the start, where a file system fails or is far away."""

from collections.abc import Sequence
from typing import Any

from any2ds.readers.contract import Columns
from any2ds.readers.inputs import File
from any2ds.readers.look import refuse_unreadable
from any2ds.storage.lists import InputFile


class Store:
    """A file system of a web server, whose first `answers` questions for a file are answered."""

    protocol = ("http", "https")

    def __init__(self, answers: int = 1_000_000) -> None:
        self.left, self.looked_at = answers, set[str]()

    def info(self, path: str) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("503, Service Unavailable")
        return {"partial": True}

    def cat_ranges(self, paths: Sequence[str], *_: Any, **__: Any) -> list[bytes]:
        self.looked_at.update(paths)
        return [b"PAR1" for _ in paths]


def files(store: Store, count: int, name: str) -> list[File]:
    paths = [f"http://host/{number}.{name}" for number in range(count)]
    return [File(InputFile(path, store, path), name) for path in paths]


def test_a_store_that_fails_meanwhile_is_told_by_reading() -> None:
    for answers in (0, 1):
        refuse_unreadable(files(Store(answers), 1, "parquet"), Columns("url"))


def test_of_many_files_far_away_a_sample_is_looked_at() -> None:
    store = Store()
    refuse_unreadable(files(store, 1_001, "txt"), Columns("url"))
    assert 150 <= len(store.looked_at) <= 200
    assert "http://host/0.txt" in store.looked_at
