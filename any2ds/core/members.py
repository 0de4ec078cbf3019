"""The members of a sample: the files of one row whose list has several URLs, such as an image and its mask.

A row is fetched URL by URL. In a shard, the place of the member m of the row r among all that is fetched is its slot,
r * (number of members) + m. The stored file of a member is `<key>.<member>.<ext>`, and what is known of it stands in
the columns `<member>_url`, `<member>_status` and so on, beside those of the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from any2ds.core.failures import NO_FAILURES, SUCCESS

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Body
    from any2ds.core.bodies.stored import StoredBody
    from any2ds.core.samples import Sample

T = TypeVar("T")

ALL, ANY = "all", "any"
ABSENT = "absent"  # a member without a URL, or one that was not fetched
URL, EXPECTED_HASH = "url", "expected_hash"  # columns of a member that come with the list
_MOST_CODES = 4  # that a line names
_PAIR = re.compile(r"\s*([^:,\s]*)\s*:\s*(.*?)\s*", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({"data", "key", "ext", "url", "caption", "txt", "json", "rate", ALL, ANY})


def columns_of(written: str) -> dict[str, str]:
    """Member -> column of its URLs, as `url_col` has them: `image:image_url,mask:mask_url`.

    Empty if it is the name of one column. Raises ValueError for members that cannot be called so.
    """
    pairs = [_PAIR.fullmatch(part) for part in written.split(",")]
    if len(pairs) < 2 or not all(pairs):
        return {}
    found: dict[str, str] = {}
    for pair in pairs:
        assert pair is not None
        name, column = pair.groups()
        if not _NAME.fullmatch(name) or name in _TAKEN or not column:
            raise ValueError(
                f"a column, or member:column for each file of a sample: {name!r} cannot be a member; its name has small"
                f" letters, digits and _, and is none of {', '.join(sorted(_TAKEN))}"
            )
        if name in found:
            raise ValueError(f"each member once: {name!r} is given twice")
        found[name] = column
    return found


@dataclass(frozen=True)
class Members:
    """The files of a row that has several URLs."""

    columns: Mapping[str, str]  # member -> column of the list, in order
    require: str = ALL  # `all`, `any`, or names separated by commas: what must be there for a row to be a success

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Members | None:
        """The members of a dataset made with `options`, as its run file has them; None where a row has one URL."""
        columns = columns_of(str(options.get("url_col") or ""))
        return cls(columns, str(options.get("require") or ALL)) if columns else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def required(self) -> tuple[int, ...]:
        """The numbers of those that must be there; none with `any`, where one of all of them is enough."""
        if self.require in (ALL, ANY):
            return tuple(range(len(self))) if self.require == ALL else ()
        wanted = self.require.split(",")
        return tuple(number for number, name in enumerate(self.names) if name in wanted)

    @cached_property
    def url_columns(self) -> tuple[str, ...]:
        """As they are called in the dataset."""
        return tuple(column(name, URL) for name in self.names)

    @cached_property
    def hash_columns(self) -> tuple[str, ...]:
        """Columns of expected hashes, as they are called in the dataset; the list may lack some."""
        return tuple(column(name, EXPECTED_HASH) for name in self.names)

    def prefixed(self, own: Mapping[str, T]) -> dict[str, T]:
        """The columns that tell of each member: those that tell of a row, for each of them."""
        return {column(name, each): value for name in self.names for each, value in own.items()}

    def decides(self, statuses: Sequence[str | None]) -> int:
        """The number of the member whose outcome is that of the row, by their `statuses`; None: it has no URL.

        Of a success it is the first file that is there, else the first that is required and has failed.
        """
        lacking = [number for number in self.required if statuses[number] != SUCCESS]
        for number in lacking:
            if statuses[number] is not None:
                return number
        if lacking:
            return lacking[0]
        for number, status in enumerate(statuses):
            if status == SUCCESS:
                return number
        return next((number for number, status in enumerate(statuses) if status is not None), 0)

    def deciding_url(self, fields: Mapping[str, Any]) -> str:
        """The column of the URL whose outcome is that of a row with these metadata."""
        return self.url_columns[self.decides([fields.get(column(name, "status")) for name in self.names])]

    def stored(self, fields: Mapping[str, Any]) -> list[tuple[str, int]]:
        """Extension and size in bytes of the file of each member of a stored sample, by what its metadata say."""
        found = []
        for name in self.names:
            if fields.get(column(name, "status")) == SUCCESS:
                size = fields.get(column(name, "stored_bytes"))
                size = fields.get(column(name, "bytes")) if size is None else size
                found.append((f"{name}.{fields.get(column(name, 'ext'))}", size or 0))
        return found

    def files(self, sample: Sample) -> Iterator[tuple[str, Body | StoredBody]]:
        """Its further files that are those of members, by extension; none of steps."""
        for ext, body in sample.extra_files.items():
            name, _, own = ext.partition(".")
            if name in self.columns and sample.fields.get(column(name, "ext")) == own:
                yield ext, body

    def to_fetch(self, urls: Sequence[str | None]) -> list[int]:
        """The numbers of those to fetch of a row with these `urls`. Of a row that cannot be a success, because one that
        is required has no URL, only this one: its outcome says so."""
        there = [number for number, url in enumerate(urls) if url is not None and url.strip()]
        if len(there) == len(urls):
            return there
        lacking = next((number for number in self.required if number not in there), None)
        return [lacking] if lacking is not None else there or [0]

    def outcomes(self, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Each member and what became of it, by the metadata of a row: a failure code, a status that is no failure, or
        `absent`, if it has no URL or was not fetched. None of a row that has no such columns."""
        for name in self.names:
            if (of := column(name, "status")) in fields:
                status = fields[of]
                code = fields.get(column(name, "error_code")) if is_failure(status) else None
                yield name, code or status or ABSENT


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """How often a member arrived, over many rows."""

    name: str
    arrived: int
    failed: int
    absent: int
    codes: Mapping[str, int]  # failure code, or dropped and the like -> files, the most frequent first

    @property
    def text(self) -> str:
        """`868 arrived, 132 failed (http_404 100, timeout_total 32), 12 absent`."""
        why = ", ".join(f"{code} {files:,}" for code, files in list(self.codes.items())[:_MOST_CODES])
        more = f" and {len(self.codes) - _MOST_CODES} more" if len(self.codes) > _MOST_CODES else ""
        found = f"{self.arrived:,} arrived, {self.failed:,} failed" + (f" ({why}{more})" if why else "")
        return found + (f", {self.absent:,} {ABSENT}" if self.absent else "")


