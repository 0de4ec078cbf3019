"""The steps that files go through between network and writer, in order: what is asked for and what there is for it.

    unpack ─▶ image │ audio │ video │ text ─▶ steps of the user's own

No threads and no queues: `pipeline.py` has those.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from any2ds.config.media import AudioOptions, ImageOptions, MediaOptions, VideoOptions
from any2ds.core.errors import (
    DiskFull,
    MissingExtra,
    NotDecodable,
    OptionError,
    WrongResult,
    is_full,
    redacted,
    said_by,
)
from any2ds.core.manifest import StepRecord
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32
from any2ds.core.samples import Sample, in_parts, member_column
from any2ds.transforms.contract import OF_THE_RUN, STEPS, BatchTransform, Plan, Rejected

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 1000  # characters of an error that are stored with a row
_UNDECODED = frozenset({"image", "audio", "video", "text"})  # the steps that disable_all_reencoding leaves out
_MODULES = {"opencv": "cv2", "pillow": "PIL", "charset-normalizer": "charset_normalizer"}  # library -> its module


Made = list[list[Sample]]
"""What has become of each of several samples."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The work of a group of steps on some samples."""

    memory: int  # bytes, besides their files
    run: Callable[[Callable[[], None]], Made]
    """Calls the function before each sample; nothing that is wrong with a sample raises."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps that one sample goes through in one go."""

    steps: tuple[Any, ...]  # each a Transform

    def wants(self, sample: Sample) -> bool:
        """Whether one of the steps has anything to do with a sample, or to say of it."""
        return any(_planned(step, sample) is not None for step in self.steps)

    def plan(self, samples: Sequence[Sample]) -> GroupPlan:
        """One sample after the other: the memory of the first step of the sample that needs most counts."""
        firsts = list(map(self._first, samples))

        def run(begin: Callable[[], None]) -> Made:
            made: Made = []
            for sample, number, plan in firsts:
                begin()
                made.append(self._run(sample, number, plan))
            return made

        return GroupPlan(max(_memory(plan) for _, _, plan in firsts), run)

    def _first(self, sample: Sample) -> tuple[Sample, int, Plan | None]:
        """The number and the plan of the first step that processes a sample, which is marked by steps that do not."""
        for number, step in enumerate(self.steps):
            plan = _planned(step, sample)
            if isinstance(plan, Plan):
                return sample, number, plan
            sample = sample.left_as_is(plan) if plan else sample
        return sample, len(self.steps), None

    def _run(self, sample: Sample, number: int, plan: Plan | None) -> list[Sample]:
        """The outcome of a sample by `plan`, which the step of that number made, and by the steps behind it."""
        samples, are_parts = [sample], False
        for step in self.steps[number:]:
            made: list[Sample] = []
            for one in samples:
                found = attempted(step, one) if plan is None else _outcome(plan, one)
                are_parts = are_parts or not isinstance(found, Sample)
                made += [found] if isinstance(found, Sample) else found
            samples, plan = made, None
        if are_parts:
            samples = in_parts(samples)
        return samples or [sample.filtered("no sample is left of it")]


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """A step that takes several samples at once."""

    step: BatchTransform

    @property
    def steps(self) -> tuple[BatchTransform]:
        return (self.step,)

    def wants(self, sample: Sample) -> bool:
        return True

    def plan(self, samples: Sequence[Sample]) -> GroupPlan:
        """`begin` is called before each call of the step."""
        return GroupPlan(sum(sample.size for sample in samples), lambda begin: _batched(self.step, samples, begin))


def _batched(
    step: BatchTransform, samples: Sequence[Sample], begin: Callable[[], None], wrong: WrongResult | None = None
) -> Made:
    """The outcome of each sample. If `step` raises, it is called with halves, so that one bad file is one failure.

    `wrong` is what it has returned for all of them, which says more than what it returns for one alone.
    """
    begin()
    try:
        found = step(samples)
    except OF_THE_RUN:
        raise
    except BaseException as error:
        if isinstance(error, WrongResult):
            error = wrong = wrong or error
        if len(samples) == 1:
            return [[failed(samples[0], error)]]
        half = len(samples) // 2
        return [*_batched(step, samples[:half], begin, wrong), *_batched(step, samples[half:], begin, wrong)]
    return [[one] if isinstance(one, Sample) else in_parts(one) for one in found]


