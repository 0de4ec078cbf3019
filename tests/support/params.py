"""Values for parametrize, of which some are tried in the slow tests only."""

from collections.abc import Sequence
from typing import Any

import pytest


def sampled(values: Sequence[Any], always: int = 1) -> list[Any]:
    """The first `always` values, and the others marked as slow."""
    slow = (value if isinstance(value, tuple) else (value,) for value in values[always:])
    return [*values[:always], *(pytest.param(*value, marks=pytest.mark.slow) for value in slow)]
