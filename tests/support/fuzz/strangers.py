"""Whole commands on what strangers prepare, made by chance: answers of servers, files, datasets that they give away.

    python -m tests.support.fuzz.strangers answers --count=500 --seed=1     # each by libcurl and by requests
    python -m tests.support.fuzz.strangers files --count=10000 --seed=1     # 100 files a run
    python -m tests.support.fuzz.strangers datasets --count=200 --seed=1    # each with all commands

A batch is a function of a seed and its number (`--only=17`). What is wrong with it is printed: a command that ends in a
traceback, does not end, takes more memory than the bound or touches what is not its own, a row without an outcome, a
shard that is not made, a body that is another row's. It runs in a network namespace of its own, so that damaged
addresses lead nowhere.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import any2ds
from tests.support import stored
from tests.support.fuzz.damage import damaged
from tests.support.fuzz.seeds import File, seeds

SECONDS = 150.0  # that a command may take
MEMORY = 1_500_000_000  # bytes that a process may take
_GOOD = 4  # of five rows of a server that answers by chance, so many get what they ask for
_HOST, _CLEAN = "127.0.0.1", "127.0.0.2"  # the latter only has what is asked for
# A shard of a damaged dataset cannot be made again, and the message says which file is damaged.
_IN_WORDS = (
    r"could not be written, the first \(\d+\):.*(cannot be understood|cannot be read|is missing|no file|disagree)"
)
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    code: int | None  # None if it had to be killed
    said: str
    peak: int  # bytes of memory of its largest process

    @property
    def problem(self) -> str:
        """What is wrong with it, whatever it was asked for; "" if nothing is."""
        said = re.sub(_IN_WORDS, "", self.said)
        words = re.search(r"unexpected \w+: |Traceback|could not be written|FAILED", said)
        if self.code is None:
            return f"it has not ended within {SECONDS:g} s"
        if words or self.code not in (0, 1, 2, 3, 4):
            return f"exit code {self.code}: {self.said[-2000:]}"
        return f"{self.peak >> 20} MB of memory" if self.peak > MEMORY else ""


def command(folder: Path, *words: str) -> Ended:
    """Runs the command line in a process that is forked off, and so takes no second to start."""
    said = folder / "said"
    pid = os.fork()
    if pid == 0:
        _in_child(folder, said, words)
    until = time.monotonic() + SECONDS
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return Ended(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"), usage.ru_maxrss * 1024)
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            return Ended(None, said.read_text(errors="replace"), 0)
        time.sleep(0.005)


def _in_child(folder: Path, said: Path, words: Sequence[str]) -> None:
    from any2ds.cli import main

    try:
        os.setsid()
        os.chdir(folder)
        with said.open("wb") as file, open(os.devnull, "rb") as nothing:
            for number, source in enumerate((nothing, file, file)):
                os.dup2(source.fileno(), number)
        main(words)
    finally:
        os._exit(99)


# --- answers ---


def answer(rng: random.Random) -> list[bytes | float]:
    """What a server sends: pieces, with pauses in seconds between some; then the connection is closed, or kept."""
    body = rng.choice((b"", b"x", b"body " * 50, rng.randbytes(3000), b"<html>" + b"y" * 9000))
    coded, encoding = rng.choice(
        ((body, ""), (gzip.compress(body), "gzip"), (zlib.compress(body), "deflate"), (body, "br"))
    )
    odd = (b"0", b"-1", b"1e9", b"99999999999999999999", b"5, 7", b" ", b"x", b"nan", b"\xff", b"+3", b"0x10")
    length = rng.choice((str(len(coded)).encode(), str(len(coded)).encode(), rng.choice(odd)))
    headers = [
        b"Content-Length: " + length,
        b"Content-Type: "
        + rng.choice((b"image/jpeg", b"text/html; charset=" + b"z" * 5000, b"a/b" * 30_000, b"", b"\x00")),
        b"ETag: " + rng.choice((b'"a"', b"e" * 90_000, b'"\xff\x00"')),
        b"Last-Modified: " + rng.choice((b"Thu, 01 Jan 1970 00:00:00 GMT", b"never", b"9" * 80_000)),
        b"Content-Encoding: "
        + rng.choice((encoding.encode(), b"gzip, gzip, gzip, br", b"identity", b"zstd", b"nonsense")),
        b"Transfer-Encoding: " + rng.choice((b"chunked", b"chunked, chunked", b"gzip, chunked", b"identity")),
        b"Retry-After: " + rng.choice((b"0", b"1", b"-5", b"Thu, 99 Foo", b"9" * 30)),
        b"Location: "
        + rng.choice((b"/loop", b"//", b"file:///etc/passwd", b"http://[::1", b"http://10.0.0.5/", b"?" * 70_000)),
        b"Content-Disposition: attachment; filename=" + rng.choice((b"../../x", b'"' + b"n" * 3000, b"a\x00b")),
        b"X-Robots-Tag: " + rng.choice((b"noai", b"all", b"unavailable_after: x", b"," * 9000)),
        b"Connection: " + rng.choice((b"close", b"keep-alive", b"upgrade")),
        b"Set-Cookie: " + rng.choice((b"a=b", b"=", b"a=" + b"c" * 9000, b"a=b; Domain=127.0.0.1; Expires=x")),
        b"Alt-Svc: " + rng.choice((b"clear", b'h3=":443"; ma=99999999999')),
        rng.choice((b"No-Colon", b": empty", b" folded", b"X: " + b"v" * 40_000)),
    ]
    chosen = rng.sample(headers[2:], rng.randrange(5)) + ([headers[0]] if rng.random() < 0.8 else []) + headers[1:2]
    if any(b"chunked" in header for header in chosen) and rng.random() < 0.7:
        coded = b"%x%s\r\n%s\r\n%s\r\n\r\n" % (
            len(coded),
            rng.choice((b"", b";" + b"e" * 3000)),
            coded,
            rng.choice((b"0", b"-1", b"zz")),
        )
    status = rng.choice(
        (
            b"200 OK",
            b"200",
            b"206 Partial",
            b"301 Moved",
            b"302 Found",
            b"304 Not",
            b"404 No",
            b"429 Slow",
            b"503 Busy",
            b"999 ?",
            b"1000 x",
            b"100 Continue",
        )
    )
    head = rng.choice((b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/3.9 ", b"ICY ", b"")) + status + b"\r\n"
    whole = (
        b"HTTP/1.1 103 Early\r\nLink: <x>\r\n\r\n" * rng.choice((0, 0, 0, 1, 300))
        + head
        + b"\r\n".join(chosen)
        + b"\r\n\r\n"
        + coded
    )
    surplus = rng.choice((b"", b"", b"\n\n surplus\n", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON"))
    if rng.random() < 0.4:
        whole = damaged(File("answer", "", whole), [File("answer", "", whole)], rng)[0].data
    if surplus and b"POISON" not in surplus and rng.random() < 0.5:
        return [whole, 0.02, surplus]  # when the next request is under way already: nobody could tell a whole answer
    if whole and rng.random() < 0.3:
        at = rng.randrange(len(whole))
        return [whole[:at], rng.choice((0.01, 0.1, 1.5)), whole[at:], surplus]
    return [whole + surplus]


class Hostile:
    """Serves `/good/N`, which is answered well, and `/bad/SEED`, which is answered by chance; connections are kept."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=512)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        asked = b""
        with connection, contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in asked:
                    if not (more := connection.recv(1 << 16)):
                        return
                    asked += more
                head, _, asked = asked.partition(b"\r\n\r\n")
                path = head.split(b" ")[1].decode("latin-1")
                if not path.startswith("/bad/"):
                    body = path.encode("latin-1")
                    status = b"200 OK" if path.startswith("/good/") else b"404 Not Found"
                    connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
                    continue
                rng = random.Random(path)
                for piece in answer(rng):
                    if isinstance(piece, float):
                        time.sleep(piece)
                    else:
                        connection.sendall(piece)
                if rng.random() < 0.5:
                    return


