"""Datasets and lists in stores, staging, and disks and stores that fail or are full."""

import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

import any2ds
from tests.support.params import sampled
from tests.support.play import Play, body_of
from tests.support.smalldisk import small_disk

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
NAMES = [f"{n}.jpg" for n in range(6)]
ROWS = dict.fromkeys(NAMES, "ok")


@pytest.mark.parametrize("output_format", sampled(FORMATS, 2))
def test_each_format_in_a_bucket(output_format: str) -> None:
    play = Play(ROWS, store="s3", output_format=output_format, number_sample_per_shard=3)
    outcome = play.run()
    assert outcome.codes == {"success": 6}
    assert [sample.data for sample in outcome.samples] == [body_of(name) for name in NAMES]
    assert not [name for name in outcome.files if "/tmp/" in name]
    assert play.run().requests.total() == 0


@pytest.mark.parametrize("share", [0.1])
def test_a_store_of_which_requests_fail_costs_nothing(share: float) -> None:
    play = Play(ROWS, store="s3", number_sample_per_shard=2)
    with play.bucket.failing(share) as failed:
        outcome = play.run()
    assert outcome.exit_code == 0
    assert failed.total() > 0
    assert outcome.codes == {"success": 6}
    assert max(outcome.requests.values()) == 1
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("status", ["403", "404"])
def test_a_store_that_refuses_ends_the_run_and_the_same_command_goes_on(status: str) -> None:
    play = Play(ROWS, store="s3", number_sample_per_shard=2, max_shard_retry=0)
    with play.bucket.answering(lambda method, target: status if method == "PUT" and "_stats.json" in target else ""):
        outcome = play.run()
    assert (outcome.exit_code, outcome.shards) == (1, [])
    outcome = play.run()
    assert outcome.codes == {"success": 6}


def test_a_bucket_that_is_not_there_is_refused_before_anything_is_sent() -> None:
    play = Play(ROWS, store="s3")
    (name,) = play.write_list()
    outcome = play.run("download", name, f"s3://none-{uuid.uuid4().hex[:8]}/place")
    assert outcome.exit_code in (1, 2)
    assert outcome.requests.total() == 0


def test_a_list_in_a_bucket_is_read_and_a_changed_one_is_noticed() -> None:
    play = Play(ROWS, store="s3", number_sample_per_shard=2)
    system, url = play.bucket.connect(), play.out.replace("/place", "/lists/a.txt")
    text = "".join(f"{play.web.url(name)}\n" for name in NAMES)
    system.pipe_file(url, text.encode())
    assert play.run("download", url, play.out).codes == {"success": 6}
    assert play.run("download", url, play.out).requests.total() == 0
    system.pipe_file(url, text.replace("1.jpg", "9.jpg").encode())
    outcome = play.run("download", url, play.out)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert "9.jpg" in outcome.stderr


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_dataset_in_memory(output_format: str) -> None:
    play, place = Play(ROWS, output_format=output_format), f"memory://{uuid.uuid4().hex}/set"
    system = fsspec.filesystem("memory")
    outcome = play.run(way="python", output_folder=place, url_list=str(play.folder / play.write_list()[0]))
    assert outcome.error is None
    assert outcome.result.successes == 6
    names = {name.rpartition("/")[2] for name in system.find(place)}
    assert "00000_stats.json" in names
    assert any2ds.verify(place).ok
    assert pq.read_table(system.open(f"{place}/00000.parquet")).num_rows == 6
    system.rm(place, recursive=True)


def test_a_dataset_in_memory_needs_this_process() -> None:
    play = Play(ROWS, distributor="multiprocessing")
    (name,) = play.write_list()
    outcome = play.run("download", name, "memory://x/y")
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert "inline" in outcome.stderr


@pytest.mark.parametrize("store", ["folder", "s3"])
def test_shards_are_made_in_the_staging_folder_which_is_empty_in_the_end(store: str) -> None:
    play = Play(ROWS | {"5.jpg": ["hold"]}, store=store, number_sample_per_shard=2, staging_dir="staging", timeout=0)
    running = play.start()
    running.until("published 2")
    staging = play.folder / "staging"
    assert staging.is_dir()
    play.web.release()
    outcome = running.wait()
    assert outcome.codes == {"success": 6}
    assert not [path for path in staging.rglob("*") if path.is_file()]


@pytest.mark.parametrize("option", ["1PB", str(10**16)])
def test_a_disk_with_less_room_than_is_to_stay_free_ends_the_run(option: str) -> None:
    play = Play(ROWS)
    outcome = play.run(min_free_bytes=option)
    assert outcome.exit_code in (1, 2)
    assert (outcome.shards, outcome.requests.total()) == ([], 0)
    assert "min_free_bytes" in outcome.stderr
    assert play.run().codes == {"success": 6}


@pytest.mark.parametrize("processes", [{"distributor": "inline"}, {"distributor": "multiprocessing"}], ids=str)
def test_a_full_disk_ends_the_run_with_its_folder_and_the_same_command_goes_on(
    processes: dict[str, str], tmp_path: Path
) -> None:
    rows: dict[str, Any] = {f"{n}.bin": "big:200000" for n in range(12)}
    with small_disk(tmp_path / "disk", 1_200_000) as disk:
        play = Play(rows, number_sample_per_shard=1, thread_count=1, processes_count=1, **processes)
        name = str(play.folder / play.write_list()[0])
        play.out = str(disk.folder / "out")
        options = {"min_free_bytes": disk.min_free_bytes}
        outcome = play.run("download", name, play.out, **options)
        assert outcome.exit_code == 1
        assert str(disk.folder) in outcome.stderr
        assert "Make room there" in " ".join(outcome.stderr.split())
        assert len(outcome.shards) < 12
        finished = {name: outcome.files[name] for name in outcome.names if name[:5] in outcome.shards}
        disk.grow()
        again = play.run("download", name, play.out, min_free_bytes=0)
        assert again.exit_code == 0
        assert again.codes == {"success": 12}
        assert {name for name in finished if again.files[name] != finished[name]} == set()
        assert again.requests.total() == 12 - len(outcome.shards)


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_folder_that_is_a_file_is_refused() -> None:
    play = Play(ROWS)
    Path(play.path).write_bytes(b"mine")
    outcome = play.run()
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert Path(play.path).read_bytes() == b"mine"


def test_options_of_stores_are_given_by_protocol_and_not_recorded() -> None:
    play = Play(ROWS, store="s3")
    endpoint = play.environment.pop("AWS_ENDPOINT_URL")
    key, secret = play.environment.pop("AWS_ACCESS_KEY_ID"), play.environment.pop("AWS_SECRET_ACCESS_KEY")
    options = {"s3": {"endpoint_url": endpoint, "key": key, "secret": secret}}
    assert play.run(storage_options=options).codes == {"success": 6}
    outcome = play.run("verify", storage_options=options)
    assert outcome.exit_code == 0
    assert not [name for name, content in outcome.files.items() if endpoint.encode() in content]
