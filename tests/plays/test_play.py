"""The harness of the plays itself says what happened, in each way of running a command and on each store."""

import pytest

from tests.support.play import Play, Row, Way

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")


def test_a_busy_host_is_asked_again() -> None:
    outcome = Play(rows={"a.jpg": ["http_503", "ok"], "b.jpg": "ok"}, retries=1).run()
    assert outcome.codes == {"success": 2}
    assert outcome.requests["a.jpg"] == 2


@pytest.mark.parametrize("way", ["inside", "command", "python"])
@pytest.mark.parametrize("output_format", FORMATS)
def test_what_is_stored_is_read_back_in_each_format_and_way(output_format: str, way: Way) -> None:
    rows = {"a.txt": Row(body=b"first"), "b.bin": Row(body=b"\x00second"), "c.txt": Row("http_404")}
    outcome = Play(rows, output_format=output_format, way=way).run()
    assert outcome.codes == {"success": 2, "http_404": 1}
    assert [sample.data for sample in outcome.samples] == [b"first", b"\x00second"]
    assert outcome.exit_code in (0, None)


def test_a_dataset_in_a_bucket_is_read_back() -> None:
    play = Play({"a.jpg": "ok", "b.jpg": "404"}, store="s3")
    assert play.run().codes == {"success": 1, "http_404": 1}
    assert play.run("verify").exit_code == 0


def test_a_run_that_was_killed_goes_on() -> None:
    rows = {f"{n}.jpg": "ok" for n in range(6)} | {"5.jpg": ["hold"]}
    play = Play(rows, number_sample_per_shard=2, timeout=0)
    killed = play.run(kill_at="published 2")
    assert killed.exit_code == -9
    assert len(killed.shards) == 2
    play.web.release()
    outcome = play.run()
    assert outcome.codes == {"success": 6}
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
