"""Runs any2ds or the bare loop as a command and says what that cost: time, CPU of all its processes, memory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_POLL = 0.02  # seconds
_ENDS_WITHIN = 100.0  # seconds from Ctrl-C, for what takes few: a busy machine is not broken
_MOST_WARM = 6_000_000_000  # bytes of memory made ready for a run; a longer run's files are deleted meanwhile
_WARM_AHEAD = 300_000_000  # bytes: what a run writes in half a second, at most
_MEGABYTE = bytes(1 << 20)


class Broken(Exception):
    """Something did not run; a slow run is no such thing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One command from start to exit."""

    samples: int  # files stored
    wall: float  # seconds, from the start of the command to its exit
    window: float  # seconds, from the first row's start to the last file's end: without starting Python
    cpu: float  # seconds, of the command and all its processes
    peak_rss: int  # bytes, of its largest process
    server_cpu: float | None  # seconds

    @property
    def rate(self) -> float:
        """Samples per second of `window`."""
        return self.samples / self.window

    def without(self, start_up: Run) -> Run:
        """The same without the CPU of a run that fetches one row."""
        return replace(self, cpu=self.cpu - start_up.cpu)

    @property
    def cpu_per_sample(self) -> float:
        return self.cpu / self.samples

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Bench:
    """What all measurements share: a folder for output, the environment of the commands, the server's own clock."""

    def __init__(
        self, scratch: Path, in_memory: bool, server_cpu: Callable[[], float | None], ca_file: str | None
    ) -> None:
        self.scratch = scratch
        self._warm_bytes = _MOST_WARM if in_memory else 0
        self.output = scratch / "output"
        self._server_cpu = server_cpu
        self.ca_file = ca_file
        proxies = {"http_proxy", "https_proxy", "all_proxy", "curl_ca_bundle", "requests_ca_bundle"}
        self.env = {name: value for name, value in os.environ.items() if name.lower() not in proxies}
        self.env["no_proxy"] = "*"
        self.env["TMPDIR"] = str(scratch)  # where bodies wait: the disk is not what is measured
        if ca_file:
            self.env["SSL_CERT_FILE"] = ca_file

    def on_disk(self, scratch: Path) -> Bench:
        """The same with output in a folder that is not in memory."""
        scratch.mkdir(exist_ok=True)
        return Bench(scratch, False, self._server_cpu, self.ca_file)

    def any2ds(self, urls: Path, rows: int, hanging: int = 0, careless: bool = False, **options: Any) -> Run:
        """`rows` is how many rows the list has, and `hanging` how many of them must time out."""
        shutil.rmtree(self.output, ignore_errors=True)
        try:
            with _janitor(self.output) as stats:
                command = self.any2ds_command(urls, **options)
                if careless:
                    command[1:3] = [str(Path(__file__).with_name("careless.py"))]
                run = self._run(command, rows)
            stored = sum(report["successes"] for report in stats)
            if stored != rows - hanging:
                outcomes = [report["status_dict"] for report in stats]
                raise Broken(f"any2ds stored {stored} of {rows - hanging} files; outcomes by shard: {outcomes[:3]}")
            start = min(report["start_time"] for report in stats)
            return replace(run, samples=stored, window=max(report["end_time"] for report in stats) - start)
        finally:
            shutil.rmtree(self.output, ignore_errors=True)

    def bare(self, urls: Path, rows: int, hash: str) -> Run:
        tar = self.scratch / "bare.tar"
        command = [sys.executable, str(Path(__file__).with_name("bare.py")), str(urls), str(tar), f"--hash={hash}"]
        if self.ca_file:
            command.append(f"--ca-file={self.ca_file}")
        try:
            run = self._run(command, rows)
        finally:
            tar.unlink(missing_ok=True)
        said = json.loads((self.scratch / "command.out").read_text(encoding="utf-8"))
        if said["samples"] != rows:
            raise Broken(f"the bare loop stored {said['samples']} of {rows} files")
        return replace(run, samples=said["samples"], window=said["seconds"])

    def wget2(self, urls: Path, rows: int, threads: int) -> Run:
        """Files in one folder, with none of the names' hashes, metadata or shards; the window is the whole run."""
        folder = self.scratch / "wget2"
        options = ["--no-config", "--quiet", f"--max-threads={threads}", "--input-file", str(urls)]
        try:
            run = self._run(["wget2", *options, "--directory-prefix", str(folder)], rows)
            stored = sum(1 for _ in os.scandir(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if stored != rows:
            raise Broken(f"wget2 stored {stored} of {rows} files")
        return replace(run, samples=stored)

    def any2ds_command(self, urls: Path, **options: Any) -> list[str]:
        options = {
            "url_list": urls,
            "output_folder": self.output,
            "output_format": "webdataset",
            "quiet": True,
            **options,
        }
        return [sys.executable, "-m", "any2ds", *(f"--{name}={value}" for name, value in options.items())]

    @contextmanager
    def process(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A command that is running; killed at the end unless it has ended."""
        with (self.scratch / "command.out").open("wb") as out, (self.scratch / "command.err").open("wb") as err:
            process = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=out, stderr=err)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()

    def last_words(self) -> str:
        """What the last command said when it failed."""
        return (self.scratch / "command.err").read_text(encoding="utf-8", errors="replace").strip()[-2000:]

    def _run(self, command: Sequence[str], rows: int) -> Run:
        with warm_memory(self.scratch / "warm", min(self._warm_bytes, rows * 110_000)):
            server_before = self._server_cpu()
            started = time.monotonic()
            with self.process(command) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            wall = time.monotonic() - started
        if process.returncode:
            raise Broken(f"exit code {process.returncode} from {' '.join(command[1:])}\n{self.last_words()}")
        server_after = self._server_cpu()
        server_cpu = None if server_before is None or server_after is None else server_after - server_before
        return Run(0, wall, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, server_cpu)


@contextmanager
def warm_memory(ballast: Path, size: int) -> Iterator[None]:
    """Has free memory at hand that was in use a moment ago, as the machine needs more, up to `size` bytes.

    A virtual machine may give memory back to its host two seconds after it was freed; to write a page of the RAM disk
    then costs up to ten times as much (measured: 25 or 250 µs for 100 KB), and which run pays it is chance.
    """
    stopped = threading.Event()

    def give_way() -> None:
        left = size
        while left and not stopped.wait(0.02):
            grown = before - _free_memory() + size - left  # what others have taken, the ballast apart
            wanted = max(0, size - grown - _WARM_AHEAD)
            if wanted < left:
                left = wanted
                os.truncate(ballast, left)

    try:
        with ballast.open("wb", buffering=0) as file:
            for _ in range(0, size, len(_MEGABYTE)):
                file.write(_MEGABYTE)
        before = _free_memory()
        thread = threading.Thread(target=give_way, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
    finally:
        ballast.unlink(missing_ok=True)


def _free_memory() -> int:
    """Bytes of memory that nobody uses, not even as a cache."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemFree:"))


@contextmanager
def _janitor(output: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Reads the stats of each finished shard and deletes its files, so that a long run fits on the RAM disk."""
    stats: list[Mapping[str, Any]] = []
    stopped = threading.Event()

    def sweep() -> None:
        for file in sorted(output.glob("*_stats.json")):
            report = json.loads(file.read_text(encoding="utf-8"))
            if "shard_id" in report:
                stats.append(report)
                shard = file.name.removesuffix("_stats.json")
                for name in (f"{shard}.tar", f"{shard}.parquet", file.name):
                    (output / name).unlink(missing_ok=True)

    def work() -> None:
        while not stopped.wait(0.25):
            sweep()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield stats
    finally:
        stopped.set()
        thread.join()
        sweep()


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A command that was stopped with Ctrl-C while it ran."""

    first_request: float | None  # seconds from the start of the command
    parent_rss: int  # bytes, the most that was ever resident
    worker_rss: int  # bytes, of the largest worker
    stop_seconds: float  # from Ctrl-C to the exit
    exit_code: int
    left_over: int  # processes that outlived it


def interrupt(
    bench: Bench, command: Sequence[str], seconds: float, first_request: Callable[[], float | None]
) -> Interrupted:
    """Start the command, press Ctrl-C after `seconds`, and say what was seen."""
    peaks: dict[int, int] = {}
    started = time.time()
    with bench.process(command) as process:
        while time.time() - started < seconds:
            for pid in (process.pid, *_children(process.pid)):
                peaks[pid] = max(peaks.get(pid, 0), _peak_rss(pid))
            if process.poll() is not None:
                raise Broken(f"any2ds ended early, with {process.returncode}: {bench.last_words()}")
            time.sleep(_POLL)
        stopped = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            raise Broken(f"any2ds still runs {_ENDS_WITHIN:g} s after Ctrl-C") from None
        stop_seconds = time.monotonic() - stopped
    parent = peaks.pop(process.pid)
    left_over = sum(_runs(pid) for pid in peaks)
    first = first_request()
    return Interrupted(
        None if first is None else first - started,
        parent,
        max(peaks.values(), default=0),
        stop_seconds,
        process.returncode,
        left_over,
    )


def _children(pid: int) -> list[int]:
    """Of all its threads: a child belongs to the one that started it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _peak_rss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
