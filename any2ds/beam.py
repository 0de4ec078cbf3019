"""The samples of a dataset in a Beam pipeline: `ReadShards`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from any2ds.core import plugins
from any2ds.dataset.places import default_data_dir, is_name
from any2ds.load.load import load
from any2ds.storage.stores import absolute

_Transform: Any = object
_DoFn: Any = object
_missing: ImportError | None = None
try:
    import apache_beam as beam

    _Transform, _DoFn = beam.PTransform, beam.DoFn
except ImportError as error:  # raised by ReadShards; the module can be imported without Beam
    _missing = error

__all__ = ["ReadShards"]


class ReadShards(_Transform):  # type: ignore[misc]  # Beam has no types
    """The samples of a dataset as `any2ds.load` gives them, its shards in parallel.

        import any2ds
        import apache_beam as beam

        with beam.Pipeline() as pipeline:
            samples = pipeline | any2ds.beam.ReadShards("gs://bucket/dataset", columns=["key", "data", "caption"])
            samples | beam.Map(lambda sample: (sample["key"], len(sample["data"]))) | beam.Map(print)

    `folder` and `options` are those of `any2ds.load`, as the workers see them; a relative path is made absolute here.
    `storage_options` are part of the pipeline, so secrets should come from the environment of the workers.

    Nothing is read before the pipeline runs: each worker opens the dataset, so a list of a million shards is no part of
    the job's description, and a template finds the shards of the day. A shard is the smallest unit of work. Samples are
    in the order of their shard, shards in none. Raises MissingExtra without apache_beam; a pipeline fails with what
    `any2ds.load` raises.
    """

    def __init__(self, folder: str | os.PathLike[str], *, label: str | None = None, **options: Any) -> None:
        if _missing is not None:
            raise plugins.missing_extra("any2ds.beam.ReadShards", _missing) from _missing
        super().__init__(label)
        url = os.fspath(folder)
        datasets = os.fspath(options.pop("data_dir", None) or default_data_dir())
        place = url if is_name(url) else absolute(url)
        self._given = {"folder": place, "data_dir": absolute(datasets), **options}

    def expand(self, pipeline: Any) -> Any:
        return (
            pipeline
            | "Folder" >> beam.Create([self._given])
            | "Shards" >> beam.FlatMap(_shards)
            | "Spread" >> beam.Reshuffle()
            | "Samples" >> beam.ParDo(_Samples(self._given))
        )


def _shards(given: dict[str, Any]) -> range:
    return range(len(load(**given).shards))


class _Samples(_DoFn):  # type: ignore[misc]  # Beam has no types
    """From the place of a shard to its samples; each worker opens the dataset once."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given

    def setup(self) -> None:
        self._shards = load(**self._given).shards

    def process(self, place: int) -> Iterator[dict[str, Any]]:
        """Raises DamagedShard."""
        yield from self._shards[place]
