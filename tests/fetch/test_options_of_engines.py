"""Every option on fetching has an effect with each engine, or is refused."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import FetchOptions
from any2ds.core.errors import OptionError
from any2ds.run.download import download
from tests.support.fetching import WebFetcherContract

TESTS = Path(__file__).parent

# Option -> the test in which it has an effect: a name of the contract, which runs for each engine, or file::test.
SEEN_IN = {
    "fetcher": "test_web_engines.py::test_without_libcurl_requests_takes_over",
    "thread_count": "test_never_more_transfers_at_once_than_thread_count",
    "timeout": "test_a_body_that_drips_or_stops_is_cut",
    "total_timeout": "test_a_body_that_drips_or_stops_is_cut",
    "outage_patience": "test_outage.py::test_an_outage_without_end_ends_the_run",
    "retries": "test_attempts_go_on_until_one_succeeds",
    "connect_timeout": "test_web_engines.py::test_a_handshake_that_hangs_is_cut_at_the_limit_for_connecting",
    "stall_timeout": "test_without_a_timeout_a_body_that_flows_is_not_cut_and_one_that_drips_is",
    "min_speed": "test_without_a_timeout_a_body_that_flows_is_not_cut_and_one_that_drips_is",
    "max_per_host": "test_schedule_hosts.py::"
    "test_one_host_gets_no_more_than_max_per_host_and_no_closer_than_host_delay",
    "host_delay": "test_schedule_hosts.py::test_one_host_gets_no_more_than_max_per_host_and_no_closer_than_host_delay",
    "max_retry_after": "test_a_host_that_says_much_later_is_not_waited_for",
    "watchdog_timeout": "../worker/test_watchdog.py::test_the_bound_can_be_given_and_switched_off",
    "max_redirects": "test_redirects_end_at_a_limit",
    "max_header_bytes": "test_headers_are_bounded_as_the_option_says",
    "max_file_bytes": "test_too_large_stops_whether_announced_or_not",
    "max_content_ratio": "test_a_body_may_not_decode_to_far_more_than_it_had",
    "max_buffered_bytes": "test_memory_for_bodies_is_bounded_and_big_ones_still_arrive",
    "user_agent": "test_the_user_agent_is_the_one_asked_for",
    "headers": "test_secrets_stay_with_the_host_that_they_are_for",
    "cookies": "test_web_engines.py::test_headers_credentials_and_cookies_are_sent",
    "proxy": "test_proxies.py::test_a_proxy_carries_http_and_https",
    "nameservers": "test_of_a_name_with_two_addresses_the_one_that_works_is_asked",
    "ignore_ssl_certificate": "test_tls_is_verified_and_what_is_wrong_with_it_is_final",
    "disallowed_header_directives": "test_files_whose_servers_opt_out_are_not_taken",
    "robots": "test_robots_sockets.py::test_it_is_asked_for_with_our_name_and_only_as_the_option_says",
    "block_private_addresses": "test_private_addresses_are_refused_if_asked_for",
    "allow_schemes": "test_fsspec.py::test_no_row_is_read_with_the_rights_of_the_user_unless_its_scheme_is_allowed",
    "allow_link_local": "test_link_local_addresses_are_asked_only_if_that_is_allowed",
    "hosts": "test_host_overrides.py::test_each_host_gets_its_own_headers_cookies_and_user_agent",
}

# What an engine cannot do: the option, further ones, and what the error says.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("requests", {"nameservers": "127.0.0.1:5353"}, "nameservers: requests leaves host names to the operating system"),
    ("requests", {"max_header_bytes": 1000, "proxy": "socks5://127.0.0.1:1"}, "max_header_bytes: requests cannot"),
    ("curl", {"nameservers": "127.0.0.1:5353", "proxy": "http://127.0.0.1:1"}, "nameservers: a proxy resolves"),
]


def test_each_option_is_seen_to_have_an_effect() -> None:
    assert SEEN_IN.keys() == {field.name for field in dataclasses.fields(FetchOptions)}
    for option, place in SEEN_IN.items():
        file, _, name = place.rpartition("::")
        if file:
            assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), (option, place)
        else:
            assert hasattr(WebFetcherContract, name), (option, place)


@pytest.mark.parametrize("engine", ["curl", "requests"])
def test_an_engine_leaves_out_no_test_of_an_option_that_it_does_not_refuse(engine: str) -> None:
    left_out = set(re.findall(r"(test_\w+) = None", (TESTS / f"test_{engine}.py").read_text()))
    refused = {option for name, options, _ in REFUSED if name == engine for option in options}
    assert {option for option, place in SEEN_IN.items() if place in left_out} <= refused


def refuses(options: dict[str, Any], out: Path, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        download(["http://127.0.0.1:1/"], output_folder=str(out), quiet=True, **options)
    assert not out.exists()


@pytest.mark.parametrize(("engine", "options", "message"), REFUSED)
def test_what_an_engine_cannot_do_is_refused_before_anything_is_made(
    engine: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refuses({"fetcher": engine, **options}, tmp_path / "out", message)


def test_it_is_also_refused_where_requests_takes_the_place_of_libcurl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycurl", None)
    refuses({"nameservers": "127.0.0.1:5353"}, tmp_path / "out", "nameservers: requests leaves")


def test_a_proxy_of_the_environment_resolves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    refuses({"nameservers": "127.0.0.1:5353"}, tmp_path / "out", "nameservers: a proxy resolves")
