"""Beam makes the same dataset as one process, on each runner that can be had here."""

from tests.support.sameness import SamenessContract

OPTIONS = ("--distributor=beam", "--processes_count=2", "--subjob_size=4")


class OneUrl(SamenessContract):
    """Without rows with two URLs, with which a worker does the same on each runner: `TestInMemory` shows it."""

    test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed = None


class TestThreads(OneUrl):
    """The default."""

    options = OPTIONS


class TestInMemory(SamenessContract):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=in_memory")


class TestProcesses(OneUrl):
    options = (*OPTIONS, "--beam_options=--direct_running_mode=multi_processing")


class TestPortable(OneUrl):
    options = (*OPTIONS, "--beam_options=--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK")


class TestDask(OneUrl):
    options = (*OPTIONS, "--beam_options=--runner=DaskRunner")
