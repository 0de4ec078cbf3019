"""Spark makes the same dataset as one process: on this machine, and on a standalone cluster."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.sameness import SamenessContract
from tests.support.sparkcluster import driver_environment, spark_cluster

pytestmark = pytest.mark.usefixtures("java")


class TestLocal(SamenessContract):
    options = ("--distributor=pyspark", "--processes_count=2", "--subjob_size=4")

    def environment(self) -> Mapping[str, str]:
        return {"SPARK_LOCAL_IP": "127.0.0.1"}


class TestStandalone(SamenessContract):
    options = ("--distributor=pyspark", "--subjob_size=4")
    conf: Path

    @pytest.fixture(scope="class", autouse=True)
    def cluster(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with spark_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
            request.cls.conf = cluster.conf_folder
            yield

    def environment(self) -> Mapping[str, str]:
        return driver_environment(self.conf)
