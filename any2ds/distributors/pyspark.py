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
from any2ds.core.errors import UsageError, error_text
from any2ds.core.processes import quieting
from any2ds.core.processes.resources import cores
from any2ds.distributors._engine import EngineDistributor, ThreadBatch
from any2ds.distributors._task import Task, perform

log = logging.getLogger(__name__)

_FAILURES = 4  # that Spark allows a task on this machine, as it does on clusters
_UNSET = "local[*]"  # the master where nothing is configured
_SETTLED = 3.0  # seconds without a further executor, after which those that are there are all
_LATE = 60.0  # seconds after which the first is not waited for any more: the cluster may be busy for hours
_CONNECT = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}  # variables that say that there is no JVM of ours
_LOOK = 0.1  # seconds between two looks
_STANDALONE = "spark://"
_ANSWERS_WITHIN = 10.0  # seconds that a master has to take a connection
_RAISED = 'Exception in thread "main" '  # before what ended a Spark that was starting
_JAVA = "Spark needs a Java, 17 or later, in PATH or JAVA_HOME: apt-get install openjdk-17-jre-headless"
_BARE = (
    "the Python of the executors has no any2ds: send yours along (spark.archives), or have PYSPARK_PYTHON name one that"
    " has; examples/distributed_any2ds_tutorial.md shows how"
)
_LOST = re.compile(r"most recent failure: Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor \S+\): ")


class PysparkDistributor(EngineDistributor):
    """`processes_count` is the number of tasks at a time; where it is not given, as many as there are slots."""

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
        wanted = self._options.processes_count
        if (context := SparkContext._active_spark_context) is not None:
            with _this_python(context):
                spark = _Spark(context, wanted)
                self._await_executors(spark)
                yield spark
            return
        spark = _Spark(_new_context(wanted), wanted)
        try:
            self._await_executors(spark)
            yield spark
        finally:
            with _without_py4j_log():
                spark.context.stop()

    def _await_executors(self, spark: _Spark) -> None:
        """They come one after the other, and shards are shared out among those that are there."""
        begun = changed = time.monotonic()
        present = 0
        while not (spark.grows or self._is_stopping()):
            now = time.monotonic()
            if (found := spark.present) != present:
                present, changed = found, now
            if spark.is_local or (present and now - changed > _SETTLED) or now - begun > _LATE:
                break
            self._news.wait(_LOOK)


@contextmanager
def _this_python(context: SparkContext) -> Iterator[None]:
    """On this machine workers have the Python that is running, where nothing is configured; Spark takes PATH's."""
    before = context.pythonExec
    if str(context.master).startswith("local") and before == "python3":
        context.pythonExec = sys.executable
    try:
        yield
    finally:
        context.pythonExec = before


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


@contextmanager
def _without_py4j_log() -> Iterator[None]:
    """Around the end of a JVM that somebody may be waiting for: py4j logs that as an error of the whole program."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.module not in ("java_gateway", "clientserver")

    loggers = [logging.root, *map(logging.getLogger, ("py4j.java_gateway", "py4j.clientserver"))]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


def _start_java(output: IO[bytes]) -> None:
    """Have a JVM. On the command line, where the terminal is ours, all that it logs goes into `output`."""
    quiet = quieting.stderr() is not None
    try:
        if SparkContext._gateway is None:
            launch: Any = java_gateway.launch_gateway
            to: Any = {"stdout": output, "stderr": output} if quiet else None
            SparkContext._ensure_initialized(gateway=launch(popen_kwargs=to))
    except (PySparkException, OSError) as error:
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
        reported = next((line for line in lines if line.startswith(_RAISED)), "")
        if reported and "UnsupportedClassVersionError" not in reported:
            raise UsageError(f"Spark does not start: {_message_of(reported.removeprefix(_RAISED))}") from error
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


class _Spark:
    patience = 0.0  # its scheduler notices lost machines
    end_timeout = 15.0

    def __init__(self, context: SparkContext, wanted: int | None) -> None:
        self.context, self._wanted = context, wanted
        self.most = wanted or math.inf
        self.master = str(context.master)
        self.is_local = self.master.startswith("local")
        conf = context.getConf()
        self.grows = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._known = 0  # slots when last known
        self._bound = 0  # slots that it may grow to; 0 if that is not known
        if self.grows and (most := conf.get("spark.dynamicAllocation.maxExecutors")):
            each = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
            self._bound = int(most) * max(1, each)
        if self.grows and not (wanted or self._bound):
            log.warning("how many executors there may be is not known: processes_count says how many tasks to have")

    @property
    def slots(self) -> int:
        return self._wanted or max(1, self._bound, self.present)

    @property
    def present(self) -> int:
        """Tasks that the executors which are there can run at a time; 0 if there is none yet."""
        try:
            spark: Any = self.context._jsc.sc()
            self._known = int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
        except Exception as error:  # it is none of Spark's documented interfaces; or the session has been stopped
            log.debug("the number of slots is unknown: %s", error_text(error))
            with contextlib.suppress(Exception):
                self._known = int(self.context.defaultParallelism)
        return self._known

    @property
    def machines(self) -> int:
        """Machines with executors, and that of the driver; as many as there may be tasks where executors come later."""
        if self.is_local:
            return 1
        try:
            executors: Any = self.context._jsc.sc().statusTracker().getExecutorInfos()
            present = len({executor.host() for executor in executors})
        except Exception as error:  # the session has been stopped
            log.debug("the number of machines is unknown: %s", error_text(error))
            return self.slots
        return max(present, self.slots) if self.grows else present

    def begin(self, tasks: Sequence[Task]) -> _Job:
        return _Job(self.context, tasks)


class _Job(ThreadBatch):
    def __init__(self, context: SparkContext, tasks: Sequence[Task]) -> None:
        self._context, self._tasks = context, tasks
        self._group = f"any2ds-{uuid.uuid4().hex}"
        super().__init__("any2ds-spark", InheritableThread)  # which also ends the thread that goes with it in the JVM

    def cancel(self) -> None:
        try:
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)  # it may be just beginning
        except Exception as error:  # the session has ended, and its jobs with it
            log.debug("not cancelled: %s", error_text(error))

    def _run(self) -> None:
        try:
            first, last = self._tasks[0].number, self._tasks[-1].number
            self._context.setJobGroup(self._group, f"any2ds: tasks {first} to {last}", interruptOnCancel=True)
            given = self._context.parallelize(self._tasks, len(self._tasks))
            self._tasks = ()  # Spark has them
            given.foreachPartition(perform)
        except Exception as error:
            self._message = _message(error)
            if "stopped SparkContext" in self._message:
                self._message = f"the session with {self._context.master} has ended: the master may be out of reach"


def _message(error: Exception) -> str:
    """What it was, out of the traces of two languages."""
    cause: Any = getattr(error, "java_exception", None)
    return _message_of(error_text(error) if cause is None else str(cause.getMessage()))


def _message_of(output: str) -> str:
    _, raised, trace = output.rpartition("Traceback (most recent call last):")
    if raised:
        lines = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
        message = re.sub(r"^any2ds\.[\w.]+: ", "", lines[0]) if lines else output
        return f"{message}: {_BARE}" if "No module named 'any2ds'" in message else message
    where = _LOST.search(output)
    message = output[where.end() if where else 0 :].strip().partition("\n")[0].partition(" Consider setting")[0]
    message = re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", message)
    return f"{message} (on {where[1]})" if where else message


PART = PysparkDistributor
