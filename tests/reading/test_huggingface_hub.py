"""`any2ds.load` of a dataset on Hugging Face's hub: its library lists the files, ranges of them come by plain HTTP."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import any2ds
from any2ds.core.errors import DamagedShard

REPO = "me/pictures"


class Hub(BaseHTTPRequestHandler):
    """The repository is the working directory, as `api` and `resolve` of the hub give it."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str | None]]  # file and range of each that was read
    status = 200  # of the answers for data files

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(rf"/api/datasets/{REPO}/tree/main(?:/(.*))?", path):
            folder = Path(found[1] or ".")
            self.answer([info_of(each) for each in sorted(folder.iterdir())] if folder.is_dir() else None)
        elif found := re.fullmatch(rf"/datasets/{REPO}/resolve/main/(.*)", path):
            self.file(Path(found[1]))
        else:
            is_repository = path in (f"/api/datasets/{REPO}", f"/api/datasets/{REPO}/revision/main")
            self.answer({"id": REPO, "sha": "0" * 40, "siblings": []} if is_repository else None)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
        self.answer([info_of(Path(path)) for path in asked if Path(path).exists()])

    def file(self, path: Path) -> None:
        wanted, content = self.headers.get("Range"), path.read_bytes() if path.is_file() else None
        type(self).asked.append((path.name, wanted))
        if content is None or (self.status != 200 and path.suffix == ".tar"):
            self.answer(None, self.status if content is not None else 404)
            return
        headers = {"ETag": f'"{len(content)}"', "X-Repo-Commit": "0" * 40}
        if wanted is not None:
            start, stop = (int(number) for number in re.findall(r"\d+", wanted))
            headers["Content-Range"] = f"bytes {start}-{min(stop, len(content) - 1)}/{len(content)}"
            content = content[start : stop + 1]
        self.reply(200 if wanted is None else 206, headers, content)

    def answer(self, value: Any, status: int = 404) -> None:
        content = {"error": f"told to answer {status}"} if value is None else value
        self.reply(status if value is None else 200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def info_of(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path.as_posix()}
    return {"type": "file", "oid": f"{path.stat().st_size:040d}", "size": path.stat().st_size, "path": path.as_posix()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Hub]]]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # as it is for the other tests
    handler = type("OwnHub", (Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_samples_are_read_by_ranges(dataset: Callable[..., Any], hub: tuple[str, type[Hub]]) -> None:
    made, (endpoint, handler) = dataset("webdataset"), hub
    options = {"hf": {"endpoint": endpoint, "token": False}}
    ds = any2ds.load(f"hf://datasets/{REPO}/dataset", storage_options=options, retry_seconds=0)
    keys = list(made.files)
    handler.asked.clear()
    assert ds[9]["data"] == made.files[keys[9]]
    assert [sample["key"] for sample in ds[[20, 3]]] == [keys[20], keys[3]]
    ranges = [wanted for name, wanted in handler.asked if name.endswith(".tar")]
    assert len(ranges) == 3
    assert all(ranges)
    assert {sample["key"]: sample["data"] for sample in ds} == dict(made.files)
    for status, text in ((403, "403|Forbidden|denied"), (404, "404|no such|not found"), (500, "500")):
        handler.status = status
        with pytest.raises(DamagedShard, match=rf"(?is)shard 0000\d\.tar of 'hf://.*({text})"):
            ds[9]
    handler.status = 200
    assert ds[9]["key"] == keys[9]
