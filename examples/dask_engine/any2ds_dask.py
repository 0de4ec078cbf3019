"""any2ds on a Dask cluster: `--distributor=dask`, once this package is installed beside any2ds.

The cluster is the one whose scheduler DASK_SCHEDULER_ADDRESS names (tcp://10.0.0.1:8786), else one on this machine that
ends with the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dask.distributed import Client, LocalCluster

from any2ds.core.errors import UsageError
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._task import Task


class DaskDistributor(ClusterDistributor):
    @contextmanager
    def connected(self) -> Iterator[None]:
        address = os.environ.get("DASK_SCHEDULER_ADDRESS")
        try:
            cluster = address or LocalCluster(
                n_workers=self.options.processes_count, threads_per_worker=1, dashboard_address=None
            )
            client = Client(cluster, set_as_default=False)
        except OSError as error:
            raise UsageError(f"no Dask cluster can be reached at {address}: {error}") from error
        self._futures: list[object] = []
        with client:
            self._client = client
            try:
                yield
            finally:
                if not isinstance(cluster, str):
                    cluster.close()

    @property
    def slots(self) -> int:
        return self.options.processes_count or sum(self._client.nthreads().values()) or 1

    @property
    def machines(self) -> int:
        return len({address.rpartition(":")[0] for address in self._client.nthreads()}) or 1

    def run(self, tasks: Sequence[Task]) -> None:
        # `pure=False`: a task is called again although one like it was called before.
        futures = [self._client.submit(Task.__call__, task, pure=False, retries=3) for task in tasks]
        self._futures += futures
        errors = [future.exception() for future in futures]  # which waits; `gather` would raise before all have ended
        if error := next(filter(None, errors), None):
            raise error

    def cancel(self) -> None:
        self._client.cancel(self._futures)
