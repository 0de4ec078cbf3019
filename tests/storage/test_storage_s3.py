"""Uploads to an S3 server that fails: what is published is whole, and what is not is not to be seen."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from s3fs import S3FileSystem

from any2ds.core.errors import DamagedShard, LockLost, OutputError
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import input_files
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import Patience
from any2ds.storage.stores import Stores
from tests.support.s3 import CREDENTIALS, Door, Wsgi, served


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """In front of an empty `bucket`."""
    doors: list[Door] = []

    def door(app: Wsgi) -> Wsgi:
        doors.append(Door(app))
        return doors[0]

    with served(door) as (url,):
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        with_client(lambda client: client.create_bucket(Bucket="bucket"))
        with_client(empty)  # buckets of one name are one for all tests of this process
        S3FileSystem.clear_instance_cache()
        yield doors[0]
        doors[0].fails = lambda method, target: ""
        with_client(empty)
        with_client(lambda client: client.delete_bucket(Bucket="bucket"))


def with_client(use: Callable[[Any], Any]) -> Any:
    client = boto3.client("s3")
    try:
        return use(client)
    finally:
        client.close()


def empty(client: Any) -> None:
    while some := client.list_objects_v2(Bucket="bucket").get("Contents", ()):
        client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": found["Key"]} for found in some]})


def keys() -> set[str]:
    return {found["Key"] for found in with_client(lambda c: c.list_objects_v2(Bucket="bucket")).get("Contents", ())}


@pytest.fixture
def output(s3: Door) -> OutputFolder:
    return open_folder("s3://bucket/data", stores=Stores(patience=Patience(12, 0.01, 0.1)))


def test_a_small_file_takes_one_request(s3: Door, output: OutputFolder) -> None:
    contents = {f"{number:05d}_stats.json": b"{}" * number for number in range(5)}
    for name, content in contents.items():
        output.write(name, content)
    asked: list[str] = []
    s3.fails = lambda method, target: asked.append(method) or ""
    assert dict(output.read_many(list(contents))) == contents
    assert output.read("00004_stats.json") == contents["00004_stats.json"]
    assert asked == ["GET"] * 6


def test_with_a_quarter_of_the_requests_failing_every_file_of_a_folder_arrives(
    s3: Door, output: OutputFolder, tmp_path: Path
) -> None:
    rng = random.Random(7)
    s3.fails = lambda method, target: rng.choice(("500", "503", "cut")) if rng.random() < 0.25 else ""
    (tmp_path / "00000").mkdir()
    contents = {f"{number:09d}.flat": os.urandom(100 + number) for number in range(30)}
    for name, content in contents.items():
        (tmp_path / "00000" / name).write_bytes(content)
    output.publish({"00000": tmp_path / "00000"})
    output.write("00000_stats.json", b"{}")
    assert {name: output.read(f"00000/{name}") for name in output.names("00000")} == contents
    output.remove_tree("00000")
    assert set(s3.failed) == {"500", "503", "cut"}
    s3.fails = lambda method, target: ""
    assert keys() == {"data/00000_stats.json"}


@pytest.mark.slow
def test_a_multipart_upload_that_breaks_in_its_middle_is_made_again(
    s3: Door, output: OutputFolder, tmp_path: Path
) -> None:
    failures = ["cut", "500", "503"]
    s3.fails = lambda method, target: failures.pop() if "partNumber=2" in target and failures else ""
    big = tmp_path / "00000.tar"
    with big.open("wb") as file:
        file.truncate(101 << 20)
        file.write(b"the end")
    output.publish({"00000.tar": big})
    assert not failures
    found = with_client(lambda client: client.head_object(Bucket="bucket", Key="data/00000.tar"))
    assert found["ContentLength"] == 101 << 20
    assert not big.exists()


def test_an_upload_that_fails_for_good_leaves_nothing_to_be_seen(s3: Door, tmp_path: Path) -> None:
    output = open_folder("s3://bucket/data", stores=Stores(patience=Patience(2, 0.01, 0.1)))
    s3.fails = lambda method, target: "500" if "partNumber=2" in target else ""
    big = tmp_path / "00000.tar"
    with big.open("wb") as file:
        file.truncate(101 << 20)
    with pytest.raises(OSError, match="told to fail"):
        output.publish({"00000.tar": big})
    assert keys() == set()
    assert not with_client(lambda client: client.list_multipart_uploads(Bucket="bucket")).get("Uploads")
    assert big.exists()


def test_whoever_loses_the_folder_while_a_store_is_down_writes_and_removes_nothing_when_it_is_back(
    s3: Door, output: OutputFolder, tmp_path: Path
) -> None:
    asked = 0

    def guard() -> None:
        nonlocal asked
        asked += 1
        if asked % 2 == 0:  # by each of the things to do: at its first attempt, and now
            raise LockLost("taken over by another run")

    output.write("00000.tar", b"of the other")
    output.guard = guard
    down = ["500"]
    s3.fails = lambda method, target: down.pop() if method in ("PUT", "DELETE", "POST") and down else ""
    (tmp_path / "mine").write_bytes(b"mine")
    for change in (
        lambda: output.publish({"00000.tar": tmp_path / "mine"}),
        lambda: output.write("00000.tar", b"mine"),
        lambda: output.remove("00000.tar"),
    ):
        down[:] = ["500"]
        with pytest.raises(LockLost):
            change()
        assert output.read("00000.tar") == b"of the other"
        assert not down


@pytest.mark.parametrize(("how", "requests"), [("503", 4), ("500", 4), ("403", 3)])
def test_what_fails_is_asked_again_by_one_layer_alone(s3: Door, how: str, requests: int, tmp_path: Path) -> None:
    output = open_folder("s3://bucket/data", stores=Stores(patience=Patience(4, 0.01, 0.01)))
    (tmp_path / "staged").write_bytes(b"x")
    for work in (
        lambda: output.read("a"),
        lambda: output.names(),
        lambda: output.write("a", b"x"),
        lambda: output.publish({"a": tmp_path / "staged"}),
    ):
        s3.failed.clear()
        s3.fails = lambda method, target: how
        with pytest.raises((OSError, OutputError)):
            work()
        assert s3.failed[how] == requests


@pytest.mark.parametrize("size", [5 << 20, 12 << 20])
def test_a_list_that_is_replaced_while_it_is_read_is_not_mixed(s3: Door, size: int) -> None:
    with_client(lambda client: client.put_object(Bucket="bucket", Key="lists/urls.txt", Body=bytes(12 << 20)))
    (found,), _ = input_files("s3://bucket/lists", Stores(patience=Patience(4, 0.01, 0.01)))
    with found.open() as file:
        assert file.read(1000) == bytes(1000)
        with_client(lambda client: client.put_object(Bucket="bucket", Key="lists/urls.txt", Body=b"x" * size))
        failures = ["500"]
        s3.fails = lambda method, target: failures.pop() if failures else ""
        with pytest.raises(DamagedShard, match=r"urls\.txt was replaced while it was read"):
            file.read()
    assert not failures


ODD = ["a&b<c>.tar", "per cent % + plus.tar", "quote\"'s.tar", "Grüße 写真.tar", "a;&amp;.tar"]


def test_a_listing_says_what_botocore_says(s3: Door, output: OutputFolder) -> None:
    for number, name in enumerate(ODD):
        with_client(
            lambda client, n=number, name=name: client.put_object(Bucket="bucket", Key=f"data/{name}", Body=bytes(n))
        )
    found = with_client(lambda client: client.list_objects_v2(Bucket="bucket", Prefix="data/")["Contents"])
    listed = {info["name"].removeprefix("bucket/"): info for info in output.listed()}
    assert {key: (info["ETag"], info["size"]) for key, info in listed.items()} == {
        info["Key"]: (info["ETag"], info["Size"]) for info in found
    }
    assert sorted(output.names()) == sorted(ODD)
