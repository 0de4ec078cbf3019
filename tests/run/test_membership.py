"""What a rank is, and where a run learns which one it is."""

from collections.abc import Mapping

import pytest

from any2ds.config.options import ShareOptions
from any2ds.core.errors import OptionError
from any2ds.run.ranks import Rank, from_environment, rank_of


def test_each_shard_is_of_one_rank() -> None:
    members = [Rank(number, 3) for number in range(3)]
    for shard_id in range(10):
        assert [member.makes(shard_id) for member in members].count(True) == 1
    assert rank_of(ShareOptions()) == rank_of(ShareOptions(None, 1)) == Rank(0, 1)
    assert str(members[1]) == "rank 1 of 3"


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (ShareOptions(1, None), "rank is given and world_size is not"),
        (ShareOptions(None, 4), "world_size is given and rank is not"),
        (ShareOptions(4, 4), "invalid rank=4: with world_size=4 ranks go from 0 to 3"),
        (ShareOptions(1, 1), "invalid rank=1"),
    ],
)
def test_half_a_share_is_refused(share: ShareOptions, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        rank_of(share)


SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "5"}


@pytest.mark.parametrize(
    ("share", "variables", "expected"),
    [
        (ShareOptions(), {**SLURM, "SLURM_STEP_ID": "0"}, (3, 8)),
        (ShareOptions(), SLURM, None),  # a batch script
        (ShareOptions(), {**SLURM, "SLURM_STEP_ID": "batch"}, None),
        (ShareOptions(), {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, None),
        (ShareOptions(), {"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        (ShareOptions(), {"RANK": "", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {"RANK": "one", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {"RANK": "1"}, None),
        (ShareOptions(), {**KUBERNETES, "WORLD_SIZE": "8"}, (5, 8)),
        (ShareOptions(None, 6), KUBERNETES, (5, 6)),
        (ShareOptions(None, 16), {**SLURM, "SLURM_STEP_ID": "0"}, (3, 16)),
        (ShareOptions(0, 2), {"RANK": "1", "WORLD_SIZE": "4"}, None),
        (ShareOptions(None, 1), {"RANK": "1", "WORLD_SIZE": "4"}, None),
        (ShareOptions(), {}, None),
    ],
)
def test_rank_and_world_size_from_the_environment(
    share: ShareOptions, variables: Mapping[str, str], expected: tuple[int, int] | None
) -> None:
    found, word = from_environment(share, variables)
    assert found == ({} if expected is None else {"rank": expected[0], "world_size": expected[1]})
    assert bool(word) == (expected is not None)
