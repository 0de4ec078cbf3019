"""The command line as a person uses it: real processes, their exit codes, and what they say."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import declared
from any2ds.core.version import __version__
from any2ds.testing.processes import LONG, children, is_running
from any2ds.testing.server import serve
from tests.support.folder import names_in
from tests.support.params import sampled


def any2ds(*arguments: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "any2ds", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONG, encoding="utf-8", **more)


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(6):
        (folder / str(n)).write_bytes(b"file %d" % n)
    return folder


def test_a_run_succeeds_and_says_what_failed(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(f"{server.url('0')}\n{server.url('missing')}\nnonsense\n")
        ran = any2ds("--url_list=urls.txt", "--output_format=webdataset", cwd=tmp_path)
    assert ran.returncode == 0
    assert ran.stdout == ""
    for words in ("1 stored", "2 failed", "http_404", "bad_url", "files"):
        assert words in ran.stderr
    assert (tmp_path / "files" / "00000.tar").exists()


def test_every_option_of_the_table_works_from_the_command_line(media: Path, tmp_path: Path) -> None:
    with serve(media, {"1": ["503", "ok"]}) as server:
        rows = [{"link": server.url(str(n)), "words": f"file {n}", "size": n} for n in range(6)]
        (tmp_path / "list.data").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ran = any2ds(
            "--url_list=list.data",
            "--input_format=jsonl",
            "--url_col=link",
            "--caption_col=words",
            "--save_additional_columns=size",
            "--output_folder=out",
            "--output_format=webdataset",
            "--processes_count=1",
            "--thread_count=3",
            "--number_sample_per_shard=4",
            "--oom_shard_count=3",
            "--timeout=5.5",
            "--retries=1",
            "--compute_md5=False",
            "--compute_hash=sha512",
            "--distributor=multiprocessing",
            "--disable_all_reencoding",
            "--file_ext=bin",
            "--user_agent=tester/1 (+https://example.org)",
            "--max_redirects=3",
            "--max_file_bytes=1MB",
            "--max_buffered_bytes=10MB",
            "--log_level=info",
            "--quiet",
            cwd=tmp_path,
        )
        agents = {request.headers["User-Agent"] for request in server.requests}
        assert server.counts["1"] == 2
        assert server.max_concurrent <= 3
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert agents == {"tester/1 (+https://example.org)"}
    names = names_in(tmp_path / "out")
    of_shards = [f"{n}{end}" for n in ("000", "001") for end in (".parquet", ".tar", ".tar.idx", "_stats.json")]
    assert names == {*of_shards, ".any2ds/run", ".any2ds/shards", "report.html"}
    tar = subprocess.run(["tar", "tf", "out/000.tar"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert tar.stdout.split()[:3] == ["0000.bin", "0000.txt", "0000.json"]
    described = subprocess.run(
        ["tar", "xOf", "out/000.tar", "0000.json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    row = json.loads(described.stdout)
    assert row["size"] == 0
    assert len(row["sha512"]) == 128
    assert "md5" not in row


def test_standard_input_is_a_url_list(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        ran = any2ds("--url_list=-", "--quiet", cwd=tmp_path, input=f"{server.url('0')}\n{server.url('1')}\n")
    assert ran.returncode == 0
    assert len(list((tmp_path / "files" / "00000").glob("*.flat"))) == 2


def test_options_come_from_a_file_and_the_command_line_wins(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        (tmp_path / "run.yaml").write_text("url_list: urls.txt\noutput_format: webdataset\noutput_folder: from_file\n")
        (tmp_path / "run.json").write_text(
            json.dumps({"url_list": "urls.txt", "compute_hash": "sha256", "quiet": True})
        )
        assert any2ds("--config=run.yaml", "--output_folder=from_line", cwd=tmp_path).returncode == 0
        assert any2ds("--config=run.json", cwd=tmp_path).returncode == 0
    assert (tmp_path / "from_line" / "00000.tar").exists()
    assert not (tmp_path / "from_file").exists()
    assert "sha256" in (next((tmp_path / "files" / "00000").glob("*.json"))).read_text()


REFUSED = [
    (["--url_lst=urls.txt"], "did you mean url_list?"),
    (["--url_list=urls.txt", "--output_fromat=webdataset"], "did you mean output_format?"),
    (["--url_list=urls.txt", "--output_format=webdatset"], "did you mean webdataset?"),
    (["--url_list=urls.txt", "--input_format=xlsx"], "one of csv, json, jsonl, parquet, tsv, txt"),
    (["--url_list=urls.txt", "--timeout=soon"], "a number of seconds"),
    (["--url_list=urls.txt", "--thread_count=0"], "at least 1"),
    (["--url_list=urls.txt", "--thread_count"], "needs a value"),
    (
        ["--url_list=urls.txt", "--file_ext=json"],
        ".json is the extension of the metadata",
    ),
    (["--url_list=table.csv", "--file_ext=TXT", "--caption_col=text"], ".txt is the extension of the caption"),
    (["--url_list=urls.txt", "--user_agent=é"], "ASCII"),
    (["--url_list=urls.txt", "--compute_hash=crc"], "one of md5, sha256, sha512"),
    (["--url_list=urls.txt", "--distributor=cloud"], "inline, multiprocessing"),
    (["--url_list=urls.txt", "more.txt"], "unexpected 'more.txt'"),
    (["verifi", "out"], "did you mean verify?"),
    (["--output_format=webdataset"], "url_list is missing"),
    (["--url_list=absent.txt"], "absent.txt"),
    (["--url_list=empty.txt"], "empty"),
    (["--url_list=urls.txt", "--caption_col=text"], "holds nothing but URLs, and has no column 'text'"),
    (["--url_list="], "invalid url_list='': "),
    (["--url_list=table.csv", "--url_col=URL"], "columns that exist: url, text"),
    (["--url_list=table.csv", "--save_additional_columns=text,size"], "columns that exist: url, text"),
    (["--url_list=urls.txt", "--output_folder=urls.txt/out"], "cannot be written"),
    (["--url_list=gs://bucket/urls.txt"], "pip install 'any2ds[gcs]'"),
    (["--url_list=urls.txt", "--output_folder=gs://bucket/out"], "pip install 'any2ds[gcs]'"),
    (["--url_list=urls.txt", "--distributor=pyspark"], "pip install 'any2ds[spark]'"),
    (["--url_list=urls.txt", "--ray_address=head:6379"], "ray_address has no effect without distributor=ray"),
    (
        ["--url_list=urls.txt", "--beam_options=--runner=DirectRunner"],
        "beam_options has no effect without distributor=beam",
    ),
    (["--url_list=urls.txt", "--on_hash_mismatch=drop"], "add --verify_hash=... or leave it out"),
    (["--url_list=urls.txt", "--bbox_col="], "a value that is not empty, or None for none"),
    (["--url_list=urls.txt", "--transform="], "a value that is not empty, or None for none"),
    (["retry", "out", "--tensorboard_dir=logs"], "add --reporters=tensorboard or leave it out"),
    (["--url_list=urls.txt", "--output_folder=memory://out"], "--distributor=inline"),
    (["--config=absent.yaml"], "absent.yaml"),
    (["--config=bad.yaml"], "did you mean timeout?"),
]

IN_ONE_PROCESS = """
import json, os, sys
from any2ds.cli import run

