"""Why a row is not in the dataset: the closed list of failure codes, what each means, and what to do about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, NamedTuple

Stage = Literal["read", "fetch", "transform", "write"]
SUCCESS = "success"
DUPLICATE = "duplicate"  # not fetched: its URL stands in an earlier row of the run
DROPPED = "dropped"  # fetched and not stored, as was asked for: its hash is another than the list expects
FILTERED = "filtered"  # fetched and not stored: a step of the user's own did not want it
BAD_ROW = "bad_row"  # the code of a row that could not be read
NOT_ALLOWED = "scheme_not_allowed"  # that of a row whose scheme has to be allowed by name
# Statuses as in img2dataset, by the stage in which a row failed.
STATUS_OF_STAGE: Mapping[str, str] = {
    "read": "failed_to_download",
    "fetch": "failed_to_download",
    "transform": "failed_to_subsample",
    "write": "failed_to_subsample",
}


STEP_CODES = frozenset({
    "not_decodable", "not_encodable", "bad_boxes", "not_blurrable", "bad_clips", "too_small", "too_many_pixels",
    "aspect_ratio", "too_short", "too_long", "unpacks_too_large", "empty_archive", "transform_timeout",
    "transform_crash", "hash_mismatch", "transform_error",
})  # fmt: skip
"""Codes of rows that were downloaded, and failed in a step."""


class FailureCode(NamedTuple):
    transient: bool  # whether another attempt can help
    meaning: str  # one sentence for the person who reads the report
    advice: str  # one sentence: what that person can do, with the option to do it by


_TABLE = """
bad_row: a malformed row of the list, or a value that does not have its column's type (--on_bad_row)
    Put the corrected rows into a list of their own; --column_types declares the type of a column.
bad_url: not a URL: empty, without a scheme or without a host
    Correct these rows, or name another column with --url_col; a path is written file:///..., with
    --allow_schemes=file.
unsupported_scheme: a URL with a scheme that any2ds cannot download
    Replace these URLs by http(s)://, ftp://, s3:// or another scheme that fsspec knows.
scheme_not_allowed: a file of this machine, or of a store, which a list may ask for only if the run allows it
    If you trust the list: --allow_schemes=file (or s3 …), in any2ds retry with --codes=scheme_not_allowed.
missing_extra: a library for URLs of this kind is not installed; error_message names it
    Install the library, then any2ds retry with --codes=missing_extra.
dns (transient): the host name could not be resolved
    Most such hosts are gone for good; if there are many, try other --nameservers or a lower --thread_count.
connect (transient): no connection to the host
    The host is down or refuses connections: retry later.
tls: the encrypted connection failed, most often over the certificate
    --ignore_ssl_certificate accepts any certificate; then nothing proves who answers.
timeout_connect (transient): no connection within --connect_timeout seconds
    Retry later, or with a longer --connect_timeout; if there are many, lower --thread_count.
timeout_stalled (transient): slower than 100 bytes per second for --stall_timeout seconds
    Retry later, with a longer --stall_timeout or a lower --thread_count.
blocked_address: an address that is forbidden for rows of this list
    If the list may be trusted, leave out --block_private_addresses, or give --allow_link_local.
opted_out: the server asks that this file is not used (X-Robots-Tag)
    Respect it; --disallowed_header_directives names what excludes a file.
robots: robots.txt asks that this URL is not requested (--robots)
    Respect it, or ask the owner of the site for permission.
robots_unreachable (transient): not tried, because the host's robots.txt could not be read
    Retry later: a site whose robots.txt cannot be read must not be sent further requests.
timeout_total (transient): no byte for --timeout seconds, or too few in all (--total_timeout)
    Retry with a longer --timeout; if there are many, the network is saturated: lower --thread_count.
host_down (transient): not tried, because its host had not answered for a long time
    Retry later, when the host may be up again.
watchdog (transient): given up, because fetching was stuck for longer than all time limits together
    Retry; if it happens again, please report it with the output of --log_level=debug.
reset (transient): the connection broke off
    Retry; if there are many, slow down: --max_per_host, --host_delay.
truncated (transient): fewer bytes arrived than were announced, or a compressed body ends early
    Retry.
protocol: the answer is not valid HTTP
    Open one with another client: most often this is not a web server.
headers_too_large: the answer's headers are longer than any server needs them to be
    Open one with another client; 300 KiB is the limit.
bad_encoding: the compressed body cannot be decoded
    The server sends damaged data, or an encoding that was not asked for: leave the row out.
