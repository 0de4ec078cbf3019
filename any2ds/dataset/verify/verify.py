"""`verify()`: is a dataset complete, and are its bytes those that were fetched?

shards ─▶ tasks ─▶ check_shard, in processes ─▶ sums and findings ─▶ report
                                                                  └─▶ repair
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from any2ds.config.datasets import VerifyOptions
from any2ds.config.options import ParsedOptions
from any2ds.config.signature import command
from any2ds.core import layout, plugins
from any2ds.core.errors import LockLost, UsageError, error_text, shard_count
from any2ds.core.processes.resources import cores
from any2ds.dataset.added_columns import AddedColumns, AddedTable
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.listing import Entry, Listing
from any2ds.dataset.places import located
from any2ds.dataset.run_file import options_of
from any2ds.dataset.shard_list_file import rebuild
from any2ds.dataset.shards import ShardList
from any2ds.dataset.verify.pool import map_in_processes
from any2ds.dataset.verify.progress import Progress
from any2ds.dataset.verify.report import NOT_REMOVED, Finding, VerifyReport, are_text, shards_text
from any2ds.dataset.verify.shard import Checked, ShardTask, check_shard
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.stores import Stores
from any2ds.writers.formats._shard import LocalData

_READ_BY_GLOBS = (".tar", ".parquet", ".tfrecord", "_stats.json")  # what loaders and tools look for in a folder
_MOST_NAMES = 5
_SMALL = 100 << 20  # bytes; reading them in this process takes less time than to start others
_FOLDER_BYTES = 1 << 20  # assumed size of a folder


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
            guard = dataset.folder.guard
            dataset = Dataset(wanted.output_folder, stores)
            dataset.folder.guard = guard
        expected = ExpectedShards.of(dataset, dataset.shards.ids)
        report = _report(dataset, expected, wanted)
        if wanted.repair:
            report = _repaired(dataset, expected, report)
        return replace(report, seconds=time.monotonic() - started)


def _report(dataset: Dataset, expected: ExpectedShards, wanted: VerifyOptions) -> VerifyReport:
    listed = _list_of_shards(dataset)
    picked, seed = _picked(dataset, wanted)
    checked = _check_shards(dataset, wanted, picked, listed)
    findings = sorted(checked.findings, key=lambda finding: finding.shard_id or 0)
    findings += [*_findings_of_lists(dataset, expected), *_strays(dataset)]
    findings += _findings_of_shard_list(dataset, listed, checked)
    return VerifyReport(
        output_folder=wanted.output_folder,
        shards=len(dataset.finished),
        shards_read=checked.shards_read,
        rows=checked.rows,
        samples=checked.samples,
        bytes_read=checked.bytes_read,
        hashes=tuple(sorted(checked.hashes)),
        sample=None if wanted.sample is None else str(wanted.sample),
        seed=seed,
        findings=tuple(findings),
        notes=tuple(_notes(dataset, checked)),
        missing=tuple(expected.missing),
    )


# --- the shards ---


def _picked(dataset: Dataset, wanted: VerifyOptions) -> tuple[frozenset[int] | None, int | None]:
    """The shards whose contents are read (None: all), and the seed that picked them."""
    if wanted.sample is None:
        return None, None
    seed = wanted.seed if wanted.seed is not None else random.SystemRandom().randrange(2**31)
    ids = dataset.finished.ids
    count = -(-Fraction(wanted.sample[:-1]) * len(ids) // 100) if wanted.sample.endswith("%") else int(wanted.sample)
    return frozenset(random.Random(seed).sample(list(ids), min(len(ids), int(count)))), seed


def _check_shards(
    dataset: Dataset, wanted: VerifyOptions, picked: frozenset[int] | None, listed: ShardList | None
) -> Checked:
    count = len(dataset.shards)
    size = dataset.listing.size + _FOLDER_BYTES * dataset.listing.folders
    if picked is not None:
        size = size * len(picked) // max(1, count)
    processes = 0
    if not dataset.folder.is_private and count > 1 and size > _SMALL:
        processes = min(wanted.processes_count or cores(), count)
    _ = dataset.layout  # read once, not by every process
    added = AddedColumns.of(dataset.folder) if dataset.run is not None else None
    with Progress(count, wanted.output_folder, wanted.quiet) as progress:

        def tasks() -> Iterator[ShardTask]:
            """Shards of which something has to be read; the others are done at once, by the list of shards."""
            is_known = listed is not None and not listed.is_open and listed.table.ids == dataset.finished.ids
            entries = listed.table.entries() if listed is not None and is_known and picked is not None else iter(())
            for files in dataset.shards:  # in the order of their numbers, as the list
                entry = next(entries, None) if files.stats is not None else None
                if picked is None or files.shard_id in picked:
                    yield ShardTask(files, added=None if added is None else added.table(files.shard_id))
                elif entry is not None:
                    progress.add(check_shard(dataset, ShardTask(files, False, entry)))
                else:
                    yield ShardTask(files, False)

        lean = copy(dataset)  # what a process needs: names of files come with each shard
        lean.listing, lean.shards = Listing(()), dataset.shards.only(())
        results: Any = map_in_processes(partial(check_shard, lean), tasks(), processes, _lost)
        with closing(results):
            for result in results:
                progress.add(result)
    return progress.checked


def _lost(task: ShardTask, why: str) -> Checked:
    return Checked([Finding("unreadable", f"it cannot be checked: {why}", task.files.shard_id)])


# --- the dataset as a whole ---


def _findings_of_lists(dataset: Dataset, expected: ExpectedShards) -> Iterator[Finding]:
    """Findings about the run file, and about the shards compared with its url lists."""
    if missing := expected.missing:
        yield Finding("missing", f"{are_text(missing)} missing: the same download command makes what is missing")
    if dataset.run is None and not dataset.is_img2dataset:
        why = f"cannot be understood ({dataset.run_problem})" if dataset.run_problem else "is not there"
        yield Finding("run_file", f"{layout.RUN_FILE} {why}: shards were checked without it")
    if dataset.run is None:
        return
    if expected.has_unread_list:
        yield Finding("unread", "the url list was not read to its end: the same download command continues")
    if beyond := expected.beyond:
        total = shard_count(sum(segment.shards or 0 for segment in expected.segments))
        yield Finding("list", f"{are_text(beyond)} not of this list, which has rows for {total}")


def _strays(dataset: Dataset) -> Iterator[Finding]:
    yield from (Finding("stray", f"{entry.name} belongs to no shard") for entry in _others(dataset) if _is_stray(entry))


def _others(dataset: Dataset) -> list[Entry]:
    """Entries that do not belong to the dataset, without its card."""
    return sorted((entry for entry in dataset.others() if entry.name != layout.CARD_FILE), key=lambda entry: entry.name)


def _is_stray(entry: Entry) -> bool:
    """Whether loaders would read it."""
    return entry.name.endswith(_READ_BY_GLOBS) or (entry.is_folder and entry.name.isdecimal())


def _list_of_shards(dataset: Dataset) -> ShardList | None:
    """`.any2ds/shards`; None if it is missing, or cannot be read."""
    with suppress(Exception):  # every file system has exceptions of its own
        return ShardList.of(dataset.folder)
    return None


def _findings_of_shard_list(dataset: Dataset, listed: ShardList | None, checked: Checked) -> Iterator[Finding]:
    """Only if all shards are in order: whatever makes them again writes the list, too."""
    are_in_order = not any(finding.is_broken or finding.kind == "unreadable" for finding in checked.findings)
    if dataset.run is None or not len(dataset.finished) or not are_in_order:
        return
    if listed is None:
        problem = "is missing, or cannot be read"
    elif listed.is_open:
        problem = "is open, as while a run is at work"
    elif listed.table.ids != dataset.finished.ids or listed.table.totals.samples != checked.samples:
        problem = "does not describe the shards"
    else:
        return
    yield Finding("shard_list", f"{layout.SHARDS_FILE} {problem}: the next run, or --repair, writes it")


def _notes(dataset: Dataset, checked: Checked) -> Iterator[str]:
    if dataset.run is None:
        yield "the number of rows of the url list is unknown: shards may be missing at the end"
    if dataset.is_img2dataset:
        yield "not made by any2ds: structure, keys and counts were checked, hashes were not"
    if dataset.writer is None:
        yield f"the data was not read: the format {dataset.output_format or 'of this dataset'} is unknown"
    if others := [entry.name for entry in _others(dataset) if not _is_stray(entry)]:
        more = f" … and {len(others) - _MOST_NAMES:,} more" if len(others) > _MOST_NAMES else ""
        yield f"not made by any2ds, and not checked: {', '.join(others[:_MOST_NAMES])}{more}"
    if layout.TEMPORARY_FOLDER in dataset.entries and layout.LOCK_FILE in dataset.entries:
        yield "a run is at work, or was killed: what it was making was not checked"
    if checked.unchecked_files:
        changed = f"{checked.unchecked_files:,} files were changed on the way and have no checksum"
        yield f"{changed}: only their sizes were compared"


# --- repair ---


def _refuse_repair(dataset: Dataset) -> None:
    """Raises UsageError where nothing may be removed."""
    url = dataset.folder.url
    if dataset.is_img2dataset:
        raise UsageError(f"{url!r} was not made by any2ds: --repair removes nothing in it")
    if dataset.run is None:
        raise UsageError(f"{url!r} has no readable {layout.RUN_FILE}: no run would make again what --repair removes")


def _repaired(dataset: Dataset, expected: ExpectedShards, report: VerifyReport) -> VerifyReport:
    """Remove broken shards and broken tables of added columns, and write missing extra files and the list of shards.

    Files without statistics whose number no list has may be somebody else's, and no run would make them: they stay.
    """
    kept = [shard_id for shard_id in expected.beyond if dataset.shards.of(shard_id).stats is None]
    broken = sorted(set(report.broken).difference(kept))
    failed: list[Finding] = []
    if broken:
        dataset.folder.remove(layout.SHARDS_FILE)  # before what it names: it is believed without a look at the folder
    removed = [n for n in broken if _done(partial(_remove, dataset, n), n, NOT_REMOVED, failed)]
    message = "its extra files could not be written"
    completed = [
        n for n in _unbroken(report, "beside") if _done(partial(_write_sidecars, dataset, n), n, message, failed)
    ]
    added = AddedColumns.of(dataset.folder)
    lost = [
        n
        for n in _unbroken(report, "columns")
        if added is not None and _done(partial(_remove_added, dataset, added.table(n)), n, NOT_REMOVED, failed)
    ]
    rebuild(dataset.folder, options_of(dataset.folder)[0])
    notes = list(report.notes)
    if completed:
        notes.append(f"wrote the extra files of {shards_text(completed)}")
    if lost:
        notes.append(f"removed the added columns of {shards_text(lost)}: the same add-columns command writes them")
    if kept:
        names = [name for shard_id in kept[:_MOST_NAMES] for name in dataset.shards.of(shard_id).present]
        notes.append(f"not removed, since no list has rows for such numbers: {', '.join(names)}")
    if removed:
        notes.append(f"removed {shards_text(removed)}: the same command makes what was removed")
    findings = sorted([*report.findings, *failed], key=lambda found: (found.shard_id is None, found.shard_id or 0))
    return replace(report, findings=tuple(findings), notes=tuple(notes), repaired=tuple(removed))


def _remove(dataset: Dataset, shard_id: int) -> bool:
    for name in dataset.shards.of(shard_id).present:  # statistics first: they say that the others are complete
        if name.isdecimal():  # the folder of the format files
            dataset.folder.remove_tree(name)
        else:
            dataset.folder.remove(name)
    return True


def _unbroken(report: VerifyReport, kind: str) -> list[int]:
    """Shards with a finding of this kind that need not be made again."""
    found = {finding.shard_id for finding in report.findings if finding.kind == kind}
    return sorted(shard_id for shard_id in found.difference(report.broken) if shard_id is not None)


def _remove_added(dataset: Dataset, table: AddedTable | None) -> bool:
    if table is not None and dataset.folder.exists(table.name):
        dataset.folder.remove(table.name)
    return True


def _write_sidecars(dataset: Dataset, shard_id: int) -> bool:
    """Make the files beside the data of a shard anew; returns whether there are any."""
    files = dataset.shards.of(shard_id)
    if files.data is None or dataset.writer is None or dataset.writer.shard is None:
        return False
    with dataset.local(files.data) as path:
        data = LocalData(path)
        dataset.writer.shard(data)
    for end, content in data.indexes.items():
        dataset.folder.write(f"{files.data.removesuffix(f'.{dataset.writer.extension}')}{end}", content)
    return bool(data.indexes)


def _done(work: Callable[[], bool], shard_id: int, message: str, failed: list[Finding]) -> bool:
    """Result of `work`; False where it raises anything but LockLost, which becomes a finding."""
    try:
        return work()
    except LockLost:
        raise
    except Exception as error:  # every file system has exceptions of its own
        failed.append(Finding("unreadable", f"{message}: {error_text(error)}", shard_id))
        return False
