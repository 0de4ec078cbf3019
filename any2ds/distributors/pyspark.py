"""Runs workers as the tasks of a Spark cluster: that of the active session, or a local one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from pyspark import InheritableThread, SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, UsageError, error_text
from any2ds.core.processes import quieting
from any2ds.core.processes.resources import cores
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._task import Task, perform

log = logging.getLogger(__name__)

_FAILURES = 4  # that Spark allows a task on this machine, as it does on clusters
_UNSET = "local[*]"  # the master where nothing is configured
_SETTLED = 3.0  # seconds without a further executor, after which those that are there are all
_LATE = 60.0  # seconds after which the first is not waited for any more: the cluster may be busy for hours
_LOOK = 0.1  # seconds between two looks
_CONNECT = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}  # variables that say that there is no JVM of ours
_STANDALONE = re.compile(r"spark://\[?([^,]+?)\]?:(\d+)")  # with one master; others may be several
_ANSWERS_WITHIN = 10.0  # seconds that a master has to take a connection
_RAISED = 'Exception in thread "main" '  # before what ended a Spark that was starting
_JAVA = "Spark needs a Java, 17 or later, in PATH or JAVA_HOME: apt-get install openjdk-17-jre-headless"
_BARE = (
    "the Python of the executors has no any2ds: send yours along (spark.archives), or have PYSPARK_PYTHON name one that"
    " has; examples/distributed_any2ds_tutorial.md shows how"
)


class PysparkDistributor(ClusterDistributor):
    """`processes_count` is the number of tasks at a time; where it is not given, as many as there are slots."""

    thread_class = InheritableThread  # which also ends the thread that goes with it in the JVM

    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        self._context: SparkContext | None = None  # while connected
        self._groups: list[str] = []  # of jobs

    @staticmethod
    def check(options: RunOptions) -> None:
        """Raises UsageError if there can be no session here."""
        if not _CONNECT.isdisjoint(os.environ):
            raise UsageError(
                "distributor=pyspark needs a session of its own JVM: Spark Connect cannot run what it runs"
            )
        with tempfile.TemporaryFile() as output:
            _start_java(output)
        if SparkContext._active_spark_context is None:
            _check_master(SparkConf().get("spark.master", _UNSET) or "")

    @contextmanager
    def connected(self) -> Iterator[None]:
        active = SparkContext._active_spark_context
        context = self._context = active or _new_context(self.options.processes_count)
        python = context.pythonExec
        if self._is_local and python == "python3":  # PATH's, where nothing is configured
            context.pythonExec = sys.executable
        try:
            self._wait_for_executors()
            yield
        finally:
            context.pythonExec = python
            if active is None:
                for name in ("py4j.java_gateway", "py4j.clientserver"):  # which log the end of their JVM as an error
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
                context.stop()

    def _wait_for_executors(self) -> None:
        """Executors come one after the other, and shards are shared out among those that are there."""
        if self._grows and not (self.options.processes_count or self._most):
            log.warning("how many executors there may be is not known: processes_count says how many tasks to have")
        begun = changed = time.monotonic()
        slots = 0
        while not (self._is_local or self._grows or self.is_stopping()):
            now = time.monotonic()
            if (present := self._present) != slots:
                slots, changed = present, now
            if (slots and now - changed > _SETTLED) or now - begun > _LATE:
                break
            self.stop_asked.wait(_LOOK)

    @property
    def _is_local(self) -> bool:
        return self._context is not None and str(self._context.master).startswith("local")

    @property
    def _grows(self) -> bool:
        conf = self._context and self._context.getConf()
        return conf is not None and conf.get("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def _most(self) -> int:
        """Tasks at a time on all executors that the cluster may have, where it grows; 0 if that is not known."""
        conf: Any = self._context and self._context.getConf()
        if not self._grows:
            return 0
        tasks = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
        return int(conf.get("spark.dynamicAllocation.maxExecutors", "0")) * max(1, tasks)

    @property
    def _scala(self) -> Any:
        return self._context._jsc.sc()  # type: ignore[union-attr]

    @property
    def _present(self) -> int:
        """Tasks that the executors which are there can run at a time; 0 if there is none yet."""
        with contextlib.suppress(Exception):  # it is none of Spark's documented interfaces; or the session has ended
            profiles = self._scala.resourceProfileManager()
            return int(self._scala.maxNumConcurrentTasks(profiles.defaultResourceProfile()))
        return 0

    @property
    def slots(self) -> int:
        return self.options.processes_count or max(1, self._most, self._present)

    @property
    def machines(self) -> int:
        """Machines with executors, and that of the driver; as many as there may be tasks where executors come later."""
        if self._is_local:
            return 1
        with contextlib.suppress(Exception):  # the session has ended
            present = len({executor.host() for executor in self._scala.statusTracker().getExecutorInfos()})
            return max(present, self.slots) if self._grows else present
        return self.slots

    def run(self, tasks: Sequence[Task]) -> None:
        group = f"any2ds-{uuid.uuid4().hex}"
        self._groups.append(group)
        context: Any = self._context
        try:
            context.setJobGroup(group, f"any2ds: tasks {tasks[0].number} to {tasks[-1].number}", interruptOnCancel=True)
            context.parallelize(tasks, len(tasks)).foreachPartition(perform)
        except Exception as error:
            raise RunError(_message(error)) from error

    def cancel(self) -> None:
        for group in self._groups:
            with contextlib.suppress(Exception):  # the session has ended, and its jobs with it
                self._scala.cancelJobGroupAndFutureJobs(group)  # one may be just beginning


def _new_context(slots: int | None) -> SparkContext:
    """What spark-defaults.conf, spark-submit and the like say, and this machine where they say nothing.

    It is no SparkSession: that loads all of SQL as well, in seconds of a core.
    """
    handler = signal.getsignal(signal.SIGINT)
    with tempfile.TemporaryFile() as output:
        _start_java(output)
        conf = SparkConf()
        if conf.get("spark.master", _UNSET) == _UNSET:
            conf.set("spark.master", f"local[{slots or cores()},{_FAILURES}]")
        usual = {"spark.app.name": "any2ds", "spark.ui.showConsoleProgress": "false"}
        if str(conf.get("spark.master")).startswith("local"):
            usual |= {"spark.ui.enabled": "false"}
            usual |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), "127.0.0.1")
        for name, value in usual.items():
            conf.setIfMissing(name, value)
        os.environ.setdefault("PYSPARK_PYTHON", str(conf.get("spark.pyspark.python", sys.executable)))
        try:
            return SparkContext(conf=conf)
        except Exception as error:
            raise UsageError(f"cannot create a Spark session: {_message(error)}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)  # Spark's own cancels all jobs instead of stopping


def _start_java(output: IO[bytes]) -> None:
    """Have a JVM. On the command line, where the terminal is ours, all that it logs goes into `output`."""
    try:
        if SparkContext._gateway is None:
            launch: Any = java_gateway.launch_gateway
            to: Any = {"stdout": output, "stderr": output} if quieting.stderr() is not None else None
            SparkContext._ensure_initialized(gateway=launch(popen_kwargs=to))
    except (PySparkException, OSError) as error:
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        reported = next((line for line in lines if line.startswith(_RAISED)), "")
        if reported and "UnsupportedClassVersionError" not in reported:
            raise UsageError(f"Spark does not start: {_one_line(reported.removeprefix(_RAISED))}") from error
        raise UsageError(f"{_JAVA} ({lines[-1] if lines else error_text(error)})") from error


def _check_master(master: str) -> None:
    """Raises UsageError if nobody listens at a single master: Spark takes two minutes to find out."""
    if (place := _STANDALONE.fullmatch(master)) is None:
        return
    try:
        socket.create_connection((place[1], int(place[2])), _ANSWERS_WITHIN).close()
    except (OSError, ValueError) as error:
        message = f"no Spark master can be reached at {master} ({error_text(error)})"
        raise UsageError(f"{message}: the URL stands on its page, port 8080") from error


def _message(error: Exception) -> str:
    cause: Any = getattr(error, "java_exception", None)
    return _one_line(error_text(error) if cause is None else str(cause.getMessage()))


def _one_line(message: str) -> str:
    """What has happened, out of the traces of two languages."""
    _, raised, trace = message.rpartition("Traceback (most recent call last):")
    if raised:
        lines = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
        message = re.sub(r"^any2ds\.[\w.]+: ", "", lines[0]) if lines else message
        return f"{message}: {_BARE}" if "No module named 'any2ds'" in message else message
    message = message.rpartition("most recent failure: ")[2].strip().partition("\n")[0]
    return re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", message)


PART = PysparkDistributor
