"""The user's own steps: called with a sample or a batch of them; what they return is checked."""

from __future__ import annotations

import datetime
import logging
import mimetypes
import re
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.declaration import declaration_of
from any2ds.core.errors import BrokenStep, OptionError, WrongResult, error_text
from any2ds.core.failures import FAILURE_CODES, FILTERED
from any2ds.core.filetypes import recognize
from any2ds.core.metadata import RESERVED_COLUMNS
from any2ds.core.processes.child_process import Answering, ChildEnded
from any2ds.core.samples import METADATA, Sample, encodable, is_text_member, member_column
from any2ds.transforms.contract import Plan
from any2ds.transforms.steps._finding import carried, check_travels, find, name_of

__all__ = ["BatchStep", "SampleStep", "carried", "check_made", "check_travels", "load", "name_of"]

log = logging.getLogger(__name__)

_OF_PYTHON: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
}
_EXT = re.compile(r"[A-Za-z0-9_-]{1,32}(\.[A-Za-z0-9_-]{1,32})?")
_SET_BY_METHODS = frozenset({"ext", "mime_type", "status", "error_code", "error_message"})  # of a sample
_UNKNOWN_TYPE = "application/octet-stream"
_TYPES = mimetypes.MimeTypes(filenames=())  # only those that Python itself knows
_ABSENT = object()
Describe = Callable[[Sample], Mapping[str, Any]]
_LONGEST_START = 600.0  # seconds until a child process has begun


