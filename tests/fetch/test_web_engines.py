"""What the engine for http(s) does, beyond the contract."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from any2ds.core.samples import Payload
from any2ds.testing.server import serve
from tests.support.proxy import serve_proxy

BODY = bytes(range(256)) * 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jpg").write_bytes(BODY)
    return tmp_path


def test_retry_after_is_seconds_or_a_date(one: Any, folder: Path) -> None:
    date = formatdate(4_000_000_000, usegmt=True)
    with serve(folder, {"a": ["429:Retry-After=500"], "b": [f"503:Retry-After={date}"]}) as server:
        assert one(server.url("a")).retry_after == 500
        assert one(server.url("b")).retry_after > 1000


def test_cookies_of_answers_are_not_kept(one: Any, fetch: Any, folder: Path) -> None:
    with serve(folder, {"a.jpg": ["ok:Set-Cookie=track=1"]}) as server:
        fetch([server.url("a.jpg")] * 3, thread_count=1)
        assert not any("Cookie" in request.headers for request in server.requests)


def test_a_cookie_that_is_set_on_the_way_of_redirects_is_sent_to_its_host_on_that_way_alone(fetch: Any) -> None:
    """As walls of cookies want it, which redirect to themselves until they see their own."""
    cookies: list[tuple[str, str]] = []

    class Wall(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append((self.path, self.headers.get("Cookie", "")))
            is_let_in = "seen=1" in cookies[-1][1] or self.path == "/b"
            self.send_response(200 if is_let_in else 302)
            self.send_header("Set-Cookie", "seen=1; Path=/; HttpOnly")
            self.send_header("Set-Cookie", "only=tls; Secure")
            self.send_header("Set-Cookie", "strange=\xe9")
            self.send_header("Set-Cookie", "gone=1; Path=/; Max-Age=0")
            self.send_header("Location", self.path)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Wall) as wall:
        thread = threading.Thread(target=wall.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{wall.server_port}"
        outcomes = fetch([f"{base}/a", f"{base}/b"], thread_count=1)
        wall.shutdown()
        thread.join()
    assert all(isinstance(outcome, Payload) for outcome in outcomes)
    assert sorted(cookies) == [("/a", ""), ("/a", "seen=1"), ("/b", "")]


@pytest.mark.parametrize("name", ["X-Api-Key", "X-Auth-Token", "Proxy-Authorization", "X-Whatever"])
def test_a_redirect_to_another_host_gets_no_header_that_may_be_a_secret(one: Any, folder: Path, name: str) -> None:
    with serve(folder) as end, serve(folder, {"r": [f"redirect:{end.url('a.jpg')}"]}) as server:
        assert isinstance(one(server.url("r"), headers=f"{name}: hunter2, Accept-Language: nl"), Payload)
        assert server.requests[0].headers[name] == "hunter2"
        assert "hunter2" not in str(end.requests[0].headers)
        assert end.requests[0].headers["Accept-Language"] == "nl"


def test_credentials_do_not_follow_a_redirect_from_http_to_https_of_the_same_host(one: Any, folder: Path) -> None:
    """Also on their usual ports, which a proxy stands for."""
    options = {"headers": "Authorization: Bearer x, Cookie: id=x", "ignore_ssl_certificate": True}
    with serve(folder, tls=True) as end, serve_proxy() as proxy:
        with serve(folder, {"r": ["redirect:https://media.test/a.jpg"]}) as server:
            proxy.ports = {80: server.port, 443: end.port}
            for url in ("http://media.test/r", "http://me:secret@media.test/r"):
                assert isinstance(one(url, proxy=proxy.url, **options), Payload)
            assert all({"Authorization", "Cookie"} <= set(request.headers) for request in server.requests)
        assert len(end.requests) == 2
        for request in end.requests:
            assert not {"Authorization", "Cookie"} & set(request.headers)


def test_hosts_that_accept_and_say_nothing_are_cut_without_a_timeout(fetch: Any) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Long: "
    with socket.create_server(("127.0.0.1", 0)) as mute, answering(head, b"x", pause=0.05) as dripping:
        address = f"127.0.0.1:{mute.getsockname()[1]}/"
        urls = [f"http://{address}", f"https://{address}", dripping]
        outcomes = fetch(urls, timeout=0, stall_timeout=0.5)
    assert [outcome.code for outcome in outcomes] == ["timeout_stalled"] * 3


def test_a_handshake_that_hangs_is_cut_at_the_limit_for_connecting(one: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"https://127.0.0.1:{mute.getsockname()[1]}/"
        assert one(url, timeout=20, connect_timeout=0.2).code == "timeout_connect"


def test_interim_answers_are_no_answers(fetch: Any) -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nX-Robots-Tag: noai\r\n\r\n" * 3
    with answering(hints + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"") as url:
        (outcome,) = fetch([url])
    assert isinstance(outcome, Payload)
    assert (outcome.http_status, outcome.body.read()) == (200, b"ok")


def test_answers_of_any_length_and_shape_are_bounded(one: Any, folder: Path) -> None:
    head, block = b"HTTP/1.1 ", b"x" * 65536
    with serve(folder) as server:
        location = b"Location: " + server.url("a.jpg").encode()
        with answering(head + b"302 Found\r\n" + location + b"\r\n\r\n", block) as url:
            assert isinstance(one(url), Payload)
    chunked = b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    expected = [
        (b"404 Not Found\r\n\r\n", block, "http_404"),
        (chunked + b"5\r\nhello\r\n", b"", "truncated"),
        (chunked + b"50\r\nhello\r\n", b"", "truncated"),
        (chunked + b"nonsense\r\nhello\r\n", b"", "protocol"),
        (b"200 OK\r\nContent-Encoding: zstd\r\nContent-Length: 2\r\n\r\nok", b"", "bad_encoding"),
        (b"302 Found\r\nContent-Length: 0\r\n\r\n", b"", "http_302"),
        (b"302 Found\r\nLocation: gopher://x/y\r\nContent-Length: 0\r\n\r\n", b"", "bad_redirect"),
    ]
    for answer, endless, code in expected:
        with answering(head + answer, endless) as url:
            assert (answer, one(url).code) == (answer, code)


@contextmanager
def answering(answer: bytes, endless: bytes, pause: float = 0) -> Iterator[str]:
    """A server that says `answer` to each connection, then `endless` until the client hangs up, or closes it."""

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    while endless:
                        connection.sendall(endless)
                        time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
