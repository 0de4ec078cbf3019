"""The values that flow from the url list to the dataset; nothing here does I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metrics import WorkerMetrics
from any2ds.core.samples import StoredSample
from any2ds.core.version import __version__

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Body

Stage = Literal["read", "fetch", "transform", "write"]
SUCCESS = "success"
DUPLICATE = "duplicate"  # not fetched: its URL stands in an earlier row of the run
DROPPED = "dropped"  # fetched and not stored, as was asked for: its hash is another than the list expects
FILTERED = "filtered"  # fetched and not stored: a step of the user's own did not want it
BAD_ROW = "bad_row"  # the code of a row that could not be read
# The words that the ancestors' users know, by the stage in which a row failed.
STATUS_OF_STAGE: Mapping[str, str] = {
    "read": "failed_to_download",
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
    expected_hash: str | None = None  # as it stands in the list


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What a worker needs to make one shard; small enough to send to any cluster."""

    shard_id: int
    # Arrow IPC stream: `url`, `caption` if there is one, the additional columns, with dedupe=run `duplicate_of`, and
    # if some rows could not be read `badrows.COLUMN`
    rows: bytes
    count: int  # rows in it
    attempt: int = 0  # how often it was tried before, in this run
    hopeless: bool = False  # its rows are recorded as failed, not fetched
    # None: it is made from nothing. Else it is there already: the outcomes that it has are kept, but for failures with
    # these codes, which are fetched again as are rows that it lacks.
    redo: tuple[str, ...] | None = None
    fingerprint: str = ""  # of its URLs as they stand in the list, `manifest.urls_sha256`


@dataclass(frozen=True, slots=True)
class FailureCode:
    transient: bool  # whether another attempt can help
    meaning: str  # one sentence for the person who reads the report
    advice: str  # one sentence: what that person can do, with the option to do it by


