"""Finds finished shards of which a file is gone, by the names in the folder: statistics alone do not make a shard."""

from __future__ import annotations

from collections.abc import Iterable

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.run.compare import read_stats
from any2ds.storage.folders import OutputFolder


def lost_files(
    output: OutputFolder, options: OutputOptions, finished: Iterable[int], names: Iterable[str]
) -> dict[int, str]:
    """Finished shard -> its data or metadata file that is not among `names`, as they are listed in `output`.

    Nothing is asked for but the shards that seem to lack a file.
    """
    present = frozenset(names)
    extension = plugins.load("writers", options.output_format).extension
    layout = options.layout
    hides_table = extension is None and options.preset is not None
    formats = [name for name in options.metadata_format if not (name == "parquet" and hides_table)]
    missing: dict[int, str] = {}
    for shard_id in finished:
        data = layout.data_name(shard_id, extension)
        metadata = [layout.metadata_name(shard_id, format) for format in formats]
        absent = next((name for name in (data, *metadata) if name is not None and name not in present), None)
        if absent is not None:
            missing[shard_id] = absent
    # Another rank may have finished the shard while the folder was listed.
    missing = {shard_id: name for shard_id, name in missing.items() if not output.exists(name)}
    if extension == "":  # an object store has no folder for a shard that has stored nothing
        folders = [shard_id for shard_id, name in missing.items() if name == layout.shard_name(shard_id)]
        known = read_stats(output, layout, folders)
        return {n: name for n, name in missing.items() if (stats := known.get(n)) is None or stats.samples}
    return missing
