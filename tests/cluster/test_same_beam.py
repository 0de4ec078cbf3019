"""Beam makes the same dataset as one process, on each runner that can be had here."""

from tests.support.sameness import SamenessContract

OPTIONS = ("--distributor=beam", "--processes_count=2", "--subjob_size=4")


class TestThreads(SamenessContract):
    """The default."""

    options = OPTIONS


class TestInMemory(SamenessContract):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=in_memory")


class TestProcesses(SamenessContract):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=multi_processing")


class TestPortable(SamenessContract):
    options = (*OPTIONS, "--beam_options=--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK")


class TestDask(SamenessContract):
    options = (*OPTIONS, "--beam_options=--runner=DaskRunner")
