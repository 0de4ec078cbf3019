"""Removes a dataset that any2ds wrote from its folder, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.dataset import tfds
from any2ds.run.user_files import ShardNames, refuse_lists
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import InputFile
from any2ds.storage.report_file import is_others_report

_SHOWN = 3

# In `.any2ds/`, with files of shards.
_FOLDERS_OF_SHARDS = (layout.METADATA_FOLDER,)


def overwrite(output: OutputFolder, manifest: Manifest, names: Sequence[str], lists: Iterable[InputFile]) -> None:
    """Remove those of the files `names` in `output` that are shards by `manifest`: by their exact names.

    Statistics go first, so that no shard counts as finished without its data, and `.any2ds/run` goes last, so that a
    run killed in between can be repeated. `lists` are the files about to be read. Raises OutputError, before anything
    is removed, if the folder holds something that any2ds did not write.
    """
    try:
        names_of = manifest.layout
        shards = ShardNames.of(manifest.options)
    except (KeyError, ValueError, TypeError) as error:
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read, so it is not touched") from error
    stats, files, folders = shards.sort(names)
    if strays := sorted(name for name in names if layout.finished_shards([name]) and name not in stats):
        raise OutputError(
            f"{output.url!r} holds {printable(strays[0])}, which any2ds did not write: nothing was removed; "
            "move that away"
        )
    members = {folder: output.names(folder) for folder in folders}
    for folder, found in members.items():
        _check_folder(output, folder, found, names_of)
    refuse_lists(output, lists, shards)
    try:
        of_all = {*layout.FOLDER_FILES, *shards.of_all, layout.RECIPE_FILE}.intersection(names)
        if layout.RECIPE_FILE in of_all:
            of_all.update(name for name in names if name.endswith(tfds.LABELS_END))
        if layout.REPORT_FILE in of_all and is_others_report(output):
            of_all.remove(layout.REPORT_FILE)
        output.remove_many(sorted(of_all))
        output.remove_many(stats)
        output.remove_many(files)
        for folder, found in members.items():
            output.remove_many([f"{folder}/{name}" for name in found])
            output.remove_folder_if_empty(folder)
        for name in names:
            if layout.is_of_watching(name) or name in _FOLDERS_OF_SHARDS:
                output.remove_tree(name)
        output.remove_tree(layout.SEGMENTS_FOLDER)
        output.remove(layout.BUILDING_FILE)
        output.remove(layout.RUN_FILE)
    except OSError as error:
        raise OutputError(f"{output.url!r} cannot be overwritten: {error_text(error)}") from error


def _check_folder(output: OutputFolder, folder: str, members: Iterable[str], names_of: Layout) -> None:
    """Refuse what is not named by a key of its shard, or, as in the shards of a retry, of one before it."""
    foreign = [name for name in members if not _is_own(name, int(folder), names_of)]
    if foreign:
        shown = ", ".join(printable(name[:80]) for name in foreign[:_SHOWN])
        more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
        raise OutputError(
            f"{output.url!r}: its folder {folder} holds what any2ds did not write ({shown}{more}): nothing was "
            "removed; move that away, or choose another output_folder"
        )


def _is_own(name: str, shard_id: int, names_of: Layout) -> bool:
    key, _, end = name.partition(".")
    place = names_of.place_of(key)
    return place is not None and place[0] <= shard_id and end != "" and "/" not in end
