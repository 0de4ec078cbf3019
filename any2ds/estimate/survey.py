"""Reads a url list as a run would: how many rows, which hosts, how many duplicates, and a random sample of the rows."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.options import Config
from any2ds.core.errors import ReadError
from any2ds.core.rows import BAD_ROW_COLUMN as BAD_ROWS
from any2ds.estimate.facts import Survey
from any2ds.estimate.sketches import DistinctSample, Reservoir
from any2ds.fetch.profiles import Profiles
from any2ds.readers.blocks import RandomPart, can_be_read_in_blocks
from any2ds.readers.dedupe import comparable
from any2ds.readers.sources import Source

log = logging.getLogger(__name__)

_LARGE, _PART = 2 << 30, 5_000_000  # of a list with more bytes, so many rows are read of random row groups
_MOST_HOSTS = 200_000  # hosts whose rows are counted; the smallest are left out where there are twice as many
_LONGEST_URL = 2000  # characters that are compared, where most URLs are longer


def survey(config: Config, size: int, most_bytes: int = _LARGE, part: int = _PART) -> Survey:
    """Read the list that `config` names, and draw `size` of its rows at random; of a list with more than `most_bytes`
    about `part` rows are read. Raises UsageError as `Source` does, for an empty list as well."""
    source, most_rows = _opened(config, most_bytes, part)
    with closing(source):
        counts = _Counts(config, size, random.Random(0))
        error = ""
        try:
            for batch in source.batches():
                counts.add(batch)
                if counts.read >= most_rows:
                    break
        except ReadError as broken:
            error = str(broken)
        rows, share = source.rows, source.share_of(counts.read)
        is_exact = rows is not None and not error
        if rows is None:
            rows = round(counts.read / share) if share else counts.read
        files = tuple(file.name for file in source.list_files)
        return counts.survey(max(rows, counts.read), is_exact, error, source.schema, files)


def _opened(config: Config, most_bytes: int, part: int) -> tuple[Source, float]:
    """The list, or what can be read of a large one at random, and how many of its rows are enough."""
    source = Source.of(config)
    if config.input.limit is not None or sum(file.size or 0 for file in source.list_files) <= most_bytes:
        return source, math.inf
    if not (source.has_row_groups or can_be_read_in_blocks(source.inputs)):
        log.warning(
            "the whole list is read, which takes minutes for each 100 million rows: random parts can be read of parquet"
            " and of text that is not compressed"
        )
        return source, math.inf
    source.close()
    mixed = replace(config, input=replace(config.input, shuffle=0))
    if source.has_row_groups:
        return Source.of(mixed, is_looked_at=True), part
    return RandomPart.of(mixed, is_looked_at=True), math.inf


class _Counts:
    """Adds up what is read, batch by batch."""

    def __init__(self, config: Config, size: int, rng: random.Random) -> None:
        self._profiles = Profiles(config.fetch)
        self._columns = config.url_columns
        self._reservoir = Reservoir(size, rng)
        self._hosts: Counter[str] = Counter()  # host -> rows
        self._distinct_urls = DistinctSample()
        self.read = self._bad = 0

    def add(self, batch: pa.RecordBatch) -> None:
        is_good = batch.column(BAD_ROWS).is_null()
        self.read += batch.num_rows
        self._bad += batch.num_rows - is_good.true_count
        self._reservoir.add(batch.filter(is_good))
        urls = _present(batch.column("url"))
        self._distinct_urls.add(Counter(urls.to_pylist()))
        for name in self._columns:
            self._count_hosts(_scheme_and_host(urls if name == "url" else _present(batch.column(name))))

    def _count_hosts(self, starts: pa.StringArray) -> None:
        """Count the beginnings of URLs, of which many are the same; data: and file: have no host."""
        for pair in pc.value_counts(starts).to_pylist():
            start = pair["values"]
            host, _ = self._profiles.host_of(f"{start}/file")  # a bucket alone is no URL
            if host and not start.endswith("//"):
                self._hosts[host] += pair["counts"]
        if len(self._hosts) > 2 * _MOST_HOSTS:
            self._hosts = Counter(dict(self._hosts.most_common(_MOST_HOSTS)))

    def survey(self, rows: int, is_exact: bool, error: str, schema: pa.Schema, files: tuple[str, ...]) -> Survey:
        factor = rows / self.read if self.read else 1.0
        return Survey(
            rows=rows,
            is_exact=is_exact,
            read=self.read,
            bad=self._bad,
            hosts={host: round(count * factor) for host, count in self._hosts.most_common()},
            distinct=self._distinct_urls.distinct,
            duplicates=self._distinct_urls.repeated_share,
            urls_per_row=len(self._columns),
            error=error,
            sample=self._reservoir.table(schema),
            files=files,
        )


def _present(urls: pa.Array) -> pa.StringArray:
    """The URLs that are not empty, as duplicates are compared."""
    if urls.nbytes > _LONGEST_URL * len(urls):
        urls = pc.utf8_slice_codeunits(urls, 0, _LONGEST_URL)
    urls = comparable(urls)
    return urls.filter(pc.fill_null(pc.greater(pc.binary_length(urls), 0), False))


def _scheme_and_host(urls: pa.StringArray) -> pa.StringArray:
    """The beginning of each URL, up to its path."""
    parts = pc.split_pattern(pc.binary_join_element_wise(urls, "///", ""), "/", max_splits=3)
    starts = pc.binary_join_element_wise(pc.list_element(parts, 0), "//", pc.list_element(parts, 2), "")
    return pc.if_else(pc.starts_with(urls, "data:", ignore_case=True), "data:,", starts)
