"""`any2ds.load`: opens a finished dataset for training."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
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
from any2ds.load import errors, expressions, hashes, splits
from any2ds.load.copies import ShardCopies
from any2ds.load.decode import Sound
from any2ds.load.delivery import Delivery
from any2ds.load.features import RecipeFeatures
from any2ds.load.files import cache_folder
from any2ds.load.foreign import ForeignColumns
from any2ds.load.metadata import Rows, schema_of
from any2ds.load.opened import OpenShards
from any2ds.load.selection import Numbers, Selection, meeting
from any2ds.load.shards import ShardSet
from any2ds.load.source import Source
from any2ds.storage.patience import Patience
from any2ds.storage.stores import Stores
from any2ds.writers.contract import Fields

log = logging.getLogger(__name__)

_COPIES = "20GiB"
_KEYS_AT_ONCE = 100_000
_SPLITS_SHOWN = 20
_OF_FILES = ("data", "key", "ext")


def load(  # the public options, by keyword
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    where: str | pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    decode: bool = False,
    rate: int | None = None,
    mono: bool = False,
    fill: Mapping[str, Any] | None = None,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    on_error: str | Callable[[Exception], Any] = "raise",
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
    rate, mono: with decode, the rate in Hz to which sound is resampled, and whether its channels are mixed into one
        (default: as it is stored)
    fill: column -> what stands in the place of a null, as in {"caption": "", "label": -1}
    transform: a function of each sample, whose result is given in its place, None to leave it out of an iteration;
        processes need one that can be pickled
    on_error: "skip" leaves out samples that cannot be read, decoded or transformed, also a whole shard: they are
        counted (`ds.left_out`), and the log says how many at the end of an iteration. Or a function of the error, which
        returns a sample in the place of the one that is damaged, or None. `ds[7]` raises (default: "raise")
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
    errors.check(on_error)
    is_lenient = on_error != "raise"
    stores = Stores(storage_options, Patience.of_seconds(retry_seconds))
    place = os.fspath(folder)
    with _opening(place):
        opening = partial(ShardSet.of, is_checked=not is_lenient)
        shards = of_place(opening, place, os.fspath(data_dir) if data_dir is not None else None, stores)
        recipe = _recipe(shards)
    try:
        most = byte_count(_COPIES if cache_bytes is None else cache_bytes)
    except ValueError as error:
        raise OptionError(f"invalid cache_bytes={cache_bytes!r}: expected {error}") from None
    copies = ShardCopies(Path(cache_dir) if cache_dir is not None else cache_folder(), most)
    schema = schema_of(shards, is_lenient)
    foreign = None
    if schema is None:  # other tools' tar files
        stored = OpenShards(shards, Fields(), copies)
        shards = _counted(shards, stored, is_lenient)
        foreign = ForeignColumns(shards, stored)
    compared = _hashes(shards, schema) if check else ()
    known = (*shards.members, *(recipe.known() if recipe is not None else ()))
    further = foreign.fields if foreign is not None else ()
    if schema is not None and recipe is None:
        further = _declared(shards, {*known, *schema.names})
    names = [*_OF_FILES, *known, *(field.name for field in further), *(schema.names if schema is not None else ())]
    extensions = foreign.extensions.difference(names) if foreign is not None else ()
    wanted = _wanted(columns, [*names, *extensions], "columns")
    _wanted(fill, names, "fill")
    delivery = Delivery(
        wanted,
        shards.members,
        decode,
        Sound(rate, mono),
        recipe,
        compared,
        foreign is not None and foreign.has_classes,
        tuple(name for name in extensions if name in (wanted or ())),
        fill or {},
        transform,
    )
    fields = Fields(wanted, schema, shards.data_column, shards.members, further)
    opened = OpenShards(shards, replace(fields, columns=delivery.stored), copies, is_copied=cache_bytes is not None)
    rows = Rows(shards, schema, opened, foreign)
    condition = _condition(where, foreign.schema if foreign is not None else schema)
    selection = _selection(rows, shards, split, condition, recipe.recipe if recipe is not None else None)
    return Source(shards, opened, selection, fields, delivery, on_error)


def _counted(shards: ShardSet, opened: OpenShards, is_lenient: bool) -> ShardSet:
    """Other tools' tar files, whose samples are counted by their indexes, unless that is known. Raises DamagedShard."""
    if shards.total:
        return shards
    counts: list[int] = []
    for found in opened.counts():
        if isinstance(found, Exception):
            if not is_lenient or isinstance(found, UsageError):
                raise found
            log.warning("left out: %s", found)
        counts.append(found if isinstance(found, int) else 0)
    return replace(shards, starts=array("Q", accumulate(counts, initial=0)))


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
    """The features of the recipe that has made the dataset, if one has."""
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


