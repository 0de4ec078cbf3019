"""The ledger of a run: what it keeps of failed shards."""

from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any

from any2ds.core.reports import ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.run.ledger import Ledger
from any2ds.run.monitor import Outlook

LOCK: Any = SimpleNamespace(check=lambda: None)
_SIZE = 5_000  # bytes of the rows of a job


def rows_of(number: int) -> bytes:
    return b"%05d" % number * (_SIZE // 5)


class Plan:
    """Shards of rows that nothing else has."""

    finished: Collection[int] = ()
    shards: Collection[int] = ()
    skipped = 0

    def __init__(self, count: int) -> None:
        self._count = count

    def jobs(self) -> Iterator[ShardJob]:
        return (ShardJob(number, rows_of(number), 10) for number in range(self._count))

    def outlook(self) -> Outlook:
        raise NotImplementedError


def pull(ledger: Ledger, made_again: Collection[int] = ()) -> list[list[tuple[int, bytes, int]]]:
    """The jobs of each pass, all of which fail but those of the shards that are `made_again`."""
    passes = []
    for jobs in ledger.passes():
        pulled = list(jobs)
        for job in pulled:
            is_made = job.attempt > 0 and job.shard_id in made_again
            ledger.record(ShardReport(shard_id=job.shard_id) if is_made else ShardError(job.shard_id, "lost"))
        passes.append([(job.shard_id, job.rows, job.attempt) for job in pulled])
    return passes


def test_failed_shards_are_tried_again_with_their_rows() -> None:
    ledger = Ledger(Plan(8), LOCK, 2)
    assert pull(ledger) == [[(n, rows_of(n), attempt) for n in range(8)] for attempt in range(3)]
    assert [error.shard_id for error in ledger.total.failed_shards] == list(range(8))


def test_many_failed_shards_are_tried_again_only_if_the_first_of_them_are_made() -> None:
    assert [len(jobs) for jobs in pull(Ledger(Plan(20), LOCK, 5))] == [20, 10]
    all_made = pull(Ledger(Plan(20), LOCK, 5), made_again=range(20))
    assert [len(jobs) for jobs in all_made] == [20, 10, 10]
