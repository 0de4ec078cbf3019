"""A list as the web is: any2ds against img2dataset on 3,000 images of which some are gone, slow, busy or silent.

    python benchmarks/messy.py --python=.venv-img2dataset/bin/python [--rows=3000] [--pairs=3] [--retries=0]
    python benchmarks/messy.py hosts        # any2ds alone: hosts that are busy now and then, or mean it

Of the rows, 61 % are on one of eight hosts; 10 % are 404, 5 % web pages, 1.8 % answer 503 once, 0.6 % never answer
and 4 % take 1 to 5 s. Both tools have the same command line, by `--preset=img2dataset`, and each run a server of its
own, on loopback. A run is the whole command. A row is lost if img2dataset stores it and any2ds does not.

`hosts` prints the seconds and the stored rows of lists of a single host that is quick but for some answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds and tests, where not installed

from tests.support.pictures import jpeg_of, photograph

HOSTS = 8
_BUSIEST = 0.61  # share of the rows on one host
_SHARES = {"404": 0.107, "page": 0.049, "once503": 0.018, "never": 17 / 3000, "slow": 0.04}
_PAGE = b"<!DOCTYPE html><html><body>Please sign in</body></html>"
_OPTIONS = ("--output_format=webdataset", "--image_size=256", "--processes_count=2")


class Server(asyncio.Protocol):
    """Answers `/<kind>/<milliseconds>/<number>`; a host that is `limited` takes so many requests a second."""

    image = b""
    asked: ClassVar[set[str]] = set()  # paths that have answered 503
    tokens, refilled = 20.0, 0.0  # requests that the limited host takes at once; when they were last counted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            request, self._received = self._received[:end], self._received[end + 4 :]
            path = request.split(b" ", 2)[1].decode()
            if path == "/robots.txt":
                self._send(404, b"")
            else:
                self._answer(path)

    def _answer(self, path: str) -> None:
        _, kind, milliseconds, _ = path.split("/")
        status, body, page = 200, self.image, kind == "page"
        if kind == "never":
            return
        if kind == "404":
            status, body = 404, b""
        elif page:
            body = _PAGE
        elif kind == "once503" and path not in self.asked:
            self.asked.add(path)
            status, body = 503, b""
        elif kind.startswith("limit") and not self._has_token(float(kind.removeprefix("limit"))):
            status, body = 429, b""
        asyncio.get_running_loop().call_later(int(milliseconds) / 1000, self._send, status, body, page)

    @classmethod
    def _has_token(cls, rate: float) -> bool:
        now = time.monotonic()
        cls.tokens = min(rate, cls.tokens + (now - cls.refilled) * rate)
        cls.refilled = now
        if cls.tokens < 1:
            return False
        cls.tokens -= 1
        return True

    def _send(self, status: int, body: bytes, page: bool = False) -> None:
        if not self._transport.is_closing():
            kind = "text/html" if page else "image/jpeg"
            head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)


async def _serve() -> None:
    Server.image = jpeg_of(photograph(320, 240, 1), 20_000)
    listener = await asyncio.get_running_loop().create_server(Server, "0.0.0.0", 0, backlog=4096)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def server() -> Iterator[int]:
    """A server in a process of its own: its port, on all addresses of loopback."""
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def messy(rows: int, seed: int = 1) -> list[str]:
    """Paths with their host's number in front: `3/ok/80/17`."""
    rng = random.Random(seed)
    kinds = [kind for kind, share in _SHARES.items() for _ in range(round(share * rows))]
    kinds += ["ok"] * (rows - len(kinds))
    rng.shuffle(kinds)
    paths = []
    for number, kind in enumerate(kinds):
        host = 0 if rng.random() < _BUSIEST else rng.randrange(1, HOSTS)
        milliseconds = rng.randrange(1000, 5000) if kind == "slow" else rng.randrange(20, 150)
        paths.append(f"{host}/{kind}/{milliseconds}/{number}")
    return paths


