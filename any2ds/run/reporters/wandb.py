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
from pathlib import Path
from typing import Any

import orjson

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import error_text, redacted
from any2ds.core.failures import NO_FAILURES, STEP_CODES, SUCCESS
from any2ds.core.version import __version__
from any2ds.run.reporters._contract import Facts, Reporter, RunInfo
from any2ds.run.reporters._facts import numbers

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


class Wandb(Reporter):
    """Its thread may hang in the library: then `cancel` releases the helper process of that."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._file = layout.wandb_file(run.member)
        state = orjson.loads(run.output.read(self._file) or b"{}")
        self._is_new = not state
        self._id = state.get("id") or uuid.uuid4().hex[:12]  # of the run there
        self._began = state.get("began") or time.time()  # the first run, in Unix seconds
        self._outcomes = Counter[str](state.get("outcomes"))  # code -> rows of finished shards, by their last outcome
        self._now: Facts = {}  # the newest progress
        self._step = -1
        self._wandb: Any = None
        self._there: Any = None  # the run there; None if it is disabled

    def report(self, event: str, facts: Facts) -> None:
        if event == "start":
            self._begin()
        elif event == "progress":
            self._now = facts
            if self.is_due():
                self._record()
        elif event == "shard_finished":
            self._outcomes.update(facts["outcomes"])
            self._outcomes.subtract(facts["replaces"])
            self._log("worker", as_img2dataset(facts["outcomes"], facts["seconds"]))
        elif event == "finish":
            self._record()
            self._end(exit_code=int(bool(facts["shards_failed"] or facts["shards_given_up"])))

    def _begin(self) -> None:
        """Raises what wandb raises if it cannot even record offline."""
        os.environ.setdefault("WANDB_SILENT", "true")  # it reads this when it begins, and would ask for a login
        self._wandb = importlib.import_module("wandb")
        try:
            there, problem = self._init(), ""
        except Exception as error:  # no login, no network, or whatever wandb may raise
            problem = f" ({error_text(error)})"
            self._teardown()  # until then the id counts as in use
            there = self._init(mode="offline")
        if there.disabled:
            return
        self._there = there
        if there.settings.mode == "offline":
            level, folder = logging.WARNING if problem else logging.INFO, os.path.dirname(there.dir)
            log.log(level, "wandb is offline%s; it records in %s, and `wandb sync` uploads that", problem, folder)
        else:
            log.info("the run is at %s", there.url)
        there.define_metric("*", step_metric="seconds")
        self._save()

    def _record(self) -> None:
        self._log("live", numbers(self._now))
        self._log("total", as_img2dataset(self._outcomes, time.time() - self._began))
        self._save()

    def _end(self, exit_code: int) -> None:
        if self._there is not None:
            outcomes = +self._outcomes
            rows = [(code, count / outcomes.total(), count) for code, count in outcomes.most_common()]
            self._log("", {"status": self._wandb.Table(columns=["status", "frequency", "count"], data=rows)})
            self._there.finish(exit_code=exit_code)
        self._teardown()

    def cancel(self) -> None:
        # In a thread: it begins with removing wandb's exit handler, which would wait for a server that hangs.
        thread = threading.Thread(target=self._teardown, name="any2ds-wandb-cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_TIMEOUT)

    def _teardown(self) -> None:
        """End wandb's helper process, unless a run of the caller's program needs it."""
        if self._wandb is not None and self._wandb.run is None:
            with contextlib.suppress(SystemExit):
                self._wandb.teardown()

    def _init(self, **more: Any) -> Any:
        """Raises as wandb does."""
        watch, output = self.watch, self.run.output
        dataset = redacted(output.url).rstrip("/").rsplit("/", 1)[-1] or None
        timeout = float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_TIMEOUT)
        is_inside = output.is_local and Path.cwd().is_relative_to(Path(output.path).resolve())
        return self._wandb.init(
            project=watch.wandb_project,
            name=os.environ.get("WANDB_NAME") or (dataset if self._is_new else None),
            id=self._id,
            resume="allow",
            job_type=self.run.command,
            group=dataset if self.run.member else None,
            config={**self.run.options, "any2ds": __version__},
            dir=os.environ.get("WANDB_DIR") or (Path(output.path).resolve().parent if is_inside else None),
            settings=self._wandb.Settings(**_SETTINGS, init_timeout=timeout),
            **more,
        )

    def _log(self, group: str, metrics: Mapping[str, Any]) -> None:
        """Steps are milliseconds since the first run began, so that none is used twice, whatever clocks do."""
        if self._there is not None and metrics:
            seconds = time.time() - self._began
            self._step = max(self._step + 1, int(seconds * 1000))
            named = {f"{group}/{name}" if group else name: value for name, value in metrics.items()}
            self._there.log({"seconds": seconds, **named}, step=self._step)

    def _save(self) -> None:
        """A run that is killed loses what came after."""
        if self._there is None:
            return
        state = {"id": self._id, "began": self._began, "outcomes": +self._outcomes}
        try:
            self.run.output.write(self._file, orjson.dumps(state))
        except Exception:  # file systems raise whatever they like
            log.debug("%s cannot be written", self._file, exc_info=True)


_spec = importlib.util.find_spec("wandb")
if _spec is None or _spec.origin is None:  # a folder called wandb, which the library leaves behind, is no library
    raise ModuleNotFoundError("No module named 'wandb'", name="wandb")
PART = Wandb
