"""Beam makes the same dataset as one process, on each runner that can be had here."""

from tests.support.sameness import SamenessContract

OPTIONS = ("--distributor=beam", "--processes_count=2", "--subjob_size=4")


class TestThreads(SamenessContract):
    """The default."""

    options = OPTIONS
    test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed = None  # TestInMemory shows it


class TestInMemory(SamenessContract):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=in_memory")


class TestProcesses(SamenessContract):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=multi_processing")
    test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed = None  # TestInMemory shows it


class TestPortable(SamenessContract):
    options = (*OPTIONS, "--beam_options=--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK")
    test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed = None  # TestInMemory shows it


class TestDask(SamenessContract):
    options = (*OPTIONS, "--beam_options=--runner=DaskRunner")
    test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed = None  # TestInMemory shows it
