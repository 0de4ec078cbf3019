"""Casts of columns to other types, value by value where some values do not fit."""

from __future__ import annotations

import pyarrow as pa


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
