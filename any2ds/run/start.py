"""The start of a run on the command line: its first worker process begins while the run itself is still being loaded.

What is loaded here is little, because the process that is started waits for it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from any2ds.config.media import MEDIA_GROUPS, MediaOptions
from any2ds.config.options import InputOptions, OutputOptions, ParsedOptions, RunOptions
from any2ds.config.parsers import list_format, split_format
from any2ds.config.watch import WatchOptions
from any2ds.core import plain_arrow, plugins
from any2ds.core.processes.signals import is_own_process
from any2ds.core.terminal.children import ChildOutput, listen_ahead, stop_listening
from any2ds.distributors._child import end_waiting
from any2ds.distributors._child import start_ahead as start_process
from any2ds.distributors._process import PLAIN

_OF_EVERY_WORKER = (
    "any2ds.worker.open_shards",
    "any2ds.worker.steps",
    "any2ds.worker.describe",
    "any2ds.fetch.fetcher",
    "any2ds.fetch.engines.curl",
)


@contextmanager
def started_ahead(options: ParsedOptions) -> Iterator[None]:
    """Around a run that has the process for itself: load pyarrow, and start a worker if it is to be on this machine."""
    if is_own_process():
        _start(options)
    try:
        yield
    finally:
        end_waiting()
        stop_listening()


def _start(options: ParsedOptions) -> None:
    running, watch = options.group(RunOptions), options.group(WatchOptions)
    if running.distributor != "multiprocessing":
        return
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    output: ChildOutput | None = None
    if not running.quiet and (watch.log_format == "json" or _is_terminal()):
        with contextlib.suppress(OSError):
            output = listen_ahead()
    made = next((group for group in options.groups if isinstance(group, OutputOptions)), None)
    shared = ["any2ds.worker.worker"]  # the run needs it as well, and almost all that it loads
    if made is not None and plugins.is_built_in("writers", made.output_format):
        shared.append(f"any2ds.writers.formats.{made.output_format}")
    is_plain = made is not None and _is_plain(options, made)
    with contextlib.suppress(OSError, ImportError):  # the run tries it again, and reports it
        # A copy of this process has its modules, where another process loads them again. Other people's parts may load
        # libraries that cannot be copied.
        can_fork = is_plain and _can_fork()
        if can_fork:
            plain_arrow.load()
            for module in shared:
                importlib.import_module(module)
            can_fork = _can_fork()
        if can_fork:
            start_process(_OF_EVERY_WORKER, fork=True)
        else:
            start_process([*([PLAIN] if is_plain else []), *shared, *_OF_EVERY_WORKER])
    if output is not None:
        output.start()
    if is_plain:
        plain_arrow.load()


def _can_fork() -> bool:
    """Whether this process has one thread, those of libraries included, and so no lock that a copy would find held."""
    if sys.platform == "linux" and hasattr(os, "fork"):
        with contextlib.suppress(OSError):
            return len(os.listdir("/proc/self/task")) == 1
    return False


def _is_plain(options: ParsedOptions, made: OutputOptions) -> bool:
    """Whether nothing is to run but our own code, on the core install."""
    given = options.group(InputOptions)
    url_list = str(given.url_list)
    media = [group for group in options.groups if type(group) in MEDIA_GROUPS]
    format = split_format(given.input_format)[0] or ("txt" if url_list == "-" else list_format(url_list)[0])
    return (
        made.preset is None
        and not replace(MediaOptions(*media), given=options.given).asked()
        and plugins.is_built_in("readers", format or "")
        and plugins.is_built_in("writers", made.output_format)
        and not options.group(WatchOptions).chosen
    )


def _is_terminal() -> bool:
    with contextlib.suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False
