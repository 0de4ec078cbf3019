"""Options that differ by host, over real sockets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.testing.server import Server, serve
from tests.support.proxy import serve_proxy

SECRETS = ("Authorization", "Cookie", "X-Own")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def two(folder: Path, path: str = "a.jpg", **ends: Any) -> Iterator[tuple[Server, Server]]:
    """A server whose `r` redirects to the other one's `path`, and that one."""
    with serve(folder, **ends) as end, serve(folder, {"r": [f"redirect:{end.url(path)}"]}) as start:
        yield start, end


def at(server: Server) -> str:
    return f"{server.host}:{server.port}"


def sent(server: Server, number: int = -1) -> dict[str, str]:
    return {name: server.requests[number].headers[name] for name in SECRETS if name in server.requests[number].headers}


def test_each_host_gets_its_own_headers_cookies_and_user_agent(fetch: Any, folder: Path) -> None:
    with serve(folder) as special, serve(folder) as plain:
        hosts = {at(special): {"headers": "Authorization: Bearer x, Cookie: session=abc", "user_agent": "agreed/1"}}
        urls = [special.url("a.jpg"), plain.url("a.jpg")] * 20
        found = fetch(urls, hosts=hosts, headers="X-Own: all", thread_count=2)
        assert all(isinstance(outcome, Payload) for outcome in found)
        for number in range(20):
            assert sent(special, number) == {"Authorization": "Bearer x", "Cookie": "session=abc"}
            assert special.requests[number].headers["User-Agent"] == "agreed/1"
            assert sent(plain, number) == {"X-Own": "all"}
            assert plain.requests[number].headers["User-Agent"].startswith("any2ds/")


def test_opt_outs_may_differ_and_limits_too(fetch: Any, folder: Path) -> None:
    script = {"a.jpg": ["ok:X-Robots-Tag=noai"], "slow": ["slow:0.01"]}
    with serve(folder, script) as free, serve(folder, script) as other:
        hosts = {at(free): {"disallowed_header_directives": None, "max_per_host": 1}}
        found = fetch([free.url("a.jpg"), other.url("a.jpg")], hosts=hosts)
        assert isinstance(found[0], Payload)
        assert found[1].code == "opted_out"
        fetch([free.url("slow"), other.url("slow")] * 12, hosts=hosts)
        assert free.max_concurrent == 1
        assert other.max_concurrent > 1


def test_the_host_that_is_redirected_to_gets_its_own(one: Any, folder: Path) -> None:
    with two(folder) as (start, end):
        hosts = {at(end): {"headers": "Authorization: Bearer end", "user_agent": "agreed/1"}}
        assert isinstance(one(start.url("r"), hosts=hosts, headers="Authorization: Bearer all"), Payload)
        assert sent(start) == {"Authorization": "Bearer all"}
        assert sent(end) == {"Authorization": "Bearer end"}
        assert end.requests[0].headers["User-Agent"] == "agreed/1"


def test_overrides_without_headers_do_not_hand_out_those_of_all(one: Any, folder: Path) -> None:
    with two(folder) as (start, end):
        options = {"hosts": {at(end): {"max_per_host": 1}}, "headers": ["Authorization: Bearer x", "X-Own: key"]}
        assert isinstance(one(start.url("r"), **options), Payload)
        assert sent(end) == {}


def test_credentials_in_a_redirect_do_not_open_the_way_for_headers(one: Any, folder: Path) -> None:
    with serve(folder) as end:
        target = end.url("a.jpg").replace("://", "://you:theirs@")
        with serve(folder, {"r": [f"redirect:{target}"]}) as start:
            outcome = one(start.url("r"), headers=["Authorization: Bearer x", "Cookie: c=1"])
        assert isinstance(outcome, Payload)
        # libcurl leaves them out where it says what a redirect leads to.
        assert sent(end) in ({}, {"Authorization": "Basic eW91OnRoZWlycw=="})


