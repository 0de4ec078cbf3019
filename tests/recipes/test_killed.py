"""Builds that are killed at any moment, on a disk and on S3: they go on, and nothing half-made is seen.

A program forks for each build, so that it imports any2ds once. On a disk a build kills itself at one of its operations
on files; on S3 it is killed by the server, at one of its requests that change something.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.core.errors import OutputError
from tests.support.s3 import Bucket, enter

PROGRAM = """
import json, os, signal, sys
import any2ds
import any2ds.recipes.build

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.link"}
HERE = os.path.dirname(os.path.abspath(__file__))


class Letters(any2ds.Recipe):
    '''Some letters.'''

    def info(self):
        return any2ds.Info({"text": any2ds.Text(), "data": any2ds.Bytes()})

    def splits(self, dl):
        with open(f"{HERE}/generated", "a") as file:
            file.write("x")
        return {"train": self.samples(0, 30), "test": self.samples(100, 10)}

    def samples(self, first, count):
        for number in range(first, first + count):
            yield number, {"text": str(number), "data": bytes(100)}


def kill_at(moment):
    seen = 0

    def hook(event, given):
        nonlocal seen
        writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or event in CHANGES) and str(given[0]).startswith(HERE):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


for line in sys.stdin:
    given = json.loads(line)
    if not (pid := os.fork()):
        try:
            if given["moment"]:
                kill_at(given["moment"])
            any2ds.build(Letters, quiet=True, report=False, number_sample_per_shard=10, **given["options"])
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Builds:
    """The program that builds."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        (folder / "builds.py").write_text(PROGRAM)
        self._process = subprocess.Popen(
            [sys.executable, str(folder / "builds.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = 0  # of the build that runs

    def start(self, moment: int = 0, **options: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"moment": moment, "options": options}), file=self._process.stdin, flush=True)
        self.pid = int(self._line())

    def ended(self) -> int:
        """Its exit code, negative for a signal."""
        return int(self._line())

    def build(self, moment: int = 0, **options: Any) -> int:
        self.start(moment, **options)
        return self.ended()

    @property
    def generated(self) -> int:
        """How often the code of the recipe has run."""
        file = self.folder / "generated"
        return len(file.read_text()) if file.exists() else 0

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def builds(folder: Path, environment: dict[str, str]) -> Iterator[Builds]:
    found = Builds(folder, environment)
    try:
        yield found
    finally:
        found.close()


def is_complete(data_dir: str) -> bool:
    """Whether a dataset is seen, which has to be complete then."""
    try:
        found = any2ds.load("letters", data_dir=data_dir)
    except OutputError:
        return False
    assert sorted(int(sample["text"]) for sample in found) == [*range(30), *range(100, 110)]
    assert any2ds.verify(f"{data_dir}/letters/1.0.0", quiet=True).ok
    return True


ALL = range(1, 10_000, 9)  # until one that a build does not come to


@pytest.mark.parametrize("moments", [(80,), pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_build_on_a_disk_that_was_killed_at_any_moment_goes_on(moments: Sequence[int], tmp_path: Path) -> None:
    data_dir, seen = f"{tmp_path}/data", set[bool]()
    place = Path(data_dir) / "letters"
    with builds(tmp_path, {}) as build:
        for moment in moments:
            subprocess.run(["rm", "-rf", data_dir, f"{tmp_path}/generated"], check=True)
            is_killed = build.build(moment, data_dir=data_dir) == -signal.SIGKILL
            seen.add(is_complete(data_dir))
            was_spooled = build.generated and (is_complete(data_dir) or any(place.glob(".1.0.0.building/*.tar")))
            before = build.generated
            assert build.build(data_dir=data_dir) == 0
            assert is_complete(data_dir)
            assert sorted(path.name for path in place.iterdir()) == ["1.0.0"], moment
            assert build.generated == before if was_spooled else build.generated <= 2, moment
            if not is_killed:
                break
    assert moments != ALL or (moment > 100 and seen == {False, True})


def test_samples_whose_file_a_power_failure_has_cut_are_generated_anew(tmp_path: Path) -> None:
    data_dir = f"{tmp_path}/data"
    with builds(tmp_path, {}) as build:
        assert build.build(80, data_dir=data_dir) == -signal.SIGKILL
        files = [*(Path(data_dir) / "letters" / ".1.0.0.building").rglob("*.arrow")]
        assert files
        for file in files:
            os.truncate(file, file.stat().st_size // 2)
        assert build.build(data_dir=data_dir) == 0
        assert build.generated == 2
    assert is_complete(data_dir)


def at_changes(bucket: Bucket, moment: int, act: Callable[[], None]) -> list[int]:
    """Do something at one of the requests that change a bucket; returns what counts them."""
    seen = [0]

    def fails(method: str, target: str) -> str:
        if method in ("PUT", "DELETE", "POST"):
            seen[0] += 1
            if seen[0] == moment:
                act()
        return ""

    bucket._door.fails = fails
    return seen


@pytest.mark.slow
def test_a_build_on_s3_that_was_killed_at_any_moment_goes_on(
    buckets: Callable[[], Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = buckets()
    enter(bucket, monkeypatch)
    with builds(tmp_path, {**bucket.environment, "ANY2DS_CACHE": str(tmp_path / "cache")}) as build:
        for moment in ALL:
            data_dir = f"{bucket.url}/{moment}"
            at_changes(bucket, moment, lambda: os.kill(build.pid, signal.SIGKILL))
            is_killed = build.build(data_dir=data_dir) == -signal.SIGKILL
            bucket._door.fails = lambda method, target: ""
            is_complete(data_dir)
            assert build.build(data_dir=data_dir) == 0, moment
            assert is_complete(data_dir), moment
            names = bucket.connect().find(f"{data_dir}/letters/1.0.0/.any2ds")
            assert not [name for name in names if "lock" in name or "spool" in name], moment
            if not is_killed:
                break
    assert not is_killed
    assert moment > 20