FAILURE_CODES: Mapping[str, FailureCode] = {
    BAD_ROW: FailureCode(
        False,
        "a malformed row of the list, or a value that does not have its column's type (--on_bad_row)",
        "Put the corrected rows into a list of their own; --column_types declares the type of a column.",
    ),
    "bad_url": FailureCode(
        False,
        "not a URL: empty, without a scheme or without a host",
        "Correct these rows of the list, or name another column with --url_col.",
    ),
    "unsupported_scheme": FailureCode(
        False,
        "a URL of a kind that any2ds does not fetch",
        "Have these rows in the list as http(s)://, ftp://, s3:// or another kind that fsspec knows.",
    ),
    "missing_extra": FailureCode(
        False,
        "a library for URLs of this kind is not installed; error_message names it",
        "Install the library, then any2ds retry with --codes=missing_extra.",
    ),
    "dns": FailureCode(
        True,
        "the host name could not be resolved",
        "Most such hosts are gone for good; if there are many, try other --nameservers or a lower --thread_count.",
    ),
    "connect": FailureCode(
        True,
        "no connection to the host",
        "The host is down or refuses us: retry later.",
    ),
    "tls": FailureCode(
        False,
        "the encrypted connection failed, most often over the certificate",
        "--ignore_ssl_certificate accepts any certificate, if you can do without knowing who answers.",
    ),
    "timeout_connect": FailureCode(
        True,
        "no connection within --connect_timeout seconds",
        "Retry later, or with a longer --connect_timeout; if there are many, lower --thread_count.",
    ),
    "timeout_stalled": FailureCode(
        True,
        "slower than --min_speed for --stall_timeout seconds",
        "Retry later, with a lower --min_speed, a longer --stall_timeout, or a lower --thread_count.",
    ),
    "blocked_address": FailureCode(
        False,
        "an address that rows of this list may not lead to",
        "If the list may be trusted, leave out --block_private_addresses, or give --allow_link_local.",
    ),
    "opted_out": FailureCode(
        False,
        "the server asks that this file is not used (X-Robots-Tag)",
        "Respect it; what excludes a file is named in --disallowed_header_directives.",
    ),
    "robots": FailureCode(
        False,
        "robots.txt asks that this URL is not requested (--robots)",
        "Respect it, or ask the owner of the site for leave.",
    ),
    "robots_unreachable": FailureCode(
        True,
        "not tried, because the host's robots.txt could not be had",
        "Retry later: a site whose robots.txt cannot be had must not be asked for more.",
    ),
    "timeout_total": FailureCode(
        True,
        "no byte for --timeout seconds, or too few in all (--total_timeout)",
        "Retry with a longer --timeout; if there are many, the line is full: lower --thread_count.",
    ),
    "host_down": FailureCode(
        True,
        "not tried, because its host had not answered anything for long",
        "Retry later, when the host may be up again.",
    ),
    "watchdog": FailureCode(
        True,
        "given up, because fetching was stuck for longer than all time limits together",
        "Retry; if it happens again, please tell us, with what --log_level=debug says.",
    ),
    "reset": FailureCode(
        True,
        "the connection broke off",
        "Retry; if there are many, be gentler: --max_per_host, --host_delay.",
    ),
    "truncated": FailureCode(
        True,
        "fewer bytes arrived than were announced, or a compressed body ends early",
        "Retry.",
    ),
    "protocol": FailureCode(
        False,
        "the answer is not valid HTTP",
        "Look at one with another client: most often this is no web server.",
    ),
    "headers_too_large": FailureCode(
        False,
        "the answer's headers are longer than any server needs them to be",
        "Look at one with another client; --max_header_bytes is the limit.",
    ),
    "bad_encoding": FailureCode(
        False,
        "the compressed body cannot be decoded",
        "The server is at fault: there is nothing to be done here.",
    ),
    "too_large": FailureCode(
        False,
        "bigger than --max_file_bytes, or compressed more than --max_content_ratio allows",
        "Raise --max_file_bytes if you want files of this size; error_message tells which limit it was.",
    ),
    "too_many_redirects": FailureCode(
        False,
        "redirected more often than --max_redirects",
        "Raise --max_redirects; a site that wants cookies (--cookies) may send us round in circles.",
    ),
    "bad_redirect": FailureCode(
        False,
        "redirected to a URL of a kind that any2ds does not follow",
        "The link leads out of the web: there is nothing to be done here.",
    ),
    "empty_body": FailureCode(
        False,
        "the answer has no body",
        "The file is empty at its source: leave the row out.",
    ),
    "access_denied": FailureCode(
        False,
        "the server refused the credentials, or there are none",
        "Give credentials that may read it, with --storage_options or as the store's own tools do.",
    ),
    "not_found": FailureCode(
        False,
        "there is no such file (not HTTP)",
        "The file is gone: leave the row out, or get a newer list.",
    ),
    "not_decodable": FailureCode(
        False,
        "the file cannot be decoded as what it claims to be",
        "The file is broken or no such file at its source; --disable_all_reencoding stores files unseen.",
    ),
    "not_encodable": FailureCode(
        False,
        "an image that the format asked for cannot hold, such as webp beyond 16,383 pixels",
        "Choose another --encode_format, or make images smaller with --file_size.",
    ),
    "bad_boxes": FailureCode(
        False,
        "the column of --bbox_col holds something else than boxes, so that the image is not stored unblurred",
        "Correct these rows of the list; null means that there is nothing to blur.",
    ),
    "not_blurrable": FailureCode(
        False,
        "an image with boxes to blur (--bbox_col) that cannot be blurred, such as SVG or HEIC",
        "Convert the image, or empty its boxes if it may be stored unblurred.",
    ),
    "bad_clips": FailureCode(
        False,
        "the column of --clips_col holds something else than pairs of times",
        "Correct these rows of the list; null means that the video stays whole.",
    ),
    "too_small": FailureCode(
        False,
        "an image with a side below --min_image_size",
        "Lower --min_image_size if you want them.",
    ),
    "too_many_pixels": FailureCode(
        False,
        "an image with more pixels than --max_image_area, or a frame of video",
        "Raise --max_image_area if you want them, and have the memory.",
    ),
    "aspect_ratio": FailureCode(
        False,
        "an image longer and narrower than --max_aspect_ratio",
        "Raise --max_aspect_ratio if you want them.",
    ),
    "too_short": FailureCode(
        False,
        "sound or video shorter than --min_duration",
        "Lower --min_duration if you want them.",
    ),
    "too_long": FailureCode(
        False,
        "sound or video longer than --max_duration",
        "Raise --max_duration if you want them, or cut with --audio_trim or --clip_seconds.",
    ),
    "unpacks_too_large": FailureCode(
        False,
        "an archive with more in it than the --unpack_... options allow",
        "Raise --unpack_max_files, --unpack_max_bytes or --unpack_max_ratio if you trust the source.",
    ),
    "empty_archive": FailureCode(
        False,
        "an archive without files",
        "Nothing to be had from it: leave the row out.",
    ),
    "transform_timeout": FailureCode(
        False,
        "a transform took longer than --transform_timeout",
        "Raise --transform_timeout, or --transform_threads if all of them are slow.",
    ),
    "transform_crash": FailureCode(
        False,
        "a library crashed over this file",
        "Keep the file away from this step, or update the library; error_message has its last words.",
    ),
    "hash_mismatch": FailureCode(
        False,
        "the file is another than the list expects (--verify_hash)",
        "The file has changed since the list was made; --on_hash_mismatch=flag stores it all the same.",
    ),
    "transform_error": FailureCode(
        False,
        "a transform failed on this file",
        "See error_message; if the step is your own, correct it, then any2ds retry with --codes=transform_error.",
    ),
    "fetch_error": FailureCode(
        False,
        "the transfer failed for another reason, named in error_message",
        "See error_message in the metadata.",
    ),
}
"""The closed list, with `http_<status>` for every other status than success."""

