"""The interface of a transform: a sample in, one or more samples out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from any2ds.config.media import AudioOptions, ImageOptions, MediaOptions, VideoOptions
from any2ds.core.errors import BrokenStep
from any2ds.core.samples import Sample

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a step on one file. Either call may read its header, and raise NotDecodable or Rejected."""

    memory: Callable[[], int]
    """Estimated bytes that it needs, besides the file itself."""
    run: Callable[[], Sample | Sequence[Sample]]
    """Returns the same sample, a changed one (`with_data`, `failed`, `filtered`), or several.

    NotDecodable stands for a broken file; any exception but this and Rejected is the row's `transform_error`.
    """


class Transform(Protocol):
    """A step that changes files. Called from several threads at once, with samples whose bodies are in memory.

    One that adds extra files to a sample (`with_member`) names their extensions in `members`; in record formats each is
    a column. Those of its columns that tell of the stored file are `file_columns`; `describe(sample)` reads them from
    the header of another file, which a step of the user has put in its place.
    """

    columns: Mapping[str, pa.DataType]  # of the metadata that it fills

    def __init__(self, media: MediaOptions) -> None:
        """Raises OptionError, and ImportError for a library that only some options need."""

    def plan(self, sample: Sample) -> Plan | str | None:
        """The work on a file, by its `mime_type`, `ext` and first bytes; None for files of other kinds.

        A text says, for the report, why a file of the step's own kind is left as it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Facts about a step of any2ds that need none of its libraries, which its module imports."""

    options: frozenset[str]  # that turn it on
    extra: str = ""  # that installs its libraries
    libraries: tuple[str, ...] = ()  # the packages that determine the bytes and the metadata that it makes


STEPS: Mapping[str, StepInfo] = {
    "archive": StepInfo(frozenset({"unpack"})),
    "image": StepInfo(
        frozenset({"file_size", "decode_check", *ImageOptions.__dataclass_fields__}),
        "image",
        ("opencv", "pillow", "simplejpeg"),
    ),
    "audio": StepInfo(
        frozenset({"decode_check", "clip_seconds", "clips_col", *AudioOptions.__dataclass_fields__}),
        "audio",
        ("av",),
    ),
    "video": StepInfo(
        frozenset({"decode_check", "min_duration", "max_duration", *VideoOptions.__dataclass_fields__}),
        "video",
        ("av",),
    ),
    "text": StepInfo(
        frozenset({"extract_text"}),
        "text",
        ("trafilatura", "lxml", "pypdfium2", "charset-normalizer"),
    ),
    "only_images": StepInfo(frozenset({"only_images"})),
}
"""By module of `steps`, in the order in which a file goes through them; steps of the user come last."""


class BatchTransform(Protocol):
    """A step that takes several samples at once. Called from one thread at a time."""

    columns: Mapping[str, pa.DataType]
    batch_size: int

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Sample | Sequence[Sample]]:
        """Returns the result for each, in the same order."""
        ...


def column_value(value: Any) -> Any:
    """A value of a column, which may be JSON text; None for blank text. Raises ValueError for text that is no JSON."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class Rejected(Exception):
    """Raised by a step for a file that fails with another code than `not_decodable`, such as `too_many_pixels`."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message)
        self.code = code


class GivenUp(SystemExit):
    """Raised in a thread whose step has taken too long; ends the thread and nothing else."""


OF_THE_RUN = (BrokenStep, GivenUp)  # exceptions that concern the run, not one file
