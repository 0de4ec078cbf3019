"""What a command was asked for arrives whole, on standard output or in a file; else its exit code says so."""

import json
import subprocess
import sys

import pytest

from tests.support.play import Play

NO_ROOM = "ulimit -f 0; "  # for the shell: no file may have a byte
# Commands that print a result and write nothing else, and a part of it.
PRINTED = [
    (("inspect", "out"), "outcomes"),
    (("verify", "out", "--json=-"), '"ok"'),
    (("report", "out", "--format=md"), "rows stored"),
    (("completion", "bash"), "complete"),
    (("--help",), "usage"),
]


def ran(play: Play, *words: str, before: str = "", to: str = "") -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own, behind what a shell does before, and with its redirections."""
    line = f'{before} "$@" {to}'
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "any2ds", *words]
    return subprocess.run(command, cwd=play.folder, env=play.child_environment(), capture_output=True, text=True)


@pytest.fixture
def play() -> Play:
    made = Play({"a.jpg": "ok", "b.jpg": "http_404"})
    assert made.run().exit_code == 0
    return made


@pytest.mark.parametrize(("words", "part"), PRINTED)
def test_a_result_that_finds_no_room_is_an_error_and_one_that_nobody_reads_is_none(
    words: tuple[str, ...], part: str, play: Play
) -> None:
    shown = ran(play, *words)
    assert (shown.returncode, part in shown.stdout.lower()) == (0, True), shown
    full = ran(play, *words, before=NO_ROOM, to="> result")
    assert full.returncode == 2, full
    assert "standard output: File too large" in full.stderr
    assert not (play.folder / "result").read_bytes()
    for to in ("| head -c 1", ">&-"):
        gone = ran(play, *words, to=to)
        assert "unexpected" not in gone.stderr
        assert "Traceback" not in gone.stderr


@pytest.mark.parametrize(
    ("command", "option"), [("report", "--output"), ("card", "--output"), ("inspect", "--json"), ("verify", "--json")]
)
def test_a_file_of_results_is_replaced_only_by_a_whole_one(command: str, option: str, play: Play) -> None:
    words = [command, "out", f"{option}=result", *(["--format=json"] if command == "report" else [])]
    file = play.folder / "result"
    assert ran(play, *words).returncode == 0
    file.chmod(0o640)
    assert ran(play, *words).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o640
    before = file.read_bytes()
    assert before
    failed = ran(play, *words, before=NO_ROOM)
    assert failed.returncode == 2, failed
    assert f"{option}=" in failed.stderr
    assert file.read_bytes() == before
    assert not list(play.folder.glob(".*"))  # what was written of the next one


def test_a_file_of_results_may_be_behind_a_link_or_a_pipe(play: Play) -> None:
    real, link = play.folder / "real.json", play.folder / "link.json"
    real.touch()
    link.symlink_to(real.name)
    assert ran(play, "inspect", "out", "--json=link.json").returncode == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["successes"] == 1
    piped = ran(play, "inspect", "out", "--json=/dev/stdout", to="| cat").stdout
    assert json.JSONDecoder().raw_decode(piped)[0]["successes"] == 1
