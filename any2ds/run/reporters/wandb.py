"""Reports to Weights & Biases: metrics over time, tables, options, samples. All runs on a dataset are one run there.

Members that make a dataset together are a group there, in which each continues its own run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import error_text, redacted
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.dataset.pictures import Picture
from any2ds.run.reporters._contract import PeriodicReporter, RunInfo
from any2ds.run.reporters._figures import Rows, live_metrics
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_SETTINGS: Mapping[str, Any] = {
    "silent": True,
    "console": "off",
    "reinit": "create_new",  # a run that the caller's program has there goes on
    # The command line, a diff of whatever repository is at hand, and sources in it may hold secrets.
    "x_disable_meta": True,
    "disable_git": True,
    "disable_code": True,
    "x_stats_track_process_tree": True,
}
_INIT_TIMEOUT = 30.0  # seconds for its server to answer; a short run is not to be over before we know
_CANCEL_TIMEOUT = 0.5  # seconds that `cancel` may take
_MOST_OUTCOMES = 100  # rows of the status table
_SAMPLE_COLUMNS = ("key", "picture", "caption", "seen", "url", "type", "bytes")
_PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})  # that wandb shows
_TABLES_EVERY = 300.0  # seconds between two of these tables, each of which is a file of its own there
_STEPS_RESERVED = 1000  # in the file before they are used, so that none is used twice
_SAVE_EVERY = 60.0  # seconds

Tables = Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]]
"""Columns and rows, by name."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What `.any2ds/wandb`, or that of a member, in the output folder says of the runs so far."""

    id: str  # of the run there
    step: int = 0  # the next one that is unused
    seconds: float = 0.0  # that the runs took
    rows: Rows = field(default_factory=Rows)  # of downloads
    outcomes: Mapping[str, int] = field(default_factory=dict)  # of these rows

    @classmethod
    def of(cls, output: OutputFolder, name: str) -> Saved:
        """That of the file called `name`, or of a new run there."""
        content = output.read(name)
        if content is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                found = orjson.loads(content)
                rows = Rows(**{name: int(count) for name, count in found["rows"].items()})
                outcomes = {str(code): int(count) for code, count in found["outcomes"].items()}
                return cls(str(found["id"]), int(found["step"]), float(found["seconds"]), rows, outcomes)
            log.warning("%s cannot be read: a new run begins at Weights & Biases", name)
        return cls(uuid.uuid4().hex[:12])

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


