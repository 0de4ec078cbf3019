"""Serves the figures of a run to Prometheus while it lasts: `http://<this machine>:<port>/metrics`.

They are those of `progress` (see docs/watching.md), each a gauge with the prefix `any2ds_`.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from any2ds.config.options import WatchOptions
from any2ds.core.errors import OptionError
from any2ds.run.reporters._contract import Facts, Reporter, RunInfo
from any2ds.run.reporters._facts import numbers

log = logging.getLogger(__name__)


class Metrics(Collector):
    """The newest progress."""

    def __init__(self) -> None:
        self.now: Facts = {"outcomes": {}}

    def collect(self) -> Iterable[Metric]:
        facts = self.now
        for name, value in numbers(facts).items():
            yield GaugeMetricFamily(f"any2ds_{name}", f"{name} of this run", value=value)
        outcomes = GaugeMetricFamily("any2ds_outcomes", "rows that are done, by outcome", labels=["code"])
        for code, rows in facts["outcomes"].items():
            outcomes.add_metric([code], rows)
        yield outcomes


class Prometheus(Reporter):
    @staticmethod
    def check(watch: WatchOptions) -> None:
        """Raises OptionError if the port is taken."""
        with socket.socket() as probe:
            if sys.platform != "win32":  # as the server does; there it would take a port that is in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", watch.metrics_port or 0))
            except OSError as error:
                problem = f"metrics_port={watch.metrics_port} is not available: {error.strerror}"
                raise OptionError(f"{problem}; choose another one, or 0 for any that is free") from error

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._metrics = Metrics()
        registry = CollectorRegistry()  # not the process's, which belongs to whoever called us
        registry.register(self._metrics)
        self._server, _ = start_http_server(watch.metrics_port or 0, registry=registry)
        level = logging.INFO if watch.metrics_port else logging.WARNING  # a port that nobody chose
        place = f"http://{socket.gethostname()}:{self._server.server_port}/metrics"
        log.log(level, "metrics for Prometheus are at %s", place)

    def report(self, event: str, facts: Facts) -> None:
        if event == "progress":
            self._metrics.now = facts
        elif event == "finish":
            self.cancel()

    def cancel(self) -> None:
        self._server.shutdown()
        self._server.server_close()


PART = Prometheus
