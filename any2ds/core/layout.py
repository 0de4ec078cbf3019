"""Names of files in the output folder: shards, keys, marks of completion. Pure functions of numbers.

00000.tar                data (or 00000/, 00000.parquet)
00000.parquet            metadata, one row per outcome
00000_stats.json         statistics, written last; the shard is complete if it exists
report.html              what has become of it all, for people
features.json,
dataset_info.json        what TensorFlow Datasets opens a folder of tfrecord or arrayrecord by
.any2ds/                 the state of any2ds, out of sight: globs of other tools and of users do not see it. No file in
                         it has the extension of a data format, since `Path.rglob` descends into hidden folders

In `.any2ds/`:

run                      what decides which row is in which shard; written once, as are the next three
segments/0000            where rows of a list, or of a retry, have their shards, by number
segments/0000.end        how many rows and shards that are, once a run has read the rows to the end
segments/0000.rows       the rows of a retry, under the keys that they have; a parquet file
building                 a recipe has not made all shards yet
recipe                   what a recipe says of its dataset: features, splits, version
shards                   the list of finished shards
lock                     which run is at work here, locked by it; gone when it has ended
workers                  locked by each of its worker processes
lock-rank-3-of-8,
workers-rank-3-of-8      the same for each of several that share the shards
wandb                    which run of Weights & Biases tells of this dataset; `wandb-rank-3-of-8` of that one
progress/<time>.log      how runs went, of the reporter jsonl
work/<run>/              word that the workers of a cluster leave for the run, and the run for them
metadata/00000.metadata  with a preset: the full metadata of each row, where 00000.parquet is as the other tool
                         has it
report.html              with a preset, in whose datasets nothing else may lie in sight
tmp/any2ds-<machine>-<random>/  files that a process makes; renamed into place when they are whole
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STATE_FOLDER = ".any2ds"
RUN_FILE = f"{STATE_FOLDER}/run"
SEGMENTS_FOLDER = f"{STATE_FOLDER}/segments"
SEGMENT_END = ".end"
SEGMENT_ROWS = ".rows"
BUILDING_FILE = f"{STATE_FOLDER}/building"
CARD_FILE = "README.md"
RECIPE_FILE = f"{STATE_FOLDER}/recipe"
LOCK_FILE = f"{STATE_FOLDER}/lock"
WORKERS_FILE = f"{STATE_FOLDER}/workers"
SHARDS_FILE = f"{STATE_FOLDER}/shards"
SAMPLE_FILE = f"{STATE_FOLDER}/sample"  # of the dataset of an estimate: the files of the list that it was drawn from
REPORT_FILE = "report.html"
REPORT_MARK = b'<meta name="generator" content="any2ds'  # in its first 4 KB, which tells it from somebody's own
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
TFDS_CONFIG = ".config/metadata.json"  # in the folder of all configs, not in that of a dataset
REPORT_OUT_OF_SIGHT = f"{STATE_FOLDER}/{REPORT_FILE}"
# That tell of the finished shards as a whole; the others are `tfds.names_of`.
FOLDER_FILES = (SHARDS_FILE, REPORT_FILE, REPORT_OUT_OF_SIGHT)
WANDB_FILE = f"{STATE_FOLDER}/wandb"
PROGRESS_FOLDER = f"{STATE_FOLDER}/progress"
WORK_FOLDER = f"{STATE_FOLDER}/work"
METADATA_FOLDER = f"{STATE_FOLDER}/metadata"
METADATA_END = ".metadata"
TEMPORARY_FOLDER = f"{STATE_FOLDER}/tmp"
COLUMNS_FOLDER = f"{STATE_FOLDER}/columns"  # of `any2ds add-columns`

_STATS = re.compile(r"(\d{1,18})_stats\.json", re.ASCII)
_MOST_ROWS = 10**15  # of a shard
_MOST_DIGITS = 100  # of the number of a shard in names of files, of which systems take 255 bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Names for shards of `rows_per_shard` rows, numbered with at least `shard_digits` digits.

    A dataset that is to look like one of another tool `hides` what that does not write. One that `has_names` has the
    keys that a column of its list gives, in place of numbers; the samples of a shard are in the order of the names.
    """

    rows_per_shard: int
    shard_digits: int
    hides: bool = False
    has_names: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Layout:
        """The layout of a dataset made with `options`. Raises ValueError if they do not decide it."""
        try:
            rows, digits = int(options["number_sample_per_shard"]), int(options["oom_shard_count"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"no option {error}") from error
        if rows < 1 or digits < 1:
            raise ValueError("number_sample_per_shard and oom_shard_count must be positive")
        if rows > _MOST_ROWS or digits > _MOST_DIGITS:
            raise ValueError("number_sample_per_shard or oom_shard_count is absurd")
        return cls(rows, digits, bool(options.get("preset")), bool(options.get("key_col")))

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
        return self.keys(shard_id)(position)

    def keys(self, shard_id: int) -> Callable[[int], str]:
        """The keys of a shard, by position."""
        return f"{self.shard_name(shard_id)}{{:0{self.position_digits}d}}".format

    def place_of(self, key: str) -> tuple[int, int] | None:
        """The shard and the position that `key` names; None for what is no key of a row."""
        number, position = key[: -self.position_digits], key[-self.position_digits :]
        if not (key.isascii() and number.isdecimal() and position.isdecimal()):
            return None
        place = int(number), int(position)
        return place if self.key(*place) == key and place[1] < self.rows_per_shard else None

    def data_name(self, shard_id: int, extension: str | None) -> str | None:
        """The data file, by the `extension` that a writer declares: "" for a folder, None where there is no data."""
        return None if extension is None else f"{self.shard_name(shard_id)}.{extension}".rstrip(".")

    def metadata_name(self, shard_id: int, extension: str = "parquet") -> str:
        return f"{self.shard_name(shard_id)}.{extension}"

    def own_metadata_name(self, shard_id: int) -> str:
        """The file of the metadata out of sight, which has all columns."""
        return f"{METADATA_FOLDER}/{self.shard_name(shard_id)}{METADATA_END}"

    def metadata_names(self, shard_id: int) -> tuple[str, ...]:
        """Where its metadata may be, the fuller ones first: shards of other tools have none out of sight."""
        return (*([self.own_metadata_name(shard_id)] if self.hides else []), self.metadata_name(shard_id))

    def stats_name(self, shard_id: int) -> str:
        return f"{self.shard_name(shard_id)}_stats.json"


def finished_shards(names: Iterable[str]) -> frozenset[int]:
    """The shards whose stats file is among the file `names` of an output folder."""
    matches = (_STATS.fullmatch(name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


def segment_file(number: int, end: str = "") -> str:
    """`end` is "" for what is known when a segment begins, SEGMENT_END or SEGMENT_ROWS."""
    return f"{SEGMENTS_FOLDER}/{number:04d}{end}"


_LOCKS = re.compile(rf"{re.escape(LOCK_FILE)}(-[a-z0-9-]+)?")


def report_file(hides: bool) -> str:
    """Where a run leaves its report."""
    return REPORT_OUT_OF_SIGHT if hides else REPORT_FILE


def member_lock(member: str) -> str:
    """The lock file of one of several runs that make a dataset together."""
    return f"{LOCK_FILE}-{member}"


def is_lock(name: str) -> bool:
    """Whether this is the lock file of a run, or of one of several."""
    return _LOCKS.fullmatch(name) is not None


def workers_of(lock_file: str) -> str:
    """The file that the workers of the run that holds `lock_file` have locked."""
    return WORKERS_FILE + lock_file.removeprefix(LOCK_FILE)


def wandb_file(member: str) -> str:
    """The file of Weights & Biases of one of several runs that make a dataset together; `member` is "" for a run
    alone."""
    return f"{WANDB_FILE}-{member}" if member else WANDB_FILE
