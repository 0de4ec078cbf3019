"""Turns what was fetched into a sample: recognises the file, hashes it, and says all of it in metadata fields."""

from __future__ import annotations

import hashlib
from typing import Any

from any2ds.config.hashes import hash_columns
from any2ds.config.options import OutputOptions
from any2ds.core.errors import redacted
from any2ds.core.failures import SUCCESS, Failure
from any2ds.core.filetypes import recognize_file
from any2ds.core.metadata import OUTCOME_FIELDS, without_credentials
from any2ds.core.samples import Fetched, Payload, Sample
from any2ds.worker.hash_check import Expectations


class Describe:
    """Turns what was fetched into a sample: recognises the file, hashes it, and says all of it in metadata fields."""

    def __init__(self, options: OutputOptions) -> None:
        self._hashes = [(name, getattr(hashlib, name)) for name in hash_columns(options)]
        self._ext = None if options.file_ext == "auto" else options.file_ext
        check = options.verify_hash
        self._verify = Expectations(check, options.on_hash_mismatch) if check else None
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
            "error_message": redacted(failure.detail) or None,
            "http_status": failure.http_status,
            "final_url": failure.final_url and without_credentials(failure.final_url),
            "attempts": fetched.attempts,
        }
        return Sample(fetched.row, None, "", fields, failure, seconds=seconds)

    def _succeeded(self, fetched: Fetched, outcome: Payload) -> Sample:
        body = outcome.body
        mime_type, ext = recognize_file(body, outcome.media_type)
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
            "etag": outcome.etag,
            "last_modified": outcome.last_modified,
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
