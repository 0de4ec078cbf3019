"""Beam's own options, as far as any2ds completes them: names of runners, and a cluster of Dask on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

_SHORT = {
    "daskrunner": "apache_beam.runners.dask.dask_runner.DaskRunner",  # which Beam has no short name for
    # Beam would try to download Prism first, and go on with this one if it cannot.
    "directrunner": "FnApiRunner",
    "switchingdirectrunner": "FnApiRunner",
}
_DASK_ADDRESSES = ("dask_client_address", "dask_scheduler_file")
_clusters: list[Any] = []  # they end with their object


def full_name(runner: str) -> str:
    """The name by which Beam finds a runner that may have been given by a short one."""
    return _SHORT.get(runner.lower(), _SHORT.get(f"{runner.lower()}runner", runner))


def has_flag(flags: Iterable[str], *names: str) -> bool:
    return any(flag.partition("=")[0] in {f"--{name}" for name in names} for flag in flags)


def names_dask_cluster(flags: Iterable[str]) -> bool:
    """Whether they say which cluster of Dask it is."""
    return has_flag(flags, *_DASK_ADDRESSES)


@cache
def dask_cluster_flag(slots: int) -> str:
    """Says that it is one of this machine: one for all pipelines of this process, in threads of it. Dask's own would be
    processes, and another each time."""
    from dask.distributed import LocalCluster

    # Through TCP each task is a copy: tasks that share their objects give to Beam what others have made as well.
    threads: dict[str, Any] = {"n_workers": 1, "threads_per_worker": slots, "processes": False, "protocol": "tcp://"}
    cluster = LocalCluster(**threads, dashboard_address=None)
    _clusters.append(cluster)
    return f"--dask_client_address={cluster.scheduler_address}"