def test_own_headers_are_not_lured_out_of_the_encryption(
    one: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(folder) as end, serve(folder, {"r": [f"redirect:{end.url('a.jpg')}"]}, tls=True) as start:
        monkeypatch.setenv("SSL_CERT_FILE", str(start.ca_file))
        hosts = {"127.0.0.1": {"headers": "Authorization: Bearer x"}}
        assert isinstance(one(start.url("r"), hosts=hosts), Payload)
        assert sent(start) == {"Authorization": "Bearer x"}
        assert sent(end) == {}


def test_verification_is_switched_off_for_one_host_alone(fetch: Any, one: Any, folder: Path) -> None:
    with two(folder, tls=True) as (start, end), serve(folder, tls=True) as lax:
        lax_to_strict = {"to": [f"redirect:{end.url('a.jpg')}"]}
        with serve(folder, lax_to_strict, tls=True) as lax_start:
            hosts = {at(lax): {"ignore_ssl_certificate": True}, at(lax_start): {"ignore_ssl_certificate": True}}
            urls = [lax.url("a.jpg"), end.url("a.jpg"), lax_start.url("to"), start.url("r")] * 5
            found = fetch(urls, hosts=hosts, thread_count=1)
            codes = ["" if isinstance(outcome, Payload) else outcome.code for outcome in found]
            assert codes == ["", "tls", "tls", "tls"] * 5
            assert not end.requests
            assert lax_start.counts["to"] == 5
    with two(folder, tls=True) as (start, end):
        assert isinstance(one(start.url("r"), hosts={at(end): {"ignore_ssl_certificate": True}}), Payload)


def test_a_host_may_be_verified_where_others_are_not(fetch: Any, folder: Path) -> None:
    with serve(folder, tls=True) as lax, serve(folder, tls=True) as strict:
        hosts = {at(strict): {"ignore_ssl_certificate": False}}
        urls = [lax.url("a.jpg"), strict.url("a.jpg")] * 3
        found = fetch(urls, hosts=hosts, ignore_ssl_certificate=True, thread_count=1)
        assert [isinstance(outcome, Payload) for outcome in found] == [True, False] * 3
        assert not strict.requests


def test_only_the_hosts_that_have_a_proxy_go_through_it(fetch: Any, folder: Path) -> None:
    with serve(folder) as server, serve(folder) as direct, serve_proxy("me:p@ss") as proxy, serve_proxy() as other:
        hosts = {"*.media.test": {"proxy": proxy.url}, "b.media.test": {"proxy": other.url}}
        urls = [f"http://{name}.media.test:{server.port}/a.jpg" for name in ("a", "b")] + [direct.url("a.jpg")]
        found = fetch(urls * 5, hosts=hosts, thread_count=2)
        assert all(isinstance(outcome, Payload) for outcome in found)
        assert set(proxy.asked) == {f"GET {urls[0]}"}
        assert set(other.asked) == {f"GET {urls[1]}"}
        assert len(server.requests) == 10
        assert len(direct.requests) == 5


def test_a_redirect_takes_the_proxy_of_its_target_and_no_other(one: Any, folder: Path) -> None:
    with serve(folder) as end, serve_proxy() as first, serve_proxy() as second:
        target = f"http://b.test:{end.port}/a.jpg"
        with serve(folder, {"r": [f"redirect:{target}"], "direct": [f"redirect:{end.url('a.jpg')}"]}) as start:
            hosts = {"a.test": {"proxy": first.url}, "b.test": {"proxy": second.url}}
            assert isinstance(one(start.url("r"), hosts=hosts), Payload)
            assert (first.asked, second.asked) == ([], [f"GET {target}"])
            assert isinstance(one(f"http://a.test:{start.port}/r", hosts=hosts), Payload)
            assert (first.asked, len(second.asked)) == ([f"GET http://a.test:{start.port}/r"], 2)
            # Who is behind a proxy may be anybody: it does not lead us to what is not public.
            outcome = one(f"http://a.test:{start.port}/direct", hosts=hosts)
            assert isinstance(outcome, Failure)
            assert outcome.code == "blocked_address"
            assert len(first.asked) == 2
            assert len(end.requests) == 2


def test_the_name_in_a_certificate_counts_too(fetch: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(folder, host="0.0.0.0", tls=True) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
        urls = [f"https://{name}:{server.port}/a.jpg" for name in ("localhost", "127.0.0.1", "127.0.0.2")]
        hosts = {"127.0.0.2": {"ignore_ssl_certificate": True}}
        found = fetch(urls * 4, hosts=hosts, thread_count=1)
        assert [isinstance(outcome, Payload) for outcome in found] == [True, False, True] * 4
