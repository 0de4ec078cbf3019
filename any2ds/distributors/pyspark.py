"""Runs workers as the tasks of a Spark cluster: that of the active session, or a local one."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import InheritableThread, SparkConf, SparkContext

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, UsageError
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._spark_context import check_master, message_of, new_context, start_java
from any2ds.distributors._task import Task, perform

log = logging.getLogger(__name__)

_SETTLED = 3.0  # seconds without a further executor, after which the executors that are there are all
_LATE = 60.0  # seconds after which executors are not waited for any more: the cluster may be busy for hours
_CONNECT = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}  # variables that say that there is no JVM of ours


class PysparkDistributor(ClusterDistributor):
    """`processes_count` is the number of tasks at a time; where it is not given, as many as there are slots."""

    thread_class = InheritableThread  # which also ends the thread that goes with it in the JVM

    def __init__(self, options: RunOptions) -> None:
        super().__init__(options)
        self._groups: list[str] = []  # of jobs

    @staticmethod
    def check(options: RunOptions) -> None:
        """Raises UsageError if there can be no session here."""
        if not _CONNECT.isdisjoint(os.environ):
            raise UsageError(
                "distributor=pyspark needs a session of its own JVM: Spark Connect cannot run what it runs"
            )
        start_java()
        if SparkContext._active_spark_context is None:
            check_master()

    @contextmanager
    def connected(self) -> Iterator[None]:
        active = SparkContext._active_spark_context
        context: Any = active or new_context(self.options.processes_count)
        conf, python = context.getConf(), context.pythonExec
        self._context = context
        self._is_local = str(context.master).startswith("local")
        self._grows = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
        self._most_slots = _most_slots(conf) if self._grows else 0
        if self._grows and not (self.options.processes_count or self._most_slots):
            log.warning("how many executors there may be is not known: processes_count says how many tasks to have")
        if self._is_local and python == "python3":  # PATH's, where nothing is configured
            context.pythonExec = sys.executable
        try:
            if not (self._is_local or self._grows):
                self._wait_for_executors()
            yield
        finally:
            context.pythonExec = python
            if active is None:
                for name in ("py4j.java_gateway", "py4j.clientserver"):  # which log the end of their JVM as an error
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
                context.stop()

    def _wait_for_executors(self) -> None:
        """Executors come one after the other, and a sub-job is cut into as many tasks as they can run."""
        until, before, present = time.monotonic() + _LATE, 0, self._present
        while not (before == present > 0 or time.monotonic() > until or self.is_stopping()):
            self.stop_asked.wait(_SETTLED)
            before, present = present, self._present

    @property
    def _present(self) -> int:
        """Tasks that the executors which are there can run at a time; 0 if there is none yet."""
        with contextlib.suppress(Exception):  # it is none of Spark's documented interfaces; or the session has ended
            spark = self._context._jsc.sc()
            return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))
        return 0

    @property
    def slots(self) -> int:
        return self.options.processes_count or max(1, self._most_slots, self._present)

    @property
    def machines(self) -> int:
        """Machines with executors, and that of the driver; as many as there may be tasks where executors come later."""
        if self._is_local:
            return 1
        with contextlib.suppress(Exception):  # the session has ended
            executors = self._context._jsc.sc().statusTracker().getExecutorInfos()
            present = len({executor.host() for executor in executors})
            return max(present, self.slots) if self._grows else present
        return self.slots

    def run(self, tasks: Sequence[Task]) -> None:
        group = f"any2ds-{uuid.uuid4().hex}"
        self._groups.append(group)
        name = f"any2ds: tasks {tasks[0].number} to {tasks[-1].number}"
        try:
            self._context.setJobGroup(group, name, interruptOnCancel=True)
            self._context.parallelize(tasks, len(tasks)).foreachPartition(perform)
        except Exception as error:
            raise RunError(message_of(error)) from error

    def cancel(self) -> None:
        for group in self._groups:
            with contextlib.suppress(Exception):  # the session has ended, and its jobs with it
                self._context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # one may be just beginning


def _most_slots(conf: SparkConf) -> int:
    """Tasks at a time on all executors that dynamic allocation may bring; 0 if that is not known."""
    tasks = int(conf.get("spark.executor.cores", "1") or 1) // int(conf.get("spark.task.cpus", "1") or 1)
    return int(conf.get("spark.dynamicAllocation.maxExecutors", "0") or 0) * max(1, tasks)


PART = PysparkDistributor
