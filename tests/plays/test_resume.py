"""The same command goes on where a run ended: no row is lost or stored twice, and nothing is fetched again."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from any2ds.testing.processes import children
from tests.support.params import sampled
from tests.support.play import Outcome, Play, Row, Victims, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
NAMES = [f"{n}.jpg" for n in range(6)]
OK = dict.fromkeys(NAMES, "ok")
LAST_IS_HELD = OK | {"5.jpg": ["hold"]}
POOL: dict[str, Any] = {"distributor": "multiprocessing", "processes_count": 1}


def bodies(names: Sequence[str] = NAMES) -> list[bytes]:
    return [body_of(name) for name in names]


def is_whole(outcome: Outcome, names: Sequence[str] = NAMES) -> None:
    """Each row is there once, in the order of the list, with its own bytes, and no run has left anything."""
    assert outcome.codes == {"success": len(names)}
    assert [row["url"].rpartition("/")[2] for row in outcome.metadata] == list(names)
    assert [sample.data for sample in outcome.samples] == bodies(names)
    assert not [name for name in outcome.files if name.startswith((".any2ds/tmp/", ".any2ds/swap/"))]


def unchanged(after: Mapping[str, bytes], before: Mapping[str, bytes]) -> bool:
    return {name for name in before if after.get(name) != before[name]} == set()


# Of a worker, no other process imports this module.
ENDS_WORKERS = """
import os, signal, sys

class Ends:
    def find_spec(self, name, path=None, target=None):
        if name == "any2ds.worker.open_shards":
            os.kill(os.getpid(), signal.SIGKILL)

