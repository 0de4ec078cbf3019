"""What is special about servers that are logged in to, and about GCS: keys, locks, odd names, sessions that break."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import paramiko
import pytest

from any2ds import download
from any2ds.core.errors import InputError
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import Holder, LockFile
from any2ds.storage.lock.owner import Owner
from any2ds.storage.lock.run_lock import Intervals, locked
from any2ds.storage.sftp import login_of, path_of
from any2ds.storage.stores import Stores
from tests.support.gcs import GcsPlace, serve_gcs
from tests.support.programs import program
from tests.support.servers import running
from tests.support.sftp import SftpPlace, SftpServer, serve_sftp

QUICK = Intervals(beat=0.2, stale=2.0, look=0.2, settle=0.2)
ODD = ("a b.jpg", "100%25.jpg", "#1.jpg", "what?.jpg", "größe.jpg", "a+b&c.jpg")


@pytest.fixture(scope="module")
def server() -> Iterator[SftpServer]:
    with serve_sftp() as server:
        yield server


@pytest.fixture
def sftp(server: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SftpPlace:
    monkeypatch.setitem(fsspec.config.conf, "sftp", server.options)
    return server.new_place(tmp_path.name)


@pytest.fixture(scope="module")
def bucket() -> Iterator[GcsPlace]:
    with serve_gcs() as server:
        yield server.new_place()


@pytest.fixture
def gcs(bucket: GcsPlace, monkeypatch: pytest.MonkeyPatch) -> GcsPlace:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    return bucket


@pytest.fixture(params=["sftp", "gcs"])
def place(request: pytest.FixtureRequest) -> SftpPlace | GcsPlace:
    found: SftpPlace | GcsPlace = request.getfixturevalue(request.param)
    return found


@pytest.mark.slow
def test_a_second_run_elsewhere_is_refused_while_the_first_one_lives(
    place: SftpPlace | GcsPlace, tmp_path: Path
) -> None:
    """Another temporary folder, so that the kernel does not tell, as on another machine."""
    with locked(OutputFolder(f"{place.url}/locked"), "download", QUICK) as lock:
        command = [sys.executable, "-m", "any2ds", "--url_list=-", f"--output_folder={place.url}/locked"]
        environment = {**os.environ, **place.environment, "TMPDIR": str(tmp_path)}
        second = subprocess.run(command, env=environment, input=b"x\n", capture_output=True, timeout=100, check=False)
        assert second.returncode == 2, second.stderr
        assert b"in use by another run" in second.stderr
        lock.check()


def test_the_lock_of_a_run_that_is_dead_is_taken_over(place: SftpPlace | GcsPlace) -> None:
    output = OutputFolder(f"{place.url}/stale")
    output.create()
    dead = Holder("1" * 32, "download", 0.0, Owner("elsewhere", 12, "another kernel", "pid:[1]", "34"))
    LockFile(output).write(dead.to_bytes())
    with locked(OutputFolder(f"{place.url}/stale"), "download", QUICK):
        assert LockFile(output).holder() != dead
    assert LockFile(output).holder() is None


def test_names_of_files_and_lists_may_be_odd(place: SftpPlace | GcsPlace, tmp_path: Path) -> None:
    fs = place.connect()
    root = fs._strip_protocol(place.url)
    fs.makedirs(f"{root}/odd", exist_ok=True)
    for name in ODD:
        fs.pipe_file(f"{root}/odd/{name}", name.encode())
    fs.pipe_file(f"{root}/odd/list #1?.txt", "".join(f"{place.url}/odd/{name}\n" for name in ODD).encode())
    options = {"output_folder": str(tmp_path / "out"), "distributor": "inline", "quiet": True}
    options["allow_schemes"] = place.url.partition(":")[0]
    assert download(f"{place.url}/odd/list #1?.txt", **options).successes == len(ODD)
    stored = sorted(path.read_bytes() for path in (tmp_path / "out" / "00000").glob("*.flat"))
    assert stored == sorted(name.encode() for name in ODD)


def test_a_file_that_ends_in_a_carriage_return_is_whole_in_gcs_or_the_upload_fails(
    gcs: GcsPlace, tmp_path: Path
) -> None:
    output = OutputFolder(f"{gcs.url}/returns")
    (tmp_path / "staged").write_bytes(b"ends in\r")
    output.publish(tmp_path / "staged", "file")
    assert output.read("file") == b"ends in\r"


def test_sessions_that_break_are_made_again_in_each_thread(server: SftpServer, sftp: SftpPlace) -> None:
    output = OutputFolder(f"{sftp.url}/threads")
    output.create()
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                content = bytes([number, turn]) * 50_000
                output.write(f"{number}", content)
                assert output.read(f"{number}") == content
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        threads[0].join(0.5)
        server.relay.cut_all()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_server_with_another_key_than_the_known_one_is_refused(
    server: SftpServer, sftp: SftpPlace, tmp_path: Path
) -> None:
    other = paramiko.ECDSAKey.generate()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.relay.port} {other.get_name()} {other.get_base64()}\n")
    with pytest.raises(InputError, match="does not match"):
        Stores({"sftp": {**server.options, "known_hosts": str(known)}}).open(sftp.url)
    known.write_text("")
    unknown = {**server.options, "known_hosts": str(known)}
    with pytest.raises(InputError, match="ssh-keyscan"):
        Stores({"sftp": {**unknown, "host_key_policy": "reject"}}).open(sftp.url)
    assert Stores({"sftp": unknown}).open(sftp.url)[0].exists(sftp.folder)


def test_the_same_path_on_two_servers_is_two_folders(server: SftpServer, sftp: SftpPlace) -> None:
    behind = OutputFolder(server.url(sftp.folder))
    directly = OutputFolder(server.url(sftp.folder, server.port))
    assert behind.identity != directly.identity
    assert str(server.port) in directly.identity


@pytest.mark.parametrize(
    ("url", "login", "path"),
    [
        ("sftp://host/a/b?c#d%20e", {"host": "host"}, "/a/b?c#d%20e"),
        (
            "sftp://me:p%40ss@host:22/a/",
            {"host": "host", "port": 22, "username": "me", "password": "p@ss"},
            "/a",
        ),
        ("sftp://[::1]:2121", {"host": "::1", "port": 2121}, "/"),
        ("/a/b?c", {}, "/a/b?c"),
    ],
)
def test_urls_of_servers_mean_what_is_written(url: str, login: dict[str, object], path: str) -> None:
    assert (login_of(url), path_of(url)) == (login, path)


def test_a_list_in_a_folder_that_nginx_shows(tmp_path: Path) -> None:
    """url lists found by a glob over its listing, and the files named in them."""
    from tests.support.servers import free_port

    nginx = program("nginx")
    site, port = tmp_path / "site", free_port()
    (site / "lists").mkdir(parents=True)
    for number in range(4):
        (site / f"{number}.bin").write_bytes(b"%d" % number * 100)
        (site / f"lists/{number}.txt").write_text(f"http://127.0.0.1:{port}/{number}.bin\n")
    tmp_path.chmod(0o755)
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr; events {{}} {'user root;' if os.getuid() == 0 else ''}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p;\n"
        f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; root {site}; autoindex on; }} }}\n"
    )
    with running([nginx, "-p", str(tmp_path), "-c", str(config)], port, tmp_path / "log"):
        url = f"http://127.0.0.1:{port}/lists/*.txt"
        report = download(url, output_folder=str(tmp_path / "out"), distributor="inline", quiet=True)
    assert report.successes == 4
