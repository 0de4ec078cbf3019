"""What can be seen here of other systems: no fork, no /proc, names of Windows, names that differ in case alone."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from any2ds.testing.processes import LONG
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
# What Python and other libraries have of this system, they keep: they are loaded before it is taken away.
AS_WINDOWS = """
import asyncio, concurrent.futures, ctypes, glob, http.client, http.server, importlib.resources, logging.handlers
import multiprocessing.connection, ntpath, os, pathlib, platform, queue, select, selectors, shutil, signal, socket, ssl
import subprocess, sys, sysconfig, tarfile, tempfile, threading, time, types, urllib.request, uuid, zipfile
import fsspec.implementations.local, jinja2, orjson, pyarrow.csv, pyarrow.dataset, pyarrow.json, pyarrow.parquet
import pycares, pycurl, rich.console, rich.live, rich.logging, rich.markup, rich.progress, rich.table
from os import kill


class Popen(subprocess.Popen):
    def __init__(self, *arguments, creationflags=0, start_new_session=False, **options):
        assert not start_new_session
        super().__init__(*arguments, start_new_session=creationflags == 512, **options)

    def kill(self):
        if self.poll() is None:
            kill(self.pid, 9)

    terminate = kill


def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "b'/proc")):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


LACKING = {
    os: "fork forkpty getgid getgrp getpgrp getpriority getuid geteuid getloadavg killpg memfd_create mkfifo nice"
    " O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC openpty pipe2 posix_fadvise posix_fallocate pread pwrite"
    " register_at_fork sched_getaffinity sched_setaffinity sendfile setsid statvfs sync sysconf tcgetpgrp ttyname uname"
    " wait3 wait4",
    select: "epoll EPOLLIN EPOLLOUT poll",
    signal: "alarm pthread_kill pthread_sigmask setitimer SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT"
    " SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH SIG_BLOCK SIG_SETMASK SIG_UNBLOCK",
}
for module, names in LACKING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace()
selectors.DefaultSelector = selectors.SelectSelector
shutil._use_fd_functions = False  # as on Windows; else O_NONBLOCK is used to remove a folder
shutil._rmtree_impl = getattr(shutil, "_rmtree_unsafe", None)  # the same, of Python 3.14
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
subprocess.Popen, subprocess.CREATE_NEW_PROCESS_GROUP = Popen, 512
sys.platform = "win32"
del os.kill
sys.addaudithook(refuse)
"""


def run_any2ds(
    folder: Path,
    *arguments: str,
    start: str = "",
    python: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    blocker = folder / "blocker"
    blocker.mkdir(exist_ok=True)
    (blocker / "sitecustomize.py").write_text(start)
    return subprocess.run(
        [sys.executable, *python, "-m", "any2ds", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(blocker), str(ROOT))), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("start", [AS_MACOS, AS_WINDOWS], ids=["as on macOS", "as on Windows"])
@pytest.mark.slow
def test_every_command_works_without_what_other_systems_lack(start: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for number in range(6):
        (site / f"{number}.txt").write_text(f"file {number}")
    with serve(site, {"5.txt": ["404", "ok"]}) as server:
        (tmp_path / "urls.txt").write_text("\n".join(server.url(f"{number}.txt") for number in range(6)))
        download = ["urls.txt", "out", "--processes_count=2", "--number_sample_per_shard=3"]
        for arguments in (
            [*download, "--output_format=webdataset"],
            [*download, "--output_format=webdataset"],  # finds the run of the first
            ["retry", "out", "--codes=all"],
            ["verify", "out"],
            ["inspect", "out"],
            ["report", "out"],
            ["card", "out"],
        ):
            done = run_any2ds(tmp_path, *arguments, start=start)
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            assert "warning" not in done.stderr.lower()
    tables = [pq.read_table(tmp_path / "out" / f"0000{number}.parquet") for number in range(3)]
    statuses = [status for table in tables for status in table["status"].to_pylist()]
    assert statuses == [*["success"] * 5, "failed_to_download", "success"]


@pytest.mark.parametrize("start", [AS_MACOS, AS_WINDOWS], ids=["as on macOS", "as on Windows"])
@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_and_ctrl_c_ends_the_first(start: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.txt").write_text("a")
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(start)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(blocker), str(ROOT)))}
    with serve(site, {"a.txt": ["hold"]}) as server:
        (tmp_path / "urls.txt").write_text(server.url("a.txt"))
        command = [sys.executable, "-m", "any2ds", "urls.txt", "out", "--processes_count=1", "--grace=0", "--timeout=0"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as first:
            server.wait_for("a.txt")
            second = run_any2ds(tmp_path, "urls.txt", "out", start=start)
            assert (second.returncode, "another run" in " ".join(second.stderr.split())) == (2, True), second.stderr
            first.send_signal(signal.SIGINT)
            shown = first.communicate(timeout=LONG)[1]
        assert first.returncode == 130, shown
        assert "run the same command again" in " ".join(shown.split())
        server.release()
        third = run_any2ds(tmp_path, "urls.txt", "out", start=start)
        assert third.returncode == 0, third.stderr


@pytest.mark.slow
def test_text_is_utf_8_where_the_system_has_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    rows = f"url,caption\n{(tmp_path / 'a.txt').as_uri()},Grüße 日本\n"
    (tmp_path / "urls.csv").write_text(rows, encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    strict = ("-X", "warn_default_encoding", "-W", "default::EncodingWarning")
    for arguments in (
        ["urls.csv", "out", "--caption_col=caption", "--processes_count=2", "--allow_schemes=file"],
        ["retry", "out", "--codes=all"],
        ["verify", "out"],
        ["inspect", "out"],
        ["report", "out"],
        ["card", "out"],
    ):
        done = run_any2ds(tmp_path, *arguments, python=strict, environment=ascii_only)
        assert done.returncode == 0, done.stderr
        assert not re.findall(rf"^{ROOT}/any2ds/.* EncodingWarning", done.stderr, re.MULTILINE)
    assert "Grüße 日本" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "out" / "00000" / "000000000.txt").read_text(encoding="utf-8") == "Grüße 日本"


@pytest.mark.parametrize("output_format", ["files", "webdataset"])
def test_names_that_windows_reserves_do_not_name_files(output_format: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    served = ["con.txt", "nul", "AUX.jpg", "dots...", "a.JPG", "A.jpg", f"{'long' * 50}.txt", "x.con"]
    for name in served:
        (site / name).write_text(name)
    (tmp_path / "urls.txt").write_text("\n".join((site / name).as_uri() for name in served))
    done = run_any2ds(
        tmp_path, "urls.txt", "out", f"--output_format={output_format}", "--processes_count=1", "--allow_schemes=file"
    )
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
