"""Removes a dataset that any2ds wrote from its folder, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError, printable, shard_count, words_of
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.dataset import tfds
from any2ds.dataset.report.report import is_somebody_elses
from any2ds.run.resume.compare import ANY2DS, read_known
from any2ds.storage.folders import OutputFolder

_SHOWN = 3


def overwrite(output: OutputFolder, manifest: Manifest, names: Sequence[str], lists: Iterable[str]) -> None:
    """Remove what `manifest` says of the files `names` of `output` that they are shards: by their exact names.

    Stats go first, so that no shard is marked as finished without its data, and `.any2ds/run` goes last: a run that
    dies in between is done again. `lists` are the files that are about to be read. Raises OutputError, before anything
    is removed, if there is something in it that any2ds did not write.
    """
    try:
        options = manifest.options
        names_of = Layout(int(options["number_sample_per_shard"]), int(options["oom_shard_count"]))
        writer = plugins.load("writers", str(options["output_format"]))
        extension = writer.extension
        ends = {".parquet", *writer.sidecars, *(f".{name}" for name in options.get("metadata_format") or ())}
    except (KeyError, ValueError, TypeError) as error:
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read, so it is not touched") from error
    stats, files, folders = _own(names, names_of, extension, ends)
    if strays := sorted(name for name in names if layout.finished_shards([name]) and name not in stats):
        raise OutputError(
            f"{output.url!r} holds {printable(strays[0])}, which any2ds did not write: nothing was removed; "
            "move that away"
        )
    _refuse_others(output, names_of, layout.finished_shards(stats))
    members = {folder: output.members(folder) for folder in folders if output.is_folder(folder)}
    for folder, found in members.items():
        _refuse_strangers(output, folder, found, names_of)
    _refuse_lists(output, {*files, *members}, lists)
    try:
        of_all = {*layout.FOLDER_FILES, *tfds.names_of(options)}.intersection(names)
        if layout.REPORT_FILE in of_all and is_somebody_elses(output):
            of_all.remove(layout.REPORT_FILE)
        output.remove_many(sorted(of_all))
        output.remove_many(stats)
        output.remove_many(files)
        for folder, found in members.items():
            output.remove_many([f"{folder}/{name}" for name in found])
            output.remove_folder(folder)
        for name in names:
            if layout.is_of_watching(name) or name == layout.METADATA_FOLDER:
                output.remove_tree(name)
        output.remove(layout.RUN_FILE)
    except OSError as error:
        raise OutputError(f"{output.url!r} cannot be overwritten: {words_of(error)}") from error


def _own(
    names: Iterable[str], names_of: Layout, extension: str | None, ends: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """Of `names` the stats of shards, their data and metadata, which have `ends`, and what are folders of theirs."""
    stats, files, folders = [], [], []
    for name in sorted(names):
        match = re.fullmatch(r"(\d+)(.*)", name, re.ASCII | re.DOTALL)
        if match is None or names_of.shard_name(int(match[1])) != match[1]:
            continue
        if name == names_of.stats_name(int(match[1])):
            stats.append(name)
        elif match[2] in ends or (extension and match[2] == f".{extension}"):
            files.append(name)
        elif extension == "" and not match[2]:
            folders.append(name)
    return stats, files, folders


def _refuse_others(output: OutputFolder, names_of: Layout, shards: Iterable[int]) -> None:
    known = read_known(output, names_of, shards)
    others = [found.maker for found in known.values() if found is not None and found.maker != ANY2DS]
    if others:
        raise OutputError(
            f"{output.url!r} holds {shard_count(len(others), 'that was', 'that were')} made by {others[0]}, which "
            "any2ds does not remove: choose another output_folder, or empty this one yourself"
        )


def _refuse_strangers(output: OutputFolder, folder: str, members: Iterable[str], names_of: Layout) -> None:
    own = re.compile(rf"{re.escape(folder)}\d{{{names_of.position_digits}}}\.[^/]+", re.ASCII)
    strangers = [name for name in members if not own.fullmatch(name)]
    if strangers:
        shown = ", ".join(printable(name[:80]) for name in strangers[:_SHOWN])
        more = f" and {len(strangers) - _SHOWN:,} more" if len(strangers) > _SHOWN else ""
        raise OutputError(
            f"{output.url!r}: its folder {folder} holds what any2ds did not write ({shown}{more}): nothing was "
            "removed; move that away, or choose another output_folder"
        )


def _refuse_lists(output: OutputFolder, going: set[str], lists: Iterable[str]) -> None:
    root = output.path if output.is_local else str(output.fs.unstrip_protocol(output.path))
    for name in lists:
        inside = name.removeprefix(f"{root.rstrip('/')}/")
        if inside != name and inside.split("/")[0] in going:
            raise OutputError(f"{output.url!r}: overwriting it would remove the url list {inside}; move that away")
