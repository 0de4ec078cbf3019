"""What any2ds promises of every store, as tests: lists and files in, every format out, whatever fails meanwhile.

Subclass `StoreContract` with a fixture `place`: a server of that kind, with something in front of it that fails.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
import pytest

from any2ds import download, retry, verify
from any2ds.core import plugins
from any2ds.core.errors import DamagedShard
from any2ds.core.layout import LOCK_FILE, RUN_FILE, TEMPORARY_FOLDER
from any2ds.core.processes.signals import Terminated, raise_for
from any2ds.storage.lock.lease import Intervals
from any2ds.storage.lock.run_lock import locked
from any2ds.testing.pixel import jpg
from any2ds.testing.server import Server, serve
from any2ds.testing.writing import read
from tests.support.servers import tied

FORMATS = plugins.names("writers")

_ROWS_PER_SHARD = 4
_SHARDS = 3
_FILES = 10  # in the store, two of which come late; two further rows are of a server on http
_LATE = (2, 6)  # files that are not there at first
_SIZE = 50_000  # bytes of each
_CUT_BEYOND = _SIZE // 2  # bytes of an upload
_SOON = 60.0  # seconds, after which nothing will come any more
_LOOK = 0.05  # seconds between two looks
_GRACE = 0.5  # seconds that a run has to end in good order
_DATA = re.compile(r"(\d{5})\.(?!parquet$)\w+")
_JSON = re.compile(rf"{re.escape(RUN_FILE)}|\d{{5}}_stats\.json")


class Place(Protocol):
    """A folder in a running store, with nothing in it at first."""

    url: str
    environment: Mapping[str, str]  # what other processes need to reach it
    options: Mapping[str, Any]  # of any2ds, such as storage_options
    is_private: bool  # no other process can see it

    def connect(self) -> Any:
        """A new fsspec file system of it, which never fails, for one thread."""
        ...

    def failing(self, share: float) -> AbstractContextManager[Counter[str]]:
        """While it lasts so many requests of any2ds fail, in all the ways that there are; counted by these."""
        ...

    def cutting_uploads(self, beyond: int) -> AbstractContextManager[Counter[str]]:
        """While it lasts each upload breaks off after so many bytes, or a few more; the counter counts them."""
        ...


def reaching(place: Place) -> dict[str, Any]:
    """The options of a run over rows in the store, and with its dataset there."""
    return {"allow_schemes": place.url.partition(":")[0], **place.options}


def body(number: int) -> bytes:
    """What is in file `number`: a picture, for all that its first bytes tell."""
    return jpg(hashlib.shake_128(b"%d" % number).digest(_SIZE))


class Stock:
    """What is in the store to begin with: files, and lists of their URLs; and what a dataset of these must hold."""

    def __init__(self, place: Place, server: Server) -> None:
        self.place, self._fs = place, place.connect()
        self.root = str(self._fs._strip_protocol(place.url))
        stored = [f"{place.url}/items/{number}.jpg" for number in range(_FILES)]
        self.urls = [*stored, server.url("10.jpg"), server.url("11.jpg")]
        for number in range(_FILES):
            if number not in _LATE:
                self._put(f"items/{number}.jpg", body(number))
        self._put("lists/a.txt", "".join(f"{url}\n" for url in self.urls[:7]).encode())
        self._put("lists/b.txt", "".join(f"{url}\n" for url in self.urls[7:]).encode())
        self._put("whole.jsonl", "".join(json.dumps({"url": url}) + "\n" for url in self.urls).encode())

    def _put(self, name: str, content: bytes) -> None:
        path = f"{self.root}/{name}"
        self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        self._fs.pipe_file(path, content)

    def complete(self) -> None:
        """Now all files are there."""
        for number in _LATE:
            self._put(f"items/{number}.jpg", body(number))

    def options(self, name: str, output_format: str, **options: Any) -> dict[str, Any]:
        """Of a run with its dataset in the folder `name`."""
        return {
            "url_list": f"{self.place.url}/lists/*.txt",
            "output_folder": f"{self.place.url}/{name}",
            "output_format": output_format,
            "number_sample_per_shard": _ROWS_PER_SHARD,
            "distributor": "inline",
            "timeout": 120,
            "quiet": True,
            **reaching(self.place),
            **options,
        }

    def check(self, name: str, output_format: str, missing: Sequence[int], scratch: Path) -> None:
        """The dataset holds each row once, with the bytes of its file; nothing else is in its folder."""
        writer = plugins.load("writers", output_format)
        files = self.copy(name, scratch)
        names = {path.name for path in files.iterdir()}
        rows: dict[str, dict[str, Any]] = {}  # by key: what a retry brought stands in a later shard
        stored: dict[str, bytes] = {}
        shards = sorted(int(name[:5]) for name in names if name.endswith("_stats.json"))
        assert shards[:_SHARDS] == list(range(_SHARDS))
        for shard in shards:
            table = pq.read_table(files / f"{shard:05d}.parquet", columns=["key", "url", "status"])
            rows |= {row["key"]: row for row in table.to_pylist()}
            if writer.extension is None:
                continue
            ending = writer.extension and f".{writer.extension}"
            stored |= {key: data for key, _, data in read(writer, files / f"{shard:05d}{ending}")}
        if writer.extension is not None:
            numbers = range(len(self.urls))
            assert stored == {key_of(number): body(number) for number in numbers if number not in missing}
        assert [(row["key"], row["url"], row["status"]) for row in rows.values()] == [
            (key_of(number), url, "failed_to_download" if number in missing else "success")
            for number, url in enumerate(self.urls)
        ]
        assert not [name for name in names if not re.fullmatch(r"\.any2ds|\d{5}.*|[a-z_]+\.json", name)]

    def copy(self, name: str, scratch: Path) -> Path:
        """The dataset as it is now, on this machine."""
        target = scratch / f"copy-{time.monotonic_ns()}"
        target.mkdir(parents=True)
        for path, content in contents(self._fs, f"{self.root}/{name}"):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
        return target

    def names(self, name: str) -> list[str]:
        """Of the files of a dataset."""
        return [path for path, _ in listed(self._fs, f"{self.root}/{name}")]


def key_of(number: int) -> str:
    return "{:05d}{}".format(*divmod(number, _ROWS_PER_SHARD))


def listed(fs: Any, root: str) -> list[tuple[str, int]]:
    """The files below a folder, relative to it, and their sizes."""
    fs.invalidate_cache()
    try:
        found = fs.find(root, detail=True)
    except FileNotFoundError:
        return []
    return [(str(path)[len(root) + 1 :], int(info.get("size") or 0)) for path, info in sorted(found.items())]


def contents(fs: Any, root: str) -> Iterator[tuple[str, bytes]]:
    for name, _ in listed(fs, root):
        try:
            yield name, bytes(fs.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            continue


class Observer:
    """Looks at a dataset over and over while it is made, as somebody would who trains with what there is already."""

    def __init__(self, place: Place, name: str, output_format: str, scratch: Path) -> None:
        self._fs = place.connect()
        self._root = f"{self._fs._strip_protocol(place.url)}/{name}"
        self._writer = plugins.load("writers", output_format)
        self._scratch = scratch
        self._known: set[tuple[str, int]] = set()  # name and size of what was found whole
        self.problems: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        ends = threading.Event()

        def watch() -> None:
            while not ends.wait(_LOOK):
                self._look()

        thread = threading.Thread(target=watch, name="observer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
        self._look()
        assert not self.problems

    def _look(self) -> None:
        for name, size in listed(self._fs, self._root):
            if name.startswith((TEMPORARY_FOLDER, LOCK_FILE)) or (name, size) in self._known:
                continue
            try:
                content = bytes(self._fs.cat_file(f"{self._root}/{name}"))
            except FileNotFoundError:  # removed meanwhile
                continue
            try:
                self._check(name, content)
                self._known.add((name, size))
            except (DamagedShard, ValueError, OSError, AssertionError) as error:
                self.problems.append(f"{name}, {len(content)} bytes: {error!r}")

    def _check(self, name: str, content: bytes) -> None:
        if _JSON.fullmatch(name):
            json.loads(content)
        elif name.endswith(".parquet"):
            pq.read_table(io.BytesIO(content))
        elif name.endswith(".jpg"):
            assert any(content == body(number) for number in range(_ROWS_PER_SHARD * _SHARDS)), "not the whole file"
        elif _DATA.fullmatch(name):
            copy = self._scratch / f"seen-{threading.get_ident()}-{name}"
            copy.write_bytes(content)
            read(self._writer, copy)
            copy.unlink()


class StoreContract:
    """Each test has a place of its own."""

    @pytest.fixture(autouse=True)
    def quick_lock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody else wants the folder: no need to wait and see who has it."""
        monkeypatch.setattr("any2ds.run.download.locked", partial(locked, intervals=Intervals(settle=0.1)))

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Server]:
        """On http, where the rows of the last shard wait to be let go for the second time."""
        media = tmp_path / "media"
        media.mkdir()
        for number in (10, 11):
            (media / f"{number}.jpg").write_bytes(body(number))
        with serve(media, {"11.jpg": ["hold"]}) as server:
            yield server

    @pytest.fixture
    def stock(self, place: Place, server: Server) -> Stock:
        return Stock(place, server)

    @pytest.fixture
    def scratch(self, tmp_path: Path) -> Path:
        (tmp_path / "scratch").mkdir()
        return tmp_path / "scratch"

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_from_a_list_and_files_in_it_to_every_format(
        self, place: Place, stock: Stock, server: Server, scratch: Path, output_format: str
    ) -> None:
        server.release()
        with Observer(place, "out", output_format, scratch).watching():
            report = download(**stock.options("out", output_format, url_list=f"{place.url}/whole.jsonl"))
            assert (report.successes, report.status_dict.get("not_found")) == (10, 2)
            stock.check("out", output_format, _LATE, scratch)
            stock.complete()
            again = retry(f"{place.url}/out", codes="all", distributor="inline", quiet=True, **reaching(place))
            assert again.successes == 2
        stock.check("out", output_format, (), scratch)
        assert verify(f"{place.url}/out", quiet=True, **place.options).ok

    def test_rows_with_two_urls_are_retried_where_one_failed(self, place: Place, stock: Stock, server: Server) -> None:
        """The second URL of a row is the first of the row before."""
        server.release()
        rows = [{"url": url, "second": stock.urls[n - 1]} for n, url in enumerate(stock.urls)]
        given = {"url_list": rows, "url_col": "image:url,mask:second"}
        report = download(**stock.options("out", "webdataset", **given))
        late = {"success": len(stock.urls) - len(_LATE), "not_found": len(_LATE)}
        assert report.members == {"image": late, "mask": late}
        assert report.successes == len(stock.urls) - 2 * len(_LATE)
        stock.complete()
        again = retry(f"{place.url}/out", codes="all", distributor="inline", quiet=True, **reaching(place))
        assert again.successes == 2 * len(_LATE)
        assert verify(f"{place.url}/out", quiet=True, **place.options).ok

    @pytest.mark.parametrize("output_format", ["files", "webdataset"])
    def test_one_request_in_twenty_may_fail(
        self, place: Place, stock: Stock, server: Server, scratch: Path, output_format: str
    ) -> None:
        server.release()
        with place.failing(0.05) as failed, Observer(place, "out", output_format, scratch).watching():
            report = download(**stock.options("out", output_format, retries=5))
            assert (report.successes, report.shards, report.failed_shards) == (10, _SHARDS, ())
            stock.complete()
            options = {"codes": "all", "retries": 5, "distributor": "inline", "quiet": True}
            assert retry(f"{place.url}/out", **options, **reaching(place)).successes == 2
            assert download(**stock.options("out", output_format)).skipped_shards == _SHARDS
        assert failed.total()
        stock.check("out", output_format, (), scratch)

    def test_killed_amid_uploads_and_again_it_goes_on_each_time(
        self, place: Place, stock: Stock, server: Server, scratch: Path
    ) -> None:
        """By each signal once. The last shard waits for a row that does not end, which SIGTERM leaves a grace to."""
        stock.complete()
        output_format = "webdataset"
        options = stock.options("out", output_format, grace=0)
        with Observer(place, "out", output_format, scratch).watching():
            with place.cutting_uploads(_CUT_BEYOND) as cut:
                interrupt(place, options, lambda: cut.total() > 1, signal.SIGINT if place.is_private else _KILL)
            assert not [name for name in stock.names("out") if _DATA.fullmatch(name)]
            finished = [f"{shard:05d}_stats.json" for shard in range(_SHARDS - 1)]
            graceful = {**options, "grace": _GRACE}
            interrupt(place, graceful, lambda: set(finished) <= set(stock.names("out")), signal.SIGTERM)
            asked = server.counts["11.jpg"]
            _interrupt_here(options, lambda: server.counts["11.jpg"] > asked, signal.SIGINT)
            server.release()
            report = download(**options)
        assert (report.skipped_shards, report.shards) == (_SHARDS - 1, 1)
        stock.check("out", output_format, (), scratch)


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_CODES = {signal.SIGINT: (-signal.SIGINT, 130), signal.SIGTERM: (143,)}  # Python ends by the former itself


