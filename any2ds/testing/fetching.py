"""What every fetcher promises, as tests over real sockets; a plugin's author subclasses `FetcherContract`."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from any2ds.buffer import Buffer
from any2ds.config import Config, FetchOptions
from any2ds.protocols import Fetcher
from any2ds.testing.server import serve
from any2ds.types import Failure, Fetched, Payload, Row

BODY = bytes(range(256)) * 400


def rows_of(urls: Iterable[str | None]) -> Iterator[Row]:
    for position, url in enumerate(urls):
        yield Row(0, position, f"{position:09d}", url)


class FetcherContract:
    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> Fetcher:
        raise NotImplementedError

    def fetch(self, urls: Iterable[str | None], **options: Any) -> dict[int, Fetched]:
        """All outcomes by position; every one exactly once."""
        fetch_options = Config.from_options({"url_list": "-", "timeout": 20, **options}).fetch
        self.buffer = Buffer(fetch_options.max_buffered_bytes, fetch_options.most_transfers)
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

    def test_a_body_arrives_byte_for_byte_with_what_the_server_said_of_it(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            outcome = self.one(server.url("a.jpg"))
        assert isinstance(outcome, Payload)
        assert outcome.body.read() == BODY
        assert (outcome.body.size, outcome.http_status, outcome.media_type) == (len(BODY), 200, "image/jpeg")
        assert outcome.final_url is None

    def test_every_row_comes_back_once_and_bad_urls_never_reach_the_network(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            good = [server.url("a.jpg"), server.url("b.txt")] * 50
            found = self.fetch([None, "nonsense", *good, "file:///etc/passwd", server.url("missing")])
            asked = len(server.requests)
        assert sorted(found) == list(range(104))
        codes = {p: f.outcome.code for p, f in found.items() if isinstance(f.outcome, Failure)}
        assert codes == {0: "bad_url", 1: "bad_url", 102: "unsupported_scheme", 103: "http_404"}
        assert asked == 101

    def test_no_rows_end_at_once(self) -> None:
        assert self.fetch([]) == {}

    def test_never_more_transfers_at_once_than_thread_count(self, tmp_path: Path) -> None:
        script = {"a.jpg": ["slow:0.02"]}
        with serve(self.folder(tmp_path), script) as server:
            self.fetch([server.url("a.jpg")] * 40, thread_count=7)
            assert server.max_concurrent == 7

    def test_connections_are_kept(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            self.fetch([server.url("a.jpg")] * 100, thread_count=2)
            assert len({request.port for request in server.requests}) <= 4

    def test_the_user_agent_is_the_one_asked_for(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            self.one(server.url("a.jpg"), user_agent="my-bot/1.0 (+https://example.org/bot)")
            self.one(server.url("a.jpg"))
            agents = [request.headers["User-Agent"] for request in server.requests]
        assert agents[0] == "my-bot/1.0 (+https://example.org/bot)"
        assert agents[1].startswith("any2ds/")
        assert "+http" in agents[1]

    def test_redirects_are_followed_and_the_end_is_told(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"r": ["redirect:s"], "s": ["redirect:a.jpg"]}) as server:
            outcome = self.one(server.url("r"))
            expected = server.url("a.jpg")
        assert isinstance(outcome, Payload)
        assert outcome.final_url == expected
        assert outcome.body.read() == BODY

    def test_servers_may_put_any_byte_into_their_headers(self) -> None:
        answers = [
            b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg; name=caf\xe9\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.1 302 Found\r\nLocation: http://caf\xe9\xff.invalid/\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 302 Found\r\nLocation: gopher://caf\xe9/\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 404 caf\xe9\xff\x00\r\nETag: \xff\r\nContent-Length: 0\r\n\r\n",
        ]
        with _raw_server(answers) as urls:
            found = self.fetch(urls)
        payload = found[0].outcome
        assert isinstance(payload, Payload)
        assert (payload.body.read(), payload.media_type) == (b"ok", "image/jpeg")
        for position in (1, 2, 3):
            failure = found[position].outcome
            assert isinstance(failure, Failure)
            for text in (failure.detail, failure.final_url or ""):
                assert text.encode("utf-8").decode("utf-8") == text

    def test_redirects_end_at_a_limit_and_never_leave_the_web(self, tmp_path: Path) -> None:
        script = {"r": ["redirect:loop"], "f": ["redirect:file:///etc/passwd"], "once": ["redirect:a.jpg"]}
        with serve(self.folder(tmp_path), script) as server:
            assert self.code(server.url("r"), max_redirects=5) == "too_many_redirects"
            assert server.counts["r"] == 6
            assert self.code(server.url("f")) == "bad_redirect"
            assert self.code(server.url("once"), max_redirects=0) == "too_many_redirects"

    def test_statuses_are_failures_with_their_number(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["403", "410", "500", "204"]}) as server:
            codes = [self.code(server.url("a.jpg")) for _ in range(4)]
        assert codes == ["http_403", "http_410", "http_500", "http_204"]

    def test_a_connection_is_kept_after_an_error_page(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            self.fetch([server.url("missing")] * 20, thread_count=1)
            assert len({request.port for request in server.requests}) == 1

    def test_a_server_that_never_answers_costs_the_timeout_and_holds_up_nobody(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"hang": ["timeout"]}) as server:
            urls = [server.url("hang")] + [server.url("a.jpg")] * 20
            started = time.monotonic()
            found = self.fetch(urls, timeout=1, thread_count=2)
            assert time.monotonic() - started < 10
        outcome = found[0].outcome
        assert isinstance(outcome, Failure)
        assert outcome.code == "timeout_total"
        assert "waiting for the answer" in outcome.detail
        assert all(isinstance(found[n].outcome, Payload) for n in range(1, 21))

    def test_the_timeout_bounds_the_body_too(self, tmp_path: Path) -> None:
        for fault in ("drip", "endless", "stall"):
            with serve(self.folder(tmp_path), {"a.jpg": [fault]}) as server:
                outcome = self.one(server.url("a.jpg"), timeout=0.5)
            assert isinstance(outcome, Failure)
            assert outcome.code == "timeout_total"
            assert "receiving the body" in outcome.detail
            assert self.buffer.used == 0

    def test_a_host_that_accepts_and_says_nothing_times_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert self.code(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout=0.3) == "timeout_total"

    def test_a_closed_port_and_an_unknown_host_are_told_apart(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        assert self.code(f"http://127.0.0.1:{port}/") == "connect"
        assert self.code("http://nowhere.invalid/") == "dns"
        assert self.code("http://127.0.0.1:99999/") == "bad_url"

    def test_broken_answers_have_their_own_codes(self, tmp_path: Path) -> None:
        expected = {
            "truncated": "truncated",
            "reset": "reset",
            "hangup": "reset",
            "bad-chunk": "protocol",
            "not-http": "protocol",
            "bad-gzip": "bad_encoding",
            "empty": "empty_body",
        }
        for fault, code in expected.items():
            with serve(self.folder(tmp_path), {"a.jpg": [fault]}) as server:
                assert (fault, self.code(server.url("a.jpg"))) == (fault, code)

    def test_a_compressed_answer_is_decoded(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), {"a.jpg": ["gzip"]}) as server:
            outcome = self.one(server.url("a.jpg"))
        assert isinstance(outcome, Payload)
        assert outcome.body.read() == BODY

    def test_too_large_stops_whether_announced_or_not(self, tmp_path: Path) -> None:
        for fault in ("big:300000", "big-unknown:300000", "endless"):
            with serve(self.folder(tmp_path), {"a.jpg": [fault]}) as server:
                assert self.code(server.url("a.jpg"), max_file_bytes=200_000) == "too_large"
        with serve(self.folder(tmp_path), {"a.jpg": ["big:200000"]}) as server:
            assert isinstance(self.one(server.url("a.jpg"), max_file_bytes=200_000), Payload)

    def test_a_decompressed_body_counts_in_full(self, tmp_path: Path) -> None:
        (tmp_path / "bomb").write_bytes(bytes(20_000_000))
        with serve(tmp_path, {"bomb": ["gzip"]}) as server:
            assert self.code(server.url("bomb"), max_file_bytes=1_000_000) == "too_large"

    def test_passing_failures_are_tried_again_and_final_ones_are_not(self, tmp_path: Path) -> None:
        script = {"a.jpg": ["503", "reset", "ok"], "b.txt": ["404", "ok"]}
        with serve(self.folder(tmp_path), script) as server:
            found = self.fetch([server.url("a.jpg"), server.url("b.txt")], retries=2)
            assert dict(server.counts) == {"a.jpg": 3, "b.txt": 1}
        assert isinstance(found[0].outcome, Payload)
        assert found[0].attempts == 3
        assert isinstance(found[1].outcome, Failure)

    def test_memory_for_bodies_is_bounded_and_big_ones_still_arrive(self, tmp_path: Path) -> None:
        limit = 4_000_000
        fetch_options = Config.from_options({"url_list": "-", "max_buffered_bytes": limit, "thread_count": 16}).fetch
        buffer = Buffer(limit, 16)
        most, bodies = 0, []
        fetcher = self.make_fetcher(fetch_options, buffer)
        with serve(self.folder(tmp_path), {"a.jpg": ["big:3000000"]}) as server, contextlib.closing(fetcher):
            for batch in fetcher.fetch(rows_of([server.url("a.jpg")] * 24)):
                most = max(most, buffer.used)
                for fetched in batch:
                    assert isinstance(fetched.outcome, Payload)
                    bodies.append(fetched.outcome.body)
                    if buffer.used > buffer.half:
                        fetched.outcome.body.spill()
        assert [body.size for body in bodies] == [3_000_000] * 24
        assert len({body.read() for body in bodies}) == 1
        assert most <= limit
        for body in bodies:
            body.release()
        assert buffer.used == 0
        buffer.close()

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

    def test_rows_that_come_late_hold_up_nobody(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:
            arrived = threading.Event()

            def rows() -> Iterator[Row]:
                yield from rows_of([server.url("a.jpg")])
                assert arrived.wait(10)  # not before the first has been delivered
                yield Row(0, 1, "000000001", server.url("b.txt"))

            options = Config.from_options({"url_list": "-"}).fetch
            seen = []
            with contextlib.closing(self.make_fetcher(options, Buffer(1 << 20, 256))) as fetcher:
                for batch in fetcher.fetch(rows()):
                    for fetched in batch:
                        seen.append(fetched.row.position)
                        arrived.set()
        assert seen == [0, 1]

    def test_an_error_of_the_list_is_raised_after_the_rows_before_it(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path)) as server:

            def rows() -> Iterator[Row]:
                yield from rows_of([server.url("a.jpg")] * 3)
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
            assert time.monotonic() - started < 1
            assert buffer.used == 0
            del outcomes
        assert _settles(lambda: _open_files() <= before)

    def test_tls_is_verified(self, tmp_path: Path) -> None:
        with serve(self.folder(tmp_path), tls=True) as server:
            assert self.code(server.url("a.jpg")) == "tls"
            with _environment("SSL_CERT_FILE", server.ca_file):
                outcome = self.one(server.url("a.jpg"))
        assert isinstance(outcome, Payload)
        assert outcome.body.read() == BODY

    def test_ten_thousand_rows_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "small").write_bytes(b"x")
        with serve(tmp_path) as server:
            found = self.fetch([server.url("small")] * 10_000, thread_count=1000, timeout=60)
        assert sum(isinstance(fetched.outcome, Payload) for fetched in found.values()) == 10_000


@contextlib.contextmanager
def _raw_server(answers: list[bytes]) -> Iterator[list[str]]:
    """A URL for each of `answers`, where just these bytes are answered."""
    with contextlib.ExitStack() as stack:
        urls = []
        for answer in answers:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}/")

            def serve_once(listener: socket.socket = listener, answer: bytes = answer) -> None:
                with listener.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve_once, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
        yield urls


def _open_files() -> int:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0


def _settles(condition: Any, within: float = 10.0) -> bool:
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
