"""Random samples of a dataset, in whatever format, as people may look at them: for the report and for reporters."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import math
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core.failures import SUCCESS
from any2ds.core.metadata import STORED_BYTES
from any2ds.core.samples import CAPTION, METADATA
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.pictures import View
from any2ds.describe.preview import PreviewPool, kind_of
from any2ds.describe.shown import shown, shown_url
from any2ds.writers.formats._shard import LocalData
from any2ds.writers.formats.parquet import body_columns

log = logging.getLogger(__name__)

_MOST_SHARDS = 16  # that samples are taken from
_THREADS = 8
_GRACE = 0.1  # seconds for what is being looked at when time is up
_MOST_BYTES = 16 << 20  # of a file; larger ones are not read
_MOST_GROUP = 64 << 20  # bytes of files in a row group
_MOST_COPIED = 128 << 20  # bytes of a remote shard in which no sample can be had alone
_FIRST = 256  # samples of a shard in which none can be had alone that are chosen from
_ROWS_AT_ONCE = 1 << 14
_MOST_CAPTION = 300  # characters
_COLUMNS = ("key", "url", "caption", "ext", "mime_type", "bytes", STORED_BYTES.name)
_TARS, _FOLDERS = "tar", ""  # the extensions of formats whose samples can be had alone

Facts = Mapping[str, Any]
"""What the metadata say of a sample: some of `_COLUMNS`."""


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
    finished = sample.dataset.finished
    chance = random.Random(seed)
    table = sample.table
    samples = dict(zip(table.ids, table.column("samples"), strict=True)) if table is not None else {}
    if samples:
        finished = finished.only(number for number, count in samples.items() if count)
    chosen = sorted(chance.sample(range(len(finished)), min(len(finished), _MOST_SHARDS, count)))
    picked = [finished[number] for number in chosen]
    shares = _shares([samples.get(files.shard_id, 0) for files in picked], count, chance)
    pool = ThreadPoolExecutor(max(1, min(_THREADS, len(picked))), thread_name_prefix="any2ds-thumbnails")
    found: list[list[Thumbnail]] = [[] for _ in picked]
    try:
        with PreviewPool() as previews:
            totals = sample.totals
            if picked and totals and totals.samples:
                previews.start(totals.exts, (totals.bytes or math.inf) / totals.samples)
            look = _Look(sample.dataset, previews, time.monotonic() + seconds)
            todo = [
                pool.submit(look, files, share, random.Random(f"{seed} {files.shard_id}"), own)
                for files, share, own in zip(picked, shares, found, strict=True)
            ]
            wait(todo, seconds + _GRACE)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return list(itertools.chain.from_iterable(found))[:count]


def _shares(samples: Sequence[int], count: int, chance: random.Random) -> list[int]:
    """How many of `count` are to come from each shard, by how many `samples` it has; evenly if nobody knows."""
    total = sum(samples)
    if not total:
        return [math.ceil(count / max(1, len(samples)))] * len(samples)
    if total <= count:
        return list(samples)
    ends = list(itertools.accumulate(samples))
    drawn = Counter(
        next(shard for shard, end in enumerate(ends) if number < end) for number in chance.sample(range(total), count)
    )
    return [drawn[shard] for shard in range(len(samples))]


class _Look:
    """Takes samples out of shards, in several threads; they are looked at one after the other."""

    def __init__(self, dataset: Dataset, previews: PreviewPool, ends: float) -> None:
        self._dataset, self._previews, self._ends = dataset, previews, ends
        self._lock = threading.Lock()

    def __call__(self, files: ShardFiles, count: int, chance: random.Random, found: list[Thumbnail]) -> None:
        """Append to `found`."""
        if not count or files.metadata is None or self._is_over():
            return
        try:
            for facts, data, text in self._drawn(files, count, chance):
                found.append(self._thumbnail(facts, data, text))
                if self._is_over():
                    break
        except Exception as error:  # of Arrow, tarfile, any format's library and any file system
            log.debug("shard %d has no samples to show: %s", files.shard_id, error, exc_info=True)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def _thumbnail(self, facts: Facts, data: bytes | None, text: str) -> Thumbnail:
        ext, mime_type = str(facts.get("ext") or ""), str(facts.get("mime_type") or "")
        with self._lock:
            left = max(0.01, self._ends - time.monotonic())
            view = View(kind_of(mime_type, ext)) if data is None else self._previews.view(data, mime_type, ext, left)
        size = facts.get(STORED_BYTES.name)
        size = facts.get("bytes") if size is None else size
        return Thumbnail(
            key=shown(str(facts.get("key") or ""), 100),
            url=shown_url(str(facts.get("url") or "")),
            caption=shown(" ".join((facts.get("caption") or text or "").split()), _MOST_CAPTION),
            ext=shown(ext, 20),
            mime_type=shown(mime_type, 100),
            size=size if isinstance(size, int) else len(data or b""),
            view=view,
        )

    def _drawn(self, files: ShardFiles, count: int, chance: random.Random) -> Iterator[tuple[Facts, bytes | None, str]]:
        """What the metadata say of a sample, its file (None if that is too large), and the text beside it."""
        dataset = self._dataset
        if dataset.writer is not None and dataset.writer.holds_metadata:
            with dataset.visible_file(files) as file:
                yield from _in_groups(file, count, chance)
            return
        with dataset.metadata_file(files) as file:
            stored = _stored(file)
            extension = dataset.writer.extension if dataset.writer else None
            index = self._index(files) if extension == _TARS else None
            has_random_access = index is not None or extension == _FOLDERS
            among = len(stored) if has_random_access else min(len(stored), max(count, _FIRST))
            numbers = sorted(chance.sample(range(among), min(count, among)))
            rows = list(_rows(file, [stored[number] for number in numbers]))
        if index is not None:
            for number, facts in zip(numbers, rows, strict=True):
                yield self._in_tar(files, index[number], index[number + 1], facts)
        elif extension == _FOLDERS:
            for facts in rows:
                yield facts, self._in_folder(files, facts), ""
        elif extension is None:  # there are no files
            for facts in rows:
                yield facts, None, ""
        else:
            yield from self._one_by_one(files, {str(facts["key"]): facts for facts in rows}, among)

    # --- where samples can be had alone ---

    def _index(self, files: ShardFiles) -> Sequence[int] | None:
        """Where the samples of a tar begin; None if nothing tells."""
        with contextlib.suppress(Exception):  # it was not there before some version
            content = self._dataset.read(f"{files.data}.idx")
            return struct.unpack(f"<{len(content) // 8}Q", content)
        return None

    def _in_tar(self, files: ShardFiles, start: int, stop: int, facts: Facts) -> tuple[Facts, bytes | None, str]:
        import tarfile

        if stop - start > _MOST_BYTES:
            return facts, None, ""
        with self._dataset.folder.open(files.data or "") as stream:
            stream.seek(start)
            content = _read(stream, stop - start)
        members: dict[str, bytes] = {}
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                key, _, ext = member.name.partition(".")
                if key == facts.get("key") and (file := tar.extractfile(member)):
                    members[ext] = file.read()
        data = members.pop(str(facts.get("ext")), None)
        return facts, data, members.get(CAPTION, b"").decode("utf-8", "replace")

    def _in_folder(self, files: ShardFiles, facts: Facts) -> bytes | None:
        with self._dataset.folder.open(f"{files.data}/{facts['key']}.{facts.get('ext') or 'jpg'}") as stream:
            content = _read(stream, _MOST_BYTES + 1)
        return content if len(content) <= _MOST_BYTES else None

    # --- where they cannot ---

    def _one_by_one(
        self, files: ShardFiles, wanted: Mapping[str, Facts], among: int
    ) -> Iterator[tuple[Facts, bytes | None, str]]:
        """Those of `wanted`, by key, which are among the first of a shard that is read from its beginning."""
        dataset = self._dataset
        is_packed = dataset.run is not None and dataset.run.options.get("tfrecord_compression") == "gzip"
        if (is_packed or not dataset.folder.is_local) and self._size(files) > _MOST_COPIED:
            return
        assert dataset.writer is not None
        assert dataset.writer.shard is not None
        with dataset.local(files.data or "") as path:
            shard = dataset.writer.shard(LocalData(path))
            for number in range(min(among, len(shard))):
                key, members = shard.files(number)
                if (facts := wanted.get(key)) is not None:
                    yield _whole(members, facts)
                elif self._is_over():
                    return

    def _size(self, files: ShardFiles) -> float:
        """Of the data file, as its stats say."""
        return Stats.parse(self._dataset.read(files.stats or "")).data_bytes or math.inf


def _whole(members: Mapping[str, bytes], facts: Facts) -> tuple[Facts, bytes | None, str]:
    ext = str(facts.get("ext") or next((ext for ext in members if ext not in (CAPTION, METADATA)), ""))
    data, caption = members.get(ext), b"" if ext == CAPTION else members.get(CAPTION, b"")
    text = caption.decode("utf-8", "replace") if len(caption) <= _MOST_BYTES else ""
    return {**facts, "ext": ext}, data if data is not None and len(data) <= _MOST_BYTES else None, text


def _read(stream: Any, size: int) -> bytes:
    """So many bytes, or all that there are."""
    pieces: list[bytes] = []
    while size > 0 and (piece := stream.read(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _stored(file: pq.ParquetFile) -> list[int]:
    """The rows of the metadata that have a file, by the one column that says so."""
    status = file.read(columns=["status"])["status"]
    numbers: list[int] = pc.indices_nonzero(pc.fill_null(pc.equal(status, SUCCESS), False)).to_pylist()
    return numbers


def _rows(file: pq.ParquetFile, numbers: Sequence[int]) -> Iterator[Facts]:
    """What the metadata say in these rows, which are sorted; memory holds some thousand of the others."""
    names = [name for name in _COLUMNS if name in file.schema_arrow.names]
    start, left = 0, list(numbers)
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=names):
        here = [number - start for number in left if number < start + batch.num_rows]
        yield from batch.take(pa.array(here, pa.int64())).to_pylist()
        start, left = start + batch.num_rows, left[len(here) :]
        if not left:
            return


def _in_groups(file: pq.ParquetFile, count: int, chance: random.Random) -> Iterator[tuple[Facts, bytes | None, str]]:
    """Of a shard that holds metadata and files; as few row groups are read as there are samples wanted."""
    schema = file.schema_arrow
    bodies = body_columns(schema)
    names = [name for name in (*_COLUMNS, "status") if name in schema.names and name not in bodies]
    weights = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    left = count
    # In random order, large ones rather early, until there are enough: some may hold failures alone.
    order = sorted(range(len(weights)), key=lambda group: -math.log(1 - chance.random()) / max(1, weights[group]))
    share = math.ceil(count / max(1, len(order)))
    for group in order:
        if left <= 0:
            return
        table = file.read_row_group(group, columns=names)
        is_stored = pc.fill_null(pc.equal(table["status"], SUCCESS), False)
        numbers: list[int] = pc.indices_nonzero(is_stored).to_pylist()
        some = sorted(chance.sample(numbers, min(len(numbers), share, left)))
        left -= len(some)
        if some:
            taken = pa.array(some, pa.int64())
            files = _files(file, group, bodies, taken)
            for facts, (ext, data) in zip(table.take(taken).to_pylist(), files, strict=True):
                yield {**facts, "ext": facts.get("ext") or ext}, data, ""


def _files(file: pq.ParquetFile, group: int, bodies: Sequence[str], rows: pa.Array) -> list[tuple[str, bytes | None]]:
    """Extension, where the name of the column is one, and content in these rows of a group."""
    about = file.metadata.row_group(group)
    columns = [about.column(number) for number in range(about.num_columns)]
    size = sum(column.total_uncompressed_size for column in columns if column.path_in_schema.split(".")[0] in bodies)
    found: list[tuple[str, bytes | None]] = [("", None)] * len(rows)
    if size > _MOST_GROUP:
        return found
    table = file.read_row_group(group, columns=list(bodies)).take(rows)
    for name in bodies:
        for place, value in enumerate(table[name].to_pylist()):
            data = value.get("bytes") if isinstance(value, dict) else value
            if data is not None and len(data) <= _MOST_BYTES:
                found[place] = name, data
    return found
