"""Samples: what becomes of a row, from the answer of its server to the files that are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.failures import FILTERED, SUCCESS, Failure
from any2ds.core.rows import Row

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Body

# Members that stand beside the file of a sample, by their extension.
CAPTION, METADATA = "txt", "json"
LONGEST_REASON = 200  # characters
# Characters of what servers say that are kept, for each row until its shard is complete. Real values are far shorter,
# but for URLs with signatures; a URL that was cut would lead elsewhere, so that a longer one is not kept at all.
LONGEST_HEADER = 512
LONGEST_FINAL_URL = 2048
LONGEST_MESSAGE = 2048
_PART_DIGITS = 4  # at least; of the number behind the key of a row that has several samples


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


class Payload(NamedTuple):
    """The answer of a server that had success."""

    body: Body
    media_type: str | None  # of the Content-Type header, without parameters, in lower case
    http_status: int | None  # None where the protocol has none
    final_url: str | None  # where redirects led; None if there were none, or if it is longer than LONGEST_FINAL_URL
    seconds: float  # from the start of the attempt to its last byte
    etag: str | None = None  # validators, as the server gave them
    last_modified: str | None = None


class Fetched(NamedTuple):
    """One row and what became of it on the network."""

    row: Row
    outcome: Payload | Failure
    attempts: int = 1


@dataclass(slots=True)
class Sample:
    """A file for the dataset, or the failure in its place: what a step of your own (`transform`) is given and returns.

    Not to be changed, but to be replaced; it is not frozen because that takes a microsecond more for each.

    Of a row that becomes several samples (an archive, a video cut into clips) each has a `part`.
    """

    row: Row
    body: Body | StoredBody | None  # the file; None on failure
    ext: str  # of the file, without the dot; "" on failure
    fields: Mapping[str, Any]  # metadata columns beyond those of the list; see `metadata.OUTCOME_FIELDS`
    failure: Failure | None = None
    part: int | None = None  # its number among the samples of its row, from 0; None: it is the only one
    parts: int = 1  # how many samples its row has, where it has a part
    members: Mapping[str, bytes] = field(default_factory=dict)  # further files, by extension: {"txt": b"..."}
    extra_files: Mapping[str, Body | StoredBody] = field(default_factory=dict)  # the same when it is through all steps
    not_processed: Mapping[str, str] | None = None  # its `member` -> why a step has left its file as it came
    seconds: float = 0.0  # that the transfer of its row took, if it succeeded

    @property
    def key(self) -> str:
        """Unique in the dataset: `000010005`, or `000010005_0003` for the fourth sample of that row."""
        return self.row.key if self.part is None else sample_key(self.row.key, self.part, self.parts)

    @property
    def url(self) -> str | None:
        return self.row.url

    @property
    def caption(self) -> str | None:
        return self.row.caption

    @property
    def member(self) -> str:
        """The name of this file in its row, `image` or `mask`; "" where a row has one."""
        return self.row.member

    @property
    def data(self) -> bytes:
        """The file."""
        return b"" if self.body is None else self.body.read()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 0 if self.body is None else self.body.size

    @property
    def bodies(self) -> list[Body | StoredBody]:
        """All its files: whoever writes it releases them."""
        return [*([] if self.body is None else [self.body]), *self.extra_files.values()]

    @property
    def mime_type(self) -> str:
        """As recognised from the bytes, else as the server said; "" if nobody knows."""
        return self.fields.get("mime_type") or ""

    def with_data(
        self, data: bytes | bytearray | memoryview, ext: str | None = None, mime_type: str | None = None, **fields: Any
    ) -> Sample:
        """A copy with another file, and with further metadata `fields`; `ext` without the dot.

        Raises TypeError for what is not bytes.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"with_data takes bytes, not {type(data).__name__}")
        data = bytes(data)
        known = {**self.fields, **fields, "ext": ext or self.ext, "mime_type": mime_type or self.fields["mime_type"]}
        return replace(self, body=StoredBody.of(data), ext=ext or self.ext, fields=known)

    def with_fields(self, **fields: Any) -> Sample:
        """A copy with further metadata; a step declares the columns that it fills."""
        return replace(self, fields={**self.fields, **fields})

    def with_member(self, ext: str, data: bytes) -> Sample:
        """A copy with a further file beside it: `<key>.<ext>`, or a column of that name in record formats."""
        return replace(self, members={**self.members, ext: data})

    def as_part(self, part: int, parts: int = 1) -> Sample:
        """A copy as one of the several samples of its row, of which there are `parts`."""
        return replace(self, part=part, parts=parts)

    def left_as_is(self, reason: str) -> Sample:
        """A copy with the reason why a step that was asked for does not process its file; the first one counts."""
        return replace(self, not_processed=self.not_processed or {self.member: encodable(reason)[:LONGEST_REASON]})

    def failed(self, code: str, detail: str = "") -> Sample:
        """The failure of this file, with a code of the closed list, in its stead. Metadata that are known stay."""
        detail = encodable(detail)
        failure = Failure("transform", code, detail, self.fields.get("http_status"), self.fields.get("final_url"))
        outcome = {"status": failure.status, "error_code": code, "error_message": detail or None, "ext": None}
        known = {**self.fields, **outcome}
        return replace(self, body=None, ext="", fields=known, failure=failure, members={}, extra_files={})

    def filtered(self, reason: str) -> Sample:
        """A copy that a step did not want, which is no failure."""
        outcome = {"status": FILTERED, "error_message": encodable(reason) if reason else None, "ext": None}
        return replace(self, body=None, ext="", fields={**self.fields, **outcome}, members={})


