"""Spark on this machine: the session that is there, or one that is made and ended; and what a user gets to read."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

from any2ds.config.options import Config
from any2ds.distributors.pyspark import PysparkDistributor
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of
from any2ds.testing.processes import descendants, wait_until

pytestmark = pytest.mark.usefixtures("java")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="class")
def context() -> Iterator[SparkContext]:
    conf = SparkConf().setMaster("local[2,4]").set("spark.ui.enabled", "false")
    made = SparkContext(conf=conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1"))
    yield made
    made.stop()


def distributor(**options: Any) -> PysparkDistributor:
    return PysparkDistributor(Config.from_options({"url_list": "-", "distributor": "pyspark", **options}).run)


@pytest.mark.usefixtures("context")
class TestLocal(ProcessDistributorContract):
    def make_distributor(self) -> PysparkDistributor:
        return distributor(subjob_size=8)


def test_the_active_session_is_used_and_left_alone(context: SparkContext, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    list(distributor().map(ScriptedWorker(output=str(tmp_path)), jobs_of(2)))
    assert SparkContext._active_spark_context is context
    assert context.parallelize([1, 2]).sum() == 3
    assert signal.getsignal(signal.SIGINT) is handler


WITHOUT = """
import signal, sys
from pyspark import SparkContext
from any2ds.config.options import Config
from any2ds.distributors.pyspark import PysparkDistributor
from any2ds.testing.distributing import ScriptedWorker, jobs_of
distributor = PysparkDistributor(Config.from_options({"url_list": "-", "processes_count": 1}).run)
handler = signal.getsignal(signal.SIGINT)
found = set()
for event in distributor.map(ScriptedWorker(output=sys.argv[1]), jobs_of(3)):
    found.add(SparkContext._active_spark_context.master)
    assert signal.getsignal(signal.SIGINT) is handler
print(found, SparkContext._active_spark_context)
"""


def test_without_one_it_is_made_for_the_run_and_ended(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "{'local[1,4]'} None\n", done.stderr


class TestCommandLine:
    """A terminal sees what any2ds has to say, and nothing of what Java, Spark and pandas have."""

    def begin(self, listed: Any, folder: Path, **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "any2ds", *listed.flags(folder), f"--output_folder={folder / 'out'}"]
        known = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return subprocess.Popen(
            [*command, "--distributor=pyspark", "--processes_count=2"],
            env={**known, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self, process: "subprocess.Popen[str]") -> str:
        with process:
            assert process.stdout is not None
            return process.stdout.read()

    def test_nothing_is_said_that_is_not_ours(self, listed: Callable[..., Any], tmp_path: Path) -> None:
        here = listed()
        assert self.said(self.begin(here, tmp_path)) == ""
        here.expect_whole(str(tmp_path / "out"))

    def test_a_missing_java_is_told_with_what_to_install(self, listed: Callable[..., Any], tmp_path: Path) -> None:
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in ("bash", "dirname", "basename", "env", "tr", "sed", "head", "ls", "uname"):
            (programs / name).symlink_to(str(shutil.which(name)))
        process = self.begin(listed(), tmp_path, PATH=str(programs), JAVA_HOME="")
        said = self.said(process)
        assert "openjdk-17-jre-headless" in said
        assert (process.returncode, said.count("\n")) == (2, 1)

    @pytest.mark.parametrize(
        ("master", "words"),
        [
            ("nonsense", "Spark does not start: Master must"),
            ("spark://127.0.0.1:1", "no Spark master can be reached at spark://127.0.0.1:1 ("),
        ],
    )
    def test_a_master_that_cannot_be_is_told_before_anything_is_made(
        self, listed: Callable[..., Any], tmp_path: Path, master: str, words: str
    ) -> None:
        (tmp_path / "spark-defaults.conf").write_text(f"spark.master {master}\n")
        process = self.begin(listed(), tmp_path, SPARK_CONF_DIR=str(tmp_path))
        said = self.said(process)
        assert words in said
        assert (process.returncode, said.count("\n")) == (2, 1)
        assert not (tmp_path / "out").exists()

    def test_ctrl_c_ends_it_in_good_order_and_leaves_no_process(
        self, listed: Callable[..., Any], published: Any, tmp_path: Path
    ) -> None:
        here = listed({"18.bin": ["hold"]})
        process = self.begin(here, tmp_path)
        wait_until(lambda: published(tmp_path / "out") >= {0, 1, 2, 3})
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        said = self.said(process)
        assert process.returncode == 130, said
        assert "Traceback" not in said
        wait_until(lambda: not any(map(is_ours, below)))
        assert not (tmp_path / "out" / ".any2ds/work").exists()
        assert 4 not in published(tmp_path / "out")


def is_ours(pid: int) -> bool:
    try:
        return b"any2ds" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_example_makes_a_dataset(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "pyspark_example.py")]
    for _ in range(2):  # in the same folder
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "files are in pyspark_output, in 5 shards" in done.stdout
    assert (tmp_path / "pyspark_output" / "00004.tar").exists()
