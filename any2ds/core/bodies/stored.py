"""What lies in a shard that was written: samples as they are read back from its data file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from any2ds.core.errors import DamagedShard, words_of

_HEAD = 8192  # bytes, long enough to recognise a file type by
_PIECE = 1 << 20  # bytes read at once

# Members that stand beside the file of a sample, by their extension.
CAPTION, METADATA = "txt", "json"


def taken_extensions(has_members: bool, has_captions: bool, further: Collection[str] = ()) -> frozenset[str]:
    """Extensions that the file of a sample cannot have in a dataset, because other members have them.

    `further` are the extensions of files that steps add. It depends on options alone: all samples are named alike.
    """
    if not has_members:
        return frozenset()
    has_text = has_captions or any(ext.lower() == CAPTION for ext in further)
    return frozenset({METADATA, CAPTION} if has_text else {METADATA})


def free_extension(ext: str, taken: Collection[str]) -> str:
    """`ext`, or with `data.` before it if it is taken: readers of webdataset decode by the last part of a name."""
    return f"data.{ext}" if ext.lower() in taken else ext


class StoredBody:
    """The bytes of one member, read when they are asked for; a `buffer.Body` for whoever writes it again.

    `read_at(offset, size)` gives up to `size` of its bytes. It can be read until the next sample is asked for. Raises
    DamagedShard where it cannot be read, or ends early.
    """

    __slots__ = ("_read_at", "size")

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self.size = size
        self._read_at = read_at

    @classmethod
    def of(cls, data: bytes) -> StoredBody:
        return cls(len(data), partial(_slice, data))

    def read(self) -> bytes:
        """All of it, in memory."""
        return self._piece(0, self.size)

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        return self._piece(0, min(_HEAD, self.size))

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of at most a megabyte."""
        for start in range(0, self.size, _PIECE):
            yield self._piece(start, min(_PIECE, self.size - start))

    def _piece(self, start: int, wanted: int) -> bytes:
        try:
            piece = self._read_at(start, wanted)
        except OSError as error:
            raise DamagedShard(words_of(error)) from error
        if len(piece) != wanted:
            raise DamagedShard(f"a member ends after {start + len(piece)} of {self.size} bytes")
        return piece

    def spill(self) -> None:
        """It is on disk already."""

    def share(self, owners: int) -> None:
        """It takes no memory, whoever owns it."""

    def release(self) -> None:
        """Nothing to give back."""


def _slice(data: bytes, offset: int, size: int) -> bytes:
    return data if size == len(data) else data[offset : offset + size]


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample of a shard. Rows that failed have none."""

    key: str
    members: Mapping[str, StoredBody]  # extension, without the first dot -> content, in the order of the file

    @property
    def ext(self) -> str:
        """Of its file; "" if there is none beside caption and metadata."""
        return next((ext for ext in self.members if ext not in (CAPTION, METADATA)), "")

    @property
    def body(self) -> StoredBody | None:
        """Its file."""
        return self.members.get(self.ext)
