"""Compares the files that arrive with the hashes that the list expects, and says what becomes of those that differ."""

from __future__ import annotations

from typing import Any

from any2ds.config.parsers import HashCheck
from any2ds.core.digests import digest_in, is_digest
from any2ds.core.errors import printable, redacted
from any2ds.core.failures import DROPPED, Failure
from any2ds.core.metadata import HASH_MATCHES
from any2ds.core.rows import Row

_SHOWN = 200  # characters of a value that is no digest


class Expectations:
    """Judges files by the hash that the list expects of their rows.

    Nothing is tried again: a transfer that broke is known to have, by its length, and a file that has become another
    one stays so.
    """

    def __init__(self, check: HashCheck, on_mismatch: str) -> None:
        self._kind = check.kind
        self._on_mismatch = on_mismatch  # drop, flag or fail_row

    def __call__(self, row: Row, fields: dict[str, Any]) -> Failure | None:
        """Add the verdict to the `fields` of the file that has arrived, its hash among them. They go on telling what
        arrived; it is to be stored only if its status is success still."""
        found = fields[self._kind]
        expected = (row.expected_hash or "").strip()
        matches = is_digest(expected, found, self._kind) if expected else None
        fields[HASH_MATCHES.name] = matches
        if matches is not False or self._on_mismatch == "flag":
            return None
        fields["error_message"] = message = self._message(expected, found)
        fields["ext"] = None  # which is that of a stored file
        if self._on_mismatch == "drop":
            fields["status"] = DROPPED
            return None
        failure = Failure("transform", "hash_mismatch", message, fields["http_status"], fields["final_url"])
        fields["status"], fields["error_code"] = failure.status, failure.code
        return failure

    def _message(self, expected: str, found: str) -> str:
        if digest_in(expected, self._kind) is not None:
            return f"its {self._kind} is {found}, expected was {expected}"
        shown = printable(redacted(expected[:_SHOWN])) + "…" * (len(expected) > _SHOWN)
        return f"its {self._kind} is {found}, and what the list expects, {shown!r}, is no {self._kind}"