BROKEN_OFF = frozenset({"connect", "dns", "reset", "timeout_connect", "timeout_stalled", "timeout_total", "truncated"})
"""The codes that tell of a network as much as of a host."""

NO_FAILURES: Mapping[str, str] = {
    SUCCESS: "stored",
    DROPPED: "not stored: another file than the list expects (--on_hash_mismatch)",
    FILTERED: "not stored: a step of your own did not want it (--transform)",
    DUPLICATE: "not fetched: its URL stands in an earlier row",
}
"""The outcomes that are none, and what they mean."""

_HTTP_CODE = re.compile(r"http_([1-9]\d\d)")
_TRANSIENT_STATUS = frozenset({408, 425, 429})  # and every 5xx


def failure_code(code: str) -> FailureCode:
    """What `code` means. Raises KeyError for a code that is not in the closed list."""
    match = _HTTP_CODE.fullmatch(code)
    if match is None:
        return FAILURE_CODES[code]
    status = int(match[1])
    is_transient = status in _TRANSIENT_STATUS or 500 <= status < 600
    return FailureCode(is_transient, f"the server answered {status}", _advice_on(status))


def meaning_of(code: str) -> str:
    """What an outcome means, a failure or none; "" for one that is not known here, such as those of other tools."""
    try:
        return NO_FAILURES.get(code) or failure_code(code).meaning
    except KeyError:
        return ""


def _advice_on(status: int) -> str:
    if status == 429:
        return "We asked too often: retry later, gentler, with --max_per_host or --host_delay."
    if status in (401, 403, 407, 451):
        return "It wants credentials or another client (--headers, --cookies, --user_agent), or not us at all."
    if status in (404, 410):
        return "The file is gone: leave the row out, or get a newer list."
    if 500 <= status < 600 or status in _TRANSIENT_STATUS:
        return "The server is in trouble, or overloaded: retry later; --retries tries again at once."
    return "Look at one with another client: it may want other --headers."


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


