"""A source as a `tf.data.Dataset`: TensorFlow itself reads TFRecords, the source all else.

A sample is a dict of tensors, the same for every format, with the types that columns have in TFRecords:

    text, bytes                     tf.string, a null is ""
    integers, bool                  tf.int64 and tf.bool, a null is 0 and False
    floats                          tf.float32, a null is NaN
    lists of these                  tensors of one dimension, a null is empty
    dates, decimals, nested values  tf.string, as JSON has them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.core.errors import DamagedShard, UsageError
from any2ds.loading.libraries import imported, kind_of_files
from any2ds.loading.opened import OpenShards
from any2ds.loading.shards import ShardSet
from any2ds.writers.contract import Fields
from any2ds.writers.formats._example import bytes_of, feature_kind
from any2ds.writers.formats._nested import nested_columns

if TYPE_CHECKING:
    from any2ds.loading.source import Source

_SHARDS_AT_ONCE = 16  # of which samples are mixed
_LEAST_OF_A_SHARD = 4  # where fewer than one in so many records are wanted, they are read by number
_BUFFER = 1 << 20  # bytes of a file that are read at once
_DEFAULTS: dict[str, Any] = {"bytes": b"", "int64": 0, "float": float("nan")}


@dataclass(frozen=True, slots=True)
class Records:
    """The samples of a source as records of files: what a native reader has to know."""

    shards: ShardSet
    opened: OpenShards
    numbers: Sequence[int]  # of the samples in the dataset
    fields: Fields

    @property
    def are_readable(self) -> bool:
        """Whether TensorFlow reads their files as they are. Files of samples that are to be decoded are not for it: its
        errors name no sample."""
        shards = self.shards
        # Which file of several is the data differs from sample to sample.
        is_known = shards.output_format == "tfrecord" and shards.data_column is not None and not shards.members
        return is_known and shards.folder.is_local and not self.fields.decode


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as a tensor."""

    kind: str  # of a list in tf.train.Feature: bytes, int64 or float
    is_list: bool
    is_bool: bool
    to_bytes: Callable[[Any], bytes] | None  # for bytes: of a value of Python

    @classmethod
    def of(cls, type: pa.DataType) -> _Column:
        found = feature_kind(type)
        inner = type.value_type if found.is_list or pa.types.is_dictionary(type) else type
        is_bool = pa.types.is_boolean(inner)
        return cls(found.kind, found.is_list, is_bool, bytes_of(inner) if found.kind == "bytes" else None)

    def dtype(self, tf: Any) -> Any:
        return tf.bool if self.is_bool else {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[self.kind]

    def spec(self, tf: Any) -> Any:
        return tf.TensorSpec((None,) if self.is_list else (), self.dtype(tf))

    def feature(self, tf: Any) -> Any:
        """How it is parsed; records of shards that were made before it existed lack it."""
        dtype = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[self.kind]
        if self.is_list:
            return tf.io.RaggedFeature(dtype)
        return tf.io.FixedLenFeature([], dtype, self.null)

    @property
    def null(self) -> Any:
        return [] if self.is_list else _DEFAULTS[self.kind]

    def value(self, value: Any) -> Any:
        if value is None:
            return self.null
        if not self.is_list:
            return value if self.to_bytes is None else self.to_bytes(value)
        null = _DEFAULTS[self.kind]
        return [null if each is None else each if self.to_bytes is None else self.to_bytes(each) for each in value]


def dataset(source: Source, records: Records, options: Mapping[str, Any]) -> Any:
    """The samples of a source; `options` are those of its `stream`. Raises UsageError without TensorFlow."""
    tf = imported("tensorflow", "to_tf")
    columns = {name: _Column.of(type) for name, type in source.features.items()}
    stream = source.stream(**options)  # which looks at the options
    order = stream.options
    nested = nested_columns({field.name: field.type for field in records.fields.schema or ()})
    is_plain = records.are_readable and not nested.keys() & columns.keys()
    spans = _spans(records) if is_plain and order.ranks == 1 and order.even is None else None
    if spans is not None:
        found = _from_records(tf, records, spans, columns, order.window, order.seed)
    else:
        found = _from_source(tf, source, columns, options)
    return found.apply(tf.data.experimental.assert_cardinality(len(stream)))


def _from_source(tf: Any, source: Source, columns: Mapping[str, _Column], options: Mapping[str, Any]) -> Any:
    """Each iteration is the next epoch."""
    specs = {name: column.spec(tf) for name, column in columns.items()}
    decoded: dict[str, Any] = {}
    if source.is_decoded:
        if "data" in columns:
            decoded.update(_decoded_specs(tf, kind_of_files(source), channels=source.channels_of("data")))
        for member in source.members:
            if member in columns:
                kind, channels = kind_of_files(source, member), source.channels_of(member)
                decoded.update(_decoded_specs(tf, kind, member, f"{member}_rate", channels))
    values = {name: column.value for name, column in columns.items() if name not in decoded}
    epochs = count()

    def samples() -> Iterator[dict[str, Any]]:
        stream = source.stream(**options)
        stream.set_epoch(next(epochs))
        for sample in stream:
            row = {name: value(sample.get(name)) for name, value in values.items()}
            for name in decoded:
                found = sample.get(name)
                row[name] = _nothing(decoded[name]) if found is None else found
            yield row

    return tf.data.Dataset.from_generator(samples, output_signature={**specs, **decoded})


def _nothing(spec: Any) -> Any:
    """Stands for a file that a sample does not have: no pixels, no sound, no text."""
    import numpy as np

    if not spec.shape.rank:
        return "" if spec.dtype.name == "string" else 0
    return np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype)