def answers(folder: Path, rng: random.Random) -> Iterator[str]:
    """25 answers by chance among five times as many that are well, and a host that only answers well."""
    hostile, clean = Hostile(_HOST), Hostile(_CLEAN)
    rows = [
        f"{hostile.url}/bad/{rng.random()}" if n % (_GOOD + 1) == 0 else f"{hostile.url}/good/{n}" for n in range(125)
    ]
    rows += [f"{clean.url}/good/{n}" for n in range(50)]
    rng.shuffle(rows)
    (folder / "urls.txt").write_text("".join(f"{row}\n" for row in rows))
    threads = rng.choice(("1", "4", "16", "auto"))
    options = (f"--thread_count={threads}", "--timeout=1", "--retries=1", "--max_retry_after=1")
    ended = command(folder, "urls.txt", "out", "--output_format=webdataset", "--report=false", "--quiet", *options)
    yield from filter(None, [ended.problem])
    files = _files(folder / "out")
    codes = {row["url"]: row["error_code"] for row in stored.metadata(files)}
    if sorted(codes) != sorted(set(rows)):
        yield f"{len(set(rows)) - len(codes)} rows without an outcome"
    url_of = {row["key"]: row["url"] for row in stored.metadata(files)}
    for sample in stored.samples(files):
        host, good, number = url_of[sample.key].partition("/good/")
        if good and sample.data != host.encode() + number.encode():
            yield f"{url_of[sample.key]} has the body {sample.data[:40]!r}"
    lost = [str(code) for url, code in codes.items() if "/good/" in url and code]
    if lost:
        yield f"{threads} at once: {len(lost)} good rows failed: {sorted(set(lost))}"


