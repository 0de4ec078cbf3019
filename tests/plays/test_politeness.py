"""Manners towards hosts, from outside: robots.txt, headers, cookies, limits for each host, proxies, names."""

import uuid
from typing import Any

import pytest

from tests.support.dns import serve_dns
from tests.support.play import Play, Row
from tests.support.proxy import serve_proxy

ROBOTS = {
    "disallows all": ("User-agent: *\nDisallow: /\n", {"a.txt": "robots", "b.txt": "robots"}),
    "disallows one": ("User-agent: *\nDisallow: /a\n", {"a.txt": "robots", "b.txt": "success"}),
    "allows one": ("User-agent: *\nDisallow: /\nAllow: /b.txt$\n", {"a.txt": "robots", "b.txt": "success"}),
    "wildcards": ("User-agent: *\nDisallow: /*.txt$\nAllow: /b*\n", {"a.txt": "robots", "b.txt": "robots"}),
    "another agent": ("User-agent: other\nDisallow: /\n", {"a.txt": "success", "b.txt": "success"}),
    "this agent": (
        "User-agent: *\nDisallow: /\n\nUser-agent: any2ds\nDisallow: /a\n",
        {"a.txt": "robots", "b.txt": "success"},
    ),
    "nothing": ("Disallow:\n", {"a.txt": "success", "b.txt": "success"}),
}


@pytest.mark.parametrize("case", ROBOTS.values(), ids=ROBOTS.keys())
def test_robots_txt_decides_which_rows_are_requested(case: Any) -> None:
    text, expected = case
    play = Play({"robots.txt": Row(body=text.encode()), "a.txt": "ok", "b.txt": "ok"}, robots="respect")
    play.write_list(["a.txt", "b.txt"])
    outcome = play.run("download", "list.jsonl")
    assert outcome.code_of == expected
    assert outcome.requests["robots.txt"] == 1
    assert {name for name in ("a.txt", "b.txt") if outcome.requests[name]} == {
        name for name, code in expected.items() if code == "success"
    }


@pytest.mark.parametrize(
    ("answer", "code"),
    [("http_404", "success"), ("http_403", "success"), ("http_500", "robots_unreachable"), ("ok", "robots")],
)
def test_a_robots_txt_that_is_not_there_allows_all_and_one_that_cannot_be_read_nothing(answer: str, code: str) -> None:
    rows = {"robots.txt": Row(answer, body=b"User-agent: *\nDisallow: /"), "a.txt": "ok"}
    play = Play(rows, robots="respect")
    play.write_list(["a.txt"])
    outcome = play.run("download", "list.jsonl")
    assert outcome.codes == {code: 1}
    assert outcome.requests["a.txt"] == (code == "success")


@pytest.mark.parametrize("robots", ["public", "ignore"])
def test_robots_txt_of_a_host_of_this_machine_is_not_asked_for(robots: str) -> None:
    rows = {"robots.txt": Row(body=b"User-agent: *\nDisallow: /"), "a.txt": "ok"}
    play = Play(rows, robots=robots)
    play.write_list(["a.txt"])
    outcome = play.run("download", "list.jsonl")
    assert (outcome.codes, outcome.requests) == ({"success": 1}, {"a.txt": 1})


@pytest.mark.parametrize("answer", ["ok", "http_404"])
def test_robots_txt_of_a_public_host_is_asked_for_once_by_all_processes(answer: str) -> None:
    name = f"{uuid.uuid4().hex}.example.org"
    files = {f"{number}.txt": "slow:0.05" for number in range(40)}
    rows: Any = {"robots.txt": Row(answer, body=b"User-agent: *\nDisallow: /7.txt\n"), **files}
    with serve_dns({name: ["a:127.0.0.1"] * 20}) as dns:
        play = Play(rows, nameservers=dns.address, processes_count=4, number_sample_per_shard=5, robots="public")
        (play.folder / "l.txt").write_text("".join(f"http://{name}:{play.web.port}/{file}\n" for file in files))
        outcome = play.run("download", "l.txt")
    assert outcome.codes == ({"success": 39, "robots": 1} if answer == "ok" else {"success": 40})
    assert outcome.requests["robots.txt"] == 1


@pytest.mark.parametrize(
    ("header", "directives", "code"),
    [
        ("noindex", None, "opted_out"),
        ("nofollow", None, "success"),
        ("all, NoAI", None, "opted_out"),
        ("any2ds: noai", None, "opted_out"),
        ("otherbot: noai", None, "success"),
        ("noai", "noindex", "success"),
        ("nofollow", "nofollow", "opted_out"),
        ("noai", "None", "success"),
    ],
)
def test_what_x_robots_tag_excludes(header: str, directives: str | None, code: str) -> None:
    options = {} if directives is None else {"disallowed_header_directives": directives}
    outcome = Play({"a.txt": f"ok:X-Robots-Tag={header}"}, **options).run()
    assert outcome.codes == {code: 1}
    assert len(outcome.samples) == (code == "success")


