"""Findings of `verify`, of a closed list of kinds, and its report as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from any2ds.core import text
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.terminal.notebook import html
from any2ds.dataset.shards import ranges_text

_MOST_KEYS = 3  # that a finding names
_LONGEST_LINE = 400  # characters of a finding on the terminal
_REPORTED = ("shards", "shards_read", "rows", "samples", "bytes_read", "hashes", "seconds", "sample", "seed", "notes")
NOT_REMOVED = "could not be removed"

BROKEN = "broken"  # the shard has to be made again
INCOMPLETE = "incomplete"  # as a stopped run leaves a dataset: the same download command completes it
OTHER = "other"
KINDS = {
    "stats": BROKEN,  # statistics of a shard are missing or unreadable, or do not agree with its metadata
    "metadata": BROKEN,  # metadata of a shard are missing or unreadable
    "keys": BROKEN,  # keys are not of the shard, or stand in it twice
    "data": BROKEN,  # the data file of a shard is missing, has another size, or cannot be read to its end
    "samples": BROKEN,  # data and metadata do not agree one to one
    "hash": BROKEN,  # the bytes of a file are not those that were fetched
    "unfinished": BROKEN,  # files of a shard that was never finished
    "missing": INCOMPLETE,  # shards that are not there
    "unread": INCOMPLETE,  # no run has read the url list to its end
    "shard_list": INCOMPLETE,  # .any2ds/shards is missing or does not describe the shards
    "beside": OTHER,  # an extra file of a shard, such as an index, is missing or does not belong to its data
    "columns": OTHER,  # the metadata of a shard with columns that were added later are missing or unreadable
    "unreadable": OTHER,  # the system or the store does not let a file be read, so it is not checked
    "list": OTHER,  # the shards do not hold the rows of the url list
    "run_file": OTHER,  # .any2ds/run is missing or unreadable, so no run can continue in this folder
    "stray": OTHER,  # a file that readers would take for one of the dataset, and that belongs to no shard
}
"""The closed list, with what it means for the dataset."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    kind: str  # of KINDS
    message: str
    shard_id: int | None = None  # None: it concerns the whole dataset

    @property
    def is_broken(self) -> bool:
        """Whether the shard has to be made again."""
        return KINDS[self.kind] == BROKEN

    @property
    def is_damage(self) -> bool:
        """Whether it is more than what the same download command completes, as after a run that was stopped."""
        return KINDS[self.kind] != INCOMPLETE and self.kind != "unfinished"

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "shard": self.shard_id, "words": self.message}


class Findings:
    """Collects those of one shard; the same problem of many samples is one finding, which names a few keys."""

    def __init__(self, shard_id: int) -> None:
        self._shard_id = shard_id
        self._keys: dict[tuple[str, str], list[str | None]] = {}  # kind and message -> the keys, as far as it has any

    def add(self, kind: str, message: str) -> None:
        self._keys[kind, message] = []

    def about(self, kind: str, key: str | None, message: str) -> None:
        """Add a problem with the sample or row called `key`."""
        self._keys.setdefault((kind, message), []).append(key)

    @property
    def has_broken(self) -> bool:
        """Whether the shard has to be made again."""
        return any(KINDS[kind] == BROKEN for kind, _ in self._keys)

    def __iter__(self) -> Iterator[Finding]:
        for (kind, message), keys in self._keys.items():
            named = ", ".join("null" if key is None else key[:100] for key in keys[:_MOST_KEYS])
            more = f" … and {len(keys) - _MOST_KEYS:,} more" if len(keys) > _MOST_KEYS else ""
            yield Finding(kind, f"{message}: {named}{more}" if keys else message, self._shard_id)


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """Figures of what was checked, and findings of what is wrong."""

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
    def exit_code(self) -> int:
        """Exit code of the command: 3 for a dataset that the same download command completes, as nothing is damaged."""
        return 0 if self.ok else 3 if self.is_incomplete else 1

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

        texts = [Text(printable(line)) for line in lines(self)]
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
    was_tried = report.repaired or any(NOT_REMOVED in found.message for found in report.findings)
    if report.broken and not was_tried and not any("structure, keys and counts" in note for note in report.notes):
        yield "--repair removes them, and the same download command makes them again"


def _count(findings: Sequence[Finding]) -> str:
    return "1 finding" if len(findings) == 1 else f"{len(findings):,} findings"


def _to_go(report: VerifyReport) -> str:
    """How much is missing: `at least 3 shards to go; `, as far as that is known."""
    unfinished = {found.shard_id for found in report.findings if found.kind == "unfinished"}
    count = len(unfinished | {*report.missing})
    if any(found.kind == "unread" for found in report.findings):
        return f"at least {shard_count(count)} to go; " if count else "the url list was not read to its end; "
    return f"{shard_count(count)} to go; " if count else ""


def shards_text(numbers: Sequence[int]) -> str:
    return f"shard {numbers[0]}" if len(numbers) == 1 else f"{shard_count(len(numbers))} ({ranges_text(numbers)})"


def are_text(numbers: Sequence[int]) -> str:
    return f"{shards_text(numbers)} {'is' if len(numbers) == 1 else 'are'}"