sys.modules["gcsfs"] = sys.modules["pyspark"] = None
for number, arguments in enumerate(json.loads(sys.argv[1])):
    os.chdir(str(number))
    print("\\0", run(arguments), end="\\0", flush=True)
    print(end="\\0", file=sys.stderr, flush=True)
    os.chdir("..")
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, int, bool]]:
    """Of each case: what is said to stdout and stderr, the exit code, and whether the folder at hand is as it was."""
    folder = tmp_path_factory.mktemp("refused")
    before = []
    for number in range(len(REFUSED)):
        here = folder / str(number)
        here.mkdir()
        (here / "urls.txt").write_text("http://127.0.0.1:9/a\n")
        (here / "table.csv").write_text("url,text\nhttp://127.0.0.1:9/a,hello\n")
        (here / "empty.txt").write_text("\n\n")
        (here / "bad.yaml").write_text("url_list: urls.txt\ntime_out: 3\n")
        before.append(sorted(here.rglob("*")))
    command = [sys.executable, "-c", IN_ONE_PROCESS, json.dumps([arguments for arguments, _ in REFUSED])]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    out, err = ran.stdout.split("\0"), ran.stderr.split("\0")
    return [
        (out[2 * n], err[n], int(out[2 * n + 1]), sorted((folder / str(n)).rglob("*")) == before[n])
        for n in range(len(REFUSED))
    ]


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda number: " ".join(REFUSED[number][0]))
def test_what_cannot_be_done_is_said_in_one_line_and_nothing_is_created(
    number: int, refusals: list[tuple[str, str, int, bool]]
) -> None:
    out, err, code, is_unchanged = refusals[number]
    assert (out, code) == ("", 2)
    assert err.count("\n") == 1
    assert err.startswith("any2ds: ")
    assert REFUSED[number][1] in err
    assert is_unchanged