def test_headers_user_agent_and_cookies_of_the_run_are_sent() -> None:
    play = Play({"a.txt": "ok"}, user_agent="me/1", headers="Referer: https://a, X-Key: b, Cookie: flavour=vanilla")
    assert play.run().codes == {"success": 1}
    (request,) = play.web.requests
    assert request.headers["User-Agent"] == "me/1"
    assert (request.headers["Referer"], request.headers["X-Key"]) == ("https://a", "b")
    assert request.headers["Cookie"] == "flavour=vanilla"


def test_any2ds_names_itself() -> None:
    play = Play({"a.txt": "ok"})
    play.run()
    assert play.web.requests[0].headers["User-Agent"].startswith("any2ds/")
    assert "+http" in play.web.requests[0].headers["User-Agent"]


def test_a_column_of_the_list_is_the_referer_of_each_row_also_behind_a_redirect_and_in_a_retry() -> None:
    pages = {"a.txt": "https://page/a", "b.txt": "http://me:secret@page/b c#part", "c.txt": "no\r\npage", "d.txt": None}
    rows = {name: Row("http_503" if name == "b.txt" else "ok", columns={"page": page}) for name, page in pages.items()}
    rows["e.txt"] = Row("redirect:/a.txt", columns={"page": "http://page/e"})
    play = Play(rows, referer_col="page")
    play.run()
    assert play.run("retry", referer_col="page").exit_code == 0
    sent = [(request.path, request.headers.get("Referer")) for request in play.web.requests]
    assert set(sent) == {
        ("b.txt", "http://page/b%20c"),
        ("a.txt", "http://page/e"),
        ("a.txt", None),  # a page on https, and a file on http
        ("c.txt", None),
        ("d.txt", None),
        ("e.txt", "http://page/e"),
    }


def test_headers_for_one_host_replace_those_of_the_run_and_secrets_do_not_follow_a_redirect() -> None:
    other = Play({"there.txt": "ok"})
    play = Play(
        {"a.txt": f"redirect:{other.web.url('there.txt')}"},
        headers="Authorization: Bearer s3cret, Referer: https://a",
        hosts={f"127.0.0.1:{other.web.port}": {"user_agent": "for-other/1"}},
    )
    outcome = play.run()
    assert outcome.codes == {"success": 1}
    (first,), (second,) = play.web.requests, other.web.requests
    assert first.headers["Authorization"] == "Bearer s3cret"
    assert first.headers["User-Agent"].startswith("any2ds/")
    assert "Authorization" not in second.headers
    assert second.headers["Referer"] == "https://a"
    assert second.headers["User-Agent"] == "for-other/1"
    assert not any(b"s3cret" in content for content in outcome.files.values())


def test_user_and_password_of_a_url_are_sent_and_not_stored() -> None:
    play = Play({"a.txt": "ok"})
    (play.folder / "l.txt").write_text(play.web.url("a.txt").replace("//", "//me:s3cret@"))
    outcome = play.run("download", "l.txt")
    assert play.web.requests[0].headers["Authorization"] == "Basic bWU6czNjcmV0"
    assert outcome.metadata[0]["url"] == play.web.url("a.txt")
    assert not any(b"s3cret" in content for content in outcome.files.values())
    assert "s3cret" not in outcome.screen


@pytest.mark.parametrize("how", ["option", "hosts"])
@pytest.mark.parametrize("most", [1, 2])
def test_max_per_host_bounds_what_a_host_answers_at_a_time(most: int, how: str) -> None:
    options = {"max_per_host": most} if how == "option" else {"hosts": {"127.0.0.1": {"max_per_host": most}}}
    play = Play({f"{number}.txt": "slow:0.02" for number in range(8)}, **options)
    assert play.run().codes == {"success": 8}
    assert play.web.max_concurrent <= most


def test_host_delay_is_kept_between_two_requests() -> None:
    play = Play({f"{number}.txt": "ok" for number in range(4)}, host_delay=0.1)
    assert play.run().codes == {"success": 4}
    times = [request.at for request in play.web.requests]
    assert times[-1] - times[0] > 0.2
    assert play.web.max_concurrent == 1


def test_crawl_delay_of_robots_txt_is_kept() -> None:
    play = Play(
        {"robots.txt": Row(body=b"User-agent: *\nCrawl-delay: 0.2\n"), "a.txt": "ok", "b.txt": "ok"}, robots="respect"
    )
    play.write_list(["a.txt", "b.txt"])
    play.run("download", "list.jsonl")
    first, _, last = [request.at for request in play.web.requests]
    assert last - first > 0.3


