"""Ray as a guest in our process: quiet on the terminal, without its handlers of signals, and sending nothing home."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
from typing import Any
from urllib.parse import urlsplit

from any2ds.core.errors import OptionError, error_text
from any2ds.core.processes.resources import cores
from any2ds.distributors._cluster import unreachable

_INIT_TIMEOUT = 90.0  # seconds that Ray has to connect to a cluster
_BUSY = ("Starting Ray client server failed", "timed out")  # in errors of a machine that is too slow for Ray
_TRIES = 3
_CLIENT_PORT = 10001  # of ray://host
_LONGEST_FOLDER = 36  # characters of the temporary folder, where the path of a socket may have 107 with Ray's 70
_OBJECT_STORE_BYTES = 128 << 20  # of a Ray that is ours: it keeps little but jobs on their way
# As Ray reads it; what somebody has set stays.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Lines on nodes and actors that are lost: written to standard output whatever is asked for, and reported by us.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", r"^(A worker died or was killed|The node with node id)")

import ray as _ray  # noqa: E402

ray: Any = _ray  # what its types leave out is what we use


def connect(address: str) -> None:
    """Raises OptionError if there is no cluster at `address`."""
    problem = _unheard(address)
    if not problem:
        logging.getLogger("ray").setLevel(logging.ERROR)  # it complains about threads
        problems: list[str] = []
        thread = threading.Thread(target=lambda: problems.append(_initialized(address)), daemon=True)
        thread.start()
        thread.join(_INIT_TIMEOUT)  # something else may listen there, for which Ray would wait for ever
        silence = f"what listens there does not answer as Ray does for {_INIT_TIMEOUT:.0f} s"
        problem = silence if thread.is_alive() else "".join(problems)
    if problem:
        raise OptionError(
            f"ray_address={address!r}: no Ray cluster can be reached there ({problem}). `ray status`, on a machine of"
            " the cluster, tells its address (port 6379; from outside ray://host:10001). If it asks for a token, set"
            " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here as well; without ray_address a Ray is started on this machine"
        )


def _unheard(address: str) -> str:
    """Why nobody listens at `address`, or "". Raises OptionError for what is no address."""
    if address == "auto":
        return ""
    parts = urlsplit(address if "://" in address else f"//{address}")
    with contextlib.suppress(ValueError):  # of a port that is no number
        port = parts.port or (_CLIENT_PORT if parts.scheme == "ray" else None)
        if parts.hostname and port:
            return unreachable(parts.hostname, port)
    raise OptionError(f"invalid ray_address={address!r}: expected auto, host:port or ray://host:port")


def _initialized(address: str, tries: int = _TRIES, **how: Any) -> str:
    """Connect to a Ray, or start one, and return why that failed, or "". What a busy machine has not done within the
    30 s that Ray gives it is tried again."""
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **how)
        return ""
    except (Exception, SystemExit) as error:
        problem = error_text(error)
        ray.shutdown()
    is_slow = tries > 1 and any(sign in problem for sign in _BUSY)
    return _initialized(address, tries - 1, **how) if is_slow else problem


def start(wanted: int | None) -> None:
    """Have a Ray on this machine. Raises OptionError if it does not start."""
    how: dict[str, Any] = {"num_cpus": wanted or cores(), "include_dashboard": False}
    if sys.platform == "linux":  # it takes 127.0.0.1 for another name of an address that others can reach
        how["_node_ip_address"] = "127.0.0.2"
        if "RAY_TMPDIR" not in os.environ and len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            how["_temp_dir"] = "/tmp/ray"
    handler = signal.getsignal(signal.SIGTERM)
    # In this thread, with which the processes that it starts end.
    problem = _initialized("local", object_store_memory=_OBJECT_STORE_BYTES, **how)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray's own ends the process at once, where a run ends in good order
    if problem:
        raise OptionError(f"no Ray can be started on this machine ({problem})")
