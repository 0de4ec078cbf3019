"""Which hashes a dataset has as columns, by its options, and which columns say what became of a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from any2ds.config.options import HashCheck, OutputOptions
from any2ds.core.metadata import HASHES, OUTCOME_FIELDS


def hash_columns(options: OutputOptions) -> tuple[str, ...]:
    """The hashes asked for, each once, in the order of `HASHES`."""
    return _hashes(options.compute_md5, options.compute_hash, options.verify_hash)


def outcome_fields(options: OutputOptions) -> dict[str, pa.DataType]:
    """The columns that say what became of a row, before those of steps."""
    return {**OUTCOME_FIELDS, **dict.fromkeys(hash_columns(options), pa.string())}


def recorded_hash_columns(options: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The same of a dataset by the options in its run file; all of them where no run file tells.

    A column of another hash is one that the list had.
    """
    if options is None or "compute_md5" not in options:
        return HASHES
    return _hashes(options["compute_md5"], options.get("compute_hash"), options.get("verify_hash"))


def _hashes(compute_md5: bool, compute_hash: str | None, verify_hash: HashCheck | str | None) -> tuple[str, ...]:
    asked = {compute_hash, "md5" if compute_md5 else None}
    if verify_hash:
        asked.add(str(verify_hash).rpartition(":")[2])  # column:kind
    return tuple(name for name in HASHES if name in asked)
