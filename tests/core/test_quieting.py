"""The terminal is ours: what libraries say of damaged files does not reach it, and what Python code says does."""

import contextlib
import io
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from any2ds.testing.server import serve
from tests.support.params import sampled

PICTURES = 6
AS_IT_COMES = ["--disable_all_reencoding"]  # else what is damaged does not reach a step
STEP = '''
import ctypes, faulthandler, logging, os, subprocess, sys, warnings

def talks(sample):
    """Says so in every way, and takes pictures of the test server apart no further."""
    print("printed")
    print("printed to standard error", file=sys.stderr)
    logging.getLogger("somebody").warning("logged")
    warnings.warn("warned")
    os.write(1, b"written to 1\\n")
    os.write(2, b"written to 2\\n")
    code = "import os; os.write(2, b'of a program'); os.write(1, b'of a program')"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import os; os.write(1, b'of an asked program\\\\n')"  # in one piece: threads have others at the same time
    subprocess.run([sys.executable, "-c", code], stdout=sys.stderr, check=True)
    return sample

def dies(sample):
    faulthandler.enable()
    ctypes.string_at(0)
'''


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A list of pictures, each of which has something else in its middle."""
    folder = tmp_path_factory.mktemp("media")
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    Image.fromarray(noise).save(stream, "JPEG")
    for number in range(PICTURES):
        data = bytearray(stream.getvalue())
        at = len(data) // 2 + 100 * number
        data[at : at + 40] = b"\x11" * 40
        (folder / f"{number}.jpg").write_bytes(data)
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, "TIFF")
    samples = struct.Struct("<HHIHH")
    tiff = stream.getvalue().replace(samples.pack(277, 3, 1, 3, 0), samples.pack(277, 3, 1, 65535, 0))
    (folder / "broken.tif").write_bytes(tiff)  # of which Pillow logs something
    with serve(folder) as server:
        (folder / "broken.txt").write_text(server.url("broken.tif") + "\n", encoding="utf-8")
        found = folder / "urls.txt"
        found.write_text("".join(f"{server.url(f'{number}.jpg')}\n" for number in range(PICTURES)), encoding="utf-8")
        yield found


def said(urls: Path, folder: Path, *arguments: str, terminal: bool = False, exit_code: int = 0) -> str:
    """What a run says on standard error, be it a file or a terminal."""
    command = [sys.executable, "-m", "any2ds", f"--url_list={urls}", f"--output_folder={folder / 'out'}"]
    command += ["--number_sample_per_shard=4", "--processes_count=2", *arguments]
    if not terminal:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=120)
        assert ran.returncode == exit_code, ran.stderr
        assert ran.stdout == ""
        return ran.stderr
    master, slave = os.openpty()
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave) as running:
        os.close(slave)
        found = b""
        with contextlib.suppress(OSError):  # Linux says so when the last one who could write is gone
            while piece := os.read(master, 1 << 16):
                found += piece
        os.close(master)
    assert running.returncode == 0, found.decode()
    return found.decode()


@pytest.mark.parametrize("distributor", sampled(["multiprocessing", "inline"]))
def test_a_quiet_run_over_damaged_pictures_says_nothing(urls: Path, tmp_path: Path, distributor: str) -> None:
    assert said(urls, tmp_path, "--quiet", f"--distributor={distributor}") == ""
    broken = [f"--url_list={urls.parent / 'broken.txt'}", f"--output_folder={tmp_path / 'broken'}"]
    assert said(urls, tmp_path, "--quiet", f"--distributor={distributor}", *broken) == ""


def test_libraries_are_heard_where_everything_is_logged(urls: Path, tmp_path: Path) -> None:
    broken = f"--url_list={urls.parent / 'broken.txt'}"
    assert "More samples per pixel" in said(urls, tmp_path, "--quiet", "--log_level=debug", broken)


if hasattr(os, "openpty"):

    def test_a_terminal_shows_nothing_but_our_lines(urls: Path, tmp_path: Path) -> None:
        found = said(urls, tmp_path, terminal=True)
        assert f"{PICTURES} rows, " in found
        assert "JPEG" not in found


@pytest.mark.parametrize("distributor", sampled(["multiprocessing", "inline"]))
def test_what_a_step_says_in_python_is_heard(urls: Path, tmp_path: Path, distributor: str) -> None:
    step = tmp_path / "steps.py"
    step.write_text(STEP, encoding="utf-8")
    if distributor == "inline":  # standard output is the user's there
        step.write_text(STEP.replace('print("printed")', 'print("printed", file=sys.stderr)'), encoding="utf-8")
        step.write_text(step.read_text(encoding="utf-8").replace("os.write(1,", "os.write(2,", 2), encoding="utf-8")
    lines = said(urls, tmp_path, "--quiet", f"--transform={step}:talks", f"--distributor={distributor}", *AS_IT_COMES)
    for words in ("printed", "printed to standard error", "logged", "of an asked program"):
        assert lines.splitlines().count(words) == PICTURES
    assert len(lines.splitlines()) == 4 * PICTURES


@pytest.mark.slow
def test_what_a_process_says_of_its_own_crash_is_heard(urls: Path, tmp_path: Path) -> None:
    """Also from the processes of processes, in which rows are tried alone."""
    step = tmp_path / "steps.py"
    step.write_text(STEP, encoding="utf-8")
    dies = f"--transform={step}:dies"
    lines = said(urls, tmp_path, "--quiet", dies, *AS_IT_COMES, "--processes_count=1", exit_code=4)  # all rows fail
    assert "Segmentation fault" in lines
    # Each crash is written in pieces, this one first: what processes that crash at the same time write may mix.
    assert lines.count("Fatal Python error: ") > PICTURES
    assert f"was killed by signal {signal.SIGSEGV:d}" in lines
    assert f"({signal.SIGSEGV.name})" in lines
