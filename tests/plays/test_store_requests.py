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
