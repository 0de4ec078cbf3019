"""`hosts`: what the option takes, and what is said of what it does not take."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import GROUPS, Config, flat, parse_groups
from any2ds.core.errors import OptionError


def parsed(hosts: Any) -> Any:
    return Config.from_options({"url_list": "-", "hosts": hosts}).fetch.hosts


def test_options_of_hosts_are_parsed_as_they_are_for_all(tmp_path: Path) -> None:
    file = tmp_path / "any2ds.yaml"
    file.write_text(
        "url_list: '-'\n"
        "hosts:\n"
        '  Images.Example.com: {max_per_host: 2, host_delay: 0.5, user_agent: "any2ds (agreed)"}\n'
        '  "*.example.org": {headers: ["Authorization: Bearer x"], proxy: "p:3128", ignore_ssl_certificate: yes}\n'
        "  bücher.example:8080: {robots: ignore, disallowed_header_directives: noai}\n"
    )
    config = Config.from_options({"config": str(file)})
    assert config.fetch.hosts == {
        "images.example.com": {"max_per_host": 2, "host_delay": 0.5, "user_agent": "any2ds (agreed)"},
        "*.example.org": {
            "headers": ("Authorization: Bearer x",),
            "proxy": "http://p:3128",
            "ignore_ssl_certificate": True,
        },
        "xn--bcher-kva.example:8080": {"robots": "ignore", "disallowed_header_directives": ("noai",)},
    }
    assert flat(parse_groups(config.to_options(), GROUPS)) == config.to_options()
    assert pickle.loads(pickle.dumps(config.fetch)) == config.fetch


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"a.test": {"max_perhost": 2}}, ["a.test", "max_perhost", "did you mean max_per_host?"]),
        ({"a.test": {"timeout": 2}}, ["a.test", "timeout", "for all hosts alike"]),
        ({"a.test": {"max_per_host": 0}}, ["a.test", "max_per_host=0", "at least 1"]),
        ({"a.test": {"headers": "Bearer hunter2"}}, ["a.test", "headers", "Referer"]),
        ({"a.test": {"proxy": "http://me:hunter2@p"}}, ["a.test", "proxy", "with its port"]),
        ({"a.test": {"proxy": "gopher://me:hunter2@p:1"}}, ["a.test", "proxy", "socks5h"]),
        ({"a.test": 2}, ["a.test", "must hold options"]),
        ({"a.test": {}, "A.test.": {}}, ["A.test.", "twice"]),
        ({"http://a.test/": {}}, ["http://a.test/", "expected example.org"]),
        ({"*": {}}, ["'*'", "expected example.org"]),
        ({"a*.test": {}}, ["a*.test", "expected example.org"]),
        ({"a.test:99999": {}}, ["a.test:99999", "expected example.org"]),
        ({7: {}}, ["7", "expected example.org"]),
        ("a.test", ["--config", "from Python"]),
        (["a.test"], ["--config", "from Python"]),
    ],
)
def test_errors_name_the_host_and_the_option_and_no_secret(hosts: Any, said: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(hosts)
    for words in ("hosts", *said):
        assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_values_of_secret_options_are_not_repeated() -> None:
    for wrong in ({"headers": "Bearer hunter2"}, {"proxy": "gopher://me:hunter2@p:1"}, {"hosts": "hunter2"}):
        with pytest.raises(OptionError) as caught:
            Config.from_options({"url_list": "-", **wrong})
        assert "hunter2" not in str(caught.value)


def test_proxies_are_written_in_one_way() -> None:
    for given, taken in {
        "p:3128": "http://p:3128",
        "HTTP://me:a@b@P:80/": "http://me:a%40b@p:80",
        "socks5h://[::1]:1080": "socks5h://[::1]:1080",
        "https://me@p:1": "https://me@p:1",
    }.items():
        assert Config.from_options({"url_list": "-", "proxy": given}).fetch.proxy == taken
