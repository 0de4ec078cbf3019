"""Item URLs of file systems, alone and mixed with http(s)."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry

from any2ds import download
from any2ds.config.options import Config, FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.core.schemes import FILE_SYSTEMS, GUARDED
from any2ds.fetch.engines.s3 import S3Object
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.testing.server import serve
from tests.support.fetching import FetcherContract
from tests.support.s3 import served

BODY = bytes(range(256)) * 40_000


@pytest.fixture(scope="module")
def s3(s3_server: None) -> Any:
    """A bucket on a server of this machine."""
    bucket = fsspec.filesystem("s3", skip_instance_cache=True)
    bucket.mkdir("media")
    bucket.pipe_file("media/a big.jpg", BODY)
    bucket.pipe_file("media/a.txt", b"a")
    bucket.pipe_file("media/empty", b"")
    return bucket


class _OfFileSystems(FetcherContract):
    missing = "not_found"

    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> UrlFetcher:
        return UrlFetcher(replace(options, allow_schemes=("file", "s3")), buffer)


class TestFilesOfThisMachine(_OfFileSystems):
    @contextmanager
    def site(self, folder: Path) -> Iterator[Callable[[str], str]]:
        yield lambda name: f"file://{folder}/{name}"


class TestObjectsInS3(_OfFileSystems):
    many = 150  # moto answers a hundred a second

    @pytest.fixture(autouse=True)
    def _bucket(self, s3: Any) -> None:
        self.bucket = s3

    @contextmanager
    def site(self, folder: Path) -> Iterator[Callable[[str], str]]:
        for file in folder.iterdir():
            self.bucket.pipe_file(f"media/{folder.name}/{file.name}", file.read_bytes())
        yield lambda name: f"s3://media/{folder.name}/{name}"


@pytest.fixture
def code(fetch: Any) -> Any:
    def code(url: str, **options: Any) -> str:
        (outcome,) = fetch([url], **options)
        assert isinstance(outcome, Failure), outcome
        return outcome.code

    return code


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.pipe_file("/media/a.jpg", BODY)
    yield files
    files.rm("/media", recursive=True)


def test_s3_objects_arrive_byte_for_byte(fetch: Any, s3: Any) -> None:
    outcomes = fetch(["s3://media/a big.jpg", "s3://media/a.txt"] * 20)
    assert all(isinstance(outcome, Payload) for outcome in outcomes)
    assert outcomes[0].body.read() == BODY
    assert outcomes[1].body.read() == b"a"
    assert (outcomes[1].media_type, outcomes[1].http_status, outcomes[1].final_url) == (None, None, None)
    assert outcomes[1].etag.strip('"') == "0cc175b9c0f1b6a831c399e269772661"
    assert outcomes[1].last_modified.endswith("GMT")


def test_s3_objects_fail_with_the_codes_of_the_list(code: Any, s3: Any) -> None:
    assert code("s3://media/missing") == "not_found"
    assert code("s3://no-such-bucket/a") == "not_found"
    assert code("s3://media/empty") == "empty_body"
    assert code("s3://media/a big.jpg", max_file_bytes=10_000_000) == "too_large"
    assert code("s3://media") == "bad_url"


@contextmanager
def counted() -> Iterator[tuple[list[str], set[object]]]:
    """What the bucket is asked for meanwhile, as `GET /media/a.txt`, and the connections on which that is."""
    requests: list[str] = []
    connections: set[object] = set()

    def door(app: Any) -> Any:
        def counting(environ: Any, start_response: Any) -> Any:
            requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            connections.add(environ["REMOTE_PORT"])
            return app(environ, start_response)

        return counting

    with served(door) as (url,), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield requests, connections


def test_a_small_object_of_s3_is_one_request(fetch: Any, s3: Any) -> None:
    with counted() as (requests, _):
        outcomes = fetch(["s3://media/a.txt", "s3://media/empty", "s3://media/missing"])
        assert sorted(requests) == ["GET /media/a.txt", "GET /media/empty", "GET /media/missing"]
        assert [getattr(outcome, "code", "") for outcome in outcomes] == ["", "empty_body", "not_found"]


def test_a_big_object_of_s3_is_read_in_growing_pieces(fetch: Any, s3: Any) -> None:
    with counted() as (requests, _):
        (outcome,) = fetch(["s3://media/a big.jpg"], stall_timeout=0)
        assert outcome.body.read() == BODY
        assert set(requests) == {"GET /media/a big.jpg"}
        assert 4 <= len(requests) < 10  # 256 KiB, then up to 4 MiB each of 10 MB, as fast as they come


def test_an_object_of_s3_that_is_replaced_meanwhile_is_no_mixture(s3: Any) -> None:
    s3.pipe_file("media/changing", b"a" * 300_000)
    file = S3Object(s3, "media/changing", 1 << 18)
    assert (file.size, len(file.read(10))) == (300_000, 1 << 18)
    s3.pipe_file("media/changing", b"b" * 300_000)
    with pytest.raises(OSError, match=r"pre-?conditions"):
        file.read(1 << 18)


def test_an_s3_without_credentials_denies_access(
    code: Any, s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert code("s3://media/a.txt") == "access_denied"


def test_files_in_memory_and_on_this_machine(fetch: Any, tmp_path: Path) -> None:
    path = tmp_path / "größe 100%25.jpg"
    path.write_bytes(BODY)
    outcomes = fetch(["memory://media/a.jpg", f"file://{path}", f"FILE://{path}"])
    assert [outcome.body.read() for outcome in outcomes] == [BODY] * 3


@pytest.mark.parametrize("name", ["a b.txt", "c:d.txt", "e%20f.txt", "100%.txt", "ü.txt"])
def test_a_file_url_may_be_encoded_or_not(fetch: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(name.encode())
    outcomes = fetch([path.as_uri(), f"file://{path}"])
    assert [outcome.body.read() for outcome in outcomes] == [name.encode()] * 2


def test_what_is_no_file_fails(code: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").touch(0)
    (tmp_path / "empty").touch()
    assert code(f"file://{tmp_path}/missing") == "not_found"
    assert code(f"file://{tmp_path}/pipe") == "not_found"
    assert code(f"file://{tmp_path}") == "not_found"
    assert code("file:///dev/zero") == "not_found"
    assert code(f"file://{tmp_path}/empty") == "empty_body"
    assert code("memory://media/missing") == "not_found"
    assert code("memory://media/a.jpg", max_file_bytes=1000) == "too_large"
    for incomplete in ("file://relative/a.jpg", "file:a.jpg", "file://", "data:nothing", "memory:a"):
        assert code(incomplete) == "bad_url"


def test_a_data_url_is_its_own_file(fetch: Any, code: Any) -> None:
    plain, coded = fetch(["data:,a%20b", "data:image/png;base64,aGVsbG8="])
    assert plain.body.read() == b"a b"
    assert (coded.body.read(), coded.media_type) == (b"hello", "image/png")
    assert code("data:;base64,x") == "bad_url"
    assert code("data:,") == "empty_body"
    assert code("data:,abc", max_file_bytes=2) == "too_large"


@pytest.mark.parametrize("scheme", sorted(GUARDED))
def test_no_row_is_read_with_the_rights_of_the_user_unless_its_scheme_is_allowed(
    scheme: str, fetch: Any, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    url = f"{scheme}://{'' if scheme == 'file' else '127.0.0.1:1'}{tmp_path}/secret"
    others = sorted(GUARDED - {scheme})
    for allowed in (None, others):
        (outcome,) = fetch([url], allow_schemes=allowed)
        assert (outcome.code, outcome.stage) == ("scheme_not_allowed", "fetch")
        assert outcome.detail == f"{scheme}: is read with your rights (--allow_schemes={scheme})"


@pytest.mark.parametrize("scheme", ["webhdfs", "hdfs", "smb"])
def test_what_connects_where_addresses_cannot_be_checked_is_for_configured_servers_alone(
    fetch: Any, scheme: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (outcome,) = fetch([f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/share/a"], allow_schemes=scheme)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert (outcome.code, "storage_options" in outcome.detail) == ("scheme_not_allowed", True)


def test_sftp_rows_of_a_metadata_service_are_refused(fetch: Any) -> None:
    (outcome,) = fetch(["sftp://169.254.169.254/etc/a"], allow_schemes="sftp")
    assert outcome.code == "blocked_address"


def test_lists_of_strangers_reach_no_file_of_this_machine(code: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    for url in (f"file://{tmp_path}/secret", "memory://media/a.jpg", "sftp://127.0.0.1/etc/passwd"):
        assert code(url, block_private_addresses=True) == "blocked_address"
    assert code("sftp://169.254.169.254/latest") == "blocked_address"


def test_a_missing_library_is_named(fetch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("gcsfs", "huggingface_hub", "paramiko"):
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "any2ds.fetch.engines.sftp", raising=False)  # other tests may have loaded them
    for protocol in ("gs", "hf"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    google, hugging_face, sftp = fetch(["gs://bucket/a", "hf://datasets/a/b/c.jpg", "sftp://127.0.0.1/a"])
    assert {google.code, hugging_face.code, sftp.code} == {"missing_extra"}
    assert "[gcs]" in google.detail
    assert "[hf]" in hugging_face.detail
    assert "[sftp]" in sftp.detail


def test_a_store_that_does_not_answer_costs_the_timeout_and_holds_up_nobody(
    fetch: Any, s3: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.jpg").write_bytes(BODY)
    with serve(tmp_path, {"bucket/a": ["timeout"]}) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", silent.base_url)
        urls = ["s3://bucket/a"] * 2 + ["memory://media/a.jpg", f"file://{tmp_path}/a.jpg"] * 10
        outcomes = fetch(urls, timeout=4, thread_count=2)
    assert [outcome.code for outcome in outcomes[:2]] == ["timeout_total"] * 2
    assert [outcome for outcome in outcomes[2:] if isinstance(outcome, Failure)] == []


def test_a_store_that_does_not_answer_is_cut_without_a_timeout(fetch: Any, s3: Any, tmp_path: Path) -> None:
    with serve(tmp_path, {"bucket/a": ["timeout"]}) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", silent.base_url)
        outcomes = fetch(["s3://bucket/a"] * 2, timeout=0, stall_timeout=0.5)
    assert [outcome.code for outcome in outcomes] == ["timeout_stalled"] * 2


def test_nothing_that_a_redirect_leads_to_is_a_file_system(code: Any, s3: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"secret")
    there = {"data": ",a", "s3": "//media/a.txt", "memory": "//media/a.jpg", "file": f"//{tmp_path}/a.txt"}
    locations = [f"{scheme}:{there.get(scheme, '//127.0.0.1/a.txt')}" for scheme in sorted(FILE_SYSTEMS | {"ftp"})]
    locations += [f"FILE://{tmp_path}/a.txt", f"file:{tmp_path}/a.txt", f"file:/{tmp_path}/a.txt"]
    script = {f"{number}": [f"302:Location={location}"] for number, location in enumerate(locations)}
    script["around"] = ["redirect:2"]
    with serve(tmp_path, script) as server:
        found = {name: code(server.url(name)) for name in script}
    assert found == dict.fromkeys(script, "bad_redirect")


def test_a_list_may_mix_them(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(BODY)
    with serve(tmp_path) as server:
        kinds = ["s3://media/a.txt", server.url("a.bin"), f"file://{tmp_path}/a.bin", "data:,abc", "gopher://x/y"]
        urls = [*kinds, server.url("missing"), "s3://media/missing"] * 10
        (tmp_path / "list.txt").write_text("\n".join(urls))
        report = download(
            str(tmp_path / "list.txt"),
            output_folder=str(tmp_path / "out"),
            output_format="webdataset",
            number_sample_per_shard=50,
            distributor="inline",
            quiet=True,
            timeout=100,
            allow_schemes="file,s3",
        )
    assert report.status_dict == {"success": 40, "unsupported_scheme": 10, "http_404": 10, "not_found": 10}
    table = pq.read_table(tmp_path / "out" / "00000.parquet")
    assert table["bytes"].to_pylist()[:5] == [1, len(BODY), len(BODY), 3, None]


@pytest.mark.parametrize("first", ["curl", "threads"])
def test_an_engine_does_not_wait_for_another_one(first: str, tmp_path: Path) -> None:
    """Each row of one kind is fetched after one of the other kind has come back, while a third one says nothing."""
    (tmp_path / "a").write_bytes(b"a")
    with serve(tmp_path, {"hang": ["timeout"]}) as server:
        kinds = [server.url("a"), f"file://{tmp_path}/a"]
        back = threading.Semaphore(0)

        def rows() -> Iterator[Row]:
            for n in range(400):
                yield Row(0, n, str(n), kinds[(n + (first == "threads")) % 2])
                assert back.acquire(timeout=100)
                if n == 10:
                    yield Row(0, 400, "400", server.url("hang"))

        options = Config.from_options({"url_list": "-", "timeout": 100, "allow_schemes": "file"}).fetch
        with closing(UrlFetcher(options, Buffer(1 << 20, 8))) as fetcher:
            started, done = time.monotonic(), 0
            for batch in fetcher.fetch(rows()):
                done += len(batch)
                for _ in batch:
                    back.release()
                if done == 400:
                    break
        # A heartbeat for every second row would be 20 s.
        assert time.monotonic() - started < 12
