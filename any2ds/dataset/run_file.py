"""Reads and writes how a dataset is made: `.any2ds/run` and `.any2ds/segments/`, files that are written once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import replace

from any2ds.config.media import MEDIA_GROUPS, MediaOptions
from any2ds.config.options import OutputOptions, parse_groups
from any2ds.core import layout
from any2ds.core.errors import ChangedList, OutputError, UsageError, error_text
from any2ds.core.layout import RUN_FILE
from any2ds.core.manifest import Ending, Manifest, Segment
from any2ds.core.members import Members
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import similar_beside

log = logging.getLogger(__name__)


def read_manifest(output: OutputFolder) -> Manifest | None:
    """Manifest of the dataset in a folder; None if there is none. Raises OutputError if it cannot be read."""
    try:
        content = output.read(RUN_FILE)
        return None if content is None else Manifest.parse(content, segment_files(output))
    except NotADirectoryError:
        raise OutputError(f"{output.url!r} is a file, not the folder of a dataset") from None
    except (OSError, ValueError) as error:
        raise OutputError(f"{output.url!r}: its {RUN_FILE} cannot be read: {error_text(error)}") from error


def segment_files(output: OutputFolder) -> dict[str, bytes]:
    """Contents of the files in `.any2ds/segments/`, by name. Raises OSError, or any exception of the file system."""
    names = [name for name in output.names(layout.SEGMENTS_FOLDER) if not name.endswith(layout.SEGMENT_ROWS)]
    contents = output.read_many([f"{layout.SEGMENTS_FOLDER}/{name}" for name in names])
    found = zip(names, (content for _, content in contents), strict=True)
    return {name: content for name, content in found if content is not None}


def begin_segment(output: OutputFolder, segment: Segment) -> None:
    """Record a segment. Raises ChangedList if another run has begun another one at its place."""
    name = layout.segment_file(segment.number)
    if not output.put_if_absent(name, segment.to_json()) and not segment.is_at_the_place_of(
        Segment.parse(output.read(name) or b"")
    ):
        raise ChangedList(
            f"{output.url!r} is being made from lists that are not the same: give each run the same list and options"
        )


def end_segment(output: OutputFolder, segment: Segment, ending: Ending) -> Segment:
    """Record where a segment ends. Raises ChangedList if another run has found another end."""
    name = layout.segment_file(segment.number, layout.SEGMENT_END)
    if not output.put_if_absent(name, ending.to_json()):
        there = Ending.parse(output.read(name) or b"")
        if (there.rows, there.shards) != (ending.rows, ending.shards):
            raise ChangedList(
                f"{output.url!r} is being made from lists that are not the same: one has {there.rows:,} rows for this "
                f"part, and that of this run {ending.rows:,}. Give each the same, and run the same command again"
            )
    return replace(segment, ending=ending)


def manifest_of(output: OutputFolder) -> Manifest:
    """`read_manifest` of a dataset that has to be there. Raises OutputError if there is none."""
    manifest = read_manifest(output)
    if manifest is None:
        names = output.names()
        raise OutputError(
            f"{output.url!r} has no {RUN_FILE}: not an any2ds dataset"
            if names
            else f"{output.url!r} is empty, or there is no such folder{similar_beside(output.url)}"
        )
    return manifest


def options_in(manifest: Manifest, output: OutputFolder) -> tuple[OutputOptions, MediaOptions]:
    """The options with which the dataset in `output` was made. Raises OutputError if it does not say."""
    try:
        groups = (OutputOptions, *MEDIA_GROUPS)
        known = {field.name for group in groups for field in dataclasses.fields(group)}
        given = {name: value for name, value in manifest.options.items() if name in known}
        options, *media = parse_groups({**given, "output_folder": output.url}, groups)
    except (ValueError, TypeError, UsageError) as error:
        raise OutputError(f"{output.url!r}: its {RUN_FILE} cannot be read: {error}") from error
    return options, replace(MediaOptions(*media), given=manifest.asked, members=Members.of(manifest.options))


def options_of(output: OutputFolder) -> tuple[OutputOptions, MediaOptions]:
    """`options_in` of what the dataset says of itself. Raises OutputError."""
    return options_in(manifest_of(output), output)


def warn_of_versions(url: str, changes: Sequence[str]) -> None:
    """Files of several versions of a library may differ in detail."""
    log.warning("%s was made with other versions of libraries (%s): new files may differ", url, "; ".join(changes))
