"""`verify()`: is a dataset whole, and are its bytes those that were fetched?"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

from any2ds.config.options import VerifyOptions, parse_options
from any2ds.config.signature import document
from any2ds.core import layout, plugins
from any2ds.core.errors import LockLost, UsageError, error_text, redacted, shard_count
from any2ds.core.processes.cores import cores
from any2ds.dataset.card import hub
from any2ds.dataset.catalogue import rebuild
from any2ds.dataset.dataset import Dataset, Entry, ShardFiles
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.run_file import options_of
from any2ds.dataset.shard_list import ShardList, ranges_text
from any2ds.dataset.verify.findings import Finding
from any2ds.dataset.verify.pool import map_in_processes
from any2ds.dataset.verify.progress import Progress
from any2ds.dataset.verify.shardcheck import ShardChecker, ShardResult, ShardTask
from any2ds.storage.disk.staging import staged
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.stores import Stores
from any2ds.storage.swap import finish_swaps
from any2ds.writers.contract import WithSidecars

_READ_BY_GLOBS = (".tar", ".parquet", ".tfrecord", "_stats.json")  # what loaders and tools look for in a folder
_NAMES_SHOWN = 5
_WRITTEN_ANEW = "the next run, or --repair, writes it anew"
_NOT_REMOVED = "could not be removed, so it is not put back"
_NOT_COMPLETED = "what is missing or wrong beside it could not be written"
_LONGEST_LINE = 400  # characters of a finding on the terminal
_LARGEST_CARD = 1 << 20  # bytes; ours are some kilobytes
_SMALL = 100 << 20  # bytes that are read here, in less time than it takes to start processes
_FOLDER = 1 << 20  # what a folder is reckoned to hold


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what is wrong."""

    output_folder: str
    shards: int = 0  # that are there
    shards_read: int = 0  # of which every byte was looked at
    rows: int = 0
    samples: int = 0
    bytes_read: int = 0  # of samples
    hashes: tuple[str, ...] = ()  # that were recomputed
    seconds: float = 0.0
    sample: str | None = None  # as it was asked for
    seed: int | None = None  # that picks the same shards again
    findings: tuple[Finding, ...] = ()  # by shard; those that concern the whole come last
    notes: tuple[str, ...] = ()  # what is worth knowing, and is not wrong
    repaired: tuple[int, ...] = ()  # shards that were put back to be done

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def broken(self) -> tuple[int, ...]:
        """Shards that have to be made again."""
        return tuple(
            sorted({found.shard_id for found in self.findings if found.is_broken and found.shard_id is not None})
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "output_folder": redacted(self.output_folder),
            "ok": self.ok,
            "shards": self.shards,
            "shards_read": self.shards_read,
            "rows": self.rows,
            "samples": self.samples,
            "bytes_read": self.bytes_read,
            "hashes": list(self.hashes),
            "seconds": self.seconds,
            "sample": self.sample,
            "seed": self.seed,
            "broken_shards": list(self.broken),
            "repaired_shards": list(self.repaired),
            "findings": [found.to_json() for found in self.findings],
            "notes": list(self.notes),
        }


def verify(output_folder: Any = None, **options: Any) -> VerifyReport:
    """Check a dataset: that every shard is there, whole, and the same in data, metadata and figures."""
    given = options if output_folder is None else {"output_folder": output_folder, **options}
    (wanted,) = parse_options(given, [VerifyOptions]).groups
    started = time.monotonic()
    dataset = Dataset(wanted.output_folder, Stores(wanted.storage_options))
    if dataset.writer is None and dataset.output_format in plugins.names("writers"):
        plugins.load("writers", dataset.output_format)  # says what is missing, rather than pass the data over
    with ExitStack() as stack:
        if wanted.repair:
            _refuse_repair(dataset)
            stack.enter_context(locked(dataset.folder, "verify --repair"))  # which removes what dead runs have left
            finish_swaps(dataset.folder)
            guard = dataset.folder.guard
            dataset = Dataset(wanted.output_folder, Stores(wanted.storage_options))
            dataset.folder.guard = guard
        return replace(_verified(dataset, wanted), seconds=time.monotonic() - started)