def attempted(step: Any, sample: Sample) -> Sample | Sequence[Sample]:
    """The outcome of `sample` in `step`: its failure if it raises, and the sample itself if it is none of its kind.

    Raises DiskFull and BrokenStep, which concern all rows.
    """
    plan = None if sample.body is None else _planned(step, sample)
    if isinstance(plan, Plan):
        return _outcome(plan, sample)
    return sample.left_as_is(plan) if plan else sample


def _planned(step: Any, sample: Sample) -> Plan | str | None:
    """The plan of `step`; if making it raises, one that raises the same, so that it is the failure of the row."""
    try:
        plan: Plan | str | None = step.plan(sample)
    except Exception as error:  # of the disk above all, from which the first bytes of a file are read
        return Plan(lambda: 0, partial(_raise, error))
    return plan


def _raise(error: Exception) -> NoReturn:
    raise error


def _outcome(plan: Plan, sample: Sample) -> Sample | Sequence[Sample]:
    try:
        return plan.run()
    except OF_THE_RUN:
        raise
    except BaseException as error:  # also sys.exit() and KeyboardInterrupt: a real Ctrl-C goes to the main thread
        return failed(sample, error)


def _memory(plan: Plan | None) -> int:
    try:
        return 0 if plan is None else plan.memory()
    except Exception:  # NotDecodable above all, which is raised again where it is the failure of the row
        return 0


def failed(sample: Sample, error: BaseException) -> Sample:
    """The failure of a file for which a step has raised `error`. Raises DiskFull if the disk is full."""
    if isinstance(error, (NotDecodable, Rejected)):
        return sample.failed(getattr(error, "code", "not_decodable"), redacted(said_by(error)))
    if isinstance(error, MemoryError):
        return sample.failed("transform_error", "MemoryError: there is not enough memory for it")
    if isinstance(error, WrongResult):
        return sample.failed("transform_error", said_by(error))
    if is_full(error, worded=pa.ArrowException):
        named = getattr(error, "filename", None)
        folder = os.path.dirname(os.path.abspath(named)) if isinstance(named, str) else tempfile.gettempdir()
        raise DiskFull(folder, None) from error
    log.debug("a step failed on %s", sample.key, exc_info=error)
    return sample.failed("transform_error", last_line(error))


def last_line(error: BaseException) -> str:
    """The last line of its traceback; a message of several lines is put on one."""
    lines = [line.strip() for line in "".join(traceback.format_exception_only(error)).splitlines() if line.strip()]
    message = " ".join(lines[-1:] if isinstance(error, SyntaxError) else lines)
    return redacted(message[:_LONGEST_MESSAGE]) or type(error).__name__


def carried(media: MediaOptions) -> MediaOptions:
    """With the files that steps of the user's own are in, as they are now, for workers anywhere."""
    if not media.files.transform:
        return media
    from any2ds.transforms.steps import user

    return replace(media, files=replace(media.files, transform=tuple(map(user.carried, media.files.transform))))


