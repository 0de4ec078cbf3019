"""Two commands that are started on one folder at random moments: never do both write."""

import fcntl
import random
from pathlib import Path

import pytest

from tests.support.params import sampled
from tests.support.play import Play

NAMES = [f"{n:02d}.txt" for n in range(12)]


@pytest.mark.parametrize("store", ["folder", "s3"])
@pytest.mark.parametrize("seed", sampled(range(20), always=1))
def test_each_row_is_made_once_whoever_begins_first(seed: int, store: str) -> None:
    rng = random.Random(f"{seed} {store}")
    play = Play(dict.fromkeys(NAMES, "ok"), store=store, number_sample_per_shard=2, processes_count=1)
    options = {"distributor": rng.choice(["inline", "multiprocessing"])}
    first = play.start(**options)
    moment = rng.choice(["at once", "request", "published 1", "published 5", "killed"])
    if moment == "request":
        first.until(f"request {rng.choice(NAMES)}")
    elif moment == "killed":
        first.kill_at(f"published {rng.randrange(5)}")
    elif moment != "at once":
        first.until(moment)
    second = play.start(**options)
    ended = [first.wait(), second.wait()]
    codes = [outcome.exit_code for outcome in ended]
    if moment == "killed":
        assert codes[1] == 0, ended[1]
    else:
        # Whoever comes too late finds the dataset complete.
        assert sorted(codes) in ([0, 0], [0, 2]), ended
        assert [play.web.counts[name] for name in NAMES] == [1] * len(NAMES)
        assert all("in use by another run" in outcome.screen for outcome in ended if outcome.exit_code)
    assert ended[1].codes == {"success": len(NAMES)}
    assert not [name for name in play.run("verify").files if name.startswith((".any2ds/lock", ".any2ds/workers"))]


def test_a_worker_that_outlives_its_killed_run_is_waited_for() -> None:
    rows = dict.fromkeys(NAMES, "ok") | {NAMES[-1]: ["hold"]}
    play = Play(rows, number_sample_per_shard=2, timeout=0, distributor="multiprocessing", processes_count=1)
    first = play.start()
    first.until(f"request {NAMES[-1]}")
    # Linux kills our own workers with their parent; this lock is theirs where the system does not.
    with Path(play.path, ".any2ds/workers").open() as workers:
        fcntl.flock(workers, fcntl.LOCK_SH)
        first.kill()
        play.web.release()
        before = play.names()
        second = play.start()
        second.until("said waiting for processes of a dead run")
        assert play.names() == before
    outcome = second.wait()
    assert (outcome.exit_code, outcome.codes) == (0, {"success": len(NAMES)})
    assert play.run("verify").exit_code == 0
