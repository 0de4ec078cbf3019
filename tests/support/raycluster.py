"""A Ray cluster of several nodes on loopback, of which nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from any2ds.testing.processes import children, wait_until, wait_until_gone

# Ray takes 127.0.0.1 for another word for the machine's address; these are loopback as well, and stay.
HEAD, SECOND = "127.0.0.2", "127.0.0.3"

_RESTARTS = 3
_OBJECT_STORE_BYTES = 80 << 20  # about the least
_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # A node that is gone is missed after one to two seconds instead of twenty.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "2",
}


class RayCluster:
    """Nodes of one CPU each, in processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # where Ray keeps its files; the paths of sockets in it are not to be long
        self._port, self._client_port = _free_port(), _free_port()
        # Ray reads them when it is imported: a process that has them then can be a driver, and its children can.
        token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
        self.environment: Mapping[str, str] = {**_SETTINGS, "RAY_AUTH_TOKEN": token}
        """What a driver needs in its own."""
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"{HEAD}:{self._port}"

    @property
    def client_address(self) -> str:
        """For drivers that are on no node."""
        return f"ray://{HEAD}:{self._client_port}"

    def start(self, ip: str, before: Sequence[str] = ()) -> None:
        """Begin to start a node, the first of them HEAD. `before` is a command that is to run what starts it."""
        if ip == HEAD:
            own = ["--head", f"--port={self._port}", f"--temp-dir={self._folder}", "--include-dashboard=false"]
            own += [f"--ray-client-server-port={self._client_port}", "--disable-usage-stats"]
        else:
            own = [f"--address={self.address}"]
        common = [f"--node-ip-address={ip}", "--num-cpus=1", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        common += ["--include-log-monitor=false", "--block"]
        command = [*before, sys.executable, "-m", "ray.scripts.scripts", "start", *own, *common]
        with open(self._folder / f"{ip}.log", "wb") as said:
            self._nodes[ip] = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until all nodes have begun; what a busy machine has not started in the 30 s that Ray allows is started again.
        Raises RuntimeError if a node does not begin."""
        for ip in list(self._nodes):
            wait_until(partial(self._has_begun, ip))
            for _ in range(_RESTARTS):
                if self._nodes[ip].poll() is None:
                    break
                _end_group(self._nodes[ip].pid)
                self.start(ip)
                wait_until(partial(self._has_begun, ip))
            if self._nodes[ip].poll() is not None:
                said = (self._folder / f"{ip}.log").read_text(errors="replace")
                raise RuntimeError(f"the node {ip} has not started: {said}")

    def _has_begun(self, ip: str) -> bool:
        said = (self._folder / f"{ip}.log").read_bytes()
        return b"--block" in said or self._nodes[ip].poll() is not None

    def processes(self, ip: str) -> list[int]:
        """The processes of a node in which tasks are, or may come to be."""
        return [pid for pid in children(self._raylet(ip)) if not _title(pid).endswith("Agent")]

    def workers(self, ip: str) -> list[int]:
        """The processes of any2ds that its tasks have started."""
        return [worker for process in self.processes(ip) for worker in children(process)]

    def kill(self, ip: str) -> None:
        """Without warning: what Ray has there and what it has started, but not what that has started in its turn."""
        raylet = self._raylet(ip)
        node = self._nodes.pop(ip)
        doomed = [node.pid, raylet, *children(raylet)]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()
        _end_group(node.pid)
        wait_until_gone(doomed)

    def close(self) -> None:
        for node in self._nodes.values():
            raylets = _descendants(node.pid)
            _end_group(node.pid)
            for pid in raylets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            node.wait()
            wait_until_gone(raylets)

    def _raylet(self, ip: str) -> int:
        return next(pid for pid in children(self._nodes[ip].pid) if _title(pid).endswith("raylet"))


@contextmanager
def ray_cluster(*nodes: str) -> Iterator[RayCluster]:
    """With these nodes, of which HEAD must be one; they are gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    cluster = RayCluster(folder)
    try:
        for ip in nodes:
            cluster.start(ip)
        cluster.wait()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [further for child in found for further in _descendants(child)]


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _title(pid: int) -> str:
    """The program that it runs, or what it calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode().strip()
    except OSError:
        return ""


def _free_port() -> int:
    """None of those that the system or Ray gives to others before it is used: 10000 to 24000, and from 32768 on."""
    while True:
        port = random.randrange(25000, 32000)
        with socket.socket() as trying, contextlib.suppress(OSError):
            trying.bind(("0.0.0.0", port))
            return port
