"""examples/dask_engine: an engine of somebody else's, which is found by its entry point."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomllib

from any2ds.core.reports import ShardReport
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of, run_options
from any2ds.testing.processes import children
from tests.support.sameness import SamenessContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_engine"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path with what `pip install` would leave of the package beside its module."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["any2ds.distributors"]
    site = tmp_path_factory.mktemp("site")
    about = site / f"any2ds_dask-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (about / "entry_points.txt").write_text("".join(["[any2ds.distributors]\n", *lines]))
    (site / "any2ds_dask.py").symlink_to(EXAMPLE / "any2ds_dask.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))
        yield site


def distributor() -> Any:
    return importlib.import_module("any2ds_dask").DaskDistributor(run_options(processes_count=2))


class TestContract(ProcessDistributorContract):
    def make_distributor(self) -> Any:
        return distributor()

    def test_a_worker_of_the_cluster_that_dies_costs_nothing(self) -> None:
        killed, made = 0, []
        for event in self.map(distributor(), ScriptedWorker(seconds=0.05), jobs_of(30)):
            if isinstance(event, ShardReport):
                made.append(event.shard_id)
                if not killed:
                    of_dask = [pid for child in children(os.getpid()) for pid in (child, *children(child))]
                    (killed,) = [pid for pid in of_dask if int(event.start_time) in children(pid)]
                    os.kill(killed, signal.SIGKILL)
        assert sorted(made) == list(range(30))


class TestSame(SamenessContract):
    options = ("--distributor=dask", "--processes_count=2")

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": os.environ["PYTHONPATH"]}
