"""An output folder, wherever it is: whole files under final names, in the order in which they are published."""

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from any2ds import download
from any2ds.config.options import StorageOptions
from any2ds.core.errors import OptionError, OutputError
from any2ds.storage import local
from any2ds.storage.disk import durable
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import PATIENT, Patience, is_permanent, persist
from any2ds.testing.server import serve
from tests.support.smalldisk import small_disk


@pytest.fixture
def bucket(s3_server: None) -> str:
    name = f"b-{uuid.uuid4().hex[:12]}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    client.close()
    return name


class FileServer(LocalFileSystem):  # type: ignore[misc]
    """Stands for smb, hdfs and the like: files of folders, by a protocol of its own."""

    protocol = ("server",)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("server://")))


fsspec.register_implementation("server", FileServer)


@pytest.fixture(params=["local", "two disks", "memory", "s3", "server"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutputFolder]:
    with contextlib.ExitStack() as stack:
        if request.param == "local":
            found = open_folder(str(tmp_path / "out"))
        elif request.param == "two disks":
            disk = stack.enter_context(small_disk(tmp_path / "disk", 5_000_000))
            found = open_folder(str(tmp_path / "out"), StorageOptions(staging_dir=str(disk.folder)))
        elif request.param == "memory":
            found = open_folder(f"memory://{uuid.uuid4().hex}")
        elif request.param == "server":
            found = open_folder(f"server://{tmp_path}/out")
        else:
            found = open_folder(f"s3://{request.getfixturevalue('bucket')}/data")
        found.create()
        yield found


def staged(output: OutputFolder, content: bytes | Mapping[str, bytes]) -> Path:
    path = output.staging_root / uuid.uuid4().hex
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.mkdir()
        for name, data in content.items():
            (path / name).write_bytes(data)
    return path


def folder(output: OutputFolder, name: str) -> dict[str, bytes | None]:
    return {member: output.read(f"{name}/{member}") for member in output.names(name)}


def test_files_and_folders_get_their_names_and_replace_what_is_there(output: OutputFolder) -> None:
    first, second = staged(output, b"tar"), staged(output, {"a": b"1", "b": b"2"})
    output.publish({"00000.tar": first, "00001": second})
    assert output.read("00000.tar") == b"tar"
    assert folder(output, "00001") == {"a": b"1", "b": b"2"}
    assert not first.exists()
    assert not second.exists()
    output.publish({"00000.tar": staged(output, b"other")})
    output.publish({"00001": staged(output, {"b": b"3", "c": b"4"})})
    assert output.read("00000.tar") == b"other"
    assert folder(output, "00001") == {"b": b"3", "c": b"4"}
    assert set(output.names()) - {".any2ds"} == {"00000.tar", "00001"}


def test_names_may_be_in_subfolders_and_be_removed(output: OutputFolder) -> None:
    output.publish({".any2ds/inner/00012/00012.tar": staged(output, b"new")})
    output.publish({".any2ds/inner/00013/00013": staged(output, {"a": b"1", "b": b"2"})})
    output.write(".any2ds/inner/00012/00012_stats.json", b"{}")
    output.publish({"00012.tar": staged(output, b"tar")})
    assert sorted(output.names(".any2ds/inner/00012")) == ["00012.tar", "00012_stats.json"]
    assert output.read(".any2ds/inner/00012/00012.tar") == b"new"
    assert folder(output, ".any2ds/inner/00013/00013") == {"a": b"1", "b": b"2"}
    output.remove_tree(".any2ds/inner")
    output.remove_tree(".any2ds/inner")
    output.remove("00012.tar")
    output.remove("00012.tar")
    assert set(output.names()) - {".any2ds"} == set()
    assert output.names(".any2ds/inner") == []


def test_what_is_absent_is_none_and_small_files_are_written_over(output: OutputFolder) -> None:
    assert output.read(".any2ds/run") is None
    output.write(".any2ds/run", b"1")
    output.write(".any2ds/run", b"22")
    assert output.read(".any2ds/run") == b"22"


def test_of_many_who_put_a_file_if_it_is_absent_one_does(output: OutputFolder) -> None:
    name = ".any2ds/segments/0001.json"
    contents = [b"%d" % number * 1000 for number in range(8)]
    has_condition = output.is_local or output.url.startswith("s3:")
    with ThreadPoolExecutor(8 if has_condition else 1) as pool:
        results = list(pool.map(lambda content: output.put_if_absent(name, content), contents))
    assert results.count(True) == 1
    assert output.read(name) == contents[results.index(True)]
    assert not output.put_if_absent(name, b"later")
    assert output.names(".any2ds/segments") == ["0001.json"]


def test_a_file_that_appears_after_the_look_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store that can make a file on condition that there is none, as Azure."""
    output = open_folder(f"memory://{uuid.uuid4().hex}/data")
    output.write("run", b"of another")
    with monkeypatch.context() as patch:
        patch.setattr(output, "version", lambda name: "")
        with pytest.raises(FileExistsError):
            output.replace("run", b"mine", "")
        reads = iter([None, b"of another"])
        patch.setattr(output, "read", lambda name: next(reads))
        assert not output.put_if_absent("run", b"mine")
    assert output.read("run") == b"of another"


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and renamed, in this order; folders end with a slash."""
    found: list[str] = []
    flush, replace = durable._flush, os.replace

    def noted_flush(path: Path | str, cannot: set[int]) -> None:
        name = Path(path).name
        found.append(f"{name}/" if Path(path).is_dir() else name)
        flush(path, cannot)

    def noted_replace(source: Path, target: Path) -> None:
        found[:] = [Path(target).name if entry == Path(source).name else entry for entry in found]
        found.append(f"rename {target.name}")
        replace(source, target)

    monkeypatch.setattr(durable, "_flush", noted_flush)
    monkeypatch.setattr(local.os, "replace", noted_replace)
    return found


def test_a_shard_is_on_the_disk_before_its_stats_are(tmp_path: Path, journal: list[str]) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "a").write_bytes(b"a")
    with serve(media) as server:
        for output_format in ("webdataset", "files"):
            journal.clear()
            options = {"output_format": output_format, "distributor": "inline", "quiet": True}
            download([server.url("a")], output_folder=tmp_path / output_format, **options)
            data, *extra_files = {"webdataset": ["00000.tar", "00000.tar.idx"], "files": ["00000"]}[output_format]
            renames = [entry for entry in journal if entry.startswith("rename 00000")]
            names = [data, *extra_files, "00000.parquet", "00000_stats.json"]
            assert renames == [f"rename {name}" for name in names]
            is_file = output_format == "webdataset"
            assert journal.index(data if is_file else f"{data}/") < journal.index(f"rename {data}")
            assert journal.index("00000.parquet") < journal.index("rename 00000.parquet")
            between = journal[journal.index("rename 00000.parquet") : journal.index("rename 00000_stats.json")]
            assert between == ["rename 00000.parquet", f"{output_format}/", "00000_stats.json"]
            stats = journal.index("rename 00000_stats.json")
            assert journal[stats : stats + 2] == ["rename 00000_stats.json", f"{output_format}/"]
            if not is_file:
                assert {"000000000.flat", "000000000.json"} < set(journal[: journal.index("00000/")])
            journal.clear()
            download([server.url("a")], output_folder=tmp_path / f"{output_format}-fast", fsync=False, **options)
            assert {entry.split()[0] for entry in journal} == {"rename"}


