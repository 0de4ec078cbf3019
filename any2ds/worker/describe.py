"""Turns what was fetched into a sample: recognises the file, hashes it, compares the hash with the expected one."""

from __future__ import annotations

import hashlib
from typing import Any

from any2ds.config.hashes import hash_columns
from any2ds.config.options import OutputOptions
from any2ds.config.parsers import HashCheck, HashChecks
from any2ds.core.digests import digest_in, is_digest
from any2ds.core.errors import printable, redacted
from any2ds.core.failures import DROPPED, SUCCESS, Failure
from any2ds.core.filetypes import recognize_file
from any2ds.core.metadata import HASH_MATCHES, OUTCOME_FIELDS, without_credentials
from any2ds.core.rows import Row
from any2ds.core.samples import LONGEST_HEADER, LONGEST_MESSAGE, Fetched, Payload, Sample

_SHOWN = 200  # characters of a value that is no digest


class Describe:
    """Turns what was fetched into a sample: recognises the file, hashes it, and says all of it in metadata fields."""

    def __init__(self, options: OutputOptions) -> None:
        self._hashes = [(name, getattr(hashlib, name)) for name in hash_columns(options)]
        self._ext = None if options.file_ext == "auto" else options.file_ext
        self._verify = Expectations(options.verify_hash, options.on_hash_mismatch) if options.verify_hash else None
        self._nothing = dict.fromkeys([*OUTCOME_FIELDS, *hash_columns(options)])

    def __call__(self, fetched: Fetched) -> Sample:
        outcome = fetched.outcome
        if isinstance(outcome, Failure):
            return self._failed(fetched, outcome)
        try:
            return self._succeeded(fetched, outcome)
        except Exception as error:  # whatever is in the bytes of one file, it concerns no other
            outcome.body.release()
            failure = Failure("transform", "transform_error", f"{type(error).__name__}: {error}", outcome.http_status)
            return self._failed(fetched, failure, outcome.seconds)

    def _failed(self, fetched: Fetched, failure: Failure, seconds: float = 0.0) -> Sample:
        fields: dict[str, Any] = {
            **self._nothing,
            "status": failure.status,
            "error_code": failure.code,
            "error_message": redacted(failure.detail)[:LONGEST_MESSAGE] or None,
            "http_status": failure.http_status,
            "final_url": failure.final_url and without_credentials(failure.final_url),
            "attempts": fetched.attempts,
        }
        return Sample(fetched.row, None, "", fields, failure, seconds=seconds)

    def _succeeded(self, fetched: Fetched, outcome: Payload) -> Sample:
        body = outcome.body
        mime_type, ext = recognize_file(body, outcome.media_type and outcome.media_type[:LONGEST_HEADER])
        ext = self._ext or ext
        fields: dict[str, Any] = {
            "status": SUCCESS,
            "error_code": None,
            "error_message": None,
            "http_status": outcome.http_status,
            "mime_type": mime_type,
            "ext": ext,
            "bytes": body.size,
            "final_url": outcome.final_url and without_credentials(outcome.final_url),
            "etag": outcome.etag and outcome.etag[:LONGEST_HEADER],
            "last_modified": outcome.last_modified and outcome.last_modified[:LONGEST_HEADER],
            "attempts": fetched.attempts,
        }
        for name, new_hash in self._hashes:
            digest = new_hash()
            for chunk in body.chunks():
                digest.update(chunk)
            fields[name] = digest.hexdigest()
        if self._verify is not None:
            failure = self._verify(fetched.row, fields)
            if fields["status"] != SUCCESS:
                body.release()
                return Sample(fetched.row, None, "", fields, failure, seconds=outcome.seconds)
        return Sample(fetched.row, body, ext, fields, seconds=outcome.seconds)


class Expectations:
    """Judges files by the hash that the list expects of their rows.

    Nothing is tried again: a transfer that broke is known to have, by its length, and a file that has become another
    one stays so.
    """

    def __init__(self, check: HashCheck | HashChecks, on_mismatch: str) -> None:
        self._check = check
        self._on_mismatch = on_mismatch  # drop, flag or fail_row

    def __call__(self, row: Row, fields: dict[str, Any]) -> Failure | None:
        """Add the verdict to the `fields` of the file that has arrived, its hash among them. They go on telling what
        arrived; it is to be stored only if its status is success still."""
        check = self._check.of(row.member)
        if check is None:
            fields[HASH_MATCHES.name] = None
            return None
        found = fields[check.kind]
        expected = (row.expected_hash or "").strip()
        matches = is_digest(expected, found, check.kind) if expected else None
        fields[HASH_MATCHES.name] = matches
        if matches is not False or self._on_mismatch == "flag":
            return None
        fields["error_message"] = message = _mismatch(expected, found, check.kind)
        fields["ext"] = None  # which is that of a stored file
        if self._on_mismatch == "drop":
            fields["status"] = DROPPED
            return None
        failure = Failure("transform", "hash_mismatch", message, fields["http_status"], fields["final_url"])
        fields["status"], fields["error_code"] = failure.status, failure.code
        return failure


def _mismatch(expected: str, found: str, kind: str) -> str:
    if digest_in(expected, kind) is not None:
        return f"its {kind} is {found}, expected was {expected}"
    shown = printable(redacted(expected[:_SHOWN])) + "…" * (len(expected) > _SHOWN)
    return f"its {kind} is {found}, and what the list expects, {shown!r}, is no {kind}"
