"""What a person sees on a terminal, by way of an emulator."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from any2ds.testing.server import serve

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "examples" / "data" / "images"

# A run that is told by hand: `wait()` until the test has seen enough.
STORY = """
import sys, logging
from any2ds.config.options import StorageOptions, WatchOptions
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporting import Reporters
from any2ds.storage.opening import open_folder
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.run.monitor import Monitor
from any2ds.run.reporters._facts import counts

def wait():
    sys.stdin.readline()

def told(**known):
    return {**Monitor().progress(), **known, **counts(known.get("outcomes", {}))}

def snapshot(**more):
    return told(**{**dict(
        seconds=65, outcomes={"success": 9000, "http_404": 800, "dns": 150, "timeout_total": 50}, bytes=10**9,
        received=2 * 10**9, attempts=10_500, successes_per_second=140.2, attempts_per_second=160, rows_per_second=150,
        bytes_per_second=31e6, in_flight=200, window=256, queued=40, workers=2, memory=800 * 10**6, shards_open=3,
        shards_done=9, total_rows=40_000, share=0.25, eta=195.0,
        limit_words="limited by hosts: 60% of rows wait for slow.example.org"), **more})

folder = sys.argv[1] if len(sys.argv) > 1 else "/tmp/does-not-matter"
run = RunInfo("download", open_folder(folder, StorageOptions()), {"output_folder": folder}, StorageOptions(), "x")
reporter = Reporters(WatchOptions(), run, quiet=False)
reporter.on_start(0)
"""
END = """
reporter.on_finish(RunReport(shards=10, count=10_000, successes=9000, samples=9000, failed_to_download=1000,
    bytes=10**9, seconds=65, attempts=10_500, status_dict={"success": 9000, "http_404": 800, "dns": 200},
    examples={"http_404": "http://a.example/x.jpg"}))
"""


def sentences(shown: list[str]) -> str:
    """All that stands on the screen, in one line: narrow terminals break sentences."""
    return " ".join(" ".join(shown).split())


def is_live(shown: list[str]) -> bool:
    return any("of 40,000 rows" in line for line in shown)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_run_is_shown_in_a_few_lines_which_leave_nothing_behind(terminal: Callable[..., Any], columns: int) -> None:
    seen = terminal(STORY + "reporter.on_progress(snapshot())\nwait()" + END, columns)
    # It is the last one, and two lines of 40 columns: the kernel hands over line by line what is written at once.
    verdict = "limited by hosts: 60% of rows wait for slow.example.org"
    shown = seen.until(lambda shown: verdict in sentences(shown))
    live = [line for line in shown if not line.startswith("any2ds")]
    words = "\n".join(live)
    assert 4 <= len([line for line in live if line]) <= (8 if columns >= 80 else 14)
    assert " 10,000 of 40,000 rows" in words
    assert "25.0%" in words
    for figure in ("3 min left", "140 stored/s", "160 attempts/s", "31.0 MB/s", "200 of 256 in flight"):
        assert figure in words
    for figure in ("9,000 stored (90.0%)", "3 open, 9 done", "800.0 MB memory", "0:01:05", "dns 150"):
        assert figure in words
    assert "failed: http_404 800" in words
    if columns >= 80:
        assert "━" in words
    seen.tell()
    end = "\n".join(seen.end())
    assert "of 40,000 rows" not in end
    assert "stored/s" in end
    assert "http://a.example/x.jpg" in end.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_line_breaks_in_the_middle_of_a_word(terminal: Callable[..., Any], columns: int) -> None:
    seen = terminal(STORY + "reporter.on_stopping(3, 10)" + END, columns)
    shown = seen.end()
    words = sentences(shown)
    for sentence in (
        "stopping: 3 shards are open; one whose last rows are being downloaded gets up to 10 s to finish, any other is "
        "given up now; finished shards are kept; press Ctrl-C again to stop at once",
        "the server answered 404. The file is gone: leave the row out, or get a newer list.",
        "e.g. http://a.example/x.jpg",
        "10,000 rows, 9,000 stored, 1,000 failed",
        "10 shards written to /tmp/does-not-matter/",
        "any2ds.retry('/tmp/does-not-matter')",
    ):
        assert sentence in words


def test_what_is_not_known_is_left_out(terminal: Callable[..., Any]) -> None:
    known = "seconds=3, outcomes={'success': 2}, successes_per_second=0.7, share=0.5"
    seen = terminal(STORY + f"reporter.on_progress(told(memory=0, {known}))\nwait()")
    words = "\n".join(seen.until(lambda shown: any("stored/s" in line for line in shown)))
    for unknown in ("None", "attempts", "in flight", "memory", "left", "open", "failed", "wait", "limited"):
        assert unknown not in words
    assert "50.0% of the list" in words
    assert "0.7 stored/s" in words


def test_lines_are_replaced_without_clearing_the_screen_or_hiding_the_cursor(terminal: Callable[..., Any]) -> None:
    code = """
