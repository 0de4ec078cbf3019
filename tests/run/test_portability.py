"""What can be seen here of other systems: no fork, no /proc, names of Windows, names that differ in case alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from any2ds.testing.server import serve

ROOT = Path(__file__).parents[2]
# Python imports a module of this name when it starts: in the workers too.
AS_MACOS = """
import ctypes.util
import fcntl
import os
import sys
import sysconfig
import types

sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxy_settings=dict, _get_proxies=dict)
sysconfig.get_config_vars()  # looked up once, under the name of this system


def refuse(event, arguments):
    if event in ("os.fork", "os.forkpty"):
        raise RuntimeError("fork was called")
    if event == "open" and str(arguments[0]).startswith(("/proc", "b'/proc")):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


sys.platform = "darwin"
fcntl.F_FULLFSYNC = 51
for name in ("sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)
sys.addaudithook(refuse)
"""
WITHOUT_POSIX = """
import os
import shutil
import sys

shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # that of Windows needs no statvfs


def refuse(event, arguments):
    if event in ("os.fork", "os.forkpty"):
        raise RuntimeError("fork was called")
    if event == "open" and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))
    if event == "import" and arguments[0] == "resource":
        raise ModuleNotFoundError("No module named 'resource'", name="resource")


for name in ("sched_getaffinity", "statvfs", "fork"):
    delattr(os, name)
sys.addaudithook(refuse)
"""


def run_any2ds(folder: Path, *arguments: str, start: str = "") -> subprocess.CompletedProcess[str]:
    blocker = folder / "blocker"
    blocker.mkdir(exist_ok=True)
    (blocker / "sitecustomize.py").write_text(start)
    return subprocess.run(
        [sys.executable, "-m", "any2ds", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(blocker), str(ROOT)))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("start", [AS_MACOS, WITHOUT_POSIX], ids=["as on macOS", "without what Windows lacks"])
def test_a_run_verify_and_report_need_no_fork_and_no_proc(start: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for number in range(6):
        (site / f"{number}.txt").write_text(f"file {number}")
    with serve(site) as server:
        (tmp_path / "urls.txt").write_text("\n".join(server.url(f"{number}.txt") for number in range(6)))
        options = ["--processes_count=2", "--number_sample_per_shard=3"]
        for _ in range(2):  # the second finds the run of the first
            done = run_any2ds(tmp_path, "urls.txt", "out", *options, start=start)
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
    for command in ("verify", "inspect", "report"):
        done = run_any2ds(tmp_path, command, "out", start=start)
        assert done.returncode == 0, done.stderr
    tables = [pq.read_table(tmp_path / "out" / f"0000{number}.parquet") for number in range(2)]
    assert [status for table in tables for status in table["status"].to_pylist()] == ["success"] * 6


@pytest.mark.parametrize("output_format", ["files", "webdataset"])
def test_names_that_windows_reserves_do_not_name_files(output_format: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    served = ["con.txt", "nul", "AUX.jpg", "dots...", "a.JPG", "A.jpg", f"{'long' * 50}.txt", "x.con"]
    for name in served:
        (site / name).write_text(name)
    (tmp_path / "urls.txt").write_text("\n".join((site / name).as_uri() for name in served))
    done = run_any2ds(tmp_path, "urls.txt", "out", f"--output_format={output_format}", "--processes_count=1")
    assert done.returncode == 0, done.stderr
    written = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*")]
    for path in written:
        for part in path.parts:
            assert part.partition(".")[0].lower() not in {"con", "nul", "aux", "prn"}, path
            assert not part.endswith((".", " ")), path
            assert not set(part) & set('<>:"|?*\\'), path
        assert len(str(path)) < 100, path
    folded = [str(path).lower() for path in written]
    assert len(folded) == len(set(folded))
    assert pq.read_table(tmp_path / "out" / "00000.parquet")["status"].to_pylist() == ["success"] * len(served)


def test_a_list_with_crlf_is_the_list_without(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    url = (tmp_path / "a.txt").as_uri()
    lists = {
        "urls.txt": f"{url}\r\n{url}\r\n",
        "urls.csv": f"url,caption\r\n{url},one\r\n{url},two\r\n",
        "urls.jsonl": f"{json.dumps({'url': url})}\r\n{json.dumps({'url': url})}\r\n",
    }
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content.encode())
        done = run_any2ds(tmp_path, name, f"out-{name.replace(chr(46), chr(45))}", "--processes_count=1")
        assert done.returncode == 0, done.stderr
        table = pq.read_table(tmp_path / f"out-{name.replace(chr(46), chr(45))}" / "00000.parquet")
        assert table["url"].to_pylist() == [url, url]
        assert table["status"].to_pylist() == ["success", "success"]
