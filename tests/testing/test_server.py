"""The test server does what its scripts say, as plain sockets, requests and libcurl see it."""

import datetime
import gc
import gzip
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import pycurl
import pytest
import requests

from any2ds.core.errors import MissingExtra
from any2ds.testing.certificate import FLAWS
from any2ds.testing.server import Server, serve
from tests.support.http2 import serve_http2
from tests.support.params import sampled

PICTURE = b"\xff\xd8\xff\xe0 not really a picture " * 100
SOON = 100.0  # seconds: a bound on waiting, never waited for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jpg").write_bytes(PICTURE)
    (tmp_path / "b c.txt").write_text("words", encoding="utf-8")
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress(b"url\n"))
    (tmp_path / "page.html").write_text("<p>", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "é.png").write_bytes(b"png")
    return tmp_path


def get(url: str, **options: object) -> requests.Response:
    return requests.get(url, timeout=SOON, **options)


@contextmanager
def asked(server: Server, path: str, headers: str = "") -> Iterator[socket.socket]:
    """A plain connection on which `path` was requested."""
    with socket.create_connection((server.host, server.port), SOON) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: {server.host}\r\n{headers}\r\n".encode())
        yield connection


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def received_until_cut(connection: socket.socket) -> bytes:
    """All that comes before the connection ends, in whatever way it does."""
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionError:
        return data
    return data


def read_until(connection: socket.socket, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted and (more := connection.recv(65536)):
        data += more
    return data


def curl_error(url: str, **options: object) -> int:
    """libcurl's error number for a request."""
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.WRITEFUNCTION, lambda data: len(data))
    handle.setopt(pycurl.TIMEOUT, int(SOON))
    for name, value in options.items():
        handle.setopt(getattr(pycurl, name), value)
    try:
        handle.perform()
    except pycurl.error as error:
        return int(error.args[0])
    finally:
        handle.close()
    return 0


class TestFiles:
    def test_a_file_is_served_with_what_describes_it(self, folder: Path) -> None:
        with serve(folder) as server:
            answer = get(server.url("a.jpg"))
            again = get(server.url("a.jpg"), headers={"If-None-Match": answer.headers["ETag"]})
            unchanged = get(server.url("a.jpg"), headers={"If-Modified-Since": answer.headers["Last-Modified"]})
        assert (answer.status_code, answer.content) == (200, PICTURE)
        assert answer.headers["Content-Type"] == "image/jpeg"
        assert answer.headers["Content-Length"] == str(len(PICTURE))
        assert [again.status_code, unchanged.status_code] == [304, 304]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("b c.txt", "text/plain; charset=utf-8"),
            ("page.html", "text/html; charset=utf-8"),
            ("list.csv.gz", "application/gzip"),
            ("sub/é.png", "image/png"),
        ],
    )
    def test_types_follow_the_name(self, folder: Path, name: str, kind: str) -> None:
        with serve(folder) as server:
            answer = get(server.url(name))
        assert answer.headers["Content-Type"] == kind
        assert answer.content == (folder / name).read_bytes()

    @pytest.mark.parametrize(
        ("wanted", "status", "part"),
        [
            ("bytes=0-9", 206, slice(0, 10)),
            ("bytes=2000-", 206, slice(2000, None)),
            ("bytes=-5", 206, slice(-5, None)),
            ("bytes=999999-", 416, slice(0, 0)),
            ("bytes=x", 416, slice(0, 0)),
        ],
    )
    def test_ranges(self, folder: Path, wanted: str, status: int, part: slice) -> None:
        with serve(folder) as server:
            answer = get(server.url("a.jpg"), headers={"Range": wanted})
        assert answer.status_code == status
        assert answer.content == PICTURE[part]
        assert answer.headers["Content-Range"].endswith(f"/{len(PICTURE)}")

    @pytest.mark.parametrize("path", ["missing.jpg", "sub", "", "..%2Fsecret", "%2e%2e/secret", "a%00b", "x" * 5000])
    def test_only_files_of_the_folder_are_found(self, folder: Path, path: str) -> None:
        (folder / "secret").write_text("", encoding="utf-8")
        with serve(folder / "sub") as server, asked(server, path, "Connection: close\r\n") as connection:
            assert read_all(connection).startswith(b"HTTP/1.1 404 ")


