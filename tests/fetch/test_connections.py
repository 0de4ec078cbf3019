"""What comes on a connection beside its answers: it is no row's, whenever it comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from any2ds import download

ROWS = 40
JUNK = b"\n\n  the trailing output of a script\n"


def answer_with(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


FOREIGN = answer_with("another row's")

# What a server sends, in one piece, for the request with the number `nth` of a connection, whose answer is `answer`.
Script = Callable[[bytes, int], bytes]
SCRIPTS: dict[str, Script] = {
    "junk behind each answer": lambda answer, nth: answer + JUNK,
    "an answer behind each answer": lambda answer, nth: answer + FOREIGN,
    "junk when a connection is used again": lambda answer, nth: JUNK + answer if nth > 1 else answer,
    "an answer when a connection is used again": lambda answer, nth: FOREIGN + answer if nth > 1 else answer,
    "408 when a connection is used again": lambda answer, nth: answer_with("", "408 T") if nth > 1 else answer,
    "nothing when a connection is used again": lambda answer, nth: b"" if nth > 1 else answer,
}


class Server:
    """One of its connections after the other is answered by `script`; an empty answer closes it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.base = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.paths: list[str] = []
        self.most_on_one = 0  # requests on a connection
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            nth = 0
            while request := lines.readline():
                while lines.readline() not in (b"\r\n", b""):
                    continue
                nth += 1
                self.most_on_one = max(self.most_on_one, nth)
                path = request.split()[1].decode()
                self.paths.append(path)
                if not (sent := self._script(answer_with(f"row {path}"), nth)):
                    return
                connection.sendall(sent)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    with contextlib.closing(Server(script)) as server:
        yield server


def fetched(server: Server, output: Path, **options: object) -> list[dict[str, object]]:
    urls = [f"{server.base}/{number}" for number in range(ROWS)]
    download(
        urls,
        str(output),
        output_format="parquet",
        distributor="inline",
        thread_count=1,
        quiet=True,
        **options,  # type: ignore[arg-type]
    )
    return list(pq.read_table(output / "00000.parquet").to_pylist())


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_row_gets_its_own_body_at_its_first_attempt(tmp_path: Path, script: str) -> None:
    with serving(SCRIPTS[script]) as server:
        rows = fetched(server, tmp_path / "out")
    assert [row["data"] for row in rows] == [f"row /{number}".encode() for number in range(ROWS)]
    assert {row["attempts"] for row in rows} == {1}
    if not script.startswith(("408", "nothing")):  # such a server is believed no more
        assert len(server.paths) <= ROWS + 2


def test_a_connection_is_not_used_again_if_more_came_than_its_answer(tmp_path: Path) -> None:
    with serving(SCRIPTS["junk behind each answer"]) as server:
        fetched(server, tmp_path / "out")
    assert server.most_on_one == 1


def test_a_connection_is_used_again_if_its_answers_are_all_that_came(tmp_path: Path) -> None:
    with serving(lambda answer, nth: answer) as server:
        fetched(server, tmp_path / "out")
    assert (server.most_on_one, len(server.paths)) == (ROWS, ROWS)


def test_a_new_connection_is_judged_by_what_comes_on_it(tmp_path: Path) -> None:
    with serving(lambda answer, nth: JUNK + answer) as server:
        rows = fetched(server, tmp_path / "out")
    assert {row["error_code"] for row in rows} == {"protocol"}
    assert len(server.paths) == ROWS
