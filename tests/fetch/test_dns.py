"""Names are resolved over real sockets, by a name server on loopback that drops, delays and lies as it is told."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import OptionError
from any2ds.core.failures import Failure
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.engines import dns
from any2ds.fetch.engines.dns import Addresses, Resolver, asks_dns
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.testing.server import serve
from tests.support.dns import DnsServer, serve_dns
from tests.support.fetching import rows_of

HOME = ("127.0.0.1",)


class Client:
    """A resolver with a clock that the test turns."""

    def __init__(self, *servers: str) -> None:
        self.time = 0.0
        self.rang = threading.Event()
        self.resolver: Resolver[str] = Resolver(servers or None, self.rang.set, lambda: self.time)
        self.reported: dict[str, Addresses | Failure] = {}

    def resolve(self, host: str, pace: float = 0.0) -> Addresses | Failure:
        """Real seconds pass until it is resolved, none on the clock."""
        found = self.resolver.lookup(host, host)
        return self.wait(host, pace) if found is None else found

    def wait(self, host: str, pace: float = 0.0) -> Addresses | Failure:
        """The clock goes on by `pace` seconds each time that nothing has come."""
        end = time.monotonic() + 100
        while host not in self.reported:
            assert time.monotonic() < end
            if not self.rang.wait(0.1):
                self.time += pace
            self.rang.clear()
            for name, outcome in self.resolver.finished():
                assert name not in self.reported
                self.reported[name] = outcome
        return self.reported.pop(host)


@contextlib.contextmanager
def client(*servers: str) -> Iterator[Client]:
    made = Client(*servers)
    try:
        yield made
    finally:
        made.resolver.close()


def words(outcome: Addresses | Failure) -> str:
    assert isinstance(outcome, Failure), outcome
    assert (outcome.stage, outcome.code) == ("fetch", "dns")
    return outcome.detail.rpartition(": ")[0]  # behind it stands the name


def asked(server: DnsServer, host: str) -> int:
    return server.counts[host, "A"]


def test_only_names_for_name_servers_are_asked_for() -> None:
    ours = ["a.test", "www.example.test", "xn--bcher-kva.test", "1.2.3.4.test"]
    others = ["127.0.0.1", "127.1", "0x7f.1", "0x7f000001", "[::1]", "localhost", "intranet", "printer.local", "a.", ""]
    assert [host for host in ours + others if asks_dns(host)] == ours


def test_addresses_of_both_kinds_come_through_aliases() -> None:
    script = {
        "six.test": ["aaaa:::1"],
        "both.test": ["a:127.0.0.1 a:127.0.0.2 aaaa:::1"],
        "alias.test": ["cname:next.test cname:last.test a:127.0.0.3"],
        "none.test": ["ttl:5"],
    }
    with serve_dns(script) as server, client(server.address) as made:
        assert made.resolve("any.test") == HOME
        assert made.resolve("six.test") == ("::1",)
        assert sorted(made.resolve("both.test")) == ["127.0.0.1", "127.0.0.2", "::1"]  # type: ignore[arg-type]
        assert made.resolve("alias.test") == ("127.0.0.3",)
        assert words(made.resolve("none.test")) == "the name has no address"


def test_one_question_per_name_however_many_wait() -> None:
    with serve_dns({"a.test": ["delay:0.1 a:127.0.0.1"]}) as server, client(server.address) as made:
        assert [made.resolver.lookup("a.test", "a.test") for _ in range(1000)] == [None] * 1000
        assert made.wait("a.test") == HOME
        assert made.resolver.lookup("a.test", "a.test") == HOME
        assert asked(server, "a.test") == 1


def test_an_answer_is_kept_for_its_ttl_within_bounds() -> None:
    script = {
        "zero.test": ["a:127.0.0.1 ttl:0", "a:127.0.0.2 ttl:0"],
        "ten.test": ["a:127.0.0.1 ttl:10"],
        "year.test": ["a:127.0.0.1 ttl:31536000"],
        "alias.test": ["cname:ten.test a:127.0.0.1 ttl:10"],
    }
    held = {"zero.test": 1.0, "ten.test": 10.0, "alias.test": 10.0, "year.test": 3600.0}
    with serve_dns(script) as server, client(server.address) as made:
        for host, seconds in held.items():
            made.time = 0.0
            assert made.resolve(host) == HOME
            made.time = seconds - 0.01
            assert made.resolver.lookup(host, host) == HOME
            made.time = seconds + 0.01
            assert made.resolver.lookup(host, host) is None
            made.wait(host)
        assert asked(server, "zero.test") == 2
        assert made.resolver.lookup("zero.test", "zero.test") is None  # the clock went back and forth
        assert made.wait("zero.test") == ("127.0.0.2",)


def test_that_there_is_no_such_name_is_kept_as_the_zone_says_but_not_for_ever() -> None:
    script = {"gone.test": ["nxdomain:86400", "a:127.0.0.1"], "lie.test": ["nxdomain", "a:127.0.0.1"]}
    with serve_dns(script) as server, client(server.address) as made:
        assert words(made.resolve("gone.test")) == "there is no such name"
        assert words(made.resolve("lie.test")) == "there is no such name"
        for _ in range(10):
            made.resolve("gone.test")
            made.resolve("lie.test")
        assert (asked(server, "gone.test"), asked(server, "lie.test")) == (1, 1)
        made.time = 2.0
        words(made.resolve("gone.test"))
        assert made.resolve("lie.test") == HOME  # no zone has said how long
        assert asked(server, "gone.test") == 1
        end = time.monotonic() + 100
        while made.resolve("gone.test") != HOME:  # c-ares forgets in a thread of its own
            assert time.monotonic() < end
            made.time += 61.0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries as short as c-ares makes them once it knows its servers."""
    monkeypatch.setattr(dns, "_TRY", 0.25)


