"""The harness of the plays itself says what happened, in each way of running a command and on each store."""

import pytest

from tests.support.play import Play, Row, Way

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")


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
