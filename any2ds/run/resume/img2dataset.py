"""Recognises folders that img2dataset or any2dataset left incomplete, and how they were made.

Both mark a finished shard by `NNNNN_stats.json`, as any2ds does, but do not record their options. The files show these:
full shards and the width of keys (`10^N * shard + position` with N = ceil(log10(rows per shard))) show the rows per
shard, the names of the data show the format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.media import MediaOptions
from any2ds.config.options import OutputOptions
from any2ds.core import layout
from any2ds.core.errors import OutputError
from any2ds.core.layout import Layout
from any2ds.core.stats import ANY2DS, Stats
from any2ds.storage.folders import OutputFolder

_FORMATS = {".tar": "webdataset", ".tfrecord": "tfrecord"}


def makers(known: Mapping[int, Stats | None]) -> str:
    """The tools that made these shards, as text; empty if none is recognised."""
    return " and ".join(sorted({found.maker for found in known.values() if found is not None}))


def check_options(
    output: OutputFolder,
    names: Sequence[str],
    options: OutputOptions,
    media: MediaOptions,
    known: Mapping[int, Stats | None],
) -> None:
    """Raises OutputError, with the options to use instead, if `options` cannot complete the folder of another tool."""
    who = makers(known)
    if not who or ANY2DS in who:
        lack = f"its {layout.RUN_FILE} is missing" if who else "they were made neither by any2ds nor by img2dataset"
        raise OutputError(f"{output.url!r} holds shards, and {lack}: choose another output_folder")
    wrong = []
    digits = _digits(names)
    if digits != options.oom_shard_count:
        wrong.append(f"its shard numbers have {digits} digits: --oom_shard_count={digits}")
    format = _format(output, names, Layout(1, digits), known)
    if format == "dummy":
        raise OutputError(
            f"{output.url!r} holds shards of {who} without metadata, which cannot be compared with a list"
        )
    if format == "tfrecord":
        raise OutputError(f"{output.url!r} holds tfrecord shards of {who}, whose records are others than ours")
    if format != options.output_format:
        wrong.append(f"its shards are {format}: --output_format={format}")
    most = max(found.count for found in known.values() if found is not None)
    if most > options.number_sample_per_shard:
        wrong.append(f"its shards have {most:,} rows: --number_sample_per_shard={most}")
    changing = media.changing()
    if "any2dataset" in who and changing:  # it stores files as they arrive, whatever its options
        preset = f" (--preset={options.preset})" if options.preset else ""
        wrong.append(f"its files are stored as they arrived: leave out {', '.join(changing)}{preset}")
    if options.dedupe == "run":
        wrong.append("its duplicates were fetched: --dedupe=shard")
    if wrong:
        raise OutputError(f"{output.url!r} was begun by {who} with other options: {'; '.join(wrong)}")


def hint(options: OutputOptions, known: Mapping[int, Stats | None]) -> str:
    """An option that may be wrong if no list fits: a list may have had fewer rows than a full shard."""
    most = max((found.count for found in known.values() if found is not None), default=0)
    if most == options.number_sample_per_shard:
        return ""
    return f". None of its shards has more than {most:,} rows: it may want --number_sample_per_shard={most}"


def _digits(names: Sequence[str]) -> int:
    stats = (re.fullmatch(r"(\d+)_stats\.json", name, re.ASCII) for name in names)
    return min(len(match[1]) for match in stats if match)


def _format(output: OutputFolder, names: Sequence[str], names_of: Layout, known: Mapping[int, Stats | None]) -> str:
    there = set(names)
    shards = [shard_id for shard_id, found in known.items() if found is not None]
    for extension, format in _FORMATS.items():
        if any(names_of.shard_name(shard_id) + extension in there for shard_id in shards):
            return format
    if any(names_of.shard_name(shard_id) in there for shard_id in shards):
        return "files"
    tables = [names_of.metadata_name(shard_id) for shard_id in shards if names_of.metadata_name(shard_id) in there]
    if not tables:
        return "dummy"
    # Their parquet has the files in a column named by their extension. A store without folders shows no folder if all
    # files failed.
    try:
        with output.open(tables[0]) as file:
            schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise OutputError(f"{output.url!r}: {tables[0]} cannot be read: {error}") from error
    return "parquet" if any(pa.types.is_binary(field.type) for field in schema) else "files"
