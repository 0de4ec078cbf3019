"""What the end of a run says: figures as people say them, and commands that have what was chosen."""

import re
import shlex

from any2ds.config.command_line import retry_call, retry_command
from any2ds.config.datasets import RETRY_GROUPS
from any2ds.config.declare import declared
from any2ds.config.options import GROUPS, Config
from any2ds.core.failures import FAILURE_CODES, failure_code
from any2ds.core.text import duration, number, percent, time_left


def test_advice_names_only_options_that_there_are() -> None:
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
