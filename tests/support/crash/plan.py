"""What is to happen in a story: commands by chance, one after the other, and the kills that are meant for each."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.crash import moments
from tests.support.crash.check import Expected
from tests.support.crash.places import Place, SmallDisk
from tests.support.crash.source import Row, Source, in_pairs, make_rows, write_list
from tests.support.crash.step import STEP
from tests.support.folder import names_in

# Kinds of kills. The first four end the run.
ALL, PARENT, SIGTERM, SIGINT = "kill -9 of all", "kill -9 of the parent", "SIGTERM", "SIGINT"
WORKER, WORKERS = "kill -9 of a worker", "kill -9 of all workers"
_KINDS = {ALL: 3, PARENT: 3, WORKER: 3, WORKERS: 1, SIGTERM: 1, SIGINT: 1}
_MOMENTS = {
    None: 4,
    moments.STARTING: 2,
    moments.FETCHING: 2,
    moments.WRITING: 3,
    moments.DATA: 4,
    moments.METADATA: 4,
    moments.STATS: 4,
    moments.ENDING: 1,
}
_REPAIR_MOMENTS = {None: 1, moments.REMOVING: 2}

ROWS_PER_SHARD = 8
_MOVES = 4  # after the first list: it grows, another one comes, a retry, damage
_PHASES = 9  # that these make, about


@dataclass(frozen=True, slots=True)
class Told:
    """Which story to play."""

    output_format: str
    seed: int
    on: str = "folder"  # or disk, or s3
    shards: int = 10  # of the first list
    kills: int = 9  # planned, on the average; or pairs of commands
    in_pairs: bool = False  # two commands at a time

    @property
    def name(self) -> str:
        pairs = " in pairs" if self.in_pairs else ""
        return f"{self.output_format} {self.seed}{pairs}" + (f" on {self.on}" if self.on != "folder" else "")


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that is planned."""

    kind: str
    moment: str | None  # None: when the time has come
    after: float  # the start of the run, if it is by time; in parts of what runs take
    shards: int  # that the run has finished before


@dataclass(frozen=True, slots=True)
class Phase:
    """One command, to be repeated until it has ended by itself, or until its kills are used up."""

    name: str
    command: Sequence[str]
    expected: Expected  # while it is at work
    goal: int  # finished shards when it is done, about
    kills: deque[Kill]
    to_the_end: bool = True
    exit_codes: frozenset[int] = frozenset({0, 4})  # of a run that is done; with 4 all rows that were left have failed
    removes: frozenset[int] = frozenset()  # shards that it is to remove


@dataclass(slots=True)
class UrlList:
    """A list of a story, which grows."""

    path: Path
    rows: Sequence[Row]  # in the end
    written: int = 0  # rows that are in the file
    shown: int = 0  # rows that runs are to take; where the file has more, there is a limit


