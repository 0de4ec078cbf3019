"""The last screen says what types of files the dataset has, and suggests commands that have what made the run work."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import download
from any2ds.testing.server import Server, serve

PAGE = b"<!doctype html><html><title>Just a moment</title></html>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "web").mkdir()
    for name in ("a.html", "b.html", "c.html"):
        (tmp_path / "web" / name).write_bytes(PAGE)
    for name in ("a.json", "late.json"):
        (tmp_path / "web" / name).write_text('{"a": 1}')
    with serve(tmp_path / "web", {"late.json": ["503", "ok"]}) as found:
        yield found


def run(url_list: Any, out: Any, **options: Any) -> None:
    options = {"number_sample_per_shard": 2, "distributor": "inline", "output_format": "webdataset", **options}
    download(url_list, out, retries=0, **options)


def lines(capsys: pytest.CaptureFixture[str], start: str) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(start)]


def test_the_types_of_what_a_run_has_stored(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "list.txt", tmp_path / "out"
    path.write_text("\n".join(map(server.url, ("a.html", "b.html", "a.json", "gone.json", "c.html", "late.json"))))
    run(path, out, limit=2)
    assert lines(capsys, "types") == ["types: 2 text/html"]
    run(path, out)
    assert lines(capsys, "types") == ["types: 1 application/json, 1 text/html"]
    run(path, out)  # nothing to do
    assert lines(capsys, "types") == []


def test_nothing_stored_has_no_type(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run([server.url("gone")], tmp_path / "out")
    assert lines(capsys, "types") == ["types: none, no file is stored"]


@pytest.mark.parametrize("form", ["lines", "json"])
def test_suggested_commands_have_the_config_file(server: Server, tmp_path: Path, form: str) -> None:
    (tmp_path / "list.txt").write_text("\n".join([server.url("a.html"), server.url("late.json")]))
    config = {"hosts": {"127.0.0.1": {"headers": {"X-Key": "1"}}}, "thread_count": 5, "retries": 0}
    (tmp_path / "my run.json").write_text(json.dumps(config))
    arguments = ["list.txt", "out", "--config=my run.json", "--timeout=7"]
    command = [sys.executable, "-m", "any2ds", *arguments, *(["--log_format=json"] if form == "json" else [])]
    how: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "encoding": "utf-8", "check": True}
    told = subprocess.run(command, **how).stderr.splitlines()
    if form == "json":
        end = json.loads(told[-1])
        suggested, types = end["retry"], end["types"]
        assert types == {"text/html": 1}
    else:
        (suggested,) = (line.partition(": ")[2] for line in told if line.startswith("to retry"))
    assert suggested == "any2ds retry out '--config=my run.json' --timeout=7"
    again = subprocess.run([sys.executable, "-m", *shlex.split(suggested)], **how).stderr
    assert "tried again: 1 row, of which 1 is stored now" in again


def test_calls_have_the_config_file_and_say_that_stores_have_options(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    options = {"storage_options": {"memory": {"use_listings_cache": False}}}
    file.write_text(json.dumps(options))
    run([server.url("a.html"), server.url("late.json")], "memory://stored", config=str(file))
    told = capsys.readouterr().err
    assert f"any2ds.retry('memory://stored', config={str(file)!r}, " in told
    assert 'to load: any2ds.load("memory://stored", storage_options=...)' in told
    run([server.url("a.html")], tmp_path / "local", **options)
    assert "storage_options" not in capsys.readouterr().err  # nothing on this machine needs them
