"""Removes a dataset that any2ds wrote from its folder, and nothing else."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.samples import row_key
from any2ds.dataset import tfds
from any2ds.run.compare import stored_urls
from any2ds.run.user_files import ShardNames, refuse_lists
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import InputFile
from any2ds.storage.report_file import is_others_report

# In `.any2ds/`: what this run, or the estimate that it is for, has made there already; and what is removed last.
_KEPT = (
    layout.LOCK_FILE,
    layout.WORKERS_FILE,
    layout.TEMPORARY_FOLDER,
    layout.WORK_FOLDER,
    layout.SAMPLE_FILE,
    layout.RUN_FILE,
)


def overwrite(output: OutputFolder, manifest: Manifest, names: Sequence[str], lists: Iterable[InputFile]) -> None:
    """Remove those of the files `names` in `output` that are shards by `manifest`: by their exact names.

    Statistics go first, so that no shard counts as finished without its data, and `.any2ds/run` goes last, so that a
    run killed in between can be repeated. `lists` are the files about to be read. Raises OutputError, before anything
    is removed, if the folder holds something that any2ds did not write.
    """
    shards = ShardNames.of(manifest.options)
    refuse_lists(output, lists, shards)
    own = sorted(name for name in names if shards.shard_of(name) is not None)
    stats = [name for name in own if _is_stats(name)]
    members = {name: output.names(name) for name in own if name.isdecimal()}
    foreign = sorted(name for name in names if _is_stats(name) and shards.shard_of(name) is None)
    for folder, inside in members.items():
        named = stored_urls(output, shards.names, int(folder)) if shards.names.has_names else {}
        foreign += [f"{folder}/{name}" for name in inside if not _is_of_sample(name, int(folder), shards.names, named)]
    if foreign:
        raise OutputError(
            f"{output.url!r} holds what any2ds did not write ({', '.join(map(printable, foreign[:3]))}): nothing was "
            "removed; move that away, or choose another output_folder"
        )
    about_all = set(shards.of_all)
    if layout.REPORT_FILE in names and not is_others_report(output):
        about_all.add(layout.REPORT_FILE)
    if layout.RECIPE_FILE in names:
        about_all.update(name for name in names if name.endswith(tfds.LABELS_END))
    data = [name for name in own if not _is_stats(name) and name not in members]
    data += [f"{folder}/{name}" for folder, inside in members.items() for name in inside]
    try:
        output.remove(layout.SHARDS_FILE)
        output.remove_many(sorted(about_all.intersection(names)))
        output.remove_many(stats)
        output.remove_many(data)
        for folder in members:
            output.remove_folder_if_empty(folder)
        for name in names:
            if name.startswith(f"{layout.STATE_FOLDER}/") and not name.startswith(_KEPT):
                output.remove_tree(name)
        output.remove(layout.RUN_FILE)
    except OSError as error:
        raise OutputError(f"{output.url!r} cannot be overwritten: {error_text(error)}") from error


def _is_stats(name: str) -> bool:
    return bool(layout.finished_shards([name]))


def _is_of_sample(name: str, shard_id: int, names_of: Layout, named: Container[str]) -> bool:
    """Whether a file is named by a key of its shard; or of an earlier one, as in the shards of a retry; or is one of
    the keys `named` by the list."""
    key, _, end = name.partition(".")
    place = names_of.place_of(row_key(key))
    is_own = key in named or (place is not None and place[0] <= shard_id)
    return is_own and end != "" and "/" not in end