def member_figures(outcomes: Mapping[str, Mapping[str, int]]) -> tuple[MemberFigures, ...]:
    """`outcomes`: member -> outcome -> files."""
    found = []
    for name, of in outcomes.items():
        ordered = sorted(of.items(), key=lambda item: (-item[1], item[0]))
        codes = {code: files for code, files in ordered if code not in (SUCCESS, ABSENT)}
        failed = sum(files for code, files in codes.items() if is_failure(code))
        found.append(MemberFigures(name, of.get(SUCCESS, 0), failed, of.get(ABSENT, 0), codes))
    return tuple(found)


def column(member: str, name: str) -> str:
    """How the column `name` of a member is called."""
    return f"{member}_{name}"


def member_of_ext(ext: str, members: Collection[str]) -> str:
    """The member whose file has this extension, `image.jpg`; "" for other files of a sample."""
    name, dot, rest = ext.partition(".")
    return name if dot and rest and "." not in rest and name in members else ""


def files_of(sample: Sample, members: Collection[str]) -> dict[str, Body | StoredBody]:
    """Member -> its file, of a sample that is stored."""
    found = {} if sample.body is None else {sample.ext: sample.body}
    files = {**found, **sample.extra_files}
    return {name: body for ext, body in files.items() if (name := member_of_ext(ext, members))}


def is_failure(status: str | None) -> bool:
    return status is not None and status not in NO_FAILURES