reporter.on_progress(snapshot())
wait()
reporter.on_progress(snapshot(outcomes={"success": 12_345}))
wait()
"""
    seen = terminal(STORY + code)
    seen.until(is_live)
    before = len(seen.raw)
    seen.tell()
    seen.until(lambda shown: any("12,345 of" in line for line in shown))
    again = seen.raw[before:]
    assert b"\x1b[2J" not in again
    assert b"\x1b[?25l" not in seen.raw  # a cursor that is hidden stays so if we are killed
    assert sum("of 40,000 rows" in line for line in seen.everything) == 1


def test_print_logging_and_errors_of_shards_stand_above_the_live_lines(terminal: Callable[..., Any]) -> None:
    code = """
logging.basicConfig(format="LOGGED %(message)s")
import os, subprocess
from any2ds.core.processes import child_process
reporter.on_progress(snapshot())
wait()
print("ONE")
print("half of ", end="", flush=True)
print("TWO", file=sys.stderr)
print("THREE")
logging.getLogger("mine").warning("by the user")
reporter.on_shard(ShardError(7, "a reason \\x1b[31m http://user:secret@a.example/", again=True))
reporter.on_progress(snapshot(outcomes={"success": 12_345}))
wait()
"""
    begun = STORY.replace("reporter.on_start(0)", "")
    logging_first = code.split("import os", 1)
    seen = terminal(begun + logging_first[0] + "reporter.on_start(0)\nimport os" + logging_first[1] + END)
    seen.until(is_live)
    seen.tell()
    shown = seen.until(lambda shown: any("12,345 of" in line for line in shown))
    first = next(number for number, line in enumerate(shown) if "12,345 of" in line)
    above = shown[:first]
    assert above[1:6] == ["ONE", "half of", "TWO", "THREE", "LOGGED by the user"]
    assert above[6].startswith("shard 7 failed: a reason \\x1b[31m http://a.example/")
    assert len([line for line in shown[first:] if line]) <= 7
    seen.tell()
    assert sum("of 40,000 rows" in line for line in seen.end()) == 0


def test_what_worker_processes_print_stands_above_the_live_lines_and_stdout_stays_the_users(
    terminal: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "step.py").write_text(
        "import sys\ndef shout(sample):\n"
        "    print('PRINTED', sample.key)\n    print('SAID', sample.key, file=sys.stderr)\n    return sample\n"
    )
    names = [path.name for path in sorted(PICTURES.glob("bars-0*.jpg"))][:3]
    with serve(PICTURES, {"gone.jpg": ["404"]}) as server:
        urls = [server.url(name) for name in (*names, "gone.jpg")]
        (tmp_path / "urls.txt").write_text("\n".join(urls))
        options = ["--url_list=urls.txt", "--output_folder=out", "--number_sample_per_shard=2", "--file_size=0"]
        code = (
            f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(tmp_path)!r})\n"
            f"from any2ds.cli import main\nmain({[*options, '--transform=step:shout', '--processes_count=2']!r})"
        )
        with open(tmp_path / "stdout", "wb") as stdout:
            seen = terminal(code, 120, 40, stdout=stdout)
            lines = seen.end()
    assert seen.process.returncode == 0
    assert (tmp_path / "stdout").read_bytes() == b""
    for key in ("000000", "000001", "000010"):
        assert f"PRINTED {key}" in lines
        assert f"SAID {key}" in lines
    assert lines[0] == "any2ds writes to out/"
    table = next(number for number, line in enumerate(lines) if line.startswith("outcome"))
    assert sorted(lines[1:table]) == sorted(
        f"{word} {key}" for word in ("PRINTED", "SAID") for key in ("000000", "000001", "000010")
    )


def test_a_terminal_that_becomes_wider_or_lower_is_used_as_it_is(terminal: Callable[..., Any]) -> None:
    code = "reporter.on_progress(snapshot())\nwait()\nreporter.on_progress(snapshot(outcomes={'success': 5}))\nwait()\n"
    seen = terminal(STORY + code, 60)
    narrow = seen.until(is_live)
    assert max(map(len, narrow[1:])) < 60
    seen.resize(120, 5)
    seen.tell()
    shown = seen.until(lambda shown: any(line.startswith(" 5 of 40,000") and len(line) > 60 for line in shown))
    assert len([line for line in shown if line]) <= 5


@pytest.mark.parametrize("how", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_dumb_terminal_gets_plain_lines(terminal: Callable[..., Any], how: dict[str, str]) -> None:
    code = STORY.replace("WatchOptions()", "WatchOptions(log_interval=0.1)") + "import time\ntime.sleep(0.2)\n"
    seen = terminal(code + "reporter.on_progress(snapshot())\n" + END, 200, **how)
    lines = seen.end()
    assert b"\x1b" not in seen.raw
    assert (
        "0:01:05, 3 min left: 10,000 of 40,000 rows (25.0%), 140 stored/s, 160 attempts/s, 31.0 MB/s, 200 of 256 in"
        " flight, 40 rows waiting, 9,000 stored (90.0%), shards: 3 open, 9 done, 800.0 MB memory; failed: http_404 800,"
        " dns 150, timeout_total 50; limited by hosts: 60% of rows wait for slow.example.org"
    ) in "".join(lines)


def test_without_colours_there_are_none(terminal: Callable[..., Any]) -> None:
    seen = terminal(STORY + "reporter.on_progress(snapshot())\nwait()" + END, NO_COLOR="1")
    seen.until(is_live)
    seen.tell()
    seen.end()
    for colour in range(30, 38):
        assert f"\x1b[{colour}m".encode() not in seen.raw


def test_characters_that_a_terminal_cannot_show_are_not_used(terminal: Callable[..., Any]) -> None:
    code = STORY + "reporter.on_progress(snapshot())\nwait()" + END
    seen = terminal(code, 100, PYTHONIOENCODING="cp437", PYTHONUTF8="0")
    seen.until(lambda shown: is_live(shown) and any("###" in line for line in shown))
    seen.tell()
    seen.end()
    assert seen.raw.isascii()


def test_words_of_servers_are_harmless(terminal: Callable[..., Any]) -> None:
    code = """
