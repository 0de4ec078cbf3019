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
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import pycurl
import pytest
import requests

from any2ds.core.errors import MissingExtra
from any2ds.testing.certificate import FLAWS
from any2ds.testing.faults import STAND_IN
from any2ds.testing.server import Server, serve
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

    def test_a_range_of_another_version_gives_the_whole_file(self, folder: Path) -> None:
        with serve(folder) as server:
            answer = get(server.url("a.jpg"), headers={"Range": "bytes=0-9", "If-Range": '"old"'})
        assert (answer.status_code, answer.content) == (200, PICTURE)

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

    def test_waiting_for_a_request_that_does_not_come_ends(self, folder: Path) -> None:
        with serve(folder) as server, pytest.raises(TimeoutError, match=r"a\.jpg"):
            server.wait_for("a.jpg", within=0.01)


class TestFaults:
    @pytest.mark.parametrize("status", [204, 403, 404, 429, 500, 503, 999])
    def test_status(self, folder: Path, status: int) -> None:
        with serve(folder, {"a.jpg": [str(status)]}) as server:
            assert get(server.url("a.jpg")).status_code == status

    def test_status_and_ok_can_carry_a_header(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["429:retry-after=2", "ok:x-robots-tag=noai, noimageai"]}) as server:
            limited, fine = get(server.url("a.jpg")), get(server.url("a.jpg"))
        assert (limited.status_code, limited.headers["Retry-After"]) == (429, "2")
        assert (fine.content, fine.headers["X-Robots-Tag"]) == (PICTURE, "noai, noimageai")

    def test_timeout_never_answers(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["timeout"]}) as server, asked(server, "a.jpg") as connection:
            server.wait_for("a.jpg", within=SOON)
            get(server.url("page.html"))  # the server has had its chance
            server.close()
            assert received_until_cut(connection) == b""

    def test_slow_answers_after_its_delay(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["slow:0.05"]}) as server:
            answer = get(server.url("a.jpg"))
        assert answer.content == PICTURE
        assert answer.elapsed.total_seconds() >= 0.05

    def test_drip_sends_single_bytes_and_starts_over(self, folder: Path) -> None:
        with serve(folder, {"b c.txt": ["drip:0"]}) as server:
            with requests.get(server.url("b c.txt"), stream=True, timeout=SOON) as answer:
                chunks = answer.iter_content(chunk_size=None)
                received = [next(chunks) for _ in range(12)]
            assert "Content-Length" not in answer.headers
        assert received == [bytes([byte]) for byte in b"wordswordswo"]

    def test_stall_stops_in_the_middle(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["stall"]}) as server, asked(server, "a.jpg") as connection:
            server.wait_for("a.jpg", within=SOON)
            get(server.url("page.html"))
            server.close()
            head, _, body = received_until_cut(connection).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(PICTURE)}".encode() in head
        assert body == PICTURE[: len(PICTURE) // 2]

    def test_endless_goes_on_and_lets_others_pass(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["endless"]}) as server, asked(server, "a.jpg") as connection:
            assert len(read_until(connection, 20_000_000)) >= 20_000_000
            assert get(server.url("page.html")).status_code == 200

    @pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
    def test_big_bodies_have_their_size(self, folder: Path, size: int) -> None:
        with serve(folder, {"x": [f"big:{size}"], "y": [f"big-unknown:{size}"]}) as server:
            announced, unannounced = get(server.url("x")), get(server.url("y"))
        assert len(announced.content) == len(unannounced.content) == size
        assert announced.headers["Content-Length"] == str(size)
        assert "Content-Length" not in unannounced.headers

    def test_hangup_gives_no_answer(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["hangup"]}) as server, asked(server, "a.jpg") as connection:
            assert read_all(connection) == b""

    def test_reset_breaks_off_in_the_body(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["reset"]}) as server:
            with asked(server, "a.jpg") as connection, pytest.raises(ConnectionResetError):
                read_all(connection)
            assert curl_error(server.url("a.jpg")) == pycurl.E_RECV_ERROR

    def test_truncated_ends_before_the_announced_length(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["truncated"]}) as server:
            with asked(server, "a.jpg") as connection:
                head, _, body = read_all(connection).partition(b"\r\n\r\n")
            assert curl_error(server.url("a.jpg")) == pycurl.E_PARTIAL_FILE
        assert f"Content-Length: {len(PICTURE)}".encode() in head
        assert body == PICTURE[: len(PICTURE) // 2]

    def test_excess_sends_more_than_it_announced(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["excess"]}) as server, asked(server, "a.jpg") as connection:
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(PICTURE) // 2}".encode() in head
        assert body == PICTURE

    def test_flow_takes_its_time(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["flow:0.3"]}) as server:
            started = time.monotonic()
            assert get(server.url("a.jpg")).content == PICTURE
        assert time.monotonic() - started >= 0.3

    def test_later_names_the_date(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["later:100"]}) as server:
            answer = get(server.url("a.jpg"))
        date = parsedate_to_datetime(answer.headers["Retry-After"])
        ahead = date - datetime.datetime.now(datetime.timezone.utc)
        assert answer.status_code == 429
        assert 90 < ahead.total_seconds() <= 101

    @pytest.mark.parametrize("encoding", sampled(["gzip,gzip", "gzip", "deflate"]))
    def test_bombs_hold_a_gigabyte(self, folder: Path, encoding: str) -> None:
        with serve(folder, {"a.jpg": [f"bomb:{encoding}"]}) as server, requests.Session() as session:
            with session.get(server.url("a.jpg"), stream=True, timeout=SOON) as answer:
                assert sum(map(len, answer.iter_content(1 << 20))) == 1 << 30
                assert answer.headers["Content-Encoding"] == encoding.replace(",", ", ")
                assert int(answer.headers["Content-Length"]) < 2_000_000
            with session.get(server.url("a.jpg"), stream=True, headers={"Accept-Encoding": "br"}) as answer:
                assert "Content-Encoding" not in answer.headers

    def test_bombs_of_brotli_do_too(self, folder: Path) -> None:
        size = 0

        def count(data: bytes) -> None:
            nonlocal size
            size += len(data)

        with serve(folder, {"a.jpg": ["bomb:br"]}) as server:
            assert curl_error(server.url("a.jpg"), ACCEPT_ENCODING="br", WRITEFUNCTION=count) == 0
        assert size == 1 << 30

    @pytest.mark.parametrize("entry", ["endless-header", "endless-headers", "endless-hints", "endless-trailers"])
    def test_headers_without_end(self, folder: Path, entry: str) -> None:
        with serve(folder, {"a.jpg": [entry]}) as server:
            with asked(server, "a.jpg") as connection:
                assert len(read_until(connection, 20_000_000)) >= 20_000_000
            assert curl_error(server.url("a.jpg")) in (pycurl.E_RECV_ERROR, 100)  # 100: too large

    def test_bad_chunk_is_no_chunk(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["bad-chunk"]}) as server:
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                get(server.url("a.jpg"))
            assert curl_error(server.url("a.jpg")) == pycurl.E_RECV_ERROR

    def test_not_http_is_another_protocol(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["not-http"]}) as server:
            with asked(server, "a.jpg") as connection:
                assert read_all(connection).startswith(b"220 ")
            assert curl_error(server.url("a.jpg")) == pycurl.E_UNSUPPORTED_PROTOCOL

    @pytest.mark.parametrize("whole_url", [False, True])
    def test_redirect_leads_to_its_target(self, folder: Path, whole_url: bool) -> None:
        with serve(folder) as there:
            target = there.url("sub/é.png") if whole_url else "sub/é.png"
            with serve(folder, {"a.jpg": [f"redirect:{target}"]}) as server:
                answer = get(server.url("a.jpg"))
                expected = there if whole_url else server
                assert answer.url == expected.url("sub/é.png")
        assert answer.content == b"png"

    def test_redirect_loop_leads_to_itself(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["redirect:loop"]}) as server:
            assert curl_error(server.url("a.jpg"), FOLLOWLOCATION=1, MAXREDIRS=4) == pycurl.E_TOO_MANY_REDIRECTS
        assert server.counts["a.jpg"] == 5

    def test_gzip_compresses_for_who_accepts_it(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["gzip"]}) as server:
            packed = get(server.url("a.jpg"), headers={"Accept-Encoding": "gzip"})
            plain = get(server.url("a.jpg"), headers={"Accept-Encoding": "identity"})
        assert packed.content == plain.content == PICTURE
        assert packed.headers["Content-Encoding"] == "gzip"
        assert "Content-Encoding" not in plain.headers

    def test_bad_gzip_cannot_be_decompressed(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["bad-gzip"]}) as server:
            assert curl_error(server.url("a.jpg"), ACCEPT_ENCODING="gzip") == pycurl.E_BAD_CONTENT_ENCODING

    def test_empty_is_a_success_without_a_body(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["empty"]}) as server:
            answer = get(server.url("a.jpg"))
        assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, b"", "image/jpeg")

    def test_types_can_be_wrong_or_absent(self, folder: Path) -> None:
        script = {"a.jpg": ["wrong-type", "wrong-type:audio/x-lie", "no-type"], "page.html": ["wrong-type"]}
        with serve(folder, script) as server:
            answers = [get(server.url("a.jpg")) for _ in range(3)]
            page = get(server.url("page.html"))
        assert [answer.headers.get("Content-Type") for answer in answers] == ["text/html", "audio/x-lie", None]
        assert [answer.content for answer in answers] == [PICTURE] * 3
        assert page.headers["Content-Type"] == "image/jpeg"

    @pytest.mark.parametrize("entry", ["gzip", "empty", "wrong-type", "no-type"])
    def test_faults_need_no_file(self, folder: Path, entry: str) -> None:
        with serve(folder, {"missing": [entry]}) as server:
            assert get(server.url("missing")).content in (STAND_IN, b"")


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

    def test_faults_work_below_tls(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["truncated", "reset"]}, tls=True) as server:
            errors = [curl_error(server.url("a.jpg"), CAINFO=server.ca_file) for _ in range(2)]
        assert errors == [pycurl.E_PARTIAL_FILE, pycurl.E_RECV_ERROR]

    @pytest.mark.parametrize("flaw", FLAWS)
    def test_certificates_can_be_wrong(self, folder: Path, flaw: str) -> None:
        with serve(folder, tls=True, flaw=flaw) as server:
            assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file) == pycurl.E_PEER_FAILED_VERIFICATION
            assert curl_error(server.url("a.jpg"), SSL_VERIFYPEER=0, SSL_VERIFYHOST=0) == 0
            assert server.handshakes == 2

    def test_ipv6(self, folder: Path) -> None:
        with serve(folder, host="::1", tls=True) as server:
            assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file) == 0

    @pytest.mark.parametrize("library", ["cryptography", "h2.config"])
    def test_a_missing_library_is_said(self, folder: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
        for name in ("certificate", "http2"):
            monkeypatch.delitem(sys.modules, f"any2ds.testing.{name}", raising=False)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtra, match=r"any2ds\[testing\]"), serve(folder, tls=True, http2=True):
            pass


