"""Parts that download, retry and build share: checks before anything is created, the distributor, facts of a run."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from any2ds.config import presets
from any2ds.config.options import Config, RunOptions, public
from any2ds.core import plugins
from any2ds.core.errors import OptionError, OutputError
from any2ds.core.processes import quieting
from any2ds.core.processes.signals import is_own_process
from any2ds.core.samples import METADATA, taken_extensions
from any2ds.distributors._contract import Distributor
from any2ds.fetch.routes import check
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporting import check_reporters
from any2ds.storage.folders import OutputFolder
from any2ds.transforms.chain import Pipeline


def check_parts(config: Config) -> None:
    """Set the log level, then check reporters, distributor and fetcher before anything is created.

    Raises UsageError if one of them is not available, or cannot do what the options ask for.
    """
    running = config.run
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    check_reporters(config.watch)
    if running.distributor != "multiprocessing" and is_own_process() and quieting.is_wanted():
        quieting.be_quiet()  # child processes always are; clusters log much
    distributor = plugins.load("distributors", running.distributor)
    if hasattr(distributor, "check"):
        distributor.check(running)
    check(config.fetch)


def check_private(output: OutputFolder, running: RunOptions) -> None:
    """Raises OutputError if worker processes could not see `output`."""
    if output.is_private and running.distributor != "inline":
        raise OutputError(f"{output.url!r} exists in this process only: it needs --distributor=inline")


def check_user_steps(config: Config) -> None:
    """Raises OptionError for a step of the user that cannot be created. On a cluster only its workers can check."""
    if config.files.transform and config.run.is_on_this_machine:
        from any2ds.transforms.steps.user import check_made

        check_made(config.files.transform, config.run.transform_timeout, config.run.distributor == "inline")


def checked_steps(config: Config) -> Pipeline:
    """The steps of a run. Raises OptionError for some that cannot be together, or for files with an extension that
    other files of a sample have, and MissingExtra."""
    pipeline, made = Pipeline(config.media, presets.set_by(config.output.preset)), config.output
    ext, has_captions = made.file_ext.lower(), config.input.caption_col is not None
    if ext in taken_extensions(_has_members(config), has_captions, pipeline.further):
        whose = "metadata" if ext == METADATA else "caption" if has_captions else "text that a step adds"
        raise OptionError(
            f"file_ext={made.file_ext}: with output_format={made.output_format} .{ext} is the extension of the {whose}:"
            " choose another one"
        )
    if config.files.transform and config.run.distributor != "inline":
        from any2ds.transforms.steps.user import check_travels

        check_travels(config.files.transform)
    return pipeline


def refuse_clashes(config: Config, steps: Pipeline, columns: Collection[str]) -> None:
    """Raises OptionError if a step fills one of the `columns` of the list."""
    data_column = config.output.data_column if config.output.output_format == "parquet" else None
    steps.refuse_clashes(columns, _has_members(config), data_column)


def _has_members(config: Config) -> bool:
    return bool(plugins.load("writers", config.output.output_format).has_members)


@contextmanager
def distributing(running: RunOptions) -> Iterator[Distributor]:
    """The distributor that the options ask for."""
    distributor: Distributor = plugins.load("distributors", running.distributor)(running)
    try:
        yield distributor
    finally:
        if hasattr(distributor, "close"):
            distributor.close()


def run_info(
    command: Literal["download", "retry"], output: OutputFolder, config: Config, options: Mapping[str, Any]
) -> RunInfo:
    """Facts about the run that reporters know before it begins; `options` are those of the command."""
    return RunInfo(
        command,
        output,
        public(options),
        config.storage,
        output.identity,
        config.output,
        from_shell=is_own_process(),
        given=config.written,
    )