def http_failure(status: int, final_url: str | None = None, retry_after: float | None = None) -> Failure:
    """What a status other than success means for a row; the text is ours, since servers choose theirs freely."""
    try:
        message = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        message = f"HTTP {status}"
    return Failure("fetch", f"http_{status}", message, status, final_url, retry_after)


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
    """One outcome: a file for the dataset, or the failure in its stead. What transforms are given, and return.

    Of a row that becomes several samples (an archive, a video cut into clips) each has a `part`.
    """

    row: Row
    body: Body | StoredBody | None  # the file; None on failure
    ext: str  # of the file, without the dot; "" on failure
    fields: Mapping[str, Any]  # metadata columns beyond those of the list; see `metadata.OUTCOME_FIELDS`
    failure: Failure | None = None
    stored: StoredSample | None = None  # it lies in the former version of its shard, to be taken over as it is
    part: int | None = None  # its number among the samples of its row, from 0; None: it is the only one
    parts: int = 1  # how many samples its row has, where it has a part
    members: Mapping[str, bytes] = field(default_factory=dict)  # further files, by extension: {"txt": b"..."}
    beside: Mapping[str, Body | StoredBody] = field(default_factory=dict)  # the same when it is through all steps
    not_processed: str = ""  # why a step of its media has left its file as it came
    seconds: float = 0.0  # that the transfer of its row took, if it succeeded

    @property
    def key(self) -> str:
        """Unique in the dataset: `000010005`, or `000010005_0003` for the fourth sample of that row."""
        return sample_key(self.row.key, self.part, self.parts)

    @property
    def url(self) -> str | None:
        return self.row.url

    @property
    def caption(self) -> str | None:
        return self.row.caption

    @property
    def data(self) -> bytes:
        """The file."""
        return b"" if self.body is None else self.body.read()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 0 if self.body is None else self.body.size

    @property
    def bodies(self) -> list[Body | StoredBody]:
        """All its files: whoever writes it releases them."""
        return [] if self.body is None else [self.body, *self.beside.values()]

    @property
    def mime_type(self) -> str:
        """As recognised from the bytes, else as the server said; "" if nobody knows."""
        return self.fields.get("mime_type") or ""

    def with_data(
        self, data: bytes | bytearray | memoryview, ext: str | None = None, mime_type: str | None = None, **fields: Any
    ) -> Sample:
        """The same with another file, and with further metadata `fields`; `ext` without the dot.

        Raises TypeError for what is not bytes.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"with_data takes bytes, not {type(data).__name__}")
        data = bytes(data)
        known = {**self.fields, **fields, "ext": ext or self.ext, "mime_type": mime_type or self.fields["mime_type"]}
        return replace(self, body=StoredBody.of(data), ext=ext or self.ext, fields=known)

    def with_fields(self, **fields: Any) -> Sample:
        """The same with further metadata; a step declares the columns that it fills."""
        return replace(self, fields={**self.fields, **fields})

    def with_member(self, ext: str, data: bytes) -> Sample:
        """The same with a further file beside it: `<key>.<ext>`, or a column of that name in record formats."""
        return replace(self, members={**self.members, ext: data})

    def as_part(self, part: int, parts: int = 1) -> Sample:
        """The same as one of the several samples of its row, of which there are `parts`."""
        return replace(self, part=part, parts=parts)

    def left_as_is(self, reason: str) -> Sample:
        """The same, with the reason why a step that was asked for does not process its file; the first one counts."""
        return replace(self, not_processed=self.not_processed or encodable(reason)[:_LONGEST_REASON])

    def failed(self, code: str, detail: str = "") -> Sample:
        """The failure of this file, with a code of the closed list, in its stead. Metadata that are known stay."""
        detail = encodable(detail)
        failure = Failure("transform", code, detail, self.fields.get("http_status"), self.fields.get("final_url"))
        told = {"status": failure.status, "error_code": code, "error_message": detail or None, "ext": None}
        known = {**self.fields, **told}
        return replace(self, body=None, ext="", fields=known, failure=failure, members={}, beside={})

    def filtered(self, reason: str) -> Sample:
        """It is not wanted, which is no failure."""
        told = {"status": FILTERED, "error_message": encodable(reason) if reason else None, "ext": None}
        return replace(self, body=None, ext="", fields={**self.fields, **told}, members={})


OTHER_REASONS = "other kinds of files"
_LONGEST_REASON = 200  # characters


def encodable(text: str) -> str:
    """As a table can have it: names of files, and words about them, may have surrogates, which UTF-8 has not."""
    return str(text).encode("utf-8", "replace").decode()


def in_order(outcomes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Outcome codes and their rows as people read them: success, then the most frequent."""
    return sorted(outcomes.items(), key=lambda item: (item[0] != SUCCESS, -item[1], item[0]))


