"""A dataset as a sequence of samples, which every training framework takes as it is."""

from __future__ import annotations

import operator
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any, cast, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from any2ds.core.errors import UsageError, redacted
from any2ds.core.failures import SUCCESS
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.load import ahead, arrow, huggingface, tf_data
from any2ds.load.ahead import Stored
from any2ds.load.delivery import Delivery
from any2ds.load.errors import Failed, LeftOut, OnError
from any2ds.load.libraries import imported
from any2ds.load.metadata import Rows, dataset_of
from any2ds.load.opened import OpenShards, StoredSample
from any2ds.load.selection import Selection
from any2ds.load.shards import ShardSet
from any2ds.load.stream import Stream, StreamOptions
from any2ds.writers.contract import Fields

Sample = dict[str, Any]
_READ_AT_ONCE = 64  # samples of an iteration
_COLUMNS_SHOWN = 8
_FINGERPRINT_BYTES = 7  # which every library saves as an integer
_USUAL_BYTES = 100_000


class Source(Sequence[Sample]):
    """The samples of a dataset, in the order of its list: `len`, `[7]`, `[-1]`, `[100:200]`, `[[5, 1, 9]]`, iteration.

    A sample is a dict of `key`, `data` (the file), `ext`, and the columns of the metadata. Reading raises DamagedShard,
    which names shard and key. It can be pickled, used after a fork and by several threads; a slice is a list.
    """

    def __init__(  # what it reads, and what becomes of it
        self,
        shards: ShardSet,
        opened: OpenShards,
        selection: Selection,
        fields: Fields,
        delivery: Delivery,
        on_error: OnError = "raise",
    ) -> None:
        self._shards, self._opened, self._selection, self._fields = shards, opened, selection, fields
        self._delivery = delivery
        self._on_error = on_error
        self._left_out = LeftOut(on_error)
        self._numbers = selection.numbers
        self._starts = shards.starts

    def __reduce__(self) -> tuple[type[Source], tuple[Any, ...]]:
        return Source, (self._shards, self._opened, self._selection, self._fields, self._delivery, self._on_error)

    def _copy(self, **changes: Any) -> Source:
        """A copy with another selection, delivery or `on_error`."""
        own = {"selection": self._selection, "delivery": self._delivery, "on_error": self._on_error, **changes}
        opened = self._opened.with_columns(own["delivery"].stored) if "delivery" in changes else self._opened
        return Source(self._shards, opened, fields=self._fields, **own)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, item: int) -> Sample: ...
    @overload
    def __getitem__(self, item: slice | Sequence[int]) -> list[Sample]: ...
    def __getitem__(self, item: int | slice | Sequence[int]) -> Sample | list[Sample]:
        if type(item) is not int:
            if isinstance(item, slice):
                return list(self.given(self._many(self._numbers[item])))
            if isinstance(item, Iterable) and not _is_scalar(item):
                return self.__getitems__(_listed(item))
            item = _index(item)
        try:
            number = self._numbers[item]
        except IndexError:
            raise self._no_sample(item) from None
        shard = bisect_right(self._starts, number) - 1
        stored = self._opened.get(shard, number - self._starts[shard])
        return self._delivered(shard, stored) if self._delivery.is_needed else stored

    def __getitems__(self, items: Sequence[int]) -> list[Sample]:
        """Several samples, in this order; PyTorch's DataLoader and Hugging Face's datasets ask for batches by it."""
        return list(self.given(self.stored(items)))

    _getitems = __getitems__  # Grain's name for it

    def stored(self, items: Sequence[int]) -> list[Stored]:
        """Several samples, in this order, as they lie in their shards: `given` decodes each when it is asked for it."""
        numbers, count = self._numbers, len(self)
        wanted = [_index(item) for item in items]
        for each in wanted:
            if not -count <= each < count:
                raise self._no_sample(each)
        return self._many([numbers[each] for each in wanted])

    def _no_sample(self, number: int) -> IndexError:
        return IndexError(f"no sample {number}: {f'0 to {len(self) - 1}' if len(self) else 'there are none'}")

    def __iter__(self) -> Iterator[Sample]:
        numbers = self._numbers
        if not self.is_local:
            chunks = (numbers[first:stop] for first, stop in pairwise(self._chunk_starts()))
            return self.given(ahead.in_order(self._many, chunks))
        starts = range(0, len(numbers), _READ_AT_ONCE)
        parts = (self._many(numbers[start : start + _READ_AT_ONCE]) for start in starts)
        return self.given(chain.from_iterable(parts))

    def given(self, stored: Iterable[Stored]) -> Iterator[Sample]:
        """Samples that were read, as they are given, without those that `on_error` or `transform` leaves out."""
        found = cast("Iterator[Sample]", map(self.finished, stored))
        leaves_none_out = self._on_error == "raise" and self._delivery.transform is None
        return found if leaves_none_out else self.passing(found)

    def finished(self, stored: Stored) -> Sample | None:
        """A sample that was read, as it is given; None if `on_error` leaves it out. Raises DamagedShard."""
        shard, sample = stored
        try:
            if isinstance(sample, Exception):
                raise sample
            return self._delivered(shard, sample) if self._delivery.is_needed else sample
        except Exception as error:
            if self._on_error == "raise":
                raise
            return cast("Sample | None", self._left_out.instead(error))

    def _delivered(self, shard: int, sample: Sample) -> Sample:
        """Raises DamagedShard, and whatever the user's function raises."""
        delivery = self._delivery
        try:
            found: Sample = delivery(sample, partial(self._shards.describe, shard))
        except Exception as error:
            raise self._opened.named(shard, error) from error
        return found if delivery.transform is None else delivery.transform(found)

    @property
    def left_out(self) -> int:
        """How many samples this process has left out because of `on_error`."""
        return self._left_out.count

    def passing(self, samples: Iterable[Sample | None]) -> Iterator[Sample]:
        """The samples that are there; at the end the log says how many were left out."""
        return self._left_out.passing(samples)

    def _chunk_starts(self) -> Iterator[int]:
        """The starts of chunks of an iteration over a store, and its end; the first are small, as few may be wanted."""
        at, size, most = 0, 1, ahead.chunk_size(self.sample_bytes)
        while at < len(self):
            yield at
            at, size = at + size, min(most, 2 * size)
        yield len(self)

    def __repr__(self) -> str:
        folder, count = redacted(self._shards.folder.url), len(self)
        names = list(self.features)
        columns = ", ".join(names[:_COLUMNS_SHOWN])
        if (more := len(names) - _COLUMNS_SHOWN) > 0:
            columns += f" and {more} more column{'' if more == 1 else 's'}"
        return f"<any2ds {folder!r}: {count:,} sample{'' if count == 1 else 's'} ({columns})>"

    @cached_property
    def features(self) -> dict[str, pa.DataType]:
        """Column -> Arrow type of what a sample has, as far as the dataset describes it: of further files those of a
        recipe, those that steps declare, those that are columns (parquet, records), and those that `columns` name."""
        own = {"data": pa.binary(), "key": pa.string(), "ext": pa.string()}
        described = {field.name: field.type for field in (*(self._fields.schema or ()), *self._fields.further)}
        members = dict.fromkeys(self._fields.members, pa.binary())
        known, wanted = {**own, **members, **described}, self.columns
        known |= dict.fromkeys(self._delivery.data_names, pa.binary())
        if self._delivery.features is not None:
            return dict(self._delivery.features.types(known, wanted))
        return known if wanted is None else {name: known[name] for name in wanted if name in known}

    @property
    def keys(self) -> list[str]:
        """The keys of its samples, in order; read anew each time."""
        keys, numbers = Rows(self._shards, self._fields.schema, self._opened).keys(), self._numbers
        if isinstance(numbers, range):
            return list(keys.slice(numbers.start, len(numbers)).to_pylist())
        return list(keys.take(pa.array(numbers, pa.uint64())).to_pylist())

    @property
    def metadata(self) -> pads.Dataset:
        """The rows of the stored samples of the dataset, those that meet `where`, as a dataset of pyarrow.

        Nothing is read yet; `to_table().to_pandas()` is a DataFrame. A `split` does not show in it: its rows are
        `metadata.filter(pc.field("key").isin(keys))`. Raises UsageError where there are no metadata.
        """
        if self._fields.schema is None:
            raise UsageError(f"{redacted(self._shards.folder.url)!r} has no metadata")
        rows = dataset_of(self._shards, self._fields.schema).filter(pc.field("status") == SUCCESS)
        return rows if self._selection.where is None else rows.filter(self._selection.where)

    @cached_property
    def fingerprint(self) -> int:
        """A number that differs for other samples: those of another split, condition or dataset.

        Datasets differ by how many samples their shards have, up to the last one that is wanted, and how many bytes
        these; those of img2dataset by samples alone. It is the same wherever the dataset lies, in every format, and
        after shards were added; but a web server does not say the sizes of other tools' tar files when it lists them.
        """
        digest = sha256(self._selection.digest())
        if len(self):
            digest.update(self._shards.digest_to(bisect_right(self._starts, self._selection.last) - 1))
        return int.from_bytes(digest.digest()[:_FINGERPRINT_BYTES], "big")

    @property
    def sample_bytes(self) -> int:
        """About the size of a sample in its shard; a guess where the sizes of the shards are not known."""
        known = sum(self._shards.data_bytes)
        return known // max(1, self._shards.total) if known else _USUAL_BYTES

    @property
    def is_local(self) -> bool:
        """Whether the dataset lies on this machine."""
        return self._shards.folder.is_local

    def stream(
        self,
        *,
        shuffle: bool = False,
        seed: int = 0,
        window: int = 10_000,
        batch_size: int | None = None,
        even: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Stream:
        """The samples as a stream, for a DataLoader of PyTorch or any loop: ranks and workers share them out.

        With `shuffle`, blocks of neighbouring samples in an order of their own, shuffled within `window` samples; it
        depends on `seed` and the epoch alone. A loader that is to be resumed is a StatefulDataLoader of torchdata.

        batch_size: that of the DataLoader, whose batches are then the same with any number of workers (default: each
            worker takes every n-th sample, and only a loader of the same size can be resumed)
        even: "drop" leaves out, "pad" repeats as many samples as it takes for all ranks to have equally many batches
            (default: each sample comes once, and some ranks may have one more)
        rank, world_size: which process of how many (default: those of torch.distributed, torchrun, srun or mpirun, when
            an iteration begins)

        Raises UsageError for values that are not possible.
        """
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle={shuffle!r}: expected True or False; the samples to shuffle among are window=")
        if window < 1:
            raise UsageError(f"window={window}: it takes at least one sample")
        options = StreamOptions(seed, window if shuffle else 0, batch_size, even, rank, world_size)
        if "torch" not in sys.modules:
            return Stream(self, options)
        from any2ds.load.torch_stream import TorchStream

        return TorchStream(self, options)  # which a DataLoader knows for an IterableDataset

    @cached_property
    def shards(self) -> list[Source]:
        """Its samples shard by shard, each a source of its own, to be interleaved."""
        parts = (self._selection.within(range(first, stop)) for first, stop in pairwise(self._starts))
        return [self._copy(selection=part) for part in parts if len(part.numbers)]

    def read_options(self, *, num_workers: int = 0, num_threads: int | None = None) -> Any:
        """The `ReadOptions` of Grain that suit it: `MapDataset.source(ds)….to_iter_dataset(ds.read_options())`.

        `num_workers` is that of `mp_prefetch` where that follows, each of whose processes reads with these options.
        `num_threads` read ahead, and map; None: one for local files (none in a worker), up to 16 for a store. Without
        any (0) a sample is read when it is taken, which takes the least CPU time where `map` does little.
        """
        imported("grain", "read_options")
        from any2ds.load.grain_parts import read_options

        return read_options(self.is_local, num_workers, num_threads)

    def to_grain(self) -> Any:
        """A `MapDataset` of Grain, as `MapDataset.source(ds)` is; a sample takes two thirds of the CPU time through it,
        since Grain's counters of bytes and latency are left out."""
        imported("grain", "to_grain")
        from any2ds.load.grain_parts import Samples

        return Samples(self)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that were asked for; None: all."""
        return self._delivery.columns

    @property
    def is_decoded(self) -> bool:
        """Whether its files are arrays and texts."""
        return self._delivery.decode

    @property
    def members(self) -> tuple[str, ...]:
        """The columns of the files of a sample, where it has several; else none."""
        return self._fields.members

    @property
    def has_metadata(self) -> bool:
        """Whether there is a table of metadata beside the data, which other tools' tar files lack."""
        return self._fields.schema is not None

    @property
    def further(self) -> tuple[str, ...]:
        """Extensions of the files that steps have added to samples, as far as the dataset says."""
        return self._shards.further

    def channels_of(self, name: str) -> int:
        """The number of channels of decoded images: of `data`, or of a member."""
        features = self._delivery.features
        return 3 if features is None else features.channels.get(name, 3)

    def extensions_of(self, member: str) -> set[str]:
        """The extensions of the files, or of one of several files of a sample, as far as the metadata have them; else
        that of the first."""
        name = f"{member}_ext" if member else "ext"
        if self._fields.schema is not None and name in self._fields.schema.names:
            return set(self.metadata.to_table(columns=[name])[name].unique().drop_null().to_pylist())
        first = self.undecoded(name)
        return {first[0][name]} if len(first) else set()

    @property
    def recipe(self) -> RecipeFile | None:
        """The recipe file of the recipe that has made it: `ds.recipe.features["label"].names`; None if none has."""
        return None if self._delivery.features is None else self._delivery.features.recipe

    @property
    def as_stored(self) -> Source:
        """A source of the same samples, with the columns of their shards in the place of a recipe's features."""
        own = self._delivery
        return self if own.features is None else self._copy(delivery=replace(own, columns=own.asked, features=None))

    def undecoded(self, *columns: str, with_features: bool = False) -> Source:
        """A source of the same samples with files as bytes, and these columns as well; a recipe's features as they are
        stored, or by their names."""
        own = self._delivery
        wanted = own.columns if with_features or own.features is None else own.asked
        if wanted is not None:
            wanted = tuple(dict.fromkeys((*wanted, *columns)))
        features = own.features if with_features else None
        return self._copy(delivery=replace(own, columns=wanted, decode=False, features=features))

    def with_failures(self) -> Source:
        """A copy with a `Failed` in the place of each one whose error would end an iteration."""
        return self._copy(on_error=Failed) if self._on_error == "raise" else self

    def without_transform(self, name: str) -> Source:
        """Itself. Raises UsageError with a `transform`, whose results have no columns that are known before."""
        if self._delivery.transform is not None:
            raise UsageError(f"{name} has the columns of the dataset: open it without transform")
        return self

    def to_tf(self, **stream: Any) -> Any:
        """A `tf.data.Dataset` of dicts; `stream` are the options of `stream`. Each iteration is the next epoch.

        Samples come from a Python generator. See docs/tensorflow.md, also for TensorFlow's own reading of tfrecord.
        """
        return tf_data.dataset(self.without_transform("to_tf").as_stored, stream)

    def to_hf(self, *, streaming: bool = False, **options: Any) -> Any:
        """A `Dataset` of Hugging Face's library, which copies the samples into its cache, or an `IterableDataset`,
        which does not. Images and sound are decoded by that library; those of a recipe have its features. `options`
        are those of its `from_generator`."""
        return huggingface.dataset(self.without_transform("to_hf"), self._shards, streaming, options)

    def to_webdataset(self, **stream: Any) -> Any:
        """A pipeline of webdataset: `.decode()`, `.to_tuple()` …; `stream` are the options of `stream`.

        Each iteration is the next epoch, counted since `set_epoch(epoch)`, a method of the pipeline; several ranks have
        the order of epoch 0 until it is called.
        """
        imported("webdataset", "to_webdataset")
        from any2ds.load.webdataset_parts import Pipeline

        return Pipeline(self.without_transform("to_webdataset"), stream)

    def to_arrow(self) -> pa.RecordBatchReader:
        """The samples in record batches of `features`, read one after the other; files are bytes. The first file of a
        recipe's samples has its own name, and is not there as `data` as well unless `columns` say so."""
        return arrow.reader(self.without_transform("to_arrow"))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """As DuckDB, Polars, pandas and pyarrow take it."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_spark(self, session: Any) -> Any:
        """A DataFrame of a session of Spark: the samples, read shard by shard by its workers; files are bytes."""
        return arrow.spark(self.without_transform("to_spark"), session)

    def _many(self, numbers: Sequence[int]) -> list[Stored]:
        """Samples of the dataset, by their numbers in it, in this order; they are read shard by shard."""
        starts = self._starts
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        found: list[Stored] = [(0, {})] * len(numbers)
        groups: list[tuple[int, list[int]]] = []  # shard, and numbers in it
        place = 0
        while place < len(order):
            shard = bisect_right(starts, numbers[order[place]]) - 1
            first, stop = starts[shard], starts[shard + 1]
            own: list[int] = []
            while place < len(order) and (number := numbers[order[place]]) < stop:
                own.append(number - first)
                place += 1
            groups.append((shard, own))
        places = iter(order)
        for (shard, _), samples in zip(groups, self._read(groups), strict=True):
            for sample in samples:
                found[next(places)] = shard, sample
        return found

    def _read(self, groups: Sequence[tuple[int, list[int]]]) -> Iterable[list[StoredSample]]:
        if self.is_local:
            return (self._opened.get_many(*group) for group in groups)
        return self._opened.get_across(groups)


def _is_scalar(item: Any) -> bool:
    """Whether it is an array or tensor without a dimension, which has a method for iteration nevertheless."""
    return getattr(item, "ndim", None) == 0


def _listed(items: Iterable[Any]) -> list[Any]:
    """Raises TypeError for masks, and for what is not meant as a list of numbers."""
    if isinstance(items, (str, bytes, bytearray, Mapping)):
        raise _not_a_number(items)
    if _is_bool(getattr(items, "dtype", None)):
        raise _a_mask()
    return list(items)


def _index(item: Any) -> int:
    """Raises TypeError for what is no number."""
    if type(item) is int:
        return item
    if isinstance(item, bool) or _is_bool(getattr(item, "dtype", None)):
        raise _a_mask()
    try:
        return operator.index(item)
    except TypeError:
        raise _not_a_number(item) from None


@cache
def _is_bool(dtype: Any) -> bool:
    """Whether a dtype of numpy, PyTorch, pandas, JAX, TensorFlow … is that of booleans."""
    return "bool" in str(dtype).lower()


def _not_a_number(item: Any) -> TypeError:
    return TypeError(f"samples are read by number, as in ds[7], not by {item!r}")


def _a_mask() -> TypeError:
    return TypeError("samples are read by number, not by True and False; those of a mask: ds[numpy.flatnonzero(mask)]")
