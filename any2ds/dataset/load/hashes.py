"""Compares the files of samples with the hashes that the metadata have of them."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32

CHEAPEST = ("sha256", "md5", "sha512")  # with the instructions that processors have for it, by CPU time
OF_CHANGED = (STORED_BYTES.name, STORED_CRC32.name)
"""The columns that say of a file which steps have changed what it is: hashes are those of what arrived."""


def compare(sample: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Raises DamagedShard if the file is not the one of which these columns of the sample, and `OF_CHANGED`, tell.

    A file of which nothing is known passes: what is null, or 0 in records, which know no null.
    """
    if (data := sample.get("data")) is None:
        return
    if sample.get(STORED_BYTES.name):
        crc32 = sample.get(STORED_CRC32.name)
        name, is_same = "CRC-32", not crc32 or zlib.crc32(data) == crc32
    else:
        name = next((name for name in columns if sample.get(name)), "")
        is_same = not name or getattr(hashlib, name)(data).hexdigest() == sample[name]
    if not is_same:
        raise DamagedShard(f"{sample.get('key')!r}: the {name} of its file is not that of the metadata")
