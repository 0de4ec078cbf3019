"""Finds finished shards of which a file is gone, by the names in the folder: statistics alone do not make a shard."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.run.compare import read_stats
from any2ds.storage.folders import OutputFolder


def lost_files(
    output: OutputFolder, options: OutputOptions, finished: Collection[int], names: Iterable[str]
) -> dict[int, str]:
    """Finished shard -> its data or metadata file that is not among `names`, as they were listed in `output`.

    Nothing is asked for unless a shard seems to lack a file.
    """
    writer, names_of = plugins.load("writers", options.output_format), options.layout
    hides_table = writer.extension is None and options.preset is not None
    formats = [format for format in options.metadata_format if not (format == "parquet" and hides_table)]

    def lacking(shards: Collection[int], present: frozenset[str]) -> dict[int, str]:
        found = {}
        for shard_id in shards:
            metadata = (names_of.metadata_name(shard_id, format) for format in formats)
            for name in (*metadata, names_of.data_name(shard_id, writer.extension)):
                if name and name not in present:
                    found[shard_id] = name
        return found

    lost = lacking(finished, frozenset(names))
    if lost:  # another rank may have finished a shard while the folder was listed
        lost = lacking(lost, frozenset(output.names()))
    # An object store has no folder for a shard that has stored nothing.
    folders = [n for n, name in lost.items() if name == names_of.shard_name(n)]
    empty = {n for n, stats in read_stats(output, names_of, folders) if stats is not None and not stats.samples}
    return {n: name for n, name in lost.items() if n not in empty}