def _verified(dataset: Dataset, wanted: VerifyOptions) -> VerifyReport:
    expected = ExpectedShards.of(dataset, dataset.shards)
    tasks, seed = _tasks(dataset, expected, wanted)
    results = _check(dataset, tasks, wanted)
    findings = [found for result in results for found in result.findings]
    of_the_whole, notes = _whole(dataset, expected, wanted.repair)
    if changed := sum(result.changed for result in results):
        notes.append(f"{changed:,} files were changed on the way: their sizes were compared, no checksum tells of them")
    of_the_whole += _shard_list(dataset, results)
    report = VerifyReport(
        output_folder=wanted.output_folder,
        shards=len(dataset.finished),
        shards_read=sum(result.contents for result in results),
        rows=sum(result.rows for result in results),
        samples=sum(result.samples for result in results),
        bytes_read=sum(result.bytes_read for result in results),
        hashes=tuple(sorted({name for result in results for name in result.hashes})),
        sample=None if wanted.sample is None else str(wanted.sample),
        seed=seed,
        findings=(*findings, *of_the_whole),
        notes=tuple(notes),
    )
    return _repair(dataset, expected, report) if wanted.repair else report


document(
    verify,
    [VerifyOptions],
    VerifyReport,
    "Returns what was checked, with `findings`, and `ok` if there are none. Raises UsageError for a folder that",
    "holds no dataset, and for repairing one that any2ds did not make or that a run is at work in.",
)


# --- what is to be checked ---


def _tasks(dataset: Dataset, expected: ExpectedShards, wanted: VerifyOptions) -> tuple[list[ShardTask], int | None]:
    shards = list(dataset.shards.values())
    if wanted.sample is None:
        return [ShardTask(files, expected.rows(files.shard_id)) for files in shards], None
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(2**31)
    finished = [files.shard_id for files in dataset.finished]
    picked = set(random.Random(seed).sample(finished, how_many(wanted.sample, len(finished))))
    return [ShardTask(files, expected.rows(files.shard_id), files.shard_id in picked) for files in shards], seed


