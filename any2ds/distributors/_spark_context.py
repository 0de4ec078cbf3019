"""Spark as a guest in our process: its JVM, its context, and what it says when it fails."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from typing import Any

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException

from any2ds.core.errors import UsageError, error_text
from any2ds.core.processes import quieting
from any2ds.core.processes.resources import cores
from any2ds.distributors._cluster import unreachable

_FAILURES = 4  # that Spark allows a task on this machine, as it does on clusters
_UNSET = "local[*]"  # the master where nothing is configured
_STANDALONE = re.compile(r"spark://\[?([^,]+?)\]?:(\d+)")  # with one master; others may be several
_RAISED = 'Exception in thread "main" '  # before what ended a Spark that was starting
_JAVA = "Spark needs a Java, 17 or later, in PATH or JAVA_HOME: apt-get install openjdk-17-jre-headless"
_BARE = (
    "the Python of the executors has no any2ds: send yours along (spark.archives), or have PYSPARK_PYTHON name one that"
    " has; examples/distributed_any2ds_tutorial.md shows how"
)


def new_context(slots: int | None) -> SparkContext:
    """A context as spark-defaults.conf, spark-submit and the like have it, and on this machine where they say nothing.

    No SparkSession: that loads all of SQL as well, in seconds of a core.
    """
    handler = signal.getsignal(signal.SIGINT)
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
        raise UsageError(f"cannot create a Spark session: {message_of(error)}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # Spark's own cancels all jobs instead of stopping


def start_java() -> None:
    """Have a JVM. On the command line, where the terminal is ours, all that it logs goes into a file without a name."""
    if SparkContext._gateway is not None:
        return
    with tempfile.TemporaryFile() as output:
        try:
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


def check_master() -> None:
    """Raises UsageError if a single master is configured at which nobody listens."""
    master = str(SparkConf().get("spark.master", _UNSET))
    place = _STANDALONE.fullmatch(master)
    if place is not None and (problem := unreachable(place[1], int(place[2]))):
        message = f"no Spark master can be reached at {master} ({problem})"
        raise UsageError(f"{message}: the URL stands on its page, port 8080")


def message_of(error: Exception) -> str:
    cause: Any = getattr(error, "java_exception", None)
    return _one_line(error_text(error) if cause is None else str(cause.getMessage()))


def _one_line(message: str) -> str:
    """The line that says what has happened, out of the traces of two languages."""
    _, raised, trace = message.rpartition("Traceback (most recent call last):")
    if raised:
        lines = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
        message = re.sub(r"^any2ds\.[\w.]+: ", "", lines[0]) if lines else message
        return f"{message}: {_BARE}" if "No module named 'any2ds'" in message else message
    message = message.rpartition("most recent failure: ")[2].strip().partition("\n")[0]
    return re.sub(r"^(?:[\w$]+\.)+[\w$]+: ", "", message)
