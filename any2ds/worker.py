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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds import registry
from any2ds.buffer import Buffer
from any2ds.config import FetchOptions, OutputOptions
from any2ds.errors import redacted, words_of
from any2ds.fetch import UrlFetcher
from any2ds.fetch.limits import process_limit, watchdog_limit
from any2ds.layout import Layout
from any2ds.media import recognize
from any2ds.metadata import HASHES, OUTCOME_FIELDS, without_credentials
from any2ds.protocols import Fetcher
from any2ds.shard import WORTH_A_FLUSH, OpenShard
from any2ds.storage import OutputFolder, staging
from any2ds.types import (
    DUPLICATE,
    SUCCESS,
    Event,
    Failure,
    Fetched,
    Payload,
    Progress,
    RobotsCost,
    Row,
    Sample,
    ShardError,
    ShardJob,
    ShardReport,
)
from any2ds.watchdog import LOOK_SECONDS, Watch

log = logging.getLogger(__name__)

_WINDOWS_FILES = 8192  # handles are not limited there; this bounds open shards
_PROGRESS_SECONDS = 0.5  # between two events of this kind
# Rows without an outcome that one process may look at ahead: as many as fast hosts deliver while a slow one times out.
_ROWS_AHEAD = 200_000
_MOST_OPEN_SHARDS = 512
_ROWS_AT_ONCE = 64  # rows that the feeder's thread takes from the list in one go
_MOST_UNPUBLISHED = 4  # complete shards that may wait for the disk or the upload
_LAST_PUBLISH = 0.5  # seconds that a shard may still take to be published when the run is broken off
_FAREWELL = 5.0  # seconds that a fetcher may take to close
_HOPELESS = "not tried: the processes that made its shard were stuck"