class TestHttp2:
    def test_it_is_agreed_on_in_the_handshake(self, folder: Path) -> None:
        with serve(folder, {"a.jpg": ["404:x-why=gone", "ok"]}, tls=True, http2=True) as server:
            for version in (pycurl.CURL_HTTP_VERSION_2TLS, pycurl.CURL_HTTP_VERSION_1_1):
                assert curl_error(server.url("a.jpg"), CAINFO=server.ca_file, HTTP_VERSION=version) == 0
            assert get(server.url("a.jpg"), verify=server.ca_file).content == PICTURE
        assert [request.version for request in server.requests] == ["2", "1.1", "1.1"]
        assert server.counts == {"a.jpg": 3}

    def test_bodies_bigger_than_the_windows_arrive(self, folder: Path) -> None:
        body = bytes(range(256)) * 100_000
        (folder / "big").write_bytes(body)
        with serve(folder, tls=True, http2=True) as server:
            received = bytearray()
            assert curl_error(server.url("big"), CAINFO=server.ca_file, WRITEFUNCTION=received.extend) == 0
            assert server.requests[0].version == "2"
        assert received == body

    @pytest.mark.parametrize("options", [{"http2": True}, {"http2": True, "tls": True, "script": {"a.jpg": ["drip"]}}])
    def test_what_cannot_be_is_refused_at_once(self, folder: Path, options: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="HTTP/2"), serve(folder, **options):  # type: ignore[arg-type]
            pass


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

    def test_an_error_inside_the_block_closes_it_too(self, folder: Path) -> None:
        with pytest.raises(RuntimeError, match="mine"), serve(folder) as server:
            raise RuntimeError("mine")
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
