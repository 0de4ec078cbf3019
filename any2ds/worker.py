"""What every distributor runs: a stream of shard jobs in, a stream of events out.

    jobs ─▶ rows ─▶ fetch ─▶ describe ─▶ take (order, write) ─▶ publish ─▶ reports

Shards overlap: when the last rows of one wait for slow hosts, rows of the next ones are in flight already.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds import registry
from any2ds.buffer import Buffer
from any2ds.config import FetchOptions, OutputOptions
from any2ds.errors import words_of
from any2ds.fetch import UrlFetcher
from any2ds.layout import Layout
from any2ds.media import recognize
from any2ds.metadata import HASHES, OUTCOME_FIELDS, without_credentials
from any2ds.shard import OpenShard
from any2ds.storage import OutputFolder, staging
from any2ds.types import (
    SUCCESS,
    Event,
    Failure,
    Fetched,
    Payload,
    Progress,
    Row,
    Sample,
    ShardError,
    ShardJob,
    ShardReport,
)

log = logging.getLogger(__name__)

_WINDOWS_FILES = 8192  # handles are not limited there; this bounds open shards
_PROGRESS_SECONDS = 0.5  # between two events of this kind
# Rows without an outcome that one process may look at ahead: as many as fast hosts deliver while a slow one times out.
_ROWS_AHEAD = 200_000
_MOST_OPEN_SHARDS = 512
_WORTH_A_FLUSH = 1 << 20  # bytes held by a writer; less would make tiny row groups
_MOST_UNPUBLISHED = 4  # complete shards that may wait for the disk or the upload


class ShardWorker:
    """The `protocols.Worker` of a run; carries nothing but its options, so that it can be sent anywhere."""

    def __init__(self, options: OutputOptions, fetch: FetchOptions) -> None:
        self._options = options
        self._fetch = fetch

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        files = _raise_file_limit()
        fetch = replace(self._fetch, thread_count=min(self._fetch.thread_count, _sockets(files)))
        if fetch.thread_count < self._fetch.thread_count:
            log.warning("%d transfers in flight, because only %d files may be open", fetch.thread_count, files)
        pa.array([])  # its first call imports pandas, if that is installed: 0.2 s, better now than between two turns
        with ExitStack() as stack:
            output = OutputFolder(self._options.output_folder)
            folder = stack.enter_context(staging(output))
            publisher = ThreadPoolExecutor(1, thread_name_prefix="any2ds-publisher")
            buffer = stack.enter_context(closing(Buffer(fetch.max_buffered_bytes, fetch.thread_count)))
            shards = stack.enter_context(closing(_Shards(self._options, output, folder, buffer, publisher, files // 4)))
            fetcher = stack.enter_context(closing(UrlFetcher(fetch, buffer)))
            describe = Describe(self._options)
            for batch in fetcher.fetch(shards.open(jobs)):
                for fetched in batch:
                    shards.take(describe(fetched))
                yield from shards.events()
            yield from shards.events(wait=True)


class Describe:
    """Turns what was fetched into a sample: recognises the file, hashes it, and says all of it in metadata fields."""

    def __init__(self, options: OutputOptions) -> None:
        self._hashes = [(name, getattr(hashlib, name)) for name in hash_columns(options)]
        self._ext = None if options.file_ext == "auto" else options.file_ext
        self._nothing = dict.fromkeys([*OUTCOME_FIELDS, *hash_columns(options)])

    def __call__(self, fetched: Fetched) -> Sample:
        outcome = fetched.outcome
        if isinstance(outcome, Failure):
            return self._failed(fetched, outcome)
        try:
            return self._succeeded(fetched, outcome)
        except Exception as error:  # whatever is in the bytes of one file, it concerns no other
            outcome.body.release()
            failure = Failure("transform", "transform_error", f"{type(error).__name__}: {error}", outcome.http_status)
            return self._failed(fetched, failure)

    def _failed(self, fetched: Fetched, failure: Failure) -> Sample:
        fields: dict[str, Any] = {
            **self._nothing,
            "status": failure.status,
            "error_code": failure.code,
            "error_message": failure.detail or None,
            "http_status": failure.http_status,
            "final_url": failure.final_url and without_credentials(failure.final_url),
            "attempts": fetched.attempts,
        }
        return Sample(fetched.row, None, "", fields, failure)

    def _succeeded(self, fetched: Fetched, outcome: Payload) -> Sample:
        body = outcome.body
        mime_type, ext = recognize(body.head(), outcome.media_type)
        ext = self._ext or ext
        fields = {
            "status": SUCCESS,
            "error_code": None,
            "error_message": None,
            "http_status": outcome.http_status,
            "mime_type": mime_type,
            "ext": ext,
            "bytes": body.size,
            "final_url": outcome.final_url and without_credentials(outcome.final_url),
            "etag": outcome.etag,
            "last_modified": outcome.last_modified,
            "attempts": fetched.attempts,
        }
        for name, new_hash in self._hashes:
            digest = new_hash()
            for chunk in body.chunks():
                digest.update(chunk)
            fields[name] = digest.hexdigest()
        return Sample(fetched.row, body, ext, fields)


def hash_columns(options: OutputOptions) -> tuple[str, ...]:
    """The hashes asked for, each once, in the order of `HASHES`."""
    asked = {options.compute_hash, "md5" if options.compute_md5 else None}
    return tuple(name for name in HASHES if name in asked)


class _Shards:
    """The shards that are open in this process. `open` runs in the feeder's thread, all else in the worker's."""

    def __init__(
        self,
        options: OutputOptions,
        output: OutputFolder,
        folder: Path,
        buffer: Buffer,
        publisher: ThreadPoolExecutor,
        most_open: int,
    ) -> None:
        self._layout = Layout(options.number_sample_per_shard, options.oom_shard_count)
        self._hashes = hash_columns(options)
        self._writer = registry.load("writers", options.output_format)
        self._output, self._folder, self._buffer, self._publisher = output, folder, buffer, publisher
        self._open: dict[int, OpenShard] = {}
        self._publishing: list[tuple[OpenShard, Future[ShardReport]]] = []
        self._errors: list[ShardError] = []
        self._unreadable: deque[tuple[int, Exception]] = deque()  # from the feeder's thread
        ahead = max(4, min(most_open, _MOST_OPEN_SHARDS, _ROWS_AHEAD // options.number_sample_per_shard))
        self._room = threading.Semaphore(ahead)
        self._closed = False
        self._outcomes: Counter[str] = Counter()  # since the last Progress
        self._bytes = 0
        self._told = time.monotonic()

    def open(self, jobs: Iterable[ShardJob]) -> Iterator[Row]:
        """The rows of all jobs; a shard is opened when its first row is asked for."""
        for job in jobs:
            self._room.acquire()
            if self._closed:
                return
            try:
                shard = OpenShard(job, self._layout, self._hashes, self._writer, self._folder, self._buffer)
                self._open[job.shard_id] = shard
                for row in shard.rows():
                    if shard.failed:
                        break
                    yield row
            except Exception as error:  # rows that cannot be read concern this shard alone
                self._unreadable.append((job.shard_id, error))

    def _give_up(self, shard_id: int, error: Exception) -> None:
        if shard := self._open.pop(shard_id, None):
            shard.discard()
        self._room.release()
        self._errors.append(_shard_error(shard_id, error))

    def take(self, sample: Sample) -> None:
        shard_id = sample.row.shard_id
        self._outcomes[sample.failure.code if sample.failure else SUCCESS] += 1
        self._bytes += sample.body.size if sample.body else 0
        shard = self._open.get(shard_id)
        if shard is None:  # given up before this row came back
            if sample.body is not None:
                sample.body.release()
            return
        try:
            shard.take(sample)
        except Exception as error:  # this shard is lost, the others are not
            self._give_up(shard_id, error)
            return
        if shard.held and self._buffer.used > self._buffer.half:
            self._relieve()
        if shard.complete and shard_id in self._open:
            del self._open[shard_id]
            shard.settle()
            self._publishing.append((shard, self._publisher.submit(shard.publish, self._output)))

    def _relieve(self) -> None:
        """Make the writer that holds the most let go of it; the formats that write at once hold nothing."""
        fullest = max(list(self._open.values()), key=lambda shard: shard.held, default=None)
        if fullest is not None and fullest.held >= _WORTH_A_FLUSH:
            try:
                fullest.flush()
            except Exception as error:
                self._give_up(fullest.job.shard_id, error)

    def events(self, wait: bool = False) -> Iterator[Event]:
        """What happened since the last call. With `wait`, until all shards are published."""
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS or wait:
            yield Progress(dict(self._outcomes), self._bytes)
            self._outcomes.clear()
            self._bytes = 0
            self._told = now
        while self._unreadable:
            self._give_up(*self._unreadable.popleft())
        while self._publishing:
            shard, future = self._publishing[0]
            if not (wait or future.done() or len(self._publishing) > _MOST_UNPUBLISHED):
                break
            self._publishing.pop(0)
            self._room.release()
            try:
                yield future.result()
            except Exception as error:
                shard.discard()
                yield _shard_error(shard.job.shard_id, error)
        yield from self._errors
        self._errors.clear()

    def close(self) -> None:
        """Give up whatever is not published."""
        self._closed = True
        self._room.release()
        self._publisher.shutdown(wait=False, cancel_futures=True)
        for shard in list(self._open.values()):
            shard.discard()


def _shard_error(shard_id: int, error: Exception) -> ShardError:
    return ShardError(shard_id, words_of(error), "".join(traceback.format_exception(error)))


def _raise_file_limit() -> int:
    """As many open files and sockets as the system grants, and how many that is.

    The usual soft limits, 1024 on Linux and 256 on macOS, are for another age.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return _WINDOWS_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    for wanted in (hard, 65536, 10240):  # macOS refuses what it calls unlimited
        if wanted != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft


def _sockets(files: int) -> int:
    """Transfers that so many open files allow, with connections that are kept, and files for everything else."""
    if sys.platform == "win32":
        return 400  # select() takes 512 sockets
    return max(1, files // 3)  # as many again may wait for silent hosts
