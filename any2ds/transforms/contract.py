"""What a transform implements: a sample in, one or more samples out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.errors import BrokenStep
from any2ds.core.samples import Sample, is_text_member


class Transform(Protocol):
    """A step that changes files. Called from several threads at once, with samples whose bodies are in memory.

    Its module can be imported without the libraries that it needs. One that puts further files beside a sample
    (`with_member`) names their extensions in `members`; in record formats each is a column.
    """

    extra: ClassVar[str]  # that brings them
    options: ClassVar[frozenset[str]]  # those that ask for it: without one of them it is no step of the run
    columns: Mapping[str, pa.DataType]  # of the metadata that it may fill

    @classmethod
    def of(cls, media: MediaOptions) -> Transform:
        """Raises ImportError if a library is missing, OptionError."""
        ...

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        """Those that decide the bytes and the metadata that it makes, by the names of their packages."""
        ...

    def unsupported(self, sample: Sample) -> str:
        """For a file that it does not take: why, if it is one of its media, for the report; else ""."""
        ...

    def takes(self, sample: Sample) -> bool:
        """Whether the file is one of its kind, by `mime_type`, `ext` and the first bytes."""
        ...

    def memory(self, sample: Sample) -> int:
        """Bytes that it is going to take for this file, about, besides the file. Raises NotDecodable."""
        ...

    def __call__(self, sample: Sample) -> Sample | Sequence[Sample]:
        """What becomes of it: the same sample if it stays as it is, `with_data`, `failed`, `filtered`, or several.

        Raises NotDecodable for a broken file. Whatever else it raises is the row's `transform_error`.
        """
        ...


class BatchTransform(Protocol):
    """A step that takes several samples at once. Called from one thread at a time."""

    columns: Mapping[str, pa.DataType]
    batch_size: int

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Sample | Sequence[Sample]]:
        """What becomes of each, in the same order."""
        ...


def member_type(ext: str) -> pa.DataType:
    """What a further file is in formats that have columns for them."""
    return pa.string() if is_text_member(ext) else pa.binary()


class Rejected(Exception):
    """Raised by a step for a file that fails with another code than `not_decodable`, such as `too_many_pixels`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class GivenUp(SystemExit):
    """Raised in a thread whose step has taken too long, wherever it is; of no concern to anybody else."""


OF_THE_RUN = (BrokenStep, GivenUp)  # what is not the fault of one file
