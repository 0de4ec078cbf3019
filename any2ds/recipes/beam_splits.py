"""Splits that Beam makes: its workers check and encode the samples, and write them as sorted runs.

    PTransform or PCollection ─▶ (key, sample) ─▶ encoded, by bucket ─GroupByKey─▶ runs of a bucket, and what they are

A bucket is written by one worker. If that is tried again, its runs have other names, and what the last attempt has
written about itself counts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa

from any2ds.core.errors import RunError, UsageError, error_text
from any2ds.dataset.features import Features, WrongValue
from any2ds.distributors._beam_options import pipeline_options
from any2ds.recipes.recipe import Recipe, Skipped
from any2ds.recipes.spool import Spool, order_of
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_BUCKETS = 32
_SKIPPED = -1  # the bucket of what is left out
_ABOUT = ".about.json"
_WRONG = re.compile(r"split \w+: (sample|expected) .*?(?=( \[while running|\\n|$))")  # what `_Encode` has raised


@dataclass(frozen=True)
class Target:
    """Where runs are written: a folder that all workers see."""

    url: str
    storage: Mapping[str, Mapping[str, Any]] | None = None

    def put(self, folder: Path, split: str) -> None:
        """Move the files of a local folder there, the description of the bucket last."""
        fs, path = Stores(self.storage).open(f"{self.url}/{split}")
        fs.makedirs(path, exist_ok=True)
        for file in sorted(folder.iterdir(), key=lambda file: file.name.endswith(_ABOUT)):
            fs.put_file(str(file), f"{path}/{file.name}")

    def get(self, split: str, folder: Path) -> list[dict[str, Any]]:
        """Copy what the buckets of a split consist of to a local folder; returns their descriptions."""
        fs, path = Stores(self.storage).open(f"{self.url}/{split}")
        fs.invalidate_cache()
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for name in sorted(fs.ls(path, detail=False)) if fs.exists(path) else ():
            if name.endswith(_ABOUT):
                about = json.loads(fs.cat_file(name))
                found.append(about)
                for run in about["runs"]:
                    if not (folder / run).exists():
                        fs.get_file(f"{path}/{run}", str(folder / run))
        return found

    def remove(self) -> None:
        fs, path = Stores(self.storage).open(self.url)
        if fs.exists(path):
            fs.rm(path, recursive=True)


@dataclass(frozen=True)
class _Encoding:
    """How samples are encoded; it travels to the workers."""

    spec: Mapping[str, Any]
    skipped: tuple[type[Exception], ...]
    split: str
    is_sorted: bool


class _Encode(beam.DoFn):  # type: ignore[misc]
    def __init__(self, encoding: _Encoding) -> None:
        self._encoding = encoding
        self._features: Features | None = None

    def process(self, element: Any) -> Iterator[tuple[int, Any]]:
        features = self._features = self._features or Features.of_spec(self._encoding.spec)
        try:
            key, sample = element
        except (TypeError, ValueError):
            what = type(element).__name__
            raise UsageError(f"split {self._encoding.split}: expected (key, sample), got {what}") from None
        if sample is None or isinstance(sample, Skipped):
            yield _SKIPPED, sample.reason if sample is not None else "None"
            return
        try:
            if callable(sample):
                sample = sample()
            values, files = features.encode(key, sample)
        except Exception as error:
            cause = error.__cause__ or error
            if self._encoding.skipped and isinstance(cause, self._encoding.skipped):
                yield _SKIPPED, type(cause).__name__
                return
            if isinstance(error, WrongValue):
                raise UsageError(f"split {self._encoding.split}: {error}") from error
            raise
        exts = features.exts(sample) if features.files else ["bin"]
        order = order_of(key, self._encoding.is_sorted)
        yield sum(order) % _BUCKETS, (key, values, files or [b""], exts)


class _Write(beam.DoFn):  # type: ignore[misc]
    def __init__(self, encoding: _Encoding, target: Target) -> None:
        self._encoding, self._target = encoding, target

    def process(self, element: tuple[int, Iterable[Any]]) -> Iterator[int]:
        bucket, items = element
        with tempfile.TemporaryDirectory(prefix="any2ds-beam-") as name:
            folder = Path(name)
            about: dict[str, Any] = {"runs": [], "count": 0, "skipped": {}}
            if bucket == _SKIPPED:
                about["skipped"] = dict(Counter(items))
            else:
                features = Features.of_spec(self._encoding.spec)
                schema: pa.Schema = features.schema
                spool = Spool(folder, schema, max(1, len(features.files)), self._encoding.is_sorted)
                for key, values, files, exts in items:
                    spool.add(key, values, files, exts, "")
                spool.flush()
                about |= {"runs": spool.runs, "count": spool.count}
            (folder / f"{bucket}{_ABOUT}").write_text(json.dumps(about), encoding="utf-8")
            self._target.put(folder, self._encoding.split)
        yield about["count"]


class BeamSplits:
    """The pipeline of a build, to which its splits are added."""

    def __init__(self, options: Sequence[str], target: Target, recipe: Recipe) -> None:
        """Raises UsageError for options that Beam does not take."""
        try:
            self.pipeline = beam.Pipeline(options=pipeline_options(options))
        except (ValueError, TypeError, SystemExit) as error:
            raise UsageError(f"beam_options: {error_text(error)}") from error
        self._target, self._recipe = target, recipe
        _by_value(type(recipe).__module__)

    def add(self, split: str, samples: Any, spec: Mapping[str, Any], is_sorted: bool) -> None:
        """A split: a PTransform, or a PCollection of the pipeline."""
        encoding = _Encoding(spec, tuple(self._recipe.SKIPPED), split, is_sorted)
        source = self.pipeline | f"{split} samples" >> samples if isinstance(samples, beam.PTransform) else samples
        _ = (
            source
            | f"{split} encode" >> beam.ParDo(_Encode(encoding))
            | f"{split} buckets" >> beam.GroupByKey()
            | f"{split} write" >> beam.ParDo(_Write(encoding, self._target))
        )

    def run(self) -> None:
        """Raises RunError if the pipeline fails, UsageError for a wrong value."""
        try:
            self.pipeline.run().wait_until_finish()
        except Exception as error:  # of whatever runner it is
            message = error_text(error)
            if (wrong := _WRONG.search(message)) is not None:
                raise UsageError(wrong[0]) from error
            raise RunError(f"{self._recipe.full_name}: the pipeline of Beam has failed: {message}") from error

    def taken(self, split: str, folder: Path) -> dict[str, Any]:
        """The record of a split, whose runs are in a local folder from then on."""
        found = self._target.get(split, folder)
        skipped: Counter[str] = Counter()
        for about in found:
            skipped.update(about["skipped"])
        return {
            "kind": "samples",
            "runs": [run for about in found for run in about["runs"]],
            "count": sum(about["count"] for about in found),
            "skipped": dict(skipped),
        }


def _by_value(module: str) -> None:
    """Let the code of a recipe travel to workers that cannot import it."""
    try:
        from apache_beam.internal.cloudpickle import cloudpickle

        if (found := sys.modules.get(module)) is not None and module != "__main__":
            cloudpickle.register_pickle_by_value(found)
    except (ImportError, AttributeError, ValueError):
        log.debug("this Beam sends the code of %s by its name", module)
