"""Beam makes the same dataset as one process, on each runner that can be had here."""

from pathlib import Path

import pytest

from any2ds.testing.sameness import SamenessContract

RUNNERS = (
    "--direct_running_mode=in_memory",
    "--direct_running_mode=multi_processing",
    "--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK",
    "--runner=DaskRunner",
)


class TestThreads(SamenessContract):
    """The default."""

    options = ("--distributor=beam", "--processes_count=2", "--subjob_size=4")

    @pytest.mark.parametrize("runner", RUNNERS)
    def test_so_it_is_on_others(self, runner: str, tmp_path: Path) -> None:
        with self.world(tmp_path):
            self.run(tmp_path, f"--beam_options={runner}")
            self.expect_same(tmp_path)
