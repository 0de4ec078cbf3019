"""Reads the options of a dataset from its run file, and adds the versions of the libraries of later runs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import replace

from any2ds.config.media import MEDIA_GROUPS, MediaOptions
from any2ds.config.options import OutputOptions, parse_groups
from any2ds.core.errors import OutputError, UsageError, error_text
from any2ds.core.layout import RUN_FILE
from any2ds.core.manifest import Manifest, StepRecord, with_versions
from any2ds.core.members import Members
from any2ds.storage.folders import OutputFolder, similar_beside

log = logging.getLogger(__name__)


def options_of(output: OutputFolder) -> tuple[OutputOptions, MediaOptions]:
    """The options with which the dataset was made. Raises OutputError if it does not say."""
    try:
        content = output.read(RUN_FILE)
        names = () if content is not None else output.names()
    except NotADirectoryError:
        raise OutputError(f"{output.url!r} is a file, not the folder of a dataset") from None
    except OSError as error:
        raise OutputError(f"{output.url!r}: its {RUN_FILE} cannot be read: {error_text(error)}") from error
    if content is None:
        raise OutputError(
            f"{output.url!r} has no {RUN_FILE}: not an any2ds dataset"
            if names
            else f"{output.url!r} is empty, or there is no such folder{similar_beside(output.url)}"
        )
    try:
        manifest = Manifest.parse(content)
        groups = (OutputOptions, *MEDIA_GROUPS)
        known = {field.name for group in groups for field in dataclasses.fields(group)}
        given = {name: value for name, value in manifest.options.items() if name in known}
        options, *media = parse_groups({**given, "output_folder": output.url}, groups)
    except (ValueError, TypeError, UsageError) as error:
        raise OutputError(f"{output.url!r}: its {RUN_FILE} cannot be read: {error}") from error
    return options, replace(MediaOptions(*media), given=manifest.asked, members=Members.of(manifest.options))


def signature_of(output: OutputFolder) -> str:
    """The signature of the user who made the dataset with code of their own; "" if there is none."""
    return Manifest.parse(output.read(RUN_FILE) or b"").signature


def record_versions(output: OutputFolder, now: Sequence[StepRecord]) -> None:
    """Add the versions of the libraries of this run to the run's file, with a warning if they differ from before."""
    manifest = Manifest.parse(output.read(RUN_FILE) or b"")
    steps, changes = with_versions(manifest.steps, now)
    if changes:
        warn_of_versions(output.url, changes)
        output.write(RUN_FILE, replace(manifest, steps=steps).to_json())


def warn_of_versions(url: str, changes: Sequence[str]) -> None:
    """Files of several versions of a library may differ in detail."""
    log.warning("%s was made with other versions of libraries (%s): new files may differ", url, "; ".join(changes))