def _wanted(columns: Iterable[str] | None, known: Sequence[str], option: str) -> tuple[str, ...] | None:
    """Raises MissingColumns."""
    if columns is None:
        return None
    if missing := [name for name in columns if name not in known]:
        raise MissingColumns(missing, list(dict.fromkeys(known)), option)
    return tuple(dict.fromkeys(columns))


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
    """The samples of a split that meet a condition. Raises UsageError."""
    asked = splits.parse(split) if split is not None else ()
    parts: list[Numbers] = [_part(rows, shards, part, recipe) for part in asked] or [range(shards.total)]
    if condition is not None and any(map(len, parts)):
        is_all = any(not isinstance(part, range) for part in parts)
        needed = rows.around([] if is_all else [part for part in parts if isinstance(part, range)])
        mask = rows.mask(condition, needed)
        parts = [meeting(part, mask, shards.starts[needed.start]) for part in parts]
    return Selection.of(parts, condition)


def _part(rows: Rows, shards: ShardSet, part: splits.Part, recipe: RecipeFile | None) -> Numbers:
    """The samples of one part of a split. Raises UsageError."""
    every = range(shards.total)
    is_all = part.name == splits.ALL or (part.name == splits.TRAIN and not rows.has(SPLIT))
    if part.name == splits.HASH or (is_all and part.by_hash):
        return meeting(every, _in_hashes(rows, part, shards.is_own))
    if is_all:
        return part.span(len(every), shards.starts)
    of_recipe = next((each for each in recipe.splits if each.name == part.name), None) if recipe is not None else None
    if of_recipe is not None and not part.by_hash and not shards.unnumbered:
        return _of_recipe(shards, of_recipe.numbers, part)
    if not rows.has(SPLIT):
        raise UsageError(f"split: there is no {part.name!r}: all samples are train, and no column is called {SPLIT}")
    named: Any = meeting(every, rows.mask(pc.field(SPLIT) == part.name))
    if not len(named) and of_recipe is None:
        values = {value for chunk in rows.each_column(SPLIT) for value in chunk.unique().to_pylist()}
        known = ", ".join(sorted(str(value) for value in values if value is not None)[:_SPLITS_SHOWN])
        raise UsageError(f"split: no sample has {part.name!r} in the column {SPLIT}, which has {known or 'nothing'}")
    if part.by_hash:
        return named.filter(_in_hashes(rows, part, shards.is_own).take(named))
    span = part.span(len(named))
    return named.slice(span.start, len(span))


def _in_hashes(rows: Rows, part: splits.Part, is_own: bool) -> pa.BooleanArray:
    """A mask of the samples whose key hashes into the part: a recipe's key, else in datasets of any2ds that of the row,
    so that samples of one row stay together."""
    has_own_keys = rows.has(KEY_COLUMN)
    parts = [pa.array([], pa.bool_())]
    for several in rows.each_column(KEY_COLUMN) if has_own_keys else rows.each_keys():
        for start in range(0, len(several), _KEYS_AT_ONCE):  # texts of Python take 60 bytes each
            some = several.slice(start, _KEYS_AT_ONCE).to_pylist()
            keys = [key and row_key(key) for key in some] if is_own and not has_own_keys else some
            found = splits.in_hashes(keys, part.hashes())
            parts.append(pa.Array.from_buffers(pa.uint8(), len(found), [None, pa.py_buffer(found)]).cast(pa.bool_()))
    return pa.concat_arrays(parts)


def _of_recipe(shards: ShardSet, shard_ids: Container[int], part: splits.Part) -> range:
    """The samples of a split of a recipe, which has shards of its own, or a span of them. Raises UsageError."""
    numbers = [number for number, shard_id in enumerate(shards.shard_ids) if shard_id in shard_ids]
    if not numbers:
        return range(0)
    first = shards.starts[numbers[0]]
    starts = [shards.starts[number] - first for number in range(numbers[0], numbers[-1] + 2)]
    span = part.span(starts[-1], starts)
    return range(span.start + first, span.stop + first)
