"""`verify()`: is a dataset complete, and are its bytes those that were fetched?"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, cast

from any2ds.config.options import ParsedOptions, VerifyOptions
from any2ds.config.signature import command, with_keywords
from any2ds.core import layout, plugins, text
from any2ds.core.errors import LockLost, UsageError, error_text, printable, redacted, shard_count
from any2ds.core.processes.resources import cores
from any2ds.core.terminal.notebook import html
from any2ds.dataset import compact
from any2ds.dataset.card import hub
from any2ds.dataset.catalogue import rebuild
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.listing import Entry, ShardFiles
from any2ds.dataset.places import located
from any2ds.dataset.run_file import options_of
from any2ds.dataset.shard_list import ShardEntries, ShardList, ranges_text
from any2ds.dataset.verify.findings import Finding
from any2ds.dataset.verify.pool import map_in_processes
from any2ds.dataset.verify.progress import Progress
from any2ds.dataset.verify.shardcheck import ShardResult, ShardTask, check_listed, check_shard
from any2ds.storage.disk.staging import staged
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.stores import Stores
from any2ds.storage.swap import finish_swaps
from any2ds.writers.contract import WithSidecars

_READ_BY_GLOBS = (".tar", ".parquet", ".tfrecord", "_stats.json")  # what loaders and tools look for in a folder
_MOST_NAMES = 5
_REWRITTEN = "the next run, or --repair, writes it"
_NOT_REMOVED = "could not be removed"
_NOT_WRITTEN = "its extra files could not be written"
_LONGEST_LINE = 400  # characters of a finding on the terminal
_LARGEST_CARD = 1 << 20  # bytes; ours have some kilobytes
_SMALL = 100 << 20  # bytes; reading them in this process takes less time than to start others
_FOLDER_BYTES = 1 << 20  # assumed size of a folder
_REPORTED = ("shards", "shards_read", "rows", "samples", "bytes_read", "hashes", "seconds", "sample", "seed", "notes")


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """What was checked, and what is wrong."""

    output_folder: str
    shards: int = 0  # finished
    shards_read: int = 0  # of which every byte was read
    rows: int = 0
    samples: int = 0
    bytes_read: int = 0  # of samples
    hashes: tuple[str, ...] = ()  # that were recomputed
    seconds: float = 0.0
    sample: str | None = None  # as the option says
    seed: int | None = None  # picks the same shards again
    findings: tuple[Finding, ...] = ()  # by shard; those of the whole dataset come last
    notes: tuple[str, ...] = ()  # worth knowing, but not wrong
    missing: tuple[int, ...] = ()  # shards that are not there, as far as the list was read
    repaired: tuple[int, ...] = ()  # shards that were removed, to be made again

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def is_incomplete(self) -> bool:
        """Whether nothing is wrong but what the same download command completes, as after a run that was stopped."""
        return bool(self.findings) and not any(finding.is_damage for finding in self.findings)

    @property
    def broken(self) -> tuple[int, ...]:
        """Shards that have to be made again."""
        return tuple(sorted({f.shard_id for f in self.findings if f.is_broken and f.shard_id is not None}))

    def __repr__(self) -> str:
        found = "no problems" if self.ok else "incomplete" if self.is_incomplete else _count(self.findings)
        checked = f"{shard_count(self.shards)}, {text.rows(self.rows)}"
        return f"<VerifyReport {redacted(self.output_folder)}: {checked}, {found}>"

    def _repr_html_(self) -> str:
        from rich.text import Text

        texts = [Text(with_keywords(printable(line), "verify", [VerifyOptions])) for line in lines(self)]
        texts[-1].stylize("green" if self.ok else "yellow" if self.is_incomplete else "red")
        return html(texts)

    def to_json(self) -> dict[str, Any]:
        return {
            "output_folder": redacted(self.output_folder),
            "ok": self.ok,
            "incomplete": self.is_incomplete,
            **{name: getattr(self, name) for name in _REPORTED},
            "broken_shards": self.broken,
            "missing_shards": self.missing,
            "repaired_shards": self.repaired,
            "findings": [finding.to_json() for finding in self.findings],
        }


@command(
    [VerifyOptions],
    "Returns what was checked, with `findings`, and `ok` if there are none. Raises UsageError for a folder that",
    "holds no dataset, and for repairing one that any2ds did not make or that a run is at work in.",
)
def verify(options: ParsedOptions) -> VerifyReport:
    """Check a dataset: that every shard is there and complete, and that data, metadata and statistics agree."""
    (wanted,) = options.groups
    started = time.monotonic()
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    dataset = Dataset(wanted.output_folder, stores)
    if dataset.writer is None and (name := dataset.output_format) and plugins.exists("writers", name):
        plugins.load("writers", name)  # raises the error that says which library is missing
    with ExitStack() as stack:
        if wanted.repair:
            _refuse_repair(dataset)
            stack.enter_context(locked(dataset.folder, "verify --repair"))  # removes what killed runs left behind
            finish_swaps(dataset.folder)
            guard = dataset.folder.guard
            dataset = Dataset(wanted.output_folder, stores)
            dataset.folder.guard = guard
        expected = ExpectedShards.of(dataset, dataset.shards)
        picked, seed = _picked(dataset, wanted)
        report = _report(dataset, expected, wanted, _checked(dataset, expected, wanted, picked))
        report = replace(report, seed=seed)
        if wanted.repair:
            report = _repair(dataset, expected, report)
        return replace(report, seconds=time.monotonic() - started)


@dataclass(slots=True)
class _Checked:
    """The sums over the results of shards, and what is wrong with them."""

    shards_read: int = 0
    rows: int = 0
    samples: int = 0
    bytes_read: int = 0
    changed: int = 0
    hashes: set[str] = field(default_factory=set)
    findings: dict[int, tuple[Finding, ...]] = field(default_factory=dict)  # by shard
    unlisted: set[int] = field(default_factory=set)  # shards that the list of shards does not describe

    @property
    def broken(self) -> set[int]:
        """Shards that have to be made again."""
        return {shard_id for shard_id, found in self.findings.items() if any(each.is_broken for each in found)}

    def add(self, result: ShardResult, listed: ShardEntries | None) -> None:
        self.shards_read += result.contents
        self.rows += result.rows
        self.samples += result.samples
        self.bytes_read += result.bytes_read
        self.changed += result.changed
        self.hashes.update(result.hashes)
        if result.findings:
            self.findings[result.shard_id] = result.findings
        is_broken = any(finding.is_broken for finding in result.findings)
        if listed is None or result.entry is None or is_broken:
            return
        if result.entry != listed.get(result.shard_id):
            self.unlisted.add(result.shard_id)


def _report(
    dataset: Dataset, expected: ExpectedShards, wanted: VerifyOptions, checked: tuple[_Checked, Sequence[Finding]]
) -> VerifyReport:
    sums, of_list = checked
    notes = list(_notes(dataset, expected))
    if sums.changed:
        notes.append(
            f"{sums.changed:,} files were changed on the way and have no checksum: only their sizes were compared"
        )
    return VerifyReport(
        output_folder=wanted.output_folder,
        shards=len(dataset.finished),
        shards_read=sums.shards_read,
        rows=sums.rows,
        samples=sums.samples,
        bytes_read=sums.bytes_read,
        hashes=tuple(sorted(sums.hashes)),
        sample=None if wanted.sample is None else str(wanted.sample),
        findings=(
            *(finding for _, findings in sorted(sums.findings.items()) for finding in findings),
            *_findings_of_lists(dataset, expected),
            *_strays(dataset),
            *_leftovers(dataset),
            *of_list,
            *_findings_of_compacted(dataset),
        ),
        notes=tuple(notes),
        missing=tuple(expected.missing),
    )


# --- which shards to check ---


def _picked(dataset: Dataset, wanted: VerifyOptions) -> tuple[frozenset[int] | None, int | None]:
    """The shards whose contents are read (None: all), and the seed that picked them."""
    if wanted.sample is None:
        return None, None
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(2**31)
    ids = dataset.finished.ids
    places = random.Random(seed).sample(range(len(ids)), how_many(wanted.sample, len(ids)))
    return frozenset(ids[place] for place in places), seed


def _tasks(
    dataset: Dataset, expected: ExpectedShards, picked: frozenset[int] | None, listed: ShardEntries | None
) -> Iterator[ShardTask]:
    """Each shard. Of one that is not picked, `listed` tells what was known of it at the end of the run."""
    for files in dataset.shards.in_order:
        shard_id = files.shard_id
        if picked is None or shard_id in picked:
            yield ShardTask(files, expected.rows(shard_id))
        else:
            yield ShardTask(files, expected.rows(shard_id), False, None if listed is None else listed.get(shard_id))


def how_many(sample: str, of: int) -> int:
    """The number that `sample` means: `1%` of them, rounded up, or a number."""
    count = -(-Fraction(sample[:-1]) * of // 100) if sample.endswith("%") else int(sample)
    return min(of, int(count))


def _checked(
    dataset: Dataset, expected: ExpectedShards, wanted: VerifyOptions, picked: frozenset[int] | None
) -> tuple[_Checked, Sequence[Finding]]:
    """What was checked of the shards, and what is wrong with the list of shards."""
    listed, problem = _list_of_shards(dataset)
    known = None if listed is None else listed.entries
    tasks = _tasks(dataset, expected, picked, None if listed is None or listed.is_open else known)
    count = len(dataset.shards)
    size = dataset.entries.size + _FOLDER_BYTES * dataset.entries.folders
    if picked is not None:
        size = size * len(picked) // max(1, count)
    processes = 0
    if not dataset.folder.is_private and count > 1 and size > _SMALL:
        processes = min(wanted.processes_count or cores(), count)
    _ = dataset.layout  # read once, not by every process
    found = _Checked()
    with Progress(count, wanted.output_folder, wanted.quiet) as progress:

        def add(result: ShardResult) -> None:
            found.add(result, known)
            progress.on_shard(result.rows, result.bytes_read, bool(result.findings))

        def others() -> Iterator[ShardTask]:
            """The tasks that take reading."""
            for task in tasks:
                if (result := check_listed(dataset, task)) is not None:
                    add(result)
                else:
                    yield task

        results: Any = map_in_processes(partial(check_shard, dataset), others(), processes, _lost)
        with closing(results):
            for result in results:
                add(result)
    return found, [problem] if problem else list(_findings_of_shard_list(dataset, listed, found))


def _lost(task: ShardTask, why: str) -> ShardResult:
    shard_id = task.files.shard_id
    return ShardResult(shard_id, (Finding("unreadable", f"it cannot be checked: {why}", shard_id),))


# --- the dataset as a whole ---


def _findings_of_lists(dataset: Dataset, expected: ExpectedShards) -> Iterator[Finding]:
    """What is wrong with the run file, and with the shards compared with its url lists."""
    if missing := expected.missing:
        yield Finding("missing", f"{_are(missing)} missing: the same download command makes what is missing")
    if dataset.run is None and not dataset.is_img2dataset:
        why = f"cannot be understood ({dataset.run_problem})" if dataset.run_problem else "is not there"
        yield Finding("run_file", f"{layout.RUN_FILE} {why}: shards were checked without it")
    if dataset.run is None:
        return
    if expected.has_unread_list:
        yield Finding("unread", "the url list was not read to its end: the same download command continues")
    if beyond := expected.beyond:
        total = shard_count(sum(segment.shards or 0 for segment in expected.lists))
        yield Finding("list", f"{_are(beyond)} not of this list, which has rows for {total}")


def _notes(dataset: Dataset, expected: ExpectedShards) -> Iterator[str]:
    if dataset.run is None:
        yield "the number of rows of the url list is unknown: shards may be missing at the end"
    if dataset.is_img2dataset:
        yield "not made by any2ds: structure, keys and counts were checked, hashes were not"
    if dataset.writer is None:
        yield f"the data was not read: the format {dataset.output_format or 'of this dataset'} is unknown"
    if others := [entry.name for entry in _others(dataset) if not _is_stray(entry)]:
        more = f" … and {len(others) - _MOST_NAMES:,} more" if len(others) > _MOST_NAMES else ""
        yield f"not made by any2ds, and not checked: {', '.join(others[:_MOST_NAMES])}{more}"
    if dataset.folder.is_local and layout.TEMPORARY_FOLDER in dataset.entries:
        _, others = staged(dataset.folder.staging_root)
        if others:
            yield f"a run may be at work ({', '.join(others[:_MOST_NAMES])}): what it is making was not checked"


def _strays(dataset: Dataset) -> Iterator[Finding]:
    yield from (Finding("stray", f"{entry.name} belongs to no shard") for entry in _others(dataset) if _is_stray(entry))


def _others(dataset: Dataset) -> list[Entry]:
    """What does not belong to the dataset, without the README.md that `any2ds card` wrote."""
    return sorted((entry for entry in dataset.others() if not _is_card(dataset, entry)), key=lambda entry: entry.name)


def _is_stray(entry: Entry) -> bool:
    """Whether loaders would read it."""
    return entry.name.endswith(_READ_BY_GLOBS) or (entry.is_folder and entry.name.isdecimal())


def _is_card(dataset: Dataset, entry: Entry) -> bool:
    if entry.name != hub.CARD_FILE or entry.is_folder or entry.is_odd or entry.size > _LARGEST_CARD:
        return False
    with contextlib.suppress(Exception):  # of any file system
        return hub.is_ours(dataset.read(entry.name))
    return False


def _leftovers(dataset: Dataset) -> Iterator[Finding]:
    for name in sorted(dataset.entries.others):
        if layout.is_probe(name):
            yield Finding("leftover", f"{name}: left by a run that was killed")
    if layout.SWAP_FOLDER in dataset.entries:
        yield Finding("leftover", f"{layout.SWAP_FOLDER}: shards that were being replaced; the next run finishes that")
    if dataset.folder.is_local and layout.TEMPORARY_FOLDER in dataset.entries:
        dead, _ = staged(dataset.folder.staging_root)
        for name in dead:
            yield Finding("leftover", f"{layout.TEMPORARY_FOLDER}/{name}: left by a run that was killed")


def _findings_of_compacted(dataset: Dataset) -> Iterator[Finding]:
    """What is wrong with the compacted metadata, if there are any."""
    name = layout.COMPACT_INDEX
    if layout.COMPACT_FOLDER not in dataset.entries:
        return
    try:
        index = compact.index_of(dataset)
        if index is None:
            yield Finding(
                "leftover", f"{layout.COMPACT_FOLDER}: left by a compaction that was killed; the next removes it"
            )
        elif not compact.is_current(dataset, index):
            yield Finding("compacted", f"{name} is of another state of the shards: any2ds compact renews it")
        else:
            for missing in compact.missing_files(dataset, index):
                yield Finding("compacted", f"{missing} is missing, or has another size: any2ds compact renews it")
    except Exception as error:  # of any file system, and of an index that is none
        yield Finding("compacted", f"{name} cannot be read: {error_text(error)}; any2ds compact renews it")


def _list_of_shards(dataset: Dataset) -> tuple[ShardList | None, Finding | None]:
    """`.any2ds/shards`, or what is wrong with it; neither where any2ds need not have written one."""
    name = layout.SHARDS_FILE
    if dataset.run is None or not len(dataset.finished):
        return None, None
    if name not in dataset.entries:
        return None, Finding("shard_list", f"{name} is missing: {_REWRITTEN}")
    try:
        with dataset.folder.open(name) as raw, io.BufferedReader(raw, 1 << 20) as file:  # type: ignore[type-var]
            return ShardList.read(file), None
    except ValueError as error:
        return None, Finding("shard_list", f"{name} cannot be understood ({error}): {_REWRITTEN}")
    except Exception as error:  # every file system has exceptions of its own
        return None, Finding("unreadable", f"{name} cannot be read: {error_text(error)}")


def _findings_of_shard_list(dataset: Dataset, listed: ShardList | None, checked: _Checked) -> Iterator[Finding]:
    """What is wrong with a list that can be read."""
    if listed is None:
        return
    finished = dataset.shards.finished()
    gone = {shard_id for shard_id in listed.entries if shard_id not in finished}
    differing = checked.unlisted | gone.difference(checked.broken)
    if differing:
        yield Finding(
            "shard_list", f"{layout.SHARDS_FILE} does not describe {_shards(sorted(differing))}: {_REWRITTEN}"
        )
    elif listed.is_open:
        yield Finding("shard_list", f"{layout.SHARDS_FILE} is open: a run is at work, or was killed")


def _count(findings: Sequence[Finding]) -> str:
    return "1 finding" if len(findings) == 1 else f"{len(findings):,} findings"


def _to_go(report: VerifyReport) -> str:
    """How much is missing: `at least 3 shards to go; `, as far as that is known."""
    unfinished = {found.shard_id for found in report.findings if found.kind == "unfinished"}
    count = len(unfinished | {*report.missing})
    if any(found.kind == "unread" for found in report.findings):
        return f"at least {shard_count(count)} to go; " if count else "the url list was not read to its end; "
    return f"{shard_count(count)} to go; " if count else ""


def _shards(numbers: Sequence[int]) -> str:
    return f"shard {numbers[0]}" if len(numbers) == 1 else f"{shard_count(len(numbers))} ({ranges_text(numbers)})"


def _are(numbers: Sequence[int]) -> str:
    return f"{_shards(numbers)} {'is' if len(numbers) == 1 else 'are'}"


# --- repair ---


def _refuse_repair(dataset: Dataset) -> None:
    """Raises UsageError where nothing may be removed."""
    url = dataset.folder.url
    if dataset.is_img2dataset:
        raise UsageError(f"{url!r} was not made by any2ds: --repair removes nothing in it")
    if dataset.run is None:
        raise UsageError(f"{url!r} has no readable {layout.RUN_FILE}: no run would make again what --repair removes")


def _repair(dataset: Dataset, expected: ExpectedShards, report: VerifyReport) -> VerifyReport:
    """Remove broken shards, and write missing extra files.

    Files without statistics whose number no list has may be somebody else's, and no run would make them: they stay.
    """
    repaired: list[int] = []
    completed: list[int] = []
    failed: list[Finding] = []
    kept = [shard_id for shard_id in expected.beyond if dataset.shards[shard_id].stats is None]
    for shard_id in sorted(set(report.broken).difference(kept)):
        with _recorded(failed, shard_id, _NOT_REMOVED):
            for name in dataset.shards[shard_id].present:  # statistics first: they say that the others are complete
                if dataset.entries[name].is_folder:
                    dataset.folder.remove_tree(name)
                else:
                    dataset.folder.remove(name)
            repaired.append(shard_id)
    incomplete = {found.shard_id for found in report.findings if found.kind == "beside" and found.shard_id is not None}
    for shard_id in sorted(incomplete.difference(report.broken)):
        with _recorded(failed, shard_id, _NOT_WRITTEN):
            if _write_sidecars(dataset, dataset.shards[shard_id]):
                completed.append(shard_id)
    rebuild(dataset.folder, options_of(dataset.folder)[0])
    notes = list(report.notes)
    if completed:
        notes.append(f"wrote the extra files of {_shards(completed)}")
    if kept:
        names = [name for shard_id in kept[:_MOST_NAMES] for name in dataset.shards[shard_id].present]
        notes.append(f"not removed, since no list has rows for such numbers: {', '.join(names)}")
    if repaired:
        notes.append(f"removed {_shards(repaired)}: the same download command makes what was removed")
    findings = sorted([*report.findings, *failed], key=lambda found: (found.shard_id is None, found.shard_id or 0))
    return replace(report, findings=tuple(findings), notes=tuple(notes), repaired=tuple(repaired))


@contextlib.contextmanager
def _recorded(failed: list[Finding], shard_id: int, message: str) -> Iterator[None]:
    """Any error but LockLost becomes a finding."""
    try:
        yield
    except LockLost:
        raise
    except Exception as error:  # every file system has exceptions of its own
        failed.append(Finding("unreadable", f"{message}: {error_text(error)}", shard_id))


def _write_sidecars(dataset: Dataset, files: ShardFiles) -> bool:
    """Make the sidecars of a shard from its data; returns whether there are any."""
    if files.data is None or dataset.writer is None or not dataset.writer.sidecars:
        return False
    with dataset.local(files.data) as path:
        made = cast("type[WithSidecars]", dataset.writer).make_sidecars(path)
    for end, content in made.items():
        dataset.folder.write(f"{files.data.removesuffix(f'.{dataset.writer.extension}')}{end}", content)
    return bool(made)


# --- the report as text ---


def lines(report: VerifyReport, most: int = 40) -> Iterator[str]:
    """The report for a person: the first `most` findings, one a line, the notes and a summary."""
    for found in report.findings[:most]:
        where = "dataset" if found.shard_id is None else f"shard {found.shard_id}"
        message = found.message if len(found.message) <= _LONGEST_LINE else f"{found.message[:_LONGEST_LINE]} …"
        yield f"{where}: {found.kind}: {message}"
    if rest := report.findings[most:]:
        kinds = Counter(found.kind for found in rest)
        counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        yield f"… and {len(rest):,} more ({counts}); --json=FILE has them all"
    for note in report.notes:
        yield f"note: {note}"
    samples = f"{report.samples:,} sample{'' if report.samples == 1 else 's'}"
    read = f"{shard_count(report.shards)}, {text.rows(report.rows)}, {samples}"
    effort = f"({text.size(report.bytes_read)} in {text.duration(report.seconds)})"
    if report.sample is None:
        hashes = f"{' and '.join(report.hashes)} recomputed" if report.hashes else "no hashes to recompute"
        yield f"{read}; read to the last byte, {hashes} {effort}"
    else:
        picks = f"--sample={report.sample} --seed={report.seed} picks the same ones again"
        yield f"{read}; contents of {shard_count(report.shards_read)} read {effort}: {picks}"
    if report.ok:
        yield "no problems found"
        return
    if report.is_incomplete:
        yield f"INCOMPLETE: {_to_go(report)}run the same download command to go on"
        return
    broken = f", {shard_count(len(report.broken))} to be made again" if report.broken else ""
    yield f"PROBLEMS: {_count(report.findings)}{broken}"
    was_tried = report.repaired or any(_NOT_REMOVED in found.message for found in report.findings)
    if report.broken and not was_tried and not any("structure, keys and counts" in note for note in report.notes):
        yield "--repair removes them, and the same download command makes them again"
