"""A real Spark cluster on loopback, from the pip package alone: a standalone master, and workers of one core each.

    with spark_cluster(folder) as cluster:
        cluster.conf                    # for the driver's session; or SPARK_CONF_DIR=cluster.conf_folder
        cluster.kill(cluster.workers[0])  # and its executor, with -9

Needs pyspark and a Java.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from any2ds.testing.processes import LONG, descendants, is_running, wait_until, wait_until_gone
from tests.support.servers import free_port, running

_DEPLOY = "org.apache.spark.deploy"
_HOST = "127.0.0.1"
# A JVM of theirs lives for a minute: it had better start quickly, and leave the cores to others.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkCluster:
    """Runs until the end of the `with` block; `workers` are the processes of its machines, dead ones included."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.workers: list[subprocess.Popen[bytes]] = []
        self._port, self._web_port = free_port(), free_port()
        self.url = f"spark://{_HOST}:{self._port}"
        self.conf: Mapping[str, str] = {
            "spark.master": self.url,
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.driver.extraJavaOptions": _QUICK,
            "spark.executor.extraJavaOptions": _QUICK,
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        self.conf_folder = self.write_conf(folder / "conf")
        self._run(["master.Master", "--host", _HOST, "--port", str(self._port), "--webui-port", str(self._web_port)])
        wait_until(self._answers)

    def write_conf(self, folder: Path, further: Mapping[str, str] | None = None) -> Path:
        """A folder for SPARK_CONF_DIR."""
        folder.mkdir(exist_ok=True)
        lines = [f"{name} {value}\n" for name, value in {**self.conf, **(further or {})}.items()]
        (folder / "spark-defaults.conf").write_text("".join(lines))
        return folder

    def add_worker(self) -> None:
        """One more machine; returns when the master knows it."""
        number, known = len(self.workers), self._alive()
        folder = self.folder / f"worker-{number}"
        host = f"127.0.0.{number + 2}"  # Spark never has two attempts at a task on one host
        command = ["worker.Worker", "--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        port = free_port()
        self.workers.append(self._run([*command, "--webui-port", str(port), self.url], port))
        wait_until(lambda: self._alive() > known)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """As if its machine lost power: it, its executor, and the Python below, all with -9."""
        for pid in self._freeze(worker.pid):
            os.kill(pid, signal.SIGKILL)
        worker.wait()
        wait_until(lambda: self._alive() == sum(other.poll() is None for other in self.workers))

    def log(self) -> str:
        """What executors have said, for a test that fails."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("worker-*/*/*/stderr")))

    def wait_until_idle(self) -> None:
        """Until no application has an executor, and nothing of one runs on any machine."""
        wait_until(lambda: not any(descendants(worker.pid) for worker in self.workers))

    def _freeze(self, pid: int) -> list[int]:
        """It and all below, so that none can begin another one meanwhile."""
        found: list[int] = []
        while new := [each for each in (pid, *descendants(pid)) if each not in found]:
            for each in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGSTOP)
            found += new
        return found

    def _answers(self) -> bool:
        """Whether the master does: it listens a moment before it knows what to say."""
        with contextlib.suppress(OSError, ValueError):
            return bool(self._status())
        return False

    def _alive(self) -> int:
        return int(self._status()["aliveworkers"])

    def _status(self) -> Any:
        with urllib.request.urlopen(f"http://{_HOST}:{self._web_port}/json/", timeout=LONG) as answer:
            return json.load(answer)

    def _run(self, arguments: Sequence[str], port: int = 0) -> subprocess.Popen[bytes]:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("a Spark cluster needs pyspark", name="pyspark")
        home = Path(spec.origin).parent
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK,
            "SPARK_CONF_DIR": str(self.folder / "conf-of-daemons"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "PATH": os.environ.get("PATH", os.defpath),
        }
        command = [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{arguments[0]}", *arguments[1:]]
        log = self.folder / f"{arguments[0]}-{port}.log"
        return self._stack.enter_context(running(command, port or self._web_port, log, environment))

    def _end(self) -> None:
        """What is left of executors: those of a worker that was killed by somebody else."""
        below = [pid for worker in self.workers for pid in descendants(worker.pid)]
        for worker in self.workers:
            if worker.poll() is None:
                worker.terminate()
        for pid in filter(is_running, below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until_gone(below)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """One with so many machines of one core, whose files lie in `folder`, which must exist."""
    with ExitStack() as stack:
        cluster = SparkCluster(folder, stack)
        stack.callback(cluster._end)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


def driver_environment(conf_folder: Path) -> dict[str, str]:
    """The environment of a driver in a process of its own that finds the cluster by its spark-defaults.conf."""
    return {**os.environ, "SPARK_CONF_DIR": str(conf_folder), "SPARK_LOCAL_IP": _HOST, "PYSPARK_PYTHON": sys.executable}