def how_many(sample: str, of: int) -> int:
    """`1%` of them, rounded up, or so many."""
    count = -(-Fraction(sample[:-1]) * of // 100) if sample.endswith("%") else int(sample)
    return min(of, int(count))


def _check(dataset: Dataset, tasks: list[ShardTask], wanted: VerifyOptions) -> list[ShardResult]:
    processes = 0
    if not dataset.folder.is_private and len(tasks) > 1 and _size(dataset) > _SMALL:
        processes = min(wanted.processes_count or cores(), len(tasks))
    _ = dataset.layout  # looked for once, not by every process
    found: list[ShardResult] = []
    results: Any = map_in_processes(ShardChecker(dataset), tasks, processes, _lost)
    with Progress(len(tasks), wanted.output_folder, wanted.quiet) as progress, closing(results):
        for result in results:
            found.append(result)
            progress.on_shard(result.rows, result.bytes_read, bool(result.findings))
    return sorted(found, key=lambda result: result.shard_id)


def _size(dataset: Dataset) -> int:
    return sum(_FOLDER if entry.is_folder else entry.size for entry in dataset.entries.values())


def _lost(task: ShardTask, why: str) -> ShardResult:
    shard_id = task.files.shard_id
    return ShardResult(shard_id, (Finding("unreadable", f"it cannot be checked: {why}", shard_id),))


# --- the whole ---


def _whole(dataset: Dataset, expected: ExpectedShards, repair: bool) -> tuple[list[Finding], list[str]]:
    found: list[Finding] = []
    notes: list[str] = []
    if missing := expected.missing:
        found.append(Finding("missing", f"{_are(missing)} missing: the same download command makes what is missing"))
    if dataset.run is None and not dataset.is_foreign:
        why = f"cannot be understood ({dataset.run_problem})" if dataset.run_problem else "is not there"
        found.append(Finding("run_file", f"{layout.RUN_FILE} {why}: shards are checked as far as they tell themselves"))
    if dataset.run is not None and dataset.run.lists:
        if expected.has_unread_list:
            message = "the url list was not read to its end: the same download command goes on"
            found.append(Finding("list", message))
        if beyond := expected.beyond:
            of_lists = sum(segment.shards or 0 for segment in expected.lists)
            found.append(
                Finding("list", f"{_are(beyond)} not of this list, which has rows for {shard_count(of_lists)}")
            )
    else:
        notes.append("how many rows the url list has is not known: shards may be missing at the end")
    if dataset.is_foreign:
        notes.append("not made by any2ds: structure, keys and counts were checked, hashes were not")
    if dataset.writer is None:
        shown = dataset.output_format or "of this dataset"
        notes.append(f"the data was not read: the format {shown} is not known here")
    found += _strays([entry for entry in dataset.others() if not _is_card(dataset, entry)], notes)
    found += _leftovers(dataset, notes)
    return found, notes


def _shards(numbers: list[int]) -> str:
    return f"shard {numbers[0]}" if len(numbers) == 1 else f"{shard_count(len(numbers))} ({ranges_text(numbers)})"


def _are(numbers: list[int]) -> str:
    return f"{_shards(numbers)} {'is' if len(numbers) == 1 else 'are'}"


def _strays(others: Sequence[Entry], notes: list[str]) -> Iterator[Finding]:
    """Files that loaders would read; the others are the user's own affair."""
    harmless = []
    for entry in sorted(others, key=lambda entry: entry.name):
        if entry.name.endswith(_READ_BY_GLOBS) or (entry.is_folder and entry.name.isdecimal()):
            yield Finding("stray", f"{entry.name} belongs to no shard")
        else:
            harmless.append(entry.name)
    if harmless:
        more = f" … and {len(harmless) - _NAMES_SHOWN:,} more" if len(harmless) > _NAMES_SHOWN else ""
        notes.append(f"none of any2ds's, and not looked at: {', '.join(harmless[:_NAMES_SHOWN])}{more}")


def _is_card(dataset: Dataset, entry: Entry) -> bool:
    """Whether it is the README.md that `any2ds card` wrote."""
    if entry.name != hub.CARD_FILE or entry.is_folder or entry.is_odd or entry.size > _LARGEST_CARD:
        return False
    with contextlib.suppress(Exception):  # of any file system
        return hub.is_ours(dataset.read(entry.name))
    return False


def _leftovers(dataset: Dataset, notes: list[str]) -> Iterator[Finding]:
    for name in sorted(dataset.entries):
        if layout.is_probe(name):
            yield Finding("leftover", f"{name}: left by a run that was killed")
    if layout.SWAP_FOLDER in dataset.entries:
        yield Finding("leftover", f"{layout.SWAP_FOLDER}: shards that were being replaced; the next run finishes that")
    if dataset.folder.is_local and layout.TEMPORARY_FOLDER in dataset.entries:
        dead, others = staged(dataset.folder.staging_root)
        for name in dead:
            yield Finding("leftover", f"{layout.TEMPORARY_FOLDER}/{name}: left by a run that was killed")
        if others:
            notes.append(f"a run may be at work ({', '.join(others[:_NAMES_SHOWN])}): what it is making is not checked")


def _shard_list(dataset: Dataset, results: Sequence[ShardResult]) -> Iterator[Finding]:
    """What is wrong with `.any2ds/shards`, if any2ds should have written one."""
    name = layout.SHARDS_FILE
    finished = {files.shard_id for files in dataset.finished}
    entries = {result.shard_id: result.entry for result in results if result.shard_id in finished}
    if dataset.run is None or not finished:
        return
    if name not in dataset.entries:
        yield Finding("shard_list", f"{name} is missing: {_WRITTEN_ANEW}")
        return
    try:
        listed = ShardList.parse(dataset.read(name))
    except ValueError as error:
        yield Finding("shard_list", f"{name} cannot be understood ({error}): {_WRITTEN_ANEW}")
        return
    except Exception as error:  # every file system has exceptions of its own
        yield Finding("unreadable", f"{name} cannot be read: {error_text(error)}")
        return
    differing = {n for n, entry in entries.items() if entry is not None and listed.entries.get(n) != entry}
    differing |= listed.entries.keys() - finished
    differing -= {result.shard_id for result in results if any(found.is_broken for found in result.findings)}
    if differing:
        message = f"{name} does not say what there is of {_shards(sorted(differing))}"
        yield Finding("shard_list", f"{message}: {_WRITTEN_ANEW}")
    elif listed.is_open:
        yield Finding("shard_list", f"{name} is open: a run is at work, or was killed")


# --- putting it right ---


def _refuse_repair(dataset: Dataset) -> None:
    """Raises UsageError where nothing may be removed."""
    url = dataset.folder.url
    if dataset.is_foreign:
        raise UsageError(f"{url!r} was not made by any2ds: --repair removes nothing in it")
    if dataset.run is None:
        raise UsageError(f"{url!r} has no {layout.RUN_FILE} that can be read: what --repair removes, no run would make")


def _repair(dataset: Dataset, expected: ExpectedShards, report: VerifyReport) -> VerifyReport:
    """Removes broken shards, each with its stats first, so that at no time they vouch for files that are gone.

    Files without stats whose number no list has are not known to be ours, and no run would make them again.
    """
    repaired, failed, completed = [], [], []
    beyond = {shard_id for shard_id in expected.beyond if dataset.shards[shard_id].stats is None}
    for shard_id in sorted(set(report.broken) - beyond):
        try:
            for name in dataset.shards[shard_id].present:
                _remove(dataset, name)
            repaired.append(shard_id)
        except LockLost:
            raise
        except Exception as error:  # every file system has exceptions of its own
            message = f"{_NOT_REMOVED}: {error_text(error)}"
            failed.append(Finding("unreadable", message, shard_id))
    incomplete = {found.shard_id for found in report.findings if found.kind == "beside" and found.shard_id is not None}
    for shard_id in sorted(incomplete - set(report.broken)):
        try:
            completed += [shard_id] * _write_sidecars(dataset, dataset.shards[shard_id])
        except LockLost:
            raise
        except Exception as error:  # every file system has exceptions of its own
            failed.append(Finding("unreadable", f"{_NOT_COMPLETED}: {error_text(error)}", shard_id))
    rebuild(dataset.folder, options_of(dataset.folder)[0])
    findings, notes = list(report.findings), list(report.notes)
    if completed:
        notes.append(f"wrote what was missing or wrong beside {_shards(completed)}")
    if beyond:
        names = ", ".join(
            name for shard_id in sorted(beyond)[:_NAMES_SHOWN] for name in dataset.shards[shard_id].present
        )
        notes.append(f"left alone, since no list has rows for such numbers: {names}")
    if repaired:
        notes.append(
            f"removed {_shards(repaired)}: the same download command makes "
            + ("it again" if len(repaired) == 1 else "them again")
        )
    ordered = sorted([*findings, *failed], key=lambda found: (found.shard_id is None, found.shard_id or 0))
    return replace(report, findings=tuple(ordered), notes=tuple(notes), repaired=tuple(repaired))


def _write_sidecars(dataset: Dataset, files: ShardFiles) -> bool:
    """Make the sidecars of a shard from its data; whether there are any."""
    if files.data is None or dataset.writer is None or not dataset.writer.sidecars:
        return False
    with dataset.local(files.data) as path:
        made = cast("type[WithSidecars]", dataset.writer).make_sidecars(path)
    for end, content in made.items():
        dataset.folder.write(f"{files.data.removesuffix(f'.{dataset.writer.extension}')}{end}", content)
    return bool(made)


def _remove(dataset: Dataset, name: str) -> None:
    if dataset.entries[name].is_folder:
        dataset.folder.remove_tree(name)
    else:
        dataset.folder.remove(name)


# --- telling ---


def lines(report: VerifyReport, most: int = 40) -> Iterator[str]:
    """The report for a person, no longer than some `most` lines: every finding on one, by shard."""
    for found in report.findings[:most]:
        where = "dataset" if found.shard_id is None else f"shard {found.shard_id}"
        message = found.message if len(found.message) <= _LONGEST_LINE else f"{found.message[:_LONGEST_LINE]} …"
        yield f"{where}: {found.kind}: {message}"
    if len(report.findings) > most:
        kinds = Counter(found.kind for found in report.findings[most:])
        rest = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        yield f"… and {len(report.findings) - most:,} more ({rest}); --json=FILE has them all"
    for note in report.notes:
        yield f"note: {note}"
    yield from _summary(report)


def _summary(report: VerifyReport) -> Iterator[str]:
    read = f"{shard_count(report.shards)}, {report.rows:,} rows, {report.samples:,} samples"
    if report.sample is None:
        hashes = f", {' and '.join(report.hashes)} recomputed" if report.hashes else ", no hashes to recompute"
        yield f"{read}; read to the last byte{hashes} ({report.bytes_read:,} bytes in {report.seconds:.1f} s)"
    else:
        yield (
            f"{read}; contents of {shard_count(report.shards_read)} read ({report.bytes_read:,} bytes in "
            f"{report.seconds:.1f} s): --sample={report.sample} --seed={report.seed} picks the same ones again"
        )
    if report.ok:
        yield "all is right"
        return
    broken = len(report.broken)
    shown = f"{shard_count(broken)} to be made again"
    findings = "1 finding" if len(report.findings) == 1 else f"{len(report.findings):,} findings"
    yield f"NOT all is right: {findings}" + (f", {shown}" if broken else "")
    was_tried = report.repaired or any(_NOT_REMOVED in found.message for found in report.findings)
    if broken and not was_tried and not any("not made by any2ds" in note for note in report.notes):
        yield "--repair puts them back to be done"
