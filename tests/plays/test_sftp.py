"""Rows of a real OpenSSH server: it has to be known, and names are as they are written."""

from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from tests.support.play import Play
from tests.support.sftp import SftpServer, serve_sftp

ODD = ("a b.jpg", "100%25.jpg", "#1.jpg", "what?.jpg", "größe.jpg", "a+b&c.jpg", "big.jpg")


@pytest.fixture(scope="module")
def server() -> Iterator[SftpServer]:
    with serve_sftp() as server:
        yield server


def test_names_of_files_may_be_odd_and_failures_are_told_apart(server: SftpServer, tmp_path: Path) -> None:
    contents = {name: name.encode() * (300_000 if name == "big.jpg" else 1) for name in ODD}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty.jpg").touch()
    rows = [server.url(tmp_path / name) for name in (*ODD, "missing.jpg", "empty.jpg")] + [server.url(tmp_path)]
    lists = {"urls.txt": "".join(f"{row}\n" for row in rows)}
    options = {"allow_schemes": "sftp", "storage_options": {"sftp": server.options}}
    outcome = Play(lists=lists, output_format="webdataset", retries=0, **options).run()
    assert outcome.codes == {"success": len(ODD), "not_found": 2, "empty_body": 1}
    assert [sample.data for sample in outcome.samples] == list(contents.values())


@pytest.mark.parametrize("known", ["", "another key"])
def test_a_server_that_is_not_known_is_not_logged_in_to(server: SftpServer, tmp_path: Path, known: str) -> None:
    other = paramiko.ECDSAKey.generate()
    line = f"[127.0.0.1]:{server.port} {other.get_name()} {other.get_base64()}\n" if known else ""
    (tmp_path / "known_hosts").write_text(line)
    (tmp_path / "a.jpg").write_bytes(b"a")
    options = {**server.options, "known_hosts": str(tmp_path / "known_hosts")}
    play = Play(lists={"urls.txt": server.url(tmp_path / "a.jpg") + "\n"}, allow_schemes="sftp", retries=0)
    assert play.run(storage_options={"sftp": options}).codes == {"tls": 1}


@pytest.mark.parametrize("scheme", ["sftp", "ssh", "ftp", "simplecache::sftp"])
def test_lists_and_datasets_there_are_refused_in_words(scheme: str) -> None:
    play = Play({"a.jpg": "ok"})
    (name,) = play.write_list()
    for words in ((f"{scheme}://127.0.0.1:9/urls.txt",), (name, f"{scheme}://127.0.0.1:9/out")):
        outcome = play.run("download", *words)
        assert outcome.exit_code == 2
        assert "rows of a list" in outcome.stderr