def one_host(rows: int, usual: str, odd: Mapping[str, int], seed: int = 1) -> list[str]:
    """`usual` rows and, among them by chance, so many of each of the odd ones."""
    kinds = [kind for kind, count in odd.items() for _ in range(count)]
    kinds += [usual] * (rows - len(kinds))
    random.Random(seed).shuffle(kinds)
    return [f"0/{kind}/{number}" for number, kind in enumerate(kinds)]


def run(command: list[str], paths: list[str], scratch: Path) -> tuple[float, set[str]]:
    """Seconds of the whole command, and the paths that it stored."""
    out = scratch / "out"
    shutil.rmtree(out, ignore_errors=True)
    with server() as port:
        urls = [f"http://127.0.0.{1 + int(path[0])}:{port}{path[1:]}" for path in paths]
        (scratch / "urls.txt").write_text("\n".join(urls) + "\n", encoding="ascii")
        started = time.monotonic()
        ran = subprocess.run(
            [*command, f"--url_list={scratch / 'urls.txt'}", f"--output_folder={out}"], capture_output=True, text=True
        )
        seconds = time.monotonic() - started
    if ran.returncode:
        raise RuntimeError(f"{command}: {ran.stderr[-2000:]}")
    stored: set[str] = set()
    for file in out.glob("*.parquet"):
        table = pq.read_table(file, columns=["url", "status"]).to_pydict()
        stored |= {
            url.split(":", 2)[2].partition("/")[2]
            for url, status in zip(table["url"], table["status"], strict=True)
            if status == "success"
        }
    return seconds, stored


def compare(python: str, rows: int, pairs: int, retries: int) -> None:
    tools = {
        "img2dataset": [str(Path(python).with_name("img2dataset"))],
        "any2ds": [sys.executable, "-m", "any2ds", "--preset=img2dataset"],
    }
    paths, ratios, lost = messy(rows), [], []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(pairs):
            found = {
                name: run([*command, *_OPTIONS, f"--retries={retries}"], paths, Path(scratch))
                for name, command in tools.items()
            }
            (theirs, kept), (ours, stored) = found["img2dataset"], found["any2ds"]
            ratios.append(ours / theirs)
            lost.append(len(kept - stored))
            print(
                f"img2dataset {theirs:.1f} s, {len(kept)} stored; any2ds {ours:.1f} s, {len(stored)} stored, "
                f"{lost[-1]} lost that img2dataset keeps: {ratios[-1]:.2f} of its time",
                flush=True,
            )
    print(f"median: {statistics.median(ratios):.2f} of img2dataset's time, at most {max(lost)} rows lost")


_LISTS = {
    "3,000 of 100 ms": (one_host(3000, "ok/100", {}), ()),
    "21 of them 503 once": (one_host(3000, "ok/100", {"once503/100": 21}), ("--retries=2",)),
    "50 of them 503 once": (one_host(3000, "ok/100", {"once503/100": 50}), ("--retries=2",)),
    "200 of 20 ms, 12 silent, 20 of 4.5 s": (
        [*one_host(200, "ok/20", {}), *(f"0/never/0/n{n}" for n in range(12)), *(f"0/ok/4500/s{n}" for n in range(20))],
        (),
    ),
    "300, 20 a second": (one_host(300, "limit20/50", {}), ()),
}


def hosts() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name, (paths, options) in _LISTS.items():
            command = [sys.executable, "-m", "any2ds", "--output_format=webdataset", "--quiet", *options]
            seconds, stored = run(command, paths, Path(scratch))
            print(f"{name:<40} {seconds:>5.1f} s, {len(stored)} of {len(paths)} stored", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("compare", "hosts", "serve"), default="compare")
    parser.add_argument("--python", help="a Python with img2dataset (requirements-img2dataset.txt)")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--retries", type=int, default=0)
    given = parser.parse_args()
    if given.what == "serve":
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve())
    elif given.what == "hosts":
        hosts()
    elif given.python:
        compare(given.python, given.rows, given.pairs, given.retries)
    else:
        parser.error("--python is needed to compare")


if __name__ == "__main__":
    main()
