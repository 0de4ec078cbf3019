"""However a run is distributed, it makes the same dataset. Clusters are in tests/cluster."""

from any2ds.testing.sameness import SamenessContract


class TestInline(SamenessContract):
    options = ("--distributor=inline",)


class TestMultiprocessing(SamenessContract):
    options = ("--processes_count=2",)


class TestRanks(SamenessContract):
    options = ("--processes_count=1", "--world_size=3")

    def commands(self) -> list[list[str]]:
        return [[f"--rank={rank}"] for rank in range(3)]
