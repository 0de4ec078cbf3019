"""What things are called in the output folder: shards, keys, marks of completion. Pure functions of numbers.

_run.json                what decides which row is in which shard
00000.tar                data (or 00000/, 00000.parquet)
00000.parquet            metadata, one row per outcome
00000_stats.json         figures; its presence alone means that the shard is finished
_shards.json             the list of finished shards
report.html              what has become of it all, for people
features.json,
dataset_info.json        what TensorFlow Datasets opens a folder of tfrecord or arrayrecord by
_lock.json, _lock        which run is at work here; gone when it has ended
_lock_rank-3-of-8.json   the same for each of several that share the shards
_wandb.json              which run of Weights & Biases tells of this dataset; `_wandb_rank-3-of-8.json` of that one
_progress/<time>.jsonl   how runs went, of the reporter jsonl
_tensorboard/            the same for TensorBoard
_claims/00000012.0       which of several runs makes shard 12; the highest number after the dot counts
_work/<run>/             word that the workers of a cluster leave for the run, and the run for them
_tmp/<run>/              shards being written; renamed into place when they are whole
_swap/00000/             the new version of a shard that is about to replace the former one
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

RUN_FILE = "_run.json"
LOCK_FILE = "_lock.json"
SHARDS_FILE = "_shards.json"
REPORT_FILE = "report.html"
REPORT_MARK = b'<meta name="generator" content="any2ds'  # in its first 4 KB, which tells it from somebody's own
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
FOLDER_FILES = (SHARDS_FILE, REPORT_FILE)  # that tell of the finished shards as a whole; the others are `tfds.names_of`
WANDB_FILE = "_wandb.json"
PROGRESS_FOLDER = "_progress"
TENSORBOARD_FOLDER = "_tensorboard"
WATCHING = (WANDB_FILE, PROGRESS_FOLDER, TENSORBOARD_FOLDER)
WORK_FOLDER = "_work"
CLAIMS_FOLDER = "_claims"
TEMPORARY_FOLDER = "_tmp"
SWAP_FOLDER = "_swap"

_STATS = re.compile(r"(\d+)_stats\.json")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names for shards of `rows_per_shard` rows, numbered with at least `shard_digits` digits."""

    rows_per_shard: int
    shard_digits: int

    @property
    def position_digits(self) -> int:
        """As many as the last position in a full shard has."""
        return len(str(max(1, self.rows_per_shard - 1)))

    def shard_name(self, shard_id: int) -> str:
        return f"{shard_id:0{self.shard_digits}d}"

    def key(self, shard_id: int, position: int) -> str:
        """Shard number and position, zero-padded: `000010005` is row 5 of shard 00001.

        The position's width is fixed, so that keys stay unique when the shard number outgrows its digits.
        """
        return f"{shard_id:0{self.shard_digits}d}{position:0{self.position_digits}d}"

    def data_name(self, shard_id: int, extension: str | None) -> str | None:
        """The data file, by the `extension` that a writer declares: "" for a folder, None where there is no data."""
        return None if extension is None else f"{self.shard_name(shard_id)}.{extension}".rstrip(".")

    def metadata_name(self, shard_id: int, extension: str = "parquet") -> str:
        return f"{self.shard_name(shard_id)}.{extension}"

    def stats_name(self, shard_id: int) -> str:
        return f"{self.shard_name(shard_id)}_stats.json"


def finished_shards(names: Iterable[str]) -> frozenset[int]:
    """The shards whose stats file is among the file `names` of an output folder."""
    matches = (_STATS.fullmatch(name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


MEMBER_LOCKS = "_lock_"  # with which the names of their files begin
_MEMBER = re.compile(r"_lock_([a-z0-9-]+)\.json")


_WANDB_OF_MEMBER = re.compile(r"_wandb_[a-z0-9-]+\.json")


def member_lock(member: str) -> str:
    """The lock file of one of several runs that make a dataset together."""
    return f"{MEMBER_LOCKS}{member}.json"


def member_of(lock_file: str) -> str:
    """The name of that run; empty if `lock_file` is none of those."""
    match = _MEMBER.fullmatch(lock_file)
    return match[1] if match else ""


def wandb_file(member: str) -> str:
    """That of one of several runs that make a dataset together, or of a run that makes it alone: ""."""
    return f"_wandb_{member}.json" if member else WANDB_FILE


def is_of_watching(name: str) -> bool:
    """Whether reporters keep it, of the runs that made a dataset."""
    return name in WATCHING or _WANDB_OF_MEMBER.fullmatch(name) is not None


def kernel_lock(lock_file: str) -> str:
    """The file beside a lock file that is locked by its holder's process for as long as that lives: `_lock`."""
    return lock_file.removesuffix(".json")
