"""A source as the dataset classes of other frameworks; those that take a sequence as it is need nothing of this."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.core.errors import UsageError
from any2ds.core.samples import CAPTION, METADATA
from any2ds.core.tables import to_json
from any2ds.dataset.kinds import DRAWN, kind_of_ext

if TYPE_CHECKING:
    from any2ds.dataset.load.source import Source
    from any2ds.dataset.load.stream import Stream

_FEATURES = {"image": "Image", "audio": "Audio"}  # of Hugging Face's datasets


def _imported(library: str, wanted: str) -> Any:
    """Raises UsageError, which says what to install."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise UsageError(f"{wanted} needs a library that is not installed: pip install {library}") from error


_THREADS = 16  # which wait for a store, in one process
_THREADS_OF_ALL = 64  # of all workers


def grain_options(is_local: bool, num_workers: int) -> Any:
    """How many threads of Grain read ahead, and how far, in each process.

    A local sample takes less time than threads take from each other: one thread, or none in a worker, which is ahead
    of the process that trains anyway. Each time that Grain gives a sample it looks at those that are ready, a
    microsecond each: its default of 500 costs more than to read them.
    """
    grain = _imported("grain", "read_options")
    if is_local:
        threads = 0 if num_workers else 1
        return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=16 * threads)
    threads = max(1, min(_THREADS, _THREADS_OF_ALL // max(1, num_workers)))
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)


def webdataset(source: Source, options: Mapping[str, Any]) -> Any:
    """Samples as webdataset has them: `__key__`, the file by its extension, `txt` and `json`."""
    wds = _imported("webdataset", "to_webdataset")
    return wds.FluidWrapper(_Members(source.stream(**options)))


class _Members:
    """The first stage of a pipeline of webdataset."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __call__(self) -> Iterator[dict[str, Any]]:
        return map(_as_members, self._stream)


def _as_members(sample: dict[str, Any]) -> dict[str, Any]:
    described = {name: value for name, value in sample.items() if name != "data"}
    found = {"__key__": sample["key"], str(sample["ext"]): sample["data"], METADATA: to_json(described)}
    if sample.get("caption") is not None and CAPTION not in found:
        found[CAPTION] = sample["caption"].encode()
    return found


def huggingface(source: Source, exts: set[str], streaming: bool) -> Any:
    """A `Dataset`, which copies the samples into its cache, or with `streaming` an `IterableDataset`."""
    datasets = _imported("datasets", "to_hf")
    types = source.features
    schema = pa.schema([pa.field(name, type) for name, type in types.items()])
    features = datasets.Features.from_arrow_schema(schema)
    kinds = {"" if ext.lower() in DRAWN else kind_of_ext(ext) for ext in exts}
    feature = _FEATURES.get(kinds.pop()) if len(kinds) == 1 else None
    if feature is not None and "data" in types:
        features["data"] = getattr(datasets, feature)()

    kind = datasets.IterableDataset if streaming else datasets.Dataset
    return kind.from_generator(
        _rows, features=features, gen_kwargs={"source": source, "names": tuple(types), "is_media": feature is not None}
    )


def _rows(source: Source, names: tuple[str, ...], is_media: bool) -> Iterator[dict[str, Any]]:
    for sample in source:
        row = {name: sample.get(name) for name in names}
        if is_media and "data" in row:
            row["data"] = {"bytes": row["data"], "path": f"{sample.get('key')}.{sample.get('ext')}"}
        yield row


def tensorflow(source: Source, options: Mapping[str, Any]) -> Any:
    """A `tf.data.Dataset` of dicts: texts and bytes are tf.string, nulls are "", 0 and NaN, as in TFRecords of ours."""
    tf = _imported("tensorflow", "to_tf")
    types = {name: type for name, type in source.features.items() if _tf_kind(type) is not None}
    if not types:
        raise UsageError("to_tf: none of the columns has a type of TensorFlow")
    kinds = {"text": tf.string, "int": tf.int64, "float": tf.float32, "bool": tf.bool}
    nulls: dict[str, Any] = {"text": b"", "int": 0, "float": float("nan"), "bool": False}
    signature = {name: tf.TensorSpec((), kinds[str(_tf_kind(type))]) for name, type in types.items()}
    missing = {name: nulls[str(_tf_kind(type))] for name, type in types.items()}

    def samples() -> Iterator[dict[str, Any]]:
        for sample in source.stream(**options):
            yield {name: null if (value := sample.get(name)) is None else value for name, null in missing.items()}

    found = tf.data.Dataset.from_generator(samples, output_signature=signature)
    return found.apply(tf.data.experimental.assert_cardinality(len(source.stream(**options))))


def _tf_kind(type: pa.DataType) -> str | None:
    of = pa.types
    if of.is_boolean(type):
        return "bool"
    if of.is_integer(type):
        return "int"
    if of.is_floating(type):
        return "float"
    return "text" if of.is_string(type) or of.is_large_string(type) or of.is_binary(type) else None
