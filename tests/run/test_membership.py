"""Who may join whom in an output folder, on a disk and on an object store, with intervals short enough to wait for."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import s3fs

from any2ds.config.options import ShareOptions
from any2ds.core.errors import LockLost, OptionError, OutputInUse
from any2ds.core.layout import member_lock
from any2ds.run.ranks import Rank, exclusive, from_environment, is_alone, joined, rank_of
from any2ds.storage.disk.staging import staging
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import Holder
from any2ds.storage.lock.owner import Owner
from any2ds.storage.lock.run_lock import JOINING, Guard, Intervals, RunLock, held, locked
from tests.support.folder import names_in

QUICK = Intervals(beat=0.1, stale=20.0, look=0.05, settle=1.0, orphans=0.3, trust=0.0)
HASTY = replace(QUICK, stale=0.3)
# No heartbeat comes between: whoever takes a lock over waits for one that was just being written, and a test does not.
STILL = replace(QUICK, beat=1000.0)
ELSEWHERE = Owner("elsewhere", 12, "another kernel", "pid:[1]", "34")
DEAD = replace(Owner.here(), born="12")


def rank(number: int, size: int = 2) -> Rank:
    member = rank_of(ShareOptions(number, size))
    assert member is not None
    return member


def record(owner: Owner, command: str, beat: int = 0) -> bytes:
    return Holder("0" * 32, command, time.time(), owner, beat).to_bytes()


@pytest.fixture(params=["folder", "store"])
def out(request: pytest.FixtureRequest, tmp_path: Path, s3_server: None) -> Iterator[OutputFolder]:
    if request.param == "folder":
        (tmp_path / "out").mkdir()
        yield OutputFolder(str(tmp_path / "out"))
        return
    fs = s3fs.S3FileSystem()
    fs.mkdir("members")
    yield OutputFolder("s3://members/out")
    fs.rm("members", recursive=True)


@contextlib.contextmanager
def at_work(out: OutputFolder, member: Rank, intervals: Intervals = QUICK) -> Iterator[RunLock]:
    with joined(out, member, intervals) as lock:
        with exclusive(out, lock, "join", member, intervals):
            pass
        yield lock


def put(out: OutputFolder, member: Rank, owner: Owner, command: str = "") -> None:
    out.write(member_lock(member.name), record(owner, command or str(member)))


# --- what a rank is ---


def test_each_shard_is_of_one_rank() -> None:
    members = [rank(number, 3) for number in range(3)]
    for shard_id in range(10):
        assert [member.makes(shard_id) for member in members].count(True) == 1
    assert rank_of(ShareOptions()) is None
    assert rank_of(ShareOptions(None, 1)) is None
    assert str(members[1]) == "rank 1 of 3"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (ShareOptions(1, None), "rank is given and world_size is not"),
        (ShareOptions(None, 4), "world_size is given and rank is not"),
        (ShareOptions(4, 4), "invalid rank=4: with world_size=4 ranks go from 0 to 3"),
        (ShareOptions(1, 1), "invalid rank=1"),
    ],
)
def test_half_a_share_is_refused(share: ShareOptions, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        rank_of(share)


SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("share", "variables", "expected"),
    [
        (ShareOptions(), {**SLURM, "SLURM_STEP_ID": "0"}, (3, 8)),
        (ShareOptions(), SLURM, None),  # a batch script
        (ShareOptions(), {**SLURM, "SLURM_STEP_ID": "batch"}, None),
        (ShareOptions(), {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, None),
        (ShareOptions(), {"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        (ShareOptions(), {"RANK": "", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {"RANK": "one", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {"RANK": "1"}, None),
        (ShareOptions(), {**KUBERNETES, "WORLD_SIZE": "8"}, (5, 8)),
        (ShareOptions(None, 6), KUBERNETES, (5, 6)),
        (ShareOptions(None, 16), {**SLURM, "SLURM_STEP_ID": "0"}, (3, 16)),
        (ShareOptions(0, 2), {"RANK": "1", "WORLD_SIZE": "4"}, None),
        (ShareOptions(None, 1), {"RANK": "1", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {}, None),
    ],
)
def test_rank_and_world_size_from_the_environment(
    share: ShareOptions, variables: Mapping[str, str], expected: tuple[int, int] | None
) -> None:
    found, word = from_environment(share, variables)
    assert found == ({} if expected is None else {"rank": expected[0], "world_size": expected[1]})
    assert bool(word) == (expected is not None)


def test_an_index_that_says_nothing_of_how_many_there_are_is_told() -> None:
    found, word = from_environment(ShareOptions(), KUBERNETES)
    assert found == {}
    assert "give --world_size=" in word


# --- who may come in ---


def test_members_are_at_work_together_and_leave_nothing(out: OutputFolder) -> None:
    with at_work(out, rank(0)), at_work(out, rank(1)):
        assert set(out.names_like(".any2ds/lock")) >= {member_lock("rank-0-of-2"), member_lock("rank-1-of-2")}
        assert ".any2ds/lock" not in names_in(out)
    assert out.names() == []


def test_a_rank_is_there_once(out: OutputFolder) -> None:
    with (
        at_work(out, rank(0)),
        pytest.raises(OutputInUse, match=r"in use by another run \(.*rank 0 of 2, process"),
        joined(out, rank(0), QUICK),
    ):
        raise AssertionError


def test_who_wants_the_folder_alone_and_members_refuse_each_other(out: OutputFolder) -> None:
    with at_work(out, rank(0)), pytest.raises(OutputInUse, match=r"rank 0 of 2, process"), locked(out, "retry", QUICK):
        raise AssertionError
    with (
        locked(out, "download", QUICK),
        pytest.raises(OutputInUse, match=r"\(download"),
        at_work(out, rank(0)),
    ):
        raise AssertionError
    assert out.names() == []


def test_who_has_not_joined_is_not_in_the_way_and_is_refused_then(out: OutputFolder) -> None:
    with joined(out, rank(0), QUICK) as lock:
        with (
            locked(out, "download", QUICK),
            pytest.raises(OutputInUse, match=r"\(download"),
            exclusive(out, lock, "join", rank(0), QUICK),
        ):
            raise AssertionError
        with at_work(out, rank(0, 5)):  # another size
            pass
        with exclusive(out, lock, "join", rank(0), QUICK):
            pass
    assert out.names() == []


def test_those_that_share_it_out_in_another_way_are_refused_until_the_others_have_ended(out: OutputFolder) -> None:
    with at_work(out, rank(0)), pytest.raises(OutputInUse, match=r"rank 0 of 2, process"), at_work(out, rank(0, 3)):
        raise AssertionError
    put(out, rank(1), DEAD)
    with at_work(out, rank(0, 3)):
        assert member_lock("rank-1-of-2") not in names_in(out)


def test_members_of_machines_that_are_gone_are_watched_and_removed(out: OutputFolder) -> None:
    put(out, rank(1), ELSEWHERE)
    put(out, rank(0), ELSEWHERE, f"{JOINING}rank 0 of 2")
    with locked(out, "download", HASTY):
        assert member_lock("rank-1-of-2") not in names_in(out)
        assert member_lock("rank-0-of-2") in names_in(out)  # it may still want to, and will be refused
    put(out, rank(1), ELSEWHERE)
    stop = threading.Event()

    def beat() -> None:
        count = 0
        while not stop.wait(0.05):
            count += 1
            out.write(member_lock("rank-1-of-2"), record(ELSEWHERE, "rank 1 of 2", count))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(OutputInUse, match="process 12 on elsewhere"), locked(out, "download", QUICK):
            raise AssertionError
    finally:
        stop.set()
        thread.join()


def test_a_dead_rank_is_succeeded_at_once_and_so_is_one_that_died_while_joining(out: OutputFolder) -> None:
    never = replace(QUICK, stale=1000.0)
    put(out, rank(0), DEAD)
    out.write(".any2ds/lock", record(DEAD, "join"))
    with at_work(out, rank(0), never):
        pass
    assert out.names() == []


def test_who_joins_waits_for_others_that_do(out: OutputFolder) -> None:
    order = []
    with joined(out, rank(0), QUICK) as lock, joined(out, rank(1), QUICK) as other:

        def join() -> None:
            with exclusive(out, other, "join", rank(1), QUICK):
                order.append(1)

        thread = threading.Thread(target=join)
        with exclusive(out, lock, "join", rank(0), QUICK):
            thread.start()
            assert is_alone(out, rank(0), QUICK)  # the other is none yet
            order.append(0)
        thread.join(100)
        assert order == [0, 1]
        with exclusive(out, lock, "finish", rank(0), QUICK):
            assert not is_alone(out, rank(0), QUICK)


def test_who_lost_the_folder_while_joining_is_told(out: OutputFolder) -> None:
    with (
        pytest.raises(LockLost),
        joined(out, rank(0), STILL) as lock,
        exclusive(out, lock, "join", rank(0), STILL),
    ):
        out.fs.pipe_file(f"{out.path}/.any2ds/lock", record(ELSEWHERE, "download"))
    assert out.names_like(".any2ds/lock-rank") == []


def test_what_a_dead_member_leaves_is_removed_by_the_last_one_and_by_who_has_the_folder(out: OutputFolder) -> None:
    for step in ("finish", "alone"):
        put(out, rank(1), DEAD)
        out.write(".any2ds/probe-0123abcd", b"any2ds")
        if out.is_local:
            (Path(out.path) / ".any2ds/lock-rank-1-of-2.flock").touch()
            (Path(out.path) / ".any2ds/lock-rank-2-of-4.flock").touch()  # killed before it had written the other one
        if step == "alone":
            with locked(out, "finish", QUICK):
                assert out.names_like(".any2ds/lock-rank") == []
        else:
            with at_work(out, rank(0)) as lock, exclusive(out, lock, "finish", rank(0), QUICK):
                pass
        assert out.names() == []


def test_processes_of_a_dead_run_are_waited_for_by_who_joins_and_those_of_members_are_not(out: OutputFolder) -> None:
    with at_work(out, rank(1)), staging(out.staging_root, out.identity, "rank-1-of-2"), at_work(out, rank(0)):
        pass
    for of in ("", "rank-1-of-2"):  # whose lock file is not there
        with (
            staging(out.staging_root, out.identity, of),
            pytest.raises(OutputInUse, match="not all of its processes"),
            at_work(out, rank(0)),
        ):
            raise AssertionError


def test_a_member_whose_lock_file_is_removed_publishes_nothing(out: OutputFolder) -> None:
    with at_work(out, rank(0), STILL) as lock:
        guard = Guard(out, lock.locks, STILL)
        guard()
        out.fs.rm_file(f"{out.path}/{member_lock('rank-0-of-2')}")
        with pytest.raises(LockLost, match="was removed"):
            guard()


def test_what_a_member_says_does_not_give_away_its_lock(out: OutputFolder) -> None:
    with held(out, ".any2ds/lock-a", "one", intervals=QUICK) as lock:
        for number in range(20):  # while its heart beats
            lock.set_command(f"{number}")
            found = Holder.parse(out.read(".any2ds/lock-a") or b"")
            assert found is not None
            assert found.command == f"{number}"
            Guard(out, lock.locks, QUICK)()
