"""robots.txt over real sockets, and what the run says of it."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import download
from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.fetch.policy.robots import LONGEST
from any2ds.testing.server import serve
from tests.support.fetching import FetcherContract


class Fetch(FetcherContract):
    __test__ = False

    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> UrlFetcher:
        self.fetcher = UrlFetcher(options, buffer)
        return self.fetcher

    def codes(self, urls: list[str], **options: Any) -> list[str]:
        found = self.fetch(urls, **{"robots": "respect", **options})
        outcomes = [found[position].outcome for position in range(len(urls))]
        codes = []
        for outcome in outcomes:
            if isinstance(outcome, Payload):
                outcome.body.release()
            codes.append(outcome.code if isinstance(outcome, Failure) else "success")
        assert self.buffer.used == 0
        return codes


@pytest.fixture
def fetch() -> Iterator[Fetch]:
    fetch = Fetch()
    fetch.setup_method()
    yield fetch
    fetch.teardown_method()


def site(folder: Path, robots: str | bytes | None) -> Path:
    (folder / "a.jpg").write_bytes(b"a" * 1000)
    if robots is not None:
        (folder / "robots.txt").write_bytes(robots.encode() if isinstance(robots, str) else robots)
    return folder


RULES = "User-agent: any2ds\nDisallow: /no\n"


def test_it_is_asked_for_with_our_name_and_only_as_the_option_says(fetch: Fetch, tmp_path: Path) -> None:
    with serve(site(tmp_path, "User-agent: my-bot\nDisallow: /")) as server:
        assert fetch.codes([server.url("a.jpg")], robots="public") == ["success"]
        assert fetch.codes([server.url("a.jpg")], robots="ignore") == ["success"]
        assert server.counts["robots.txt"] == 0
        assert fetch.codes([server.url("a.jpg")]) == ["success"]
        assert fetch.codes([server.url("a.jpg")], user_agent="My-Bot/2.0 (+https://example.org)") == ["robots"]
        assert server.requests[-1].headers["User-Agent"].startswith("My-Bot/2.0")


@pytest.mark.parametrize(
    ("script", "options", "code", "asked"),
    [
        (["404"], {}, "success", 1),
        (["403"], {}, "success", 1),
        (["401"], {}, "success", 1),
        (["empty"], {}, "success", 1),
        (["bad-gzip"], {}, "success", 1),
        (["redirect:loop"], {}, "success", 11),
        (["500"], {}, "robots_unreachable", 2),
        (["501"], {}, "robots_unreachable", 2),
        (["503", "503", "ok"], {"retries": 2}, "robots", 3),
        (["reset", "ok"], {}, "robots", 2),
        (["truncated"], {}, "robots_unreachable", 2),
        (["429:retry-after=1", "ok"], {}, "robots", 2),
        (["timeout"], {"timeout": 0.3}, "robots_unreachable", 2),
        (["ok:x-robots-tag=noai"], {}, "robots", 1),
        (["redirect:elsewhere"], {}, "robots", 1),
        (["gzip"], {}, "robots", 1),
    ],
)
def test_what_follows_from_its_answer(
    fetch: Fetch, tmp_path: Path, script: list[str], options: dict[str, Any], code: str, asked: int
) -> None:
    (tmp_path / "elsewhere").write_text("User-agent: *\nDisallow: /")
    scripts = {"robots.txt": script, "a.jpg": ["ok"]}
    with serve(site(tmp_path, "User-agent: *\nDisallow: /"), scripts) as server:
        assert set(fetch.codes([server.url("a.jpg")] * 20, **options)) == {code}
        assert server.counts["robots.txt"] == asked
        assert server.counts["a.jpg"] == (20 if code == "success" else 0)


def test_five_redirects_are_followed(fetch: Fetch, tmp_path: Path) -> None:
    chain = {"robots.txt": ["redirect:r1"]} | {f"r{n}": [f"redirect:r{n + 1}"] for n in range(1, 6)}
    (tmp_path / "r5").write_text("User-agent: *\nDisallow: /")
    with serve(site(tmp_path, None), {**chain, "r5": ["ok"]}) as server:
        assert fetch.codes([server.url("a.jpg")]) == ["robots"]
    with serve(site(tmp_path, None), chain) as server:
        assert fetch.codes([server.url("a.jpg")]) == ["success"]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_one_is_cut_and_rows_keep_their_own_limit(fetch: Fetch, tmp_path: Path, compressed: bool) -> None:
    long = b"User-agent: *\nDisallow: /no\n" + b"# filler\n" * LONGEST + b"Disallow: /a\n"
    with serve(site(tmp_path, long), {"robots.txt": ["gzip" if compressed else "ok"]}) as server:
        urls = [server.url("a.jpg"), server.url("no")]
        assert fetch.codes(urls, max_file_bytes=2000, thread_count=1) == ["success", "robots"]
        assert fetch.fetcher.robots_cost().bytes == LONGEST
        found = fetch.fetch(urls, robots="respect", max_file_bytes=500, thread_count=1)
        outcome = found[0].outcome
        assert isinstance(outcome, Failure)
        assert outcome.code == "too_large"
        assert "more than" not in outcome.detail  # libcurl has read no byte of it
    with serve(site(tmp_path, long), {"robots.txt": ["redirect:long"], "long": ["big:600000"]}) as server:
        assert fetch.codes([server.url("a.jpg")], max_file_bytes=2000) == ["success"]


def test_an_endless_one_is_cut(fetch: Fetch, tmp_path: Path) -> None:
    with serve(site(tmp_path, RULES), {"robots.txt": ["endless"]}) as server:
        assert fetch.codes([server.url("a.jpg"), server.url("no")]) == ["success", "robots"]


def test_a_redirect_to_what_is_known_to_be_disallowed_is_not_followed(fetch: Fetch, tmp_path: Path) -> None:
    with serve(site(tmp_path, RULES), {"r": ["redirect:no/a"], "s": ["redirect:a.jpg"]}) as server:
        assert fetch.codes([server.url("r"), server.url("s")]) == ["robots", "success"]
        assert server.counts["no/a"] == 0


def test_both_schemes_of_a_host_have_their_own(fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, robots in (("plain", "User-agent: *\nDisallow: /a"), ("tls", RULES)):
        (tmp_path / name).mkdir()
        site(tmp_path / name, robots)
    with serve(tmp_path / "plain") as plain, serve(tmp_path / "tls", tls=True) as tls:
        monkeypatch.setenv("SSL_CERT_FILE", tls.ca_file or "")
        assert fetch.codes([plain.url("a.jpg"), tls.url("a.jpg")]) == ["robots", "success"]


def test_the_report_and_the_stats_tell_what_it_cost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serve(site(tmp_path, RULES)) as server:
        urls = [server.url("a.jpg"), server.url("no/1"), server.url("no/2")] * 10
        report = download(
            urls,
            output_folder=str(tmp_path / "out"),
            number_sample_per_shard=10,
            robots="respect",
            disable_all_reencoding=True,
            distributor="inline",
        )
    assert report.robots.files == 1
    assert report.robots.bytes == len(RULES)
    assert report.robots.seconds > 0
    assert report.status_dict == {"success": 10, "robots": 20}
    stats = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*_stats.json")]
    assert sum(shard["robots_files"] for shard in stats) == 1
    assert sum(shard["robots_bytes"] for shard in stats) == len(RULES)
    shown = " ".join(capfd.readouterr().err.split())
    assert f"1 robots.txt asked for ({len(RULES)} bytes, " in shown
    assert "20 rows excluded" in shown


def test_compressed_bodies_are_what_the_server_says(fetch: Fetch, tmp_path: Path) -> None:
    body = gzip.compress(RULES.encode())
    with serve(site(tmp_path, body)) as server:  # not said to be compressed: no rules in it
        assert fetch.codes([server.url("no")]) == ["http_404"]


def test_some_hosts_may_be_exempt_and_others_know_us_by_another_name(fetch: Fetch, tmp_path: Path) -> None:
    rules = "User-agent: other\nDisallow: /a\n\nUser-agent: *\nDisallow: /b"
    (tmp_path / "b.jpg").write_bytes(b"b" * 1000)
    with serve(site(tmp_path, rules), host="0.0.0.0") as server:
        urls = [f"http://{host}:{server.port}/{path}.jpg" for host in ("127.0.0.1", "127.0.0.2") for path in "ab"]
        other = {"127.0.0.2": {"user_agent": "other/1.0"}}
        assert fetch.codes(urls, hosts=other) == ["success", "robots", "robots", "success"]
        exempt = {"127.0.0.2": {"robots": "ignore"}}
        assert fetch.codes(urls, hosts=exempt) == ["success", "robots", "success", "success"]
        assert fetch.codes(urls, robots="ignore", hosts={"127.0.0.2": {"robots": "respect"}})[1] == "success"
