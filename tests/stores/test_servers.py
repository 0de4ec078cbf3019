"""What is special about GCS, and about lists on a web server: locks, odd names."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from any2ds import download
from any2ds.core.layout import LOCK_FILE
from any2ds.storage.lock.lease import Intervals
from any2ds.storage.lock.lock_file import Holder
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from tests.support.gcs import GcsPlace, serve_gcs
from tests.support.programs import program
from tests.support.servers import running

QUICK = Intervals(beat=0.2, stale=2.0, look=0.2, settle=0.2)
ODD = ("a b.jpg", "100%25.jpg", "#1.jpg", "what?.jpg", "größe.jpg", "a+b&c.jpg")


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


@pytest.mark.slow
def test_a_second_run_elsewhere_is_refused_while_the_first_one_lives(gcs: GcsPlace, tmp_path: Path) -> None:
    """Another temporary folder, so that the kernel does not tell, as on another machine."""
    with locked(open_folder(f"{gcs.url}/locked"), "download", intervals=QUICK) as lock:
        command = [sys.executable, "-m", "any2ds", "--url_list=-", f"--output_folder={gcs.url}/locked"]
        environment = {**os.environ, **gcs.environment, "TMPDIR": str(tmp_path)}
        second = subprocess.run(
            command, env=environment, input=b"http://127.0.0.1/x\n", capture_output=True, timeout=100, check=False
        )
        assert second.returncode == 2, second.stderr
        assert b"in use by another run" in second.stderr
        lock.check()


def test_the_lock_of_a_run_that_is_dead_is_taken_over(gcs: GcsPlace) -> None:
    output = open_folder(f"{gcs.url}/stale")
    output.create()
    dead = Holder("1" * 32, "download", "elsewhere", 12, 0.0)
    output.replace(LOCK_FILE, dead.to_bytes(), "")
    with locked(open_folder(f"{gcs.url}/stale"), "download", intervals=QUICK):
        assert Holder.of(output, LOCK_FILE) not in (None, dead)
    assert Holder.of(output, LOCK_FILE) is None


def test_names_of_files_and_lists_may_be_odd(gcs: GcsPlace, tmp_path: Path) -> None:
    fs = gcs.connect()
    root = fs._strip_protocol(gcs.url)
    fs.makedirs(f"{root}/odd", exist_ok=True)
    for name in ODD:
        fs.pipe_file(f"{root}/odd/{name}", name.encode())
    fs.pipe_file(f"{root}/odd/list #1?.txt", "".join(f"{gcs.url}/odd/{name}\n" for name in ODD).encode())
    options = {"output_folder": str(tmp_path / "out"), "distributor": "inline", "quiet": True}
    options["allow_schemes"] = gcs.url.partition(":")[0]
    assert download(f"{gcs.url}/odd/list #1?.txt", **options).successes == len(ODD)
    stored = sorted(path.read_bytes() for path in (tmp_path / "out" / "00000").glob("*.flat"))
    assert stored == sorted(name.encode() for name in ODD)


def test_a_file_that_ends_in_a_carriage_return_is_whole_in_gcs_or_the_upload_fails(
    gcs: GcsPlace, tmp_path: Path
) -> None:
    output = open_folder(f"{gcs.url}/returns")
    (tmp_path / "staged").write_bytes(b"ends in\r")
    output.publish({"file": tmp_path / "staged"})
    assert output.read("file") == b"ends in\r"


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