def encodable(text: str) -> str:
    """As a table can have it: names of files, and messages about them, may have surrogates, which UTF-8 has not."""
    return str(text).encode("utf-8", "replace").decode()


Samples = Sequence[Sample]
"""What has become of one row: one sample, or several, in order; at least one."""


def outcome_of(samples: Samples) -> Sample:
    """The one that stands for the row."""
    if len(samples) == 1:
        return samples[0]
    return samples[first_of([sample.fields.get("status") for sample in samples])]


def first_of(statuses: Sequence[str | None]) -> int:
    """The number of the sample that stands for its row, by the statuses of all: the first that is stored, else the
    first."""
    return statuses.index(SUCCESS) if SUCCESS in statuses else 0


def code_of(sample: Sample) -> str:
    """`success`, `dropped`, `filtered`, `duplicate`, or the code of its failure."""
    return sample.failure.code if sample.failure else str(sample.fields["status"])


def in_parts(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of one row, numbered."""
    return [sample.as_part(part, len(samples)) for part, sample in enumerate(samples)]


def release(samples: Iterable[Sample]) -> None:
    """Their files are not wanted any more."""
    for sample in samples:
        if sample.body is not None:
            sample.body.release()
        if sample.extra_files:  # also of a failure, of a row with several files, of which some have arrived
            for further in sample.extra_files.values():
                further.release()


def sample_key(row_key: str, part: int | None, parts: int) -> str:
    """The key of the sample with the number `part` among the `parts` of its row.

    The numbers of a row have the same width, four digits or as many as the last one needs, so that keys sort.
    """
    return row_key if part is None else f"{row_key}_{part:0{max(_PART_DIGITS, len(str(parts - 1)))}d}"


def member_column(ext: str) -> str:
    """The column of the metadata that holds a further file in formats that have no files beside that of a sample."""
    return ext.replace(".", "_")


def is_text_member(ext: str) -> bool:
    """Whether a further file is a text, where it is a column."""
    return ext.rpartition(".")[2] in ("txt", "json")


def member_value(ext: str, data: bytes) -> str | bytes:
    return data.decode("utf-8", "replace") if is_text_member(ext) else data


def row_key(key: str) -> str:
    """The key of the row that the sample with `key` comes from."""
    row, _, part = key.rpartition("_")
    return row if row and len(part) >= _PART_DIGITS and part.isascii() and part.isdecimal() else key
