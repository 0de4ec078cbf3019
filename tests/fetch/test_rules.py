"""Addresses that are refused before anything is sent to them."""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.fetch.policy.rules import address_of, opted_out
from any2ds.testing.server import serve
from tests.support.dns import serve_dns
from tests.support.proxy import serve_proxy


def one(url: str, **options: object) -> Payload | Failure:
    fetch = Config.from_options({"url_list": "-", **options}).fetch
    with closing(UrlFetcher(fetch, Buffer(1 << 20, 8))) as fetcher:
        (fetched,) = [f for batch in fetcher.fetch([Row(0, 0, "0", url)]) for f in batch]
    return fetched.outcome


def test_an_address_is_one_in_whatever_way_it_is_written() -> None:
    metadata = "169.254.169.254"
    for host in (metadata, "2852039166", "0xa9fea9fe", "169.254.43518", "0251.0376.0251.0376"):
        assert address_of(host) == metadata
    assert address_of("[fd00:ec2:0::254]") == "fd00:ec2::254"
    for host in ("localhost", "example.org", "1.example", "[nonsense]", "", "999999999999"):
        assert address_of(host) is None


def test_a_refused_address_gets_no_packet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, serve_dns({"evil.test": ["a:127.0.0.1"]}) as names:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "2130706433", "0x7f000001", "evil.test"):
            options = {"block_private_addresses": True, "nameservers": names.address, "timeout": 30}
            outcome = one(f"http://{host}:{port}/", **options)
            assert isinstance(outcome, Failure)
            assert outcome.code == "blocked_address"
        listener.setblocking(False)
        try:
            listener.accept()
        except BlockingIOError:
            return
        raise AssertionError("somebody connected")


def test_a_redirect_to_where_clouds_keep_credentials_is_refused_before_it_is_followed(tmp_path: Path) -> None:
    for target in ("http://169.254.169.254/latest", "http://[fd00:ec2::254]/latest", "http://2852039166/latest"):
        with serve(tmp_path, {"r": [f"redirect:{target}"]}) as server:
            outcome = one(server.url("r"), timeout=30)
        assert isinstance(outcome, Failure)
        assert outcome.code == "blocked_address"
        assert "link-local" in outcome.detail


def test_of_several_addresses_those_that_may_be_asked_are_asked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with serve(tmp_path) as server, serve_dns({"two.test": ["a:169.254.1.1 a:127.0.0.1"]}) as names:
        outcome = one(f"http://two.test:{server.port}/a", nameservers=names.address, timeout=30)
    assert isinstance(outcome, Payload)


def test_each_x_robots_tag_begins_anew_and_none_stands_for_noindex() -> None:
    wanted = frozenset({"noai", "noindex"})
    assert opted_out("otherbot: noindex\nnoai", "any2ds", wanted) == "noai"
    assert opted_out("otherbot: noindex, noai", "any2ds", wanted) is None
    assert opted_out("none", "any2ds", wanted) == "none"
    assert opted_out("none", "any2ds", frozenset({"noai"})) is None


NAMES_OF_THE_SYSTEM = ("localhost", "127.0.0.1.")


def nobody_connects(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("host", NAMES_OF_THE_SYSTEM)
@pytest.mark.parametrize("scheme", ["http", "ftp"])
@pytest.mark.parametrize("nameservers", [None, "os"])
def test_names_that_the_system_resolves_are_judged_before_anything_is_connected_to(
    host: str, scheme: str, nameservers: str | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"{scheme}://{host}:{listener.getsockname()[1]}/a"
        options = {"block_private_addresses": True, "timeout": 30, "nameservers": nameservers}
        outcome = one(url, **options)
        assert isinstance(outcome, Failure)
        assert (outcome.code, nobody_connects(listener)) == ("blocked_address", True), outcome


def test_names_that_the_system_resolves_are_fetched_where_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with serve(tmp_path) as server:
        for host in NAMES_OF_THE_SYSTEM:
            outcome = one(f"http://{host}:{server.port}/a", timeout=30, nameservers="os")
            assert isinstance(outcome, Payload), outcome


def test_an_address_with_a_last_dot_is_an_address_behind_a_proxy() -> None:
    with serve_proxy() as proxy:
        outcome = one("http://169.254.169.254./latest", proxy=proxy.url, timeout=30)
        assert isinstance(outcome, Failure)
        assert outcome.code == "blocked_address"
        assert not proxy.asked
