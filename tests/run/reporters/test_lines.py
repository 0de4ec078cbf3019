"""Where there is no terminal: plain lines, lines of JSON, and one output that changes in a notebook."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from any2ds.testing.server import serve

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "examples" / "data" / "images"


def run(folder: Path, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "any2ds", *arguments]
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**clean, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), **env},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def events(stderr: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.splitlines()]


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}])
def test_in_a_log_there_are_lines_and_nothing_that_moves_a_cursor(tmp_path: Path, env: dict[str, str]) -> None:
    with serve(PICTURES, {"bars-01.jpg": ["slow:2"]}) as server:  # else it is over before the first line
        rows = [server.url(name) for name in ("bars-01.jpg", "gone.jpg")]
        (tmp_path / "urls.txt").write_text("\n".join(rows))
        done = run(tmp_path, "--url_list=urls.txt", "--log_interval=0.1", "--report=false", **env)
    assert done.returncode == 0
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "any2ds writes to files/"
    assert any(" rows" in line and "stored/s, " in line for line in lines[1:3])
    assert "\r" not in done.stderr
    without_colours = done.stderr if "FORCE_COLOR" not in env else done.stderr.replace("\x1b[", "")
    assert "\x1b" not in without_colours
    for code in "ABCDHJKhl":
        assert f"\x1b[{code}" not in done.stderr
        assert f"\x1b[1{code}" not in done.stderr


def test_every_line_on_standard_error_is_json(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(
        textwrap.dedent(
            """
            import logging, sys, warnings
            def loud(sample):
                print("printed")
                print('said "so"\\x1b[2J', file=sys.stderr)
                logging.getLogger("any2ds").warning("logged")
                return sample
            """
        )
    )
    with serve(PICTURES, {"late.jpg": ["503"]}) as server:
        rows = [server.url(name) for name in ("bars-01.jpg", "gone.jpg", "late.jpg")]
        (tmp_path / "urls.txt").write_text("\n".join(rows))
        options = ["--url_list=urls.txt", "--log_format=json", "--log_interval=0.1", "--file_size=0"]
        done = run(tmp_path, *options, "--transform=step:loud", "--output_format=webdataset", "--output_folder=out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    said = events(done.stderr)
    events_of_run = [event["event"] for event in said if event["event"] not in ("progress", "output")]
    assert events_of_run == ["start", "shard_finished", "finish"]
    start, end = said[0], said[-1]
    assert (start["command"], start["output_folder"], start["shards_before"]) == ("download", "out", 0)
    texts = [event["text"] for event in said if event["event"] == "output"]
    assert {"printed", 'said "so"\x1b[2J', "logged"} <= set(texts)
    assert any(event["event"] == "progress" for event in said)
    assert (end["rows"], end["stored"], end["failed"], end["retryable_rows"]) == (3, 1, 2, 1)
    assert end["pattern"] == "00000.tar"
    assert end["report"] == "out/report.html"
    assert (tmp_path / "out" / "report.html").exists()
    assert end["retry"] == "any2ds retry out"
    by_code = {outcome["code"]: outcome for outcome in end["outcomes"]}
    assert by_code["http_503"]["transient"] is True
    assert by_code["http_404"]["rows"] == 1
    assert by_code["http_404"]["advice"]
    assert by_code["success"]["advice"] is None


@pytest.mark.slow
def test_a_notebook_has_one_output_that_changes_and_ends_as_the_table(tmp_path: Path) -> None:
    with serve(PICTURES, {"slow.jpg": ["slow:3"], "late.jpg": ["503"]}) as server:
        rows = [server.url(name) for name in ("bars-01.jpg", "late.jpg", "slow.jpg")]
        (tmp_path / "urls.txt").write_text("\n".join(rows))
        code = f"""
import json, nbformat
from nbclient import NotebookClient

cells = [
    "from any2ds import download, verify\\nprint('before')\\n"
    "report = download('urls.txt', output_folder='out', file_size=0, processes_count=1)\\nprint('after')",
    "verify('out').ok",
]
seen = []
class Client(NotebookClient):
    def process_message(self, message, cell, number):
        seen.append(message["msg_type"])
        return super().process_message(message, cell, number)
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
Client(notebook, timeout=200, resources={{"metadata": {{"path": {str(tmp_path)!r}}}}}).execute()
print(json.dumps([[cell["outputs"] for cell in notebook.cells], seen]))
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    (first, second), messages = json.loads(done.stdout)
    assert [output["output_type"] for output in first] == ["stream", "display_data", "stream"]
    assert (first[0]["text"], first[2]["text"]) == ("before\n", "after\n")
    words = first[1]["data"]["text/plain"]
    assert words.startswith("any2ds writes to out/\noutcome ")
    assert "any2ds.retry('out', processes_count=1)" in words
    assert "\x1b" not in words
    assert messages.count("update_display_data") >= 2
    (result,) = second
    assert result["data"]["text/plain"] == "True"
