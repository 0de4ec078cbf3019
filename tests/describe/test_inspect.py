"""What is in a dataset, as it is told: from Python, on a terminal, in a pipe."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from any2ds import download, inspect
from any2ds.describe.screen import show
from any2ds.testing.server import Server, serve

PICTURES = Path(__file__).parents[2] / "examples" / "data" / "images"
EVIL = "\x1b[31mred\x07 \u202egnp"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(6):
        (media / f"{n}.bin").write_bytes(b"x" * (10 + n))
    with serve(media) as running:
        yield running


@pytest.fixture
def out(server: Server, tmp_path: Path) -> Path:
    rows = [{"url": server.url(f"{n}.bin"), "caption": f"{EVIL} {n}", "n": n} for n in range(10)]
    download(
        rows,
        output_folder=tmp_path / "out",
        output_format="webdataset",
        caption_col="caption",
        save_additional_columns="n",
        number_sample_per_shard=4,
        distributor="inline",
        quiet=True,
    )
    return tmp_path / "out"


def shown(summary: Any) -> str:
    stream = io.StringIO()
    show(summary, stream)
    return stream.getvalue()


def test_nothing_of_a_list_reaches_the_terminal_raw(out: Path) -> None:
    stats = json.loads((out / "00000_stats.json").read_text())
    stats["status_dict"] = {"success": 4, f"bad {EVIL}\n": 1}
    (out / "00000_stats.json").write_text(json.dumps(stats))
    said = shown(inspect(out))
    assert "[31mred gnp" in said
    assert all(char.isprintable() or char == "\n" for char in said)


def test_what_is_missing_or_broken_is_told_and_the_rest_is_shown(out: Path) -> None:
    for file in ("00001_stats.json", "00001.tar", "00001.tar.idx", "00001.parquet"):
        (out / file).unlink()
    (out / "00000_stats.json").write_text("{")
    (out / "00002.parquet").write_text("no")
    segment, end = out / ".any2ds/segments/0000", out / ".any2ds/segments/0000.end"
    file = {"name": "https://u:secret@host/urls.txt", "size": None, "version": None}
    segment.write_text(json.dumps(json.loads(segment.read_text()) | {"files": [file]}))
    end.write_text(json.dumps(json.loads(end.read_text()) | {"rows": 18, "shards": 5}))
    found = inspect(out)
    assert (found.shards, found.missing, found.rows, found.coverage.rows_of_stats) == (2, (1, 3, 4), None, 2)
    assert len(found.problems) == 2
    said = shown(found)
    assert "3 MISSING (1, 3-4)" in said
    assert "https://host/urls.txt: 18 rows" in said
    assert "secret" not in said + json.dumps(found.to_json())
    assert "problem: 00000_stats.json" in said


def test_the_average_is_of_files_whose_size_is_known(out: Path) -> None:
    stats = json.loads((out / "00000_stats.json").read_text())
    known = 75 - stats.pop("bytes")
    (out / "00000_stats.json").write_text(json.dumps(stats))
    found = inspect(out)
    assert (found.bytes, found.measured) == (known, 6 - stats["successes"])
    assert f"{known // found.measured} bytes on average (of {found.measured} files" in shown(found)


def test_a_folder_of_img2dataset(tmp_path: Path) -> None:
    table = pa.table({"url": ["http://127.0.0.1/0"], "key": ["000000000"], "status": ["success"], "width": [3]})
    pq.write_table(table.append_column("jpg", pa.array([b"x"], pa.binary())), tmp_path / "00000.parquet")
    figures = {"count": 2, "successes": 1, "failed_to_download": 1, "failed_to_resize": 0, "duration": 1.5}
    times = {"start_time": 1.7e9, "end_time": 1e300, "status_dict": {"success": 1, "<urlopen error timed out>": 1}}
    (tmp_path / "00000_stats.json").write_text(json.dumps({**figures, **times}))
    found = inspect(tmp_path)
    assert (found.made_by, found.output_format) == ("img2dataset or any2dataset", "parquet")
    assert (found.rows, found.failed, found.bytes, found.started) == (2, 1, None, None)
    assert found.metadata_rows == ({"key": "000000000", "status": "success", "url": "http://127.0.0.1/0"},)
    assert "<urlopen error timed out>" in shown(found)


def test_pixels_and_the_options_of_a_preset_that_were_given(tmp_path: Path) -> None:
    with serve(PICTURES) as server:
        urls = [server.url(path.name) for path in sorted(PICTURES.glob("bars-0*.jpg"))]
        for folder, options in (("square", {"image_size": 32}), ("plain", {"resize_mode": "no"})):
            how: dict[str, Any] = {"output_format": "webdataset", "distributor": "inline", "quiet": True, **options}
            download(urls, output_folder=tmp_path / folder, preset="img2dataset", **how)
    square, plain = inspect(tmp_path / "square"), inspect(tmp_path / "plain")
    assert (square.widths.smallest, square.heights.largest) == (32, 32)
    text = shown(square)
    assert re.search(r"pixels +width 32 · height 32\n", text)
    assert re.search(r"options +preset=img2dataset output_format=webdataset image_size=32\n", text), text
    assert "resize_mode=no" in shown(plain)
    with Image.open(PICTURES / "bars-01.jpg") as image:
        assert plain.widths.smallest <= image.width <= plain.widths.largest


def test_it_fits_a_terminal_of_80_columns(out: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "any2ds", "inspect", str(out)]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    ran = subprocess.Popen(command, stdout=slave, stderr=subprocess.PIPE, env=environment, text=True)
    os.close(slave)
    said = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        said += piece
    os.close(master)
    assert ran.communicate(timeout=100)[1] == ""
    assert ran.returncode == 0
    plain = said.decode()
    for code in ("\x1b[1m", "\x1b[0m", "\x1b[2m", "\x1b[3m", "\x1b[33m"):
        plain = plain.replace(code, "")
    assert "\x1b" not in plain
    assert "\x07" not in plain
    assert max(len(line.rstrip("\r\n")) for line in plain.splitlines()) <= 80


@pytest.mark.parametrize(("variable", "columns"), [("60", 100), ("", 70), ("", 0)])
def test_in_a_pipe_it_is_as_wide_as_the_terminal_of_whoever_waits_for_it(
    out: Path, variable: str, columns: int
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "any2ds", "inspect", str(out)]
    environment = {**os.environ, "COLUMNS": variable}
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, env=environment, text=True, timeout=100)
    os.close(slave)
    os.close(master)
    assert ran.returncode == 0
    width = int(variable or columns or 120)
    longest = max(map(len, ran.stdout.splitlines()))
    assert width - 25 < longest <= width
