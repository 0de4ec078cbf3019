"""examples/distributed_any2ds_tutorial.md: its commands, in its order, on one machine that stands for all of them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from any2ds.testing.processes import wait_until_gone
from tests.support.crash.processes import MARK, marked, send
from tests.support.servers import free_port

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "examples" / "distributed_any2ds_tutorial.md"
PACKAGE = ("any2ds", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "requirements.txt")
BUCKET = "any2ds-tutorial"


def commands(title: str) -> str:
    """All that stands in the bash blocks below a heading."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)
    assert section, title
    return "".join(re.findall(r"^```bash\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE))


class Reader:
    """Does what the tutorial says, in `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], here: Mapping[str, str]) -> None:
        self.folder, self._environment, self._here = folder, environment, here

    def does(self, title: str) -> str:
        code = commands(title)
        assert code, f"{title}: there is nothing to do"
        for there, here in self._here.items():
            code = code.replace(there, here)
        return self.run(code)

    def run(self, code: str, fails: bool = False) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def reader(java: str, tmp_path_factory: pytest.TempPathFactory, s3_server: None) -> Iterator[Reader]:
    """It has done everything up to the dataset."""
    from s3fs import S3FileSystem

    S3FileSystem().mkdir(BUCKET)
    folder = tmp_path_factory.mktemp("tutorial")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in PACKAGE:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, checkout / name)
    own = [sysconfig.get_paths()["purelib"], str(ROOT)]
    linked = f"printf '%s\\n' {' '.join(own)} > spark/lib/python3.{sys.version_info[1]}/site-packages/own.pth"
    here = {
        "sudo apt-get": ": sudo apt-get",  # there is a Java
        # What the tests' Python has need not come from the network again.
        "python3 -m venv spark\n": f"{sys.executable} -m venv spark\n{linked}\n",
        "python3 -m venv environment": f"{sys.executable} -m venv environment",
        '"any2ds[s3]"': f'"{checkout}[s3]"',
        "spark/bin/any2ds": "spark/bin/python -m any2ds",
        "10.0.0.1": "127.0.0.1",
        "7077": str(free_port()),
        "8080": str(free_port()),
        "my-bucket": BUCKET,
        **{f"{name}=…": "" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")},
    }
    mark = str(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    made = Reader(folder, {**environment, "SPARK_LOCAL_IP": "127.0.0.1", MARK: mark}, here)
    try:
        made.does("Install Spark, on every machine")
        made.does("Start the cluster")
        made.does("Pack your Python")
        made.does("Tell the driver of the cluster")
        yield made
    finally:
        while pids := marked(mark):
            send(pids, signal.SIGKILL)
            wait_until_gone(pids)


def test_the_commands_of_the_tutorial_make_a_dataset(reader: Reader, listed: Callable[..., Any]) -> None:
    here = listed()
    flags = here.flags(reader.folder)
    further = " ".join(flag for flag in flags if not flag.startswith(("--url_list", "--output_format")))
    reader._here = {**reader._here, "--distributor=pyspark": f"--distributor=pyspark {further}"}
    assert reader.does("Make the dataset") == ""
    assert "12 shards" in reader.does("Look at it")


def test_executors_without_any2ds_say_what_is_missing(reader: Reader, listed: Callable[..., Any]) -> None:
    here = listed()
    reader.run("mkdir -p bare && grep -v environment conf/spark-defaults.conf > bare/spark-defaults.conf")
    reader.run(f"{sys.executable} -m venv --without-pip bare/python")
    flags = " ".join(here.flags(reader.folder))
    said = reader.run(
        "export SPARK_CONF_DIR=$PWD/bare PYSPARK_PYTHON=$PWD/bare/python/bin/python\n"
        f"spark/bin/python -m any2ds {flags} --output_folder=s3://{BUCKET}/bare --distributor=pyspark",
        fails=True,
    )
    assert "the Python of the executors has no any2ds" in said
    assert not here.server.counts
