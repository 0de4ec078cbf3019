"""One seed: commands that are killed again and again and started again until they are done, and what was seen."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from any2ds.core.layout import (
    LOCK_FILE,
    RUN_FILE,
    SEGMENTS_FOLDER,
    SHARDS_FILE,
    STATE_FOLDER,
    TEMPORARY_FOLDER,
    finished_shards,
)
from any2ds.testing.processes import children
from tests.support.crash import moments, processes
from tests.support.crash.check import Expected, problems_at_the_end, problems_now
from tests.support.crash.moments import Look, moment
from tests.support.crash.places import Folder, Place, SmallDisk, small_disk
from tests.support.crash.plan import (
    ALL,
    PARENT,
    ROWS_PER_SHARD,
    SIGINT,
    SIGTERM,
    WORKER,
    WORKERS,
    Kill,
    Phase,
    Plan,
    Told,
    UrlList,
)
from tests.support.crash.s3 import failing_bucket
from tests.support.crash.source import Source, served, write_list
from tests.support.folder import names_in

DISK_FULL = "disk full"
_EXIT_CODES = {ALL: {-9}, PARENT: {-9}, SIGTERM: {143}, SIGINT: {130}}

_ROOT = Path(__file__).parents[3]
_OF_MACHINE = ("any2ds-hosts-", "any2ds-robots-")  # folders for temporary files of all runs of a user
_LAST_SHARDS = 2  # with fewer to come than this, any moment will do as well
_TURNS_TO_LOOK_FOR_WORKERS = 16
_ENDS_WITHIN = 120.0  # seconds after it has last changed a shard
_GRACE = 10.0  # seconds that a run has from SIGTERM or SIGINT on; if it takes less, nothing is left over
_STOPS_WITHIN = 3 * _GRACE  # seconds in which it ends even on a machine that is busy with other things
_ORPHANS_WITHIN = 15.0  # seconds in which processes end whose parent was killed
_MOST_STARTS = 40  # of a phase
_REFUSED = re.compile("in use|is not finished|holds no finished shard|not an any2ds dataset|is empty, or")
_DONE = {0, 4}


@dataclass(slots=True)
class Seen:
    """What happened in it."""

    reported: Told
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, moment) -> how often
    starts: int = 0
    problems: list[str] = field(default_factory=list)
    longest_orphan: float = 0.0  # seconds for which processes outlived the run
    commands: Counter[str] = field(default_factory=Counter)  # those that came to their end
    pairs: Counter[str] = field(default_factory=Counter)  # what became of two commands on one folder
    failed_requests: int = 0  # of the object store
    seconds: float = 0.0


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
                failing_bucket(f"crash-{reported.output_format}-{reported.seed}", reported.name, scratch, source.spans)
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


def play_or_exit(reported: Told, scratch: Path) -> Seen:
    """`play` in a process of its own, which ends after Ctrl-C instead of playing another story."""
    try:
        return play(reported, scratch)
    except KeyboardInterrupt:
        os._exit(130)


class _GaveUp(Exception):
    """It makes no sense to go on; says why."""


class _Story:
    def __init__(self, reported: Told, seen: Seen, source: Source, place: Place, scratch: Path) -> None:
        self._reported, self._seen, self._source, self._place, self._scratch = reported, seen, source, place, scratch
        self._plan = Plan(reported, source, place, scratch)
        self._rng = random.Random(reported.name)  # for what is not planned
        self._marks: list[str] = []
        self._removed: frozenset[int] = frozenset()  # shards that a repair has removed, and no command has made again
        self._seconds = 2.0  # that a command takes if nothing comes between, on this machine, as busy as it is
        self._had_workers = False  # the present run, of which one is there before it has the folder
        self._temporary = scratch / "tmp"
        self._temporary.mkdir()
        # pyarrow imports pandas wherever that is installed, which would be a third of the time of all these processes.
        (scratch / "absent").mkdir()
        (scratch / "absent" / "pandas.py").write_text("raise ImportError\n")
        # The run starts in another folder, and its transform is in this package.
        self._path = os.pathsep.join(filter(None, [str(scratch / "absent"), str(_ROOT), os.environ.get("PYTHONPATH")]))

    def play(self) -> None:
        if self._reported.in_pairs:
            self._play_pairs()
        else:
            for phase in self._plan.phases():
                self._run(phase)
        # The slots of hosts and what robots.txt says stay: the next run of this machine uses them.
        if left := [path.name for path in self._temporary.iterdir() if not path.name.startswith(_OF_MACHINE)]:
            self._seen.problems.append(f"in the end: left over in the folder for temporary files: {', '.join(left)}")
        code = self._wait(self._start(self._plan.verify(), "verify"), _ENDS_WITHIN)
        self._blame("in the end", [f"any2ds verify ends with {code}: {self._words('verify')}"] if code else [])
        self._seen.commands["verify"] += 1
        self._settle()

    def kill_everything(self) -> None:
        for mark in self._marks:
            processes.send(processes.marked(mark), signal.SIGKILL)

    # --- two commands at a time ---

    def _play_pairs(self) -> None:
        """Start two commands on the folder, again and again, and then what completes it."""
        url_list = self._plan.new_list(self._reported.kills * 3 + 1)
        for number in range(self._reported.kills):
            self._pair(url_list, number)
        for phase in (self._plan.made(url_list, 0), self._plan.retried()):
            self._run(phase)

    def _pair(self, url_list: UrlList, number: int) -> None:
        """Start two commands, the second at any moment of the first, which may be killed then."""
        rng, first, second = self._rng, f"first-{number}", f"second-{number}"
        write_list(url_list.rows, url_list.path)
        url_list.written = len(url_list.rows)
        url_list.shown += rng.randint(1, 2 * ROWS_PER_SHARD)
        running = {first: self._start(self._plan.download(url_list, user_agent=first), first)}
        started = time.monotonic()
        if rng.random() < 0.3:
            self._source.healed, other = True, self._plan.retry(user_agent=second)
        else:
            url_list.shown += rng.choice([0, ROWS_PER_SHARD])
            other = self._plan.download(url_list, user_agent=second)
        is_far, kills = self._reported.on == "s3" and rng.random() < 0.4, rng.random() < 0.25
        time.sleep(rng.uniform(0, 1.2 * self._seconds))
        running[second] = self._start(other, second, is_far)
        if kills and not is_far:  # else it takes the second a minute to be sure of that
            time.sleep(rng.uniform(0, self._seconds / 2))
            processes.send([running[first].pid], signal.SIGKILL)
        codes = {first: self._wait_while_it_works(running[first])}
        if codes[first] in _DONE:
            self._seconds = time.monotonic() - started
        codes[second] = self._wait_while_it_works(running[second])
        self._settle()
        what = self._judge_pair(codes, {0, 4, -9} if kills else _DONE)
        self._blame(f"after {first}", problems_now(self._place.dataset(), self._plan.expected()))
        how = "on two machines" if is_far else "the first killed" if codes[first] == -9 else "side by side"
        self._seen.pairs[f"{what}, {how}"] += 1

    def _judge_pair(self, codes: Mapping[str, int], allowed: Collection[int]) -> str:
        """What became of two commands, of which only one may be at work at a time."""
        spans = {name: self._source.spans.of(name) for name in codes}
        refused = {name: self._words(name) for name, code in codes.items() if code == 2}
        known = f"{codes}, at work {spans}, {refused}"
        if any(code not in allowed and name not in refused for name, code in codes.items()):
            raise _GaveUp(f"a pair ended as it must not: {known}; {'; '.join(map(self._words, codes))}")
        if any(spans[name] or not _REFUSED.search(words) for name, words in refused.items()):
            raise _GaveUp(f"one was refused for another reason, or after it had begun: {known}")
        if len(refused) == 2 and all("in use" in words for words in refused.values()):
            raise _GaveUp(f"both were refused: {known}")
        first, second = spans.values()
        if first and second and first[0] <= second[1] and second[0] <= first[1]:
            raise _GaveUp(f"both were at work at the same time: {known}")
        return "one refused" if refused else "one after the other" if first and second else "one had nothing to do"

    # --- one command after the other ---

    def _run(self, phase: Phase) -> None:
        before = finished_shards(names_in(self._place.dataset()))
        for _ in range(_MOST_STARTS):
            if self._attempt(phase):
                self._seen.commands[phase.name] += 1
                break
            if not (phase.kills or phase.to_the_end):
                return
            if self._rng.random() < 0.5:  # else the next one starts while others may still be at it
                self._settle()
        else:
            raise _GaveUp(
                f"{phase.name} is not done after {_MOST_STARTS} starts; {self._words(str(self._seen.starts))}"
            )
        self._settle()
        folder = self._place.dataset()
        now = finished_shards(names_in(folder))
        if phase.removes and now != before - phase.removes:
            raise _GaveUp(f"{phase.name} of {sorted(phase.removes)} leaves {sorted(now)} of {sorted(before)}")
        self._removed = (self._removed | phase.removes) - now
        check = problems_now if self._removed else problems_at_the_end
        self._blame(f"after {phase.name}", check(folder, phase.expected))

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
            kind = self._strike(running, kill, before, started, phase)
            if kind is None:
                break
            phase.kills.popleft()
            kinds.append(kind)
            if kind in _EXIT_CODES:
                break
        asked = time.monotonic()
        is_stopping = kinds[-1:] in ([SIGTERM], [SIGINT])
        code = self._wait(running, _STOPS_WITHIN) if is_stopping else self._wait_while_it_works(running)
        if not kinds:
            self._seconds = time.monotonic() - started
        self._judge(code, kinds, phase)
        if is_stopping:
            self._settle()
            if time.monotonic() - asked < _GRACE:
                left = self._left_by(running.pid)
                self._blame(f"after {kinds[-1]}", [f"left over: {', '.join(left)}"] if left else [])
        return code in phase.exit_codes

    def _judge(self, code: int, kinds: list[str], phase: Phase) -> None:
        """Whether the run ended as it must after what was done to it."""
        if isinstance(self._place, SmallDisk) and code == 1 and not kinds:
            self._make_room(self._place, phase.expected)
            return
        last = kinds[-1] if kinds else ""
        allowed = phase.exit_codes | _EXIT_CODES.get(last, set())
        if not self._had_workers:  # it may have been before there was anything to clean up
            # In the middle of its own start Python ends with 1 where it is interrupted.
            allowed |= {SIGTERM: {-signal.SIGTERM}, SIGINT: {-signal.SIGINT, 1}}.get(last, set())
        if code not in allowed:
            what = ", ".join(kinds) or "nothing was done to it"
            raise _GaveUp(
                f"start {self._seen.starts} ({what}) ended with {code}: {self._words(str(self._seen.starts))}"
            )

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
        words = self._words(str(self._seen.starts))
        self._seen.kills[DISK_FULL, "writing"] += 1
        self._blame("disk full", problems_now(disk.dataset(), expected))
        if not re.search(r"(?i)no space|disk|full|free|room", words):
            self._seen.problems.append(f"the disk is full, and the run says: {words}")
        if TEMPORARY_FOLDER in disk.look().files:
            self._seen.problems.append("the disk is full, and half a shard is left in its temporary folder")
        disk.grow(self._rng.randrange(500_000, 2_500_000))

    def _start(self, command: Sequence[str], name: str, is_far: bool = False) -> subprocess.Popen[bytes]:
        """`is_far`: as on another machine, where the locks of this one are not seen."""
        mark = f"{self._scratch}-{name}"
        self._marks.append(mark)
        temporary = self._scratch / f"tmp-{name}" if is_far else self._temporary
        temporary.mkdir(exist_ok=True)
        own = {"TMPDIR": str(temporary), "PYTHONPATH": self._path, processes.MARK: mark, "AWS_SDK_UA_APP_ID": name}
        environment = {**os.environ, **own, **self._place.environment}
        with self._said(name).open("wb") as said:
            return subprocess.Popen(command, cwd=self._scratch, env=environment, stdout=said, stderr=said)

    def _said(self, name: str) -> Path:
        return self._scratch / f"said-{name}"

    def _words(self, name: str) -> str:
        return " ".join(self._said(name).read_text(encoding="utf-8", errors="replace").split())[-600:]

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
        self, running: subprocess.Popen[bytes], kill: Kill, before: Look, started: float, phase: Phase
    ) -> str | None:
        """Kill at the moment that is wanted, or at another if that does not come. What was done; None if it ended."""
        hunting: float | None = None
        workers: list[int] = []
        turn = 0
        while running.poll() is None:
            turn += 1
            now, look = time.monotonic(), self._place.look()
            done, finished = look.stats() - before.stats(), look.stats()
            if kill.moment in (None, moments.STARTING, moments.REMOVING):
                due = now - started >= kill.after * self._seconds
            elif kill.moment == moments.ENDING:
                due = finished >= phase.goal
            else:
                due = look.at_work(before) and done >= kill.shards
            last_chance = phase.goal - finished < _LAST_SHARDS and done > 0 and kill.moment != moments.ENDING
            if due or last_chance:
                hunting = hunting or now
                late = kill.moment != moments.REMOVING and now - hunting > self._seconds / 2
                any_will_do = kill.moment is None or last_chance or late
                if any_will_do or kill.moment == moment(before, look, phase.goal):
                    frozen = processes.freeze(running.pid, workers)
                    at = moment(before, self._place.look(), phase.goal)
                    if running.pid in frozen and (any_will_do or at == kill.moment):
                        return self._kill(frozen, kill.kind, at, phase.expected)
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
