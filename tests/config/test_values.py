"""Values of options that are odd, huge, or of another type than they look: each is taken or refused in words."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from any2ds.config.commands import COMMANDS
from any2ds.config.declare import Option, declared
from any2ds.config.options import GROUPS, config_content, flat, parse_options
from any2ds.core.errors import OptionError

INFOS = {info.name: info for command in COMMANDS.values() for info in declared(command.groups)}
ODD: list[Any] = [
    *("", " ", "1e400", "1e999", "nan", "inf", "-inf", "-1", "1e-300", "9" * 400, "1e400MB", "9" * 400 + "GiB"),
    *("\u00b2", "\uff11\uff12", "0x10", "1:30", "\0", "\udcff", "{", "[", "]", "(", "--", "é", "a" * 100_000, "None"),
    *(
        None,
        True,
        10**30,
        -(10**30),
        10**5000,
        float("inf"),
        float("nan"),
        b"x",
        [],
        {},
        (),
        [None],
        [1, "a"],
        {"a": None},
    ),
    *({1, 2}, object(), range(3), dataclasses, int),
]


def taken(name: str, value: Any) -> Any:
    """The value of an option, or the OptionError; anything else is raised."""
    try:
        return INFOS[name].value_of(value)
    except OptionError as error:
        return error


def is_number(info: Option) -> bool:
    return not info.is_flag and any(isinstance(taken(info.name, one), (int, float)) for one in ("1", "1000"))


@pytest.mark.parametrize("name", sorted(INFOS))
def test_every_option_takes_an_odd_value_or_refuses_it_in_words(name: str) -> None:
    for value in ODD:
        found = taken(name, value)
        if isinstance(found, OptionError):
            assert str(found)
            assert "expected ''" not in str(found)


@pytest.mark.parametrize("name", sorted(name for name, info in INFOS.items() if is_number(info)))
def test_every_number_has_a_range_that_its_users_can_carry(name: str) -> None:
    for value in ("-1", "nan", "-inf"):
        assert isinstance(taken(name, value), OptionError), value
    if name in ("max_image_area", "max_aspect_ratio"):  # inf is img2dataset's word for no limit
        return
    for value in ("inf", "1e400", "9" * 25, 10**25, f"{2**50 + 1}"):
        assert isinstance(taken(name, value), OptionError), value


@pytest.mark.parametrize("name", ["host_delay", "max_retry_after"])
def test_a_run_waits_for_a_day_at_most(name: str) -> None:
    assert taken(name, "86400") == 86_400
    for value in ("86401", "1e9"):
        found = taken(name, value)
        assert isinstance(found, OptionError)
        assert "a number of seconds, at most 86,400 (a day)" in str(found)


def written(folder: Path, content: Any, dump: Callable[[Any], str] = str) -> dict[str, Any]:
    """The options that a run takes from a config file with this content."""
    (folder / "run.yaml").write_text(dump(content))
    return flat(parse_options({"config": str(folder / "run.yaml")}, GROUPS).groups)


def test_words_numbers_and_dates_of_yaml_are_what_was_written(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        """
        url_list: 2024-01-01
        output_folder: 0108
        caption_col: no
        url_col: on
        save_additional_columns: [yes, 2024, 2024-01-01, null, off, 1e3, 010]
        resize_mode: no
        user_agent: 12
        headers: {X-A: 5, X-B: no}
        compute_hash: null
        verify_hash:
        limit: ~
        fsync: off
        quiet: on
        timeout: 3
        max_file_bytes: 1_000
        oom_shard_count: 010
        column_types: {2024: string}
        storage_options: {s3: {anon: true, client_kwargs: {port: 9000}}}
        hosts: {example.org: {robots: ignore, max_per_host: 3, ignore_ssl_certificate: on, user_agent: 2024-01-01}}
        """,
    )
    expected = {
        "url_list": "2024-01-01",
        "output_folder": "0108",
        "caption_col": "no",
        "url_col": "on",
        "save_additional_columns": ("yes", "2024", "2024-01-01", "null", "off", "1e3", "010"),
        "resize_mode": "no",
        "user_agent": "12",
        "headers": ("X-A: 5", "X-B: no"),
        "compute_hash": None,
        "verify_hash": None,
        "limit": None,
        "fsync": False,
        "quiet": True,
        "timeout": 3,
        "max_file_bytes": 1000,
        "oom_shard_count": 10,
        "column_types": {"2024": "string"},
        "storage_options": {"s3": {"anon": True, "client_kwargs": {"port": 9000}}},
    }
    assert {name: found[name] for name in expected} == expected
    assert found["hosts"]["example.org"] == {
        "robots": "ignore",
        "max_per_host": 3,
        "ignore_ssl_certificate": True,
        "user_agent": "2024-01-01",
    }


@pytest.mark.parametrize("name", sorted(info.name for info in declared(GROUPS) if info.choices))
def test_a_choice_may_stand_in_yaml_without_quotes(name: str, tmp_path: Path) -> None:
    for choice in INFOS[name].choices:
        (tmp_path / "run.yaml").write_text(f"{name}: {choice}\n")
        content = INFOS[name].value_of(choice)
        assert INFOS[name].value_of(config_content(str(tmp_path / "run.yaml"))[name]) == content


def test_what_yaml_writes_for_each_default_is_that_default(tmp_path: Path) -> None:
    defaults = {
        info.name: info.default for info in declared(GROUPS) if isinstance(info.default, (bool, int, float, str, tuple))
    }
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    for dump in (yaml.safe_dump, json.dumps):
        (tmp_path / "run.yaml").write_text(dump(plain))
        content = config_content(str(tmp_path / "run.yaml"))
        assert {name: INFOS[name].value_of(value) for name, value in content.items()} == defaults


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "a: " * 3, "- a", "x: !!python/name:os.system", "\0", "a: &a [*a]", '{"a": 1e']
)
def test_a_config_file_that_is_none_is_refused_in_words(content: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="config file"):
        written(tmp_path, content)