class _Step:
    """The common part of both forms: the function, or the instance of a class, made when it is first needed."""

    def __init__(self, step: Callable[..., Any], name: str, describe: Describe) -> None:
        """Raises OptionError for a declaration that cannot be. `describe` gives the metadata that tell of a file."""
        self.name, self._describe = name, describe
        declared = declaration_of(step)
        self.columns: Mapping[str, pa.DataType] = _typed(declared.columns, name)
        self.members = _members(declared.members, name)
        self._new = step if isinstance(step, type) else None
        self._function = None if isinstance(step, type) else step
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Make the instance, which may load a model: once in a process. Raises BrokenStep if it cannot be made."""
        with self._making:
            if self._function is not None:
                return
            assert self._new is not None
            try:
                self._function = _made_before.pop(self._new) if self._new in _made_before else self._new()
            except BaseException as error:  # sys.exit() too: it is not for a step to end this process
                message = f"{type(error).__name__}: {error_text(error)}"
                raise BrokenStep(f"transform={self.name} failed to start: {message}") from error

    def keep(self) -> None:
        """Leave the instance of a class to the next step of that class that is loaded in this process."""
        if self._new is not None:
            _made_before[self._new] = self._function

    def renew(self) -> None:
        """A call of it hangs: if it is a class, the next call is of a new instance."""
        if self._new is not None:
            self._function = None

    def _call(self, given: Any) -> Any:
        while (function := self._function) is None:
            self.prepare()
        return function(given)

    def _checked(self, made: Any, sample: Sample) -> Sample | list[Sample]:
        """The result of the step for `sample`, of which it was given a copy. Raises WrongResult."""
        if made is None or (isinstance(made, (list, tuple)) and not made):
            return sample.filtered(f"by {self.name}")
        if isinstance(made, Sample):
            return self._one(made, sample)
        if not isinstance(made, (list, tuple)):
            raise WrongResult(f"{self.name} returned {_a(made)}: expected a Sample, a list of samples or None")
        for one in made:
            if not isinstance(one, Sample):
                raise WrongResult(f"{self.name} returned a list with {_a(one)} in it: expected samples alone")
        return [self._one(one, sample) for one in made]

    def _one(self, made: Sample, sample: Sample) -> Sample:
        if made.row.key != sample.row.key or made.part != sample.part:
            raise WrongResult(f"{self.name} was given the sample {sample.key}, and returned {made.key}")
        fields = {**sample.fields, **self._fields(made, sample)}
        if made.failure is not None:
            if made.failure.code not in FAILURE_CODES:
                known = "transform_error, not_decodable, too_small …, or filtered(why)"
                raise WrongResult(f"{self.name}: unknown failure code {made.failure.code!r}: expected {known}")
            return replace(sample, fields=fields).failed(made.failure.code, str(made.failure.detail))
        if made.fields.get("status") == FILTERED:
            return replace(sample, fields=fields).filtered(str(made.fields.get("error_message") or f"by {self.name}"))
        members = self._members_of(made, sample)
        if made.body is sample.body and made.ext == sample.ext:
            return replace(sample, fields=fields, members=members)
        return self._with_file(made, replace(sample, fields=fields, members=members))

    def _with_file(self, made: Sample, sample: Sample) -> Sample:
        """With another file, or another extension of it."""
        body, is_new = made.body, made.body is not sample.body
        if is_new and (not isinstance(body, StoredBody) or not body.size):
            raise WrongResult(f"{self.name} returned a sample with an empty file: None filters it")
        if not _EXT.fullmatch(made.ext):
            raise WrongResult(f"{self.name}: invalid extension {made.ext!r}: expected letters and digits, such as npy")
        assert body is not None
        before, reported = sample.fields.get("mime_type"), made.fields.get("mime_type")
        if reported == before:
            reported = None
        elif reported is not None and not (isinstance(reported, str) and encodable(reported) == reported):
            raise WrongResult(f"{self.name} returned a sample whose mime_type is {_a(reported)}: expected a text")
        ext = made.ext
        media_type, usual_ext = recognize(body.head(), reported) if is_new else (before, ext)
        if ext != sample.ext:
            guessed = _TYPES.guess_type(f"file.{ext}")[0]
            media_type = media_type or guessed if is_new else guessed or media_type
        elif media_type is None and not _has_signature(sample):
            media_type = before  # text that was cleaned is text
        elif media_type != before:
            ext = usual_ext
        mime_type = reported or media_type or (_UNKNOWN_TYPE if is_new else before)
        found = replace(sample, body=body, ext=ext, fields={**sample.fields, "ext": ext, "mime_type": mime_type})
        if not is_new:
            return found
        described = {name: value for name, value in self._describe(found).items() if name not in self.columns}
        return replace(found, fields={**found.fields, **described})

    def _fields(self, made: Sample, sample: Sample) -> dict[str, Any]:
        """The metadata that it has filled, as values of Python."""
        found = {}
        for name, value in made.fields.items():
            if value is sample.fields.get(name, _ABSENT):
                continue
            if (type := self.columns.get(name)) is not None:
                found[name] = self._value(name, value, type)
            elif name in RESERVED_COLUMNS and name not in _SET_BY_METHODS:
                raise WrongResult(f"{self.name} fills the column {name!r}, which any2ds writes itself")
            elif name not in _SET_BY_METHODS:
                raise self._undeclared(f"fills the column {name!r}", f"columns={{{name!r}: {type_name(value)}}}")
        return found

    def _undeclared(self, what: str, declaration: str) -> WrongResult:
        return WrongResult(
            f"{self.name} {what} and does not declare it: put @any2ds.transform({declaration}) before it"
        )

    def _value(self, name: str, value: Any, type: pa.DataType) -> Any:
        if value is None:
            return None
        if hasattr(value, "tolist"):  # of numpy, for which there is no JSON
            value = value.tolist()
        try:
            return pa.scalar(value, type).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise WrongResult(f"{self.name} declares {name!r} as {type}, and fills it with {_a(value)}") from None

    def _members_of(self, made: Sample, sample: Sample) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for ext, data in made.members.items():
            if ext not in self.members and ext not in sample.members:
                raise self._undeclared(f"adds a file .{ext}", f"members=({ext!r},)")
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise WrongResult(f"{self.name} adds a file .{ext} of {_a(data)}: expected bytes")
            found[ext] = bytes(data)
        return found


_made_before: dict[type, Any] = {}  # by `check_made`, for the run that follows in this process


def check_made(steps: Sequence[Any], patience: float, is_here: bool) -> None:
    """Raises OptionError for a step that is a class of which no instance can be made.

    With `is_here` the instances are made in this process and used by the run. Else they are made in a child process,
    which ends before the run begins: a model would keep its memory, and a GPU cannot be used after a fork. An instance
    has `patience` seconds (0: any time).
    """
    _made_before.clear()
    classes = [step for step in steps if isinstance(find(step), type)]
    if is_here:
        for step in classes:
            made = load(step)
            try:
                made.prepare()
            except BrokenStep as error:
                raise OptionError(str(error)) from error
            made.keep()
    elif classes:
        _check_in_child(classes, patience)


def _check_in_child(steps: Sequence[Any], patience: float) -> None:
    try:
        child: Answering[Any, str] = Answering(_new_check)
        child.begin(_LONGEST_START)
    except (OSError, ChildEnded) as error:  # the workers are going to say what is wrong
        log.info("cannot check whether the steps start: no process for it: %s", error)
        return
    try:
        for step in steps:
            try:
                message = child.ask(carried(step), patience)
            except ChildEnded as error:
                late = f"was not ready within {patience:g} s (--transform_timeout)"
                raise OptionError(f"transform={name_of(step)} {late if error.late else f'crashed: {error}'}") from error
            if message:
                raise OptionError(message)
    finally:
        child.end()


def _new_check() -> Callable[[Any], str]:
    return _why_not_made


def _why_not_made(step: Any) -> str:
    """Why no instance of it can be made; "" if one can."""
    try:
        load(step).prepare()
    except (BrokenStep, OptionError) as error:
        return str(error)
    return ""


class SampleStep(_Step):
    """Called with one sample, from several threads at once: `(Sample) -> Sample | None | list[Sample]`."""

    def plan(self, sample: Sample) -> Plan:
        return Plan(lambda: 0, lambda: self._checked(self._call(_lent(sample)), sample))


class BatchStep(_Step):
    """Called with a list of up to `batch_size` samples, from one thread at a time."""

    def __init__(self, step: Callable[..., Any], name: str, describe: Describe, batch_size: int) -> None:
        super().__init__(step, name, describe)
        self.batch_size = batch_size

    def __call__(self, samples: Sequence[Sample]) -> list[Sample | Sequence[Sample]]:
        made = self._call([_lent(sample) for sample in samples])
        if not isinstance(made, (list, tuple)):
            raise WrongResult(f"{self.name} was given a list of samples, and returned {_a(made)}, not a list")
        if len(made) != len(samples):
            raise WrongResult(
                f"{self.name} was given a list of {len(samples)}, and returned one of {len(made)}: None stands for a"
                " filtered sample, a list for several"
            )
        return [self._safely(one, sample) for one, sample in zip(made, samples, strict=True)]

    def _safely(self, made: Any, sample: Sample) -> Sample | list[Sample]:
        """The checked result of one sample; an error in it concerns no other."""
        try:
            return self._checked(made, sample)
        except WrongResult as error:
            return sample.failed("transform_error", str(error))


def _nothing(sample: Sample) -> Mapping[str, Any]:
    return {}


def _has_signature(sample: Sample) -> bool:
    """Whether its type is that of its first bytes, which another file of that type would have as well."""
    return sample.body is not None and recognize(sample.body.head(), None)[0] is not None


def load(spec: Any, describe: Describe = _nothing) -> SampleStep | BatchStep:
    """The step that `--transform` names. `describe` gives the metadata that tell of the file in a sample.

    Raises OptionError if there is no such step, or it declares what cannot be.
    """
    step, name = find(spec), name_of(spec)
    size = declaration_of(step).batch_size
    return SampleStep(step, name, describe) if size is None else BatchStep(step, name, describe, size)


def _lent(sample: Sample) -> Sample:
    """For a step to do with what it likes: it may write into what it is given, and keep it."""
    row = sample.row
    if row.extra is not None:
        row = row._replace(extra=dict(row.extra))
    return replace(sample, row=row, fields=dict(sample.fields), members=dict(sample.members))


def _typed(columns: Mapping[str, Any], step: str) -> dict[str, pa.DataType]:
    found = {}
    for name, type in columns.items():
        if not isinstance(name, str) or not name:
            raise OptionError(f"transform={step}: invalid column name {name!r}")
        if name in RESERVED_COLUMNS or name in ("url", "caption"):
            raise OptionError(f"transform={step}: any2ds writes a column {name!r} itself; give yours another name")
        try:
            found[name] = _arrow_type(type)
            pq.write_table(pa.schema([(name, found[name])]).empty_table(), pa.BufferOutputStream())
        except (TypeError, ValueError, pa.ArrowException):
            known = "str, int, float, bool, bytes, a list such as list[float], or an Arrow type such as 'int32'"
            raise OptionError(f"transform={step}: invalid type {type!r} of column {name!r}: expected {known}") from None
    return found


def _arrow_type(type: Any) -> pa.DataType:
    """Raises TypeError, ValueError."""
    if isinstance(type, pa.DataType):
        return type
    if isinstance(type, str):
        return pa.type_for_alias(type)
    if typing.get_origin(type) is list:
        (of,) = typing.get_args(type)
        return pa.list_(_arrow_type(of))
    if type in _OF_PYTHON:
        return _OF_PYTHON[type]
    raise TypeError


def type_name(value: Any) -> str:
    """How a value would be declared."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"list[{type_name(value[0])}]" if value else "list[float]"
    found = type(value)
    return found.__name__ if found in _OF_PYTHON else "str"


def _members(exts: Sequence[str], step: str) -> dict[str, pa.DataType]:
    for ext in exts:
        if not isinstance(ext, str) or not _EXT.fullmatch(ext) or ext.lower() == METADATA:
            raise OptionError(f"transform={step}: an extra file cannot have the extension {ext!r}")
        if (name := member_column(ext)) in RESERVED_COLUMNS:
            raise OptionError(f"transform={step}: any2ds writes a column {name!r}; give the file another extension")
    if len({ext.lower() for ext in exts}) < len(set(exts)):  # readers ignore the case, and so do some file systems
        raise OptionError(f"transform={step}: two extra files have the same extension but for its case")
    return {ext: pa.string() if is_text_member(ext) else pa.binary() for ext in exts}


def _a(value: Any) -> str:
    """The type of a value for a message, with its article."""
    if value is None:
        return "None"
    name = type(value).__name__
    shown = f" ({value!r:.60})" if isinstance(value, (str, int, float, bool)) else ""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{shown}"
