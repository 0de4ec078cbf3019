"""Command lines made by chance from the declared options end in words: see `tests.support.command_lines`."""

import pytest

from tests.support.command_lines import faults, lines


def test_odd_command_lines_end_in_words() -> None:
    given = lines(seed=4, count=60)
    assert not [f"{line}: {said}" for _, line, said in faults(given, range(60))]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_five_hundred_more_odd_command_lines_end_in_words(part: int) -> None:
    given = lines(seed=5, count=500)
    assert not [f"{line}: {said}" for _, line, said in faults(given, range(100 * part, 100 * part + 100))]
