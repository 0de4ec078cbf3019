"""Runs workers as the tasks of a Ray cluster: the one at `ray_address`, or one on this machine.

Ray is a guest in our process: quiet on the terminal, without its handlers of signals, and sending nothing home.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from any2ds.config.options import RunOptions
from any2ds.core.errors import OptionError, RunError, error_text
from any2ds.core.processes.resources import cores
from any2ds.core.version import __version__
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._task import OtherVersion, Task, perform_pickled

_LOCAL = ("", "local")  # addresses for which a Ray is started on this machine
_CONNECT_TIMEOUT = 10.0  # seconds that the port of a cluster has to take a connection
_INIT_TIMEOUT = 60.0  # and Ray to connect to it: something else may listen there
_CLIENT_NOT_STARTED = "Starting Ray client server failed"  # by a busy head in the 30 s that Ray gives it
_CLIENT_PORT = 10001  # of ray://host
_RETRIES = 3  # of a task whose machine was lost, by Ray itself
_LONGEST_FOLDER = 36  # characters of the temporary folder, where the path of a socket may have 107 with Ray's 70
# A Ray that is ours keeps little in its object store: jobs on their way.
_OBJECT_STORE_BYTES = 128 << 20
# As Ray reads it; what somebody has set stays.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Lines on nodes and actors that are lost: written to standard output whatever is asked for, and reported by us.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", r"^(A worker died or was killed|The node with node id)")

import ray as _ray  # noqa: E402

ray: Any = _ray  # what its types leave out is what we use


class RayDistributor(ClusterDistributor):
    """`processes_count` is the number of tasks at a time; where it is not given, as many as there are CPUs."""

    def __init__(self, options: RunOptions) -> None:
        """Raises OptionError if there is no cluster at `ray_address`."""
        super().__init__(options)
        self._is_ours = False  # the connection to the cluster, and on this machine the cluster itself
        self._refs: list[Any] = []
        address = options.ray_address or os.environ.get("RAY_ADDRESS") or ""
        if not (address in _LOCAL or ray.is_initialized()):
            _connect(address)
            self._is_ours = True

    @contextmanager
    def connected(self) -> Iterator[None]:
        if not ray.is_initialized():
            self._is_ours = True
            _start(self.options.processes_count)
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


def _connect(address: str) -> None:
    """Raises OptionError if there is no cluster at `address`."""
    problem = _unheard(address)
    if not problem and _CLIENT_NOT_STARTED in (problem := _initialized(address)):
        ray.shutdown()
        problem = _initialized(address)
    if problem:
        raise OptionError(
            f"ray_address={address!r}: no Ray cluster can be reached there ({problem}). `ray status`, on a machine of"
            " the cluster, tells its address (port 6379; from outside ray://host:10001). If it asks for a token, set"
            " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here as well; without ray_address a Ray is started on this machine"
        )


def _unheard(address: str) -> str:
    """Why nobody listens at `address`, or "": Ray itself takes two minutes to find out, and exits. Raises OptionError
    for what is no address."""
    if address == "auto":
        return ""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or (_CLIENT_PORT if parts.scheme == "ray" else None)
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise OptionError(f"invalid ray_address={address!r}: expected auto, host:port or ray://host:port")
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT).close()
    except OSError as error:
        return error_text(error)
    return ""


def _initialized(address: str) -> str:
    """Connect Ray, and return why that failed, or "". For something else that listens it would wait for ever."""
    problems: list[str] = []

    def connect() -> None:
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (Exception, SystemExit) as error:
            problems.append(error_text(error))

    logging.getLogger("ray").setLevel(logging.ERROR)  # it complains about threads
    thread = threading.Thread(target=connect, name="any2ds-ray-connect", daemon=True)
    thread.start()
    thread.join(_INIT_TIMEOUT)
    if thread.is_alive():
        return f"what listens there does not answer as Ray does for {_INIT_TIMEOUT:.0f} s"
    return "".join(problems)


def _start(wanted: int | None) -> None:
    """Have a Ray on this machine. Raises OptionError if it does not start."""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    how |= {"num_cpus": wanted or cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    if sys.platform == "linux":  # it takes 127.0.0.1 for another name of an address that others can reach
        how["_node_ip_address"] = "127.0.0.2"
        if "RAY_TMPDIR" not in os.environ and len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            how["_temp_dir"] = "/tmp/ray"
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for is_last in (False, True):
            try:
                ray.init("local", **how)  # in this thread, with which the processes that it starts end
                return
            except (Exception, SystemExit) as error:  # a plain one if a busy machine does not start it in 30 s
                ray.shutdown()
                if is_last or "timed out" not in str(error):
                    raise OptionError(f"no Ray can be started on this machine ({error_text(error)})") from error
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's own ends the process at once, where a run ends in good order


PART = RayDistributor
