"""The values that flow from the url list to the dataset; nothing here does I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from any2ds.buffer import Body

Stage = Literal["fetch", "transform", "write"]
SUCCESS = "success"
DUPLICATE = "duplicate"  # not fetched: its URL stands in an earlier row of the run
# The words that the ancestors' users know, by the stage in which a row failed.
STATUS_OF_STAGE: Mapping[str, str] = {
    "fetch": "failed_to_download",
    "transform": "failed_to_subsample",
    "write": "failed_to_subsample",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the url list, in its place in a shard."""

    shard_id: int
    position: int  # in the shard, from 0
    key: str  # unique in the dataset, sorts as the list does
    url: str | None  # as it stands in the list
    caption: str | None = None
    extra: Mapping[str, Any] | None = None  # the columns of save_additional_columns


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What a worker needs to make one shard; small enough to send to any cluster."""

    shard_id: int
    # Arrow IPC stream: `url`, `caption` if there is one, the additional columns, and with dedupe=run `duplicate_of`
    rows: bytes
    count: int  # rows in it
    attempt: int = 0  # how many processes were killed over it, because they were stuck
    hopeless: bool = False  # its rows are recorded as failed, not fetched


@dataclass(frozen=True, slots=True)
class FailureCode:
    transient: bool  # whether another attempt can help
    meaning: str  # one sentence for the person who reads the report


FAILURE_CODES: Mapping[str, FailureCode] = {
    "bad_url": FailureCode(False, "not a URL: empty, without a scheme or without a host"),
    "unsupported_scheme": FailureCode(False, "a URL of a kind that any2ds does not fetch"),
    "missing_extra": FailureCode(False, "a library for URLs of this kind is not installed; error_message names it"),
    "dns": FailureCode(True, "the host name could not be resolved"),
    "connect": FailureCode(True, "no connection to the host"),
    "tls": FailureCode(False, "the encrypted connection failed, most often over the certificate"),
    "timeout_connect": FailureCode(True, "no connection within --connect_timeout seconds"),
    "timeout_stalled": FailureCode(True, "slower than --min_speed for --stall_timeout seconds"),
    "blocked_address": FailureCode(False, "an address that rows of this list may not lead to"),
    "opted_out": FailureCode(False, "the server asks that this file is not used (X-Robots-Tag)"),
    "robots": FailureCode(False, "robots.txt asks that this URL is not requested (--robots)"),
    "robots_unreachable": FailureCode(True, "not tried, because the host's robots.txt could not be had"),
    "timeout_total": FailureCode(True, "not finished within --timeout seconds"),
    "host_down": FailureCode(True, "not tried, because its host had not answered anything for long"),
    "watchdog": FailureCode(True, "given up, because fetching was stuck for longer than all time limits together"),
    "reset": FailureCode(True, "the connection broke off"),
    "truncated": FailureCode(True, "fewer bytes arrived than were announced"),
    "protocol": FailureCode(False, "the answer is not valid HTTP"),
    "headers_too_large": FailureCode(False, "the answer's headers are longer than any server needs them to be"),
    "bad_encoding": FailureCode(False, "the compressed body cannot be decoded"),
    "too_large": FailureCode(False, "bigger than --max_file_bytes"),
    "too_many_redirects": FailureCode(False, "redirected more often than --max_redirects"),
    "bad_redirect": FailureCode(False, "redirected to a URL of a kind that any2ds does not follow"),
    "empty_body": FailureCode(False, "the answer has no body"),
    "access_denied": FailureCode(False, "the server refused the credentials, or there are none"),
    "not_found": FailureCode(False, "there is no such file (not HTTP)"),
    "not_decodable": FailureCode(False, "the file cannot be decoded as what it claims to be"),
    "transform_error": FailureCode(False, "a transform failed on this file"),
    "fetch_error": FailureCode(False, "the transfer failed for another reason, named in error_message"),
}
BROKEN_OFF = frozenset({"connect", "dns", "reset", "timeout_connect", "timeout_stalled", "timeout_total", "truncated"})
"""The codes that tell of a network as much as of a host."""

"""The closed list, with `http_<status>` for every other status than success."""

_HTTP_CODE = re.compile(r"http_([1-9]\d\d)")
_TRANSIENT_STATUS = frozenset({408, 425, 429})  # and every 5xx


def failure_code(code: str) -> FailureCode:
    """What `code` means. Raises KeyError for a code that is not in the closed list."""
    match = _HTTP_CODE.fullmatch(code)
    if match is None:
        return FAILURE_CODES[code]
    status = int(match[1])
    return FailureCode(status in _TRANSIENT_STATUS or 500 <= status < 600, f"the server answered {status}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row is not in the dataset."""

    stage: Stage
    code: str  # of the closed list
    detail: str = ""  # free words, for a person
    http_status: int | None = None
    final_url: str | None = None  # where redirects led, if anywhere
    retry_after: float | None = None  # seconds that the server asked us to wait
    blame: Literal["host", "us"] | None = None  # who is at fault, where the failure itself tells more than its code
    received: int = 0  # bytes of a body that time was up for

    @property
    def transient(self) -> bool:
        return failure_code(self.code).transient

    @property
    def answered(self) -> bool:
        """Whether somebody answered, and the answer was the trouble."""
        return self.http_status is not None and self.code not in BROKEN_OFF

    @property
    def status(self) -> str:
        return STATUS_OF_STAGE[self.stage]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a server answered with success."""

    body: Body
    media_type: str | None  # of the Content-Type header, without parameters, in lower case
    http_status: int | None  # None where the protocol has none
    final_url: str | None  # where redirects led; None if there were none
    seconds: float  # from the start of the attempt to its last byte
    etag: str | None = None  # validators, as the server gave them
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """One row and what became of it on the network."""

    row: Row
    outcome: Payload | Failure
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One outcome: a file for the dataset, or the failure in its stead."""

    row: Row
    body: Body | None  # the file; None on failure
    ext: str  # of the file, without the dot; "" on failure
    fields: Mapping[str, Any]  # metadata columns beyond those of the list; see `metadata.OUTCOME_FIELDS`
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class RobotsCost:
    """What asking for robots.txt took. The rows that it excluded are counted by their failure codes."""

    files: int = 0  # asked for, each once, however often it was tried
    bytes: int = 0  # of those that there were
    seconds: float = 0.0  # for which rows waited for each, added up; other hosts went on meanwhile

    def __add__(self, other: RobotsCost) -> RobotsCost:
        return RobotsCost(self.files + other.files, self.bytes + other.bytes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The figures of a finished shard; `_stats.json` is its JSON."""

    shard_id: int
    count: int = 0  # rows
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0
    duplicates: int = 0  # rows that point at an earlier one; with the three above they make `count`
    bytes: int = 0  # of the files stored
    start_time: float = 0.0  # Unix seconds
    end_time: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)  # outcome code -> rows
    robots: RobotsCost = RobotsCost()  # since the process finished its shard before

    @property
    def duration(self) -> float:
        return max(0.0, self.end_time - self.start_time)

    def to_json(self) -> dict[str, Any]:
        return {
            "shard_id": self.shard_id,
            "count": self.count,
            "successes": self.successes,
            "failed_to_download": self.failed_to_download,
            "failed_to_subsample": self.failed_to_subsample,
            "duplicates": self.duplicates,
            "bytes": self.bytes,
            "duration": self.duration,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "status_dict": dict(self.status_dict),
            "robots_files": self.robots.files,
            "robots_bytes": self.robots.bytes,
            "robots_seconds": self.robots.seconds,
        }


@dataclass(frozen=True, slots=True)
class ShardError:
    """A shard that could not be made; its rows have no outcome yet."""

    shard_id: int
    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What has happened in one worker since its last Progress, for people who watch."""

    outcomes: Mapping[str, int] = field(default_factory=dict)  # success, duplicate or failure code -> rows
    bytes: int = 0  # of successes


Event = Progress | ShardReport | ShardError


@dataclass(frozen=True, slots=True)
class RunReport:
    """The sum of a run. `status_dict` counts rows by outcome over the shards made in this run."""

    shards: int = 0
    count: int = 0
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0
    duplicates: int = 0
    bytes: int = 0
    seconds: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)
    skipped_shards: int = 0  # finished by an earlier run
    failed_shards: tuple[ShardError, ...] = ()
    robots: RobotsCost = RobotsCost()

    def __add__(self, shard: ShardReport) -> RunReport:
        return replace(
            self,
            shards=self.shards + 1,
            count=self.count + shard.count,
            successes=self.successes + shard.successes,
            failed_to_download=self.failed_to_download + shard.failed_to_download,
            failed_to_subsample=self.failed_to_subsample + shard.failed_to_subsample,
            duplicates=self.duplicates + shard.duplicates,
            bytes=self.bytes + shard.bytes,
            status_dict=dict(Counter(self.status_dict) + Counter(shard.status_dict)),
            robots=self.robots + shard.robots,
        )
