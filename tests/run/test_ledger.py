"""The ledger of a run: what it keeps of failed shards."""

from collections.abc import Collection, Iterator

from any2ds.core.reports import ShardError
from any2ds.core.rows import ShardJob
from any2ds.run.ledger import Ledger
from any2ds.run.monitor import Outlook
from any2ds.storage.lock.lease import RunLock

_SIZE = 5_000  # bytes of the rows of a job


def rows_of(number: int) -> bytes:
    return b"%05d" % number * (_SIZE // 5)


class Plan:
    """Shards of rows that nothing else has."""

    shards: Collection[int] = ()
    skipped = 0

    def __init__(self, count: int) -> None:
        self._count = count

    def jobs(self) -> Iterator[ShardJob]:
        return (ShardJob(number, rows_of(number), 10) for number in range(self._count))

    def outlook(self) -> Outlook:
        raise NotImplementedError


def failed(count: int) -> Ledger:
    """A ledger all of whose shards have failed once."""
    ledger = Ledger(Plan(count), RunLock(), 1)
    for job in ledger.jobs():
        ledger.record(ShardError(job.shard_id, "lost"))
    return ledger


def test_failed_shards_are_tried_again_with_their_rows() -> None:
    ledger = failed(8)
    retried = ledger.retry_pass()
    assert retried is not None
    assert [(job.shard_id, job.rows, job.attempt) for job in retried] == [(n, rows_of(n), 1) for n in range(8)]
    ledger.close()
    assert ledger.total.left_shards == 8
