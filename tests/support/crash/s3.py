"""An S3 server on loopback, moto's, in front of which every so many requests fail: 500, 503, cut, or done but cut."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from any2ds.core.layout import LOCK_FILE, PROBES, STATE_FOLDER
from tests.support.crash.moments import Look
from tests.support.crash.source import Spans
from tests.support.s3 import CREDENTIALS, FAILURES, Wsgi, refuse, reset, served

_KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
_FOLDER = "dataset"
_APP = re.compile(r"\bapp/(\S+)")  # of the user agent, by AWS_SDK_UA_APP_ID
_OF_NOBODY = (LOCK_FILE, PROBES)  # what a command may write before it has the dataset
_SETTLES_WITHIN = 10.0  # seconds, until requests that are being answered are


class FailingApp:
    """Lets requests through to `app`, but for a share of them."""

    def __init__(self, app: Wsgi, rng: random.Random, share: float, spans: Spans) -> None:
        self._app, self._rng, self._share, self._spans = app, rng, share, spans
        self._lock = threading.Lock()
        self.failed: Counter[str] = Counter()
        self.requests = 0
        self.objects: dict[str, int] = {}  # name below the folder -> number of the request that wrote it
        self.uploading: Counter[str] = Counter()

    def __call__(self, environ: Mapping[str, Any], start_response: Any) -> Iterable[bytes]:
        name = str(environ["PATH_INFO"]).partition(f"/{_FOLDER}/")[2]
        writes = environ["REQUEST_METHOD"] == "PUT" and bool(name)
        with self._lock:
            self.requests += 1
            fails = self._rng.choice(FAILURES) if self._rng.random() < self._share else ""
            self.failed[fails] += bool(fails)
            self.uploading[name] += writes
        try:
            if fails[:1].isdigit():
                return refuse(environ, start_response, fails)
            if fails == "cut":
                reset(environ)
            answer = list(self._app(environ, start_response))
            with self._lock:
                if environ["REQUEST_METHOD"] not in ("GET", "HEAD") and not name.startswith(_OF_NOBODY):
                    self._spans.add("".join(_APP.findall(environ.get("HTTP_USER_AGENT", ""))))
                if writes:
                    self.objects[name] = self.requests
                elif environ["REQUEST_METHOD"] == "DELETE":
                    self.objects.pop(name, None)
            if fails:
                reset(environ)
            return answer
        finally:
            with self._lock:
                self.uploading[name] -= writes

    def look(self) -> Look:
        with self._lock:
            files = {_directly(name): number for name, number in self.objects.items()}
            uploading = frozenset(name for name, count in self.uploading.items() if count)
            return Look(files, uploading)

    def settle(self) -> None:
        """Wait until whatever is being uploaded has been."""
        until = time.monotonic() + _SETTLES_WITHIN
        while self.look().staged and time.monotonic() < until:
            time.sleep(0.01)


def _directly(name: str) -> str:
    """What it is, or is in, of what lies directly in the dataset or in its folder for the state."""
    parts = name.split("/")
    return "/".join(parts[: 2 if parts[0] == STATE_FOLDER else 1])


class Bucket:
    """A `Place` there."""

    def __init__(self, app: FailingApp, client: Any, name: str, endpoint: str, scratch: Path) -> None:
        self.url = f"s3://{name}/{_FOLDER}"
        self._app, self._client, self._name = app, client, name
        self._copies = scratch / "copies"
        self._number = 0
        self._contents: dict[tuple[str, str], bytes] = {}  # of objects, by name and ETag
        self.environment: Mapping[str, str] = {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}

    def look(self) -> Look:
        return self._app.look()

    def dataset(self) -> Path:
        self._app.settle()
        self._number += 1
        copy = self._copies / str(self._number)
        copy.mkdir(parents=True)
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name):
            for entry in page.get("Contents", ()):
                path = copy / str(entry["Key"]).partition("/")[2]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._content(entry["Key"], entry["ETag"]))
        return copy

    def _content(self, key: str, version: str) -> bytes:
        if (key, version) not in self._contents:
            self._contents[key, version] = self._client.get_object(Bucket=self._name, Key=key)["Body"].read()
        return self._contents[key, version]

    def change(self, name: str, content: bytes | None) -> None:
        place = {"Bucket": self._name, "Key": f"{_FOLDER}/{name}"}
        if content is None:
            self._client.delete_object(**place)
            self._app.objects.pop(name, None)
        else:
            self._client.put_object(**place, Body=content)


@contextmanager
def failing_bucket(
    name: str, seed: str, scratch: Path, spans: Spans, share: float = 0.1
) -> Iterator[tuple[Bucket, FailingApp]]:
    """A new bucket; what the test itself asks for does not fail. `spans` tell when clients change something there."""
    import boto3

    apps: list[FailingApp] = []

    def failing(app: Wsgi) -> Wsgi:
        apps.append(FailingApp(app, random.Random(seed), share, spans))
        return apps[0]

    with served(lambda app: app, failing) as (ours, theirs):
        client = boto3.client("s3", endpoint_url=ours, region_name="us-east-1", **_KEYS)
        client.create_bucket(Bucket=name)
        yield Bucket(apps[0], client, name, theirs, scratch), apps[0]
        client.close()