reporter.on_progress(snapshot(limit_words="limited by \\x1b]0;title\\x07 \\r\\n\\x1b[2J" + "c" * 500))
wait()
"""
    seen = terminal(STORY + code, 120)
    shown = seen.until(lambda shown: any("ccc" in line for line in shown))  # the last of them
    assert len(shown) <= 9
    assert max(map(len, shown)) < 120
    assert b"\x1b[2J" not in seen.raw
    assert b"\x1b]0" not in seen.raw


def test_in_the_background_there_is_a_line_now_and_then_and_the_prompt_is_left_alone(
    terminal: Callable[..., Any], tmp_path: Path
) -> None:
    story = STORY.replace("WatchOptions()", "WatchOptions(log_interval=0.1)").replace("def wait()", "def _()")
    code = """
import os, pty, signal, sys
os.setsid()
here = os.open(os.ttyname(2), os.O_RDWR)  # the terminal is ours now
child = os.fork()
if child:
    print("prompt", file=sys.stderr)
    os._exit(os.waitpid(child, 0)[1])
os.setpgid(0, 0)  # in the background
"""
    seen = terminal(code + story + "reporter.on_progress(snapshot())\nsys.stdin.readline()\n", 400, session=False)
    line = "0:01:05, 3 min left: 10,000 of 40,000 rows"  # of the child; the parent prints the prompt
    seen.until(lambda shown: "prompt" in shown and any(each.startswith(line) for each in shown))
    assert b"\x1b" not in seen.raw
    seen.tell()


def test_a_run_that_is_stopped_leaves_its_end_alone(terminal: Callable[..., Any], tmp_path: Path) -> None:
    with serve(PICTURES, {"slow.jpg": ["hold"]}) as server:
        rows = [server.url("bars-01.jpg"), server.url("slow.jpg")]
        (tmp_path / "urls.txt").write_text("\n".join(rows))
        seen = terminal(
            [
                f"--url_list={tmp_path / 'urls.txt'}",
                f"--output_folder={tmp_path / 'out'}",
                "--number_sample_per_shard=1",
                "--grace=0.1",
                "--report=false",
                "--file_size=0",
                "--timeout=0",
            ],
            100,
        )
        seen.until(lambda shown: any("1 rows" in line or "1 done" in line for line in shown))
        os.kill(seen.process.pid, signal.SIGINT)
        lines = seen.end()
    assert seen.process.returncode == 130
    assert not any("rows ━" in line or "in flight" in line for line in lines)
    assert lines[-1].startswith("any2ds: interrupted; finished shards are kept")
    assert any(line.startswith("stopping: ") for line in lines)
    assert not any("to retry" in line for line in lines)


def test_checking_a_dataset_is_shown_and_leaves_only_its_findings(terminal: Callable[..., Any]) -> None:
    code = """
import sys
from any2ds.dataset.verify.progress import Progress
from any2ds.dataset.verify.report import Finding
from any2ds.dataset.verify.shard import Checked
with Progress(1200, "dataset\\x1b[2J", False) as progress:
    for _ in range(300):
        progress.add(Checked(rows=10_000, bytes_read=10**6))
    progress.add(Checked([Finding("shard", "a", "a")]))
    sys.stdin.readline()
print("done")
"""
    seen = terminal(code, 120)
    (line,) = seen.until(lambda shown: shown[0].startswith("301 of ") and shown[0].endswith("dataset\\x1b[2J"))
    assert line.startswith("301 of 1,200 shards checked")
    assert "1 with findings" in line
    assert "3,000,000 rows" in line
    seen.tell()
    assert seen.end() == ["done"]


def test_json_lines_are_json_on_a_terminal_as_well(terminal: Callable[..., Any]) -> None:
    code = STORY.replace("WatchOptions()", "WatchOptions(log_format='json', log_interval=0.1)")
    seen = terminal(code + "import time\ntime.sleep(0.2)\nreporter.on_progress(snapshot())\n" + END, 80)
    seen.end()
    events = [json.loads(line)["event"] for line in seen.raw.decode().split("\r\n") if line]
    assert events == ["start", "progress", "progress", "finish"]
