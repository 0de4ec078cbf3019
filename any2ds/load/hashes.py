"""Compares the files of samples with the hashes that the metadata have of them."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from any2ds.core.errors import DamagedShard
from any2ds.core.members import column, member_of_ext
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32

CHEAPEST = ("sha256", "md5", "sha512")  # with the instructions that processors have for it, by CPU time
_OF_CHANGED = (STORED_BYTES.name, STORED_CRC32.name)  # of files that steps have changed: hashes are of what arrived


def columns(hashes: Sequence[str], members: Sequence[str]) -> tuple[str, ...]:
    """All that `compare` looks at, of files and of members."""
    return tuple(_column(member, name) for member in members or ("",) for name in (*hashes, *_OF_CHANGED))


def compare(sample: Mapping[str, Any], hashes: Sequence[str], members: Sequence[str] = ()) -> None:
    """Raises DamagedShard if a file of the sample is not the one that its columns tell of.

    A file of which nothing is known passes: what is null, or 0 in records, which know no null.
    """
    data = sample.get("data")
    for member in members:
        if (file := sample.get(member)) is not None:
            _compare(sample, file, member, hashes)
            data = None if file is data else data
    if data is not None:
        _compare(sample, data, member_of_ext(str(sample.get("ext")), members), hashes)


def _column(member: str, name: str) -> str:
    """The column for a member, or for the file of a sample that has but one."""
    return column(member, name) if member else name


def _compare(sample: Mapping[str, Any], file: bytes, member: str, hashes: Sequence[str]) -> None:
    if sample.get(_column(member, STORED_BYTES.name)):
        crc32 = sample.get(_column(member, STORED_CRC32.name))
        name, is_same = "CRC-32", not crc32 or zlib.crc32(file) == crc32
    else:
        name = next((name for name in hashes if sample.get(_column(member, name))), "")
        is_same = not name or getattr(hashlib, name)(file).hexdigest() == sample[_column(member, name)]
    if not is_same:
        raise DamagedShard(f"{sample.get('key')!r}: the {name} of its {member or 'file'} is not that of the metadata")
