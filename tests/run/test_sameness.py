"""However a run is distributed, it makes the same dataset. Clusters are in tests/cluster."""

import pytest

from tests.support.sameness import SamenessContract


class TestInline(SamenessContract):
    options = ("--distributor=inline",)


class TestMultiprocessing(SamenessContract):
    options = ("--processes_count=2",)


@pytest.mark.slow
class TestRanks(SamenessContract):
    options = ("--processes_count=1", "--world_size=3")

    def commands(self) -> list[list[str]]:
        return [[f"--rank={rank}"] for rank in range(3)]