def test_a_list_that_breaks_off_is_used_up_to_there_and_the_place_is_told(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "urls.csv").write_text(f"url,n\n{server.url('0')},0\n{server.url('1')},1\nbroken,2,3,4\nx,5\n")
        ran = any2ds("--url_list=urls.csv", "--on_bad_row=stop", "--quiet", cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.startswith("any2ds: ")
    assert ran.stderr.count("\n") == 1
    assert "urls.csv" in ran.stderr
    assert "4" in ran.stderr
    assert json.loads((tmp_path / "files" / "00000_stats.json").read_text())["successes"] == 2


def test_a_shard_that_cannot_be_written_is_exit_code_1(media: Path, tmp_path: Path) -> None:
    (tmp_path / "files" / "00000.tar").mkdir(parents=True)
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        ran = any2ds("--url_list=urls.txt", "--output_format=webdataset", "--quiet", cwd=tmp_path)
        debug = any2ds("--url_list=urls.txt", "--output_format=webdataset", "--log_level=debug", cwd=tmp_path)
    assert ran.returncode == debug.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "1 shard could not be written" in ran.stderr
    assert "Traceback" in debug.stderr


def test_a_value_may_follow_its_option_and_a_dash_is_standard_input(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        ran = any2ds("--url_list", "-", "--output-folder", "out", "--quiet", cwd=tmp_path, input=server.url("0"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (tmp_path / "out" / "00000_stats.json").exists()


def test_a_reader_that_goes_away_does_not_end_the_run(media: Path, tmp_path: Path) -> None:
    with serve(media, {"0": ["slow:0.5"]}) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        command = [sys.executable, "-m", "any2ds", "--url_list=urls.txt"]
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
        assert running.stderr is not None
        running.stderr.close()
        assert running.wait(LONG) == 0
    assert (tmp_path / "files" / "00000_stats.json").exists()


def test_a_file_in_the_folder_at_hand_is_not_run(media: Path, tmp_path: Path) -> None:
    for name in ("pickle", "random", "any2ds"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('I was run')")
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        script = Path(sys.executable).with_name("any2ds")
        command = [str(script), "--url_list=urls.txt", "--quiet"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_without_arguments_help_is_shown(tmp_path: Path) -> None:
    alone, asked = any2ds(cwd=tmp_path), any2ds("--help", cwd=tmp_path)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    assert "--url_list" in alone.stdout


def test_help_and_version(tmp_path: Path) -> None:
    shown = any2ds("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for info in declared():
        assert f"--{info.name} " in shown.stdout
        assert f"[{info.shown}]" in shown.stdout
    assert any2ds("--version", cwd=tmp_path).stdout == f"any2ds {__version__}\n"


@pytest.mark.parametrize(
    ("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
)
def test_stopping_without_grace_ends_at_once_and_leaves_nothing_behind(
    number: signal.Signals, code: int, media: Path, tmp_path: Path
) -> None:
    with serve(media, {"5": ["hold"]}) as server:
        urls = [server.url(str(n)) for n in (0, 1, 2, 3, 4, 5)]
        (tmp_path / "urls.txt").write_text("\n".join(urls))
        command = [sys.executable, "-m", "any2ds", "--url_list=urls.txt", "--number_sample_per_shard=2", "--timeout=0"]
        command.append("--grace=0")
        running = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        server.wait_for("5")
        workers = children(running.pid)
        assert workers
        started = time.monotonic()
        running.send_signal(number)
        _, said = running.communicate(timeout=LONG)
        assert time.monotonic() - started < 20  # two seconds; the held file would take for ever
        assert running.returncode == code
        assert "run the same command again" in said
        assert not any(map(is_running, workers))
        out = tmp_path / "files"
        assert not (out / "00002").exists()
        assert not [name for name in names_in(out) if name.startswith((".any2ds/tmp", ".any2ds/lock"))]
        server.release()
        again = any2ds("--url_list=urls.txt", "--number_sample_per_shard=2", "--quiet", cwd=tmp_path)
    assert again.returncode == 0
    assert sorted(path.name for path in out.glob("[!.]*") if path.is_dir()) == ["00000", "00001", "00002"]
