"""The hash columns of a dataset and the columns of the outcome of a row, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from any2ds.config.options import OutputOptions
from any2ds.config.parsers import HashCheck, HashChecks, hash_check
from any2ds.core.members import Members
from any2ds.core.metadata import HASH_MATCHES, HASHES, OUTCOME_FIELDS


def hash_columns(options: OutputOptions) -> tuple[str, ...]:
    """The hashes asked for, each once, in the order of `HASHES`."""
    return _hashes(options.compute_md5, options.compute_hash, options.verify_hash)


def outcome_fields(options: OutputOptions, members: Members | None = None) -> dict[str, pa.DataType]:
    """The columns that say what became of a row, or of each of its `members`, before those of steps."""
    found = {**OUTCOME_FIELDS, **dict.fromkeys(hash_columns(options), pa.string())}
    if members is not None and options.verify_hash is not None:  # of a row with one URL it goes with the expected hash
        found[HASH_MATCHES.name] = HASH_MATCHES.type
    return found


def recorded_hash_columns(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Hash columns of a dataset by the options in its run file; all of `HASHES` where no run file tells.

    A column of another hash is one that the list had.
    """
    if options is None or "compute_md5" not in options:
        return HASHES
    return _hashes(options["compute_md5"], options.get("compute_hash"), options.get("verify_hash"))


def _hashes(
    compute_md5: bool, compute_hash: str | None, verify_hash: HashCheck | HashChecks | str | None
) -> tuple[str, ...]:
    asked = {compute_hash, "md5" if compute_md5 else None}
    if verify_hash:
        asked.update(part.kind for part in hash_check(verify_hash).parts)
    return tuple(name for name in HASHES if name in asked)