def _decoded_specs(tf: Any, kind: str, name: str = "data", rate: str = "rate", channels: int = 3) -> dict[str, Any]:
    """Of what `decode` makes of files of one kind, which are in the column `name`. Raises UsageError."""
    if kind == "image":
        return {name: tf.TensorSpec((None, None, channels), tf.uint8)}
    if kind == "audio":
        return {name: tf.TensorSpec((None, None), tf.float32), rate: tf.TensorSpec((), tf.int64)}
    if kind == "text":
        return {name: tf.TensorSpec((), tf.string)}
    raise UsageError("to_tf: decode=True takes datasets of images, of sound or of text: load the others without it")


@dataclass(frozen=True, slots=True)
class _Spans:
    """Which records of which files are wanted: an item for each file."""

    paths: list[str]
    shards: list[int]
    firsts: list[int]  # records to pass over
    counts: list[int]  # records to read
    places: list[int]  # of its first record in `masks`
    masks: Any  # whether a record that is read is wanted; None: all are
    is_compressed: bool


def _spans(records: Records) -> _Spans | None:
    """None where it is better to read samples by number."""
    import numpy as np

    from any2ds.writers.formats.tfrecord import is_compressed

    shards = records.shards
    numbers = np.asarray(records.numbers, np.int64)
    starts = np.asarray(shards.starts, np.int64)
    if len(numbers) and (np.diff(numbers) <= 0).any():  # an order of its own
        return None
    bounds = np.searchsorted(numbers, starts)
    paths, firsts, counts, places, masks, total = [], [], [], [], [], 0
    with_samples = np.flatnonzero(np.diff(bounds)).tolist()
    for shard in with_samples:
        wanted = numbers[bounds[shard] : bounds[shard + 1]] - starts[shard]
        first, size = int(wanted[0]), int(wanted[-1] - wanted[0]) + 1
        mask = np.zeros(size, bool)
        mask[wanted - first] = True
        paths.append(f"{shards.folder.path}/{shards.names[shard]}")
        firsts.append(first)
        counts.append(size)
        places.append(total)
        masks.append(mask)
        total += size
    is_packed = False
    if paths:
        records.opened.check(with_samples[0])
        is_packed = is_compressed(Path(paths[0]))  # which have no samples by number
    if len(numbers) * _LEAST_OF_A_SHARD < total + sum(firsts) and not is_packed:
        return None
    has_gaps = total > len(numbers)
    return _Spans(paths, with_samples, firsts, counts, places, np.concatenate(masks) if has_gaps else None, is_packed)


def _checks(records: Records) -> tuple[Callable[[bytes, int], bytes], Callable[[int, int], bytes]]:
    """Are called before TensorFlow reads a file, and where it did not get so many records of it.

    Both raise DamagedShard, of which TensorFlow makes an UnknownError with its text.
    """
    opened = records.opened

    def check(path: bytes, shard: int) -> bytes:
        opened.check(int(shard))
        return path

    def fail(shard: int, wanted: int) -> bytes:
        found = opened.check(int(shard), completely=True)
        text = f"it has {found:,} records, and should have {wanted:,}" if found < wanted else "it could not be read"
        raise opened.named(int(shard), DamagedShard(text))

    return check, fail


def _from_records(
    tf: Any, records: Records, spans: _Spans, columns: Mapping[str, _Column], window: int, seed: int
) -> Any:
    """In the order of the dataset; with a `window`, files in a random order, some at once, shuffled within it."""
    compression = "GZIP" if spans.is_compressed else ""
    masks = None if spans.masks is None else tf.constant(spans.masks)

    check, fail = _checks(records)

    def called(function: Callable[..., bytes], *given: Any) -> Any:
        found = tf.numpy_function(function, given, tf.string, stateful=False)  # else no iterator could be saved
        return tf.ensure_shape(found, ())

    def read(path: Any, shard: Any, first: Any, size: Any, place: Any) -> Any:
        """Of one file. TensorFlow's errors name no file, and it passes over a record that is cut off: where a file
        gives fewer records than it should, `fail` says why."""
        path = called(check, path, shard)
        found = tf.data.TFRecordDataset(path, compression, buffer_size=_BUFFER).ignore_errors().skip(first)
        trouble = tf.data.Dataset.from_tensors((shard, first + size)).map(partial(called, fail))
        found = found.concatenate(trouble).take(size)
        if masks is None:
            return found
        wanted = tf.data.Dataset.from_tensor_slices(masks[place : place + size])
        return tf.data.Dataset.zip((found, wanted)).filter(lambda _, is_wanted: is_wanted).map(lambda found, _: found)

    data = str(records.shards.data_column)
    features = {data if name == "data" else name: column.feature(tf) for name, column in columns.items()}

    def parse(record: Any) -> Any:
        found = tf.io.parse_single_example(record, features)
        sample = {}
        for name, column in columns.items():
            value = found[data if name == "data" else name]
            sample[name] = tf.cast(value, tf.bool) if column.is_bool else value
        return sample

    items = (
        tf.constant(spans.paths, tf.string),
        *(tf.constant(each, tf.int64) for each in (spans.shards, spans.firsts, spans.counts, spans.places)),
    )
    files = tf.data.Dataset.from_tensor_slices(items)
    if window:
        files = files.shuffle(max(1, len(spans.paths)), seed)
        found = files.interleave(read, _SHARDS_AT_ONCE, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        found = found.shuffle(window, seed)
    else:
        found = files.flat_map(read)
    return found.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)
