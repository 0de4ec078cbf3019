"""Plays commands from outside: rows, what the web answers and options go in, and what came of it comes out.

    def test_a_busy_host_is_asked_again():
        outcome = Play(rows={"a.jpg": ["http_503", "ok"], "b.jpg": "ok"}, retries=1).run()
        assert outcome.codes == {"success": 2}
        assert outcome.requests["a.jpg"] == 2

A play has a folder, a web on loopback that answers by `any2ds.testing.faults`, and a dataset in `out/` or in a bucket
of a real S3 server. Its commands follow each other, or are started side by side and killed:

    play = Play(rows=dict.fromkeys(names, "ok"), store="s3", number_sample_per_shard=2)
    play.run(kill_at="published 2")
    outcome = play.run()
    assert play.run("verify").exit_code == 0

The samples of an outcome were read by `tests.support.stored`, which has nothing of any2ds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.testing.processes import LONG
from any2ds.testing.server import Server, serve
from tests.support import stored
from tests.support.crash import processes
from tests.support.crash.moments import ALL as MOMENTS
from tests.support.crash.moments import Look, moment

Answers = str | Sequence[str]
"""What requests for a file get: a name of `any2ds.testing.faults` or `http_503`; each takes the next of several."""

Way = Literal["inside", "command", "python"]
"""How a command runs: the command line in this process, in one of its own, or the function of the Python interface."""

Victims = Literal["all", "parent", "workers"]
"""Which processes of a command a kill is for: all, the one that was started, or all that this one has started."""

ROOT = Path(__file__).parents[2]
WEB = "{web}"  # in lists and options: the address of the web, with a slash at the end
_OUT = "out"
_OF_PLAYS = {"output_format": "webdataset", "report": False, "distributor": "inline"}  # unless a play says otherwise
_OF_COMMANDS = {"retry": ("report", "distributor")}  # those of them that other commands than download have as well
_WITHOUT_DATASET = ("estimate", "recipes", "new", "build", "completion", "help")  # commands
_FOR_THE_PROCESS = ExitStack()  # servers that all plays of this process use
_opened: list[Play] = []


@dataclass(frozen=True)
class Outcome:
    """What a command came to; samples, metadata and codes are read from `files` where they are asked for."""

    exit_code: int | None  # None where a function of Python was called
    stdout: str
    stderr: str
    files: stored.Files  # of the dataset when the command had ended: name -> content
    requests: Counter[str]  # path -> requests that the web had while the command ran
    result: Any = None  # what a function of Python returned
    error: BaseException | None = None  # what it raised

    @property
    def screen(self) -> str:
        """All that the command said."""
        return self.stdout + self.stderr

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of JSON among what it said (`log_format=json`)."""
        return [json.loads(line) for line in self.screen.splitlines() if line.startswith("{") and line.endswith("}")]

    @cached_property
    def samples(self) -> list[stored.Sample]:
        return stored.samples(self.files)

    @cached_property
    def data(self) -> dict[str, bytes]:
        """Key of a sample -> its file."""
        return {sample.key: sample.data for sample in self.samples}

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """The rows of the metadata, in the order of the list."""
        return stored.metadata(self.files)

    @cached_property
    def codes(self) -> dict[str, int]:
        """Outcome of a row (`success` or its failure code, by the metadata) -> rows.

        Statistics and samples are held against it: they cannot say something else.
        """
        found = Counter(row["error_code"] or row["status"] for row in self.metadata)
        summed: Counter[str] = Counter()
        for shard in stored.stats(self.files).values():
            summed.update(shard["status_dict"])
            summed.subtract(shard.get("replaces", {}))
        summed = +summed
        assert found == summed, f"metadata say {dict(found)}, statistics {dict(summed)}"
        keys = [row["key"] for row in self.metadata if row["status"] == "success"]
        assert keys == [sample.key for sample in self.samples], "metadata and samples have other keys"
        return dict(found)

    @cached_property
    def code_of(self) -> dict[str, str]:
        """Last part of a row's URL -> its outcome."""
        return {row["url"].rpartition("/")[2]: row["error_code"] or row["status"] for row in self.metadata}

    @property
    def names(self) -> set[str]:
        """The files of the dataset but for those in `.any2ds/`."""
        return {name for name in self.files if not name.startswith(".any2ds/")}

    @property
    def shards(self) -> list[str]:
        """Names of the finished shards."""
        return stored.shards(self.files)

    def __repr__(self) -> str:
        said = "\n".join(f"    {line}" for line in self.screen.splitlines()[-20:])
        how = f"raised {self.error!r}" if self.error else f"exit code {self.exit_code}"
        return f"<Outcome: {how}, {', '.join(sorted(self.names)) or 'no files'}; it said\n{said}>"


