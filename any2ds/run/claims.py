"""Any number of runs share out the shards of a dataset as they go: each takes the next one that none has taken.

A claim is a small file `.any2ds/claims/<shard>.<generation>`, created atomically, that names its maker; the highest
generation counts. It holds for as long as its maker lives: that is, has its lock file and beats it. Whoever finds a
maker dead first sees to it that it publishes nothing any more, then creates the next generation, as one of several
does, and makes the shard if it is not finished by then. No claim is given back and made again under the same name, so
that what was read of one stays true; all are removed together once every shard is finished, or nobody is at work.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import orjson

from any2ds.config.options import Config, RunOptions, ShareOptions
from any2ds.core import layout
from any2ds.core.errors import OptionError, OutputError, shard_count
from any2ds.core.layout import Layout
from any2ds.core.processes.cores import cores
from any2ds.core.reports import Event, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.dataset.shard_list import entry_of
from any2ds.distributors._contract import Distributor, Worker
from any2ds.readers.plan import State
from any2ds.run.monitor import Outlook
from any2ds.run.ranks import Member
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import Hold, LockFile
from any2ds.storage.lock.run_lock import DEFAULT_INTERVALS, Intervals, RunLock, fence_off, is_dead
from any2ds.storage.patience import persist
from any2ds.storage.stores import is_object_store
from any2ds.storage.swap import finish_swap, finish_swaps

log = logging.getLogger(__name__)

_GROUP = "claim"
_DIGITS = 8
_BLOCK_DIGITS = 3  # shards whose claims are listed together, which is one page of an object store
_NAME = re.compile(rf"(\d{{{_DIGITS},}})\.(\d+)(\.failed)?")
_MOST_GENERATIONS = 10  # makers that may have died over a shard before nobody of the others tries it
_AT_ONCE = 200  # files that are looked for one by one; for more of them an object store is listed
# Between two looks of one that waits for others, in looks of a lock: a store is asked more rarely.
_LOCAL_LOOKS, _REMOTE_LOOKS = 2, 8
_TELL = 20.0  # seconds of waiting that nobody has to be told of
_TRIES = 100  # to make a file in a folder that others remove

Again = Callable[[Callable[[int, int], State]], Iterator[ShardJob]]
"""Reads the list anew: the jobs of those shards that a function, of their number and their rows, does not call done."""


def is_claiming(share: ShareOptions, running: RunOptions) -> bool:
    """Whether the options ask for claims. Raises OptionError if they ask for something else as well."""
    if share.claim is None:
        return False
    if share.rank is not None or share.world_size not in (None, 1):
        raise OptionError("claim: runs that claim shards have no rank: leave out rank and world_size, or claim")
    if running.distributor not in ("inline", "multiprocessing"):
        raise OptionError(
            f"claim: distributor={running.distributor} shares the shards out itself; claims are for runs that each make"
            " theirs on one machine"
        )
    return True


@dataclass(frozen=True, slots=True)
class Claim:
    """That somebody makes a shard."""

    shard_id: int
    generation: int = 0  # how many have had it before

    @property
    def name(self) -> str:
        """Of its file, in the folder of claims."""
        return f"{self.shard_id:0{_DIGITS}d}.{self.generation}"

    @property
    def next(self) -> Claim:
        return Claim(self.shard_id, self.generation + 1)


@dataclass(frozen=True, slots=True)
class Maker:
    """Who has a claim."""

    member: str
    run: str  # whom its lock file has to name


Standing = dict[int, tuple[Claim, bool]]
"""Shard -> the claim on it that counts, and whether the shard has failed with it."""


class Ledger:
    """The claims in an output folder. Its methods raise whatever the file system raises."""

    def __init__(self, output: OutputFolder) -> None:
        self._output = output
        self._stop = threading.Event()

    def refuse_others(self) -> None:
        """Raises OutputError for a kind of store that cannot create a file where there is none, and only there."""
        if self._output.is_private or not (self._output.is_local or is_object_store(self._output.fs)):
            raise self._unfit("files cannot be created atomically there")

    def check(self) -> None:
        """Raises OutputError if an object store does not do as it is asked."""
        if self._output.is_local:
            return
        probe = LockFile(self._output, _path(f"_probe_{uuid.uuid4().hex[:8]}"))
        try:
            is_able = probe.create(b"any2ds")
        finally:
            probe.remove()
        if not is_able:
            raise self._unfit("it writes over an object that is to be created only if there is none (If-None-Match)")

    def _unfit(self, why: str) -> OutputError:
        return OutputError(
            f"{self._output.url!r}: shards cannot be claimed there, because {why}. Share them out by --rank and "
            "--world_size instead"
        )

    def create(self, claim: Claim, maker: Maker) -> bool:
        """Whether it is his: of all that try one succeeds."""
        self._output.guard()
        content = orjson.dumps({"any2ds_claim": {"member": maker.member, "run": maker.run}}) + b"\n"
        if self._output.is_local:
            return self._create_file(claim, content)
        return persist(f"claiming shard {claim.shard_id}", lambda: self._create_object(claim, content), self._stop)

    def _create_file(self, claim: Claim, content: bytes) -> bool:
        path = Path(self._output.path) / _path(claim.name)
        for _ in range(_TRIES):
            try:
                with open(path, "xb") as stream:
                    try:
                        stream.write(content)
                        stream.flush()
                    except BaseException:  # such as a full disk; nobody has it
                        path.unlink(missing_ok=True)
                        raise
                return True
            except FileExistsError:
                return False
            except FileNotFoundError:  # the first one, or all were just removed
                path.parent.mkdir(parents=True, exist_ok=True)
        raise FileNotFoundError(f"{path.parent} is removed again and again")

    def _create_object(self, claim: Claim, content: bytes) -> bool:
        try:
            self._output.put(_path(claim.name), content, new=True)
            return True
        except Exception:
            found = self._output.read(_path(claim.name))
            if found is None:
                raise
            return found == content  # an answer that got lost

    def standing(self, shards: Iterable[int] | None = None) -> Standing:
        """The claims that count on these shards, and maybe on others; on all without `shards`."""
        found: Standing = {}
        blocks = {shard_id // 10**_BLOCK_DIGITS for shard_id in shards or ()}
        if self._output.is_local or shards is None:
            names = self._output.names(layout.CLAIMS_FOLDER)
        else:
            names = [
                name
                for block in sorted(blocks)
                for name in self._output.names(layout.CLAIMS_FOLDER, f"{block:0{_DIGITS - _BLOCK_DIGITS}d}")
            ]
        for claim, failed in _parsed(names):
            before = found.get(claim.shard_id)
            if before is None or (before[0].generation, before[1]) < (claim.generation, failed):
                found[claim.shard_id] = claim, failed
        return found

    def makers(self, claims: Sequence[Claim]) -> dict[Claim, Maker | None]:
        """Who has them; None for one that was not written to its end, or is gone."""
        names = {_path(claim.name): claim for claim in claims}
        return {names[name]: _maker(content) for name, content in self._output.read_many(list(names))}

    def mark_failed(self, claim: Claim) -> None:
        """The shard cannot be made by whoever has the claim."""
        self._output.write(_path(f"{claim.name}.failed"), b"any2ds\n")

    def clear(self, seats: Collection[str], shards: Collection[int] | None = None) -> None:
        """Remove all, or those on `shards`, but for the `seats` of members; by whoever has the folder."""
        names = self._output.names(layout.CLAIMS_FOLDER)
        if shards is not None:
            names = [name for name in names if not (match := _NAME.fullmatch(name)) or int(match[1]) in shards]
        self._output.remove_many([_path(name) for name in names if _path(name) not in seats])
        self._output.remove_folder_if_empty(layout.CLAIMS_FOLDER)

    def take_seat(self, member: str, content: bytes) -> None:
        """Make the file without which a member publishes nothing. Unlike its lock file it is never written again: a
        sign of life that was on its way when the member was fenced off does not bring it back."""
        for last in reversed(range(_TRIES)):
            self._output.create_folder(layout.CLAIMS_FOLDER)
            try:
                LockFile(self._output, seat_of(member)).create(content)
                return
            except FileNotFoundError:  # whoever was the last one has just removed the folder
                if last == 0:
                    raise

    def leave_seat(self, member: str) -> None:
        LockFile(self._output, seat_of(member)).remove()
        self._output.remove_folder_if_empty(layout.CLAIMS_FOLDER)

    def close(self) -> None:
        """Nothing is tried again any more."""
        self._stop.set()


def seat_of(member: str) -> str:
    """The file of a member that has not been fenced off."""
    return _path(f"{member}.seat")


def _path(name: str) -> str:
    return f"{layout.CLAIMS_FOLDER}/{name}"


def _parsed(names: Iterable[str]) -> Iterator[tuple[Claim, bool]]:
    for name in names:
        if match := _NAME.fullmatch(name):
            yield Claim(int(match[1]), int(match[2])), match[3] is not None


def _maker(content: bytes | None) -> Maker | None:
    try:
        written = orjson.loads(content or b"")["any2ds_claim"]
        return Maker(str(written["member"]), str(written["run"]))
    except (ValueError, KeyError, TypeError):
        return None


def _fence_off(output: OutputFolder, member: str) -> None:
    LockFile(output, seat_of(member)).remove()
    fence_off(output, member)


class _Deaths:
    """Which makers of claims are dead: what is known of them, or else that they give no sign of life while we look."""

    def __init__(self, output: OutputFolder, intervals: Intervals, pause: float) -> None:
        """`pause` is in seconds, about what lies between two looks."""
        self._output, self._intervals, self._pause = output, intervals, pause
        self._signs: dict[Maker | Claim, tuple[bytes, float]] = {}  # the last one, and the seconds since it came
        self._looked = time.monotonic()
        self._fenced: set[str] = set()

    def of(self, makers: Collection[Maker | Claim]) -> set[Maker | Claim]:
        """The dead ones, which publish nothing from now on. A claim stands for its maker, where it does not say who."""
        now = time.monotonic()
        # Looks, not the clock alone: we may have been suspended, too, and the others with us.
        passed, self._looked = min(now - self._looked, 2 * self._pause), now
        dead = {maker for maker in makers if self._is_dead(maker, passed)}
        news = sorted({maker.member for maker in dead if isinstance(maker, Maker)} - self._fenced)
        for member in news:
            log.info("%s is dead: others make its shards", member)
            _fence_off(self._output, member)
            self._fenced.add(member)
        if news and not self._output.is_local:
            time.sleep(self._intervals.settle)  # what a worker has read of the lock it trusts for a while
        return dead

    def _is_dead(self, maker: Maker | Claim, passed: float) -> bool:
        if isinstance(maker, Maker):
            file = LockFile(self._output, layout.member_lock(maker.member))
            sign = file.read()
            holder = file.holder() if sign is not None else None
            if sign is None or (holder is not None and holder.run != maker.run):
                return True
            if self._output.read(seat_of(maker.member)) is None:
                return True
            if maker.member in self._fenced:  # its last sign of life was on its way when we fenced it off
                file.remove()
                return True
            if is_dead(self._output, maker.member, sign):
                return True
        else:
            sign = b""
        before, silent = self._signs.get(maker, (None, 0.0))
        silent = silent + passed if sign == before else 0.0
        self._signs[maker] = sign, silent
        return silent >= self._intervals.stale


class Claims:
    """What one run has to do with claims: it takes shards, and in the end those of others that died."""

    def __init__(self, output: OutputFolder, config: Config, intervals: Intervals = DEFAULT_INTERVALS) -> None:
        """Raises OutputError if there can be none in this folder."""
        self._output, self._intervals = output, intervals
        self._ledger = Ledger(output)
        self._ledger.refuse_others()
        self._names = Layout(config.output.number_sample_per_shard, config.output.oom_shard_count)
        running = config.run
        self._least = 2 * (1 if running.distributor == "inline" else running.processes_count or cores())
        self._maker = Maker(f"{_GROUP}-{uuid.uuid4().hex[:8]}", "")
        self.member = Member(self._maker.member, _GROUP, 1 / (1 + len(self._others())), self._makes)
        self._pause = intervals.look * (_LOCAL_LOOKS if output.is_local else _REMOTE_LOOKS)
        self._deaths = _Deaths(output, intervals, self._pause)
        self._before: Standing = {}  # when it joined: what has failed by then is tried again by a later start
        self._own: dict[int, Claim] = {}
        self._left: dict[int, int] = {}  # shards that others have, with their rows
        self._rows = 0  # of the shard that is being decided on
        self._block = -1
        self._known: Standing = {}  # of that block, as of the last look
        self._open: set[int] = set()  # shards that were given out, and not reported on
        self._changed = threading.Condition()
        self._is_closed = False
        self._made = 0  # shards, by this run

    def begin(self, lock: RunLock) -> None:
        """Under the lock of the folder, when it has joined. Raises OutputError if the store is not fit for it."""
        self._maker = Maker(self.member.name, lock.holds[-1].run)
        self._ledger.check()
        if self._is_alone():
            self._ledger.clear(())
            finish_swaps(self._output)
        self._before = self._ledger.standing()
        content = LockFile(self._output, lock.holds[-1].file).read()
        self._ledger.take_seat(self.member.name, content or b"")
        lock.holds = (*lock.holds, Hold(seat_of(self.member.name), self._maker.run))

    def _others(self) -> list[str]:
        """The others that have a lock file."""
        with contextlib.suppress(FileNotFoundError):
            names = self._output.names_like(layout.member_lock(f"{_GROUP}-"))
            return sorted({layout.member_of(name) for name in names} - {"", self._maker.member})
        return []

    def _is_alone(self) -> bool:
        """Whether no other lives, for all that is known; nothing is left of those who surely do not."""
        is_alone = True
        for member in self._others():
            content = LockFile(self._output, layout.member_lock(member)).read()
            if content is None or is_dead(self._output, member, content):
                _fence_off(self._output, member)
            else:
                is_alone = False
        return is_alone

    # --- while the list is read ---

    def asked(self, finished: Callable[[int, int], State]) -> Callable[[int, int], State]:
        """The same; whose member is this one."""

        def state(shard_id: int, rows: int) -> State:
            self._rows = rows
            return finished(shard_id, rows)

        return state

    def _makes(self, shard_id: int) -> bool:
        if (block := shard_id // 10**_BLOCK_DIGITS) != self._block:
            self._look(block)
        claim = self._free(shard_id)
        if claim is not None and self._ledger.create(claim, self._maker):
            return self._is_to_be_made(claim, self._rows)
        if claim is not None:
            self._look(block)  # somebody was faster, and may be so with the next ones
        self._left[shard_id] = self._rows
        return False

    def _look(self, block: int) -> None:
        self._block, self._known = block, self._ledger.standing([block * 10**_BLOCK_DIGITS])

    def _free(self, shard_id: int) -> Claim | None:
        """The claim by which it can be had at once."""
        if shard_id not in self._known:
            return Claim(shard_id)
        claim, failed = self._known[shard_id]
        return claim.next if failed and self._before.get(shard_id) == (claim, True) else None

    def _is_to_be_made(self, claim: Claim, rows: int) -> bool:
        """Of a claim of our own: whether nobody had made the shard before."""
        if claim.generation:
            self._finish_swap(claim.shard_id)
        if self._there([claim.shard_id]).get(claim.shard_id, -1) >= rows:
            return False
        self._own[claim.shard_id] = claim
        return True

    def _finish_swap(self, shard_id: int) -> None:
        """What the maker before may have left half replaced is whole again, or as it was."""
        shard = self._names.shard_name(shard_id)
        if self._output.names(f"{layout.SWAP_FOLDER}/{shard}"):
            finish_swap(self._output, shard)

    def _there(self, shards: Sequence[int]) -> dict[int, int]:
        """The rows in each of these shards that is finished."""
        names = {self._names.stats_name(shard_id): shard_id for shard_id in shards}
        found = {}
        for name, content in self._output.read_many(list(names)):
            with contextlib.suppress(ValueError):
                if content is not None:
                    found[names[name]] = entry_of(names[name], content).count
        return found

    # --- not further ahead than is of use ---

    def paced(self, jobs: Iterator[ShardJob], outlook: Callable[[], Outlook]) -> Iterator[ShardJob]:
        """The same jobs, but not further ahead than this run is fast: hosts that answer slowly make a fetcher look for
        others far behind, in shards that it is not going to finish soon."""
        with closing(cast(Any, jobs)):
            while self._wait_for_room(outlook) and (job := next(jobs, None)) is not None:
                with self._changed:
                    self._open.add(job.shard_id)
                yield job

    def _wait_for_room(self, outlook: Callable[[], Outlook]) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._open) < self._most(outlook()))
            return not self._is_closed

    def _most(self, outlook: Outlook) -> int:
        """Shards that it may have at a time: beyond what keeps its processes busy what it is going to make while all
        together make a half of what is left, as in guided scheduling. What it has made so far tells how fast it is."""
        seen = len(self._own) + len(self._left)
        whole: float | None = outlook.rows
        if whole is None and outlook.share_read:
            whole = outlook.planned / outlook.share_read
        left = seen if whole is None else (whole - outlook.planned) / self._names.rows_per_shard
        return self._least + int(left / 2 * self._made / max(1, seen))

    def told(self, distributor: Distributor) -> Distributor:
        """The same, which tells it what becomes of shards."""
        return _Told(distributor, self._settle)

    def _settle(self, event: ShardReport | ShardError) -> None:
        with self._changed:
            self._open.discard(event.shard_id)
            self._made += isinstance(event, ShardReport)
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits ends. The claims hold until the lock file is gone."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._ledger.close()
        with contextlib.suppress(Exception):  # others remove it, with the rest
            self._ledger.leave_seat(self.member.name)

    # --- what others leave ---

    def rest(self, failed: Sequence[ShardError], again: Again | None) -> Iterator[ShardJob] | None:
        """Once all of its own shards are made, or have `failed` for good: jobs that others leave behind.

        It waits until there are any, or everything is made: nobody waits who has something to do. None if there is
        nothing to wait for, or without `again` no way to make it.
        """
        for error in failed:
            if claim := self._own.pop(error.shard_id, None):
                self._ledger.mark_failed(claim)
        if self._left:
            self._forget_finished()
        if self._left and again is None:
            log.warning(
                "%s made by others; what they should leave behind takes another run, because the url list can be read "
                "only once",
                shard_count(len(self._left), "is", "are"),
            )
            return None
        return self._taken_over(again) if self._left and again is not None else None

    def _taken_over(self, again: Again) -> Iterator[ShardJob]:
        began, told = time.monotonic(), False
        while self._left and not self._is_closed:
            if free := self._abandoned():
                log.info("%s left by others", shard_count(len(free), "is", "are"))
                jobs = again(lambda shard_id, rows: self._take(free.get(shard_id), rows))
                for job in self.paced(jobs, lambda: Outlook(0)):
                    yield replace(job, attempt=1)
                return
            if self._left and not told and time.monotonic() - began > _TELL:
                told = True
                log.warning("waiting for others, which make %s", shard_count(len(self._left)))
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._pause * random.uniform(0.75, 1.25))
            self._forget_finished()

    def _take(self, claim: Claim | None, rows: int) -> State:
        if claim is None or self._is_closed or not self._ledger.create(claim, self._maker):
            return "done"
        if not self._is_to_be_made(claim, rows):
            return "done"
        return "short" if self._there([claim.shard_id]) else "missing"

    def _forget_finished(self) -> None:
        shards = list(self._left)
        if len(shards) > _AT_ONCE:
            there = layout.finished_shards(self._output.names())
            shards = [shard_id for shard_id in shards if shard_id in there]
        for shard_id, rows in self._there(shards).items():
            if rows >= self._left[shard_id]:
                del self._left[shard_id]

    def _abandoned(self) -> dict[int, Claim]:
        """What can be had of the shards that others have; those that have failed are left at that."""
        standing = self._ledger.standing(self._left)
        free: dict[int, Claim] = {}
        held: dict[int, Claim] = {}
        for shard_id in list(self._left):
            claim, failed = standing.get(shard_id, (None, False))
            if claim is None:
                free[shard_id] = Claim(shard_id)
            elif failed and self._before.get(shard_id) == (claim, True):
                free[shard_id] = claim.next
            elif failed or claim.generation - self._first_generation(shard_id) >= _MOST_GENERATIONS:
                del self._left[shard_id]
                log.warning("shard %d could not be made by those who tried; another run will", shard_id)
            else:
                held[shard_id] = claim
        makers = self._ledger.makers(list(held.values()))
        by_maker: defaultdict[Maker | Claim, list[Claim]] = defaultdict(list)
        for claim in held.values():
            by_maker[makers.get(claim) or claim].append(claim)
        for maker in self._deaths.of(by_maker.keys()):
            free |= {claim.shard_id: claim.next for claim in by_maker[maker]}
        return free

    def _first_generation(self, shard_id: int) -> int:
        return self._before[shard_id][0].generation if shard_id in self._before else 0

    def clear(self, shards: Collection[int]) -> None:
        """Remove the claims on `shards`, which are finished, and what dead members have left.

        Others may have begun with another list by now, behind this one.
        """
        self._is_alone()
        self._ledger.clear([seat_of(member) for member in (*self._others(), self.member.name)], shards)


class _Told:
    def __init__(self, distributor: Distributor, settled: Callable[[ShardReport | ShardError], None]) -> None:
        self._distributor, self._settled = distributor, settled

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        events: Any = self._distributor.map(worker, jobs)
        with closing(events):
            for event in events:
                if isinstance(event, (ShardReport, ShardError)):
                    self._settled(event)
                yield event

    def stop(self, grace: float) -> None:
        self._distributor.stop(grace)
