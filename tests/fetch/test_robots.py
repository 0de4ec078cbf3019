"""What robots.txt says, without the network."""

import codecs
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy import robots
from any2ds.fetch.policy.robots import LONGEST, Known, Robots, Rules, is_public, origin_of, parse

SITE = "https://example.org"
ROW = Row(0, 0, "0", f"{SITE}/a")


class Bytes:
    """A body that is in memory."""

    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)

    def read(self) -> bytes:
        return self.content

    def release(self) -> None:
        pass


def answer(content: str | bytes) -> Payload:
    raw = content if isinstance(content, bytes) else content.encode()
    return Payload(Bytes(raw), None, 200, None, 0.1)  # type: ignore[arg-type]


def learned(outcome: Payload | Failure, now: float = 0.0) -> Robots:
    known = Robots("any2ds")
    known.hold(SITE, ROW, now)
    assert known.learn(SITE, outcome, now) == [ROW]
    return known


def rules(*lines: str, product: str = "any2ds") -> Rules:
    return parse("\n".join(lines).encode(), product)


def allowed(lines: Iterable[str], *paths: str) -> list[bool]:
    found = rules(*lines)
    return [found.allows(SITE + path) for path in paths]


class TestGroups:
    def test_our_group_counts_and_nothing_else(self) -> None:
        lines = ("User-agent: *", "Disallow: /", "", "User-agent: Any2DS", "Disallow: /ours")
        assert allowed(lines, "/", "/ours") == [True, False]

    @pytest.mark.parametrize("name", ["any", "a", "2ds", "any2ds-images", "not-any2ds", "any2dsx", "any2ds_x"])
    def test_part_of_our_name_or_more_than_it_is_another(self, name: str) -> None:
        assert allowed((f"User-agent: {name}", "Disallow: /"), "/") == [True]

    @pytest.mark.parametrize("name", ["any2ds", "ANY2DS", "any2ds/1.0", "any2ds (images)", " any2ds \t"])
    def test_our_name_in_any_case_and_with_a_version(self, name: str) -> None:
        assert allowed((f"User-agent:{name}", "Disallow: /"), "/") == [False]

    def test_groups_of_the_same_agent_are_one(self) -> None:
        lines = (
            "User-agent: any2ds",
            "Disallow: /a",
            "User-agent: b",
            "Disallow: /",
            "User-agent: any2ds",
            "Disallow: /c",
        )
        assert allowed(lines, "/a", "/b", "/c") == [False, True, False]

    def test_agents_in_a_row_share_a_group_whatever_stands_between(self) -> None:
        lines = ("User-agent: other", "", "# words", "Sitemap: https://x/", "User-agent: any2ds", "Disallow: /")
        assert allowed(lines, "/") == [False]

    def test_a_delay_ends_the_agents_of_a_group(self) -> None:
        lines = ("User-agent: *", "Crawl-delay: 5", "User-agent: other", "Disallow: /")
        assert allowed(lines, "/") == [True]
        assert rules(*lines).delay == 5

    def test_a_group_of_ours_without_rules_allows_everything(self) -> None:
        assert allowed(("User-agent: any2ds", "Disallow:", "User-agent: *", "Disallow: /"), "/") == [True]

    def test_rules_before_any_agent_are_nobodys(self) -> None:
        assert allowed(("Disallow: /", "User-agent: *", "Disallow: /a"), "/", "/a") == [True, False]


