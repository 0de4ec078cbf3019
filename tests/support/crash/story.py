"""One seed: a run that is killed again and again and started again with the same command, and what was seen."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from os import environ, pathsep
from pathlib import Path

from any2ds.core.layout import LOCK_FILE, RUN_FILE, SEGMENTS_FOLDER, SHARDS_FILE, STATE_FOLDER, TEMPORARY_FOLDER
from any2ds.testing.processes import children
from tests.support.crash import moments, processes
from tests.support.crash.check import Expected, problems_at_the_end, problems_now
from tests.support.crash.moments import Look, moment
from tests.support.crash.places import Folder, Place, SmallDisk, small_disk
from tests.support.crash.s3 import failing_bucket
from tests.support.crash.source import Source, in_pairs, make_rows, served, write_list
from tests.support.crash.step import STEP
from tests.support.folder import names_in

# Kinds of kills. The first four end the run.
ALL, PARENT, SIGTERM, SIGINT = "kill -9 of all", "kill -9 of the parent", "SIGTERM", "SIGINT"
WORKER, WORKERS = "kill -9 of a worker", "kill -9 of all workers"
DISK_FULL = "disk full"
_KINDS = {ALL: 3, PARENT: 3, WORKER: 3, WORKERS: 1, SIGTERM: 1, SIGINT: 1}
_MOMENTS = {
    moments.STARTING: 2,
    moments.FETCHING: 2,
    moments.WRITING: 3,
    moments.DATA: 4,
    moments.METADATA: 4,
    moments.STATS: 4,
    moments.ENDING: 1,
}
_RETRY_MOMENTS = {moments.FETCHING: 1, moments.WRITING: 2, moments.DATA: 3, moments.METADATA: 2, moments.STATS: 2}
_FINISHED = frozenset({0, 4})  # exit codes of a run that made its shards; with 4 all rows that were left have failed
_EXIT_CODES = {ALL: {-9}, PARENT: {-9}, SIGTERM: {143}, SIGINT: {130}}

_ROOT = Path(__file__).parents[3]
_ROWS_PER_SHARD = 8
_HUNT = 1.0  # seconds that we wait for a moment before we take any
_LAST_SHARDS = 4  # with fewer to come than this, any moment will do as well
_TURNS_TO_LOOK_FOR_WORKERS = 16
_ENDS_WITHIN = 120.0  # seconds after it has last changed a shard
_GRACE = 10.0  # seconds that a run has from SIGTERM or SIGINT on; if it takes less, nothing is left over
_STOPS_WITHIN = 3 * _GRACE  # seconds in which it ends even on a machine that is busy with other things
_ORPHANS_WITHIN = 15.0  # seconds in which processes end whose parent was killed
_MOST_STARTS = 40


@dataclass(frozen=True, slots=True)
class Told:
    """Which story to play."""

    output_format: str
    seed: int
    on: str = "folder"  # or disk, or s3
    shards: int = 50
    kills: int = 4  # planned

    @property
    def name(self) -> str:
        return f"{self.output_format} {self.seed}" + (f" on {self.on}" if self.on != "folder" else "")


@dataclass(slots=True)
class Seen:
    """What happened in it."""

    reported: Told
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, moment) -> how often
    starts: int = 0
    problems: list[str] = field(default_factory=list)
    longest_orphan: float = 0.0  # seconds for which processes outlived the run
    commands: Counter[str] = field(default_factory=Counter)  # those that ended with 0
    failed_requests: int = 0  # of the object store
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One that is planned."""

    kind: str
    moment: str | None  # None: when the time has come
    after: float  # seconds after the start of the run, if it is by time; else after the hunt could begin
    shards: int  # that the run has finished before


@dataclass(frozen=True, slots=True)
class Phase:
    """One command, to be repeated until it ends with 0, or until its kills are used up."""

    command: Sequence[str]
    expected: Expected  # while it is at work
    kills: deque[Kill]
    to_the_end: bool = True


def play(reported: Told, scratch: Path) -> Seen:
    """Play a story in a folder of its own, which is removed unless something is wrong."""
    seen = Seen(reported)
    started = time.monotonic()
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    with ExitStack() as stack:
        source = stack.enter_context(served())
        if reported.on == "s3":
            bucket, app = stack.enter_context(
                failing_bucket(f"crash-{reported.output_format}-{reported.seed}", reported.name, scratch)
            )
            place: Place = bucket
        elif reported.on == "disk":
            place = stack.enter_context(small_disk(scratch / "disk", 1_500_000))
        else:
            place = Folder(scratch / "dataset")
        story = _Story(reported, seen, source, place, scratch)
        try:
            story.play()
        except _GaveUp as error:
            seen.problems.append(str(error))
        finally:
            story.kill_everything()
        if reported.on == "s3":
            seen.failed_requests = app.failed.total()
        elif seen.problems and reported.on == "disk" and place.dataset().exists():
            shutil.copytree(place.dataset(), scratch / "dataset")
    seen.seconds = time.monotonic() - started
    if not seen.problems:
        shutil.rmtree(scratch)
    return seen


