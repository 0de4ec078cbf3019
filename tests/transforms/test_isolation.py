"""A step that takes its process down costs the rows that it does it over, whatever it does; the others are there."""

import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.samples import row_key
from any2ds.testing.server import serve

STEPS = '''
import any2ds, ctypes, os, signal

def upper(sample):
    """Does what the file says."""
    do(sample)
    return sample.with_data(sample.data.upper(), "up", "text/plain")

def several(sample):
    do(sample)
    return [sample.with_data(word) for word in sample.data.split()]

@any2ds.transform(batch_size=8)
def batch(samples):
    for sample in samples:
        do(sample)
    return samples

def do(sample):
    word = sample.data.partition(b" ")[0]
    if word == b"segfault":
        ctypes.string_at(0)
    elif word == b"exit":
        os._exit(3)
    elif word == b"vanish":
        if os.path.exists(__file__):
            os.remove(__file__)
        os._exit(3)
    elif word == b"abort":
        os.abort()
    elif word == b"memory":  # what the kernel does to who has taken the last of it
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == b"hang":  # with the interpreter's lock, so that no thread of this process can do anything about it
        ctypes.PyDLL(None).pause()
'''
ROWS = 160
Run = Callable[..., "Lost"]


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEPS, encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, steps: Path) -> Run:
    """A real run over rows of which those in `bad` say what is to be done, and are what is lost."""
    media = tmp_path / "media"
    media.mkdir()

    def run(step: str, bad: dict[int, str], **options: Any) -> Lost:
        for number in range(ROWS):
            (media / f"{number}.txt").write_text(f"{bad.get(number, 'fine')} {number}", encoding="utf-8")
        with serve(media) as server:
            given = {
                "output_format": "webdataset",
                "number_sample_per_shard": 40,
                "processes_count": 2,
                "disable_all_reencoding": True,
                "quiet": True,
                **options,
            }
            rows = [{"url": server.url(f"{number}.txt")} for number in range(ROWS)]
            report = download(rows, output_folder=tmp_path / "out", transform=f"{steps}:{step}", **given)
        assert report.count == ROWS
        assert not report.failed_shards
        columns = ["key", "error_code", "error_message"]
        table = pa.concat_tables(
            pq.read_table(path, columns=columns) for path in sorted((tmp_path / "out").glob("*.parquet"))
        )
        found = table.to_pylist()
        positions = {key: number for number, key in enumerate(dict.fromkeys(row_key(one["key"]) for one in found))}
        lost = {positions[row_key(one["key"])]: one["error_message"] for one in found if one["error_code"]}
        stored = dict(_stored(tmp_path / "out"))
        assert {one["key"] for one in found if not one["error_code"]} == stored.keys()
        for key, content in stored.items():  # no row has what a step made of another one
            assert content.lower() in b"fine %d" % positions[row_key(key)]
        assert lost.keys() == bad.keys()
        return Lost(report.status_dict, lost)

    return run


@dataclass
class Lost:
    codes: Mapping[str, int]
    words: Mapping[int, str]  # number of the row -> error_message


def _stored(out: Path) -> Iterator[tuple[str, bytes]]:
    """Key and file of each sample."""
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                if not member.name.endswith(".json"):
                    yield member.name.partition(".")[0], tar.extractfile(member).read()  # type: ignore[union-attr]


def test_rows_that_end_their_process_are_the_only_ones_that_are_lost(run: Run) -> None:
    ways = {77: "segfault", 79: "exit", 140: "abort", 141: "memory", 158: "segfault"}
    lost = run("several", ways, transform_threads=2)
    assert lost.codes == {"success": ROWS - 5, "transform_crash": 5}
    words = {77: "SIGSEGV", 79: "exit code 3", 140: "SIGABRT", 141: "SIGKILL", 158: "SIGSEGV"}
    assert all(words[number] in message for number, message in lost.words.items())


def test_a_row_that_hangs_with_the_interpreters_lock_is_given_up(run: Run) -> None:
    lost = run("upper", {77: "hang"}, watchdog_timeout=2, transform_timeout=4)
    assert lost.codes == {"success": ROWS - 1, "transform_timeout": 1}


@pytest.mark.slow
def test_processes_have_a_step_as_it_was_when_the_run_began(run: Run, steps: Path) -> None:
    assert run("upper", {77: "vanish"}).codes == {"success": ROWS - 1, "transform_crash": 1}
    assert not steps.exists()


@pytest.mark.slow
def test_in_a_batch_the_one_to_blame_is_found(run: Run) -> None:
    assert run("batch", {77: "segfault", 130: "exit"}).codes == {"success": ROWS - 2, "transform_crash": 2}


# --- threads that are given up over a question ---
