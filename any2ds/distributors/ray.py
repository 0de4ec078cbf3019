"""Runs workers as the tasks of a Ray cluster: the one at `ray_address`, or one on this machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, error_text
from any2ds.core.version import __version__
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._ray_connection import connect, ray, start
from any2ds.distributors._task import OtherVersion, Task, perform_pickled

_LOCAL = ("", "local")  # addresses for which a Ray is started on this machine
_RETRIES = 3  # of a task whose machine was lost, by Ray itself


class RayDistributor(ClusterDistributor):
    """`processes_count` is the number of tasks at a time; where it is not given, as many as there are CPUs."""

    def __init__(self, options: RunOptions) -> None:
        """Raises OptionError if there is no cluster at `ray_address`."""
        super().__init__(options)
        self._is_ours = False  # the connection to the cluster, and on this machine the cluster itself
        self._refs: list[Any] = []
        address = options.ray_address or os.environ.get("RAY_ADDRESS") or ""
        if not (address in _LOCAL or ray.is_initialized()):
            connect(address)
            self._is_ours = True

    @contextmanager
    def connected(self) -> Iterator[None]:
        if not ray.is_initialized():
            self._is_ours = True
            start(self.options.processes_count)
        yield

    def close(self) -> None:
        if self._is_ours:
            ray.shutdown()

    @property
    def slots(self) -> int:
        with contextlib.suppress(ConnectionError, ray.exceptions.RayError):
            return self.options.processes_count or int(ray.cluster_resources().get("CPU", 0)) or 1
        return 1

    @property
    def machines(self) -> int:
        with contextlib.suppress(ConnectionError, ray.exceptions.RayError):
            return sum(bool(node["Alive"]) for node in ray.nodes())
        return self.slots

    def run(self, tasks: Sequence[Task]) -> None:
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(perform_pickled)
        try:
            pickled = [pickle.dumps(task, pickle.HIGHEST_PROTOCOL) for task in tasks]
            refs = [remote.remote(__version__, sys.path, os.getcwd(), task) for task in pickled]
            self._refs += refs
            ray.wait(refs, num_returns=len(refs))  # `get` would raise before the others have ended
            ray.get(refs)
        except ModuleNotFoundError as error:  # with ray:// the head imports it
            raise RunError(_missing("the head of the cluster")) from error
        except ConnectionError as error:
            raise RunError(f"the Ray cluster cannot be reached: {error_text(error)}") from error
        except ray.exceptions.RayError as error:
            raise RunError(_message(error)) from error

    def cancel(self) -> None:
        for ref in self._refs:
            with contextlib.suppress(ConnectionError, ValueError, ray.exceptions.RayError):
                ray.cancel(ref, force=True)


def _message(error: Exception) -> str:
    text = str(error)
    if "No module named 'any2ds" in text or isinstance(getattr(error, "cause", None), OtherVersion):
        where = re.search(r"\bip=([^,)\s]+)", text)
        return _missing(where[1] if where else "a node of the cluster")
    if isinstance(error, ray.exceptions.RayTaskError):
        return error_text(Exception(text.strip().splitlines()[-1]))
    return error_text(error)


def _missing(where: str) -> str:
    wanted = f"any2ds=={__version__}"
    return (
        f"any2ds, of the version that this machine has ({__version__}), is not installed on {where}: install it there,"
        f" or have Ray do it, by ray.init(runtime_env={{'pip': ['{wanted}']}}) before download(), or by"
        f' ray job submit --runtime-env-json=\'{{"pip": ["{wanted}"]}}\' -- any2ds ...'
    )


PART = RayDistributor
