"""`storage_options` and fsspec's own configuration: where they hold, and that nothing secret in them gets out."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, inspect, retry, verify
from any2ds.config.options import StorageOptions
from any2ds.config.parsers import storage_options
from any2ds.core.errors import OptionError
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores
from any2ds.testing.server import Server, serve
from tests.support.programs import program
from tests.support.s3 import Bucket, Door, Wsgi, served
from tests.support.storing import body

SECRET = "hunter2-of-the-store"


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[Door, str]]:
    doors: list[Door] = []

    def door(app: Wsgi) -> Wsgi:
        doors.append(Door(app))
        return doors[0]

    with served(door) as (url,):
        yield doors[0], url


@pytest.fixture
def bucket(s3: tuple[Door, str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Which nobody finds by the environment."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    bucket = Bucket(s3[0], s3[1], s3[1])
    bucket.connect().pipe_file(f"{bucket.url}/0.jpg", body(0))
    bucket.connect().pipe_file(f"{bucket.url}/list.txt", f"{bucket.url}/0.jpg\n{bucket.url}/1.jpg\n".encode())
    return bucket


def options(s3: tuple[Door, str]) -> dict[str, Any]:
    return {
        "s3": {"key": "test", "secret": SECRET, "endpoint_url": s3[1], "client_kwargs": {"region_name": "us-east-1"}}
    }


@pytest.mark.slow
def test_they_hold_for_lists_files_and_outputs_in_all_processes_and_commands(
    s3: tuple[Door, str], bucket: Bucket
) -> None:
    given = {"storage_options": options(s3), "quiet": True}
    fetching = {**given, "allow_schemes": "s3"}
    output = f"{bucket.url}/out"
    many = {"number_sample_per_shard": 1, "processes_count": 2, "output_format": "webdataset"}
    report = download(f"{bucket.url}/list.txt", output_folder=output, **many, **fetching)
    assert (report.successes, report.shards) == (1, 2)
    bucket.connect().pipe_file(f"{bucket.url}/1.jpg", body(1))
    assert retry(output, codes="all", processes_count=1, **fetching).successes == 1
    assert verify(output, **given).ok
    assert inspect(output, storage_options=given["storage_options"]).successes == 2
    assert not [name for name, content in stored(bucket).items() if SECRET.encode() in content]


def stored(bucket: Bucket) -> dict[str, bytes]:
    fs = bucket.connect()
    return {str(name): bytes(fs.cat_file(name)) for name in fs.find(bucket.url)}


@pytest.mark.slow
def test_the_configuration_of_fsspec_holds_too(s3: tuple[Door, str], bucket: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "fsspec"
    folder.mkdir(parents=True)
    kwargs = {"endpoint_url": s3[1], "region_name": "us-east-1"}
    (folder / "s3.json").write_text(json.dumps({"s3": {"key": "test", "secret": SECRET, "client_kwargs": kwargs}}))
    command = [sys.executable, "-m", "any2ds", f"--url_list={bucket.url}/list.txt", f"--output_folder={bucket.url}/out"]
    environment = {**os.environ, "HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    ran = subprocess.run(
        [*command, "--processes_count=1", "--allow_schemes=s3"], env=environment, capture_output=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert any(name.endswith("00000_stats.json") for name in stored(bucket))


def test_what_is_for_one_server_or_account_is_for_no_other_that_a_row_names() -> None:
    stores = Stores({"smb": {"host": "mine", "password": "p"}, "sftp": {"password": "p"}, "az": {"account_name": "me"}})
    assert stores.of_item("smb", {"host": "mine"})
    assert not stores.of_item("smb", {"host": "theirs"})
    assert not stores.of_item("sftp", {"host": "theirs"})
    assert stores.of_item("abfs", {"account_name": "me"})
    assert not stores.of_item("abfs", {"account_name": "they"})
    assert stores.of("sftp") == {"password": "p"}


def test_they_are_by_protocol_and_no_mistake_repeats_them() -> None:
    assert storage_options('{"s3": {"key": "a"}}') == {"s3": {"key": "a"}}
    for wrong in ({"key": SECRET}, f'{{"s3": "{SECRET}"}}', f"key={SECRET}", {"s4": {"key": SECRET}}, [SECRET]):
        with pytest.raises(OptionError) as raised:
            download(["http://127.0.0.1:1/"], storage_options=wrong)
        assert SECRET not in str(raised.value)
        assert "by protocol" in str(raised.value)
    assert SECRET not in repr(StorageOptions(storage_options={"s3": {"secret": SECRET}}))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serve(tmp_path, {"held": ["hold"]}) as server:
        yield server


@pytest.mark.slow
def test_no_secret_is_said_written_or_shown_to_ps_whatever_the_store_refuses(
    s3: tuple[Door, str], bucket: Bucket, server: Server, tmp_path: Path
) -> None:
    urls = [f"{bucket.url}/0.jpg", f"{bucket.url}/absent", f"ftp://me:{SECRET}@127.0.0.1:1/a", server.url("held")]
    urls += [f"sftp://me:{SECRET}@127.0.0.1:1/a"]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    config = tmp_path / "any2ds.yaml"
    written = {
        "url_list": str(tmp_path / "urls.txt"),
        "storage_options": {**options(s3), "sftp": {"host": "127.0.0.1", "port": 1, "password": SECRET}},
        "log_level": "debug",
        "allow_schemes": "s3,sftp",
        "processes_count": 1,
        "timeout": 60,
    }
    config.write_text(json.dumps(written))
    environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": f"{SECRET}-env", "AWS_ACCESS_KEY_ID": "test"}
    command = [sys.executable, "-m", "any2ds", f"--config={config}"]
    run = subprocess.Popen(
        [*command, f"--output_folder={tmp_path / 'out'}"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        server.wait_for("held")
        shown = [line for line in _command_lines() if SECRET.encode() in line]
        server.release()
        said, _ = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 0, said.decode()
    assert not shown
    s3[0].fails = lambda method, target: "403"
    try:
        for refused in (
            [f"--output_folder={bucket.url}/refused"],
            [f"--url_list={bucket.url}/list.txt", f"--output_folder={tmp_path / 'other'}"],
        ):
            ran = subprocess.run(
                [*command, *refused], env=environment, capture_output=True, timeout=120, stdin=subprocess.DEVNULL
            )
            assert ran.returncode == 2, ran.stderr.decode()
            said += ran.stdout + ran.stderr
    finally:
        s3[0].fails = lambda method, target: ""
    assert SECRET.encode() not in said
    files = [path for folder in ("out", "other") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def _command_lines() -> list[bytes]:
    found = subprocess.run([program("ps"), "-eo", "args"], capture_output=True, check=False).stdout
    return [line for line in found.splitlines() if b"any2ds" in line or b"python" in line]


def test_in_another_process_an_output_folder_has_them_too(s3: tuple[Door, str], bucket: Bucket) -> None:
    import pickle

    folder = open_folder(f"{bucket.url}/out", stores=Stores(options(s3)))
    folder.write("a", b"1")
    assert pickle.loads(pickle.dumps(folder)).read("a") == b"1"