class Wandb(PeriodicReporter):
    """Its thread may hang in the library: then `cancel` releases the helper process of that."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch.log_interval)
        self._watch, self._info = watch, run
        self._prefix = "retry" if run.command == "retry" else "total"
        self._file = layout.wandb_file(run.member)
        self._saved = Saved.of(run.output, self._file)
        self._step = self._reserved = self._saved.step
        self._rows = self._saved.rows if self._prefix == "total" else Rows()
        self._outcomes = Counter(self._saved.outcomes if self._prefix == "total" else {})  # of finished shards
        self._tables_at = self._saved_at = time.monotonic()
        self._was_stopped = False
        self._run: Any = None  # wandb's; None if it is disabled
        self._wandb: Any = None
        self._is_shared = False  # the caller's program has a run of its own there

    def on_start(self, finished_shards: int) -> None:
        """Raises ConnectionError if wandb cannot even record offline."""
        with _silent():
            self._wandb = importlib.import_module("wandb")
            self._is_shared = self._wandb.run is not None
            try:
                self._run, problem = self._init(), ""
            except Exception as error:  # no login, no network, or whatever wandb may raise
                problem = error_text(error)
                self._teardown()  # until then the id counts as in use
                try:
                    self._run = self._init(mode="offline")
                except Exception as second:
                    raise ConnectionError(error_text(second)) from error
        if self._run.disabled:
            self._run = None
            return
        folder = os.path.dirname(self._run.dir)
        if problem:
            text = "wandb is offline (%s); it records in %s, and `wandb sync` uploads that"
            log.warning(text, problem, folder)
        elif self._run.settings.mode == "offline":
            log.info("wandb records in %s, and `wandb sync` uploads that", folder)
        else:
            log.info("the run is at %s", self._run.url)
        for prefix in ("total", "retry", "live"):
            self._run.define_metric(f"{prefix}/*", step_metric="seconds")
        self._step = max(self._step, int(self._run.step))
        self._save(self._step + _STEPS_RESERVED)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardReport):
            self._rows += event
            self._outcomes.update(event.status_dict)
            metrics = (Rows() + event).as_img2dataset(event.duration)
            self._log({f"worker/{name}": value for name, value in metrics.items()})

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._was_stopped = True

    def on_finish(self, total: RunReport) -> None:
        has_samples = not self._was_stopped and self._watch.wandb_samples
        self._record({**self._tables(), **(self._samples() if has_samples else {})})
        self._save(self._step)
        if self._run is not None:
            self._run.finish(exit_code=int(self._was_stopped or bool(total.failed_shards)))
        self._teardown()

    def cancel(self) -> None:
        # In a thread: it begins with removing wandb's exit handler, which would wait for a server that hangs.
        thread = threading.Thread(target=self._teardown, name="any2ds-wandb-cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_TIMEOUT)

    def _teardown(self) -> None:
        """End wandb's helper process, unless a run of the caller's program needs it."""
        if self._wandb is not None and not self._is_shared:
            with contextlib.suppress(SystemExit):
                self._wandb.teardown()

    def _init(self, **more: Any) -> Any:
        """Raises as wandb does."""
        watch, output, member = self._watch, self._info.output, self._info.member
        name = watch.wandb_run_name or os.environ.get("WANDB_NAME")
        dataset = redacted(output.url).rstrip("/").rsplit("/", 1)[-1] or None
        if name is None and self._saved.step == 0:  # a run that is continued keeps its name
            name = " ".join(filter(None, (dataset, member.replace("-", " ")))) or None
        wanted = {**_SETTINGS, "init_timeout": float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_TIMEOUT)}
        known = self._wandb.Settings.model_fields  # of this version
        folder = os.environ.get("WANDB_DIR") or _default_folder(output)
        if folder:
            with contextlib.suppress(OSError):  # wandb takes the temporary folder instead
                os.makedirs(folder, exist_ok=True)
        return self._wandb.init(
            project=watch.wandb_project,
            entity=watch.wandb_entity,
            name=name,
            id=self._saved.id,
            resume="allow",
            job_type=self._info.command,
            group=(os.environ.get("WANDB_RUN_GROUP") or dataset) if member else None,
            config={**self._info.options, "any2ds": __version__},
            dir=folder,
            settings=self._wandb.Settings(**{name: value for name, value in wanted.items() if name in known}),
            **more,
        )

    @property
    def _latest(self) -> Snapshot:
        return self.now or Snapshot()

    def _metrics(self) -> dict[str, float]:
        seconds = self._saved.seconds if self._prefix == "total" else 0.0
        totals = self._rows.as_img2dataset(seconds + self._latest.seconds)
        return {
            **{f"live/{name}": value for name, value in live_metrics(self._latest).items()},
            **{f"{self._prefix}/{name}": value for name, value in totals.items()},
        }

    def _tables(self) -> Tables:
        name = "status" if self._prefix == "total" else "retry_status"
        outcomes = Counter(self._latest.outcomes)
        outcomes.update(self._saved.outcomes if self._prefix == "total" else {})
        rows = max(1, outcomes.total())
        status = [(code, count / rows, count) for code, count in outcomes.most_common(_MOST_OUTCOMES) if count > 0]
        hosts = [(host.name, host.waiting, host.in_flight, host.limit, host.why) for host in self._latest.hosts]
        host_columns = ("host", "rows waiting", "in flight", "limit", "why")
        return {
            name: (("status", "frequency", "count"), status),
            **({"hosts": (host_columns, hosts)} if hosts else {}),
        }

    def _samples(self) -> Tables:
        """A picture of each, or the text that stands for it."""
        rows = []
        for sample in self._info.samples(self._watch.wandb_samples):
            picture = sample.view.picture
            shown = picture if picture is not None and picture.mime_type in _PICTURES else None
            text = " ".join(filter(None, (sample.view.text, sample.view.facts)))
            rows.append((sample.key, shown, sample.caption, text, sample.url, sample.mime_type, sample.size))
        return {"samples": (_SAMPLE_COLUMNS, rows)} if rows else {}

    def record(self, now: Snapshot) -> None:
        is_due = time.monotonic() - self._tables_at >= _TABLES_EVERY
        self._record(self._tables() if is_due else {})

    def _record(self, tables: Tables) -> None:
        if tables:
            self._tables_at = time.monotonic()
        self._log(self._metrics(), tables)
        if time.monotonic() - self._saved_at >= _SAVE_EVERY:
            self._save(self._step + _STEPS_RESERVED)

    def _log(self, metrics: Mapping[str, float], tables: Tables | None = None) -> None:
        if self._run is None or not (metrics or tables):
            return
        seconds = self._saved.seconds + self._latest.seconds
        with tempfile.TemporaryDirectory(prefix="any2ds-wandb-") as folder:
            written = {
                name: self._wandb.Table(
                    columns=list(columns), data=[[self._image(value, folder) for value in row] for row in rows]
                )
                for name, (columns, rows) in (tables or {}).items()
            }
            self._run.log({"seconds": seconds, **metrics, **written}, step=self._step)
        self._step += 1
        if self._step >= self._reserved:
            self._save(self._step + _STEPS_RESERVED)

    def _image(self, value: Any, folder: str) -> Any:
        """wandb's of a picture; any other value as it is."""
        if not isinstance(value, Picture):
            return value
        number, path = tempfile.mkstemp(f".{value.mime_type.removeprefix('image/')}", dir=folder)
        with os.fdopen(number, "wb") as file:
            file.write(value.data)
        try:
            return self._wandb.Image(path)  # a file is stored as it is
        except Exception:  # without Pillow, or a picture that it cannot read
            return None

    def _save(self, next_step: int) -> None:
        """A killed run leaves some steps unused, and none that is used again."""
        self._reserved, self._saved_at = next_step, time.monotonic()
        if self._run is None:
            return
        total = self._prefix == "total"
        saved = Saved(
            self._saved.id,
            next_step,
            self._saved.seconds + self._latest.seconds,
            self._rows if total else self._saved.rows,
            dict(self._outcomes if total else self._saved.outcomes),
        )
        try:
            self._info.output.write(self._file, saved.to_json())
        except Exception:  # file systems raise whatever they like
            log.debug("%s cannot be written", self._file, exc_info=True)


@contextmanager
def _silent() -> Iterator[None]:
    """wandb reads this when it begins: it neither prints nor asks for a login on the terminal."""
    before = os.environ.get("WANDB_SILENT")
    os.environ["WANDB_SILENT"] = "true"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("WANDB_SILENT", None)
        else:
            os.environ["WANDB_SILENT"] = before


def _default_folder(output: OutputFolder) -> str | None:
    """For wandb's files if its own choice, the working folder, is inside the dataset: the one beside that."""
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
