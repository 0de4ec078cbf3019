"""What every fetcher promises, as tests over real sockets.

A plugin's author subclasses `FetcherContract`, or `WebFetcherContract` for a fetcher of http and https:

    class TestMyFetcher(WebFetcherContract):
        def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> MyFetcher:
            return MyFetcher(options, buffer)

The tests of TLS, HTTP/2 and name servers need `pip install any2ds[testing]`.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from unittest import SkipTest, mock

from any2ds.config.options import Config, FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import MissingExtra
from any2ds.core.failures import Failure
from any2ds.core.metrics import Traffic, Wait
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.contract import Fetcher
from any2ds.fetch.policy import rules
from any2ds.testing.server import serve
from tests.support.http2 import serve_http2

BODY = bytes(range(256)) * 400
SECRET = "s3cret"

# What is scripted (see `faults.py`) -> the code of the row. Another attempt may help with these:
PASSING: Mapping[str, str] = {
    "408": "http_408",
    "425": "http_425",
    "429": "http_429",
    "500": "http_500",
    "501": "http_501",
    "502": "http_502",
    "503": "http_503",
    "504": "http_504",
    "hangup": "reset",
    "reset": "reset",
    "truncated": "truncated",
    "truncated-chunks": "truncated",
    "cut:gzip": "truncated",
    "cut:deflate": "truncated",
    "cut:br": "truncated",
    "cut:gzip,gzip": "truncated",
}
# It does not with these, so that nobody is asked a second time:
FINAL: Mapping[str, str] = {
    "204": "http_204",
    "205": "http_205",
    "302": "http_302",  # without a Location
    "304": "http_304",
    "401": "http_401",
    "403": "http_403",
    "404": "http_404",
    "410": "http_410",
    "451": "http_451",
    "999": "http_999",
    "empty": "empty_body",
    "bad-chunk": "protocol",
    "not-http": "protocol",
    "bad-gzip": "bad_encoding",
    "long-header": "headers_too_large",
    "endless-header": "headers_too_large",
    "endless-headers": "headers_too_large",
    "endless-hints": "headers_too_large",
    "endless-trailers": "headers_too_large",
    "big:2000000": "too_large",
    "big-unknown:2000000": "too_large",
    "endless": "too_large",
    "bomb:gzip": "too_large",
    "bomb:deflate": "too_large",
    "bomb:br": "too_large",
    "bomb:gzip,gzip": "too_large",
    "hollow:2000000": "too_large",
    "redirect:file:///etc/passwd": "bad_redirect",
    "redirect:ftp://127.0.0.1/a": "bad_redirect",
    "redirect:gopher://127.0.0.1/a": "bad_redirect",
    "302:Location=data:,a": "bad_redirect",
    "302:Location=javascript:a": "bad_redirect",
    "302:Location=//": "bad_redirect",
    "redirect:http://": "bad_redirect",
    "redirect:http://[oops/": "bad_redirect",
    "redirect:http://a b/": "bad_redirect",
    "redirect:http://a,b/": "bad_redirect",
    "redirect:http://127.0.0.1:99999/": "bad_redirect",
}
_LONG = 100.0  # seconds, for what takes few: a bound on waiting that no machine is too busy for
_LIMIT = 1_000_000  # bytes of a body, in the test of these
# Over HTTP/2 -> the codes that may come of it.
OVER_HTTP2: Mapping[str, tuple[str, ...]] = {
    "404": ("http_404",),
    "503": ("http_503",),
    "reset": ("reset",),
    "hangup": ("reset",),
    "truncated": ("truncated", "reset"),  # the latter because it is an error of the stream
    "long-header": ("headers_too_large",),
    "stall": ("timeout_total",),
    "timeout": ("timeout_total",),
}


def rows_of(urls: Iterable[str | None]) -> Iterator[Row]:
    for position, url in enumerate(urls):
        yield Row(0, position, f"{position:09d}", url)


class FetcherContract:
    """Of every fetcher, whatever it fetches from."""

    missing = "http_404"  # the code of a file that is not there
    many = 3000  # rows of one run; fewer will do where the server of the tests is slow

    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> Fetcher:
        raise NotImplementedError

    def setup_method(self) -> None:
        self._buffers: list[Buffer] = []

    def teardown_method(self) -> None:
        for buffer in self._buffers:
            buffer.close()

    @contextlib.contextmanager
    def site(self, folder: Path) -> Iterator[Callable[[str], str]]:
        """Where the files in `folder` can be had: their URLs by name. Another protocol than http overrides it."""
        with serve(folder) as server:
            yield server.url

    def fetch(self, urls: Iterable[str | None], **options: Any) -> dict[int, Fetched]:
        """All outcomes by position; every one exactly once."""
        fetch_options = Config.from_options({"url_list": "-", "timeout": _LONG, **options}).fetch
        self.buffer = Buffer(fetch_options.max_buffered_bytes, fetch_options.most_transfers)
        self._buffers.append(self.buffer)
        found: dict[int, Fetched] = {}
        with contextlib.closing(self.make_fetcher(fetch_options, self.buffer)) as fetcher:
            for batch in fetcher.fetch(rows_of(urls)):
                for fetched in batch:
                    assert fetched.row.position not in found
                    found[fetched.row.position] = fetched
        return found

    def one(self, url: str | None, **options: Any) -> Payload | Failure:
        return self.fetch([url], **options)[0].outcome

    def code(self, url: str | None, **options: Any) -> str:
        outcome = self.one(url, **options)
        assert isinstance(outcome, Failure), outcome
        assert outcome.stage == "fetch"
        assert self.buffer.used == 0
        return outcome.code

    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "a.jpg").write_bytes(BODY)
        (tmp_path / "b.txt").write_bytes(b"b")
        return tmp_path

    def test_a_body_arrives_byte_for_byte(self, tmp_path: Path) -> None:
        with self.site(self.folder(tmp_path)) as url:
            found = self.fetch([url("a.jpg"), url("b.txt")])
        assert [_read(found[position]) for position in (0, 1)] == [BODY, b"b"]
        assert [found[position].attempts for position in (0, 1)] == [1, 1]

    def test_every_row_comes_back_once_and_the_bad_ones_fail(self, tmp_path: Path) -> None:
        with self.site(self.folder(tmp_path)) as url:
            good = [url("a.jpg"), url("b.txt")] * 50
            found = self.fetch([None, "", "nonsense", *good, "no-such-scheme://a/b", url("missing")])
        assert sorted(found) == list(range(105))
        expected = {0: "bad_url", 1: "bad_url", 2: "bad_url", 103: "unsupported_scheme", 104: self.missing}
        assert codes_of(found) == expected

    def test_attempts_without_an_outcome_are_signs_of_life(self, tmp_path: Path) -> None:
        options = Config.from_options({"url_list": "-", "retries": 1, "timeout": _LONG}).fetch
        buffer = Buffer(options.max_buffered_bytes, options.most_transfers)
        with (
            serve(self.folder(tmp_path), {"a.jpg": ["503", "ok"]}) as server,
            contextlib.closing(self.make_fetcher(options, buffer)) as fetcher,
        ):
            before = fetcher.activity
            for batch in fetcher.fetch(rows_of([server.url("a.jpg")])):
                assert not batch or fetcher.activity >= before + 2
            assert server.counts["a.jpg"] == 2

    def test_it_tells_how_it_goes(self, tmp_path: Path) -> None:
        options = Config.from_options({"url_list": "-", "retries": 0, "thread_count": 4, "timeout": _LONG}).fetch
        buffer = Buffer(options.max_buffered_bytes, options.most_transfers)
        reported, attempts, successes = list[Traffic](), 0, 0
        with self.site(self.folder(tmp_path)) as url, contextlib.closing(self.make_fetcher(options, buffer)) as fetcher:
            began = time.monotonic()
            for batch in fetcher.fetch(rows_of([*[url("a.jpg"), url("b.txt")] * 10, url("missing")])):
                reported.append(fetcher.traffic())
                attempts += sum(fetched.attempts for fetched in batch)
                successes += sum(isinstance(fetched.outcome, Payload) for fetched in batch)
            reported.append(fetcher.traffic())
            seconds = time.monotonic() - began
        assert sum(each.attempts for each in reported) == attempts == 21
        assert sum(sum(each.latencies.values()) for each in reported) == successes == 20
        assert all(each.in_flight <= each.window == 4 for each in reported)
        assert max(each.in_flight for each in reported) > 0
        assert (reported[-1].in_flight, reported[-1].queued) == (0, 0)
        assert sum(sum(each.waits.values()) for each in reported) <= seconds
        assert {cause for each in reported for cause in each.waits} <= set(get_args(Wait))

    def test_no_rows_end_at_once(self) -> None:
        assert self.fetch([]) == {}

    def test_too_large_a_file_is_refused_and_one_that_just_fits_is_not(self, tmp_path: Path) -> None:
        with self.site(self.folder(tmp_path)) as url:
            assert self.code(url("a.jpg"), max_file_bytes=len(BODY) - 1) == "too_large"
            assert isinstance(self.one(url("a.jpg"), max_file_bytes=len(BODY)), Payload)

    def test_a_file_without_content_is_a_failure(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        with self.site(tmp_path) as url:
            assert self.code(url("empty")) == "empty_body"

    def test_memory_for_bodies_is_bounded_and_big_ones_still_arrive(self, tmp_path: Path) -> None:
        limit = 4_000_000
        options = {"url_list": "-", "max_buffered_bytes": limit, "thread_count": 16, "timeout": _LONG}
        fetch_options = Config.from_options(options).fetch
        buffer = Buffer(limit, 16)
        most, bodies = 0, []
        (tmp_path / "big").write_bytes(bytes(3_000_000))
        fetcher = self.make_fetcher(fetch_options, buffer)
        with self.site(tmp_path) as url, contextlib.closing(fetcher):
            for batch in fetcher.fetch(rows_of([url("big")] * 12)):
                most = max(most, buffer.used)
                for fetched in batch:
                    assert isinstance(fetched.outcome, Payload)
                    bodies.append(fetched.outcome.body)
                    if buffer.used > buffer.half:
                        fetched.outcome.body.spill()
        assert [body.size for body in bodies] == [3_000_000] * 12
        assert {body.read() for body in bodies} == {bytes(3_000_000)}
        assert most <= limit
        for body in bodies:
            body.release()
        assert buffer.used == 0
        buffer.close()

    def test_it_yields_while_the_list_brings_nothing(self, tmp_path: Path) -> None:
        enough = threading.Event()
        with self.site(self.folder(tmp_path)) as url:

            def rows() -> Iterator[Row]:
                assert enough.wait(_LONG)
                yield from rows_of([url("a.jpg")])

            beats, seen = 0, 0
            options = Config.from_options({"url_list": "-"}).fetch
            with contextlib.closing(self.make_fetcher(options, Buffer(1 << 20, 256))) as fetcher:
                for batch in fetcher.fetch(rows()):
                    beats += 1
                    seen += len(batch)
                    if beats == 5:
                        enough.set()
        assert seen == 1

    def test_rows_that_come_late_hold_up_nobody(self, tmp_path: Path) -> None:
        with self.site(self.folder(tmp_path)) as url:
            arrived = threading.Event()

            def rows() -> Iterator[Row]:
                yield from rows_of([url("a.jpg")])
                assert arrived.wait(_LONG)  # not before the first has been delivered
                yield Row(0, 1, "000000001", url("b.txt"))

            options = Config.from_options({"url_list": "-"}).fetch
            seen = []
            with contextlib.closing(self.make_fetcher(options, Buffer(1 << 20, 256))) as fetcher:
                for batch in fetcher.fetch(rows()):
                    for fetched in batch:
                        seen.append(fetched.row.position)
                        arrived.set()
        assert seen == [0, 1]

    def test_an_error_of_the_list_is_raised_after_the_rows_before_it(self, tmp_path: Path) -> None:
        with self.site(self.folder(tmp_path)) as url:

            def rows() -> Iterator[Row]:
                yield from rows_of([url("a.jpg")] * 3)
                raise LookupError("the list broke off")

            options = Config.from_options({"url_list": "-"}).fetch
            seen = 0
            with contextlib.closing(self.make_fetcher(options, Buffer(1 << 20, 256))) as fetcher:
                try:
                    for batch in fetcher.fetch(rows()):
                        seen += len(batch)
                except LookupError:
                    assert seen == 3
                else:
                    raise AssertionError("the error was lost")

    def test_many_rows_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "small").write_bytes(b"x")
        before = _open_files()
        with self.site(tmp_path) as url:
            found = self.fetch([url("small")] * self.many, thread_count=self.many // 3, timeout=_LONG)
        assert sorted(found) == list(range(self.many))
        assert codes_of(found) == {}
        assert _settles(lambda: _open_files() <= before)

    def test_closing_early_frees_everything(self, tmp_path: Path) -> None:
        before = _open_files()
        with self.site(self.folder(tmp_path)) as url:
            options = Config.from_options({"url_list": "-", "thread_count": 4}).fetch
            buffer = Buffer(1 << 24, 4)
            fetcher = self.make_fetcher(options, buffer)
            batches = iter(fetcher.fetch(rows_of([url("a.jpg")] * 1000)))
            received = next(batch for batch in batches if batch)
            fetcher.close()
            for fetched in received:
                assert isinstance(fetched.outcome, Payload)
                fetched.outcome.body.release()
            assert buffer.used == 0
            del batches
        assert _settles(lambda: _open_files() <= before)


class WebFetcherContract(FetcherContract):
    """Of every fetcher of http and https."""

    http2 = True  # it offers HTTP/2 where TLS does; without, HTTP/1.1 has to do
    nameservers = True  # it asks those of the option `nameservers`

    def test_what_the_server_says_of_a_body_is_kept(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            outcome = self.one(server.url("a.jpg"))
        assert isinstance(outcome, Payload)
        assert (outcome.body.size, outcome.http_status, outcome.media_type) == (len(BODY), 200, "image/jpeg")
        assert outcome.etag
        assert outcome.last_modified
        assert outcome.final_url is None

    def test_an_unknown_content_encoding_is_none(self, tmp_path: Path) -> None:
        """Objects of S3 have whatever was uploaded with them."""
        folder = self.folder(tmp_path)
        (folder / "packed.jpg").write_bytes(gzip.compress(BODY))
        encodings = dict.fromkeys(("UTF-8", "aws-chunked", "binary", "identity", "none", "8bit, binary", ","), "a.jpg")
        encodings |= dict.fromkeys(("aws-chunked,gzip", "gzip, UTF-8", "GZIP"), "packed.jpg")
        script = {
            f"{number}/{name}": [f"ok:Content-Encoding={encoding}"]
            for number, (encoding, name) in enumerate(encodings.items())
        }
        for path in script:
            (folder / path).parent.mkdir()
            (folder / path).write_bytes((folder / Path(path).name).read_bytes())
        with serve(folder, script) as server:
            found = self.fetch([server.url(path) for path in script])
        assert {encoding: _read(found[number]) == BODY for number, encoding in enumerate(encodings)} == dict.fromkeys(
            encodings, True
        )

    def test_an_encoding_that_exists_and_is_not_decoded_fails(self, tmp_path: Path) -> None:
        for encoding in ("zstd", "aws-chunked, compress"):
            with serve(self.folder(tmp_path), {"a.jpg": [f"ok:Content-Encoding={encoding}"]}) as server:
                outcome = self.one(server.url("a.jpg"))
            assert isinstance(outcome, Failure)
            assert outcome.code == "bad_encoding"

    def test_a_206_that_holds_the_whole_file_is_a_success(self, tmp_path: Path) -> None:
        body = b"status 206\n"
        ranges = {"bytes 0-10/11": "", "bytes=0-10/11": ""}
        ranges |= dict.fromkeys(
            ("bytes 0-10/12", "bytes 1-11/12", "bytes 0-10/*", "bytes 0-20/21", "bytes 0-10/11x"), "http_206"
        )
        script = {f"{number}.txt": [f"206:Content-Range={text}"] for number, text in enumerate(ranges)} | {
            "none.txt": ["206"]
        }
        with serve(self.folder(tmp_path), script) as server:
            found = self.fetch([server.url(name) for name in script])
        assert codes_of(found) == dict.fromkeys(range(2, len(script)), "http_206")
        assert _read(found[0]) == _read(found[1]) == body

    # --- requests and connections ---

    def test_never_more_transfers_at_once_than_thread_count(self, tmp_path: Path) -> None:
        script = {"a.jpg": ["slow:0.02"]}
        with serve(self.folder(tmp_path), script) as server:
            self.fetch([server.url("a.jpg")] * 40, thread_count=7)
            assert server.max_concurrent == 7

    def test_answers_that_take_long_are_waited_for_together(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["hold"], "b.txt": ["slow:0.2"]}) as server:

            def answer() -> None:
                server.wait_for("a.jpg", 8)  # none is answered before all have been asked for
                server.release()

            waiting = threading.Thread(target=answer)
            waiting.start()
            found = self.fetch([server.url("a.jpg")] * 8 + [server.url("b.txt")], thread_count=9)
            waiting.join()
        assert codes_of(found) == {}
        late = found[8].outcome
        assert isinstance(late, Payload)
        assert late.seconds >= 0.2

    def test_connections_are_kept(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            self.fetch([server.url("a.jpg")] * 100, thread_count=2)
            assert len({request.port for request in server.requests}) <= 4

    def test_a_connection_is_kept_after_an_error_page(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            self.fetch([server.url("missing")] * 20, thread_count=1)
            assert len({request.port for request in server.requests}) == 1

    def test_of_a_body_as_much_is_taken_as_was_announced(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["excess"]}) as server:
            found = self.fetch([server.url("a.jpg"), server.url("b.txt")] * 10, thread_count=1)
        for position, fetched in found.items():
            assert _read(fetched) == (b"b" if position % 2 else BODY[: len(BODY) // 2])

    # --- headers ---

    def test_servers_may_put_any_byte_into_their_headers(self) -> None:
        answers = [
            b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg; name=caf\xe9\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 302 Found\r\nLocation: http://caf\xe9\xff.invalid/\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: gopher://caf\xe9/\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 404 caf\xe9\xff\x00\r\nETag: \xff\r\nContent-Length: 0\r\n\r\n",
        ]
        with _raw_server(answers, once=False) as urls:
            found = self.fetch(urls)
        payload = found[0].outcome
        assert isinstance(payload, Payload)
        assert (payload.body.read(), payload.media_type) == (b"ok", "image/jpeg")
        for position in (1, 2, 3):
            failure = found[position].outcome
            assert isinstance(failure, Failure)
            for text in (failure.detail, failure.final_url or ""):
                assert text.encode("utf-8").decode("utf-8") == text

    # --- redirects ---

    def test_link_local_addresses_are_asked_only_if_that_is_allowed(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server, _counted_as("metadata", "127.0.0.1"):
            assert self.code(server.url("a.jpg"), retries=2) == "blocked_address"
            assert not server.requests
            assert isinstance(self.one(server.url("a.jpg"), allow_link_local=True), Payload)

    def test_a_public_host_cannot_redirect_to_a_private_address(self, tmp_path: Path) -> None:
        _need_ipv6()
        with (
            serve(self.folder(tmp_path), host="::1") as inside,
            serve(tmp_path, {"r": [f"redirect:{inside.url('a.jpg')}"]}) as outside,
        ):
            assert isinstance(self.one(outside.url("r")), Payload)  # one private host to the other
            assert inside.counts["a.jpg"] == 1
            with _counted_as("public", "127.0.0.1"):
                outcome = self.one(outside.url("r"), retries=2)
            assert isinstance(outcome, Failure)
            assert (outcome.code, outcome.final_url) == ("blocked_address", inside.url("a.jpg"))
            assert inside.counts["a.jpg"] == 1
            assert outside.counts["r"] == 2

    # --- secrets ---

    def test_credentials_in_urls_are_used_and_never_told(self, tmp_path: Path) -> None:
        """Those of the list are used. Those that a server redirects to may be."""

        def secret(url: str) -> str:
            return url.replace("://", f"://me:{SECRET}@")

        with serve(self.folder(tmp_path), {"hang": ["timeout"]}) as there:
            ends = ["a.jpg", "missing", "b.txt"]
            locations = [secret(there.url(end)) for end in ends]
            locations += [secret(url) for url in ("http://127.0.0.1:1/", "http://nowhere.invalid/", "http://[oops/")]
            locations += [secret(url) for url in ("ftp://127.0.0.1/", "http://127.0.0.1:99999/")]
            script = {f"r{number}": [f"redirect:{location}"] for number, location in enumerate(locations)}
            script |= {"stay": ["redirect:a.jpg"], "loop": ["redirect:loop"], "broken": ["truncated"]}
            script["late"] = [f"redirect:{secret(there.url('hang'))}"]
            with serve(tmp_path, script) as here:
                listed = [secret(here.url(path)) for path in ("a.jpg", "missing", "stay", "loop", "broken")]
                led = [here.url(path) for path in script if path.startswith("r")]
                found = self.fetch([*listed, *led, *locations])
                late = self.fetch([secret(there.url("hang")), here.url("late")], timeout=1)
                asked = [request for request in here.requests if "Authorization" in request.headers]
            arrived = [request for request in there.requests if "Authorization" in request.headers]
        assert codes_of(late) == dict.fromkeys((0, 1), "timeout_total")
        for fetched in (*found.values(), *late.values()):
            assert SECRET not in repr(fetched.outcome), fetched
        assert {request.path for request in asked} == {"a.jpg", "missing", "stay", "loop", "broken"}
        assert {request.path for request in arrived} - {"hang"} == set(ends)
        assert isinstance(found[2].outcome, Payload)
        assert found[2].outcome.final_url == here.url("a.jpg")
        assert isinstance(found[5].outcome, Payload)
        assert found[5].outcome.final_url == there.url("a.jpg")

    # --- failures and further attempts ---

    def test_each_fault_has_its_code_and_only_passing_ones_are_tried_again(self, tmp_path: Path) -> None:
        expected = {fault: (code, 2, 2) for fault, code in PASSING.items()}
        expected |= {fault: (code, 1, 1) for fault, code in FINAL.items()}
        expected["429"] = ("http_429", 4, 4)  # comes again twice, which does not count, where nothing else is answered
        self.folder(tmp_path)
        with contextlib.ExitStack() as stack:  # a server for each, so that none is treated as the others deserve
            servers = [stack.enter_context(serve(tmp_path, {"a.jpg": [fault]})) for fault in expected]
            found = self.fetch([server.url("a.jpg") for server in servers], retries=1, max_file_bytes=_LIMIT)
            codes = codes_of(found)
            seen = {
                fault: (codes.get(position), found[position].attempts, server.counts["a.jpg"])
                for position, (fault, server) in enumerate(zip(expected, servers, strict=True))
            }
        assert seen == expected
        assert self.buffer.used == 0

    def test_the_message_of_an_http_failure_is_the_same_everywhere(self) -> None:
        answers = [b"404 No such thing", b"404", b"429 ", b"599 Odd"]
        head = b"\r\nContent-Length: 0\r\n\r\n"
        with _raw_server([b"HTTP/1.1 " + answer + head for answer in answers], once=False) as urls:
            found = self.fetch(urls)
        messages = [getattr(found[position].outcome, "detail", "") for position in range(len(answers))]
        assert messages == ["HTTP 404 Not Found"] * 2 + ["HTTP 429 Too Many Requests", "HTTP 599"]

    def test_a_timeout_is_tried_again_and_so_is_a_host_that_cannot_be_reached(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["timeout"]}) as server:
            found = self.fetch([server.url("a.jpg"), "http://127.0.0.1:1/"], timeout=2, retries=1)
            assert server.counts["a.jpg"] == 2
        assert codes_of(found) == {0: "timeout_total", 1: "connect"}
        assert [fetched.attempts for fetched in found.values()] == [2, 2]

    def test_each_request_counts_as_an_attempt_and_waits_that_were_asked_for_take_no_retry(
        self, tmp_path: Path
    ) -> None:
        script = {"a.jpg": ["429:Retry-After=1", "500", "500", "ok"], "b.txt": ["500", "429:Retry-After=1", "ok"]}
        with serve(self.folder(tmp_path), script) as server:
            found = self.fetch([server.url("a.jpg"), server.url("b.txt")], retries=1)
            assert [found[position].attempts for position in (0, 1)] == [3, 3]
            assert [server.counts["a.jpg"], server.counts["b.txt"]] == [3, 3]
        assert codes_of(found) == {0: "http_500"}

    # --- time ---

    def test_a_server_that_never_answers_costs_the_timeout_and_holds_up_nobody(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"hang": ["timeout"]}) as server:
            urls = [server.url("hang")] + [server.url("a.jpg")] * 20
            started = time.monotonic()
            found = self.fetch(urls, timeout=3, thread_count=2)
            assert time.monotonic() - started < 30
        outcome = found[0].outcome
        assert isinstance(outcome, Failure)
        assert outcome.code == "timeout_total"
        assert "waiting for the answer" in outcome.detail
        assert all(isinstance(found[n].outcome, Payload) for n in range(1, 21))

    def test_a_body_that_drips_or_stops_is_cut(self, tmp_path: Path) -> None:
        (tmp_path / "big").write_bytes(BODY * 100)
        script = {"drip": ["drip"], "slow": ["flow:60"], "stop": ["stall"], "big": ["stall"], "fast": ["flow:60"]}
        for name in ("slow", "stop", "fast"):
            (tmp_path / name).write_bytes(BODY)
        with serve(tmp_path, script) as server:
            found = self.fetch([server.url(name) for name in ("drip", "slow", "stop")], timeout=2)
            # None of these has a limit in all that would end it.
            found |= {3: self.fetch([server.url("big")], timeout=1)[0]}
            found |= {4: self.fetch([server.url("big")], timeout=1, total_timeout=0)[0]}
            found |= {5: self.fetch([server.url("fast")], total_timeout=1)[0]}
        assert codes_of(found) == dict.fromkeys(range(6), "timeout_total")
        assert all("receiving the body" in getattr(fetched.outcome, "detail", "") for fetched in found.values())
        assert self.buffer.used == 0

    def test_without_a_timeout_a_body_that_flows_is_not_cut_and_one_that_drips_is(self, tmp_path: Path) -> None:
        script = {
            "flow": ["flow:3"],
            "drip": ["drip"],
            "stall": ["stall"],
            "silent": ["timeout"],
            "mute": ["timeout"],
        }
        options = {"timeout": 0, "stall_timeout": 2}
        for name in script:
            (tmp_path / name).write_bytes(BODY)
        with serve(tmp_path, script) as server:
            found = self.fetch([server.url(name) for name in script], **options)
            flowing = self.fetch([server.url("flow")] * 2, thread_count=1, **options)
        assert codes_of(found) == dict.fromkeys((1, 2, 3, 4), "timeout_stalled")
        assert [_read(fetched) for fetched in (found[0], flowing[0], flowing[1])] == [BODY] * 3

    def test_it_yields_while_nothing_happens(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["hold"]}) as server:
            options = Config.from_options({"url_list": "-"}).fetch
            with contextlib.closing(self.make_fetcher(options, Buffer(1 << 20, 256))) as fetcher:
                beats = 0
                for batch in fetcher.fetch(rows_of([server.url("a.jpg")])):
                    beats += not batch
                    if beats == 5:
                        server.release()
                assert beats >= 5

    def test_closing_in_the_middle_frees_everything_at_once(self, tmp_path: Path) -> None:
        before = _open_files()
        with serve(self.folder(tmp_path), {"a.jpg": ["stall"]}) as server:
            options = Config.from_options({"url_list": "-", "timeout": 0}).fetch
            buffer = Buffer(1 << 24, 256)
            fetcher = self.make_fetcher(options, buffer)
            outcomes = iter(fetcher.fetch(rows_of([server.url("a.jpg")] * 10)))
            while server.counts["a.jpg"] < 10:
                next(outcomes)
            started = time.monotonic()
            fetcher.close()
            assert time.monotonic() - started < 10
            assert buffer.used == 0
            del outcomes
        assert _settles(lambda: _open_files() <= before)

    # --- sizes ---

    def test_a_body_may_not_decode_to_far_more_than_it_had(self, tmp_path: Path) -> None:
        (tmp_path / "few").write_bytes(bytes(15 << 20))
        (tmp_path / "many").write_bytes(bytes(17 << 20))
        script = {"few": ["encoded:gzip"], "many": ["encoded:gzip"]}
        with serve(tmp_path, script) as server:
            assert isinstance(self.one(server.url("few")), Payload)
            assert self.code(server.url("many")) == "too_large"
            accepted = server.requests[0].headers["Accept-Encoding"]
        for encodings in ("gzip", "deflate", "br", "gzip,gzip"):  # of a gigabyte, which max_file_bytes allows
            if set(encodings.split(",")) <= set(accepted.split(", ")):
                with serve(tmp_path, {"bomb": [f"bomb:{encodings}"]}) as server, _Memory() as memory:
                    assert self.code(server.url("bomb")) == "too_large"
                assert memory.grown < 64 << 20, encodings

    def test_memory_for_what_is_refused_is_bounded(self, tmp_path: Path) -> None:
        """Bombs hold a gigabyte, and the endless ones send as fast as they are read."""
        faults = [fault for fault in FINAL if fault.startswith(("bomb", "endless", "long"))]
        with serve(self.folder(tmp_path), {f"{n}": [fault] for n, fault in enumerate(faults)}) as server:
            for number, fault in enumerate(faults):
                with _Memory() as memory:
                    self.code(server.url(f"{number}"), max_file_bytes=_LIMIT)
                assert memory.grown < 32 << 20, fault

    # --- TLS ---

    def test_tls_is_verified_and_what_is_wrong_with_it_is_final(self, tmp_path: Path) -> None:
        for flaw in ("", "expired", "self-signed", "wrong-host"):
            with serve(self.folder(tmp_path), tls=True, flaw=flaw) as server:
                with _environment("SSL_CERT_FILE", server.ca_file):
                    fetched = self.fetch([server.url("a.jpg")], retries=2)[0]
                    handshakes = server.handshakes
                    trusting = self.one(server.url("a.jpg"), ignore_ssl_certificate=True)
                if flaw:
                    assert (flaw, codes_of({0: fetched})) == (flaw, {0: "tls"})
                    assert (fetched.attempts, handshakes) == (1, 1)
                else:
                    assert _read(fetched) == BODY
                    assert self.code(server.url("a.jpg"), retries=2) == "tls"  # from an authority that is unknown
                assert isinstance(trusting, Payload)

    def test_a_handshake_that_breaks_off_is_tried_again(self) -> None:
        with _raw_server([b""]) as urls:  # it answers but once
            fetched = self.fetch([urls[0].replace("http://", "https://")], timeout=0.5, retries=1)[0]
        assert codes_of({0: fetched}) == {0: "timeout_total"}
        assert fetched.attempts == 2

    def test_an_opt_out_counts_whatever_header_stands_before_it(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nX-Robots-Tag: otherbot: noindex\r\nX-Robots-Tag: noai\r\n"
        with _raw_server([head + b"Content-Length: 2\r\nConnection: close\r\n\r\nok"]) as urls:
            assert self.code(urls[0]) == "opted_out"

    # --- HTTP/2 ---

    def test_http2_is_spoken_where_it_is_offered(self, tmp_path: Path) -> None:
        with (
            serve_http2(self.folder(tmp_path)) as server,
            _environment("SSL_CERT_FILE", server.ca_file),
        ):
            found = self.fetch([server.url("a.jpg"), server.url("b.txt")] * 50)
            assert {request.version for request in server.requests} == {"2" if self.http2 else "1.1"}
        assert [_read(found[position]) for position in range(100)] == [BODY, b"b"] * 50

    def test_faults_over_http2_have_their_codes(self, tmp_path: Path) -> None:
        if not self.http2:
            raise SkipTest("it does not speak HTTP/2")
        self.folder(tmp_path)
        seen = {}
        for fault, expected in OVER_HTTP2.items():
            timeout = 1 if "timeout_total" in expected else _LONG
            with serve_http2(tmp_path, {"a.jpg": [fault]}) as server:
                with _environment("SSL_CERT_FILE", server.ca_file):
                    seen[fault] = self.code(server.url("a.jpg"), timeout=timeout)
                assert {request.version for request in server.requests} == {"2"}
            if seen[fault] in expected:
                seen[fault] = expected[0]
        assert seen == {fault: expected[0] for fault, expected in OVER_HTTP2.items()}

    # --- IPv6 ---

    def test_addresses_of_ipv6_are_asked(self, tmp_path: Path) -> None:
        _need_ipv6()
        with serve(self.folder(tmp_path), {"r": ["redirect:a.jpg"]}, host="::1") as server:
            found = self.fetch([server.url("a.jpg"), server.url("r")])
            assert server.url("").startswith("http://[::1]:")
        assert [_read(found[position]) for position in (0, 1)] == [BODY, BODY]

    def test_of_a_name_with_two_addresses_the_one_that_works_is_asked(self, tmp_path: Path) -> None:
        _need_ipv6()
        with self._both_families() as (name, options):
            for host in ("127.0.0.1", "::1"):  # the other one refuses
                with serve(self.folder(tmp_path), host=host) as server:
                    assert isinstance(self.one(f"http://{name}:{server.port}/a.jpg", **options), Payload)

    @contextlib.contextmanager
    def _both_families(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """A name for 127.0.0.1 and ::1, and the options with which it is known."""
        if self.nameservers:
            with _name_server({"both.test": ["a:127.0.0.1 aaaa:::1"]}) as address:
                yield "both.test", {"nameservers": address}
            return
        known = {entry[4][0] for entry in socket.getaddrinfo("localhost", None)}
        if known != {"127.0.0.1", "::1"}:
            raise SkipTest("localhost has not both addresses on this machine")
        yield "localhost", {}


def codes_of(found: Mapping[int, Fetched]) -> dict[int, str]:
    """The codes of the rows that failed."""
    return {position: f.outcome.code for position, f in sorted(found.items()) if isinstance(f.outcome, Failure)}


def _read(fetched: Fetched) -> bytes:
    assert isinstance(fetched.outcome, Payload), fetched
    return fetched.outcome.body.read()


@contextlib.contextmanager
def _name_server(script: Mapping[str, list[str]]) -> Iterator[str]:
    """Its address. Raises MissingExtra without the library `dnslib`."""
    try:
        from tests.support.dns import serve_dns
    except ModuleNotFoundError as error:
        raise MissingExtra("a name server for tests", "testing") from error
    with serve_dns(script) as server:
        yield server.address


@contextlib.contextmanager
def _counted_as(kind_of_it: str, address: str) -> Iterator[None]:
    """As if this address, on loopback, were of another kind: every fetcher asks `rules` what it may ask."""

    def kind(asked: str, really: Callable[[str], str] = rules.address_kind) -> str:
        return kind_of_it if asked == address else really(asked)

    rules.refuses.cache_clear()
    with mock.patch.object(rules, "address_kind", kind):
        try:
            yield
        finally:
            rules.refuses.cache_clear()


def _need_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        raise SkipTest("this machine has no IPv6") from None


class _Memory:
    """How much the most memory that the process has held grew; always 0 where the system does not tell."""

    grown = 0  # bytes

    def __enter__(self) -> _Memory:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux counts anew from here
        self._before = _most_memory()
        return self

    def __exit__(self, *_: object) -> None:
        self.grown = _most_memory() - self._before


def _most_memory() -> int:
    """Bytes. Only Linux forgets earlier peaks; elsewhere a smaller one goes unnoticed."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@contextlib.contextmanager
def _raw_server(answers: list[bytes], once: bool = True) -> Iterator[list[str]]:
    """A URL for each of `answers`, where just these bytes are answered; `once`, and then nobody is there."""
    with contextlib.ExitStack() as stack:
        urls = []
        for answer in answers:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}/")

            def serve_all(listener: socket.socket = listener, answer: bytes = answer) -> None:
                while True:
                    with contextlib.suppress(OSError), listener.accept()[0] as connection:
                        connection.recv(65536)
                        connection.sendall(answer)
                        if not once:
                            continue
                        return
                    if listener.fileno() < 0:
                        return

            threading.Thread(target=serve_all, daemon=True).start()
            stack.callback(_wake, listener)
        yield urls


def _wake(listener: socket.socket) -> None:
    """End the thread that waits for a connection to it."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _open_files() -> int:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def _settles(condition: Any, within: float = _LONG) -> bool:
    """Whether `condition` becomes true; what other threads free is free a moment later."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value or ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
