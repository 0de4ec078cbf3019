"""The files that stand for one sample in formats made of files: the media file, `.txt`, `.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from any2ds.metadata import MetadataTable
from any2ds.types import Sample


def members(sample: Sample, metadata: MetadataTable) -> Iterator[tuple[str, int, Iterable[bytes | memoryview]]]:
    """Name, size in bytes and content of each, in the order in which they are stored."""
    key = sample.row.key
    if sample.body is not None:
        yield f"{key}.{sample.ext}", sample.body.size, sample.body.chunks()
    if metadata.has_captions:
        caption = (sample.row.caption or "").encode()
        yield f"{key}.txt", len(caption), (caption,)
    described = metadata.to_json(sample)
    yield f"{key}.json", len(described), (described,)
