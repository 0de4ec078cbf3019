"""Runs workers as the tasks of a Spark cluster: that of the active session, or a local one."""

from __future__ import annotations

import contextlib
import logging
import math
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
_STANDALONE = "spark://"
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
            _check_master(SparkConf().get("spark.master", _UNSET))

    @contextmanager
    def engine(self) -> Iterator[_Spark]:
        wanted, context = self._options.processes_count, SparkContext._active_spark_context
        if context is None:
            context = _new_context(wanted)
            try:
                yield self._settled(_Spark(context, wanted))
            finally:
                for name in ("py4j.java_gateway", "py4j.clientserver"):  # which log the end of their JVM as an error
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
                context.stop()
            return
        python = context.pythonExec
        if str(context.master).startswith("local") and python == "python3":  # PATH's, where nothing is configured
            context.pythonExec = sys.executable
        try:
            yield self._settled(_Spark(context, wanted))
        finally:
            context.pythonExec = python

    def _settled(self, spark: _Spark) -> _Spark:
        """Wait for the executors, which come one after the other: shards are shared out among those that are there."""
        begun = changed = time.monotonic()
        slots = 0
        while not (spark.is_local or spark.grows or self._is_stopping()):
            now = time.monotonic()
            if (found := spark.present) != slots:
                slots, changed = found, now
            if (slots and now - changed > _SETTLED) or now - begun > _LATE:
                break
            self._stop_asked.wait(_LOOK)
        return spark


class _Spark:
    """The `Engine` of a session."""

    def __init__(self, context: SparkContext, wanted: int | None) -> None:
        self._context, self._wanted = context, wanted
        self.task_limit = wanted or math.inf
        self.is_local = str(context.master).startswith("local")
        conf = context.getConf()
        self.grows = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._bound = 0  # slots that it may grow to; 0 if that is not known
        if self.grows and (most := conf.get("spark.dynamicAllocation.maxExecutors")):
            tasks = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
            self._bound = int(most) * max(1, tasks)
        if self.grows and not (wanted or self._bound):
            log.warning("how many executors there may be is not known: processes_count says how many tasks to have")
        self._groups: list[str] = []  # of jobs

    @property
    def slots(self) -> int:
        return self._wanted or max(1, self._bound, self.present)

    @property
    def present(self) -> int:
        """Tasks that the executors which are there can run at a time; 0 if there is none yet."""
        with contextlib.suppress(Exception):  # it is none of Spark's documented interfaces; or the session has ended
            spark: Any = self._context._jsc.sc()
            return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
        return 0

    @property
    def machines(self) -> int:
        """Machines with executors, and that of the driver; as many as there may be tasks where executors come later."""
        if self.is_local:
            return 1
        with contextlib.suppress(Exception):  # the session has ended
            executors: Any = self._context._jsc.sc().statusTracker().getExecutorInfos()
            present = len({executor.host() for executor in executors})
            return max(present, self.slots) if self.grows else present
        return self.slots

    def run(self, tasks: Sequence[Task]) -> None:
        group = f"any2ds-{uuid.uuid4().hex}"
        self._groups.append(group)
        try:
            name = f"any2ds: tasks {tasks[0].number} to {tasks[-1].number}"
            self._context.setJobGroup(group, name, interruptOnCancel=True)
            self._context.parallelize(tasks, len(tasks)).foreachPartition(perform)
        except Exception as error:
            raise RunError(_message(error)) from error

    def cancel(self) -> None:
        for group in self._groups:
            with contextlib.suppress(Exception):  # the session has ended, and its jobs with it
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # one may be just beginning


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
        conf.setIfMissing("spark.app.name", "any2ds")
        conf.setIfMissing("spark.ui.showConsoleProgress", "false")
        if str(conf.get("spark.master")).startswith("local"):
            conf.setIfMissing("spark.ui.enabled", "false")
            conf.setIfMissing("spark.driver.host", "127.0.0.1")
            conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")
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


def _check_master(master: str | None) -> None:
    """Raises UsageError if nobody listens there: Spark takes two minutes to find out, and does not say where."""
    if master is None or not master.startswith(_STANDALONE):
        return
    for place in (places := master.removeprefix(_STANDALONE).split(",")):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
            return
        except (OSError, ValueError) as error:
            if place == places[-1]:
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