class Plan:
    """Makes the phases of a story, each when the one before it is done."""

    def __init__(self, reported: Told, source: Source, place: Place, scratch: Path) -> None:
        self._reported, self._source, self._place, self._scratch = reported, source, place, scratch
        self.rng = random.Random(reported.name)
        self.lists: list[UrlList] = []
        self._has_pairs = reported.seed % 5 == 4  # of URLs
        self._has_columns = self._has_pairs or self.rng.random() < 0.5

    def phases(self) -> Iterator[Phase]:
        """The first list, then whatever comes."""
        yield from self._more_rows(self.new_list(self._reported.shards))
        moves = [self._growth, self._extension, self._retried]
        if not isinstance(self._place, SmallDisk):
            moves.append(self._damage)
        for move in self.rng.choices(moves, k=_MOVES):
            yield from move()

    def new_list(self, shards: int) -> UrlList:
        rng, number = self.rng, len(self.lists)
        count = shards * ROWS_PER_SHARD - rng.randrange(ROWS_PER_SHARD)
        largest = 20_000 if self._reported.on == "disk" else 5_000
        rows = make_rows(rng, count, self._source.base, largest, number * 1_000_000)
        if self._has_pairs:
            rows = in_pairs(rng, rows)
        path = self._scratch / f"list-{number}.{'parquet' if self._has_columns else 'txt'}"
        self.lists.append(UrlList(path, rows))
        return self.lists[-1]

    def expected(self) -> Expected:
        """What the dataset holds when all that has happened is done."""
        lists = [each.rows[: each.shown] for each in self.lists]
        form = self._reported.output_format
        healed = self._source.healed
        return Expected(lists, ROWS_PER_SHARD, form, self._has_columns, healed, has_steps=not self._has_pairs)

    # --- moves ---

    def _growth(self) -> Iterator[Phase]:
        yield from self._more_rows(self.rng.choice(self.lists))

    def _extension(self) -> Iterator[Phase]:
        yield from self._more_rows(self.new_list(max(2, self._reported.shards // 2)))

    def _more_rows(self, url_list: UrlList) -> Iterator[Phase]:
        """Rows that are added to a list, at once, or more of them while the first are being made."""
        for to_the_end in self.rng.choice([(True,), (False, True)]):
            before = url_list.shown
            self.show(url_list)
            yield self.made(url_list, -(-(url_list.shown - before) // ROWS_PER_SHARD), to_the_end)

    def show(self, url_list: UrlList) -> None:
        """More rows of it; what else the file has then is beyond a limit."""
        left = len(url_list.rows) - url_list.shown
        url_list.shown += self.rng.randint(-(-left // 3), left)
        url_list.written = max(url_list.written, self.rng.choice([url_list.shown, len(url_list.rows)]))

    def made(self, url_list: UrlList, shards: int, to_the_end: bool = True) -> Phase:
        write_list(url_list.rows[: url_list.written], url_list.path)
        goal = self._place.look().stats() + shards
        kills = self._kills(shards, goal)
        return Phase("download", self.download(url_list), self.expected(), goal, kills, to_the_end)

    def _retried(self) -> Iterator[Phase]:
        yield self.retried()

    def retried(self) -> Phase:
        """What has failed is tried again, now that some of it may succeed."""
        self._source.healed = True
        failed = sum(row.outcome(False) != "success" for each in self.lists for row in each.rows[: each.shown])
        shards = -(-failed // ROWS_PER_SHARD)
        goal = self._place.look().stats() + shards
        return Phase("retry", self.retry(), self.expected(), goal, self._kills(shards, goal))

    def _damage(self) -> Iterator[Phase]:
        """Some shards are damaged, removed by `verify --repair`, and made again by the commands that had made them."""
        folder, rng = self._place.dataset(), self.rng
        of_shards = self.expected().at(folder).of_shards
        broken = rng.sample(sorted(of_shards), min(len(of_shards), rng.randint(1, 3)))
        names = {shard: rng.choice(_files_of(shard, folder)) for shard in broken}
        for name in names.values():
            content = (folder / name).read_bytes()
            self._place.change(name, content[: rng.randrange(len(content) * 9 // 10)] if rng.random() < 0.5 else None)
        removed = frozenset(shard for shard in broken if not names[shard].endswith(".idx"))  # that is written anew
        expected, goal = replace(self.expected(), broken=removed), self._place.look().stats()
        kills = self._kills(0, goal, _REPAIR_MOMENTS)
        repair = _command("verify", self._place.url, repair=True, processes_count=1)
        yield Phase("verify --repair", repair, expected, goal, kills, exit_codes=frozenset({0, 1, 3}), removes=removed)
        of_lists = sorted({of_shards[shard].list_number for shard in removed}, key=str)
        for number in rng.sample(of_lists, len(of_lists)):
            yield self.retried() if number is None else self.made(self.lists[number], len(removed))

    def _kills(self, shards: int, goal: int, hit: dict[str | None, int] | None = None) -> deque[Kill]:
        """Kills in a run that makes so many shards, so far apart that the later ones find something to do."""
        rng, hit = self.rng, hit or _MOMENTS
        kills: deque[Kill] = deque()
        count = rng.randint(0, round(2 * self._reported.kills / _PHASES))
        for _ in range(0 if isinstance(self._place, SmallDisk) or self._reported.in_pairs else count):
            kind = rng.choices([*_KINDS], [*_KINDS.values()])[0]
            wanted = rng.choices([*hit], [*hit.values()])[0]
            after = rng.uniform(0, 0.4 if wanted == moments.STARTING else 1)
            kills.append(Kill(kind, wanted, after, rng.randint(0, shards // (2 * count))))
        return kills

    # --- commands ---

    def download(self, url_list: UrlList, **more: object) -> list[str]:
        options: dict[str, object] = {
            "url_list": url_list.path,
            "output_folder": self._place.url,
            "output_format": self._reported.output_format,
            "number_sample_per_shard": ROWS_PER_SHARD,
            "processes_count": 1 + self._reported.seed % 2,
            "disable_all_reencoding": True,  # what is served only begins as pictures do
            "timeout": 120,  # nothing is slow here but the machine, which may be busy, and processes that are frozen
        }
        if url_list.shown < url_list.written:
            options["limit"] = url_list.shown
        if url_list is not self.lists[0]:
            options["incremental_mode"] = "extend"
        if self._has_columns:
            options |= {"caption_col": "caption", "save_additional_columns": "number"}
        if self._has_pairs:
            options["url_col"] = "image:url,mask:second"
        else:
            options["transform"] = STEP
        if self._reported.on == "disk":
            options["min_free_bytes"] = 0
        return _command(quiet=True, **options, **more)

    def retry(self, **more: object) -> list[str]:
        return _command("retry", self._place.url, codes="all", timeout=120, **more)

    def verify(self) -> list[str]:
        return _command("verify", self._place.url, processes_count=1)


def _files_of(shard: int, folder: Path) -> list[str]:
    """The files of a shard, of which one may be a folder's."""
    names = [name for name in names_in(folder) if name[:5] == f"{shard:05d}"]
    return sorted(
        path.relative_to(folder).as_posix()
        for name in names
        for path in ([folder / name] if (folder / name).is_file() else sorted((folder / name).iterdir())[:1])
    )


def _command(*arguments: str, **options: object) -> list[str]:
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "any2ds", *arguments, *flags]