@dataclass(frozen=True)
class Row:
    """A file of the web, and its row in the list."""

    answers: Answers = "ok"
    body: bytes | None = None  # by default a small picture for names of pictures, else a text
    columns: Mapping[str, Any] = field(default_factory=dict)  # further values of its row


class Play:
    """One dataset, and the commands that make it. Closed by a fixture when its test ends.

    `rows` are files of the web, each of them a row of the list, in this order. `lists` are files in the play's folder
    in place of that list, text or bytes, in which `{web}` is the web's address; the first is `url_list`. Options are
    those of the command line; `store` is `folder` or `s3`.
    """

    def __init__(
        self,
        rows: Mapping[str, Answers | Row] | None = None,
        *,
        lists: Mapping[str, str | bytes] | None = None,
        list_format: str = "jsonl",
        store: str = "folder",
        way: Way = "inside",
        environment: Mapping[str, str] | None = None,
        tls: bool = False,
        **options: Any,
    ) -> None:
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.rows = {name: row if isinstance(row, Row) else Row(row) for name, row in (rows or {}).items()}
        self._lists, self._list_format = lists, list_format
        self._way: Way = way
        self.environment = dict(environment or {})
        self.options = options
        self.bucket: Any = _new_bucket() if store == "s3" else None  # `tests.support.s3.Bucket`
        if self.bucket is not None:
            self.environment |= self.bucket.environment
        self.out = self.bucket.url if self.bucket is not None else _OUT
        media = self.folder / "web"
        media.mkdir()
        for name, row in self.rows.items():
            (media / name).parent.mkdir(parents=True, exist_ok=True)
            (media / name).write_bytes(body_of(name) if row.body is None else row.body)
        script = {name: _steps(row.answers) for name, row in self.rows.items()}
        self.web: Server = self._stack.enter_context(serve(media, script, tls=tls))
        self._running: list[Running] = []
        _opened.append(self)

    @property
    def path(self) -> str:
        """Where the dataset is, for whoever runs elsewhere than in the play's folder."""
        return self.out if self.bucket is not None else str(self.folder / self.out)

    # --- commands ---

    def run(
        self,
        command: str = "download",
        *arguments: str,
        way: Way | None = None,
        kill_at: str | None = None,
        victims: Victims = "all",
        stdin: bytes | None = None,
        **options: Any,
    ) -> Outcome:
        """Run a command to its end, or until it is killed; see `Running.until` for moments. `options` are added to the
        play's, which only `download` and `estimate` take. With `stdin` it runs in a process of its own."""
        if kill_at is not None:
            running = self.start(command, *arguments, **options)
            running.kill_at(kill_at, victims)
            return running.wait()
        before = self.web.counts.copy()
        run = {"inside": self._run_inside, "command": self._run_command, "python": self._run_python}[way or self._way]
        if stdin is not None:
            run = functools.partial(self._run_command, stdin=stdin)
        ended = run(command, arguments, self._options(command, options))
        return Outcome(**ended, files=self.files(), requests=self.web.counts - before)

    def start(self, command: str = "download", *arguments: str, **options: Any) -> Running:
        """Start a command in a process of its own."""
        words = self._words(command, arguments, self._options(command, options))
        running = Running(self, [sys.executable, "-m", "any2ds", *words])
        self._running.append(running)
        return running

    def write_list(self, names: Sequence[str] | None = None) -> list[str]:
        """Write the list of all files of the web, or of these, and return the names of lists."""
        if self._lists is not None:
            for name, text in self._lists.items():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                content = text if isinstance(text, bytes) else text.replace(WEB, self.web.base_url).encode()
                (self.folder / name).write_bytes(content)
            return list(self._lists)
        rows = [{"url": self.web.url(name), **self.rows[name].columns} for name in (names or self.rows)]
        write_rows(self.folder / f"list.{self._list_format}", rows)
        return [f"list.{self._list_format}"]

    def names(self) -> list[str]:
        """The names of what lies in the dataset's folder itself now."""
        if self.bucket is not None:
            return [path.rpartition("/")[2] for path in self.bucket.connect().find(self.out, maxdepth=1)]
        return [path.name for path in (self.folder / self.out).glob("*")]

    def files(self) -> dict[str, bytes]:
        """What lies in the dataset now: name -> content."""
        out, found = self.folder / self.out, {}
        if self.bucket is not None:
            system, root = self.bucket.connect(), self.out.removeprefix("s3://")
            for name in system.find(root):
                with contextlib.suppress(FileNotFoundError):
                    found[name.removeprefix(f"{root}/")] = system.cat_file(name)
        for folder, _, names in os.walk(out):  # unlike rglob, it bears that a running command removes what it lists
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):
                    found[path.relative_to(out).as_posix()] = path.read_bytes()
        return found

    def close(self) -> None:
        """Kill what still runs, stop the web, remove the folder."""
        for running in self._running:
            running.kill()
        self._stack.close()

    def _options(self, command: str, own: Mapping[str, Any]) -> dict[str, Any]:
        if command == "download":
            given = {**_OF_PLAYS, **self.options, **own}
            return {"url_list": None, **given}
        inherited = {name: {**_OF_PLAYS, **self.options}[name] for name in _OF_COMMANDS.get(command, ())}
        return {**inherited, **(self.options if command == "estimate" else {}), **own}

    def _arguments(self, command: str, arguments: Sequence[str], options: dict[str, Any]) -> list[str]:
        """The positional arguments of a command; writes the list that `options` do not name."""
        if command in ("download", "estimate") and options.get("url_list") is None:
            options.pop("url_list", None)
            if not arguments:
                arguments = [self.write_list()[0]]
        if command in _WITHOUT_DATASET or (command == "download" and "output_folder" in options) or len(arguments) > 1:
            return list(arguments)
        return [*arguments, self.out] if command == "download" else [self.out, *arguments]

    def _words(self, command: str, arguments: Sequence[str], options: dict[str, Any]) -> list[str]:
        positional = self._arguments(command, arguments, options)
        nested = {name: value for name, value in options.items() if isinstance(value, Mapping)}
        flags = [f"--{name}={_text(value)}" for name, value in options.items() if name not in nested]
        if nested:
            (self.folder / "options.json").write_text(json.dumps(nested).replace(WEB, self.web.base_url))
            flags.append("--config=options.json")
        flags = [flag.replace(WEB, self.web.base_url) for flag in flags]
        return [command, *positional, *flags] if command != "download" else [*positional, *flags]

    # --- ways ---

    def _run_inside(self, command: str, arguments: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
        from any2ds.cli import run

        words = self._words(command, arguments, options)
        with self.inside() as said:
            code = run(words)
        return {"exit_code": code, **said()}

    def _run_command(
        self, command: str, arguments: Sequence[str], options: dict[str, Any], stdin: bytes = b""
    ) -> dict[str, Any]:
        words = self._words(command, arguments, options)
        ended = subprocess.run(
            [sys.executable, "-m", "any2ds", *words],
            cwd=self.folder,
            env=self.child_environment(),
            input=stdin,
            capture_output=True,
            timeout=LONG,
        )
        return {"exit_code": ended.returncode, "stdout": ended.stdout.decode(), "stderr": ended.stderr.decode()}

    def _run_python(self, command: str, arguments: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
        import any2ds

        positional = self._arguments(command, arguments, options)
        result, error = None, None
        with self.inside() as said:
            try:
                result = getattr(any2ds, command)(*positional, **options)
            except Exception as raised:
                error = raised
        return {"exit_code": None, "result": result, "error": error, **said()}

    def child_environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, **self.environment}

    @contextmanager
    def inside(self) -> Iterator[Callable[[], dict[str, str]]]:
        """This process has the folder and the environment of the play; gives what is said meanwhile."""
        former, stdout, stderr = Path.cwd(), io.StringIO(), io.StringIO()
        # What a command line sets up for the process that it has to itself:
        loggers = [logging.getLogger("any2ds"), logging.getLogger("py.warnings")]
        logs = [(logger, logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
        hook = threading.excepthook
        os.chdir(self.folder)
        try:
            with (
                mock.patch.dict(os.environ, self.environment),
                contextlib.redirect_stdout(stdout),
                contextlib.redirect_stderr(stderr),
            ):
                _forget_stores()
                yield lambda: {"stdout": stdout.getvalue(), "stderr": stderr.getvalue()}
        finally:
            for logger, handlers, propagate, level in logs:
                logger.handlers[:], logger.propagate = handlers, propagate
                logger.setLevel(level)
            logging.captureWarnings(False)
            threading.excepthook = hook
            _forget_stores()
            os.chdir(former)


class Running:
    """A command that runs in a process of its own, with all that it starts."""

    def __init__(self, play: Play, words: Sequence[str]) -> None:
        self._play = play
        self._mark = uuid.uuid4().hex
        self._before, self._counts = Look.at(play.folder / play.out), play.web.counts.copy()
        self._said = play.folder / f"said-{self._mark}"
        environment = {**play.child_environment(), processes.MARK: self._mark}
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(words, cwd=play.folder, env=environment, stdout=said, stderr=said)

    def until(self, wanted: str) -> None:
        """Wait for a moment. Raises AssertionError if the command ends before.

        `request a.jpg 2`: the web has got so many requests for the file since the command began, by default one.
        `published 2`: so many shards are finished. `has 00001.tar`: this file is in the dataset. `said WORDS`: these
        stand in what it has written. `starting`, `fetching`, `writing a shard` … as in `tests.support.crash.moments`,
        where the dataset is in a folder.
        """
        has_come = self._moment(wanted)
        until = time.monotonic() + LONG
        while not has_come():
            assert self.process.poll() is None, (
                f"it ended with {self.process.returncode} before '{wanted}': {self._read()}"
            )
            assert time.monotonic() < until, f"'{wanted}' has not come: {self._read()}"
            time.sleep(0.001)

    def kill_at(self, wanted: str, victims: Victims = "all") -> None:
        """Kill processes of the command with SIGKILL at a moment: all are frozen, and looked at once more."""
        has_come = self._moment(wanted)
        while True:
            self.until(wanted)
            frozen = processes.freeze(self.process.pid)
            if has_come():
                break
            processes.thaw(frozen)
        if victims == "all":
            self.kill()
        else:
            processes.send(frozen[:1] if victims == "parent" else frozen[1:], signal.SIGKILL)
            processes.thaw(frozen)

    def signal(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the process that was started, and to no other."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill every process of the command."""
        while left := processes.marked(self._mark):
            processes.send(left, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)

    def wait(self) -> Outcome:
        """What came of it, once it has ended."""
        code = self.process.wait(LONG)
        counts = self._play.web.counts - self._counts
        return Outcome(code, "", self._read(), self._play.files(), counts)

    def _read(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")

    def _moment(self, wanted: str) -> Callable[[], bool]:
        kind, _, argument = wanted.partition(" ")
        if kind == "request":
            name, _, count = argument.partition(" ")
            return lambda: self._play.web.counts[name] - self._counts[name] >= int(count or 1)
        if kind == "has":
            return lambda: argument in self._play.names()
        if kind == "said":
            return lambda: argument in self._read()
        if kind == "published":
            return lambda: len(stored.shards(dict.fromkeys(self._play.names(), b""))) >= int(argument)
        if wanted not in MOMENTS:
            raise ValueError(
                f"no moment {wanted!r}: there are request NAME, published N, has FILE, said WORDS, {', '.join(MOMENTS)}"
            )
        folder, most = self._play.folder / self._play.out, len(self._play.rows)  # no run has more shards than rows
        return lambda: moment(self._before, Look.at(folder), most) == wanted


def close_all() -> None:
    """Close the plays of a test."""
    while _opened:
        _opened.pop().close()


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A list in the format that its name ends in: txt (URLs alone), csv, tsv, json, jsonl or parquet."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix in (".csv", ".tsv"):
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    else:
        text = {
            ".txt": lambda: "".join(f"{row['url']}\n" for row in rows),
            ".json": lambda: json.dumps(list(rows)),
            ".jsonl": lambda: "".join(f"{json.dumps(row)}\n" for row in rows),
        }[path.suffix]()
        path.write_text(text, encoding="utf-8")


@functools.cache
def body_of(name: str) -> bytes:
    """The file of this name unless a row gives another: a small picture in a colour of its own, or a text."""
    kind = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".gif": "GIF"}.get(Path(name).suffix)
    if kind is None:
        return f"the text of {name}\n".encode()
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (64, 48), f"#{zlib.crc32(name.encode()) & 0xFFFFFF:06x}").save(content, kind)
    return content.getvalue()


def _steps(answers: Answers) -> list[str]:
    steps = [answers] if isinstance(answers, str) else answers
    return [step.removeprefix("http_") for step in steps]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


@functools.cache
def _buckets() -> Callable[[], Any]:
    """What makes a new bucket of one S3 server, which is there until this process ends."""
    from tests.support.s3 import serve_buckets

    return _FOR_THE_PROCESS.enter_context(serve_buckets())


def _new_bucket() -> Any:
    return _buckets()()


def _forget_stores() -> None:
    """Clients of stores remember the environment that they were made in."""
    if (module := sys.modules.get("s3fs")) is not None:
        module.S3FileSystem.clear_instance_cache()