class _GaveUp(Exception):
    """It makes no sense to go on; says why."""


class _Story:
    def __init__(self, reported: Told, seen: Seen, source: Source, place: Place, scratch: Path) -> None:
        self._reported, self._seen, self._source, self._place, self._scratch = reported, seen, source, place, scratch
        self._rng = random.Random(f"{reported.name}")
        self._marks: list[str] = []
        self._had_workers = False  # the present run, of which one is there before it has the folder
        self._temporary = scratch / "tmp"
        self._temporary.mkdir()
        # pyarrow imports pandas wherever that is installed, which would be a third of the time of all these processes.
        (scratch / "absent").mkdir()
        (scratch / "absent" / "pandas.py").write_text("raise ImportError\n")
        # The run starts in another folder, and its transform is in this package.
        self._path = pathsep.join(filter(None, [str(scratch / "absent"), str(_ROOT), environ.get("PYTHONPATH")]))
        self._has_pairs = reported.seed % 5 == 4  # of URLs
        kind = self._rng.choice(["txt", "parquet"])
        self._list = scratch / f"list.{'parquet' if self._has_pairs else kind}"
        self._expected = self._expectation()

    def play(self) -> None:
        for phase in self._phases():
            self._run(phase)
        self._settle()
        self._blame("in the end", problems_at_the_end(self._place.dataset(), self._expected))
        if left := [path.name for path in self._temporary.iterdir()]:
            self._seen.problems.append(f"in the end: left over in the folder for temporary files: {', '.join(left)}")
        verify = _command("verify", self._place.url, processes_count=1)
        code = self._wait(self._start(verify, "verify"), _ENDS_WITHIN)
        self._blame("in the end", [f"any2ds verify ends with {code}: {self._words()}"] if code else [])
        self._seen.commands["verify"] += 1
        self._settle()

    def kill_everything(self) -> None:
        for mark in self._marks:
            processes.send(processes.marked(mark), signal.SIGKILL)

    # --- what is to happen ---

    def _expectation(self) -> Expected:
        rng = self._rng
        count = self._reported.shards * _ROWS_PER_SHARD - rng.randrange(_ROWS_PER_SHARD)
        rows = make_rows(rng, count, self._source.base, 20_000 if self._reported.on == "disk" else 5_000)
        if self._has_pairs:
            rows = in_pairs(rng, rows)
        has_columns, has_steps = self._list.suffix == ".parquet", not self._has_pairs
        return Expected(rows, _ROWS_PER_SHARD, self._reported.output_format, has_columns, has_steps=has_steps)

    def _phases(self) -> list[Phase]:
        rng, expected, kills = self._rng, self._expected, self._reported.kills
        variant = self._reported.seed % 4
        if variant == 1:  # the list grows, once the first part of it is done or while it is being done
            some = rng.randrange(len(expected.rows) // 3, len(expected.rows) * 2 // 3)
            first = replace(expected, rows=expected.rows[:some])
            to_the_end = rng.random() < 0.5
            return [
                Phase(self._download(), first, self._plan(kills // 2, first), to_the_end),
                Phase(self._download(), expected, self._plan(kills - kills // 2, expected)),
            ]
        if variant == 3:
            retrying = replace(expected, healed=(False, True))
            retry = _command("retry", self._place.url, codes="http_404", timeout=120)
            self._expected = replace(expected, healed=(True,))
            return [
                Phase(self._download(), expected, self._plan(kills // 2, expected)),
                Phase(retry, retrying, self._plan(kills - kills // 2, retrying, _RETRY_MOMENTS)),
            ]
        return [Phase(self._download(), expected, self._plan(kills, expected))]

    def _plan(self, count: int, expected: Expected, hit: Mapping[str, int] = _MOMENTS) -> deque[Kill]:
        """`count` kills, so many shards apart that the later ones find something to do."""
        rng = self._rng
        if self._reported.on == "disk":
            return deque()
        kills: deque[Kill] = deque()
        least = 0 if hit is _RETRY_MOMENTS else 1  # it makes few shards
        share = expected.shards // (2 * count) if least else 0
        for _ in range(count):
            kind = rng.choices([*_KINDS], [*_KINDS.values()])[0]
            wanted = rng.choices([*hit], [*hit.values()])[0] if rng.random() < 0.8 else None
            after = rng.uniform(0, 0.9) if wanted == moments.STARTING else rng.uniform(0, 2.0)
            shards = rng.randrange(least, max(share, least + 1))
            kills.append(Kill(kind, wanted, after, expected.shards if wanted == moments.ENDING else shards))
        return kills

    def _download(self) -> list[str]:
        options: dict[str, object] = {
            "url_list": self._list,
            "output_folder": self._place.url,
            "output_format": self._reported.output_format,
            "number_sample_per_shard": _ROWS_PER_SHARD,
            "processes_count": 2,
            "disable_all_reencoding": True,  # what is served only begins as pictures do
            "timeout": 120,  # nothing is slow here but the machine, which may be busy, and processes that are frozen
        }
        if self._expected.has_columns:
            options |= {"caption_col": "caption", "save_additional_columns": "number"}
        if self._has_pairs:
            options["url_col"] = "image:url,mask:second"
        if self._expected.has_steps:
            options["transform"] = STEP
        if self._reported.on == "disk":
            options["min_free_bytes"] = 0
        return _command(quiet=True, **options)

    # --- making it happen ---

    def _run(self, phase: Phase) -> None:
        write_list(phase.expected.rows, self._list)
        self._source.healed = True in phase.expected.healed
        while True:
            if self._seen.starts == _MOST_STARTS:
                raise _GaveUp(f"not done after {_MOST_STARTS} starts; the last one said: {self._words()}")
            if self._attempt(phase):
                self._seen.commands["retry" if "retry" in phase.command else "download"] += 1
                return
            if self._rng.random() < 0.5:  # else the next one starts while others may still be at it
                self._settle()
            if not (phase.kills or phase.to_the_end):
                return

    def _attempt(self, phase: Phase) -> bool:
        """Start the command once. True if it made all shards that were left."""
        before = self._place.look()
        self._seen.starts += 1
        running = self._start(phase.command, str(self._seen.starts))
        started = time.monotonic()
        self._had_workers = False
        kinds: list[str] = []
        while phase.kills and running.returncode is None:
            kill = phase.kills[0]
            kind = self._strike(running, kill, before, started, phase.expected)
            if kind is None:
                break
            phase.kills.popleft()
            kinds.append(kind)
            if kind in _EXIT_CODES:
                break
        asked = time.monotonic()
        is_stopping = kinds[-1:] in ([SIGTERM], [SIGINT])
        code = self._wait(running, _STOPS_WITHIN) if is_stopping else self._wait_while_it_works(running)
        self._judge(code, kinds, phase)
        if is_stopping:
            self._settle()
            if time.monotonic() - asked < _GRACE:
                left = self._left_by(running.pid)
                self._blame(f"after {kinds[-1]}", [f"left over: {', '.join(left)}"] if left else [])
        return code in _FINISHED

    def _judge(self, code: int, kinds: list[str], phase: Phase) -> None:
        """Whether the run ended as it must after what was done to it."""
        if isinstance(self._place, SmallDisk) and code == 1 and not kinds:
            self._make_room(self._place, phase.expected)
            return
        last = kinds[-1] if kinds else ""
        allowed = _FINISHED | _EXIT_CODES.get(last, set())
        if not self._had_workers:  # it may have been before there was anything to clean up
            # In the middle of its own start Python ends with 1 where it is interrupted.
            allowed |= {SIGTERM: {-signal.SIGTERM}, SIGINT: {-signal.SIGINT, 1}}.get(last, set())
        if code not in allowed:
            what = ", ".join(kinds) or "nothing was done to it"
            raise _GaveUp(f"start {self._seen.starts} ({what}) ended with {code}: {self._words()}")

    def _left_by(self, pid: int) -> list[str]:
        """What the run of that process has left over, now that it has ended in order."""
        folder = self._place.dataset()
        state = {name for name in names_in(folder) if name.startswith(STATE_FOLDER)}
        left = sorted(state - {RUN_FILE, SEGMENTS_FOLDER, SHARDS_FILE})
        lock = folder / LOCK_FILE
        owner = json.loads(lock.read_bytes() or b"{}").get("any2ds_lock", {}).get("pid") if lock.exists() else None
        if owner not in (None, pid):  # it had not got the folder, and so not removed what others had left
            return []
        return left if self._had_workers else [LOCK_FILE] if owner else []

    def _make_room(self, disk: SmallDisk, expected: Expected) -> None:
        words = self._words()
        self._seen.kills[DISK_FULL, "writing"] += 1
        self._blame("disk full", problems_now(disk.dataset(), expected))
        if not re.search(r"(?i)no space|disk|full|free|room", words):
            self._seen.problems.append(f"the disk is full, and the run says: {words}")
        if TEMPORARY_FOLDER in disk.look().files:
            self._seen.problems.append("the disk is full, and half a shard is left in its temporary folder")
        disk.grow(self._rng.randrange(500_000, 2_500_000))

    def _start(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        mark = f"{self._scratch}-{name}"
        self._marks.append(mark)
        own = {"TMPDIR": str(self._temporary), "PYTHONPATH": self._path, processes.MARK: mark}
        environment = {**environ, **own, **self._place.environment}
        with (self._scratch / "said").open("wb") as said:
            return subprocess.Popen(command, cwd=self._scratch, env=environment, stdout=said, stderr=said)

    def _words(self) -> str:
        said = (self._scratch / "said").read_text(encoding="utf-8", errors="replace")
        return " ".join(said.split())[-600:]

    def _wait_while_it_works(self, running: subprocess.Popen[bytes]) -> int:
        """However long it takes: a store may be slow, but a run that hangs changes no shard any more."""
        look, changed = self._place.look(), time.monotonic()
        while time.monotonic() - changed < _ENDS_WITHIN:
            with suppress(subprocess.TimeoutExpired):
                return running.wait(1)
            if (now := self._place.look()).at_work(look):
                look, changed = now, time.monotonic()
        return self._wait(running, 0)

    def _wait(self, running: subprocess.Popen[bytes], within: float) -> int:
        try:
            return running.wait(within)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            raise _GaveUp(f"start {self._seen.starts} has not ended within {within or _ENDS_WITHIN:.0f} s") from None

    def _strike(
        self, running: subprocess.Popen[bytes], kill: Kill, before: Look, started: float, expected: Expected
    ) -> str | None:
        """Kill at the moment that is wanted, or at another if that does not come. What was done; None if it ended."""
        hunting: float | None = None
        workers: list[int] = []
        turn = 0
        while running.poll() is None:
            turn += 1
            now, look = time.monotonic(), self._place.look()
            done, finished = look.stats() - before.stats(), look.stats()
            by_time = kill.moment in (None, moments.STARTING)
            due = now - started >= kill.after if by_time else look.at_work(before) and done >= kill.shards
            last_chance = expected.shards - finished < _LAST_SHARDS and done > 0 and kill.moment != moments.ENDING
            if due or last_chance:
                hunting = hunting or now
                any_will_do = kill.moment is None or last_chance or now - hunting > _HUNT
                if any_will_do or kill.moment == moment(before, look, expected.shards):
                    frozen = processes.freeze(running.pid, workers)
                    at = moment(before, self._place.look(), expected.shards)
                    if running.pid in frozen and (any_will_do or at == kill.moment):
                        return self._kill(frozen, kill.kind, at, expected)
                    processes.thaw(frozen)
            if turn % _TURNS_TO_LOOK_FOR_WORKERS == 0:
                workers = children(running.pid)
                self._had_workers |= bool(workers)
            time.sleep(self._rng.uniform(0.0001, 0.0005 if hunting else 0.002))
        return None

    def _kill(self, frozen: list[int], kind: str, at: str, expected: Expected) -> str:
        """Do it, and look at the dataset before anybody who survived goes on. What was done."""
        parent, *workers = frozen
        if kind in (WORKER, WORKERS) and not workers:
            kind = PARENT
        if kind == WORKER:
            workers = [self._rng.choice(workers)]
        victims = {ALL: frozen, PARENT: [parent], WORKER: workers, WORKERS: workers}
        number = {SIGTERM: signal.SIGTERM, SIGINT: signal.SIGINT}.get(kind, signal.SIGKILL)
        processes.send(victims.get(kind, [parent]), number)
        self._seen.kills[kind, at] += 1
        self._had_workers |= len(frozen) > 1
        try:
            self._blame(f"{kind} while {at}", problems_now(self._place.dataset(), expected))
        finally:
            processes.thaw(frozen)
        return kind

    def _settle(self) -> None:
        """Wait until no process is left of the runs so far."""
        for mark in self._marks:
            seconds = processes.seconds_until_gone(mark, _ORPHANS_WITHIN)
            if seconds is None:
                raise _GaveUp(f"a run has ended, and its processes have not within {_ORPHANS_WITHIN:.0f} s")
            self._seen.longest_orphan = max(self._seen.longest_orphan, seconds)
        self._marks.clear()

    def _blame(self, when: str, problems: list[str]) -> None:
        if problems:
            more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise _GaveUp(f"start {self._seen.starts}, {when}: {'; '.join(problems[:5])}{more}")


def _command(*arguments: str, **options: object) -> list[str]:
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "any2ds", *arguments, *flags]