class TestScripts:
    def test_each_request_takes_the_next_entry_and_the_last_repeats(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["503", "404", "ok"]}) as server:
            statuses = [get(server.url("a.jpg")).status_code for _ in range(4)]
            assert get(server.url("page.html")).status_code == 200
        assert statuses == [503, 404, 200, 200]
        assert server.counts == {"a.jpg": 4, "page.html": 1}

    def test_the_query_does_not_choose_the_script(self, folder: Path) -> None:
        with serve(folder, {"/b c.txt": ["410"]}) as server:
            assert get(server.url("b c.txt") + "?n=1").status_code == 410
        assert server.requests[0].target == "/b%20c.txt?n=1"

    @pytest.mark.parametrize(
        "entry", ["nonsense", "slow", "slow:soon", "timeout:3", "404:x", "big:-1", "99", "redirect"]
    )
    def test_a_script_that_makes_no_sense_is_refused_at_once(self, folder: Path, entry: str) -> None:
        with pytest.raises(ValueError, match=re.escape(entry)), serve(folder, {"a.jpg": [entry]}):
            pass


class TestRecord:
    def test_requests_are_recorded_with_their_headers_and_connection(self, folder: Path) -> None:
        with serve(folder) as server, requests.Session() as session:
            session.get(server.url("a.jpg"), headers={"User-Agent": "me/1"}, timeout=SOON)
            session.get(server.url("sub/é.png"), timeout=SOON)
            get(server.url("a.jpg"))
        first, second, third = server.requests
        assert (first.path, first.method, first.headers["user-agent"]) == ("a.jpg", "GET", "me/1")
        assert (second.path, second.target) == ("sub/é.png", "/sub/%C3%A9.png")
        assert first.port == second.port != third.port
        assert first.at <= second.at <= third.at

    def test_the_most_requests_at_one_time_are_counted(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["hold"]}) as server, ThreadPoolExecutor(5) as pool:
            answers = [pool.submit(get, server.url("a.jpg")) for _ in range(5)]
            server.wait_for("a.jpg", 5, within=SOON)
            server.release()
            assert [answer.result(SOON).content for answer in answers] == [PICTURE] * 5
            get(server.url("page.html"))
        assert server.max_concurrent == 5


# Entry of a script -> status, headers and body, as somebody has them who accepts gzip.
ANSWERS: dict[str, tuple[int, dict[str, str | None], bytes | None]] = {
    **{str(status): (status, {}, None) for status in (204, 403, 429, 503, 999)},
    "429:retry-after=2": (429, {"Retry-After": "2"}, None),
    "ok:x-robots-tag=noai, noimageai": (200, {"X-Robots-Tag": "noai, noimageai"}, PICTURE),
    "slow:0.05": (200, {}, PICTURE),
    "flow:0.1": (200, {"Content-Length": str(len(PICTURE))}, PICTURE),
    "big:100000": (200, {"Content-Length": "100000"}, None),
    "big-unknown:100000": (200, {"Content-Length": None}, None),
    "gzip": (200, {"Content-Encoding": "gzip"}, PICTURE),
    "empty": (200, {"Content-Type": "image/jpeg"}, b""),
    "wrong-type": (200, {"Content-Type": "text/html"}, PICTURE),
    "wrong-type:audio/x-lie": (200, {"Content-Type": "audio/x-lie"}, PICTURE),
    "no-type": (200, {"Content-Type": None}, PICTURE),
    "redirect:sub/é.png": (200, {"Content-Type": "image/png"}, b"png"),
}
# Entry of a script -> libcurl's error for it; 100: a header is too large.
ERRORS: dict[str, tuple[int, ...]] = {
    "hangup": (pycurl.E_GOT_NOTHING,),
    "reset": (pycurl.E_RECV_ERROR,),
    "truncated": (pycurl.E_PARTIAL_FILE,),
    "bad-chunk": (pycurl.E_RECV_ERROR,),
    "bad-gzip": (pycurl.E_BAD_CONTENT_ENCODING,),
    "not-http": (pycurl.E_UNSUPPORTED_PROTOCOL,),
    "redirect:loop": (pycurl.E_TOO_MANY_REDIRECTS,),
    **dict.fromkeys(
        ["endless-header", "endless-headers", "endless-hints", "endless-trailers"], (pycurl.E_RECV_ERROR, 100)
    ),
}


