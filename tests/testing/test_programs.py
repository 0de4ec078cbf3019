"""Tests that start a program of the system, on a machine that does not have it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.testing.processes import LONG
from tests.support.programs import REQUIRED

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/config/test_completion.py::test_commands_options_and_values_are_offered",
    "tests/stores/test_servers.py::test_a_list_in_a_folder_that_nginx_shows",
    "tests/plays/test_sftp.py::test_names_of_files_may_be_odd_and_failures_are_told_apart",  # whose fixture starts sshd
)


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with a shell alone."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(str(shutil.which("bash")))
    return str(tmp_path / "bin")


def run_tests(path: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in (REQUIRED, "JAVA_HOME")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *TESTS]
    return subprocess.run(
        command, cwd=ROOT, env={**environment, "PATH": path, **more}, capture_output=True, text=True, timeout=LONG
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_they_are_skipped_and_one_line_says_how_many_they_are_and_what_to_install(
    options: tuple[str, ...], bare_path: str
) -> None:
    ran = run_tests(bare_path, *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[-2] == "4 tests need fish, nginx, sshd, zsh: apt-get install fish nginx-light openssh-server zsh"
    assert lines[-1].startswith("1 passed, 4 skipped in ")  # bash is there


def test_they_fail_where_the_environment_requires_the_programs(bare_path: str) -> None:
    ran = run_tests(bare_path, **{REQUIRED: "1"})
    assert ran.returncode == 1
    assert "this test needs nginx, which is not installed: apt-get install nginx-light" in ran.stdout
    assert "skipped" not in ran.stdout.splitlines()[-1]