def test_a_host_that_asks_for_time_gets_it_and_no_retry_is_counted() -> None:
    play = Play({"a.txt": ["429:retry-after=1", "ok"]}, retries=0)
    outcome = play.run()
    assert (outcome.codes, outcome.requests) == ({"success": 1}, {"a.txt": 2})
    first, second = [request.at for request in play.web.requests]
    assert second - first >= 0.9


def test_a_host_that_asks_for_more_than_max_retry_after_is_not_waited_for_that_long() -> None:
    play = Play({"a.txt": ["429:retry-after=3600", "ok"]}, max_retry_after=0.1)
    assert set(play.run().codes) <= {"success", "http_429"}


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
def test_requests_go_through_a_proxy(scheme: str, tls: bool) -> None:
    with serve_proxy("me:s3cret") as proxy:
        play = Play({"a.txt": "ok"}, tls=tls, proxy=proxy.url_as(scheme), ignore_ssl_certificate=True)
        outcome = play.run()
    assert outcome.codes == {"success": 1}
    assert len(proxy.asked) >= 1
    assert str(play.web.port) in proxy.asked[-1]
    assert not any(b"s3cret" in content for content in outcome.files.values())


def test_a_proxy_that_refuses_fails_the_row_and_one_host_may_do_without_it() -> None:
    with serve_proxy("me:s3cret") as proxy:
        play = Play({"a.txt": "ok"}, proxy=proxy.url.replace("s3cret", "wrong"))
        assert "success" not in play.run().codes
        assert not play.web.requests
        direct = play.run(hosts={"127.0.0.1": {"proxy": None}}, incremental_mode="overwrite")
    assert direct.codes == {"success": 1}
    assert proxy.refused >= 1


def test_names_are_asked_of_the_name_servers_that_are_named() -> None:
    with serve_dns({"a.test": ["a:127.0.0.1"], "b.test": ["cname:a.test a:127.0.0.1"]}) as dns:
        play = Play({"x.txt": "ok"}, nameservers=dns.address)
        port = play.web.port
        (play.folder / "l.txt").write_text(f"http://a.test:{port}/x.txt\nhttp://b.test:{port}/x.txt\n")
        outcome = play.run("download", "l.txt", dedupe="none")
    assert outcome.codes == {"success": 2}
    assert dns.counts["a.test", "A"] >= 1
    assert dns.counts["b.test", "A"] >= 1
    assert {request.headers["Host"] for request in play.web.requests} == {f"a.test:{port}", f"b.test:{port}"}


@pytest.mark.parametrize("answer", ["truncate a:127.0.0.1", "delay:0.05 a:127.0.0.1"])
def test_odd_answers_of_a_name_server_are_understood(answer: str) -> None:
    with serve_dns({"a.test": [answer]}) as dns:
        play = Play({"x.txt": "ok"}, nameservers=dns.address)
        (play.folder / "l.txt").write_text(f"http://a.test:{play.web.port}/x.txt\n")
        assert play.run("download", "l.txt").codes == {"success": 1}
    assert bool(dns.over_tcp) == answer.startswith("truncate")


def test_a_name_that_leads_to_this_machine_is_blocked_where_private_addresses_are() -> None:
    with serve_dns({"a.test": ["a:127.0.0.1"]}) as dns:
        play = Play({"x.txt": "ok"}, nameservers=dns.address, block_private_addresses=True)
        (play.folder / "l.txt").write_text(f"http://a.test:{play.web.port}/x.txt\n")
        assert play.run("download", "l.txt").codes == {"blocked_address": 1}
    assert not play.web.requests


@pytest.mark.parametrize(
    "options",
    [
        {"max_per_host": 0},
        {"host_delay": -1},
        {"robots": "perhaps"},
        {"proxy": "word"},
        {"nameservers": "no address"},
        {"nameservers": "127.0.0.1:5353", "proxy": "http://127.0.0.1:1"},  # a proxy resolves all names
        {"nameservers": "127.0.0.1:5353", "environment": {"http_proxy": "http://127.0.0.1:1"}},
        {"hosts": {"127.0.0.1": {"timeout": 3}}},
        {"headers": "no colon"},
        {"fetcher": "wget"},
        {"retries": -1},
        {"timeout": -1},
        {"max_file_bytes": "much"},
        {"allow_link_local": True, "block_private_addresses": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_an_option_that_cannot_be_is_refused_by_its_name(options: Any) -> None:
    outcome = Play({"a.txt": "ok"}, **options).run()
    assert outcome.exit_code == 2
    assert next(iter(options)) in outcome.screen
    assert not outcome.requests
    assert not outcome.names