class Pipeline:
    """The steps for one run; false if there are none. It is made anew in each process, from options alone."""

    def __init__(self, media: MediaOptions, by_preset: Mapping[str, str] | None = None) -> None:
        """`by_preset`: options that a preset sets -> the option that was given instead.

        A step is there only if an option asks for it. Raises MissingExtra if a library that it needs is not installed,
        OptionError for a bad step."""
        _refuse_what_is_left_out(media)
        named = _built_in(media, by_preset or {})
        if media.files.transform:
            from any2ds.transforms.steps import user

            describe = FileDescription([step for _, step in named])
            named += [(f"transform={user.name_of(spec)}", user.load(spec, describe)) for spec in media.files.transform]
        self.groups = tuple(_groups([step for _, step in named]))
        self._filled_by: dict[str, str] = {}  # column -> step
        self.columns: dict[str, pa.DataType] = {
            field.name: field.type for field in (STORED_BYTES, STORED_CRC32) if named
        }
        self._members: dict[str, pa.DataType] = {}  # extra files, in formats without them
        self.further = frozenset(ext for _, step in named for ext in getattr(step, "members", {}))
        for name, step in named:
            for ext, type in getattr(step, "members", {}).items():
                self._members[member_column(ext)] = type
                self._filled_by.setdefault(member_column(ext), name)
            for column, type in step.columns.items():
                if self.columns.setdefault(column, type) != type:
                    other = self._filled_by[column]
                    raise OptionError(
                        f"{name} fills the column {column!r} with {type}, and {other} with {self.columns[column]}"
                    )
                self._filled_by.setdefault(column, name)

    def metadata(self, has_members: bool) -> dict[str, pa.DataType]:
        """The columns that the steps fill; in a format without extra files these are columns too."""
        return dict(self.columns) if has_members else {**self._members, **self.columns}

    def refuse_clashes(self, of_list: Collection[str], has_members: bool, of_files: str | None = None) -> None:
        """Raises OptionError if a step fills a column that is one of the list, as it is to be stored, or `of_files`."""
        for column in self.metadata(has_members):
            if column == of_files:
                raise OptionError(
                    f"data_column: {column!r} is a column that the step for {self._named(column)} fills itself; give"
                    " the files another one"
                )
            if column in of_list:
                name = self._named(column)
                if name.startswith("transform="):
                    raise OptionError(
                        f"{name} fills a column {column!r}, which the list has as well: give it another name"
                    )
                raise OptionError(
                    f"save_additional_columns: the step for {name} writes a column {column!r} itself; give that of the"
                    f" list another name ({column}:list_{column}), leave it out, or leave the files as they are with"
                    " --disable_all_reencoding"
                )

    def _named(self, column: str) -> str:
        """The step that fills it."""
        return self._filled_by.get(column, "any2ds")

    def __bool__(self) -> bool:
        return bool(self.groups)

    def wants(self, sample: Sample) -> bool:
        """Whether some step is going to look at it."""
        return sample.body is not None and any(group.wants(sample) for group in self.groups)


class FileDescription:
    """Describes a file that a step of the user has made, by its header, in the metadata of the steps of any2ds."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = [step for step in steps if getattr(step, "file_columns", ())]
        self._unknown = dict.fromkeys(column for step in self._steps for column in step.file_columns)

    def __call__(self, sample: Sample) -> dict[str, Any]:
        """The columns that describe a stored file, with null for what its header does not tell."""
        found: dict[str, Any] = dict(self._unknown)
        for step in self._steps:
            try:
                found.update(step.describe(sample))
            except OF_THE_RUN:
                raise
            except Exception as error:  # the file is the user's: it need not be one that any2ds can read
                log.debug("%s cannot be described: %s", sample.key, error)
        return found


def _refuse_what_is_left_out(media: MediaOptions) -> None:
    """Raises OptionError if something is asked for that disable_all_reencoding leaves out."""
    of_media = {field.name for group in (ImageOptions, AudioOptions, VideoOptions) for field in fields(group)}
    for member, own in media.by_member().items():
        if not own.files.disable_all_reencoding:
            continue
        decoding = {"file_size", "decode_check", "extract_text", *of_media}
        if left_out := [name for name in own.asked() if name in decoding]:
            raise OptionError(
                f"{f'member_options: {member}: ' if member else ''}disable_all_reencoding stores images, sound, video"
                f" and documents unchanged and unchecked: {', '.join(left_out)} would have no effect; remove one or the"
                " other"
            )


def _asked_for(media: MediaOptions) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The steps of any2ds that options ask for, those of members too, and which options do."""
    each = media.by_member().values()
    for name in STEPS:
        if asked := tuple(dict.fromkeys(option for own in each for option in _asking(name, own))):
            yield name, asked


