"""What download, retry and finish share: checks before anything is created, the distributor, what reporters know."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from any2ds.config import presets
from any2ds.config.media import MediaOptions
from any2ds.config.options import Config, FetchOptions, OutputOptions, RunOptions, StorageOptions, public
from any2ds.config.watch import WatchOptions
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

log = logging.getLogger(__name__)


def check_parts(fetch: FetchOptions, running: RunOptions, watch: WatchOptions) -> None:
    """Set the log level, then check reporters, distributor and fetcher before anything is created.

    Raises UsageError if one of them is not available, or cannot do what the options ask for.
    """
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    check_reporters(watch)
    if running.distributor != "multiprocessing" and is_own_process() and quieting.is_wanted():
        quieting.be_quiet()  # child processes always are; clusters log much
    distributor = plugins.load("distributors", running.distributor)
    if hasattr(distributor, "check"):
        distributor.check(running)
    check(fetch)


def check_private(output: OutputFolder, running: RunOptions) -> None:
    """Raises OutputError if worker processes could not see `output`."""
    if output.is_private and running.distributor != "inline":
        raise OutputError(f"{output.url!r} exists in this process only: it needs --distributor=inline")


def check_user_steps(media: MediaOptions, running: RunOptions) -> None:
    """Raises OptionError for a step of the user that cannot be created. On a cluster only its workers can check."""
    if media.files.transform and running.is_on_this_machine:
        from any2ds.transforms.steps.user import check_made

        check_made(media.files.transform, running.transform_timeout, running.distributor == "inline")


def checked_steps(config: Config) -> Pipeline:
    """The steps of a run. Raises OptionError for some that cannot be together, MissingExtra."""
    pipeline = Pipeline(config.media, presets.set_by(config.output.preset))
    _check_file_ext(config, _has_members(config), pipeline)
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


def _check_file_ext(config: Config, has_members: bool, pipeline: Pipeline) -> None:
    """Raises OptionError if all files are to have an extension that other members of a sample have."""
    ext, has_captions = config.output.file_ext, config.input.caption_col is not None
    if ext.lower() not in taken_extensions(has_members, has_captions, pipeline.further):
        return
    whose = "metadata" if ext.lower() == METADATA else "caption" if has_captions else "text that a step adds"
    raise OptionError(
        f"file_ext={ext}: with output_format={config.output.output_format} .{ext.lower()} is the extension of the"
        f" {whose}: choose another one"
    )


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
    command: Literal["download", "retry", "finish"],
    output: OutputFolder,
    options: Mapping[str, Any],
    storage: StorageOptions,
    made: OutputOptions,
    config_file: str | None = None,
) -> RunInfo:
    """What reporters know of the run before it begins; `made` says how the dataset is made."""
    return RunInfo(
        command,
        output,
        {**public(options), **({"config": config_file} if config_file is not None else {})},
        storage,
        output.identity,
        made,
        from_shell=is_own_process(),
    )