Samples = Sequence[Sample]
"""What has become of one row: one sample, or several, in order; at least one."""


def outcome_of(samples: Samples) -> Sample:
    """The one that stands for the row."""
    return samples[first_of([sample.fields.get("status") for sample in samples])]


def first_of(statuses: Sequence[str | None]) -> int:
    """Which of the samples of a row stands for it, by their statuses: the first that is stored, else the first."""
    return statuses.index(SUCCESS) if SUCCESS in statuses else 0


def code_of(sample: Sample) -> str:
    """`success`, `dropped`, `filtered`, `duplicate`, or the code of its failure."""
    return sample.failure.code if sample.failure else str(sample.fields["status"])


def in_parts(samples: Sequence[Sample]) -> list[Sample]:
    """Those of one row, numbered."""
    return [sample.as_part(part, len(samples)) for part, sample in enumerate(samples)]


def release(samples: Samples) -> None:
    """Their files are not wanted any more."""
    for sample in samples:
        for body in sample.bodies:
            body.release()


def sample_key(row_key: str, part: int | None, parts: int) -> str:
    """Of the sample with the number `part` among the `parts` of its row.

    The numbers of a row have the same width, four digits or as many as the last one needs, so that keys sort.
    """
    return row_key if part is None else f"{row_key}_{part:0{max(4, len(str(parts - 1)))}d}"


def part_of(key: str) -> int | None:
    """The number that `sample_key` has put behind the key of the row."""
    _, _, part = key.partition("_")
    return int(part) if part.isascii() and part.isdecimal() else None


def member_column(ext: str) -> str:
    """The column of the metadata that holds a further file in formats that have no files beside that of a sample."""
    return ext.replace(".", "_")


def is_text_member(ext: str) -> bool:
    """Whether a further file is a text, where it is a column."""
    return ext.rpartition(".")[2] in ("txt", "json")


def member_value(ext: str, data: bytes) -> str | bytes:
    return data.decode("utf-8", "replace") if is_text_member(ext) else data


def row_key(key: str) -> str:
    """The key of the row that the sample with `key` comes from."""
    return key.partition("_")[0]


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
    dropped: int = 0  # fetched, and not stored because of their hash
    filtered: int = 0  # fetched, and not wanted by a step of the user's own
    duplicates: int = 0  # rows that point at an earlier one; with the five above they make `count`
    samples: int = 0  # stored: a row that succeeded has one, or several
    bytes: int = 0  # of the files stored
    start_time: float = 0.0  # Unix seconds
    end_time: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)  # outcome code -> rows
    robots: RobotsCost = RobotsCost()  # since the process finished its shard before
    urls_sha256: str = ""  # the fingerprint of its rows, which tells when the list has changed
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files stored with it
    data_bytes: int = 0  # of the data file; 0 where it is a folder, or there is none
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files that a step left as they came
    attempts: int = 0  # transfers that were made for its rows
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL of a row with it, no credentials
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of transfers that succeeded

    @classmethod
    def from_json(cls, stats: Mapping[str, Any]) -> ShardReport:
        """What `to_json` was made from. Raises KeyError, TypeError or ValueError for what is no such thing."""
        counts: dict[str, Any] = {name: int(stats[name]) for name in _COUNTS}
        robots = RobotsCost(int(stats["robots_files"]), int(stats["robots_bytes"]), float(stats["robots_seconds"]))
        return cls(
            **counts,
            start_time=float(stats["start_time"]),
            end_time=float(stats["end_time"]),
            status_dict=dict(stats["status_dict"]),
            robots=robots,
            urls_sha256=str(stats["urls_sha256"]),
            exts=dict(stats["exts"]),
            data_bytes=int(stats["data_bytes"]),
            not_processed=not_processed_in(stats),
            attempts=int(stats.get("attempts", 0)),  # the next three are younger than the rest
            examples=dict(stats.get("examples", {})),
            latencies={int(bucket): int(count) for bucket, count in stats.get("latencies", {}).items()},
        )

    @property
    def duration(self) -> float:
        return max(0.0, self.end_time - self.start_time)

    def to_json(self) -> dict[str, Any]:
        return {
            "any2ds": __version__,
            "shard_id": self.shard_id,
            "count": self.count,
            "successes": self.successes,
            "failed_to_download": self.failed_to_download,
            "failed_to_subsample": self.failed_to_subsample,
            "dropped": self.dropped,
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "samples": self.samples,
            "bytes": self.bytes,
            "duration": self.duration,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "status_dict": dict(self.status_dict),
            "robots_files": self.robots.files,
            "robots_bytes": self.robots.bytes,
            "robots_seconds": self.robots.seconds,
            "urls_sha256": self.urls_sha256,
            "exts": dict(self.exts),
            "data_bytes": self.data_bytes,
            "not_processed": dict(self.not_processed),
            "attempts": self.attempts,
            "examples": dict(self.examples),
            "latencies": {str(bucket): count for bucket, count in sorted(self.latencies.items())},
        }


