"""The first signal ends a command that has not begun its work yet, even if the store of its dataset gives no answer."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from any2ds.testing.processes import LONG

EMPTY = b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><KeyCount>0</KeyCount></ListBucketResult>'


@contextmanager
def failing_store(failing: str) -> Iterator[tuple[str, threading.Event]]:
    """The address of an S3 store that is empty and answers 500 to requests of the methods `failing`, and whether it has
    done so."""
    has_failed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fails = self.command in failing or has_failed.is_set()  # then nothing is cleaned up there either
            found = self.command == "GET" and "list-type" in self.path
            self.send_response(500 if fails else 200 if found else 404)
            body = EMPTY if found and not fails else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if fails:
                has_failed.set()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", has_failed
        server.shutdown()


@pytest.mark.parametrize(("failing", "number"), [("GET HEAD", signal.SIGINT), ("PUT", signal.SIGTERM)])
def test_the_first_signal_ends_a_run_that_waits_for_its_store(tmp_path: Path, failing: str, number: int) -> None:
    with failing_store(failing) as (address, has_failed):
        (tmp_path / "urls.txt").write_text("http://127.0.0.1:9/a\n")
        options = {"s3": {"endpoint_url": address, "key": "k", "secret": "s"}}
        (tmp_path / "run.json").write_text(json.dumps({"storage_options": options, "quiet": True}))
        command = [sys.executable, "-m", "any2ds", "urls.txt", "s3://b/x", "--config=run.json"]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as running:
            assert has_failed.wait(LONG)
            running.send_signal(number)
            assert running.wait(LONG) == 128 + number  # it would go on for minutes
