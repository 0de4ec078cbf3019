"""The report at the end of a run tells what is stored, what is not and why, and what would be needed for more."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from any2ds import download
from any2ds.config.command_line import retry_call, retry_command
from any2ds.config.options import Config, OutputOptions, StorageOptions
from any2ds.core.failures import FAILURE_CODES, failure_code
from any2ds.core.reports import RobotsCost, RunReport
from any2ds.core.text import duration, number, percent, time_left
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._facts import Seen, finish, shortened
from any2ds.run.reporters._screen import ending
from any2ds.storage.opening import open_folder
from any2ds.testing.server import serve

PICTURES = Path(__file__).parents[3] / "examples" / "data" / "images"
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


def test_what_was_filtered_is_neither_stored_nor_failed() -> None:
    words = shown(
        RunReport(
            shards=1,
            count=10,
            successes=5,
            samples=5,
            failed_to_download=1,
            failed_to_subsample=1,
            filtered=3,
            status_dict={"success": 5, "http_404": 1, "transform_error": 1, "filtered": 3},
        )
    )
    assert "10 rows, 5 stored, 2 failed, 3 filtered" in words
    assert "not stored: a step of your own filtered it out" in words


def test_each_outcome_has_its_share_an_example_and_advice_the_most_frequent_first() -> None:
    lines = shown(TOTAL).splitlines()
    first = [line.split() for line in lines if line[:1].strip() and not line.startswith(("outcome", "to "))][:4]
    assert first == [
        ["success", "900", "90.0%"],
        ["http_404", "60", "6.0%"],
        ["timeout_total", "39", "3.9%"],
        ["http_429", "1", "0.1%"],
    ]
    gone = next(number for number, line in enumerate(lines) if line.startswith("http_404"))
    assert "get a newer list" in lines[gone + 1]
    assert lines[gone + 2].strip() == "e.g. http://a.example/gone.jpg"
    assert "longer --timeout" in shown(TOTAL)
    assert "--host_delay" in shown(TOTAL)


def test_rates_bytes_time_and_the_shards_to_load_are_told() -> None:
    words = shown(TOTAL)
    assert "1.0 GB in 0:01:40: 9 stored/s, 12 attempts/s, 10.0 MB/s" in words
    assert '42 shards written to dataset/\nto load: any2ds.load("dataset")\n' in words
    assert "\nto load without any2ds: dataset/{00000..00041}.tar\n" in words


def test_shards_of_earlier_runs_are_among_those_to_load() -> None:
    run = replace(reported("s3://bucket/dataset/"), finished=frozenset({3, 4}))
    words = shown(replace(TOTAL, shards=2, skipped_shards=2), run)
    assert 'to load: any2ds.load("s3://bucket/dataset/")' in words
    assert "to load without any2ds: s3://bucket/dataset/{{00000..00001},{00003..00004}}.tar" in words
    assert "2 shards written to s3://bucket/dataset/, 2 finished before" in words
    many = replace(reported(), finished=frozenset(range(0, 2000, 2)))
    assert "to load without any2ds: the files that .any2ds/shards lists" in shown(TOTAL, many)


def test_only_what_any2ds_loads_has_such_a_call() -> None:
    for made, is_loaded in (
        (OutputOptions(output_format="parquet"), True),
        (OutputOptions(output_format="dummy"), False),
    ):
        words = shown(TOTAL, replace(reported(), made=made))
        assert ("any2ds.load(" in words) is is_loaded
        assert "to load without any2ds: dataset/{00000..00041}." in words


def test_nothing_is_to_be_tried_again_where_nothing_can_help() -> None:
    record_as_failed = replace(TOTAL, status_dict={"success": 940, "http_404": 60})
    assert "to retry" not in shown(record_as_failed)
    assert facts_of(record_as_failed)["retry"] is None


def test_all_outcomes_have_their_rows_and_the_most_frequent_are_explained() -> None:
    codes = {code: number + 1 for number, code in enumerate(sorted(FAILURE_CODES)[:20])}
    lines = shown(RunReport(shards=1, count=sum(codes.values()), failed_to_download=210, status_dict=codes))
    counted = [line.split()[:2] for line in lines.splitlines() if line.split(" ")[0] in codes]
    assert counted == [[code, str(rows)] for code, rows in sorted(codes.items(), key=lambda item: -item[1])]
    assert sum(failure_code(code).meaning in lines for code in codes) == 12


def test_nothing_of_a_list_or_a_server_reaches_the_terminal_as_more_than_words() -> None:
    evil = "http://user:secret@a.example/\x1b[2J[bold]x[/bold]" + "y" * 5000
    words = shown(replace(TOTAL, status_dict={"http_404": 60, "od\x1b[2Jd": 40}, examples={"http_404": evil}))
    assert "\x1b" not in words
    assert "secret" not in words
    assert "[bold]x[/bold]" in words
    assert "od\\x1b[2Jd" in words
    assert len(words) < 3000


def test_one_is_one_and_two_are_two() -> None:
    one = RunReport(shards=1, count=1, successes=1, samples=1, seconds=2, status_dict={"success": 1})
    words = shown(
        replace(one, robots=RobotsCost(1, 10, 1.0), not_processed={"image/heic is not decoded": 1}, left_shards=1)
    )
    assert "1 row, 1 stored, 0 failed" in words
    assert "1 shard written" in words
    assert "1 open given up: their rows are fetched again" in words
    assert "0 rows excluded" in words
    assert "not processed: 1 file (image/heic is not decoded)" in words
    nothing = replace(reported(), finished={0})
    assert "nothing to do: 1 shard in dataset/ was finished before" in shown(RunReport(skipped_shards=1), nothing)
    assert "all 2 shards in dataset/ were" in shown(RunReport(skipped_shards=2), nothing)


def test_every_failure_has_a_meaning_and_advice() -> None:
    for code in [*FAILURE_CODES, *(f"http_{status}" for status in (301, 400, 401, 403, 404, 408, 410, 429, 500, 503))]:
        known = failure_code(code)
        assert known.meaning
        assert known.advice.endswith("."), code
    assert failure_code("http_403").advice == failure_code("http_401").advice
    assert failure_code("http_410").advice == failure_code("http_404").advice
    assert "retry" in failure_code("http_502").advice


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


def test_the_first_lines_name_the_columns_that_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(PICTURES) as server:
        rows = [{"url": server.url("bars-01.jpg"), "caption": "bars", **{f"c{n}": n for n in range(10)}}]
        out = str(tmp_path / "out")
        how: dict[str, Any] = {"output_folder": out, "distributor": "inline"}
        download(rows, **how)
        first, second, *_ = capsys.readouterr().err.splitlines()
        assert first == f"any2ds writes to {out}/"
        names = ", ".join(["caption", *(f"c{n}" for n in range(10))])
        assert second == f"not kept from the list: {names} (--caption_col and --save_additional_columns keep columns)"
        download(rows, **how)  # all of it is there: its columns cannot change
        assert "not kept" not in capsys.readouterr().err
        download(rows, **{**how, "caption_col": "caption", "output_folder": str(tmp_path / "captions")})
        assert "c8, c9 (--save_additional_columns keeps columns)\n" in capsys.readouterr().err
        everything = {"caption_col": "caption", "save_additional_columns": [f"c{n}" for n in range(10)]}
        download(rows, **{**how, **everything, "output_folder": str(tmp_path / "other")})
        assert "not kept" not in capsys.readouterr().err


def test_the_retry_of_a_preset_has_what_was_chosen_alone() -> None:
    chosen = {"timeout": "5", "processes_count": "3"}
    for given, expected in ((chosen, " --timeout=5 --processes_count=3"), ({}, "")):
        config = Config.from_options({"url_list": "urls.txt", "preset": "img2dataset", **given})
        assert retry_command("out", config.written) == f"any2ds retry out{expected}"


def test_a_run_with_nothing_to_do_says_how_to_load_and_look_at_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], with_report: None
) -> None:
    with serve(PICTURES) as server:
        out = str(tmp_path / "out")
        for more in ({}, {}):
            earlier = capsys.readouterr().err
            download(
                [server.url("bars-01.jpg")], out, output_format="webdataset", distributor="inline", file_size=0, **more
            )
    told = capsys.readouterr().err
    assert f"to look at: {out}/report.html\n" in earlier
    assert (tmp_path / "out" / "report.html").exists()
    assert f"nothing to do: 1 shard in {out}/ was finished before\n" in told
    assert f'to load: any2ds.load("{out}")\nto load without any2ds: {out}/00000.tar\n' in told


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