class TestFaults:
    @pytest.mark.parametrize("entry", ANSWERS)
    def test_an_answer_is_the_one_that_is_scripted(self, folder: Path, entry: str) -> None:
        status, headers, body = ANSWERS[entry]
        with serve(folder, {"a.jpg": [entry]}) as server:
            answer = get(server.url("a.jpg"))
        assert (answer.status_code, {name: answer.headers.get(name) for name in headers}) == (status, headers)
        assert body is None or answer.content == body
        assert "big" not in entry or len(answer.content) == 100_000

    @pytest.mark.parametrize("entry", ERRORS)
    def test_an_answer_that_is_broken_is_an_error_of_the_client(self, folder: Path, entry: str) -> None:
        with serve(folder, {"a.jpg": [entry]}) as server:
            found = curl_error(server.url("a.jpg"), FOLLOWLOCATION=1, MAXREDIRS=4, ACCEPT_ENCODING="gzip")
        assert found in ERRORS[entry]

    @pytest.mark.parametrize(("entry", "begins"), [("stall", True), ("truncated", True), ("timeout", False)])
    def test_an_answer_stops_in_the_middle_or_never_begins(self, folder: Path, entry: str, begins: bool) -> None:
        with serve(folder, {"a.jpg": [entry]}) as server, asked(server, "a.jpg") as connection:
            server.wait_for("a.jpg", within=SOON)
            get(server.url("page.html"))  # the server has had its chance
            server.close()
            head, _, body = received_until_cut(connection).partition(b"\r\n\r\n")
        assert (f"Content-Length: {len(PICTURE)}".encode() in head) is begins
        assert body == (PICTURE[: len(PICTURE) // 2] if begins else b"")

    def test_excess_sends_more_than_it_announced(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["excess"]}) as server, asked(server, "a.jpg") as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(PICTURE) // 2}".encode() in head
        assert body == PICTURE

    @pytest.mark.parametrize("entry", ["drip:0", "endless"])
    def test_an_answer_without_end_lets_others_pass(self, folder: Path, entry: str) -> None:
        with serve(folder, {"a.jpg": [entry]}) as server, asked(server, "a.jpg") as connection:
            assert len(read_until(connection, 3 * len(PICTURE))) >= 3 * len(PICTURE)
            assert get(server.url("page.html")).status_code == 200

    def test_later_names_the_date(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["later:100"]}) as server:
            answer = get(server.url("a.jpg"))
        date = parsedate_to_datetime(answer.headers["Retry-After"])
        ahead = date - datetime.datetime.now(datetime.timezone.utc)
        assert answer.status_code == 429
        assert 90 < ahead.total_seconds() <= 101

    @pytest.mark.parametrize("encoding", sampled(["gzip", "br", "gzip,gzip", "deflate"]))
    def test_bombs_hold_a_gigabyte(self, folder: Path, encoding: str) -> None:
        sizes: list[int] = []
        with serve(folder, {"a.jpg": [f"bomb:{encoding}"]}) as server:
            accepted = encoding.partition(",")[0]
            count: Callable[[bytes], None] = lambda data: sizes.append(len(data))  # noqa: E731
            assert curl_error(server.url("a.jpg"), ACCEPT_ENCODING=accepted, WRITEFUNCTION=count) == 0
        assert sum(sizes) == 1 << 30