class ShardWorker:
    """The `protocols.Worker` of a run; carries nothing but its options, so that it can be sent anywhere."""

    def __init__(
        self,
        options: OutputOptions,
        fetch: FetchOptions,
        new_fetcher: Callable[[FetchOptions, Buffer], Fetcher] = UrlFetcher,
    ) -> None:
        self._options = options
        self._fetch = fetch
        self._new_fetcher = new_fetcher
        self._shards: _Shards | None = None  # while it works
        self.patience = process_limit(fetch)

    @property
    def waiting(self) -> bool:
        return self._shards is not None and self._shards.writing

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        files = _raise_file_limit()
        fetch = self._fetch
        transfers = min(fetch.most_transfers, _sockets(files))
        if transfers < fetch.most_transfers and fetch.thread_count != "auto":
            log.warning("%d transfers in flight, because only %d files may be open", transfers, files)
        pa.array([])  # its first call imports pandas, if that is installed: 0.2 s, better now than between two turns
        with ExitStack() as stack:
            output = OutputFolder(self._options.output_folder)
            folder = stack.enter_context(staging(output))
            publisher = ThreadPoolExecutor(1, thread_name_prefix="any2ds-publisher")
            buffers = stack.enter_context(ExitStack())  # closed after the shards, which hold bodies
            shards = stack.enter_context(closing(_Shards(self._options, output, folder, publisher, files // 4)))
            self._shards = shards
            stack.callback(setattr, self, "_shards", None)
            rows = _Rows(shards.open(jobs))
            describe = Describe(self._options)
            try:
                while not rows.ended:
                    # That of a fetcher that was given up stays: copies of a row may still be made from it.
                    buffer = buffers.enter_context(closing(Buffer(fetch.max_buffered_bytes, transfers)))
                    yield from self._fetch_with(self._new_fetcher(fetch, buffer), buffer, rows, shards, describe)
                yield from shards.events(wait=True)
            except Exception as error:
                yield from shards.lose(error)
                raise

    def _fetch_with(
        self, fetcher: Fetcher, buffer: Buffer, rows: _Rows, shards: _Shards, describe: Describe
    ) -> Iterator[Event]:
        """Fetch until there are no more rows, or `fetcher` is stuck; every row that it took has an outcome then."""
        began = rows.handed, shards.taken
        watch = Watch(watchdog_limit(self._fetch), time.monotonic())
        next_look = 0.0
        shards.buffer = buffer
        batches = fetcher.fetch(rows.lend())
        try:
            for batch in batches:
                shards.robots += fetcher.robots_cost()
                for fetched in batch:
                    shards.take(describe(fetched))
                yield from shards.events()
                if shards.hopeless:
                    yield from self._fail(shards.hopeless_rows(), _HOPELESS, shards, describe)
                if (now := time.monotonic()) >= next_look:
                    next_look = now + LOOK_SECONDS
                    signs = shards.taken + buffer.received + fetcher.signs
                    # If no shard is open it can only wait for the list, and is seen to pull.
                    if watch.look(now, signs, shards.any_open or not rows.pulling):
                        break
        finally:
            rows.take_back()
            _let_go(batches, fetcher)
        yield from self._fail(shards.hopeless_rows(), _HOPELESS, shards, describe)
        yield from shards.events()
        if rows.error is not None:
            raise rows.error
        if rows.ended and not shards.any_open:
            return
        words = f"nothing has moved for {watch.silent:.0f} s" if watch.silent else "the fetcher ended without it"
        lost = shards.lost_rows()
        log.warning("fetching is stuck: %d rows are recorded as failed (watchdog)", sum(map(len, lost)))
        yield from self._fail(lost, words, shards, describe)
        if (rows.handed, shards.taken) == began:  # it did nothing at all, and nor would the next one
            untouched = shards.lost_rows(fetched=False)
            if not untouched:
                raise RuntimeError("the fetcher takes no rows")
            yield from self._fail(untouched, words, shards, describe)

    def _fail(self, lost: list[list[Row]], words: str, shards: _Shards, describe: Describe) -> Iterator[Event]:
        """Record rows, which come by shard, as given up."""
        failure = Failure("fetch", "watchdog", words)
        for rows in lost:
            for row in rows:
                shards.take(describe(Fetched(row, failure, 0)))
            yield from shards.events()
        while shards.unwritten:
            yield from shards.events()


def _let_go(batches: Iterator[Sequence[Fetched]], fetcher: Fetcher) -> None:
    """Close a fetcher, without waiting long for one that hangs in it: it is left behind then."""

    def close() -> None:
        try:
            if hasattr(batches, "close"):
                batches.close()
            fetcher.close()
        except Exception:
            log.warning("%s could not be closed", type(fetcher).__name__, exc_info=True)

    closer = threading.Thread(target=close, name="any2ds-fetcher-close", daemon=True)
    closer.start()
    closer.join(_FAREWELL)
    if closer.is_alive():
        log.warning("%s has not closed within %.0f s, and is left behind", type(fetcher).__name__, _FAREWELL)


_ShardRows = tuple[OpenShard, list[Row]]


class _Rows:
    """The rows of all jobs, for one fetcher after the other.

    A fetcher's feeder thread may be anywhere when the fetcher is given up, most of all waiting for the next job. What
    it gets then is kept for the next fetcher: each row has surely been handed out or surely not.
    """

    def __init__(self, rows: Iterator[_ShardRows]) -> None:
        self._rows = rows
        self._kept: deque[_ShardRows | Exception | None] = deque()  # came for a fetcher that was given up
        self._lent: deque[Row] | None = None  # what the present fetcher is taking from, one row at a time
        self._shard: OpenShard | None = None  # theirs
        self._pulling = threading.Lock()  # held while a thread waits for rows
        self._handing = threading.Lock()  # never held for long
        self.handed = 0  # rows
        self.ended = False  # and the fetcher knows
        self.error: Exception | None = None  # that ended them

    @property
    def pulling(self) -> bool:
        """Whether a fetcher waits for rows."""
        return self._pulling.locked()

    def lend(self) -> Iterator[Row]:
        """The rows from here on, until they are taken back."""
        lent: deque[Row] = deque()
        self._lent = lent
        return self._take(lent)

    def take_back(self) -> None:
        """From now on no row is handed out."""
        with self._handing:
            lent, self._lent = self._lent, None
            left: deque[Row] = deque()
            while lent:
                with contextlib.suppress(IndexError):  # the fetcher takes from the other end
                    left.appendleft(lent.pop())
            if left and self._shard is not None:
                self._shard.handed = left[0].position
                self.handed -= len(left)
                self._kept.appendleft((self._shard, list(left)))

    def _take(self, lent: deque[Row]) -> Iterator[Row]:
        while self._refill(lent):
            while lent:
                try:
                    row = lent.popleft()
                except IndexError:  # it was taken back at this very moment
                    break
                yield row

    def _refill(self, lent: deque[Row]) -> bool:
        with self._pulling:
            if self._lent is not lent:
                return False
            found = self._kept.popleft() if self._kept else self._next()
            with self._handing:
                if self._lent is not lent:
                    self._kept.append(found)
                    return False
                if found is None:
                    self.ended = True
                    return False
                if isinstance(found, Exception):
                    self.ended, self.error = True, found
                    raise found
                self._shard, rows = found
                if not self._shard.closed:
                    self._shard.handed = rows[-1].position + 1
                    self.handed += len(rows)
                    lent.extend(rows)
                return True

    def _next(self) -> _ShardRows | Exception | None:
        try:
            return next(self._rows, None)
        except Exception as error:
            return error


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
            "error_message": redacted(failure.detail) or None,
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
        publisher: ThreadPoolExecutor,
        most_open: int,
    ) -> None:
        self.buffer: Buffer  # of the present fetcher
        self.taken = 0  # outcomes
        self.writing = False  # the worker's thread is at the mercy of the disk
        self.hopeless: deque[OpenShard] = deque()  # from the feeder's thread: not to be fetched
        self._layout = Layout(options.number_sample_per_shard, options.oom_shard_count)
        self._hashes = hash_columns(options)
        self._fetch_once = options.dedupe == "shard"
        self._writer = registry.load("writers", options.output_format)
        self._output, self._folder, self._publisher = output, folder, publisher
        self._open: dict[int, OpenShard] = {}
        self._publishing: list[tuple[OpenShard, Future[ShardReport]]] = []
        self._errors: list[ShardError] = []
        self.unwritten: deque[OpenShard] = deque()  # those that can go on without another outcome
        # From the feeder's thread:
        self._unreadable: deque[tuple[int, Exception]] = deque()
        self._with_duplicates: deque[OpenShard] = deque()  # nobody else says so if all its rows are duplicates
        ahead = max(4, min(most_open, _MOST_OPEN_SHARDS, _ROWS_AHEAD // options.number_sample_per_shard))
        self._room = threading.Semaphore(ahead)
        self._closed = False
        self._outcomes: Counter[str] = Counter()  # since the last Progress
        self._bytes = 0
        self.robots = RobotsCost()  # since the last shard was complete
        self._told = time.monotonic()

    @property
    def any_open(self) -> bool:
        return bool(self._open)

    def open(self, jobs: Iterable[ShardJob]) -> Iterator[_ShardRows]:
        """The rows of all jobs, some at a time; a shard is opened when its first row is asked for."""
        for job in jobs:
            self._room.acquire()
            if self._closed:
                return
            try:
                shard = OpenShard(
                    job, self._layout, self._hashes, self._writer, self._folder, self.buffer, self._fetch_once
                )
                self._open[job.shard_id] = shard
                if shard.duplicates:
                    self._with_duplicates.append(shard)
                if job.hopeless:
                    self.hopeless.append(shard)
                    continue
                rows = shard.rows()
                while not shard.closed and (some := list(islice(rows, _ROWS_AT_ONCE))):
                    yield shard, some
            except Exception as error:  # rows that cannot be read concern this shard alone
                self._unreadable.append((job.shard_id, error))

    def _give_up(self, shard_id: int, error: Exception) -> None:
        if shard := self._open.pop(shard_id, None):
            shard.discard()
        self._room.release()
        self._errors.append(_shard_error(shard_id, error))

    def take(self, sample: Sample) -> None:
        shard_id = sample.row.shard_id
        self.taken += 1
        shard = self._open.get(shard_id)
        rows = shard.rows_with(sample) if shard else 1
        self._outcomes[sample.failure.code if sample.failure else SUCCESS] += rows
        self._bytes += sample.body.size * rows if sample.body else 0
        if shard is None:  # given up before this row came back
            if sample.body is not None:
                sample.body.release()
            return
        self.writing = True
        try:
            if not shard.take(sample):
                self.unwritten.append(shard)
        except Exception as error:  # this shard is lost, the others are not
            self._give_up(shard_id, error)
            return
        finally:
            self.writing = False
        self._settle(shard)

    def _go_on(self) -> None:
        """Write more of the shards of which much was waiting."""
        for _ in range(len(self.unwritten)):
            shard = self.unwritten.popleft()
            if self._open.get(shard.job.shard_id) is not shard:  # given up meanwhile
                continue
            self.writing = True
            try:
                if not shard.go_on():
                    self.unwritten.append(shard)
            except Exception as error:  # as in `take`
                self._give_up(shard.job.shard_id, error)
                continue
            finally:
                self.writing = False
            self._settle(shard)

    def _settle(self, shard: OpenShard) -> None:
        """After something was written."""
        if shard.held and self.buffer.used > self.buffer.half:
            self._relieve()
        self._publish_if_complete(shard)

    def _publish_if_complete(self, shard: OpenShard) -> None:
        shard_id = shard.job.shard_id
        if shard.complete and self._open.get(shard_id) is shard:
            del self._open[shard_id]
            shard.settle()
            shard.robots, self.robots = self.robots, RobotsCost()
            self._publishing.append((shard, self._publisher.submit(shard.publish, self._output)))

    def hopeless_rows(self) -> list[list[Row]]:
        """The rows, by shard, of the hopeless shards that have come since the last call."""
        found = []
        while self.hopeless:
            found.append(self.hopeless.popleft().rows_without_outcome())
        return found

    def lost_rows(self, fetched: bool = True) -> list[list[Row]]:
        """The rows, by shard, that a fetcher has taken and said nothing of; without `fetched`, the others as well."""
        shards = list(self._open.values())
        found = [shard.rows_without_outcome(shard.handed if fetched else None) for shard in shards]
        return [rows for rows in found if rows]

    def lose(self, error: Exception) -> Iterator[Event]:
        """Publish what is complete, and report the rest as lost by `error`."""
        for shard_id in list(self._open):
            self._give_up(shard_id, error)
        yield from self.events(wait=True)

    def _relieve(self) -> None:
        """Make the writer that holds the most let go of it; the formats that write at once hold nothing."""
        fullest = max(list(self._open.values()), key=lambda shard: shard.held, default=None)
        if fullest is not None and fullest.held >= WORTH_A_FLUSH:
            try:
                fullest.flush()
            except Exception as error:
                self._give_up(fullest.job.shard_id, error)

    def events(self, wait: bool = False) -> Iterator[Event]:
        """What happened since the last call. With `wait`, until all shards are published.

        Whenever it waits, for a disk or an upload, there is Progress all the same: the process is alive.
        """
        self._go_on()
        while self._with_duplicates:
            shard = self._with_duplicates.popleft()
            self._outcomes[DUPLICATE] += shard.duplicates
            self._publish_if_complete(shard)
        if time.monotonic() - self._told >= _PROGRESS_SECONDS or wait:
            yield self._progress()
        while self._unreadable:
            self._give_up(*self._unreadable.popleft())
        while self._publishing:
            shard, future = self._publishing[0]
            if not future.done():
                if not (wait or len(self._publishing) > _MOST_UNPUBLISHED):
                    break
                wait_for([future], _PROGRESS_SECONDS)
                yield self._progress()
                continue
            self._publishing.pop(0)
            self._room.release()
            try:
                yield future.result()
            except Exception as error:
                shard.discard()
                yield _shard_error(shard.job.shard_id, error)
        yield from self._errors
        self._errors.clear()

    def _progress(self) -> Progress:
        progress = Progress(dict(self._outcomes), self._bytes)
        self._outcomes.clear()
        self._bytes = 0
        self._told = time.monotonic()
        return progress

    def close(self) -> None:
        """Give up whatever is not published."""
        self._closed = True
        self._room.release()
        self._publisher.shutdown(wait=False, cancel_futures=True)
        # One may be at it, and should not make files in a folder that is being removed.
        wait_for([future for _, future in self._publishing if not future.cancelled()], _LAST_PUBLISH)
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