@pytest.mark.usefixtures("hasty")
def test_lost_questions_are_asked_again() -> None:
    with serve_dns({"a.test": ["drop", "drop", "a:127.0.0.1"]}) as server, client(server.address) as made:
        assert made.resolve("a.test") == HOME
        assert asked(server, "a.test") == 3


@pytest.mark.usefixtures("hasty")
def test_a_name_is_asked_for_as_long_as_somebody_waits() -> None:
    with serve_dns({"a.test": ["drop"] * 4 + ["a:127.0.0.1"], "b.test": ["drop"]}) as server:
        with client(server.address) as made:
            assert made.resolve("a.test") == HOME  # c-ares alone gives up after three
            assert made.resolver.lookup("b.test", "b.test") is None
            made.resolver.leave("b.test", "b.test")
            while made.resolver._pending:
                made.rang.wait(0.1)
                made.rang.clear()
                assert made.resolver.finished() == []
        assert asked(server, "b.test") == 3
        with client(server.address) as made:
            assert made.resolver.lookup("b.test", "b.test") is None
            made.time = 100.0
            assert words(made.wait("b.test")) == "no name server answered"


def test_another_server_is_asked_where_one_fails_or_is_silent() -> None:
    good, bad = {"a.test": ["a:127.0.0.5"]}, {"a.test": ["servfail"], "b.test": ["drop"]}
    with serve_dns(bad) as first, serve_dns(good, host="127.0.0.2") as second:
        with client(first.address, second.address) as made:
            assert made.resolve("a.test") == ("127.0.0.5",)
            assert made.resolve("b.test") == HOME
        assert asked(first, "a.test") == 1
        with client(first.address) as made:
            assert words(made.resolve("a.test", pace=1.0)) == "the name servers say SERVFAIL"
        assert asked(first, "a.test") == 1 + 3 * 3
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody, serve_dns(good) as server:
        nobody.bind(("127.0.0.1", 0))
        closed = "127.0.0.1:" + str(nobody.getsockname()[1])
        nobody.close()
        with client(closed, server.address) as made:
            assert made.resolve("a.test") == ("127.0.0.5",)
        with client(closed) as made:
            assert words(made.resolve("a.test", pace=1.0)) == "no name server can be reached"