class TestTls:
    def test_a_client_that_trusts_the_certificate_can_read(self, folder: Path) -> None:
        with serve(folder, tls=True) as server:
            assert server.url("a.jpg").startswith("https://127.0.0.1:")
            assert get(server.url("a.jpg"), verify=server.ca_file).content == PICTURE
            assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file) == 0
            assert curl_error(f"https://localhost:{server.port}/a.jpg", CAINFO=server.ca_file) == 0

    def test_others_refuse_it(self, folder: Path) -> None:
        with serve(folder, tls=True) as server:
            assert curl_error(server.url("a.jpg")) == pycurl.E_PEER_FAILED_VERIFICATION

    @pytest.mark.parametrize("flaw", FLAWS)
    def test_certificates_can_be_wrong(self, folder: Path, flaw: str) -> None:
        with serve(folder, tls=True, flaw=flaw) as server:
            assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file) == pycurl.E_PEER_FAILED_VERIFICATION
            assert curl_error(server.url("a.jpg"), SSL_VERIFYPEER=0, SSL_VERIFYHOST=0) == 0
            assert server.handshakes == 2

    def test_a_missing_library_is_said(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "any2ds.testing.certificate", raising=False)
        monkeypatch.setitem(sys.modules, "cryptography", None)
        with pytest.raises(MissingExtra, match=r"any2ds\[testing\]"), serve(folder, tls=True):
            pass


class TestHttp2:
    def test_it_is_agreed_on_in_the_handshake(self, folder: Path) -> None:
        with serve_http2(folder, {"a.jpg": ["404:x-why=gone", "ok"]}) as server:
            for version in (pycurl.CURL_HTTP_VERSION_2TLS, pycurl.CURL_HTTP_VERSION_1_1):
                assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file, HTTP_VERSION=version) == 0
            assert get(server.url("a.jpg"), verify=server.ca_file).content == PICTURE
        assert [request.version for request in server.requests] == ["2", "1.1", "1.1"]
        assert server.counts == {"a.jpg": 3}

    def test_bodies_bigger_than_the_windows_arrive(self, folder: Path) -> None:
        body = bytes(range(256)) * 100_000
        (folder / "big").write_bytes(body)
        with serve_http2(folder) as server:
            received = bytearray()
            assert curl_error(server.url("big"), CAINFO=server.ca_file, WRITEFUNCTION=received.extend) == 0
            assert server.requests[0].version == "2"
        assert received == body


class TestClosing:
    @pytest.mark.parametrize("tls", [False, True])
    @pytest.mark.parametrize("entry", ["timeout", "hold", "drip", "stall", "endless", "slow:999", "ok"])
    def test_closing_cuts_every_connection_and_leaves_no_thread(self, folder: Path, entry: str, tls: bool) -> None:
        before = set(threading.enumerate())
        with serve(folder, {"a.jpg": [entry]}, tls=tls) as server:
            plain = socket.create_connection((server.host, server.port), SOON)
            connection: socket.socket = plain
            if tls:
                connection = ssl.create_default_context(cafile=server.ca_file).wrap_socket(
                    plain, server_hostname=server.host
                )
            connection.sendall(b"GET /a.jpg HTTP/1.1\r\nHost: x\r\n\r\n")
            server.wait_for("a.jpg", within=SOON)
        with connection:
            received_until_cut(connection)
        assert set(threading.enumerate()) == before
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port), SOON)

    def test_a_taken_port_is_an_error(self, folder: Path) -> None:
        with serve(folder) as server, pytest.raises(OSError, match=r"in use"), serve(folder, port=server.port):
            pass


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_as_a_program(folder: Path, tmp_path: Path, stop: signal.Signals) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"a.jpg": ["503", "ok"]}), encoding="utf-8")
    command = [sys.executable, "-m", "any2ds.testing.server", str(folder), "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            address = process.stdout.readline().strip()
            assert [get(address + "a.jpg").status_code for _ in range(2)] == [503, 200]
        finally:
            process.send_signal(stop)
        assert process.stderr.read() == ""


def test_connections_that_were_just_made_are_closed_with_it(tmp_path: Path) -> None:
    """pytest makes an error of each that is not."""
    for _ in range(20):
        with serve(tmp_path) as server:
            socket.create_connection(("127.0.0.1", server.port)).close()
    gc.collect()