class TestPaths:
    def test_the_longest_match_wins_and_the_one_that_allows_of_two_alike(self) -> None:
        lines = ("User-agent: *", "Disallow: /a", "Allow: /a/b", "Disallow: /a/b/c", "Allow: /same", "Disallow: /same")
        assert allowed(lines, "/a", "/a/b", "/a/b/cd", "/same", "/other") == [False, True, False, True, True]

    def test_wildcards_count_as_octets_too(self) -> None:
        assert allowed(("User-agent: *", "Allow: /", "Disallow: /*"), "/x") == [False]
        assert allowed(("User-agent: *", "Allow: /x*", "Disallow: /xy"), "/xyz") == [True]

    def test_asterisk_and_dollar(self) -> None:
        lines = ("User-agent: *", "Disallow: /*.gif$", "Disallow: /a*b*c", "Disallow: /end$", "Disallow: /mid$dle")
        paths = ["/x.gif", "/x.gif?y", "/aXbXcX", "/acb", "/end", "/ends", "/mid$dle", "/.gif", "/a.gif.gif"]
        assert allowed(lines, *paths) == [False, True, False, True, False, True, False, False, False]

    def test_parts_do_not_overlap(self) -> None:
        assert allowed(("User-agent: *", "Disallow: /ab*ba$"), "/aba", "/abba") == [True, False]

    def test_case_counts(self) -> None:
        assert allowed(("User-agent: *", "Disallow: /A"), "/a", "/A") == [True, False]

    @pytest.mark.parametrize(
        ("rule", "path", "is_allowed"),
        [
            ("/caf\u00e9", "/caf%C3%A9", False),
            ("/caf%c3%a9", "/caf%C3%A9/x", False),
            ("/%7Euser/", "/~user/", False),
            ("/~user/", "/%7euser/", False),
            ("/a b", "/a%20b", False),
            ("/a%2Fb", "/a/b", True),  # another path
            ("/a/b", "/a%2fb", True),
            ("/%2A", "/x", True),  # a character, no wildcard
            ("/%2A", "/*", False),
            ("/%62%61%72", "/bar", False),
            ("/100%", "/100%", False),
        ],
    )
    def test_every_spelling_is_the_same(self, rule: str, path: str, is_allowed: bool) -> None:
        assert allowed(("User-agent: *", f"Disallow: {rule}"), path) == [is_allowed]

    def test_bytes_that_are_no_utf_8_stand_for_themselves(self) -> None:
        found = parse(b"User-agent: *\nDisallow: /caf\xe9", "any2ds")
        assert [found.allows(f"{SITE}/caf%E9"), found.allows(f"{SITE}/caf%C3%A9")] == [False, True]

    def test_query_and_fragment(self) -> None:
        lines = ("User-agent: *", "Disallow: /*?", "Disallow: /x#comment")
        assert allowed(lines, "/a?b", "?b", "/a", "/y#?", "", "/x1") == [False, False, True, True, True, False]

    def test_robots_txt_itself_is_allowed(self) -> None:
        assert allowed(("User-agent: *", "Disallow: /"), "/robots.txt", "/robots.txt.bak") == [True, False]

    def test_many_wildcards_take_no_more_than_a_moment(self) -> None:
        found = rules("User-agent: *", "Disallow: /" + "*a" * 2000 + "b")
        assert found.allows(f"{SITE}/{'a' * 60_000}")


class TestFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\xef\xbb\xbf",
            b"\0" * 1000,
            b"<!DOCTYPE html><html><body>User-agent: *<br>Disallow: /<br></body></html>",
            b"Disallow",
            b":::\n:\n#\n\xff\xfe\xfd",
            bytes(range(256)) * 100,
        ],
    )
    def test_a_file_without_rules_allows_everything(self, content: bytes) -> None:
        assert parse(content, "any2ds").allows(f"{SITE}/x")

    @pytest.mark.parametrize(
        "content",
        [
            b"\xef\xbb\xbfUser-agent: *\r\nDisallow: /",
            "User-agent: *\r\nDisallow: /".encode("utf-16"),
            codecs.BOM_UTF16_BE + "User-agent: *\nDisallow: /".encode("utf-16-be"),
            b"User-agent: *\rDisallow: /\r",
            b"  USER-AGENT :*  # all\n\tdissallow:/ # everything",
            b"User-agent *\nDisallow /",
            b"User-agent: *\0\nDisallow: /\0",
            b"garbage\nUser-agent: *\ngarbage: \xff\nDisallow: /",
        ],
    )
    def test_rules_are_found_whatever_is_around_them(self, content: bytes) -> None:
        assert not parse(content, "any2ds").allows(f"{SITE}/x")

    def test_a_long_file_is_cut_after_a_whole_line(self) -> None:
        start = b"User-agent: *\nDisallow: /early\n"
        filler = b"#" * (LONGEST - len(start) - len(b"\nDisallow: /")) + b"\nDisallow: /lost"
        found = parse((start + filler)[:LONGEST], "any2ds")
        assert [found.allows(f"{SITE}/{path}") for path in ("early", "x")] == [False, True]

    @pytest.mark.parametrize(
        ("lines", "delay"),
        [
            (["Crawl-delay: 2.5"], 2.5),
            (["Crawl-delay: 3600"], 60),
            (["Crawl-delay: 1e400"], 0),
            (["Crawl-delay: -5", "Crawl-delay: nan", "Crawl-delay: inf", "Crawl-delay:"], 0),
            (["Request-rate: 1/5"], 5),
            (["Request-rate: 30/1m 0900-1700"], 2),
            (["Request-rate: 0/5", "Request-rate: 5", "Request-rate: /"], 0),
            ([f"Request-rate: 1/{'9' * 400}s"], 0),
            (["Crawl-delay: 1", "Request-rate: 1/10s"], 10),
        ],
    )
    def test_delays_are_read_and_bounded(self, lines: list[str], delay: float) -> None:
        assert rules("User-agent: *", *lines).delay == delay

    def test_a_file_in_which_all_rules_are_for_many_agents_is_read_in_a_moment(self) -> None:
        agents = "".join(f"User-agent: a{number}\n" for number in range(15_000))
        found = parse((agents + "User-agent: *\n" + "Disallow: /a\n" * 15_000).encode(), "any2ds")
        assert [found.allows(f"{SITE}/{path}") for path in ("a", "b")] == [False, True]

    @given(st.binary(max_size=300))
    def test_no_bytes_stop_it(self, content: bytes) -> None:
        found = parse(b"User-agent: *\n" + content, "any2ds")
        found.allows(f"{SITE}/x?y=%20%zz#")


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "localhost:8080", "db", "nas.local", "a.internal", "x.test", "a.localhost", "nas.local."),
            *("127.0.0.1:80", "10.1.2.3", "192.168.0.1", "169.254.169.254", "[::1]", "[fe80::1]:8080", "[fd00::1]"),
        ],
    )
    def test_hosts_that_are_no_part_of_the_public_web(self, host: str) -> None:
        assert not is_public(host)
        assert not Robots("any2ds").asks(host)
        assert Robots("any2ds", "respect").asks(host)

    @pytest.mark.parametrize(
        "host", ["example.org", "example.org:81", "8.8.8.8", "[2606:4700::1111]", "local.org", "my-test.org", "", "a?b"]
    )
    def test_hosts_that_may_be(self, host: str) -> None:
        assert is_public(host)

    @pytest.mark.parametrize(
        ("url", "origin"),
        [
            ("https://example.org/a?b#c", "https://example.org"),
            ("http://user:word@EXAMPLE.org:81/@", "http://example.org:81"),
            ("HTTPS://example.org:443", "https://example.org"),
            ("http://example.org:80?x=/", "http://example.org"),
            ("http://example.org:443/", "http://example.org:443"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("ftp://example.org/", None),
        ],
    )
    def test_origins(self, url: str, origin: str | None) -> None:
        assert origin_of(url) == origin


def verdict(known: Robots, url: str = ROW.url or "", now: float = 1.0) -> str | None:
    found = known.known(url, now)
    assert isinstance(found, Known)
    refusal = found.refusal(url)
    return refusal and refusal.code


class TestKnown:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451, 499, 204, 304])
    def test_where_there_is_none_everything_is_allowed(self, status: int) -> None:
        assert verdict(learned(Failure("fetch", f"http_{status}", http_status=status))) is None

    @pytest.mark.parametrize("code", ["empty_body", "too_many_redirects", "bad_redirect", "bad_encoding"])
    def test_one_that_is_nothing_is_none(self, code: str) -> None:
        assert verdict(learned(Failure("fetch", code))) is None

    @pytest.mark.parametrize("code", ["http_429", "http_500", "http_503", "timeout_total", "reset", "truncated"])
    def test_where_it_is_out_of_reach_nothing_is_allowed_for_ten_minutes(self, code: str) -> None:
        status = int(code[5:]) if code.startswith("http_") else None
        known = learned(Failure("fetch", code, http_status=status))
        assert verdict(known, now=599) == "robots_unreachable"
        assert known.known(ROW.url or "", 601) is None

    @pytest.mark.parametrize("code", ["dns", "connect", "tls", "blocked_address", "host_down"])
    def test_where_the_host_is_out_of_reach_its_rows_say_so(self, code: str) -> None:
        assert verdict(learned(Failure("fetch", code))) == code
        elsewhere = Failure("fetch", code, final_url="http://other/robots.txt")
        assert verdict(learned(elsewhere)) == "robots_unreachable"

    def test_rules_hold_for_a_day(self) -> None:
        known = learned(answer("User-agent: *\nDisallow: /"))
        assert verdict(known, now=86_399) == "robots"
        assert known.known(ROW.url or "", 86_401) is None

    def test_every_spelling_of_an_origin_is_that_origin(self) -> None:
        known = learned(answer("User-agent: *\nDisallow: /a"))
        for url in ("https://EXAMPLE.org/a", "https://u:p@example.org/a", "https://example.org:443/a"):
            assert verdict(known, url) == "robots"
        for url in (
            "http://example.org/a",
            "https://example.org:444/a",
            "https://example.org?/a",
            "https://www.example.org/a",
        ):
            assert known.known(url, 1.0) is None or verdict(known, url) is None

    def test_what_is_not_asked_for_is_allowed(self) -> None:
        for url in ("ftp://example.org/a", "http://localhost/a", "http://127.0.0.1:80/a"):
            assert verdict(Robots("any2ds"), url) is None

    def test_a_redirect_is_judged_by_what_is_known(self) -> None:
        known = learned(answer("User-agent: *\nDisallow: /a"))
        refusal = known.redirect_refusal(f"{SITE}/a")
        assert refusal is not None
        assert refusal.code == "robots"
        assert known.redirect_refusal(f"{SITE}/b") is None
        assert known.redirect_refusal("https://other.org/a") is None

    def test_the_least_recently_used_origins_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(robots, "_MOST_ORIGINS", 100)
        known = learned(Failure("fetch", "http_404", http_status=404))
        for number in range(1000):
            known.known(ROW.url or "", 0)
            known.hold(f"http://h{number}.org", ROW, 0)
            known.learn(f"http://h{number}.org", Failure("fetch", "http_404", http_status=404), 0)
        assert len(known) == 100
        assert verdict(known) is None
        assert known.known("http://h0.org/", 0) is None

    def test_big_files_do_not_pile_up(self) -> None:
        big = answer("User-agent: *\n" + "".join(f"Disallow: /{n}\n" for n in range(25_000)))
        known = Robots("any2ds")
        for number in range(20):
            known.hold(f"http://h{number}.org", ROW, 0)
            known.learn(f"http://h{number}.org", big, 0)
        assert 2 < len(known) < 20

    def test_the_cost_is_told_once(self) -> None:
        known = learned(answer("User-agent: *"), now=0)
        known.hold("http://b.org", ROW, 3.0)
        known.learn("http://b.org", Failure("fetch", "http_404", http_status=404), 5.0)
        cost = known.take_cost()
        assert (cost.files, cost.bytes, cost.seconds) == (2, 13, 2.0)
        assert known.take_cost().files == 0