def not_processed_in(stats: Mapping[str, Any]) -> dict[str, int]:
    """Reason -> files, as the stats of a shard have it; an earlier version counted by the extra that was missing."""
    before = {f"any2ds[{extra}] was not installed": count for extra, count in (stats.get("lacking") or {}).items()}
    told = {**before, **(stats.get("not_processed") or {})}
    return {str(reason)[:_LONGEST_REASON]: int(count) for reason, count in told.items()}


def most_frequent(reasons: Mapping[str, int], most: int = 20) -> dict[str, int]:
    """Those, and the others in one: servers may call files whatever they like."""
    ordered = sorted(reasons.items(), key=lambda item: (item[0] == OTHER_REASONS, -item[1], item[0]))
    if len(ordered) <= most:
        return dict(ordered)
    return {**dict(ordered[:most]), OTHER_REASONS: sum(count for _, count in ordered[most:])}


_COUNTS = (
    "shard_id",
    "count",
    "successes",
    "failed_to_download",
    "failed_to_subsample",
    "dropped",
    "filtered",
    "duplicates",
    "samples",
    "bytes",
)


@dataclass(frozen=True, slots=True)
class ShardError:
    """A shard that could not be made; its rows have no outcome yet."""

    shard_id: int
    reason: str
    traceback: str = ""
    attempt: int = 0  # of the job that failed
    again: bool = False  # it is going to be tried again; `run` knows, nobody else has to say


@dataclass(frozen=True, slots=True)
class Progress:
    """What has happened in one worker since its last Progress, for people who watch."""

    # success, dropped, filtered, duplicate or failure code -> rows; fewer than none where a shard failed whose rows had
    # been told
    outcomes: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0  # of successes
    metrics: WorkerMetrics | None = None  # of that worker, if known


Event = Progress | ShardReport | ShardError


@dataclass(frozen=True, slots=True)
class RunReport:
    """The sum of a run. `status_dict` counts rows by outcome over the shards made in this run."""

    shards: int = 0
    count: int = 0
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0
    dropped: int = 0
    filtered: int = 0
    duplicates: int = 0
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)
    skipped_shards: int = 0  # finished by an earlier run
    failed_shards: tuple[ShardError, ...] = ()
    left_shards: int = 0  # open when the run was stopped or broken off, and left to another one
    robots: RobotsCost = RobotsCost()
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files
    attempts: int = 0
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL of a row with it

    def __add__(self, shard: ShardReport) -> RunReport:
        return replace(
            self,
            shards=self.shards + 1,
            count=self.count + shard.count,
            successes=self.successes + shard.successes,
            failed_to_download=self.failed_to_download + shard.failed_to_download,
            failed_to_subsample=self.failed_to_subsample + shard.failed_to_subsample,
            dropped=self.dropped + shard.dropped,
            filtered=self.filtered + shard.filtered,
            duplicates=self.duplicates + shard.duplicates,
            samples=self.samples + shard.samples,
            bytes=self.bytes + shard.bytes,
            status_dict=dict(Counter(self.status_dict) + Counter(shard.status_dict)),
            robots=self.robots + shard.robots,
            not_processed=most_frequent(Counter(self.not_processed) + Counter(shard.not_processed)),
            attempts=self.attempts + shard.attempts,
            examples={**shard.examples, **self.examples},
        )