def test_a_name_survives_that_one_server_fails_and_the_other_loses_questions() -> None:
    hosts = [f"h{n}.test" for n in range(300)]
    with serve_dns({host: ["servfail"] for host in hosts}) as first, serve_dns(drop=0.2) as second:
        made: Resolver[str] = Resolver((first.address, second.address), (rang := threading.Event()).set)
        for host in hosts:
            assert made.lookup(host, host) is None
        found: dict[str, Addresses | Failure] = {}
        end = time.monotonic() + 100
        while len(found) < len(hosts) and time.monotonic() < end:
            rang.wait(0.1)
            rang.clear()
            found.update(made.finished())
        made.close()
    assert found == dict.fromkeys(hosts, HOME)


def test_the_hosts_file_of_the_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("127.0.0.6 wiki.corp.test\n127.0.0.7 a.test\n", encoding="utf-8")
    monkeypatch.setenv("CARES_HOSTS", str(tmp_path / "hosts"))  # c-ares takes it in place of /etc/hosts
    with client() as made:
        assert made.resolve("wiki.corp.test") == ("127.0.0.6",)
    with serve_dns() as server, client(server.address) as made:
        assert made.resolve("a.test") == ("127.0.0.7",)
        assert made.resolve("b.test") == HOME


def test_names_that_cannot_be_asked_for_fail() -> None:
    with serve_dns() as server, client(server.address) as made:
        for host in ("a" * 70 + ".test", "a..test", ".".join(["abcdefgh"] * 40), "\udcff.test"):
            assert words(made.resolve(host)) == "there is no such name"
        assert not server.counts


def test_closing_waits_for_nobody() -> None:
    with serve_dns({"a.test": ["drop"]}) as server:
        made = Client(server.address)
        assert made.resolver.lookup("a.test", "a.test") is None
        started = time.monotonic()
        made.resolver.close()
        assert time.monotonic() - started < 2.0  # a question is given up later


# --- with the transport ---


def fetch(urls: list[str], **options: Any) -> dict[int, Fetched]:
    made = Config.from_options({"url_list": "-", "timeout": 100, **options}).fetch
    found = {}
    with contextlib.closing(UrlFetcher(made, Buffer(1 << 26, made.most_transfers))) as fetcher:
        for batch in fetcher.fetch(rows_of(urls)):
            for fetched in batch:
                assert fetched.row.position not in found
                found[fetched.row.position] = fetched
    return found


def one(url: str, **options: Any) -> Payload | Failure:
    return fetch([url], **options)[0].outcome


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(b"x")
    return tmp_path


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def test_connections_are_kept_and_the_host_header_is_the_name(folder: Path) -> None:
    with serve(folder) as server, serve_dns() as names:
        url = f"http://WWW.example.test:{server.port}/a"
        found = fetch([url] * 200, nameservers=names.address, thread_count=1)
        assert all(isinstance(fetched.outcome, Payload) for fetched in found.values())
        assert len({request.port for request in server.requests}) == 1
        assert server.requests[0].headers["Host"].lower() == f"www.example.test:{server.port}"
        assert names.counts == {("www.example.test", "A"): 1, ("www.example.test", "AAAA"): 1}


def test_the_next_address_is_tried_where_one_does_not_answer(folder: Path) -> None:
    with serve(folder) as server, serve_dns({"two.test": ["a:127.0.0.1 aaaa:::1"]}) as names:
        assert isinstance(one(f"http://two.test:{server.port}/a", nameservers=names.address), Payload)


def test_certificates_are_for_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(folder, tls=True) as server, serve_dns() as names:
        assert server.ca_file
        monkeypatch.setenv("SSL_CERT_FILE", server.ca_file)
        outcome = one(f"https://other.test:{server.port}/a", nameservers=names.address)
        assert isinstance(outcome, Failure)
        assert outcome.code == "tls"  # the certificate is for another name, though the address is right


