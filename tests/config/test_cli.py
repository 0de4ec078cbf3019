"""The command line as a person uses it: real processes, their exit codes, and what they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from any2ds import UsageError, download
from any2ds.cli import parse, run
from any2ds.config.commands import COMMANDS
from any2ds.config.declare import declared
from any2ds.config.help import help_text
from any2ds.config.options import GROUPS
from any2ds.core.failures import FAILURE_CODES
from any2ds.core.version import __version__
from any2ds.testing.processes import LONG
from any2ds.testing.server import serve


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
    (["urls.txt", "more.txt"], "quote a glob, or give '[urls.txt,...]'"),
    (["urls.txt", "out", "more"], "unexpected 'more'"),
    (["urls.txt", "--url_list=table.csv"], "for several lists quote a glob, or give '[table.csv,...]'"),
    (["verify", "out", "more"], "unexpected 'more': this command takes output_folder"),
    (["help", "verifi"], "did you mean verify?"),
    (["--help=verifi"], "did you mean verify?"),
    (["help", "htp_404"], "did you mean http_404?"),
    (["help", "timeout_totl"], "did you mean timeout_total?"),
    (["help", "resize_mod"], "did you mean resize_mode?"),
    (["completion", "tcsh"], "takes one of bash, fish, zsh"),
    (["urls.txt", "-o"], "--output_folder needs a value"),
    (["urls.txt", "-j", "8"], "did you mean thread_count or processes_count?"),
    (["urls.txt", "-x", "8"], "did you mean max_per_host?"),
    (["urls.txt", "--verbose"], "did you mean log_level?"),
    (["urls.txt", "--threads=8"], "did you mean thread_count?"),
    (["urls.txt", "--workers=8"], "did you mean processes_count?"),
    (["urls.txt", "--shard-size=8"], "did you mean number_sample_per_shard?"),
    (["urls.txt", "--overwrite"], "did you mean incremental_mode=overwrite?"),
    (["urls.txt", "--output=out"], "did you mean output_folder?"),
    (["urls.txt", "--size=8"], "did you mean file_size?"),
    (["urls.txt", "--max_retries=8"], "did you mean retries?"),
    (["urls.txt", "--part=train"], "unknown option 'part': any2ds --help=all lists the options"),
    (["urls.txt", "--cores=8"], "did you mean processes_count?"),
    (["urls.txt", "--webdataset"], "did you mean output_format=webdataset?"),
    (["urls.txt", "-nc"], "unknown option '-nc': options are given as --name=value"),
    (["urls.txt", "-timeout=5"], "did you mean timeout?"),
    (["urls.txt", "-output_format=webdataset"], "unknown option '-output_format': did you mean output_format?"),
    (["urls.txt", "-output", "out"], "unknown option '-output': did you mean output_folder?"),
    (["urls.txt", "---quiet"], "unknown option '_quiet': did you mean quiet?"),
    (["urls.txt", "--_quiet"], "unknown option '_quiet': did you mean quiet?"),
    (["urls.txt", "--timeout", "-5e3"], "invalid timeout='-5e3'"),
    (["urls.txt", "--timeout", "-o", "out"], "--timeout needs a value"),
    (["-help"], "did you mean --help?"),
    (["-version"], "did you mean --version?"),
    (["version"], "did you mean --version?"),
    (["fetch", "urls.txt"], "'fetch' is no command, and there is no such file"),
    (["--", "verify", "out"], "unexpected 'verify': a command comes first: any2ds verify ..."),
    (["--quiet", "verify", "out"], "unexpected 'verify': a command comes first: any2ds verify ..."),
    (["frobnicate", "urls.txt"], "'frobnicate' is no command, and there is no such file"),
    (["report", "out", "--output_file=page.html"], "did you mean output?"),
    (["report", "out", "--html"], "did you mean format=html?"),
    (["retry", "out", "--codes=timeout"], "did you mean timeout_"),
    (["retry", "out", "--codes=HTTP_404"], "did you mean http_404?"),
    (["urls.txt", "--something"], "unknown option 'something': any2ds --help=all lists the options"),
    (["urls.txt", "--distributor=spark"], "did you mean pyspark?"),
    (["retry", "out", "--codes=404"], "did you mean http_404?"),
    (["retry", "out", "--codes=5xx"], "did you mean http_5xx?"),
    (["verifi", "out"], "did you mean verify?"),
    (["--output_format=webdataset"], "url_list is missing"),
    (["--url_list=absent.txt"], "absent.txt"),
    (["--", "--absent.txt"], "--absent.txt: no such file or folder"),
    (["verify", "--", "--help"], "--help"),
    (["--url_list", "--"], "--url_list needs a value"),
    (["--url_list=urls.txt", "--output_folder=webdav://host/x"], "not installed: Install webdav4"),
    (["--url_list=urls.txt", "--output_folder=lakefs://x/y"], "not installed: Please install lakefs-spec"),
    (["--url_list=nonsense://x/y"], "fsspec knows no store 'nonsense'"),
    (["new", "flowers", f"--folder={'x' * 300}"], "File name too long"),
    (["url.txt"], "url.txt: no such file or folder: did you mean urls.txt?"),
    (["inspect", "../0/tables.csv"], "no such folder: did you mean ../0/table.csv?"),
    (["urls.txt", "s3:/bucket/out"], "a URL has two slashes, s3://bucket/out"),
    (["build"], "any2ds build --help lists the options"),
    (["retry", "out", "--something"], "any2ds retry --help=all lists the options"),
    (["--url_list=empty.txt"], "empty"),
    (["--url_list=urls.txt", "--caption_col=text"], "holds nothing but URLs, and has no column 'text'"),
    (["--url_list="], "invalid url_list='': "),
    (["--url_list=table.csv", "--url_col=URL"], "columns that exist: url, text"),
    (["--url_list=table.csv", "--url_col=URL"], "; name the column of the URLs with --url_col=url"),
    (["links.csv"], "no column 'url'; columns that exist: id, image link, text; name the column of the URLs with "),
    (["links.csv"], " '--url_col=image link'"),
    (["plain.csv"], "name the column of the URLs with --url_col=..."),
    (["http://127.0.0.1:9/p001.jpg", "out"], "the first argument is a file with their URLs, one a line"),
    (["--url_list=table.csv", "--save_additional_columns=text,size"], "columns that exist: url, text"),
    (["--url_list=urls.txt", "--output_folder=urls.txt/out"], "cannot be written"),
    (["--url_list=gs://bucket/urls.txt"], "[gcs]'"),
    (["--url_list=urls.txt", "--output_folder=gs://bucket/out"], "[gcs]'"),
    (["--url_list=urls.txt", "--distributor=pyspark"], "[spark]'"),
    (["--url_list=urls.txt", "--ray_address=head:6379"], "ray_address has no effect without distributor=ray"),
    (
        ["--url_list=urls.txt", "--beam_options=--runner=DirectRunner"],
        "beam_options has no effect without distributor=beam",
    ),
    (["--url_list=urls.txt", "--on_hash_mismatch=drop"], "add --verify_hash=... or leave it out"),
    (["--url_list=urls.txt", "--bbox_col="], "a value that is not empty, or None for none"),
    (["--url_list=urls.txt", "--transform="], "a value that is not empty, or None for none"),
    (["--url_list=urls.txt", "--output_folder=memory://out"], "--distributor=inline"),
    (["--config=absent.yaml"], "'absent.yaml' cannot be read: No such file or directory\n"),
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
        (here / "links.csv").write_text("id,image link,text\n1,http://127.0.0.1:9/a,hello\n")
        (here / "plain.csv").write_text("a,b\nhttp://127.0.0.1:9/a,hello\n")
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


HOW_ERRORS_ARE_SHOWN = [
    (["--log_level=debug"], "Traceback"),
    (["--log_level", "debug"], "Traceback"),
    (["--log-level=debug"], "Traceback"),
    (["--log-level", "debug"], "Traceback"),
    (["--log_format", "json"], '{"event": "error"'),
    (["--log-format=json"], '{"event": "error"'),
    (["--log_format=text", "--log-format=json", "--log_level", "debug"], '"traceback"'),
    (["--config=shown.yaml"], '"traceback"'),
    (["--log_level=info", "--", "--log_level=debug"], "any2ds: "),
]


@pytest.mark.parametrize(("words", "start"), HOW_ERRORS_ARE_SHOWN, ids=lambda value: str(value))
def test_an_error_at_the_start_is_shown_as_the_command_line_asks_however_it_is_written(
    words: list[str], start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shown.yaml").write_text("log_level: debug\nlog_format: json\n")
    monkeypatch.chdir(tmp_path)
    assert run(["--timeout=soon", *words]) == 2
    said = capsys.readouterr().err
    assert start in said
    assert said.startswith(start) or start == '"traceback"'


def test_names_may_stand_behind_two_dashes(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "--urls.txt").write_text(f"{server.url('0')}\n")
        ran = any2ds("--quiet", "--report=False", "--", "--urls.txt", "-d", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (tmp_path / "-d" / "00000_stats.json").exists()


def test_python_is_told_how_to_name_the_column_of_the_urls(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("id,image link\n1,http://127.0.0.1:9/a\n")
    with pytest.raises(UsageError, match=r"name the column of the URLs with '--url_col=image link'$"):
        download(tmp_path / "links.csv", tmp_path / "ds")


def test_a_shard_that_cannot_be_written_is_exit_code_1(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        any2ds("--url_list=urls.txt", "--output_format=webdataset", "--quiet", cwd=tmp_path)
        for name in ("00000_stats.json", "00000.tar"):
            (tmp_path / "files" / name).unlink()
        (tmp_path / "files" / "00000.tar").mkdir()
        ran = any2ds("--url_list=urls.txt", "--output_format=webdataset", "--quiet", cwd=tmp_path)
        debug = any2ds("--url_list=urls.txt", "--output_format=webdataset", "--log_level=debug", cwd=tmp_path)
    assert ran.returncode == debug.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "1 shard could not be written" in ran.stderr
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize("words", [["-x"], ["-x y"], ["-5"], ["-o x"]])
def test_the_value_behind_an_option_may_begin_with_a_dash(words: list[str]) -> None:
    given = parse(["urls.txt", "-oout", "--user-agent", *words, "--quiet"], COMMANDS["download"])
    assert given == {"url_list": "urls.txt", "output_folder": "out", "user_agent": words[0], "quiet": "True"}


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
def test_streams_that_are_closed_change_nothing(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        shell = ["sh", "-c", '"$0" -m any2ds urls.txt ds <&- >&- 2>&- && "$0" -m any2ds report ds --format=md >&-']
        ran = subprocess.run([*shell, sys.executable], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads((tmp_path / "ds" / "00000_stats.json").read_text())["successes"] == 1


def test_a_file_in_the_folder_at_hand_is_not_run(media: Path, tmp_path: Path) -> None:
    for name in ("pickle", "random", "any2ds"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('I was run')")
    with serve(media) as server:
        (tmp_path / "urls.txt").write_text(server.url("0"))
        script = Path(sys.executable).with_name("any2ds")
        command = [str(script), "--url_list=urls.txt", "--quiet"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        "urls.txt out --quiet",
        "--quiet urls.txt -o out",
        "-oout --url_list=urls.txt --quiet",
        "--url_list urls.txt out --quiet",
    ],
)
def test_they_may_stand_anywhere(line: str) -> None:
    found = parse(line.split(), COMMANDS["download"])
    assert found == {"url_list": "urls.txt", "output_folder": "out", "quiet": "True"}
    assert parse(["-", "out"], COMMANDS["download"]) == {"url_list": "-", "output_folder": "out"}
    assert parse(["a.txt", "s3://b/x", "--noreport"], COMMANDS["download"])["report"] == "False"


def test_help_shows_the_common_options_and_if_asked_all_of_them(tmp_path: Path) -> None:
    common, every = any2ds("--help", cwd=tmp_path), any2ds("--help=all", cwd=tmp_path)
    assert (common.returncode, every.returncode) == (0, 0)
    for info in declared(GROUPS):
        assert f"--{info.name}" in every.stdout.split()
        assert info.shown in ("None", "False") or " ".join(info.shown.split()) in " ".join(every.stdout.split())
    assert len(common.stdout.splitlines()) < len(every.stdout.splitlines()) / 2
    assert any2ds("-V", cwd=tmp_path).stdout == any2ds("--version", cwd=tmp_path).stdout == f"any2ds {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_all_its_options(name: str) -> None:
    page = help_text(name, everything=True)
    assert COMMANDS[name].usage in page
    assert {f"--{info.name}" for info in declared(COMMANDS[name].groups)} <= {*page.replace(",", " ").split()}


def test_a_failure_code_is_explained_however_it_is_written(tmp_path: Path) -> None:
    one = any2ds("help", "http_404", cwd=tmp_path)
    assert (one.returncode, one.stderr) == (0, "")
    assert "The file is gone" in " ".join(one.stdout.split())
    assert any2ds("help", "success", cwd=tmp_path).stdout.split() == ["success", "stored"]
    every = any2ds("help", "codes", cwd=tmp_path).stdout
    assert all(f"  {code} " in every or f"  {code}\n" in every for code in FAILURE_CODES)
    for typed, hint in (("404", "http_404?"), ("verfy", "verify?"), ("xyzzy", "any2ds help codes")):
        unknown = any2ds("help", typed, cwd=tmp_path)
        assert unknown.returncode == 2
        assert hint in unknown.stderr


def test_help_on_an_option_shows_its_text_its_default_and_its_commands(tmp_path: Path) -> None:
    shown = any2ds("help", "resize_mode", cwd=tmp_path)
    assert shown.returncode == 0
    words = " ".join(shown.stdout.split())
    assert words.startswith("Taken by download, estimate, build: --resize_mode file_size is the shorter side")
    assert words.endswith("[keep_ratio]")
    assert any2ds("help", "resize-mode", cwd=tmp_path).stdout == shown.stdout
    assert any2ds("help", "--resize_mode", cwd=tmp_path).stdout == shown.stdout
    folder = any2ds("help", "output_folder", cwd=tmp_path).stdout
    assert [line for line in folder.splitlines() if "Taken by" in line] == [
        "Taken by download, estimate, build:",
        "Taken by retry, verify, inspect, report, card, add-columns:",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_help_is_wrapped_at_words_to_the_width_of_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    page = help_text("download", everything=True)
    lines = page.partition("Examples:")[0].splitlines()
    assert all(len(line) <= min(width, 110) or " " not in line.strip() for line in lines)
    words = " ".join(page.split())
    for info in declared(GROUPS):
        assert info.help in words


def test_messages_in_python_are_those_of_the_command_line() -> None:
    rows = ["http://127.0.0.1:9/a"]
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "url_list is missing: --url_list=urls.txt"),
        ({"url_list": rows, "image_size": 3}, "--preset=img2dataset takes it"),
        ({"url_list": rows, "threads": 3}, "did you mean thread_count?"),
        ({"url_list": rows, "overwrite": True}, "did you mean incremental_mode=overwrite?"),
    ]
    for options, words in refused:
        with pytest.raises(UsageError) as caught:
            download(**options)
        assert words in str(caught.value)
