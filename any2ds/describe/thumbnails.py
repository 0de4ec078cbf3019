"""Random samples of a dataset, in whatever format, as people may look at them: for the report and for reporters."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import random
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import STORED_BYTES, stored_rows
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.pictures import View
from any2ds.describe.preview import PreviewPool
from any2ds.describe.shown import shown, shown_url
from any2ds.load.copies import ShardCopies
from any2ds.load.opened import OpenShards
from any2ds.load.shards import ShardSet
from any2ds.storage.disk.staging import staging
from any2ds.writers.contract import Fields

log = logging.getLogger(__name__)

_MOST_SHARDS = 16  # that samples are taken from
_THREADS = 8
_GRACE = 0.1  # seconds for what is being looked at when time is up
_MOST_BYTES = 16 << 20  # of a file; larger ones are not read
_MOST_COPIED = 128 << 20  # bytes of a shard of a store that may have to be copied
_MOST_CAPTION = 300  # characters
_COLUMNS = ("key", "url", "caption", "ext", "mime_type", "bytes", STORED_BYTES.name)

Sample = Mapping[str, Any]
"""A sample as `load` gives it."""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A sample as it is shown. Texts are without controls and credentials, and otherwise as strangers wrote them."""

    key: str
    url: str
    caption: str
    ext: str
    mime_type: str
    size: int  # bytes of its file
    view: View


def thumbnails(sample: ShardSample, count: int = 64, seed: int = 0, seconds: float = 30.0) -> list[Thumbnail]:
    """Up to `count` samples, the same for the same `seed`, in the order of the dataset; fewer if there are no more, or
    time is up, in which the start of the process that decodes does not count. What cannot be read is left out: whether
    a dataset is whole is another question."""
    finished, chance = sample.dataset.finished, random.Random(seed)
    table, totals = sample.table, sample.totals
    samples = dict(zip(table.ids, table.column("samples"), strict=True)) if table is not None else {}
    if samples:
        finished = finished.only(number for number, number_of in samples.items() if number_of)
    chosen = chance.sample(range(len(finished)), min(len(finished), _MOST_SHARDS, count))
    picked = [finished[number] for number in sorted(chosen)]
    shares = _shares([samples.get(files.shard_id, count) for files in picked], count)
    pool = ThreadPoolExecutor(max(1, min(_THREADS, len(picked))), thread_name_prefix="any2ds-thumbnails")
    found: list[list[Thumbnail]] = [[] for _ in picked]
    with staging(Path(tempfile.gettempdir())) as copies, PreviewPool() as previews:
        try:
            if picked and totals and totals.samples:
                previews.start(totals.exts, (totals.bytes or math.inf) / totals.samples)
            maker = _ThumbnailMaker(sample.dataset, picked, previews, copies, time.monotonic() + seconds)
            todo = [
                pool.submit(maker.make, place, share, random.Random(f"{seed} {place}"), found[place])
                for place, share in enumerate(shares)
            ]
            wait(todo, seconds + _GRACE)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return list(itertools.chain.from_iterable(found))[:count]


def _shares(samples: Sequence[int], count: int) -> list[int]:
    """How many of `count` are to come from each shard: equally many, and more where others have fewer `samples`."""
    shares = [0] * len(samples)
    for done, place in enumerate(sorted(range(len(samples)), key=samples.__getitem__)):
        shares[place] = min(samples[place], math.ceil(count / (len(samples) - done)))
        count -= shares[place]
    return shares