def test_hosts_to_which_others_redirect_are_resolved_alike(folder: Path) -> None:
    script: dict[str, list[str]] = {}
    with serve(folder, script) as server, serve_dns({"gone.test": ["nxdomain"]}) as names:
        target = f"http://second.test:{server.port}/a"
        server._script.update(_steps({"r": target, "gone": f"http://gone.test:{server.port}/a"}))
        outcome = one(f"http://first.test:{server.port}/r", nameservers=names.address)
        assert isinstance(outcome, Payload)
        assert outcome.final_url == target
        assert asked(names, "second.test") == 1
        lost = one(f"http://first.test:{server.port}/gone", nameservers=names.address)
        assert isinstance(lost, Failure)
        assert (lost.code, lost.detail) == ("dns", "there is no such name: gone.test")
        assert lost.final_url == f"http://gone.test:{server.port}/a"


def _steps(redirects: dict[str, str]) -> dict[str, Any]:
    from any2ds.testing.faults import Step

    return {path: [Step.parse(f"redirect:{target}")] for path, target in redirects.items()}


def test_resolving_takes_its_time_from_the_row() -> None:
    with serve_dns({"slow.test": ["drop"]}) as names:
        total = one("http://slow.test/a", nameservers=names.address, timeout=0.5)
        connect = one("http://slow.test/a", nameservers=names.address, connect_timeout=0.5)
    assert isinstance(total, Failure)
    assert isinstance(connect, Failure)
    assert (total.code, connect.code) == ("timeout_total", "timeout_connect")
    for failure in (total, connect):
        assert "while resolving the host name" in failure.detail
        assert 0.5 <= float(failure.detail.split()[1]) < 20


def test_a_lie_costs_the_rows_of_its_moment_and_no_more(folder: Path) -> None:
    with serve(folder) as server, serve_dns({"lie.test": ["nxdomain", "a:127.0.0.1"]}) as names:
        found = fetch([f"http://lie.test:{server.port}/a"] * 5, nameservers=names.address, retries=6)
        assert all(isinstance(fetched.outcome, Payload) for fetched in found.values())
        assert asked(names, "lie.test") == 2


def test_the_proxy_resolves(folder: Path) -> None:
    with serve(folder) as proxy, serve_dns() as names:
        fetch(["http://far.test/a"], nameservers=names.address, proxy=f"http://127.0.0.1:{proxy.port}")
        assert proxy.requests[0].headers["Host"] == "far.test"
        assert not names.counts


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_so_does_one_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with serve(folder) as proxy, serve_dns() as names:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        fetch(["http://far.test/a"], nameservers=names.address)
        assert proxy.requests
        assert not names.counts


def test_names_of_the_system_are_left_to_the_system(folder: Path) -> None:
    with serve(folder) as server, serve_dns() as names:
        url = f"http://localhost:{server.port}/a"
        assert isinstance(one(url, nameservers=names.address), Payload)
        assert isinstance(one(f"http://127.1:{server.port}/a", nameservers=names.address), Payload)
        outcome = one("http://nowhere.invalid/a", nameservers="os")
        assert isinstance(outcome, Failure)
        assert outcome.code == "dns"
        assert not names.counts


def test_a_thousand_hosts_and_a_fifth_of_the_questions_lost(folder: Path) -> None:
    with serve(folder) as server, serve_dns(drop=0.2) as names:
        urls = [f"http://h{n}.test:{server.port}/a" for n in range(1000)]
        found = fetch(urls, nameservers=names.address)
        assert all(isinstance(fetched.outcome, Payload) for fetched in found.values())
        assert server.counts["a"] == 1000
        assert names.dropped > 200


@pytest.mark.parametrize("wrong", ["", "1.1.1", "1.1.1.1:0", "dns.example", "1.1.1.1:99999", "os,1.1.1.1", "[::1"])
def test_name_servers_are_addresses(wrong: str) -> None:
    with pytest.raises(OptionError, match="nameservers"):
        Config.from_options({"url_list": "-", "nameservers": [wrong]})


def test_name_servers_may_be_many_and_have_ports() -> None:
    given = "1.1.1.1, 127.0.0.1:5353,[::1]:53,2606:4700::1111"
    found = Config.from_options({"url_list": "-", "nameservers": given}).fetch.nameservers
    assert found == ("1.1.1.1", "127.0.0.1:5353", "[::1]:53", "2606:4700::1111")
    assert Config.from_options({"url_list": "-"}).fetch.nameservers is None
    Resolver(found, lambda: None).close()
