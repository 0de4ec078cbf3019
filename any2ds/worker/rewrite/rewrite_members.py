"""One shard of rows with several URLs while it is rewritten: only the files that failed are fetched again.

Those that are there are taken from the previous shard, or, of rows that have failed, from its kept files; what has not
been kept is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.failures import STATUS_OF_STAGE, SUCCESS, Failure, FailureFilter, Stage
from any2ds.core.members import Members, column, is_failure
from any2ds.core.rows import Row
from any2ds.core.samples import Sample, Samples
from any2ds.storage.folders import OutputFolder
from any2ds.worker.job_rows import JobRows, SlotRows
from any2ds.worker.joined_rows import JoinedRows, Parts
from any2ds.worker.kept_files import NOT_PROCESSED, read_kept
from any2ds.worker.rewrite.rewrite import RewrittenShard
from any2ds.worker.shard import OpenShard
from any2ds.writers.previous_shard import PreviousShard

_IN_TRANSFORMS = STATUS_OF_STAGE["transform"]


class RewrittenMembers(RewrittenShard):
    """As `RewrittenShard`; what is fetched are the URLs of rows, one by one."""

    joined: JoinedRows

    def _kept_of(self, previous: PreviousShard, is_meant: FailureFilter) -> frozenset[int]:
        members = self._members
        rows = previous.values(members.outcome_columns())
        failed = {n for n, of_row in previous.rows_of.items() if members.to_retry(rows[of_row[0]], is_meant)}
        self._is_meant = is_meant
        return frozenset(previous.rows_of.keys() - failed)

    def _ask(self, rows: JobRows, previous: PreviousShard, table: pa.Table, wanted: list[int]) -> None:
        members = self._members
        self._copies, self._attempts = {}, {}  # `joined` has them
        slots = SlotRows(self.job, self._context.layout, members, table, wanted)
        to_fetch = slots.to_fetch()
        again = [position for position in wanted if position in previous.rows_of]
        known = self._known(previous, again)
        for position, parts in known.items():
            to_fetch[position] = [number for number in to_fetch[position] if parts.samples[number] is None]
        self._missing = set(wanted)
        self.joined = JoinedRows(members, slots, to_fetch, tuple(self._context.own_columns), known)

    def _fetch_once(self, rows: JobRows, wanted: list[int]) -> None:
        self.joined.fetch_once(self._context.media)

    @property
    def _members(self) -> Members:
        members = self._context.media.members
        assert members is not None
        return members

    @property
    def all_handed(self) -> bool:
        return self.joined.all_handed(self.handed)

    def rows(self) -> Iterator[Row]:
        return self.joined.rows()

    def rows_without_outcome(self, among: int | None = None) -> list[Row]:
        self.closed = self.closed or among is None
        return self.joined.without_outcome(among)

    def join(self, samples: Samples) -> Sequence[Samples]:
        found = self.joined.take(samples)
        for attempts, seconds in self.joined.transfers:
            self.stats.add_transfer(attempts, seconds)
        self.joined.transfers.clear()
        return found

    def _known(self, previous: PreviousShard, positions: Sequence[int]) -> dict[int, Parts]:
        """What is known of the members of the rows at `positions`: those to fetch are None."""
        members, own = self._members, tuple(self._context.own_columns)
        names = [column(name, each) for name in members.names for each in own]
        rows = previous.values(["key", "status", *names])
        values = {position: rows[previous.rows_of[position][0]] for position in positions}
        kept, reasons = self._kept_bodies({row["key"] for row in values.values() if row["status"] != SUCCESS})
        known = dict[int, Parts]()
        for position, row in values.items():
            wanted = members.to_retry(row, self._is_meant)
            parts: list[Sample | None] = []
            for number, name in enumerate(members.names):
                fields = {each: row.get(column(name, each)) for each in own}
                status, ext = fields["status"], f"{name}.{fields['ext']}"
                at = Row(self.job.shard_id, position, str(row["key"]), None, member=name)
                if status is None or number in wanted:
                    parts.append(None)
                elif is_failure(status):
                    parts.append(Sample(at, None, "", fields, _failure(fields)))
                elif status != SUCCESS or row["status"] == SUCCESS:  # its file is in the previous shard
                    parts.append(Sample(at, None, fields["ext"] or "", fields))
                else:
                    files = kept.get((at.key, name), {})
                    body = files.pop(ext, None)
                    further = {each.partition(".")[2]: one for each, one in files.items()}
                    is_whole = body is not None or self._data_name is None
                    left = {name: reasons[at.key][name]} if name in reasons.get(at.key, ()) else None
                    part = Sample(at, body, fields["ext"] or "", fields, extra_files=further, not_processed=left)
                    parts.append(part if is_whole else None)
            attempts = [row.get(column(name, "attempts")) or 0 for name in members.names]
            known[position] = Parts(parts, attempts)
        return known

    def _kept_bodies(
        self, keys: set[str]
    ) -> tuple[dict[tuple[str, str], dict[str, StoredBody]], dict[str, dict[str, str]]]:
        """The kept files of the rows with these keys: key and member -> extension -> body, in the spool; and key ->
        member -> why a step has left its file as it came."""
        found: dict[tuple[str, str], dict[str, StoredBody]] = {}
        reasons: dict[str, dict[str, str]] = {}
        if not keys:
            return found, reasons
        name = self._context.layout.kept_name(self.job.shard_id)
        for key, files in read_kept(self._output, name, self._context.folder):
            if key in keys:
                for ext, body in files.items():
                    if ext == NOT_PROCESSED:
                        with suppress(ValueError):
                            reasons[key] = orjson.loads(body.read())
                        continue
                    of = found.setdefault((key, ext.partition(".")[0]), {})
                    of[ext] = self._spool.add(body.chunks())
        return found, reasons

    def _swapped(self, output: OutputFolder, files: Mapping[str, Path]) -> None:
        name = self._context.layout.kept_name(self.job.shard_id)
        if name not in files:
            output.remove(name)


def _failure(fields: Mapping[str, Any]) -> Failure:
    """What the metadata say of one."""
    stage: Stage = "transform" if fields["status"] == _IN_TRANSFORMS else "fetch"
    return Failure(stage, str(fields["error_code"]), fields["error_message"] or "")


Shard = OpenShard | RewrittenShard
