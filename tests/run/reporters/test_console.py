"""The report at the end of a run tells what is stored, what is not and why, and what would be needed for more."""

import shlex
from dataclasses import replace
from typing import Any

from any2ds.config.command_line import retry_call, retry_command
from any2ds.config.options import Config, OutputOptions, StorageOptions
from any2ds.core.failures import FAILURE_CODES, failure_code
from any2ds.core.reports import RunReport
from any2ds.core.text import duration, number, percent, time_left
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._facts import Seen, finish, shortened
from any2ds.run.reporters._screen import ending
from any2ds.storage.opening import open_folder

TOTAL = RunReport(
    shards=42,
    count=1000,
    successes=900,
    samples=900,
    failed_to_download=100,
    bytes=10**9,
    seconds=100,
    attempts=1200,
    status_dict={"http_404": 60, "success": 900, "timeout_total": 39, "http_429": 1},
    examples={"http_404": "http://a.example/gone.jpg", "timeout_total": "http://slow.example/x"},
)


def reported(url: str = "dataset", **options: Any) -> RunInfo:
    storage = StorageOptions()
    made = OutputOptions(output_format="webdataset")
    known = {"output_folder": url, **options}
    return RunInfo("download", open_folder(url, storage), known, storage, "x", made, (), from_shell=True)


def facts_of(total: RunReport, run: RunInfo | None = None) -> Any:
    return finish(total, run or reported(), Seen(done=set(range(total.shards))))


def shown(total: RunReport, run: RunInfo | None = None, width: int = 200) -> str:
    return "\n".join(line.plain for line in ending(facts_of(total, run), width)) + "\n"


def test_shards_of_earlier_runs_are_among_those_to_load() -> None:
    run = replace(reported("s3://bucket/dataset/"), finished=frozenset({3, 4}))
    words = shown(replace(TOTAL, shards=2, skipped_shards=2), run)
    assert 'to load: any2ds.load("s3://bucket/dataset/")' in words
    assert "to load without any2ds: s3://bucket/dataset/{{00000..00001},{00003..00004}}.tar" in words
    assert "2 shards written to s3://bucket/dataset/, 2 finished before" in words
    many = replace(reported(), finished=frozenset(range(0, 2000, 2)))
    assert "to load without any2ds: the files that .any2ds/shards lists" in shown(TOTAL, many)


def test_nothing_of_a_list_or_a_server_reaches_the_terminal_as_more_than_words() -> None:
    evil = "http://user:secret@a.example/\x1b[2J[bold]x[/bold]" + "y" * 5000
    words = shown(replace(TOTAL, status_dict={"http_404": 60, "od\x1b[2Jd": 40}, examples={"http_404": evil}))
    assert "\x1b" not in words
    assert "secret" not in words
    assert "[bold]x[/bold]" in words
    assert "od\\x1b[2Jd" in words
    assert len(words) < 3000


def test_advice_names_only_options_that_there_are() -> None:
    import re

    from any2ds.config.datasets import RETRY_GROUPS
    from any2ds.config.declare import declared
    from any2ds.config.options import GROUPS

    known = {info.name for info in (*declared(GROUPS), *declared(RETRY_GROUPS))}
    for code in (*FAILURE_CODES, "http_403", "http_404", "http_429", "http_503", "http_400"):
        assert set(re.findall(r"--(\w+)", failure_code(code).advice)) <= known, code


def test_the_command_has_what_was_chosen_and_the_parser_understands_it() -> None:
    given = {
        "url_list": "urls.txt",
        "output_folder": "it's mine",
        "timeout": 2.5,
        "user_agent": "me (a@b.example)",
        "disallowed_header_directives": "noai,noindex",
        "headers": "Authorization: secret",
        "quiet": "True",
        "nameservers": "1.1.1.1,8.8.8.8",
        "robots": "ignore",
        "file_size": 512,
    }
    command = retry_command("it's mine", Config.from_options(given).written)
    words = shlex.split(command)
    assert words[:3] == ["any2ds", "retry", "it's mine"]
    again = dict(word[2:].split("=", 1) for word in words[3:])
    assert again == {
        "timeout": "2.5",
        "user_agent": "me (a@b.example)",
        "nameservers": "1.1.1.1,8.8.8.8",
        "disallowed_header_directives": "noai,noindex",
        "robots": "ignore",
        "headers": "...",  # to be given again by somebody who knows it
    }
    call = retry_call("it's mine", {"timeout": ("2.5", "call"), "proxy": ("...", "call"), "fsync": ("no", "config")})
    assert call == 'any2ds.retry("it\'s mine", timeout=2.5, proxy=...)'


def test_the_retry_of_a_preset_has_what_was_chosen_alone() -> None:
    chosen = {"timeout": "5", "processes_count": "3"}
    for given, expected in ((chosen, " --timeout=5 --processes_count=3"), ({}, "")):
        config = Config.from_options({"url_list": "urls.txt", "preset": "img2dataset", **given})
        assert retry_command("out", config.written) == f"any2ds retry out{expected}"


def test_figures_read_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (0, 0.08, 59.9, 60, 3661, 90_061)] == [
        "0.0 s",
        "80 ms",
        "59.9 s",
        "0:01:00",
        "1:01:01",
        "1 d 1:01:01",
    ]
    assert [time_left(seconds) for seconds in (5, 90, 3600, 86_399, 200_000)] == [
        "5 s left",
        "2 min left",
        "1 h 0 min left",
        "1 d 0 h left",
        "2 d 8 h left",
    ]
    assert [percent(1, 10_000), percent(9999, 10_000), percent(3, 3), percent(0, 3)] == [
        "<0.1%",
        ">99.9%",
        "100.0%",
        "0.0%",
    ]
    assert [number(0.0), number(0.31), number(9.96), number(12_345.6)] == ["0", "0.31", "9.96", "12,346"]
    assert shortened("abcdefghij", 7) == "abc…hij"
