"""Datasets that somebody else has given away, and prepared: they reach nothing outside of their folder."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.core.errors import Any2dsError, UsageError
from tests.support.params import sampled

QUIET: dict[str, Any] = {"distributor": "inline", "quiet": True, "report": False}
Command = Callable[[Path], object]


def download_again(folder: Path) -> object:
    return any2ds.download(["data:,a", "data:,"], folder, incremental_mode="incremental", **QUIET)


def retry(folder: Path) -> object:
    return any2ds.retry(folder, codes="all", **QUIET)


def repair(folder: Path) -> object:
    return any2ds.verify(folder, repair=True, quiet=True)


@pytest.fixture(params=[download_again, retry, repair])
def command(request: pytest.FixtureRequest) -> Command:
    found: Command = request.param
    return found


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """With one sample, and one row that failed."""
    any2ds.download(["data:,a", "data:,"], tmp_path / "dataset", **QUIET)
    return tmp_path / "dataset"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What is not the dataset's."""
    folder = tmp_path / "home"
    (folder / "ssh").mkdir(parents=True)
    (folder / "precious.conf").write_text("mine")
    (folder / "ssh" / "authorized_keys").write_text("mine")
    return folder


STEP = "from pathlib import Path\nPath({ran!r}).touch()\ndef go(sample):\n    return sample\n"


@pytest.fixture
def step(tmp_path: Path) -> str:
    """Code that leaves a file when it is imported."""
    (tmp_path / "step.py").write_text(STEP.format(ran=str(tmp_path / "ran")))
    return f"{tmp_path}/step.py:go"


def test_code_that_a_dataset_names_does_not_run_unless_the_command_names_it(
    step: str, dataset: Path, tmp_path: Path
) -> None:
    run_file = dataset / ".any2ds/run"
    content = json.loads(run_file.read_text())
    content["options"]["transform"] = [step]
    run_file.write_text(json.dumps({**content, "signature": "0" * 64}))
    with pytest.raises(UsageError, match=r"you did not make it here, on this machine: .*transform=.*step\.py:go"):
        retry(dataset)
    with pytest.raises(UsageError, match=r"the dataset was made with transform=.*step\.py:go.*, which a retry cannot"):
        any2ds.retry(dataset, codes="all", transform="json:dumps", **QUIET)
    assert not (tmp_path / "ran").exists()
    any2ds.retry(dataset, codes="all", transform=step, **QUIET)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("written", ['"\\u00e9"', '"\\u0000"', '""', "3", "null", "[]"])
def test_a_signature_of_any_kind_is_compared(step: str, dataset: Path, tmp_path: Path, written: str) -> None:
    any2ds.download(["data:,a"], tmp_path / "made", transform=step, **QUIET)  # so that there is a key to compare with
    (tmp_path / "ran").unlink()
    run_file = dataset / ".any2ds/run"
    content = json.loads(run_file.read_text())
    content["options"]["transform"] = [step]
    text = json.dumps({**content, "signature": "given"})
    run_file.write_text(text.replace('"given"', written))
    with pytest.raises(Any2dsError):
        retry(dataset)
    assert not (tmp_path / "ran").exists()


def test_a_run_without_steps_makes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of a new user"))
    any2ds.download(["data:,a"], tmp_path / "made", **QUIET)
    assert not (tmp_path / "of a new user").exists()


def test_code_of_this_user_runs_again_where_the_dataset_was_made(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    any2ds.download(["data:,a", "data:,"], made, transform=step, **QUIET)
    retry(made)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "of another user"))
        with pytest.raises(UsageError, match="you did not make it here"):
            retry(made)
    made.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="you did not make it here"):
        retry(tmp_path / "moved")


def test_without_a_home_a_retry_names_its_code(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))  # in which nothing can be made
    made = tmp_path / "made"
    any2ds.download(["data:,a", "data:,"], made, transform=step, **QUIET)
    with pytest.raises(UsageError, match="you did not make it here"):
        retry(made)
    any2ds.retry(made, codes="all", transform=step, **QUIET)


def test_a_retry_takes_no_steps_that_the_dataset_was_not_made_with(step: str, dataset: Path) -> None:
    with pytest.raises(UsageError, match="the dataset was made without steps of your own, which a retry cannot"):
        any2ds.retry(dataset, codes="all", transform=step, **QUIET)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:  # whose names are short
        server.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    os.close(descriptor)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


LOOKS = ("verify", "retry --codes=all --quiet", "report", "card")


@pytest.mark.parametrize(
    ("put", "name"),
    sampled(
        [
            (make_pipe, "00000.parquet"),
            (make_pipe, ".any2ds/run"),
            (make_socket, "00000_stats.json"),
            (link_to_device, ".any2ds/shards"),
        ]
    ),
)
def test_what_is_no_file_is_never_waited_for(put: Callable[[Path], None], name: str, dataset: Path) -> None:
    (dataset / name).unlink(missing_ok=True)
    put(dataset / name)
    rows = dataset.parent / "rows.txt"
    rows.write_text("data:,a\n")
    for command in (*LOOKS, "download"):
        first, *options = command.split()
        if command == "download":
            first, options = str(rows), ["--distributor=inline", "--quiet"]
        run = [sys.executable, "-m", "any2ds", first, str(dataset), *options]
        found = subprocess.run(run, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert "unexpected" not in found.stderr, (command, found.stderr)
        assert found.returncode in (0, 1, 2, 3), (command, found.stderr)
    with contextlib.suppress(Any2dsError):
        list(any2ds.load(dataset))
