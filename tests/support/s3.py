"""An S3 server on loopback, moto's, behind a door where requests fail as they are told to. Needs `moto[server]`."""

from __future__ import annotations

import logging
import random
import re
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

Wsgi = Callable[[Mapping[str, Any], Any], Iterable[bytes]]

FAILURES = ("500", "503", "cut", "done but cut")
_ANSWERS = {"500": b"InternalError", "503": b"SlowDown", "403": b"AccessDenied", "404": b"NoSuchKey"}
_ERROR = b"<?xml version='1.0'?><Error><Code>%b</Code><Message>told to fail</Message></Error>"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Door:
    """Lets requests through to `app`, but for those of which `fails` names a failure.

    That is an answer with `500`, `503` or `403`; `cut`, by which the connection is reset after 1000 bytes of the body;
    or `done but cut`, by which it is reset instead of an answer.
    """

    def __init__(self, app: Wsgi) -> None:
        self._app = app
        self.fails: Callable[[str, str], str] = lambda method, target: ""
        self.cuts_beyond: int | None = None  # bytes after which the connection of a longer PUT is reset
        self.failed: Counter[str] = Counter()
        self.ranges: list[str] = []  # that were asked for, as in the header

    def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        how = self.fails(environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        self.ranges.append(environ.get("HTTP_RANGE", ""))
        size = int(environ.get("CONTENT_LENGTH") or 0)
        if self.cuts_beyond is not None and environ["REQUEST_METHOD"] == "PUT" and size > self.cuts_beyond:
            self.failed["upload"] += 1
            reset(environ, self.cuts_beyond)
        if not how:
            return self._app(environ, start_response)
        self.failed[how] += 1
        if how == "cut":
            reset(environ, 1000)
        if how == "done but cut":
            list(self._app(environ, start_response))
            reset(environ)
        return refuse(environ, start_response, how)


def refuse(environ: Mapping[str, Any], start_response: Any, status: str) -> list[bytes]:
    """Answer `500`, `503`, `403` or `404`, once the body is read, which else would come before the next request."""
    body, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH")
    body.read() if environ.get("wsgi.input_terminated") else body.read(int(length or 0))
    start_response(f"{status} told to fail", [("Content-Type", "application/xml")])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [_ERROR % _ANSWERS[status]]


def reset(environ: Mapping[str, Any], after: int = 0) -> None:
    """Tear the connection of a request down, after so many bytes of its body. Always raises."""
    body, length = environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0)
    body.read(after if environ.get("wsgi.input_terminated") else min(after, length))
    connection: socket.socket = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError("told to")


@contextmanager
def served(*apps: Callable[[Wsgi], Wsgi]) -> Iterator[tuple[str, ...]]:
    """One S3 behind each of these, at the URLs that it gives."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    s3: Any = DomainDispatcherApplication(create_backend_app)
    with ExitStack() as stack:
        urls = []
        for app in apps:
            door: Any = app(s3)
            server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=MotoRequestHandler)
            thread = threading.Thread(target=server.serve_forever, name="s3", daemon=True)
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            urls.append(f"http://127.0.0.1:{server.server_address[1]}")
        yield tuple(urls)


class Bucket:
    """A new bucket, as a `storing.Place`."""

    is_private = False

    def __init__(self, door: Door, sound: str, failing: str) -> None:
        self._door, self._sound = door, sound
        self.environment: Mapping[str, str] = {**CREDENTIALS, "AWS_ENDPOINT_URL": failing}
        self.options: Mapping[str, Any] = {}
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.connect().mkdir(name)
        self.url = f"s3://{name}/place"

    def connect(self) -> Any:
        import fsspec

        return fsspec.filesystem("s3", key="test", secret="test", endpoint_url=self._sound, skip_instance_cache=True)

    @contextmanager
    def failing(self, share: float) -> Iterator[Counter[str]]:
        rng, lock = random.Random(5), threading.Lock()

        def fails(method: str, target: str) -> str:
            with lock:
                return rng.choice(FAILURES) if rng.random() < share else ""

        self._door.failed, self._door.fails = Counter(), fails
        try:
            yield self._door.failed
        finally:
            self._door.fails = lambda method, target: ""

    def answers(self, fails: Callable[[str, str], str]) -> None:
        """From now on requests, by method and target, are answered as the `Door` says."""
        self._door.fails = fails

    @contextmanager
    def slow(self, method: str, seconds: float) -> Iterator[None]:
        """Each request with `method` takes so much longer."""

        def waits(asked: str, target: str) -> str:
            if asked == method:
                time.sleep(seconds)
            return ""

        self._door.fails = waits
        try:
            yield
        finally:
            self._door.fails = lambda method, target: ""

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, str]]]:
        """Method and target of each request."""
        asked: list[tuple[str, str]] = []

        def records(method: str, target: str) -> str:
            asked.append((method, target))
            return ""

        with self.answering(records):
            yield asked

    @contextmanager
    def measuring(self) -> Iterator[Callable[[], int]]:
        """Gives how many bytes the requests since then have asked for; those for whole files count nothing."""
        asked: list[str] = []
        self._door.ranges = asked
        pairs = (found for found in (re.fullmatch(r"bytes=(\d+)-(\d+)", each) for each in asked) if found)
        yield lambda: sum(int(pair[2]) - int(pair[1]) + 1 for pair in pairs)

    @contextmanager
    def refusing(self, status: str, name: str) -> Iterator[Counter[str]]:
        """Requests for a file are answered with `500`, `503`, `403` or `404`, and counted."""
        self._door.failed = Counter()
        with self.answering(lambda method, target: status if target.partition("?")[0].endswith(name) else ""):
            yield self._door.failed

    @contextmanager
    def hanging(self, name: str) -> Iterator[None]:
        """Requests for a file are not answered before the end."""
        end = threading.Event()
        try:
            with self.answering(lambda method, target: "503" if name in target and end.wait() else ""):
                yield
        finally:
            end.set()

    @contextmanager
    def answering(self, fails: Callable[[str, str], str]) -> Iterator[None]:
        """What `fails` says of method and target of a request is its answer; as usual if that is nothing."""
        self._door.fails = fails
        try:
            yield
        finally:
            self._door.fails = lambda method, target: ""

    @contextmanager
    def cutting_uploads(self, beyond: int) -> Iterator[Counter[str]]:
        self._door.failed, self._door.cuts_beyond = Counter(), beyond
        try:
            yield self._door.failed
        finally:
            self._door.cuts_beyond = None


@contextmanager
def serve_buckets() -> Iterator[Callable[[], Bucket]]:
    """A server, and what makes another bucket in it; to be known to this process through `Bucket.environment`."""
    doors: list[Door] = []

    def door(app: Wsgi) -> Wsgi:
        doors.append(Door(app))
        return doors[0]

    with served(lambda app: app, door) as (sound, failing):
        yield lambda: Bucket(doors[0], sound, failing)


def enter(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at `s3://` is in this bucket."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()  # of another test's server, which the variables named
