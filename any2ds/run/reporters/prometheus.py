"""Serves metrics to Prometheus while the run lasts: `http://<this machine>:<port>/metrics`."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from any2ds.config.options import WatchOptions
from any2ds.core.errors import OptionError
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport
from any2ds.core.version import __version__
from any2ds.run.reporters._contract import Reporter, RunInfo

log = logging.getLogger(__name__)


class Metrics(Collector):
    """The newest snapshot, by Prometheus' conventions: base units, and totals that only grow within a run."""

    def __init__(self, command: str) -> None:
        self.now = Snapshot()
        self._command = command
        self._highest: dict[str, float] = {}

    def collect(self) -> Iterable[Metric]:
        now = self.now
        info = GaugeMetricFamily("any2ds_run_info", "The run that is at work.", labels=["version", "command"])
        info.add_metric([__version__, self._command], 1)
        yield info
        rows = CounterMetricFamily("any2ds_rows", "Rows that are through, by outcome.", labels=["outcome"])
        for outcome, count in now.outcomes.items():
            rows.add_metric([outcome], self._growing(f"rows {outcome}", count))
        yield rows
        shards = CounterMetricFamily("any2ds_shards", "Shards that have ended, by how.", labels=["result"])
        for result, count in (("finished", now.shards_done), ("failed", now.shards_failed)):
            shards.add_metric([result], self._growing(f"shards {result}", count))
        yield shards
        for name, help, total in (
            ("any2ds_stored_bytes", "Bytes of the files of successes.", now.bytes),
            ("any2ds_received_bytes", "Bytes of bodies that have arrived.", now.received),
            ("any2ds_attempts", "Transfers that have ended, however they did.", now.attempts),
        ):
            yield CounterMetricFamily(name, help, value=self._growing(name, total))
        latency = GaugeMetricFamily(
            "any2ds_latency_seconds", "Time that recent successful transfers took.", labels=["quantile"]
        )
        for quantile, value in (("0.5", now.latency_p50), ("0.95", now.latency_p95)):
            if value is not None:
                latency.add_metric([quantile], value)
        yield latency
        gauges: Iterable[tuple[str, str, float | None]] = (
            ("any2ds_run_seconds", "Time since the run began.", now.seconds),
            ("any2ds_in_flight_transfers", "Transfers in flight.", now.in_flight),
            ("any2ds_window_transfers", "Transfers that may be in flight.", now.window),
            ("any2ds_queued_rows", "Rows that wait for their hosts.", now.queued),
            ("any2ds_workers", "Worker processes at work.", now.workers),
            ("any2ds_memory_bytes", "Memory of the run's processes.", now.memory),
            ("any2ds_open_shards", "Shards that workers were given and have not finished.", now.shards_open),
            ("any2ds_done_ratio", "Share of the run that is done, 0 to 1.", now.share),
            ("any2ds_remaining_seconds", "Time that the rest may take.", now.eta),
        )
        for name, help, figure in gauges:
            if figure is not None:
                yield GaugeMetricFamily(name, help, value=figure)

    def _growing(self, name: str, value: float) -> float:
        """Rows of a shard that failed are subtracted; a counter that falls would look like another run."""
        self._highest[name] = max(value, self._highest.get(name, 0.0))
        return self._highest[name]


class Prometheus(Reporter):
    @staticmethod
    def check(watch: WatchOptions) -> None:
        """Raises OptionError if the port is taken."""
        if not watch.metrics_port:
            return
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            if sys.platform != "win32":  # as the server does; there it would take a port that is in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", watch.metrics_port))
            except OSError as error:
                problem = f"metrics_port={watch.metrics_port} is not available: {error.strerror}"
                raise OptionError(f"{problem}; choose another one, or 0 for any that is free") from error

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._metrics = Metrics(run.command)
        registry = CollectorRegistry()  # not the process's, which belongs to whoever called us
        registry.register(self._metrics)
        self._server, self._thread = start_http_server(watch.metrics_port or 0, registry=registry)
        level = logging.INFO if watch.metrics_port else logging.WARNING  # a port that nobody chose
        log.log(level, "metrics for Prometheus are at http://%s:%d/metrics", socket.gethostname(), self.port)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def on_progress(self, now: Snapshot) -> None:
        self._metrics.now = now

    def on_finish(self, total: RunReport) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._server.shutdown()
        self._server.server_close()


PART = Prometheus
