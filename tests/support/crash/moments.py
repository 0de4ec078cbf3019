"""What a run was at when it was looked at, told from the names in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from any2ds.core.layout import RUN_FILE, STATE_FOLDER, TEMPORARY_FOLDER

STARTING = "starting"
FETCHING = "fetching"
WRITING = "writing a shard"
DATA = "data published, metadata or stats not"
METADATA = "data and metadata published, no stats yet"
STATS = "stats staged, the rest published"
ENDING = "ending"
REMOVING = "removing shards"
ALL = (STARTING, FETCHING, WRITING, DATA, METADATA, STATS, ENDING, REMOVING)

_STATS_SUFFIX = "_stats.json"
_SMALL = "~"  # a small file that is about to be renamed, such as that of the stats


@dataclass(frozen=True, slots=True)
class Look:
    """What lay in a folder at one moment."""

    files: Mapping[str, int]  # name -> what tells it from a former file of that name
    staged: frozenset[str] = frozenset()  # files on their way there: folder/name, or ~name in its `.any2ds/tmp`

    def stats(self) -> int:
        """Finished shards."""
        return sum(name.endswith(_STATS_SUFFIX) for name in self.files)

    def at_work(self, before: Look) -> bool:
        """Whether shards are in the making, or have been since `before`."""
        mine = {name: mark for name, mark in self.files.items() if name[:1].isdigit()}
        changed = any(before.files.get(name) != mark for name, mark in mine.items())
        is_staged = any(name[:1].isdigit() for name in self.staged_since(before))
        return changed or is_staged

    def staged_since(self, before: Look) -> set[str]:
        """The names of files on their way there, but for what killed runs had left."""
        return {path.rpartition("/")[2] for path in self.staged - before.staged}

    @classmethod
    def at(cls, folder: Path) -> Look:
        files: dict[str, int] = {}
        staged: set[str] = set()
        try:
            with os.scandir(folder) as entries:
                files = {entry.name: entry.inode() for entry in entries}
            if STATE_FOLDER in files:
                with os.scandir(folder / STATE_FOLDER) as entries:
                    files.update({f"{STATE_FOLDER}/{entry.name}": entry.inode() for entry in entries})
            if TEMPORARY_FOLDER in files:
                for part in os.listdir(folder / TEMPORARY_FOLDER):
                    inside = _listed(folder / TEMPORARY_FOLDER / part)
                    staged |= {f"{part}/{name}" for name in inside} if inside is not None else {f"{_SMALL}{part}"}
            return cls(files, frozenset(staged))
        except OSError:  # not there yet, or going this very moment
            return cls(files, frozenset(staged))


def _listed(folder: Path) -> list[str] | None:
    """The names in a folder; None for a file."""
    try:
        return os.listdir(folder)
    except NotADirectoryError:
        return None
    except OSError:
        return []


def moment(before: Look, now: Look, shards: int) -> str:
    """What a run is at that found `before` when it began; `shards` is how many there will be."""
    if RUN_FILE not in now.files or (now.files == before.files and not now.at_work(before)):
        return STARTING
    if now.stats() < before.stats():
        return REMOVING
    fresh = {name for name, mark in now.files.items() if before.files.get(name) != mark}
    staged = now.staged_since(before)
    unfinished = {_stem(name) for name in fresh if name[:1].isdigit()} - _finished(now.files)
    if any(f"{stem}.parquet" in fresh and _has_data(stem, fresh) for stem in unfinished):
        return STATS if any(name.startswith(_SMALL) or name.endswith(_STATS_SUFFIX) for name in staged) else METADATA
    if unfinished:
        return DATA
    if now.stats() == shards:
        return ENDING
    return WRITING if any(name[:1].isdigit() for name in staged) else FETCHING


def _stem(name: str) -> str:
    return name.removesuffix(_STATS_SUFFIX).partition(".")[0]


def _finished(names: Iterable[str]) -> set[str]:
    return {name.removesuffix(_STATS_SUFFIX) for name in names if name.endswith(_STATS_SUFFIX)}


def _has_data(stem: str, names: set[str]) -> bool:
    return stem in names or f"{stem}.tar" in names
