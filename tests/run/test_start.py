"""The start of a run: what is loaded when the first request leaves, and how many processes there are."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

# In every Python process below the folder: once `asked` is there, it leaves the names of its modules. Its thread begins
# with a module that is loaded after the run has forked, which a run with threads does not do.
WITNESS = """
import os, sys, threading, time

def look(folder=os.environ["WITNESS"]):
    while not os.path.exists(os.path.join(folder, "asked")):
        time.sleep(0.01)
    names = sorted(sys.modules)
    path = os.path.join(folder, f"{os.getpid()}.modules")
    with open(path + "~", "w") as file:
        file.write("\\n".join(names))
    os.rename(path + "~", path)

class Begin:
    def find_spec(self, name, path=None, target=None):
        if name in ("any2ds.run.download", "any2ds.worker.open_shards"):
            threading.Thread(target=look, daemon=True).start()

sys.meta_path.insert(0, Begin())
"""

# Neither the run nor its worker needs them for URLs that are stored as they come.
NOWHERE = (
    "pandas numpy cv2 PIL av requests urllib3 aiohttp jinja2 pygal lxml xml yaml wandb prometheus_client"
    " tensorflow torch pygments markdown_it trafilatura pypdfium2 s3fs botocore gcsfs paramiko huggingface_hub"
    " multiprocessing sqlite3 unittest html.parser fsspec asyncio importlib.metadata email urllib.request"
    " pyarrow.vendored.docscrape"
    " pyarrow.dataset pyarrow.acero pyarrow.substrait pyarrow.flight pyarrow.pandas_compat"
    " rich.live rich.markdown rich.progress rich.syntax rich.table rich.traceback"
    " any2ds.testing any2ds.config.presets.img2dataset any2ds.dataset.dataset any2ds.describe.summary"
    " any2ds.describe.preview any2ds.describe.report any2ds.describe.thumbnails any2ds.fetch.engines.fsspec"
    " any2ds.transforms.image any2ds.transforms.steps.archive"
    " any2ds.transforms.steps.user any2ds.writers.formats._example"
)
NOT_IN_THE_RUN = (
    "pycurl pycares any2ds.config.completion any2ds.core.bodies.buffer any2ds.fetch.engines.curl"
    " any2ds.fetch.loop any2ds.worker.open_shards"
)
NOT_IN_THE_WORKER = "rich.console rich.text any2ds.run.download any2ds.readers.sources any2ds.dataset"


@contextmanager
def answering(folder: Path, processes: int) -> Iterator[str]:
    """The URL of a server whose first answer waits until so many processes have left their modules."""
    have_left = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            (folder / "asked").touch()
            for _ in range(6000):
                if have_left.wait(0.01) or len(list(folder.glob("*.modules"))) >= processes:
                    have_left.set()
                    break
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            have_left.set()
            server.shutdown()
            thread.join()


def run(folder: Path, *options: str) -> list[set[str]]:
    """The modules of each process of such a run, the first one first."""
    (folder / "sitecustomize.py").write_text(WITNESS, encoding="utf-8")
    given = {**os.environ, "WITNESS": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "any2ds", *options]
    with subprocess.Popen(command, cwd=folder, env=given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors.decode()
    paths = sorted(folder.glob("*.modules"), key=lambda path: path.stem != str(process.pid))
    assert paths[0].stem == str(process.pid)
    return [set(path.read_text(encoding="utf-8").splitlines()) for path in paths]


def loaded(modules: set[str], *unwanted: str) -> list[str]:
    return [name for names in unwanted for name in names.split() if name in modules]


@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl"])
def test_nothing_heavy_is_loaded_when_the_first_request_leaves(tmp_path: Path, suffix: str) -> None:
    with answering(tmp_path, processes=2) as url:
        lines = {"txt": f"{url}/a\n", "csv": f"url\n{url}/a\n", "jsonl": f'{{"url": "{url}/a"}}\n'}
        (tmp_path / f"urls.{suffix}").write_text(lines[suffix], encoding="utf-8")
        parent, worker = run(tmp_path, f"--url_list=urls.{suffix}")
    assert "any2ds.run.download" in parent
    assert "any2ds.worker.open_shards" in worker
    assert ("any2ds.run.start" in worker) is (sys.platform == "linux")  # a copy of the run
    assert loaded(parent, NOWHERE, NOT_IN_THE_RUN) == []
    assert loaded(worker, NOWHERE, NOT_IN_THE_WORKER) == []


def test_a_step_of_the_user_finds_pyarrow_with_numpy_and_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    step = (
        "import any2ds, pandas, pyarrow\n"
        "@any2ds.transform(columns={'nulls': int})\n"
        "def count(sample):\n"
        "    return sample.with_fields(nulls=pyarrow.array(pandas.Series([1.0, float('nan')])).null_count)\n"
    )
    (tmp_path / "step.py").write_text(step, encoding="utf-8")
    with answering(tmp_path, processes=2) as url:
        (tmp_path / "urls.txt").write_text(f"{url}/a\n", encoding="utf-8")
        run(tmp_path, "urls.txt", "out", "--transform=step.py:count", "--output_format=files")
    assert pq.read_table(tmp_path / "out" / "00000.parquet")["nulls"].to_pylist() == [1]


def processes_of(folder: Path, rows: int, *options: str) -> int:
    """How many processes work on so many rows in shards of ten."""
    with answering(folder, processes=1) as url:
        (folder / "urls.txt").write_text("".join(f"{url}/{n}\n" for n in range(rows)), encoding="utf-8")
        code = (
            "import os, sys\n"
            "os.sched_getaffinity = lambda pid: set(range(4))\n"
            "from any2ds.distributors import _child\n"
            "start, started = _child.start_process, []\n"
            "def begin(*modules, **how):\n"
            "    started.append(modules)\n"
            "    return start(*modules, **how)\n"
            "_child.start_process = begin\n"
            "from any2ds.cli import run\n"
            "assert run(sys.argv[1:]) in (0, 4)\n"  # 4: no row is answered in time
            "print(len(started))\n"
        )
        command = [sys.executable, "-c", code, "urls.txt", "out", "--number_sample_per_shard=10", "--quiet", *options]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=True)
    return int(ran.stdout)


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (100, (), 1),
        pytest.param(2500, (), 3, marks=pytest.mark.slow),
        pytest.param(100, ("--processes_count=2",), 2, marks=pytest.mark.slow),
        (100, ("--unpack",), 4),  # files are decoded: a few are worth a process
    ],
)
@pytest.mark.slow
def test_a_process_begins_for_rows_that_are_worth_it(
    tmp_path: Path, rows: int, options: Sequence[str], expected: int
) -> None:
    assert processes_of(tmp_path, rows, *options) == expected
