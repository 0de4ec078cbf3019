"""Which options hold for which host, as a pure decision; and how the schedule keeps to them."""

from typing import Any

import pytest

from any2ds.config.options import Config
from any2ds.core.rows import Row
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits
from any2ds.fetch.profiles import Profiles


def profiles(hosts: Any, **options: Any) -> Profiles:
    return Profiles(Config.from_options({"url_list": "-", "hosts": hosts, **options}).fetch)


def agent(made: Profiles, url: str) -> str:
    return made.of(url).options.user_agent


PATTERNS = {
    "*.org": "org",
    "*.example.org": "wildcard",
    "*.example.org:81": "wildcard:81",
    "a.example.org": "exact",
    "a.example.org:443": "exact:443",
    "Bücher.example": "idn",
    "127.1": "v4",
    "[0:0::1]:80": "v6",
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a.example.org/x", "exact"),
        ("http://A.Example.ORG:81/x", "exact"),
        ("https://a.example.org?x", "exact:443"),
        ("http://a.example.org:443", "exact:443"),
        ("http://me:a@b.example.org@b.example.org./", "wildcard"),
        ("http://c.b.example.org:81/", "wildcard:81"),
        ("http://example.org/", "org"),
        ("http://notexample.org/", "org"),
        ("http://org/", "all"),
        ("http://example.org.evil.test/", "all"),
        ("http://evil.test/a.example.org", "all"),
        ("http://evil.test?@a.example.org", "all"),
        ("http://xn--bcher-kva.example/", "idn"),
        ("http://127.0.0.1:5/", "v4"),
        ("http://127.1/", "v4"),
        ("http://0x7f.0.0.1/", "v4"),
        ("http://[::1]/", "v6"),
        ("http://[::1]:81/", "all"),
        ("s3://a.example.org/key", "exact"),
        ("data:,a.example.org", "all"),
        ("file:///a.example.org", "all"),
    ],
)
def test_the_most_specific_pattern_wins(url: str, expected: str) -> None:
    made = profiles({pattern: {"user_agent": name} for pattern, name in PATTERNS.items()}, user_agent="all")
    assert agent(made, url) == expected


def test_patterns_are_combined_option_by_option() -> None:
    hosts = {"*.a.test": {"proxy": "http://p:1", "user_agent": "w"}, "x.a.test": {"user_agent": "x", "proxy": None}}
    made = profiles({**hosts, "y.a.test": {"max_per_host": 3}}, headers="X-A: b", host_delay=2)
    x, y = made.of("http://x.a.test/"), made.of("http://y.a.test/")
    assert (x.options.proxy, x.options.user_agent, x.options.headers) == (None, "x", ("X-A: b",))
    assert (y.options.proxy, y.options.user_agent) == ("http://p:1", "w")
    assert (y.policy.max_per_host, y.policy.host_delay) == (3, 2)
    assert made.of("http://y.a.test/other") is y
    assert made.of("http://b.test/") is made.default


def test_a_list_of_any_length_is_not_remembered() -> None:
    made = profiles({"*.a.test": {"max_per_host": 1}})
    for number in range(20_000):
        made.of(f"http://{number}.a.test/")
        made.of(f"data:,{number}")
    assert made._at.cache_info().currsize <= 8192
    assert len(made._made) == 2


def test_without_overrides_there_is_one_profile() -> None:
    made = profiles(None)
    assert not made.differ
    assert not profiles({}).differ


def row(number: int, url: str) -> Row:
    return Row(0, number, str(number), url)


def test_limits_differ_by_host() -> None:
    hosts = {"bücher.test": {"max_per_host": 2}, "slow.test": {"host_delay": 5.0}, "b.test:8080": {"max_per_host": 1}}
    made = profiles(hosts, max_per_host=4)
    schedule = Schedule(ScheduleLimits(100), made.default.policy, host_of=made.host_of)
    urls = ["http://BÜCHER.test/", "https://xn--bcher-kva.test/", "http://slow.test/", "http://free.test/", "nonsense"]
    urls += ["http://b.test/", "http://b.test:8080/"]
    schedule.fresh.extend(row(n, url) for n, url in enumerate(urls * 10))
    started: dict[str, int] = {}
    while attempt := schedule.next(0.0):
        started[attempt.host.name] = started.get(attempt.host.name, 0) + 1
    expected = {"xn--bcher-kva.test": 2, "slow.test": 1, "free.test": 4, "": 10, "b.test": 4, "b.test:8080": 1}
    assert started == expected
    assert schedule.wait(0.0) == 5.0


def test_a_pattern_with_the_default_port_parts_https_from_http() -> None:
    made = profiles({"a.test:443": {"max_per_host": 1}}, max_per_host=3)
    assert made.host_of("http://a.test/") == ("a.test", made.default.policy)
    name, policy = made.host_of("https://a.test/")
    assert (name, policy.max_per_host) == ("a.test:443", 1)


def test_a_host_may_make_us_wait_as_long_as_its_own_limit_says() -> None:
    from any2ds.core.failures import Failure

    made = profiles({"patient.test": {"max_retry_after": 1000}}, max_retry_after=10)
    schedule = Schedule(ScheduleLimits(100, retries=5), made.default.policy, host_of=made.host_of)
    schedule.fresh.extend([row(0, "http://patient.test/"), row(1, "http://other.test/")])
    kept = []
    while attempt := schedule.next(0.0):
        busy = Failure("fetch", "http_429", "", 429, None, 500.0)
        kept.append((attempt.host.name, schedule.finish(attempt, busy, 0.0) is None))
    assert kept == [("patient.test", True), ("other.test", False)]
