"""Where workers run makes no difference for the dataset, and what crashes costs a row and not the run."""

import os
from typing import Any

import pytest

from tests.support.play import Play, Row, body_of

NAMES = [f"{n}.jpg" for n in range(12)]
ROWS = dict.fromkeys(NAMES, "ok") | {"5.jpg": "http_404"}
PLAIN_STEP = """
import os, signal

def step(sample):
    if sample.data.endswith(b"bad"):
        {what}
    return sample
"""


def test_the_dataset_is_the_same_with_any_number_of_processes() -> None:
    found = []
    for options in (
        {"distributor": "inline"},
        {"distributor": "multiprocessing", "processes_count": 1},
        {"distributor": "multiprocessing", "processes_count": 3},
    ):
        outcome = Play(ROWS, number_sample_per_shard=2, **options).run()
        assert outcome.codes == {"success": 11, "http_404": 1}
        found.append(([sample.key for sample in outcome.samples], [sample.data for sample in outcome.samples]))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [body_of(name) for name in NAMES if name != "5.jpg"]


def with_step(what: str, **options: Any) -> Play:
    rows: dict[str, Any] = {f"{n}.txt": Row(body=b"bad" if n == 3 else b"good") for n in range(6)}
    play = Play(rows, number_sample_per_shard=3, transform="step.py:step", **options)
    (play.folder / "step.py").write_text(PLAIN_STEP.format(what=what))
    return play


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "transform_crash"),
        ("os._exit(3)", "transform_crash"),
    ],
)
def test_what_a_step_does_with_a_file_costs_its_row_alone(what: str, code: str) -> None:
    play = with_step(what, distributor="multiprocessing", processes_count=2)
    outcome = play.run()
    assert outcome.exit_code == 0
    assert outcome.codes == {"success": 5, code: 1}
    assert outcome.code_of["3.txt"] == code
    assert [sample.data for sample in outcome.samples] == [b"good"] * 5


def test_what_a_step_was_corrected_for_is_retried() -> None:
    play = with_step("raise ValueError('nine')")
    assert play.run().codes == {"success": 5, "transform_error": 1}
    (play.folder / "step.py").write_text(PLAIN_STEP.format(what="pass"))
    outcome = play.run("retry", codes="transform_error", transform="step.py:step")
    assert outcome.codes == {"success": 6}
    assert outcome.data["000010"] == b"bad"


def test_a_shard_that_cannot_be_written_is_tried_again_and_then_left() -> None:
    play = Play(ROWS, number_sample_per_shard=4, max_shard_retry=1, log_format="json", store="s3")
    with play.bucket.refusing("403", "00001.tar"):
        outcome = play.run()
    assert outcome.exit_code == 1
    assert outcome.shards == ["00000", "00002"]
    failed = [line for line in outcome.log if line["event"] == "shard_failed"]
    assert [(line["shard_id"], line["again"]) for line in failed] == [(1, True), (1, False)]
    again = play.run()
    assert (again.exit_code, set(again.requests)) == (0, set(NAMES[4:8]))
    assert again.codes == {"success": 11, "http_404": 1}


def test_inline_is_the_process_itself() -> None:
    play = with_step("import pathlib; pathlib.Path('pid').write_text(str(os.getpid()))")
    assert play.run().codes == {"success": 6}
    assert (play.folder / "pid").read_text() == str(os.getpid())
