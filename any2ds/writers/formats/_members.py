"""The files that stand for one sample in formats made of files: the media file, `.txt`, `.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import CAPTION, Sample, StoredSample

TEXT = "text.txt"
"""The extension of what was taken out of a document that has a caption as well; readers decode it as `txt`."""


def members(sample: Sample, metadata: MetadataTable) -> list[tuple[str, int, Iterable[bytes | memoryview]]]:
    """Name, size in bytes and content of each, in the order in which they are stored."""
    key = sample.key
    if sample.stored is not None:
        return [(f"{key}.{ext}", body.size, body.chunks()) for ext, body in sample.stored.members.items()]
    found: list[tuple[str, int, Iterable[bytes | memoryview]]] = []
    if sample.body is not None:
        found.append((f"{key}.{sample.ext}", sample.body.size, sample.body.chunks()))
        for ext, further in sample.extra_files.items():
            if ext.lower() == CAPTION and metadata.has_captions:  # whose name it is
                ext = TEXT
            found.append((f"{key}.{ext}", further.size, further.chunks()))
    if metadata.has_captions:
        caption = (sample.row.caption or "").encode()
        found.append((f"{key}.txt", len(caption), (caption,)))
    described = metadata.to_json(sample)
    found.append((f"{key}.json", len(described), (described,)))
    return found


def in_samples(found: Iterable[tuple[str, StoredBody]]) -> Iterator[StoredSample]:
    """Members that stand side by side, put together by their keys, which end at the first dot."""
    key, gathered = "", dict[str, StoredBody]()
    for name, body in found:
        own, _, ext = name.rsplit("/", 1)[-1].partition(".")
        if gathered and (own != key or ext in gathered):  # twice in a row is for the reader to complain about
            yield StoredSample(key, gathered)
            gathered = {}
        key = own
        gathered[ext] = body
    if gathered:
        yield StoredSample(key, gathered)
