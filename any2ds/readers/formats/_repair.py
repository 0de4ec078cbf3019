"""Repairs what Python writes as JSON: NaN and Infinity, which are no JSON, and halves of surrogate pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(value: Any) -> Any:
    """A value, as JSON has them, whose texts can be encoded: pairs of surrogates are joined, halves become U+FFFD."""
    if isinstance(value, str):
        if value.isascii() or not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_surrogates(part) for part in value]
    return value


def is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def without_nan(value: Any) -> Any:
    """A value with None in the place of NaN and infinite numbers, as JSON writes them."""
    if isinstance(value, Mapping):
        return {key: without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(part) for part in value]
    return None if is_not_finite(value) else value
