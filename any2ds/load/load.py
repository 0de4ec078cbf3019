"""`any2ds.load`: opens a finished dataset for training."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.parsers import byte_count
from any2ds.core import layout, plugins
from any2ds.core.errors import (
    Any2dsError,
    DamagedShard,
    MissingColumns,
    OptionError,
    OutputError,
    UsageError,
    access_text,
    redacted,
)
from any2ds.core.metadata import SPLIT
from any2ds.core.samples import CAPTION, is_text_member, member_column, row_key
from any2ds.dataset.features import KEY_COLUMN
from any2ds.dataset.places import of_place
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.load import expressions, hashes, splits
from any2ds.load.copies import ShardCopies
from any2ds.load.features import RecipeFeatures
from any2ds.load.files import cache_folder
from any2ds.load.metadata import Rows, schema_of
from any2ds.load.opened import OpenShards
from any2ds.load.selection import Selection, Span
from any2ds.load.shards import ShardSet
from any2ds.load.source import Source
from any2ds.storage.patience import Patience
from any2ds.storage.stores import Stores
from any2ds.writers.contract import Fields

_COPIES = "20GiB"
_KEYS_AT_ONCE = 100_000
_LOOKED_AT = 100  # samples, for the names of columns where there are no metadata
_OF_FILES = ("data", "key", "ext")


def load(  # the public options, by keyword
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    decode: bool = False,
    check: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Mapping[str, Any]] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    retry_seconds: float = 120.0,
) -> Source:
    """The samples of a finished dataset, by number: `len(ds)`, `ds[7]`, `ds[100:200]`, `ds[[5, 1, 9]]`, iteration.

    It takes any folder that any2ds, img2dataset or any2dataset wrote, and folders of webdataset's tar files, local or
    remote. Shards that are not finished when it is opened are left out.

    folder: path or URL of the dataset, or the name of a recipe's that was built, as in flowers/small:1.1.0
    split: a part, as in TensorFlow Datasets: train[:80%], train[-1000:], hash[:80%] (by a hash of the key),
        test (where the column `split` says so), joined by +; see also `any2ds.split` (default: all samples)
    where: a condition on the metadata, such as "width >= 512 and label in (1, 2)", or an expression of pyarrow
    columns: which columns a sample has, `data` among them (default: all)
    decode: images become arrays, sound arrays with its `rate`, text str, videos what decodes frames on demand (see
        docs/loading.md); a file that cannot be decoded is an error that names its key
    check: compare each file with its hash in the metadata when it is read: one that was garbled is an error that names
        shard and key (default: `any2ds verify` compares all of them, once)
    data_dir: folder in which datasets are found by name (default: ANY2DS_DATA_DIR, else ~/any2ds)
    storage_options: credentials and settings of stores, by protocol: {'s3': {'endpoint_url': 'https://...'}}
    cache_dir: folder for copies of remote shards and for indexes that had to be made (default: ANY2DS_CACHE, else
        any2ds in the user's cache folder)
    cache_bytes: copy the shards that are read to cache_dir, and keep those used last up to so many bytes, such as
        "50GiB" (default: byte ranges are read, without a copy; 20GiB for arrayrecord and files, which need one)
    retry_seconds: for how long what a store does not answer, or answers with an error of its own, is asked for again;
        the last answer is waited for, up to 30 seconds without a byte (default: two minutes)

    Raises OutputError for a folder that is no dataset or has no finished shard, DamagedShard where files of it are
    missing or damaged, and UsageError for a split, condition or column that it does not have.
    """
    if not retry_seconds >= 0:
        raise OptionError(f"invalid retry_seconds={retry_seconds!r}: expected seconds, 0 or more")
    if isinstance(columns, Iterable) and not isinstance(columns, str):
        columns = tuple(str(name) if isinstance(name, str) else name for name in columns)  # also texts of numpy
    _check_types(split, where, columns)
    stores = Stores(storage_options, Patience.of_seconds(retry_seconds))
    place = os.fspath(folder)
    with _opening(place):
        shards = of_place(ShardSet.of, place, os.fspath(data_dir) if data_dir is not None else None, stores)
        recipe = _recipe(shards)
    try:
        most = byte_count(_COPIES if cache_bytes is None else cache_bytes)
    except ValueError as error:
        raise OptionError(f"invalid cache_bytes={cache_bytes!r}: expected {error}") from None
    copies = ShardCopies(Path(cache_dir) if cache_dir is not None else cache_folder(), most)
    if not shards.total:  # other tools' tar files, whose counts are in their indexes
        opened = OpenShards(shards, Fields(), copies)
        shards = replace(shards, starts=array("Q", accumulate(opened.counts(), initial=0)))
    schema = schema_of(shards)
    compared = _hashes(shards, schema) if check else ()
    known = (*shards.members, *(recipe.known() if recipe is not None else ()))
    further: tuple[pa.Field, ...] = ()
    if schema is not None and recipe is None:
        further = _declared(shards, {*known, *schema.names})
    described = _found(shards, copies, columns) if schema is None else [field.name for field in further]
    wanted = _wanted(columns, schema, (*known, *described))
    fields = Fields(wanted, schema, shards.data_column, shards.members, further, decode, recipe, compared)
    opened = OpenShards(shards, fields, copies, is_copied=cache_bytes is not None)
    rows = Rows(shards, schema, opened)
    condition = _condition(where, schema)
    selection = _selection(rows, shards, split, condition, recipe.recipe if recipe is not None else None)
    return Source(shards, opened, selection, fields)


@contextmanager
def _opening(place: str) -> Iterator[None]:
    """Raises OutputError for what a store or its library raises inside of the block."""
    try:
        yield
    except Any2dsError:
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"{redacted(place)!r} cannot be opened: {access_text(error)}") from error


def _recipe(shards: ShardSet) -> RecipeFeatures | None:
    """Of the recipe that has made the dataset, if one has."""
    if not shards.is_own:
        return None
    try:
        found = RecipeFile.of(shards.in_this_process().folder)
    except ValueError as error:
        raise DamagedShard(f"{redacted(shards.folder.url)!r}: its {layout.RECIPE_FILE}: {error}") from error
    if found is None:
        return None
    return RecipeFeatures(found, bool(plugins.load("writers", shards.output_format).has_members), bool(shards.members))


def _declared(shards: ShardSet, known: Set[str]) -> tuple[pa.Field, ...]:
    """The files that steps have added to samples, where these are files and not columns; not the text of a document,
    which is a caption."""
    if not plugins.load("writers", shards.output_format).has_members:
        return ()
    found = {member_column(ext): ext for ext in shards.further if ext.lower() != CAPTION}
    return tuple(
        pa.field(name, pa.string() if is_text_member(ext) else pa.binary())
        for name, ext in found.items()
        if name not in known
    )


def _wanted(
    columns: Sequence[str] | None, schema: pa.Schema | None, others: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Raises MissingColumns."""
    if columns is None:
        return None
    known = [*_OF_FILES, *others, *(schema.names if schema is not None else ())]
    if missing := [name for name in columns if name not in known]:
        raise MissingColumns(missing, list(dict.fromkeys(known)), "columns")
    return tuple(dict.fromkeys(columns))


def _found(shards: ShardSet, copies: ShardCopies, columns: Sequence[str] | None) -> dict[str, None]:
    """What the first samples of a dataset without metadata have, as far as it takes to find the columns. Raises
    DamagedShard."""
    if not shards.total:
        return dict.fromkeys(columns or ())
    found: dict[str, None] = {}
    if missing := set(columns or ()).difference(_OF_FILES):
        opened, first = OpenShards(shards, Fields(), copies), next(n for n in range(len(shards)) if shards.samples(n))
        for some in (range(1), range(1, min(_LOOKED_AT, shards.samples(first)))):  # they may differ from each other
            if not found.keys() >= missing:
                found.update(dict.fromkeys(name for sample in opened.get_many(first, some) for name in sample))
    return found


def _check_types(split: Any, where: Any, columns: Any) -> None:
    """Raises UsageError."""
    if not isinstance(split, (str, NoneType)):
        raise UsageError(f"split takes a text, such as 'train[:80%]', not {split!r}")
    if not isinstance(where, (str, pc.Expression, NoneType)):
        raise UsageError(f"where takes a text, such as 'width >= 512', or an expression of pyarrow, not {where!r}")
    if isinstance(columns, str):
        raise UsageError(f"columns takes a list of names: [{columns!r}]")
    is_list = columns is None or (isinstance(columns, tuple) and all(isinstance(name, str) for name in columns))
    if not is_list:
        raise UsageError(f"columns takes a list of names, such as ['data', 'caption'], not {columns!r}")


def _hashes(shards: ShardSet, schema: pa.Schema | None) -> tuple[str, ...]:
    """The columns to compare files with, the one that takes least time first. Raises UsageError."""
    there = {*(schema.names if schema is not None else ())}
    known = tuple(
        name
        for name in hashes.CHEAPEST
        if name in shards.hashes and there.intersection(hashes.columns([name], shards.members))
    )
    if not known:
        raise UsageError(f"check: {redacted(shards.folder.url)!r} has no hashes of its files as they are stored")
    return known


def _condition(where: str | pc.Expression | None, schema: pa.Schema | None) -> pc.Expression | None:
    if isinstance(where, str):
        return expressions.parse(
            where, dict(zip(schema.names, schema.types, strict=True)) if schema is not None else {}
        )
    return where


def _selection(
    rows: Rows, shards: ShardSet, split: str | None, condition: pc.Expression | None, recipe: RecipeFile | None
) -> Selection:
    if split is None:
        spans = [Span(range(shards.total))]
    else:
        spans = [_span(rows, shards, part, recipe) for part in splits.parse(split)]
        if not any(span.numbers for span in spans):
            return Selection((), condition)
    if condition is not None:
        has_masks = any(span.mask is not None for span in spans)
        some, first = (rows, 0) if has_masks else rows.around([span.numbers for span in spans])
        mask = some.mask(condition)
        spans = [span.where(mask, first) for span in spans]
    return Selection.of(spans, condition)


def _span(rows: Rows, shards: ShardSet, part: splits.Part, recipe: RecipeFile | None) -> Span:
    """The samples of one part of a split. Raises UsageError."""
    if part.name == splits.ALL or (part.name == splits.TRAIN and not rows.has(SPLIT)):
        if part.by_hash:
            return Span.of_mask(_by_hash(rows, part, shards.is_own))
        return Span(part.span(shards.total, shards.starts))
    if part.name == splits.HASH:
        return Span.of_mask(_by_hash(rows, part, shards.is_own))
    is_of_recipe = recipe is not None and part.name in {each.name for each in recipe.splits}
    if recipe is not None and is_of_recipe and not part.by_hash and not shards.retries:
        return Span(_of_recipe(shards, recipe, part))
    return _named(rows, part, shards.is_own, is_of_recipe)


def _hashed(keys: Iterable[pa.ChunkedArray], part: splits.Part, is_own: bool) -> pa.BooleanArray:
    """The samples whose key has a hash of the part: that of its row, in datasets of any2ds."""
    parts = [pa.array([], pa.bool_())]
    for several in keys:
        for start in range(0, len(several), _KEYS_AT_ONCE):  # texts of Python take 60 bytes each
            some = several.slice(start, _KEYS_AT_ONCE).to_pylist()
            found = splits.in_hashes(map(row_key, some) if is_own else some, part.hashes())
            parts.append(pa.Array.from_buffers(pa.uint8(), len(found), [None, pa.py_buffer(found)]).cast(pa.bool_()))
    return pa.concat_arrays(parts)


def _by_hash(rows: Rows, part: splits.Part, is_own: bool) -> pa.BooleanArray:
    """By the keys that a recipe gave its samples, else by those of the samples."""
    if rows.has(KEY_COLUMN):
        return _hashed(rows.each_column(KEY_COLUMN), part, is_own=False)
    return _hashed(rows.each_keys(), part, is_own=is_own)


def _of_recipe(shards: ShardSet, recipe: RecipeFile, part: splits.Part) -> range:
    """The samples of a split of a recipe, which has shards of its own, or a span of them. Raises UsageError."""
    (own,) = (each for each in recipe.splits if each.name == part.name)
    numbers = [number for number, shard_id in enumerate(shards.shard_ids) if shard_id in own.numbers]
    if not numbers:
        return range(0)
    first, last = numbers[0], numbers[-1] + 1
    starts = [shards.starts[number] - shards.starts[first] for number in range(first, last + 1)]
    span = part.span(starts[-1], starts)
    return range(span.start + shards.starts[first], span.stop + shards.starts[first])


def _named(rows: Rows, part: splits.Part, is_own: bool, is_known: bool) -> Span:
    """The samples whose column `split` has the name of the part, or some of them.

    Raises UsageError if there are none, unless the split `is_known`.
    """
    if not rows.has(SPLIT):
        raise UsageError(f"split: there is no {part.name!r}: all samples are train, and no column is called {SPLIT}")
    found = rows.mask(pc.field(SPLIT) == part.name)
    if part.by_hash:
        return Span.of_mask(pc.and_(found, _by_hash(rows, part, is_own)))
    numbers = pc.indices_nonzero(found)
    if not len(numbers) and not is_known:
        raise UsageError(f"split: no sample has {part.name!r} in the column {SPLIT}")
    span, named = part.span(len(numbers)), Span.of_mask(found)
    if len(span) == len(numbers):
        return named
    if not span:
        return Span.of_mask(pa.repeat(pa.scalar(False), len(found)))
    return named.part(range(numbers[span[0]].as_py(), numbers[span[-1]].as_py() + 1))
