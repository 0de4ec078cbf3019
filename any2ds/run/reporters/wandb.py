"""Reports to Weights & Biases: the charts of img2dataset, and live figures. All runs on a dataset are one run there.

Ranks that make a dataset together are a group there, in which each continues its own run.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import threading
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
from any2ds.core.counts import counts
from any2ds.core.errors import error_text, redacted
from any2ds.core.failures import NO_FAILURES, STEP_CODES, SUCCESS
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.run.reporters._contract import PeriodicReporter, RunInfo
from any2ds.run.reporters._facts import progress

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
_SAVE_EVERY = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Saved:
    """What `.any2ds/wandb`, or the file of a rank, says of the runs so far."""

    id: str  # of the run there
    began: float  # the first run, in Unix seconds: a step is a millisecond since then, so that none is used twice
    seconds: float = 0.0  # that the runs took
    outcomes: Mapping[str, int] = field(default_factory=dict)  # code -> rows of finished shards, by their last outcome

    @classmethod
    def of(cls, content: bytes | None) -> Saved:
        """What a file says; a new run there if there is no such file, or if it cannot be read."""
        if content is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                found = orjson.loads(content)
                outcomes = counts(found["outcomes"], "outcomes")
                return cls(str(found["id"]), float(found["began"]), float(found["seconds"]), outcomes)
            log.warning("the file of wandb in the dataset cannot be read: a new run begins at Weights & Biases")
        return cls(uuid.uuid4().hex[:12], time.time())


def as_img2dataset(outcomes: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The metrics on img2dataset's charts: shares of `count`, and rows per second, which it calls images."""
    rows = sum(outcomes.values())
    failed = {code: count for code, count in outcomes.items() if code not in NO_FAILURES}
    in_steps = sum(count for code, count in failed.items() if code in STEP_CODES)
    if rows <= 0:
        return {}
    return {
        "img_per_sec": rows / max(seconds, 1e-3),
        "success": outcomes.get(SUCCESS, 0) / rows,
        "failed_to_download": (sum(failed.values()) - in_steps) / rows,
        "failed_to_resize": in_steps / rows,
        "count": rows,
    }


class Wandb(PeriodicReporter):
    """Its thread may hang in the library: then `cancel` releases the helper process of that."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._file = layout.wandb_file(run.member)
        self._saved = Saved.of(run.output.read(self._file))
        self._outcomes = Counter(self._saved.outcomes)
        self._started = self._saved_at = time.monotonic()
        self._step = -1
        self._wandb: Any = None
        self._there: Any = None  # wandb's; None if it is disabled
        self._is_shared = False  # the caller's program has a run of its own there

    def on_start(self, finished_shards: int) -> None:
        """Raises what wandb raises if it cannot even record offline."""
        os.environ.setdefault("WANDB_SILENT", "true")  # it reads this when it begins, and would ask for a login
        self._wandb = importlib.import_module("wandb")
        self._is_shared = self._wandb.run is not None
        try:
            self._there, problem = self._init(), ""
        except Exception as error:  # no login, no network, or whatever wandb may raise
            problem = f" ({error_text(error)})"
            self._teardown()  # until then the id counts as in use
            self._there = self._init(mode="offline")
        if self._there.disabled:
            self._there = None
            return
        if problem or self._there.settings.mode == "offline":
            level, folder = logging.WARNING if problem else logging.INFO, os.path.dirname(self._there.dir)
            log.log(level, "wandb is offline%s; it records in %s, and `wandb sync` uploads that", problem, folder)
        else:
            log.info("the run is at %s", self._there.url)
        self._there.define_metric("*", step_metric="seconds")
        self._save()

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardReport):
            self._outcomes.update(event.status_dict)
            self._outcomes.subtract(event.replaces)
            metrics = as_img2dataset(event.status_dict, event.duration)
            self._log({f"worker/{name}": value for name, value in metrics.items()})

    def record(self) -> None:
        live = {name: value for name, value in progress(self.now).items() if isinstance(value, (int, float))}
        total = as_img2dataset(self._outcomes, self._seconds)
        prefixed = {"live": live, "total": total}
        self._log({f"{prefix}/{name}": value for prefix, each in prefixed.items() for name, value in each.items()})
        if time.monotonic() - self._saved_at >= _SAVE_EVERY:
            self._save()

    def on_finish(self, total: RunReport) -> None:
        self.record()
        if self._there is not None:
            rows = max(1, self._outcomes.total())
            status = [(code, count / rows, count) for code, count in self._outcomes.most_common() if count > 0]
            self._log({"status": self._wandb.Table(columns=["status", "frequency", "count"], data=status)})
            self._save()
            self._there.finish(exit_code=int(self.was_stopped or bool(total.failed_shards)))
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
        watch, output, member = self.watch, self.run.output, self.run.member
        dataset = redacted(output.url).rstrip("/").rsplit("/", 1)[-1] or None
        is_new = not self._saved.seconds  # a run that is continued keeps its name
        usual_name = " ".join(filter(None, (dataset, member.replace("-", " ")))) if is_new else None
        timeout = float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_TIMEOUT)
        known = self._wandb.Settings.model_fields  # of this version
        wanted = {name: value for name, value in {**_SETTINGS, "init_timeout": timeout}.items() if name in known}
        return self._wandb.init(
            project=watch.wandb_project,
            entity=watch.wandb_entity,
            name=watch.wandb_run_name or os.environ.get("WANDB_NAME") or usual_name,
            id=self._saved.id,
            resume="allow",
            job_type=self.run.command,
            group=(os.environ.get("WANDB_RUN_GROUP") or dataset) if member else None,
            config={**self.run.options, "any2ds": __version__},
            dir=os.environ.get("WANDB_DIR") or self._folder_outside(),
            settings=self._wandb.Settings(**wanted),
            **more,
        )

    def _folder_outside(self) -> str | None:
        """For wandb's files if its own choice, the working folder, is inside the dataset: the one beside that."""
        dataset, here = Path(self.run.output.path).resolve(), Path.cwd()
        is_inside = self.run.output.is_local and (dataset == here or dataset in here.parents)
        return str(dataset.parent) if is_inside else None

    @property
    def _seconds(self) -> float:
        return self._saved.seconds + time.monotonic() - self._started

    def _log(self, metrics: Mapping[str, Any]) -> None:
        if self._there is not None and metrics:
            self._step = max(self._step + 1, int((time.time() - self._saved.began) * 1000))  # clocks are put back
            self._there.log({"seconds": self._seconds, **metrics}, step=self._step)

    def _save(self) -> None:
        """A run that is killed loses what came after, up to a minute."""
        self._saved_at = time.monotonic()
        saved = Saved(self._saved.id, self._saved.began, self._seconds, dict(+self._outcomes))
        try:
            self.run.output.write(self._file, orjson.dumps(asdict(saved), option=orjson.OPT_INDENT_2))
        except Exception:  # file systems raise whatever they like
            log.debug("%s cannot be written", self._file, exc_info=True)


_spec = importlib.util.find_spec("wandb")
if _spec is None or _spec.origin is None:  # a folder called wandb, which the library leaves behind, is no library
    raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
PART = Wandb
