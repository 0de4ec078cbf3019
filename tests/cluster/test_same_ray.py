"""Ray makes the same dataset as one process."""

from any2ds.testing.sameness import SamenessContract


class TestRay(SamenessContract):
    options = ("--distributor=ray", "--processes_count=2")
