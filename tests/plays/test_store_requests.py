"""How often a store is asked."""

from tests.support.play import Play


def test_a_run_asks_a_store_little_before_its_first_upload() -> None:
    """Beside what the lock asks: for itself, and for what dead runs have left in `.any2ds/`."""
    rows = {f"{n}.jpg": "ok" for n in range(4)}
    play = Play(rows, store="s3", number_sample_per_shard=2, output_format="webdataset")
    with play.bucket.recording() as asked:
        assert play.run().codes == {"success": 4}
    targets = [target for _, target in asked]
    before = targets[: next(n for n, target in enumerate(targets) if "00000.tar" in target)]
    of_the_lock = (".any2ds/lock", "prefix=place%2F.any2ds%2F&", "prefix=place%2F.any2ds%2Fwork%2F&")
    assert len([target for target in before if not any(part in target for part in of_the_lock)]) <= 8


def test_a_resumed_run_asks_as_little_of_a_big_dataset_as_of_a_small_one() -> None:
    asked = [requests_of_a_resume(shards) for shards in (4, 16)]
    assert asked[0] == asked[1]


def requests_of_a_resume(shards: int) -> int:
    """How many, beside those of the lock, a run sends until it has made the one shard that is missing."""
    play = Play({f"{n}.jpg": "ok" for n in range(shards)}, store="s3", number_sample_per_shard=1)
    command = ("download", *play.write_list(), play.out)  # of a list that stays as it is
    play.run(*command)
    stats = f"{shards - 2:05}_stats.json"
    play.bucket.connect().rm_file(f"{play.out.removeprefix('s3://')}/{stats}")
    with play.bucket.recording() as asked:
        assert play.run(*command).requests.total() == 1
    of_the_run = [(method, target) for method, target in asked if ".any2ds/lock" not in target]
    return next(n for n, (method, target) in enumerate(of_the_run) if method == "PUT" and stats in target)