def _asking(step: str, media: MediaOptions) -> list[str]:
    """The options that ask for `step`. The step for video is the one for sound, too, where both are asked for."""
    if step in _UNDECODED and media.files.disable_all_reencoding:
        return []
    asked = [option for option in media.asked() if option in STEPS[step].options]
    if step == "audio" and _asking("video", media):
        return []
    if step == "video" and asked:
        asked += [option for option in media.asked() if option in STEPS["audio"].options and option not in asked]
    return asked


def _built_in(media: MediaOptions, by_preset: Mapping[str, str]) -> list[tuple[str, Any]]:
    """The steps by name. Raises MissingExtra with all extras that are missing."""
    steps, missing, wanted = list[tuple[str, Any]](), list[str](), ""
    for name, asked in _asked_for(media):
        try:
            steps.append((name, _step(name, importlib.import_module(f"any2ds.transforms.steps.{name}").PART, media)))
        except ImportError:
            given = {by_preset[option] for option in asked if option in by_preset} or {f"--{min(asked)}"}
            wanted = wanted or min(given)
            missing.append(STEPS[name].extra)
    if missing:
        extras = [extra for extra in missing if not (extra == "audio" and "video" in missing)]  # which is part of it
        raise MissingExtra(wanted, ",".join(extras))
    return steps


def _step(name: str, part: Callable[[MediaOptions], Any], media: MediaOptions) -> Any:
    """The step of that name. Raises ImportError, OptionError."""
    of = media.by_member()
    if "" in of:
        return part(media)
    steps = dict[str, Any]()
    for member, own in of.items():
        try:
            if _asking(name, own):
                steps[member] = part(own)
        except OptionError as error:
            raise OptionError(f"member_options: {member}: {error}") from None
    return ByMember(steps)


class ByMember:
    """A step with options of their own for members: a `Transform`, made of one for each member that has it."""

    def __init__(self, steps: Mapping[str, Any]) -> None:
        self._steps = steps
        self.columns = {column: type for step in steps.values() for column, type in step.columns.items()}
        self.members = {ext: type for step in steps.values() for ext, type in getattr(step, "members", {}).items()}

    @property
    def file_columns(self) -> tuple[str, ...]:
        return tuple(column for step in self._steps.values() for column in getattr(step, "file_columns", ()))

    def describe(self, sample: Sample) -> Mapping[str, Any]:
        step = self._steps.get(sample.row.member)
        found: Mapping[str, Any] = step.describe(sample) if step is not None and hasattr(step, "describe") else {}
        return found

    def plan(self, sample: Sample) -> Plan | str | None:
        step = self._steps.get(sample.row.member)
        plan: Plan | str | None = None if step is None else step.plan(sample)
        return plan


def step_records(media: MediaOptions) -> tuple[StepRecord, ...]:
    """The steps of any2ds that options ask for, with the versions of their libraries, which are installed."""
    records = []
    for name, asked in _asked_for(media):
        libraries = STEPS[name].libraries
        if name == "video" and (media.video.frames or media.video.frame_interval):  # which members do not have
            libraries += STEPS["image"].libraries
        records.append(StepRecord(name, asked, {library: (_version(library),) for library in libraries}))
    return tuple(records)


def _version(library: str) -> str:
    module = importlib.import_module(_MODULES.get(library, library))
    if version := getattr(module, "__version__", None):
        return str(version)
    from importlib.metadata import version as version_of

    return version_of(library)


def _groups(steps: Sequence[Any]) -> Iterator[StepGroup | BatchGroup]:
    together: list[Any] = []
    for step in steps:
        is_batch = bool(getattr(step, "batch_size", None))
        if not is_batch:
            together.append(step)
        # Each of the files in an archive has memory and time of its own.
        if together and (is_batch or getattr(step, "unpacks", False)):
            yield StepGroup(tuple(together))
            together = []
        if is_batch:
            yield BatchGroup(step)
    if together:
        yield StepGroup(tuple(together))
