"""Batches of samples for a DataLoader: columns are stacked where they can be, else padded or lists."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from any2ds.core.errors import UsageError
from any2ds.load.libraries import imported

_NONE = ("mask", "drop")


def collate(samples: Sequence[Mapping[str, Any]], *, pad: float | None = None, none: str = "mask") -> dict[str, Any]:
    """A batch: column -> the values of all samples. Give it to a DataLoader as its `collate_fn`.

    Numbers, bools, arrays of one shape and lists of numbers of one length become one array, a tensor where torch is
    imported. Arrays and lists of several shapes are padded with `pad`, behind their end, if it is given; the batch has
    their shapes in `<column>_shape` then. All else is a list: texts, bytes, images of several sizes without `pad`.

    pad: the number with which arrays of several shapes are filled up (default: they are a list)
    none: "mask" has 0 in the place of a null in an array, and in `<column>_mask` which samples have a value (only in
        batches with a null; a batch of nulls alone is a list); a null in a list stays None. "drop" leaves out samples
        with a null in any column

    For other values than these: `functools.partial(any2ds.collate, pad=0)`. Raises UsageError for an unknown `none`.
    """
    if none not in _NONE:
        raise UsageError(f"invalid none={none!r}: expected one of {', '.join(_NONE)}")
    if none == "drop":
        samples = [sample for sample in samples if not any(value is None for value in sample.values())]
    batch: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        batch.update(_column(name, [sample.get(name) for sample in samples], pad))
    return batch


def _column(name: str, values: list[Any], pad: float | None) -> dict[str, Any]:
    np = imported("numpy", "collate")
    arrays = [None if value is None else _as_array(value) for value in values]
    there = [array for array in arrays if array is not None]
    has_others = any(value is not None and array is None for value, array in zip(values, arrays, strict=True))
    if not there or has_others or len({array.ndim for array in there}) > 1:
        return {name: values}
    shapes = [array.shape for array in there]
    if len(set(shapes)) > 1 and pad is None:
        return {name: values}
    largest = tuple(map(max, zip(*shapes, strict=True)))
    is_padded = len(set(shapes)) > 1
    types = [*([array for array in there if array.size] or there), *([np.min_scalar_type(pad)] if is_padded else [])]
    found = np.full((len(values), *largest), 0 if pad is None else pad, np.result_type(*types))
    for row, array in enumerate(arrays):
        if array is not None:
            place: Any = (row, *map(slice, array.shape))
            found[place] = array
    batch = {name: _tensor(found)}
    if is_padded:
        batch[f"{name}_shape"] = _tensor(np.array([(0,) * len(largest) if a is None else a.shape for a in arrays]))
    if len(there) < len(values):
        batch[f"{name}_mask"] = _tensor(np.array([array is not None for array in arrays]))
    return batch


def _as_array(value: Any) -> Any:
    """A value that can be a part of an array; None for all else."""
    import numpy as np

    if not (hasattr(value, "__array__") or isinstance(value, (bool, int, float, list))):
        return None
    try:
        found = np.asarray(value)
    except (ValueError, TypeError):  # lists of several lengths
        return None
    return found if found.dtype.kind in "biuf" else None


def _tensor(array: Any) -> Any:
    """A tensor where torch is imported and has numbers of this type; else the array."""
    if "torch" not in sys.modules:
        return array
    import torch

    try:
        return torch.from_numpy(array)
    except TypeError:
        return array