class _ThumbnailMaker:
    """Reads samples out of shards, in several threads; they are decoded one after the other."""

    def __init__(
        self, dataset: Dataset, picked: Sequence[ShardFiles], previews: PreviewPool, copies: Path, ends: float
    ) -> None:
        self._dataset, self._picked, self._previews, self._ends = dataset, picked, previews, ends
        self._lock = threading.Lock()
        options = dataset.run.options if dataset.run and not dataset.hides else None
        column = None if options is None else str(options.get("data_column") or "data")
        # Nothing is compared with statistics: a damaged shard costs its own samples.
        shards = ShardSet(
            dataset.folder,
            dataset.output_format or "",
            is_own=False,
            names=[files.data or "" for files in picked],
            tables=[files.metadata or "" for files in picked],
            starts=array("Q", bytes(8 * (len(picked) + 1))),
            data_bytes=array("Q", bytes(8 * len(picked))),
        )
        fields = Fields(schema=self._schema(), data_column=column)
        self._opened = OpenShards(shards, fields, ShardCopies(copies, _MOST_COPIED))

    def _schema(self) -> pa.Schema | None:
        """The columns of the metadata, by the first shard that can be read."""
        for files in self._picked:
            with contextlib.suppress(Exception), self._dataset.metadata_file(files) as file:
                schema = file.schema_arrow
                return pa.schema([schema.field(name) for name in self._dataset.metadata_columns(schema)])
        return None

    def make(self, place: int, count: int, chance: random.Random, found: list[Thumbnail]) -> None:
        """Append `count` samples of a shard to `found`, until time is up."""
        try:
            for sample in self._samples(place, count, chance):
                if time.monotonic() >= self._ends:
                    return
                found.append(self._thumbnail(sample))
        except Exception as error:  # of Arrow, tarfile, any format's library and any file system
            log.debug("shard %d has no samples to show: %s", self._picked[place].shard_id, error, exc_info=True)

    def _samples(self, place: int, count: int, chance: random.Random) -> Iterator[Sample]:
        dataset, files = self._dataset, self._picked[place]
        if time.monotonic() >= self._ends or files.data is None or dataset.writer is None:
            return
        is_local = dataset.folder.is_local
        numbers, rows = self._drawn(files, count, chance)
        if dataset.writer.extension == "" and not is_local:  # a folder, of which no copy is made
            for row in rows:
                yield {**row, "data": dataset.read(f"{files.data}/{row['key']}.{row.get('ext') or 'jpg'}")}
        elif is_local or dataset.writer.sidecars or self._size(files) <= _MOST_COPIED:
            for number in numbers:
                with contextlib.suppress(DamagedShard):
                    sample = self._opened.get(place, number)
                    yield sample

    def _drawn(self, files: ShardFiles, count: int, chance: random.Random) -> tuple[list[int], list[Sample]]:
        """The numbers of some samples of a shard, of those whose files are not too large, and their metadata."""
        with self._dataset.metadata_file(files) as file:
            known = file.schema_arrow.names
            table = file.read([name for name in (*_COLUMNS, "status") if name in known])
        table = stored_rows(table)
        sizes = [table[name] for name in (STORED_BYTES.name, "bytes") if name in known]
        is_small = pc.less_equal(pc.coalesce(*sizes, 0), _MOST_BYTES) if sizes else pc.is_valid(table["status"])
        numbers = pc.indices_nonzero(is_small)
        drawn = numbers.take(pa.array(sorted(chance.sample(range(len(numbers)), min(count, len(numbers)))), pa.int64()))
        return drawn.to_pylist(), table.take(drawn).to_pylist()

    def _size(self, files: ShardFiles) -> float:
        """The bytes of the data file, as its statistics say."""
        return Stats.parse(self._dataset.read(files.stats or "")).data_bytes or math.inf

    def _thumbnail(self, sample: Sample) -> Thumbnail:
        """The file, and what the metadata say of it."""
        data, ext, mime_type = (
            sample.get("data") or b"",
            str(sample.get("ext") or ""),
            str(sample.get("mime_type") or ""),
        )
        with self._lock:
            left = max(0.01, self._ends - time.monotonic())
            view = self._previews.view(data, mime_type, ext, left)
        return Thumbnail(
            key=shown(str(sample.get("key") or ""), 100),
            url=shown_url(str(sample.get("url") or "")),
            caption=shown(" ".join(str(sample.get("caption") or "").split()), _MOST_CAPTION),
            ext=shown(ext, 20),
            mime_type=shown(mime_type, 100),
            size=len(data),
            view=view,
        )