# --- files ---

_MEDIA = (
    (),
    ("--file_size=64",),
    ("--file_size=32", "--resize_mode=border", "--encode_format=webp", "--extract_exif"),
    ("--decode_check", "--unpack", "--extract_text"),
    ("--only_images", "--min_image_size=8", "--animated=keep", "--file_size=48", "--encode_format=png"),
    ("--audio_rate=16000", "--audio_channels=1", "--audio_format=flac", "--frames=3"),
    ("--video_size=32", "--video_format=mp4", "--clip_seconds=0.2", "--min_duration=0.1"),
)
_FORMATS = ("webdataset", "parquet", "files", "tfrecord", "arrayrecord")


def files(folder: Path, rng: random.Random) -> Iterator[str]:
    """100 damaged files of every kind, with options for media, in one of the formats."""
    kinds = _seeds()
    (folder / "media").mkdir()
    with (folder / "urls.txt").open("w") as urls:
        for n in range(100):
            file, _ = damaged(rng.choice(kinds), kinds, rng)
            path = folder / "media" / f"{n}{Path(file.name).suffix or '.bin'}"
            path.write_bytes(file.data)
            urls.write(f"{path.as_uri()}\n")
    options, form = rng.choice(_MEDIA), rng.choice(_FORMATS)
    ended = command(
        folder, "urls.txt", "out", "--allow_schemes=file", "--quiet", "--report=false", f"--output_format={form}",
        "--number_sample_per_shard=30", "--processes_count=1", "--transform_timeout=20", *options,
    )  # fmt: skip
    if problem := ended.problem:
        yield f"{form} {' '.join(options)}: {problem}"
    found = _files(folder / "out")
    rows = {row["url"] for row in stored.metadata(found)}
    if len(rows) != 100:
        yield f"{form} {' '.join(options)}: {len(rows)} of 100 rows have an outcome"
    if form != "files" or not options:
        keys = [row["key"] for row in stored.metadata(found) if row["status"] == "success"]
        if keys != [sample.key for sample in stored.samples(found)]:
            yield f"{form} {' '.join(options)}: metadata and samples have other keys"


_cached: list[File] = []


def _seeds() -> list[File]:
    if not _cached:
        _cached.extend(seeds())
    return _cached


# --- datasets ---

_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        10**12,
        10**30,
        -(2**63),
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "../../precious",
        "é" * 300,
    ),
    *("/etc/passwd", "9" * 200, "2100-01-01", "os:system", [], {}, [[[]]], {"a": {}}, [1, "x", None], "\udcff"),
)
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("verify", "ds"),
    ("inspect", "ds"),
    ("inspect", "ds", "--json=-"),
    ("report", "ds"),
    ("card", "ds"),
    ("retry", "ds", "--codes=all", "--quiet", "--distributor=inline"),
    ("urls.txt", "ds", "--quiet", "--distributor=inline", "--number_sample_per_shard=2", "--output_format={form}"),
    ("verify", "ds", "--repair"),
)


