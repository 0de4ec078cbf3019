import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("any2ds.testing", "tests.support")

# gcsfs reads it when it is imported; without it each look at a bucket of the emulator takes a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

# A shell that runs the tests in the background has SIGINT ignored, in all their children too: none would stop. So has
# nohup SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

if sys.platform == "win32":  # where arrayrecord has no library
    collect_ignore = ["writers/test_reading_back.py", "writers/test_records.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="of what takes long only the K-th of N parts, for K from 0 to N-1")
    parser.addoption("--changed-since", metavar="DATE", help="with --part: also what commits since then have touched")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The parts are the same each time, and all tests of a class, or of a file outside of classes, are in one of them.

    What takes long are the slow tests, and those of clusters. Of those that a change has touched as many run at most
    as are in the part, so that a change of everything does not take hours.
    """
    if not (chosen := config.getoption("--part")):
        return
    part, parts = map(int, chosen.split("/"))
    long = [item for item in items if item.get_closest_marker("slow") or item.path.parent.name == "cluster"]
    part_of = _balanced(Counter(map(_group, long)), parts)
    others = [item for item in long if part_of[_group(item)] != part]
    if since := config.getoption("--changed-since"):
        files = _changed(config.rootpath, since)
        touched = [item for item in others if item.get_closest_marker("slow") and _is_touched(item.path, files)]
        kept = set(touched[: len(long) - len(others)])
        others = [item for item in others if item not in kept]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def _changed(root: Path, since: str) -> frozenset[Path]:
    """The files of all commits since a date; of a clone without history none."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    if git("rev-parse", "--is-shallow-repository") == "true":
        return frozenset()
    return frozenset(root / name for name in git("log", f"--since={since}", "--name-only", "--format=").splitlines())


@cache
def _is_touched(test: Path, changed: frozenset[Path]) -> bool:
    """Whether a file of tests has changed, or a module that it imports."""
    imported = re.findall(
        r"^(?:from|import) (any2ds[\w.]+|tests[\w.]+)", test.read_text(encoding="utf-8"), re.MULTILINE
    )
    root = Path(__file__).parents[1]
    modules = {root.joinpath(*name.split(".")).with_suffix(".py") for name in imported}
    return bool(changed & {test, *modules})


def _group(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0].rpartition("::")[0]


def _balanced(groups: Counter[str], parts: int) -> dict[str, int]:
    """The part that each group of tests belongs to; about as many tests are in each part."""
    found, sizes = {}, [0] * parts
    for group, count in sorted(groups.items(), key=lambda one: (-one[1], one[0])):
        found[group] = sizes.index(min(sizes))
        sizes[found[group]] += count
    return found


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    from tests.support.programs import summary

    skipped = terminalreporter.stats.get("skipped", ())
    if line := summary(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line, yellow=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: Any) -> int:
    """With `-n auto`: more than there are cores, since some always wait for a timeout, a process or a disk."""
    return 2 + (os.cpu_count() or 1)


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks and staging of remote outputs lie in the machine's temporary folder, where other tests run as well."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("tmp"))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))  # the key of the user
        yield


@pytest.fixture(autouse=True)
def no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a run in this process there is none: for a thousand of them that would take minutes. Tests of it
    have the fixture `with_report`."""
    if "with_report" not in request.fixturenames:
        monkeypatch.setattr("any2ds.run.last_report._write", lambda *_: None)


@pytest.fixture(autouse=True)
def nothing_is_concealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of an earlier test in this process, such as "test", may be words of this one's messages."""
    monkeypatch.setattr("any2ds.core.errors._SECRETS", set())


@pytest.fixture(autouse=True)
def no_play_is_left() -> Iterator[None]:
    """The plays of a test end with it."""
    yield
    if (plays := sys.modules.get("tests.support.play")) is not None:
        plays.close_all()


@pytest.fixture
def with_report() -> None:
    """Runs write their report."""


@pytest.fixture(scope="module")
def s3_server() -> Iterator[None]:
    """An S3 on this machine, known to all through the environment."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        S3FileSystem.clear_instance_cache()  # those of another module know another server
        yield
        server.stop()


@pytest.fixture(scope="module")
def new_bucket() -> Iterator[Callable[[], Any]]:
    """Makes a `tests.support.s3.Bucket`."""
    from tests.support.s3 import serve_buckets

    with serve_buckets() as new:
        yield new


@pytest.fixture
def fetched(tmp_path: Path) -> Callable[..., Any]:
    """`download` of rows into tmp_path / "out", in this process."""
    from any2ds import download

    def download_quietly(rows: Any, **options: Any) -> Any:
        defaults = {"output_folder": tmp_path / "out", "output_format": "parquet", "distributor": "inline"}
        return download(url_list=rows, quiet=True, **{**defaults, **options})

    return download_quietly