sys.meta_path.insert(0, Ends())
"""

# --- kills ---


@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet"])
def test_what_was_finished_before_a_kill_is_kept_to_the_byte_and_not_fetched_again(output_format: str) -> None:
    play = Play(LAST_IS_HELD, number_sample_per_shard=2, timeout=0, output_format=output_format)
    killed = play.run(kill_at="published 2")
    finished = {name: content for name, content in killed.files.items() if name.startswith(("00000", "00001"))}
    assert killed.exit_code == -signal.SIGKILL
    play.web.release()
    outcome = play.run()
    assert outcome.exit_code == 0
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    assert unchanged(outcome.files, finished)
    is_whole(outcome)
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(
    "moment",
    ["starting", "request 5.jpg", "published 1", "published 6"],
)
def test_a_run_that_is_killed_at_any_stage_is_completed(moment: str) -> None:
    play = Play(OK | {"3.jpg": ["slow:0.2", "ok"]}, number_sample_per_shard=1)
    killed = play.run(kill_at=moment)
    outcome = play.run()
    assert not {NAMES[int(shard)] for shard in killed.shards} & set(outcome.requests)
    is_whole(outcome)


def test_a_slow_row_keeps_its_place_and_holds_up_no_other_shard() -> None:
    play = Play(OK | {"0.jpg": ["hold"]}, number_sample_per_shard=1, timeout=0)
    running = play.start()
    running.until("published 5")
    play.web.release()
    is_whole(running.wait())


@pytest.mark.parametrize("victims", ["all", "parent"])
def test_a_run_with_processes_that_is_killed_is_completed(victims: Victims) -> None:
    play = Play(LAST_IS_HELD, number_sample_per_shard=2, timeout=0, distributor="multiprocessing", processes_count=2)
    killed = play.run(kill_at="published 2", victims=victims)
    assert killed.exit_code == -signal.SIGKILL
    play.web.release()
    outcome = play.run()
    assert not set(outcome.requests) & set(NAMES[:4])
    is_whole(outcome)


def test_a_run_whose_workers_are_killed_ends_well_by_itself() -> None:
    play = Play(LAST_IS_HELD, number_sample_per_shard=2, timeout=0, distributor="multiprocessing", processes_count=2)
    running = play.start()
    running.kill_at("published 2", "workers")
    play.web.release()
    outcome = running.wait()
    assert outcome.exit_code == 0
    is_whole(outcome)


def test_a_shard_whose_processes_are_killed_each_time_fails_with_the_reason_and_no_other_does() -> None:
    rows = OK | {"3.jpg": [*["hold"] * 3, "ok"]}
    play = Play(rows, number_sample_per_shard=2, timeout=0, max_shard_retry=2, **POOL)
    running = play.start()
    for attempt in (1, 2, 3):
        running.kill_at(f"request 3.jpg {attempt}", "workers")
    killed = running.wait()
    assert (killed.exit_code, killed.shards) == (1, ["00000", "00002"])
    for words in ("SIGKILL", "memory", "--processes_count", "ended 3 processes"):
        assert words in " ".join(killed.screen.split())
    is_whole(play.run())


@pytest.mark.slow  # it starts thirty of them
def test_a_run_whose_processes_all_end_at_their_start_ends_in_words() -> None:
    play = Play(OK, way="command", environment={"PYTHONPATH": "."}, **POOL)
    (play.folder / "sitecustomize.py").write_text(ENDS_WORKERS)
    outcome = play.run()
    assert outcome.exit_code == 1
    assert "end at once" in " ".join(outcome.screen.split())


@pytest.mark.slow  # the lock of the dead has to run out
def test_a_dataset_in_a_bucket_is_completed_after_a_kill() -> None:
    play = Play(LAST_IS_HELD, store="s3", number_sample_per_shard=2, timeout=0)
    killed = play.run(kill_at="published 2")
    assert killed.shards == ["00000", "00001"]
    play.web.release()
    outcome = play.run()
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    is_whole(outcome)


@pytest.mark.parametrize(
    ("hangs", "published"), [("00001.parquet", "00001.tar"), ("00001_stats.json", "00001.parquet")]
)
def test_a_kill_between_the_files_of_a_shard_leaves_it_unfinished(hangs: str, published: str) -> None:
    play = Play(OK, store="s3", number_sample_per_shard=2)
    with play.bucket.hanging(hangs):
        running = play.start()
        running.until(f"has {published}")
        running.kill()
        killed = running.wait()
    assert published in killed.names
    assert "00001" not in killed.shards
    outcome = play.run()
    assert {"2.jpg", "3.jpg"} <= set(outcome.requests)
    is_whole(outcome)


# --- fetching is stuck ---

STUCK = {"timeout": 0, "stall_timeout": 0, "watchdog_timeout": 2}


@pytest.mark.parametrize(("holds", "outcome"), [(1, "success"), (2, "watchdog")])
def test_a_row_over_which_two_processes_get_stuck_fails_with_its_copy_and_all_others_are_stored(
    holds: int, outcome: str
) -> None:
    urls = "{web}0.jpg\n{web}1.jpg\n{web}2.jpg\n{web}1.jpg\n{web}3.jpg\n"
    play = Play(OK | {"1.jpg": [*["hold"] * holds, "ok"]}, lists={"urls.txt": urls}, **STUCK, **POOL)
    made = play.run(number_sample_per_shard=4)
    assert made.exit_code == 0
    codes = [row["error_code"] or row["status"] for row in made.metadata]
    assert codes == ["success", outcome, "success", outcome, "success"]
    assert made.requests["1.jpg"] == 2
    assert made.requests["3.jpg"] == 1  # its shard was complete when the process ended


def test_without_another_process_a_run_that_is_stuck_ends_in_words_and_the_same_command_goes_on() -> None:
    play = Play(OK | {"1.jpg": ["hold", "ok"]}, number_sample_per_shard=2, **STUCK)
    stuck = play.run()
    assert stuck.exit_code == 1
    assert "Run the same command again" in stuck.screen
    assert stuck.codes == {"success": 4}
    outcome = play.run()
    assert sorted(outcome.requests) == ["0.jpg", "1.jpg"]
    is_whole(outcome)


def test_a_row_of_several_urls_one_of_which_is_stuck_fails_as_a_whole() -> None:
    play = Play({"i.jpg": "ok", "m.png": ["hold", "hold", "ok"], "n.png": "ok"}, **STUCK, **POOL)
    rows = [{"i": play.web.url("i.jpg"), "m": play.web.url(mask)} for mask in ("m.png", "n.png")]
    (play.folder / "l.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    outcome = play.run("download", "l.jsonl", url_col="image:i,mask:m")
    assert [row["error_code"] or row["status"] for row in outcome.metadata] == ["watchdog", "success"]
    assert set(outcome.samples[0].files) - {"json"} == {"image.jpg", "mask.png"}


def test_a_step_that_takes_longer_than_the_watchdog_is_not_stuck() -> None:
    play = Play(OK, watchdog_timeout=1, transform="step.py:step")
    (play.folder / "step.py").write_text("import time\n\ndef step(sample):\n    time.sleep(0.5)\n    return sample\n")
    is_whole(play.run(transform_threads=1))


@pytest.mark.slow
def test_attempts_that_are_made_again_are_signs_of_life() -> None:
    play = Play({"0.jpg": [*["503:Retry-After=1"] * 4, "ok"]}, watchdog_timeout=3)  # less than the waits together
    assert play.run().codes == {"success": 1}


def test_a_list_that_is_waited_for_is_not_stuck() -> None:
    play = Play(OK, number_sample_per_shard=2, watchdog_timeout=1)

    def rows() -> Iterator[str]:
        yield from map(play.web.url, NAMES[:2])
        time.sleep(2)
        yield from map(play.web.url, NAMES[2:])

    is_whole(play.run(url_list=rows(), output_folder="out", way="python"))


def test_an_upload_that_takes_longer_than_the_watchdog_is_not_stuck() -> None:
    play = Play(OK, store="s3", number_sample_per_shard=3, watchdog_timeout=1)

    def slow_data(method: str, target: str) -> str:
        time.sleep(2 if method == "PUT" and "00000.tar" in target else 0)
        return ""

    with play.bucket.answering(slow_data):
        is_whole(play.run())


def test_a_process_that_is_frozen_is_killed_and_another_goes_on_with_its_shards() -> None:
    play = Play(OK | {"1.jpg": ["hold", "ok"]}, number_sample_per_shard=2, timeout=0, watchdog_timeout=3, **POOL)
    running = play.start()
    running.until("request 1.jpg")
    for pid in children(running.process.pid):
        os.kill(pid, signal.SIGSTOP)
    outcome = running.wait()
    assert outcome.exit_code == 0
    assert "was killed; others go on with its" in " ".join(outcome.screen.split())
    is_whole(outcome)


# --- signals ---


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_a_run_with_its_exit_code_and_the_same_command_goes_on(number: int, exit_code: int) -> None:
    play = Play(LAST_IS_HELD, number_sample_per_shard=2, timeout=0, grace=0)
    running = play.start()
    running.until("published 2")
    running.until("request 5.jpg")
    running.signal(number)
    stopped = running.wait()
    assert stopped.exit_code == exit_code
    assert stopped.shards == ["00000", "00001"]
    assert not [name for name in stopped.files if name.startswith(".any2ds/tmp/")]
    assert play.run("verify").exit_code == 3
    play.web.release()
    outcome = play.run()
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    is_whole(outcome)


def test_within_the_grace_open_shards_are_finished_and_no_new_one_is_begun() -> None:
    rows = {f"{n}.txt": ["hold"] for n in range(40)}
    play = Play(rows, number_sample_per_shard=1, timeout=0, grace=100, thread_count=1, log_format="json")
    running = play.start()
    running.until("request 0.txt")
    running.signal(signal.SIGINT)
    running.until('said "stopping"')
    play.web.release()
    stopped = running.wait()
    (stopping,) = [line for line in stopped.log if line["event"] == "stopping"]
    assert (stopped.exit_code, stopping["grace"]) == (130, 100)
    assert 1 <= len(stopped.shards) <= stopping["shards_open"] < 40
    is_whole(play.run(), list(rows))


def test_a_second_interrupt_ends_the_grace() -> None:
    rows = {name: ["hold"] for name in NAMES}
    play = Play(rows, number_sample_per_shard=2, timeout=0, grace=1000, log_format="json")
    running = play.start()
    running.until("request 1.jpg")
    running.signal(signal.SIGINT)
    running.until('said "stopping"')
    running.signal(signal.SIGINT)
    stopped = running.wait()
    assert (stopped.exit_code, stopped.shards) == (130, [])
    play.web.release()
    is_whole(play.run())


# --- lists that change ---


def test_a_list_that_has_grown_fills_its_short_shard_and_keeps_the_full_ones() -> None:
    play = Play(OK, number_sample_per_shard=4)
    first = play.run("download", *play.write_list(NAMES[:5]))
    assert [len(first.files[f"{shard}.tar"]) > 0 for shard in first.shards] == [True, True]
    outcome = play.run()
    assert sorted(outcome.requests) == ["5.jpg"]
    is_whole(outcome)
    assert unchanged(outcome.files, {name: first.files[name] for name in first.names if name.startswith("00000")})


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_list_may_grow_in_each_format(output_format: str) -> None:
    play = Play(OK, number_sample_per_shard=4, output_format=output_format)
    play.run("download", *play.write_list(NAMES[:3]))
    outcome = play.run()
    assert not set(outcome.requests) & set(NAMES[:3])
    is_whole(outcome)


def test_a_list_under_another_name_is_the_same_list() -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run()
    (play.folder / "list.jsonl").rename(play.folder / "moved.jsonl")
    outcome = play.run("download", "moved.jsonl")
    assert (outcome.exit_code, outcome.requests.total()) == (0, 0)
    is_whole(outcome)


@pytest.mark.parametrize(
    ("names", "differs"),
    [
        (["0.jpg", "1.jpg", "3.jpg", "2.jpg", "4.jpg", "5.jpg"], "3.jpg"),
        (["0.jpg", "1.jpg", "2.jpg", "4.jpg", "5.jpg"], "4.jpg"),
        (["5.jpg", *NAMES[:5]], "5.jpg"),
        (NAMES[:3], ""),
    ],
    ids=["order", "a row gone", "a row before", "cut"],
)
def test_another_list_is_refused_with_the_row_that_differs(names: list[str], differs: str) -> None:
    play = Play(OK, number_sample_per_shard=2)
    first = play.run()
    outcome = play.run("download", *play.write_list(names))
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert differs in outcome.stderr
    assert "incremental_mode" in outcome.stderr
    assert outcome.files == first.files


@pytest.mark.parametrize(
    "changed",
    [
        {"number_sample_per_shard": 3},
        {"output_format": "parquet"},
        {"url_col": "other"},
        {"caption_col": "other"},
        {"save_additional_columns": "other"},
        {"compute_md5": False},
        {"compute_hash": "sha256"},
        {"file_size": 16},
        {"encode_format": "png"},
        {"decode_check": True},
        {"dedupe": "run"},
        {"shuffle": 1},
        {"oom_shard_count": 3},
        {"file_ext": "bin"},
        {"metadata_format": "csv"},
        {"on_bad_row": "stop"},
        {"column_types": "url:string"},
        {"verify_hash": "other:md5"},
        {"unpack": True},
        {"only_images": True, "file_size": 16},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_option_that_decides_what_is_stored_may_not_change(changed: dict[str, Any]) -> None:
    rows = {name: Row(columns={"other": body_of(name).hex()[:8]}) for name in NAMES}
    play = Play(rows, number_sample_per_shard=2)
    first = play.run()
    outcome = play.run(**changed)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert next(iter(changed)) in outcome.stderr
    assert outcome.files == first.files


@pytest.mark.parametrize(
    "changed",
    [
        {"timeout": 3},
        {"retries": 2},
        {"thread_count": 3},
        {"user_agent": "another/1.0"},
        {"fsync": False},
        {"distributor": "multiprocessing", "processes_count": 1},
        {"max_file_bytes": 100_000},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_option_on_fetching_and_running_may_change(changed: dict[str, Any]) -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run("download", *play.write_list(NAMES[:4]))
    outcome = play.run(**changed)
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    is_whole(outcome)


def test_a_list_without_a_header_is_the_same_list() -> None:
    lists = {"l.csv": "".join(f"{{web}}{name};x\n" for name in NAMES)}
    play = Play(OK, lists=lists, columns="url,caption", separator=";", caption_col="caption")
    is_whole(play.run())
    outcome = play.run()
    assert (outcome.exit_code, outcome.requests.total()) == (0, 0)


def test_a_finished_dataset_is_left_as_it_is() -> None:
    play = Play(OK, number_sample_per_shard=2)
    first = play.run()
    outcome = play.run()
    assert (outcome.exit_code, outcome.requests.total()) == (0, 0)
    assert {name: outcome.files[name] for name in first.names} == {name: first.files[name] for name in first.names}
    assert "to load: any2ds.load(" in outcome.screen


@pytest.mark.parametrize(
    ("output_format", "gone", "store"),
    [
        ("webdataset", "00001.tar", "folder"),
        ("webdataset", "00001.parquet", "folder"),
        ("webdataset", "00001.csv", "folder"),
        ("webdataset", "00001_stats.json", "folder"),
        ("webdataset", "00001.tar", "s3"),
        ("parquet", "00001.parquet", "folder"),
        ("files", "00001", "folder"),
        ("tfrecord", "00001.tfrecord", "folder"),
        ("arrayrecord", "00001.arrayrecord", "folder"),
    ],
)
def test_a_shard_of_which_a_file_is_gone_is_made_again(output_format: str, gone: str, store: str) -> None:
    options = {"metadata_format": "parquet,csv"} if gone.endswith("csv") else {}
    play = Play(OK, number_sample_per_shard=2, output_format=output_format, store=store, **options)
    play.run()
    if play.bucket is not None:
        play.bucket.connect().rm(f"{play.out}/{gone}")
    elif (path := Path(play.path, gone)).is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    outcome = play.run()
    assert sorted(outcome.requests) == ["2.jpg", "3.jpg"]
    assert ("its shard is made again" in " ".join(outcome.screen.split())) is not gone.endswith("stats.json")
    is_whole(outcome)
    assert play.run().requests.total() == 0


@pytest.mark.parametrize("output_format", [*FORMATS, "dummy"])
def test_a_shard_without_a_stored_file_lacks_nothing(output_format: str) -> None:
    play = Play({"gone.jpg": "404"}, output_format=output_format)
    play.run()
    outcome = play.run()
    assert (outcome.requests.total(), "nothing to do: 1 shard in out/" in outcome.screen) == (0, True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"count": 2}'])
def test_a_shard_whose_statistics_cannot_be_read_is_made_again(content: bytes) -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run()
    (play.folder / "out" / "00002_stats.json").write_bytes(content)
    outcome = play.run()
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    is_whole(outcome)


# --- extend, overwrite, limit ---


def test_extend_appends_a_list_under_the_next_numbers() -> None:
    play = Play(OK, number_sample_per_shard=2)
    first = play.run("download", *play.write_list(NAMES[:3]))
    outcome = play.run("download", *play.write_list(NAMES[3:]), incremental_mode="extend")
    assert sorted(outcome.requests) == NAMES[3:]
    assert [row["key"] for row in outcome.metadata] == ["000000", "000001", "000010", "000020", "000021", "000030"]
    is_whole(outcome)
    assert unchanged(outcome.files, {name: first.files[name] for name in first.names})
    again = play.run("download", *play.write_list(NAMES[3:]), incremental_mode="extend")
    assert again.requests.total() == 0
    is_whole(again)


def test_extend_goes_on_after_a_kill() -> None:
    play = Play(OK | {"5.jpg": ["hold"]}, number_sample_per_shard=2, timeout=0)
    play.run("download", *play.write_list(NAMES[:2]))
    running = play.start("download", *play.write_list(NAMES[2:]), incremental_mode="extend")
    running.kill_at("published 2")
    running.wait()
    play.web.release()
    outcome = play.run("download", *play.write_list(NAMES[2:]), incremental_mode="extend")
    assert sorted(outcome.requests) == ["4.jpg", "5.jpg"]
    is_whole(outcome)


@pytest.mark.parametrize("changed", [{"number_sample_per_shard": 3}, {"compute_hash": "sha256"}])
def test_extend_with_other_options_is_refused(changed: dict[str, Any]) -> None:
    play = Play(OK, number_sample_per_shard=2)
    first = play.run("download", *play.write_list(NAMES[:2]))
    outcome = play.run("download", *play.write_list(NAMES[2:]), incremental_mode="extend", **changed)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert next(iter(changed)) in outcome.stderr
    assert outcome.files == first.files


def test_extend_leaves_missing_shards_to_the_list_before_it() -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run("download", *play.write_list(NAMES[:4]))
    for file in (play.folder / "out").glob("00001*"):
        file.unlink()
    Path(play.path, "00000.tar").unlink()
    outcome = play.run("download", *play.write_list(NAMES[4:]), incremental_mode="extend")
    assert (outcome.exit_code, outcome.shards) == (0, ["00000", "00002"])
    assert "1 shard is broken of other lists" in " ".join(outcome.screen.split())
    outcome = play.run("download", *play.write_list(NAMES[:4]))
    assert (outcome.codes, set(outcome.requests)) == ({"success": len(NAMES)}, set(NAMES[:4]))


@pytest.mark.parametrize("output_format", FORMATS)
def test_overwrite_begins_anew(output_format: str) -> None:
    play = Play(OK, number_sample_per_shard=2, output_format=output_format)
    play.run()
    outcome = play.run("download", *play.write_list(NAMES[4:]), incremental_mode="overwrite", number_sample_per_shard=1)
    assert outcome.shards == ["00000", "00001"]
    assert not [name for name in outcome.names if name.startswith("00002")]
    is_whole(outcome, NAMES[4:])


def test_overwrite_leaves_files_of_others_beside_the_shards() -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run()
    mine = {"README.md": b"mine", "notes.tar": b"mine", "00007.txt": b"mine", "000011.tar": b"mine"}
    for name, content in mine.items():
        (play.folder / "out" / name).write_bytes(content)
    outcome = play.run(incremental_mode="overwrite", number_sample_per_shard=3)
    is_whole(outcome)
    assert unchanged(outcome.files, mine)
    assert outcome.shards == ["00000", "00001"]


@pytest.mark.parametrize("incremental_mode", ["incremental", "overwrite", "extend"])
def test_shards_that_any2ds_did_not_make_are_not_touched(incremental_mode: str) -> None:
    play = Play(OK, number_sample_per_shard=2)
    (play.folder / "out").mkdir()
    (play.folder / "out" / "00001.tar").write_bytes(b"mine")
    outcome = play.run(incremental_mode=incremental_mode)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert outcome.files == {"00001.tar": b"mine"}


@pytest.mark.parametrize(
    ("limits", "rows", "requests"),
    [
        ([4], [4], [4]),
        ([4, None], [4, 6], [4, 2]),
        ([3, 5, None], [3, 5, 6], [3, 2, 1]),
        ([2, 2], [2, 2], [2, 0]),
        ([100], [6], [6]),
    ],
    ids=["a trial", "then all", "in the middle of shards", "the same", "more than there are"],
)
def test_a_limit_takes_the_first_rows_and_a_higher_one_adds_to_them(
    limits: list[int | None], rows: list[int], requests: list[int]
) -> None:
    play = Play(OK, number_sample_per_shard=2)
    for limit, count, asked in zip(limits, rows, requests, strict=True):
        outcome = play.run(**({} if limit is None else {"limit": limit}))
        assert outcome.exit_code == 0
        assert outcome.requests.total() == asked
        is_whole(outcome, NAMES[:count])


def test_a_lower_limit_removes_nothing() -> None:
    play = Play(OK, number_sample_per_shard=2)
    play.run()
    outcome = play.run(limit=2)
    assert outcome.requests.total() == 0
    is_whole(outcome)


def made_but_for_a_shard() -> tuple[Play, str]:
    """A dataset whose second shard is missing, by a run that was killed at its end; and its list."""
    play = Play(OK, number_sample_per_shard=2, list_format="txt")
    play.run()
    for file in Path(play.path).glob("00001*"):
        file.unlink()
    Path(play.path, ".any2ds/segments/0000.end").unlink()
    return play, "list.txt"


def test_a_limit_within_a_missing_shard_makes_no_part_of_it() -> None:
    play, _ = made_but_for_a_shard()
    assert play.run(limit=3).requests.total() == 0
    outcome = play.run()
    assert sorted(outcome.requests) == ["2.jpg", "3.jpg"]
    is_whole(outcome)


def test_a_list_that_ends_before_finished_shards_is_refused() -> None:
    """A file that was cut short and keeps its size and its time is not compared with the shards made from it."""
    play, name = made_but_for_a_shard()
    file = play.folder / name
    before, lines = file.stat(), file.read_text().splitlines()[:3]
    file.write_text("\n".join(lines) + "?".ljust(before.st_size - len("\n".join(lines)) - 1, "x") + "\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    outcome = play.run("download", name)
    assert outcome.exit_code == 1
    assert "ends with row 3, and there are shards of rows behind it" in " ".join(outcome.screen.split())


def test_of_rows_from_a_pipe_a_limit_reads_no_further() -> None:
    play = Play(OK)
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{play.web.url(name)}\n" for name in NAMES).encode())  # and it stays open
    try:
        outcome = play.run("download", f"/dev/fd/{reading}", limit=3, input_format="txt")
    finally:
        os.close(reading)
        os.close(writing)
    is_whole(outcome, NAMES[:3])


def test_the_rest_of_a_limited_list_comes_behind_another_list() -> None:
    play = Play(OK, number_sample_per_shard=2)
    first = play.write_list(NAMES[:5])
    play.run("download", *first, limit=3)
    (play.folder / "other.txt").write_text(play.web.url("5.jpg"))
    play.run("download", "other.txt", incremental_mode="extend")
    assert play.run("download", *first, limit=3).requests.total() == 0
    outcome = play.run("download", *first)
    assert (sorted(outcome.requests), outcome.codes) == (["3.jpg", "4.jpg"], {"success": 6})
    assert play.run("verify").exit_code == 0


# --- several at once ---


@pytest.mark.parametrize("store", sampled(["folder", "s3"]))
def test_while_a_run_is_at_work_other_commands_that_change_its_dataset_are_refused(store: str) -> None:
    play = Play(LAST_IS_HELD, store=store, number_sample_per_shard=2, timeout=0)
    running = play.start()
    running.until("published 2")
    running.until("request 5.jpg")
    for command, options in (("download", {}), ("retry", {}), ("download", {"incremental_mode": "overwrite"})):
        second = play.run(command, **options)
        assert (second.exit_code, second.requests.total()) == (2, 0)
        assert str(running.process.pid) in second.stderr
    assert play.run("verify").exit_code == 3
    play.web.release()
    outcome = running.wait()
    assert outcome.exit_code == 0
    is_whole(outcome)


# --- ranks ---


def test_ranks_make_a_dataset_together() -> None:
    play = Play(OK, number_sample_per_shard=1)
    first = play.run(rank=0, world_size=2)
    assert first.shards == ["00000", "00002", "00004"]
    assert sorted(first.requests) == ["0.jpg", "2.jpg", "4.jpg"]
    assert ".any2ds/shards" not in first.files
    second = play.run(rank=1, world_size=2)
    assert sorted(second.requests) == ["1.jpg", "3.jpg", "5.jpg"]
    is_whole(second)
    assert ".any2ds/shards" in second.files
    assert play.run("verify").exit_code == 0


def test_ranks_may_run_at_once() -> None:
    play = Play(LAST_IS_HELD | {"4.jpg": ["hold"]}, number_sample_per_shard=1, timeout=0)
    running = [play.start(rank=rank, world_size=2) for rank in range(2)]
    for rank, name in enumerate(("4.jpg", "5.jpg")):
        running[rank].until(f"request {name}")
    assert play.run().exit_code == 2
    assert play.run(rank=0, world_size=3).exit_code == 2
    play.web.release()
    assert [one.wait().exit_code for one in running] == [0, 0]
    assert max(play.web.counts.values()) == 1
    outcome = play.run("verify")
    assert outcome.exit_code == 0
    is_whole(outcome)


def test_verify_names_the_shards_of_a_rank_that_never_came() -> None:
    play = Play(OK, number_sample_per_shard=1)
    play.run(rank=0, world_size=2)
    outcome = play.run("verify")
    assert outcome.exit_code == 3
    assert "3 shards (1, 3, 5) are missing" in outcome.screen
    is_whole(play.run())


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"rank": 1},
        {"world_size": 0},
        {"rank": 0, "world_size": 2, "incremental_mode": "overwrite"},
    ],
    ids=str,
)
def test_a_rank_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    outcome = Play(OK).run(**options)
    assert (outcome.exit_code, outcome.requests.total(), outcome.files) == (2, 0, {})
    assert "rank" in outcome.stderr or "world_size" in outcome.stderr


SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1"}
SHARE, ALL = ["00001", "00004"], [f"0000{n}" for n in range(6)]


@pytest.mark.parametrize(
    ("environment", "options", "shards"),
    [
        ({**SLURM, "SLURM_STEP_ID": "0"}, {}, SHARE),
        ({**SLURM, "SLURM_STEP_ID": "0", "SLURM_NTASKS": "16"}, {"world_size": 3}, SHARE),
        (SLURM, {}, ALL),  # a batch script
        ({**SLURM, "SLURM_STEP_ID": "batch"}, {}, ALL),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, {}, ALL),
        (TORCHRUN, {}, SHARE),
        (TORCHRUN, {"rank": 0, "world_size": 6}, ["00000"]),
        (TORCHRUN, {"world_size": 1}, ALL),
        ({**TORCHRUN, "RANK": ""}, {}, ALL),
        ({**TORCHRUN, "RANK": "one"}, {}, ALL),
        ({"RANK": "1"}, {}, ALL),
        ({**KUBERNETES, "WORLD_SIZE": "3"}, {}, SHARE),
        (KUBERNETES, {"world_size": 3}, SHARE),
    ],
    ids=str,
)
def test_the_rank_is_that_of_the_environment(
    environment: dict[str, str], options: dict[str, int], shards: list[str]
) -> None:
    play = Play(OK, number_sample_per_shard=1, environment=environment, output_format="dummy")
    assert play.run(**options).shards == shards