too_large: bigger than --max_file_bytes or the output format allows, or compressed more than 200 times
    Raise --max_file_bytes if you want files of this size; error_message says which limit it was.
too_many_redirects: redirected more than ten times
    A site that requires cookies may redirect in circles: leave the row out.
bad_redirect: redirected to a URL with a scheme that any2ds does not follow
    The link leads away from the web: leave the row out.
empty_body: the answer has no body
    The file is empty at its source: leave the row out.
access_denied: the server refused the credentials, or there are none
    Give credentials that may read it, with --storage_options or as the store's own tools do.
not_found: there is no such file (not HTTP)
    The file is gone: leave the row out, or get a newer list.
not_decodable: the file cannot be decoded as what it claims to be
    The file is damaged or of another type at its source; --disable_all_reencoding, without --only_images, stores
    files without decoding.
not_encodable: an image that the format asked for cannot hold, such as webp beyond 16,383 pixels
    Choose another --encode_format, or make images smaller with --file_size.
bad_boxes: the column of --bbox_col holds something else than boxes, so that the image is not stored unblurred
    Correct these rows of the list; null means that nothing is blurred.
not_blurrable: an image with boxes to blur (--bbox_col) that cannot be blurred, such as SVG or HEIC
    Convert the image, or empty its boxes if it may be stored unblurred.
bad_clips: the column of --clips_col holds something else than pairs of times
    Correct these rows of the list; null means that the file is not cut.
too_small: an image with a side below --min_image_size
    Lower --min_image_size if you want them.
too_many_pixels: an image with more pixels than --max_image_area, or that takes too much memory to decode, or a frame
        of video
    Raise --max_image_area if you want them, and have the memory.
aspect_ratio: an image longer and narrower than --max_aspect_ratio
    Raise --max_aspect_ratio if you want them.
too_short: sound or video shorter than --min_duration
    Lower --min_duration if you want them.
too_long: sound or video longer than --max_duration
    Raise --max_duration if you want them, or cut with --audio_trim or --clip_seconds.
unpacks_too_large: an archive with more than 10,000 files, or more bytes than --unpack_max_bytes
    Raise --unpack_max_bytes if you trust the source.
empty_archive: an archive without files
    It contains nothing: leave the row out.
transform_timeout: a transform took longer than --transform_timeout
    Raise --transform_timeout, or --transform_threads if all of them are slow.
transform_crash: a library crashed on this file
    Keep the file away from this step, or update the library; error_message has its last output.
hash_mismatch: the file is another than the list expects (--verify_hash)
    The file has changed since the list was made; --on_hash_mismatch=flag stores it anyway.
transform_error: a transform failed on this file
    See error_message; if the step is your own, correct it, then any2ds retry with --codes=transform_error.
fetch_error: the transfer failed for another reason, named in error_message
    See error_message in the metadata.