def datasets(folder: Path, rng: random.Random) -> Iterator[str]:
    """One small dataset in which something is not as it was, and every command on it."""
    form = rng.choice(_FORMATS)
    (folder / "urls.txt").write_text("data:,a\ndata:,b\ndata:,\nhttp://127.0.0.1:9/x\ndata:,c\n")
    home = folder / "home"
    home.mkdir()
    (home / "precious").write_text("mine")
    again = [word.format(form=form) for word in _COMMANDS[7]]
    first = command(folder, *again)
    if first.code:
        yield f"it was not made: {first.said}"
        return
    changed = [_change(folder / "ds", home, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    for words in _COMMANDS:
        given = [word.format(form=form) for word in words]
        shutil.rmtree(folder / "try", ignore_errors=True)
        shutil.copytree(folder, folder / "try", symlinks=True, ignore=lambda *_: ["try", "home"], copy_function=_copy)
        ended = command(folder / "try", *given)
        if problem := ended.problem:
            yield f"{form}, {'; '.join(changed)}: any2ds {' '.join(given)}: {problem}"
        if {path.name: path.read_text() for path in home.iterdir()} != {"precious": "mine"}:
            yield f"{form}, {'; '.join(changed)}: any2ds {' '.join(given)} has changed what is not its own"


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def _change(dataset: Path, home: Path, rng: random.Random) -> str:
    """Does something to a file of the dataset; says what."""
    paths = sorted(path for path in dataset.rglob("*") if path.is_file() and not path.is_symlink())
    ours = [path for path in paths if path.suffix == ".json" or path.parent.name == ".any2ds"]
    path = rng.choice(ours if ours and rng.random() < 0.8 else paths)
    name = path.relative_to(dataset).as_posix()
    how = rng.random()
    if how < 0.6:
        with contextlib.suppress(ValueError):
            document = json.loads(path.read_bytes())
            where = _odd_value(document, rng)
            path.write_text(json.dumps(document))
            return f"{name}: {where}"
    if how < 0.85:
        content = File(name, "", path.read_bytes())
        path.write_bytes(damaged(content, [content], rng)[0].data)
        return f"{name}: damaged"
    path.unlink()
    change = rng.choice(("gone", "a folder", "a pipe", "a link", "a link to itself", "empty"))
    {
        "gone": lambda: None,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link": lambda: path.symlink_to(home / "precious"),
        "a link to itself": lambda: path.symlink_to(path.name),
        "empty": path.touch,
    }[change]()
    return f"{name}: {change}"


def _odd_value(document: Any, rng: random.Random) -> str:
    """Replaces, removes or adds a value somewhere in a document."""
    where, parent = [], document
    while True:
        keys = (
            list(parent) if isinstance(parent, dict) else list(range(len(parent))) if isinstance(parent, list) else []
        )
        if not keys:
            return "nothing"
        key = rng.choice(keys)
        where.append(str(key))
        if isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.7:
            parent = parent[key]
            continue
        value = rng.choice(_ODD)
        if rng.random() < 0.2:
            del parent[key]
            return f"{'.'.join(where)} removed"
        parent[key] = value
        return f"{'.'.join(where)} = {value!r}"


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


KINDS: dict[str, tuple[Callable[[Path, random.Random], Iterator[str]], int]] = {  # and how many are in a batch
    "answers": (answers, 25),
    "files": (files, 100),
    "datasets": (datasets, 1),
}


def problems(kind: str, seed: int, number: int) -> list[str]:
    """What is wrong with a batch."""
    play, _ = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="any2ds-strangers-") as folder:
        return list(play(Path(folder), random.Random(f"{kind} {seed} {number}")))


def main() -> int:
    """0 if nothing went wrong, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100, help="answers, files or datasets [100]")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same ones [0]")
    parser.add_argument("--only", type=int, help="number of a single batch")
    given = parser.parse_args()
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        own = "-n" if os.geteuid() == 0 else "-rn"
        os.execvp("unshare", ["unshare", own, sys.executable, "-m", "tests.support.fuzz.strangers", *sys.argv[1:]])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for module in pkgutil.walk_packages(any2ds.__path__, "any2ds."):  # once for all commands, which are forked off
        if module.name != "any2ds.__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    batches = -(-given.count // KINDS[given.kind][1])
    wrong = 0
    for number in range(batches) if given.only is None else [given.only]:
        for problem in problems(given.kind, given.seed, number):
            wrong += 1
            sys.stdout.write(f"--- batch {number}: {problem}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{batches} batches of {given.kind}, {wrong} problems\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
