"""The transform of a crash test: some files become several samples, some become others, most stay as they came."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from any2ds.core.samples import Sample

STEP = f"{__name__}:take_apart"
_HEAD = 11  # bytes by which a file is recognised


def made_of(body: bytes) -> Sequence[bytes]:
    """The files that `body` becomes, which follows from its bytes: itself alone, another one, or several."""
    number = zlib.crc32(body)
    kind = number % 6
    if kind == 0:  # the first of them as it came
        return [body, *(body[:_HEAD] + b"part %d of " % part + body[_HEAD:] for part in range(1, 2 + number // 6 % 30))]
    if kind == 1:  # the second of which is not wanted
        return [body[:_HEAD] + b"all there is of " + body[_HEAD:], b""]
    if kind == 2:
        return [body + b" and more"]
    return [body]


def take_apart(sample: Sample) -> Sample | list[Sample]:
    """What `made_of` says."""
    body = sample.data
    files = made_of(body)
    found = [sample if file == body else sample.with_data(file) for file in files]
    found = [one if file else sample.filtered("empty") for one, file in zip(found, files, strict=True)]
    return found[0] if len(found) == 1 else found
