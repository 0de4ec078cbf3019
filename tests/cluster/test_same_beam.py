"""Beam makes the same dataset as one process."""

from tests.support.sameness import SamenessContract


class TestBeam(SamenessContract):
    options = ("--distributor=beam", "--processes_count=2", "--subjob_size=4")
