"""Casts of columns to other types, value by value where some values do not fit, and what has to come before."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def cast_each(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, list[int]]:
    """`array` in `type`, and the positions of values that do not fit, which are null.

    Raises ArrowNotImplementedError or ArrowTypeError if no value of the one type can be cast to the other.
    """
    try:
        return array.cast(type), []
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise
    except pa.ArrowException:
        pass
    done, misfits, parts = list[pa.Array](), list[int](), [(0, len(array))]
    while parts:
        start, end = parts.pop()
        try:
            done.append(array.slice(start, end - start).cast(type))
        except pa.ArrowException:
            middle = (start + end) // 2
            if middle == start:
                misfits.append(start)
                done.append(pa.nulls(1, type))
            else:
                parts += [(middle, end), (start, middle)]
    return pa.concat_arrays(done), misfits


def decoded(array: pa.Array, keeps_dictionary: bool = False) -> pa.Array:
    """The values without runs, and without a dictionary, unless one is wanted."""
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type) and is_view(array.type.value_type):
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(storable(array.type.value_type)))
    return array if keeps_dictionary or not pa.types.is_dictionary(array.type) else array.dictionary_decode()


def storable(type: pa.DataType) -> pa.DataType:
    """`type` without views, from which Arrow cannot take rows."""
    if pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_binary_view(type):
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(storable(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(storable(type.key_type), storable(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(storable(type.value_type)))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(storable(type.value_type)))
    return type


def is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))
