"""Ray makes the same dataset as one process."""

from tests.support.sameness import SamenessContract


class TestRay(SamenessContract):
    options = ("--distributor=ray", "--processes_count=2")
