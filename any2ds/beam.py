"""The samples of a dataset in a Beam pipeline: `ReadShards`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from any2ds.config.options import StorageOptions, parse_groups
from any2ds.core import plugins
from any2ds.core.errors import redacted
from any2ds.dataset.places import default_data_dir, is_name
from any2ds.loading.samples import FinishedShards, Wanted, rows_of
from any2ds.loading.shards import ShardSet
from any2ds.storage.stores import Stores

_Transform: Any = object
_DoFn: Any = object
_missing: ImportError | None = None
try:
    import apache_beam as beam
    from apache_beam.metrics import Metrics

    _Transform, _DoFn = beam.PTransform, beam.DoFn
except ImportError as error:  # raised by ReadShards; the module can be imported without Beam
    _missing = error

__all__ = ["ReadShards"]


class ReadShards(_Transform):  # type: ignore[misc]  # Beam has no types
    """The samples of whatever `any2ds.load` opens, its shards in parallel, and the rows that failed.

        import any2ds
        import apache_beam as beam

        with beam.Pipeline() as pipeline:
            samples = pipeline | any2ds.beam.ReadShards("gs://bucket/dataset", columns=["url", "caption"])
            samples | beam.Map(lambda sample: (sample["key"], len(sample["data"]))) | beam.Map(print)

    Each sample is a dict: `key`, unique in the dataset; `status`; `ext`, the extension of its file, without the dot;
    `data`, the bytes of the file; `members`, extension -> bytes of further files (in parquet, tfrecord and arrayrecord
    these are columns); and the columns of the metadata, as Python values.

    - `folder`: path or URL of the dataset, as the workers see it, or the name of a recipe's that was built, as in
      flowers/small:1.1.0. A relative path is made absolute here.
    - `columns`: of the metadata, in addition to `key`, `status` and `ext`; all by default, [] for none.
    - `with_data`: False omits `data` and `members`, and does not read the files.
    - `status`: which rows; `success` by default. Another one (`failed_to_download`, `duplicate` …), several, or None
      for all rows; rows that are not stored have None as `ext` and `data`. A row that was tried again has its last
      outcome alone.
    - `data_dir`: folder in which datasets are found by name (default: ANY2DS_DATA_DIR of this process, else ~/any2ds).
    - `partial`: True reads the finished shards of a dataset that is not finished, or not known to be.
    - `storage_options`: protocol -> options of its fsspec file system, as for `download()`. They are part of the
      pipeline, so secrets should come from the environment of the workers.

    Nothing is read before the pipeline runs: a worker looks up which shards there are, so a list of a million shards is
    no part of the job's description, and a template finds the shards of the day. A shard is the smallest unit of work.
    Files are read as `any2ds.load` reads them: from this machine one by one, from a store by ranges, up to 72 MB ahead;
    arrayrecord, files and compressed tfrecord of a store are first copied to the worker's temporary folder. Samples are
    in the order of their shard, shards in none. Counters of the namespace `any2ds` count `shards`, `samples`, `bytes`.

    Raises MissingExtra without apache_beam, and OptionError. A pipeline fails with OutputError if the folder holds no
    dataset or one that is not finished, with MissingColumns, and with DamagedShard if a shard cannot be read. Tar files
    of other tools, which have no metadata, have no `columns` but `key`, `status` and `ext`.
    """

    def __init__(  # the public options, by keyword
        self,
        folder: str | os.PathLike[str],
        *,
        columns: Sequence[str] | str | None = None,
        with_data: bool = True,
        status: Sequence[str] | str | None = "success",
        partial: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Mapping[str, Any]] | None = None,
        label: str | None = None,
    ) -> None:
        if _missing is not None:
            raise plugins.missing_extra("any2ds.beam.ReadShards", _missing) from _missing
        super().__init__(label)
        (storage,) = parse_groups({"storage_options": storage_options}, (StorageOptions,))
        url = os.fspath(folder)
        self._url = url if is_name(url) else _seen_by_workers(url)
        self._wanted = Wanted.of(columns, status, with_data)
        datasets = _seen_by_workers(default_data_dir() if data_dir is None else os.fspath(data_dir))
        self._shards = FinishedShards(self._url, Stores(storage.storage_options), datasets, partial, with_data)

    def expand(self, pipeline: Any) -> Any:
        return (
            pipeline
            | "Folder" >> beam.Create([self._shards])
            | "Shards" >> beam.FlatMap(iter)
            | "Spread" >> beam.Reshuffle()
            | "Samples" >> beam.ParDo(_Samples(self._wanted))
        )

    def display_data(self) -> dict[str, Any]:
        columns = self._wanted.columns
        return {
            "folder": redacted(self._url),
            "columns": "all" if columns is None else ", ".join(columns),
            "with_data": self._wanted.with_data,
        }


def _seen_by_workers(place: str) -> str:
    return place if "://" in place or "::" in place else os.path.abspath(os.path.expanduser(place))


class _Samples(_DoFn):  # type: ignore[misc]  # Beam has no types
    """From a shard to its samples."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._shards, self._samples, self._bytes = (
            Metrics.counter("any2ds", name) for name in ("shards", "samples", "bytes")
        )

    def process(self, shard: ShardSet) -> Iterator[dict[str, Any]]:
        for sample in rows_of(shard, self._wanted):
            self._samples.inc()
            if data := sample.get("data"):
                self._bytes.inc(len(data))
            yield sample
        self._shards.inc()