def interrupt(place: Place, options: Mapping[str, Any], when: Callable[[], bool], how: signal.Signals) -> None:
    """Start a run, in a process of its own unless the store is of this one, and end it so at that moment."""
    if place.is_private:
        _interrupt_here(options, when, how)
        return
    environment = {**os.environ, **place.environment}
    command = [sys.executable, "-c", _RUN, json.dumps(dict(options))]
    process = subprocess.Popen(tied(command, _KILL), env=environment, stderr=subprocess.PIPE)
    try:
        _wait(when, lambda: process.poll() is None)
        process.send_signal(how)
        _, message = process.communicate(timeout=_SOON)
    finally:
        process.kill()
        process.wait()
    assert process.returncode in _CODES.get(how, (-how,)), message.decode()


_RUN = "import json, sys; from any2ds import download; download(**json.loads(sys.argv[1]))"


def _interrupt_here(options: Mapping[str, Any], when: Callable[[], bool], how: signal.Signals) -> None:
    ended = threading.Event()

    def wait_and_interrupt() -> None:
        _wait(when, lambda: not ended.is_set())
        if not ended.is_set():
            signal.raise_signal(how)

    before = signal.signal(how, raise_for)  # as on the command line, and whatever comes late does not end the tests
    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt if how == signal.SIGINT else Terminated):
            download(**options)
    finally:
        ended.set()
        thread.join()
        signal.signal(how, before)


def _wait(when: Callable[[], bool], goes_on: Callable[[], bool]) -> None:
    until = time.monotonic() + _SOON
    while goes_on() and not when():
        assert time.monotonic() < until, "it does not come to that"
        time.sleep(_LOOK)