def test_waits_double_and_end_after_two_minutes() -> None:
    assert list(Patience(5, 1.0, 3.0).pauses(lambda: 0)) == [1, 2, 3, 3]
    assert 60 < sum(PATIENT.pauses(lambda: 0.999)) < sum(PATIENT.pauses(lambda: 0)) <= 160
    assert PATIENT.within == 120


def test_what_fails_for_good_is_soon_given_up_and_the_end_of_a_run_ends_all_waiting() -> None:
    calls: list[int] = []

    def fail(error: Exception) -> None:
        calls.append(1)
        raise error

    quick = Patience(6, 0.001, 0.001)
    for error, times in ((TimeoutError(), 6), (PermissionError(), 3), (NotImplementedError(), 3)):
        calls.clear()
        with pytest.raises(type(error)):
            persist("x", lambda error=error: fail(error), patience=quick)
        assert len(calls) == times
    stop = threading.Event()
    stop.set()
    with pytest.raises(TimeoutError):
        persist("x", lambda: fail(TimeoutError()), stop)
    assert not is_permanent(ConnectionResetError())


def test_a_staging_folder_is_one_of_this_machine_in_which_folders_can_be_made(tmp_path: Path) -> None:
    for store in ("s3://bucket/x", "s3:/bucket/x"):
        with pytest.raises(OptionError, match="a folder of this machine"):
            download(["http://localhost/a"], output_folder=tmp_path / "out", staging_dir=store)
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file/below", Path("/proc/any2ds")):
        with pytest.raises(OutputError, match="staging folder"):
            open_folder(str(tmp_path / "out"), StorageOptions(staging_dir=str(place))).create()
