"""Reports to Weights & Biases: figures over time, tables, options, samples. All runs on a dataset are one there.

Those that make it together are a group there, in which each goes on with its own.

The library is at work in a process of its own, see `_wandbchild.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.metrics import Snapshot
from any2ds.core.processes.child_process import how_it_ended, start
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.run.reporters import _wandbchild as child
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._figures import Rows, live
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_SETTINGS: Mapping[str, Any] = {
    "silent": True,
    "console": "off",
    # A diff of whatever repository is at hand, and sources in it, may hold anything.
    "disable_git": True,
    "disable_code": True,
    "x_stats_track_process_tree": True,
}
_INIT_TIMEOUT = 30.0  # seconds for its server to answer; a short run is not to be over before we know
_MOST_OUTCOMES = 100  # rows of the status table
_OF_SAMPLES = ("key", "picture", "caption", "seen", "url", "type", "bytes")  # columns of their table
_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # that wandb shows
_TABLES_EVERY = 300.0  # seconds between two of these tables, each of which is a file of its own there
_STEPS_AT_ONCE = 1000  # that are set aside in the file before they are used, so that none is used twice
_KEEP_EVERY = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Kept:
    """What `.any2ds/wandb`, or that of a member, in the output folder says of the runs so far."""

    id: str  # of the run there
    step: int = 0  # that nobody has used
    seconds: float = 0.0  # for which they were at work
    rows: Rows = field(default_factory=Rows)  # of downloads
    outcomes: Mapping[str, int] = field(default_factory=dict)  # of these rows

    @classmethod
    def of(cls, output: OutputFolder, name: str) -> Kept:
        """Begins a run there if none is known to the file called `name`."""
        content = output.read(name)
        if content is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                found = orjson.loads(content)
                rows = Rows(**{name: int(count) for name, count in found["rows"].items()})
                outcomes = {str(code): int(count) for code, count in found["outcomes"].items()}
                return cls(str(found["id"]), int(found["step"]), float(found["seconds"]), rows, outcomes)
            log.warning("%s cannot be understood: a new run begins at Weights & Biases", name)
        return cls(uuid.uuid4().hex[:12])

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


class Wandb:
    """A Reporter."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._watch, self._run = watch, run
        self._of = "retry" if run.command == "retry" else "total"
        self._file = layout.wandb_file(run.member)
        self._kept = Kept.of(run.output, self._file)
        self._step = self._reserved = self._kept.step
        self._rows = self._kept.rows if self._of == "total" else Rows()
        self._outcomes = Counter(self._kept.outcomes if self._of == "total" else {})  # of finished shards
        self._now = Snapshot()
        self._logged = self._tabled = self._saved = time.monotonic()
        self._is_disabled = self._was_stopped = self._is_given_up = False
        self._process = _child()

    def on_start(self, finished_shards: int) -> None:
        """Raises ConnectionError if wandb cannot even record offline."""
        begun, trouble = self._begin(), ""
        if begun.failure:  # no login, no network: anew, since what has failed still holds the run's id there
            trouble = begun.failure
            self._process.kill()
            self._ended()
            self._process = _child()
            if self._is_given_up:
                self._process.kill()
            begun = self._begin(mode="offline")
        if begun.failure:
            raise ConnectionError(begun.failure)
        self._is_disabled = begun.mode == "disabled"
        if trouble:
            log.warning(
                "wandb has nobody to report to (%s); it records in %s, and `wandb sync` sends that",
                redacted(trouble),
                begun.folder,
            )
        elif begun.mode == "offline":
            log.info("wandb records in %s, and `wandb sync` sends that", begun.folder)
        elif begun.url:
            log.info("the run is at %s", begun.url)
        self._step = max(self._step, begun.step)
        self._keep(self._step + _STEPS_AT_ONCE)

    def on_progress(self, now: Snapshot) -> None:
        self._now = now
        if time.monotonic() - self._logged >= self._watch.log_interval:
            is_due = time.monotonic() - self._tabled >= _TABLES_EVERY
            self._record(self._figures(), self._tables() if is_due else {})

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardError):
            return
        self._rows += event
        self._outcomes.update(event.status_dict)
        figures = (Rows() + event).as_img2dataset_names_them(event.duration)
        self._log({f"worker/{name}": value for name, value in figures.items()})

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._was_stopped = True

    def on_finish(self, total: RunReport) -> None:
        tables = dict(self._tables())
        if not self._was_stopped and self._watch.wandb_samples:
            tables.update(self._samples())
        self._record(self._figures(), tables)
        self._keep(self._step)
        failed = self._was_stopped or bool(total.failed_shards)
        self._tell(child.Finish(int(failed)))
        self._heard()
        self._process.wait()
        self._close()

    def give_up(self) -> None:
        """From another thread: the library hangs, and so may a thread that waits for it."""
        self._is_given_up = True
        self._process.kill()

    # --- what is said ---

    def _begin(self, **more: Any) -> child.Begun:
        watch, output = self._watch, self._run.output
        name = watch.wandb_run_name or os.environ.get("WANDB_NAME")
        member, dataset = self._run.member, redacted(output.url).rstrip("/").rsplit("/", 1)[-1] or None
        if name is None and self._kept.step == 0:  # one that goes on keeps what it was called
            name = " ".join(filter(None, (dataset, member.replace("-", " ")))) or None
        begin = child.Begin(
            init={
                "project": watch.wandb_project,
                "entity": watch.wandb_entity,
                "name": name,
                "id": self._kept.id,
                "resume": "allow",
                "job_type": self._run.command,
                **({"group": os.environ.get("WANDB_RUN_GROUP") or dataset} if member else {}),
                "config": {**self._run.options, "any2ds": __version__},
                **more,
            },
            settings={
                **_SETTINGS,
                "init_timeout": float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_TIMEOUT),
                "x_stats_pid": os.getpid(),
            },
            default_folder=_beside(output),
        )
        self._tell(sys.path)
        self._tell(begin)
        begun: child.Begun = self._heard()
        return begun

    def _figures(self) -> dict[str, float]:
        seconds = self._kept.seconds if self._of == "total" else 0.0
        of_shards = self._rows.as_img2dataset_names_them(seconds + self._now.seconds)
        return {
            **{f"live/{name}": value for name, value in live(self._now).items()},
            **{f"{self._of}/{name}": value for name, value in of_shards.items()},
        }

    def _tables(self) -> Mapping[str, child.Table]:
        name = "status" if self._of == "total" else "retry_status"
        outcomes = Counter(self._now.outcomes)
        outcomes.update(self._kept.outcomes if self._of == "total" else {})
        rows = max(1, outcomes.total())
        status = [(code, count / rows, count) for code, count in outcomes.most_common(_MOST_OUTCOMES) if count > 0]
        tables = {name: child.Table(("status", "frequency", "count"), status)}
        if self._now.hosts:
            hosts = [(host.name, host.waiting, host.in_flight, host.limit, host.why) for host in self._now.hosts]
            tables["hosts"] = child.Table(("host", "rows waiting", "in flight", "limit", "why"), hosts)
        return tables

    def _samples(self) -> Mapping[str, child.Table]:
        """A picture of each, or the words that there are to see in its place."""
        rows = []
        for shown in self._run.samples(self._watch.wandb_samples):
            picture, ext = shown.view.picture, ""
            if picture is not None and picture.mime_type in _PICTURES:
                ext = picture.mime_type.removeprefix("image/")
            seen = child.Picture(picture.data, ext) if picture is not None and ext else None
            words = " ".join(filter(None, (shown.view.words, shown.view.facts)))
            rows.append((shown.key, seen, shown.caption, words, shown.url, shown.mime_type, shown.size))
        return {"samples": child.Table(_OF_SAMPLES, rows)} if rows else {}

    def _record(self, figures: Mapping[str, float], tables: Mapping[str, child.Table]) -> None:
        self._logged = time.monotonic()
        if tables:
            self._tabled = self._logged
        self._log(figures, tables)
        if self._logged - self._saved >= _KEEP_EVERY:
            self._keep(self._step + _STEPS_AT_ONCE)

    def _log(self, figures: Mapping[str, float], tables: Mapping[str, child.Table] | None = None) -> None:
        if self._is_disabled or not (figures or tables):
            return
        seconds = self._kept.seconds + self._now.seconds
        self._tell(child.Record(self._step, {"seconds": seconds, **figures}, tables or {}))
        self._step += 1
        if self._step >= self._reserved:
            self._keep(self._step + _STEPS_AT_ONCE)

    # --- what is kept ---

    def _keep(self, next_step: int) -> None:
        """A run that is killed leaves steps unused, and never one that was used to the next."""
        self._reserved, self._saved = next_step, time.monotonic()
        if self._is_disabled:
            return
        total = self._of == "total"
        kept = Kept(
            self._kept.id,
            next_step,
            self._kept.seconds + self._now.seconds,
            self._rows if total else self._kept.rows,
            dict(self._outcomes if total else self._kept.outcomes),
        )
        content = kept.to_json()
        try:
            self._run.output.write(self._file, content)
        except Exception:  # every file system has exceptions of its own
            log.debug("%s cannot be written", self._file, exc_info=True)

    # --- the other process ---

    def _tell(self, words: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pickle.dumps(words))
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise self._ended() from error

    def _ended(self) -> ConnectionError:
        code = self._process.wait()
        self._close()
        return ConnectionError(f"its process {how_it_ended(code)}")

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _child() -> subprocess.Popen[bytes]:
    # The helper of a run that somebody else has in this process is not ours to use.
    variables = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return start(child.__name__, stderr=subprocess.DEVNULL, env=variables, **child.ALONE)


def _beside(output: OutputFolder) -> str | None:
    """Where wandb's files are to be if its own choice, the folder at hand, is the dataset's: beside that."""
    if not output.is_local:
        return None
    dataset, here = Path(output.path).resolve(), Path.cwd()
    return str(dataset.parent) if dataset == here or dataset in here.parents else None


def check_installed() -> None:
    """Raises ModuleNotFoundError. A folder called wandb, which the library leaves behind, is no library."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")


check_installed()
PART = Wandb
