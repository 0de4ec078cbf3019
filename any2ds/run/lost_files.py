"""Finds finished shards of which a file is gone, by the names in the folder: statistics alone do not make a shard."""

from __future__ import annotations

from collections.abc import Iterable

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.run.compare import read_stats
from any2ds.storage.folders import OutputFolder

_MOST_ASKED_FOR = 100  # files, by a request each; for more the folder is listed once more


def lost_files(
    output: OutputFolder, options: OutputOptions, finished: Iterable[int], names: Iterable[str]
) -> dict[int, str]:
    """Finished shard -> its data or metadata file that is not among `names`, as they are listed in `output`.

    Nothing is asked for but the shards that seem to lack a file.
    """
    writer, names_of, present = plugins.load("writers", options.output_format), options.layout, frozenset(names)
    hides_table = writer.extension is None and options.preset is not None
    formats = [format for format in options.metadata_format if not (format == "parquet" and hides_table)]

    def files(shard_id: int) -> Iterable[str]:
        metadata = (names_of.metadata_name(shard_id, format) for format in formats)
        return filter(None, (*metadata, names_of.data_name(shard_id, writer.extension)))

    lost = {n: name for n in finished for name in files(n) if name not in present}
    # Another rank may have finished the shard while the folder was listed.
    is_there = frozenset(output.names()).__contains__ if len(lost) > _MOST_ASKED_FOR else output.exists
    lost = {n: name for n, name in lost.items() if not is_there(name)}
    # An object store has no folder for a shard that has stored nothing.
    folders = [n for n, name in lost.items() if name == names_of.shard_name(n)]
    empty = {n for n, stats in read_stats(output, names_of, folders) if stats is not None and not stats.samples}
    return {n: name for n, name in lost.items() if n not in empty}