"""


def _codes_of(table: str) -> dict[str, FailureCode]:
    """The codes of a table: `code: meaning` or `code (transient): meaning`, with the advice on the lines below."""
    entries = re.findall(r"^(\w+)( \(transient\))?: (.*(?:\n {8}.*)*)((?:\n {4}\S.*)+)", table, re.MULTILINE)
    return {
        code: FailureCode(bool(mark), " ".join(meaning.split()), " ".join(advice.split()))
        for code, mark, meaning, advice in entries
    }


FAILURE_CODES: Mapping[str, FailureCode] = _codes_of(_TABLE)
"""The closed list, with `http_<status>` for every other status than success."""
BROKEN_OFF = frozenset({"connect", "dns", "reset", "timeout_connect", "timeout_stalled", "timeout_total", "truncated"})
"""The codes that tell of a network as much as of a host."""
NO_FAILURES: Mapping[str, str] = {
    SUCCESS: "stored",
    DROPPED: "not stored: another file than the list expects (--on_hash_mismatch)",
    FILTERED: "not stored: a step of your own filtered it out (--transform)",
    DUPLICATE: "not fetched: its URL stands in an earlier row",
}
"""The outcomes that are none, and what they mean."""
_HTTP_CODE = re.compile(r"http_([1-9]\d\d)")
_TRANSIENT_STATUS = frozenset({408, 425, 429})  # and every 5xx


def failure_code(code: str) -> FailureCode:
    """The meaning of `code`. Raises KeyError for a code that is not in the closed list."""
    match = _HTTP_CODE.fullmatch(code)
    if match is None:
        return FAILURE_CODES[code]
    status = int(match[1])
    is_transient = status in _TRANSIENT_STATUS or 500 <= status < 600
    return FailureCode(is_transient, f"the server answered {status}", _advice_on(status))


def known_outcome(code: str) -> FailureCode | None:
    """The meaning of an outcome, a failure or none; None for one that is not known here, such as those of other
    tools."""
    if code in NO_FAILURES:
        return FailureCode(False, NO_FAILURES[code], "")
    try:
        return failure_code(code)
    except KeyError:
        return None


def is_transient(code: str) -> bool:
    """Whether another attempt may help; not for what is no failure, or not known here."""
    known = known_outcome(code)
    return known is not None and known.transient


def meaning_of(code: str) -> str:
    """The meaning of an outcome in words; "" for one that is not known here."""
    known = known_outcome(code)
    return known.meaning if known is not None else ""


def _advice_on(status: int) -> str:
    if status == 429:
        return "Too many requests: retry later, more slowly, with --max_per_host or --host_delay."
    if status in (401, 403, 407, 451):
        return "It requires credentials or another client (--headers, --user_agent), or blocks any2ds."
    if status in (404, 410):
        return "The file is gone: leave the row out, or get a newer list."
    if 500 <= status < 600 or status in _TRANSIENT_STATUS:
        return "The server has a problem or is overloaded: retry later; --retries tries again at once."
    return "Open one with another client: it may require other --headers."


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row is not in the dataset."""

    stage: Stage
    code: str  # of the closed list
    detail: str = ""  # free words, for a person
    http_status: int | None = None
    final_url: str | None = None  # where redirects led, if anywhere
    retry_after: float | None = None  # seconds that the server asked us to wait
    # Who is at fault, where the failure itself tells more than its code: the host, the network of this machine ("us"),
    # or this process, in which no more files may be open (`core.processes.open_files`).
    blame: Literal["host", "us", "open_files"] | None = None
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
    """The failure of a row whose server answered with this status; the text is ours, since servers choose theirs
    freely."""
    try:
        message = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        message = f"HTTP {status}"
    return Failure("fetch", f"http_{status}", message, status, final_url, retry_after)


def in_order(outcomes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Outcome codes and their rows as people read them: success, then the most frequent."""
    return sorted(outcomes.items(), key=lambda item: (item[0] != SUCCESS, -item[1], item[0]))


TRANSIENT, ALL = "transient", "all"
CLASSES = (TRANSIENT, ALL, "http_4xx", "http_5xx")


def check_codes(codes: Iterable[str]) -> tuple[str, ...]:
    """`codes`, each once. Raises ValueError, with the nearest that there is, for what is neither code nor class."""
    found = tuple(dict.fromkeys(codes))
    known = [*CLASSES, *FAILURE_CODES]
    if BAD_ROW in found:
        raise ValueError(f"failure codes of rows with a URL; there is none in a row that could not be read ({BAD_ROW})")
    for code in found:
        if code not in known and not re.fullmatch(r"http_[1-9]\d\d", code):
            word = code.lower()
            if status := re.fullmatch(r"(?:[a-z]{1,5}[ _-]?)?([1-9]\d\d|[45]xx)", word, re.ASCII):
                near = [f"http_{status[1]}"]
            else:
                near = [each for each in known if each.startswith(f"{word}_")]
                near = near or difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}"
            raise ValueError(f"failure codes, http_<status>, or {', '.join(CLASSES)}; {code!r} is none: {hint}")
    if not found:
        raise ValueError(f"failure codes such as timeout_total,http_503, or {', '.join(CLASSES)}")
    return found


class FailureFilter:
    """Whether a row with some `status` and `error_code` in the metadata is a failure that `codes` mean; a bad row is
    never meant.

    Where the code is not known, as in shards of other tools that keep words only, it was a failure to download that may
    have passed.
    """

    def __init__(self, codes: Collection[str]) -> None:
        self._codes = frozenset(codes)
        self._known: dict[tuple[str | None, str | None], bool] = {}  # rows are many, and their outcomes few

    def __call__(self, status: str | None, code: str | None) -> bool:
        if (known := self._known.get((status, code))) is None:
            known = self._known[status, code] = self._decide(status, code)
        return known

    def _decide(self, status: str | None, code: str | None) -> bool:
        if status in NO_FAILURES or code == BAD_ROW:  # of which there is no URL
            return False
        if ALL in self._codes:
            return True
        try:
            is_transient = failure_code(code or "").transient
        except KeyError:
            return TRANSIENT in self._codes and status == STATUS_OF_STAGE["fetch"]
        classes = {code, TRANSIENT if is_transient else None, re.sub(r"^(http_[45])\d\d$", r"\1xx", code or "")}
        return not self._codes.isdisjoint(classes)
