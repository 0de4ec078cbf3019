"""A GCS emulator on loopback, behind a door where requests fail as they are told to. Needs `gcp-storage-emulator`.

The emulator knows nothing of `ifGenerationMatch` (write only over that version, 0 for none), which GCS does: the door
sees to that, unless it is told not to, like a store that does not know it either.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.servers import free_port, running

FAILURES = ("500", "503", "cut", "done but cut")
_GIVEN = ("Content-Type", "Content-Range", "Location", "Range", "X-Goog-Hash")
_PASSED_ON = ("content-type", "content-range", "x-upload-content-type", "range")


class Door:
    """Lets requests through to the emulator but for those of which `fails` names a failure.

    That is `500`, `503` or `403` as an answer, `cut` (the connection is reset after 1000 bytes of the body) or
    `done but cut` (it is reset instead of an answer).
    """

    def __init__(self, emulator: int) -> None:
        self.emulator = emulator
        self.fails: Callable[[str, str], str] = lambda method, target: ""
        self.cuts_beyond: int | None = None  # bytes of an upload after which its connection is reset
        self.knows_new = True  # whether what is there already keeps others from writing it as new
        self.failed: Counter[str] = Counter()
        self._one_by_one = threading.Lock()  # as the emulator serves anyway

    def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        """What the emulator says: status, headers, body."""
        with self._one_by_one:
            wanted = parse_qs(urlsplit(target).query).get("ifGenerationMatch")
            if self.knows_new and wanted and wanted[0] != self._generation(target, body):
                return 412, {}, b'{"error": {"code": 412, "message": "conditionNotMet"}}'
            return self._forward(method, target, headers, body)

    def _generation(self, target: str, body: bytes) -> str:
        parts = urlsplit(target)
        named = parse_qs(parts.query).get("name")
        name = named[0] if named else body.split(b'"name": "', 1)[1].split(b'"', 1)[0].decode()
        bucket = parts.path.split("/b/", 1)[1].split("/", 1)[0]
        status, _, found = self._forward("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", {}, b"")
        return str(json.loads(found)["generation"]) if status == 200 else "0"

    def _forward(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.emulator, timeout=30)
        try:
            connection.request(method, target, body or None, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    door: Door

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        how = self.door.fails(self.command, self.path)
        beyond = self.door.cuts_beyond
        if beyond is not None and size > beyond:
            self.door.failed["upload"] += 1
            self._reset(beyond)
            return
        if how:
            self.door.failed[how] += 1
        if how == "cut":
            self._reset(min(1000, size))
            return
        body = self.rfile.read(size)
        if how.isdigit():
            said = f'{{"error": {{"code": {how}, "message": "told to fail"}}}}'
            self._answer(int(how), {"Content-Type": "application/json"}, said.encode())
            return
        headers = {name: value for name in _PASSED_ON if (value := self.headers.get(name))}
        headers["Host"] = self.headers["Host"]  # it stands in what the emulator says, and is to lead here
        status, given, content = self.door.ask(self.command, self.path, headers, body)
        if how == "done but cut":
            self._reset(0)
            return
        kept = {name: given[name] for name in _GIVEN if given.get(name)}
        self._answer(status, kept, content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self, after: int) -> None:
        """Tear the connection down, after so many bytes of the body."""
        self.rfile.read(after)
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


class GcsServer:
    """The emulator at the URL `sound`, and behind its `door` at `failing`."""

    def __init__(self, door: Door, port: int) -> None:
        self.door = door
        self.sound, self.failing = (f"http://127.0.0.1:{number}" for number in (door.emulator, port))

    def new_place(self) -> GcsPlace:
        place = GcsPlace(self)
        place.connect().mkdir(place.bucket)
        return place


class GcsPlace:
    """A folder in a bucket of its own, as a `storing.Place`."""

    is_private = False
    options: Mapping[str, Any] = {}

    def __init__(self, server: GcsServer) -> None:
        self.server = server
        self.bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        self.url = f"gs://{self.bucket}/place"
        self.environment: Mapping[str, str] = {
            "STORAGE_EMULATOR_HOST": server.failing,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "FSSPEC_GS_TOKEN": "anon",
        }

    def connect(self) -> Any:
        import gcsfs

        return gcsfs.GCSFileSystem(
            project="test", token="anon", endpoint_url=self.server.sound, skip_instance_cache=True
        )

    @contextmanager
    def failing(self, share: float) -> Iterator[Counter[str]]:
        door, rng, lock = self.server.door, random.Random(5), threading.Lock()

        def fails(method: str, target: str) -> str:
            with lock:
                return rng.choice(FAILURES) if rng.random() < share else ""

        door.failed, door.fails = Counter(), fails
        try:
            yield door.failed
        finally:
            door.fails = lambda method, target: ""

    @contextmanager
    def cutting_uploads(self, beyond: int) -> Iterator[Counter[str]]:
        door = self.server.door
        door.failed, door.cuts_beyond = Counter(), beyond
        try:
            yield door.failed
        finally:
            door.cuts_beyond = None


@contextmanager
def serve_gcs() -> Iterator[GcsServer]:
    """To be known to this process, and to others, through `GcsPlace.environment`."""
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "-H", "127.0.0.1", "--port", str(port), "-M"]
    with tempfile.TemporaryDirectory() as folder, running(command, port, Path(folder) / "log"):
        door = Door(port)
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"door": door}))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="gcs", daemon=True)
        thread.start()
        try:
            yield GcsServer(door, server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
