"""The memory of a process whose servers do their worst to take it: the peak of the command, as the system counts it."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import brotli
import pyarrow.parquet as pq
import pytest

from tests.support import memory

# Bytes. A run of few small files takes about 190 MB; what is tried below took from 0.7 to 3 GB.
BOUND = 450_000_000
LONG = "x" * 90_000


def answer_to(connection: socket.socket, answer: bytes, ends: bool) -> None:
    """Answer every request alike; without `ends`, the first one by a beginning after which nothing comes."""
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
        while lines.readline():
            while lines.readline() not in (b"\r\n", b""):
                continue
            connection.sendall(answer)
            if not ends:
                lines.readline()  # until the client gives up
                return


def accept(listener: socket.socket, answer: bytes, ends: bool) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer_to, args=(connection, answer, ends), daemon=True).start()


@contextmanager
def serving(answer: bytes, hosts: int, ends: bool) -> Iterator[list[str]]:
    """So many hosts, as their URLs."""
    with ExitStack() as stack:
        urls = []
        for _ in range(hosts):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            threading.Thread(target=accept, args=(listener, answer, ends), daemon=True).start()
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield urls


def peak(urls: Sequence[str], folder: Path, *options: str) -> int:
    """Bytes that the command for these rows takes at most, all in one process."""
    (folder / "urls.txt").write_text("\n".join(urls))
    return memory.peak(["urls.txt", "out", "--distributor=inline", "--quiet", *options], folder)


def head(*headers: str) -> str:
    return "\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""])


def test_a_stream_of_brotli_takes_no_window_while_it_is_on_its_way(tmp_path: Path) -> None:
    encoder = brotli.Compressor(lgwin=24, quality=5)
    stream = encoder.process(random.Random(1).randbytes(1000) * 15_000) + encoder.flush()
    assert len(stream) < 2000  # of 15 MB
    chunk = f"{len(stream):x}\r\n".encode() + stream + b"\r\n"
    answer = head("Content-Encoding: br", "Transfer-Encoding: chunked").encode() + chunk
    with serving(answer, 100, ends=False) as hosts:
        options = ("--thread_count=100", "--timeout=3")
        assert peak([f"{host}/a" for host in hosts], tmp_path, *options) < BOUND


@pytest.mark.parametrize(
    "headers", [[f'ETag: "{LONG}"', f"Last-Modified: {LONG}"], [f"Content-Type: application/{LONG}"]]
)
def test_long_headers_are_not_kept(tmp_path: Path, headers: list[str]) -> None:
    answer = head(*headers, "Content-Length: 3") + "abc"
    with serving(answer.encode(), 10, ends=True) as hosts:
        urls = [f"{host}/{number}" for number in range(200) for host in hosts]
        assert peak(urls, tmp_path, "--output_format=webdataset") < BOUND
    row = pq.read_table(tmp_path / "out" / "00000.parquet").slice(0, 1).to_pylist()[0]
    assert row["status"] == "success"
    assert all(len(value) <= 512 for value in row.values() if isinstance(value, str))


def test_headers_that_do_not_end_have_a_bound_together(tmp_path: Path) -> None:
    answer = "HTTP/1.1 200 OK\r\n" + "".join(f"X-{number}: {LONG}\r\n" for number in range(3))
    with serving(answer.encode(), 100, ends=False) as hosts:
        urls = [f"{host}/{number}" for number in range(15) for host in hosts]
        assert peak(urls, tmp_path, "--thread_count=1500", "--timeout=5") < 2 * BOUND
    rows = pq.read_table(tmp_path / "out" / "00000.parquet", columns=["error_code"])
    assert "headers_too_large" in rows.column("error_code").to_pylist()  # before libcurl's own limit for each of them


def test_a_redirect_to_a_long_url_is_followed_and_its_url_is_not_kept(tmp_path: Path) -> None:
    with serving((head("Content-Length: 3") + "abc").encode(), 1, ends=True) as (base,):
        redirect = f"HTTP/1.1 302 Found\r\nLocation: {base}/{'x' * 3000}\r\nContent-Length: 0\r\n\r\n"
        with serving(redirect.encode(), 1, ends=True) as (first,):
            peak([f"{first}/a"], tmp_path)
    (row,) = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    assert (row["status"], row["final_url"]) == ("success", None)
