"""any2ds beside other tools that download lists of URLs: the same lists, from the same server, on this machine.

    python benchmarks/peers.py [--tasks=files,small,images,video] [--tools=any2ds,curl,…] [--rounds=5] [--share=1.0]
                               [--environments=DIR] [--any2dataset=CLONE] [--page=docs/performance.md]

Python tools are installed into environments of their own below `--environments`, in the versions of `TOOLS`.
any2dataset is in no package index, so it needs a clone of its repository. curl, wget2 and aria2 are those of the
machine. A tool that cannot be had is left out, and the terminal says so.

nginx serves on loopback, and output goes to a RAM disk if there is one. A run is the whole command, from its start to
its exit; its CPU is that of all its processes. Tools take turns; figures are medians of the rounds, and ratios are
taken within a round. `--page` replaces the tables in that page.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import pyarrow.parquet as pq
import servers
from measure import warm_memory

from tests.support.pictures import jpeg_of, photograph
from tests.support.recordings import film

_BEGIN, _END = "<!-- made by benchmarks/peers.py -->", "<!-- end -->"
_MOST_WARM = 4_000_000_000  # bytes
_SIDES = ((480, 360), (680, 510), (800, 600), (1024, 768))
_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class Task:
    """A list of URLs and what is to be made of it."""

    title: str
    rows: int
    files: Callable[[], list[tuple[str, bytes]]]  # names and contents; rows take turns with them


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that can do some of the tasks.

    A command has places for {program}, {urls} (the list), {out} (the folder), and {curl} and {aria2}, the list in the
    forms that these two read.
    """

    name: str
    leaves_out: str  # of what any2ds does meanwhile
    commands: Mapping[str, str]  # by task
    stored: Callable[[Path], int]  # how many files lie in an output folder
    program: str  # in its environment or on the machine
    requirements: Sequence[str] = ()  # of its environment, the tool itself first; none for a program of the machine
    python_path: str = ""  # where a tool lies that cannot be installed


@dataclass(frozen=True, slots=True)
class Run:
    """One command from start to exit."""

    wall: float  # seconds
    cpu: float  # seconds


def _in_tars(out: Path) -> int:
    """Samples: each has a .json beside its file."""
    found = 0
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            found += sum(name.endswith(".json") for name in tar.getnames())
    return found


def _in_parquet(out: Path) -> int:
    return sum(len(pq.read_table(path, columns=["data"])["data"].drop_null()) for path in out.glob("**/*.parquet"))


def _in_folder(out: Path) -> int:
    return sum(path.is_file() and path.stat().st_size > 0 for path in out.rglob("*"))


def _photographs(size: int, sides: Sequence[tuple[int, int]]) -> list[tuple[str, bytes]]:
    return [(f"{n}.jpg", jpeg_of(photograph(*sides[n % len(sides)], n), size)) for n in range(40)]


def _films() -> list[tuple[str, bytes]]:
    return [(f"{n}.mp4", film(seconds=10.0, size=(640, 480))) for n in range(4)]


TASKS = {
    "files": Task("10,000 files of 100 KB, kept as they are", 10_000, lambda: _photographs(100_000, _SIDES)),
    "small": Task("30,000 files of 2 KB, kept as they are", 30_000, lambda: _photographs(2_000, [(64, 48)])),
    "images": Task("3,000 JPEGs of 100 KB, resized to 256 pixels", 3_000, lambda: _photographs(100_000, _SIDES)),
    "video": Task("100 videos of ten seconds, kept as they are", 100, _films),
}

_ANCESTOR = (
    "{program} --url_list={urls} --output_folder={out} --output_format=webdataset --processes_count=2 --thread_count=64"
    " --number_sample_per_shard=1000"
)
_OURS = "{program} {urls} {out} --output_format=webdataset"
_DAFT = (
    "{program} -c \"import daft; rows = daft.from_pydict({{'url': open('{urls}').read().split()}});"
    " data = daft.col('url').download(max_connections=128); rows.with_column('data', %s).write_parquet('{out}')\""
)
_NO_DATASET = "hashing, packing, metadata and statistics"
TOOLS = (
    Tool(
        "any2ds",
        "",
        {
            "files": _OURS,
            "small": _OURS,
            "images": f"{_OURS} --file_size=256 --resize_mode=keep_ratio",
            "video": _OURS,
        },
        _in_tars,
        f"{sys.executable} -m any2ds",
    ),
    Tool(
        "img2dataset",
        "files other than images, robots.txt, samples in the order of the list, publishing whole shards",
        {
            "files": f"{_ANCESTOR} --disable_all_reencoding=True",
            "small": f"{_ANCESTOR} --disable_all_reencoding=True",
            "images": f"{_ANCESTOR} --image_size=256 --resize_mode=keep_ratio",
        },
        _in_tars,
        "img2dataset",
        ("img2dataset==1.47.0",),
    ),
    Tool(
        "any2dataset",
        "resizing, robots.txt, samples in the order of the list, publishing whole shards",
        {"files": _ANCESTOR, "small": _ANCESTOR},
        _in_tars,
        "python -c 'import any2dataset, fire; fire.Fire(any2dataset.download)'",
        ("fire", "tqdm", "webdataset<0.3", "pandas", "pyarrow", "fsspec", "wandb"),  # its own caps are of Python 3.9
    ),
    Tool(
        "video2dataset",
        "robots.txt, samples in the order of the list, publishing whole shards",
        {"video": "{program} --url_list={urls} --output_folder={out} --input_format=txt --output-format=webdataset"},
        _in_tars,
        "video2dataset",
        ("video2dataset==1.3.0", "pyarrow<19"),  # a later pyarrow wants a later NumPy than it allows
    ),
    Tool(
        "Daft",
        "hashing, metadata and statistics, resuming; a failed row ends the query or becomes null without a reason",
        {
            "files": _DAFT % "data",
            "small": _DAFT % "data",
            "images": _DAFT % "data.decode_image().resize(256, 256).encode_image('JPEG')",
        },
        _in_parquet,
        "python",
        ("daft==0.7.26",),
    ),
    Tool(
        "curl",
        _NO_DATASET,
        dict.fromkeys(("files", "small"), "{program} -s --parallel --parallel-max 256 --create-dirs --config {curl}"),
        _in_folder,
        "curl",
    ),
    Tool(
        "wget2",
        _NO_DATASET,
        dict.fromkeys(("files", "small"), "{program} -q --max-threads=64 --input-file={urls} --directory-prefix={out}"),
        _in_folder,
        "wget2",
    ),
    Tool(
        "aria2",
        _NO_DATASET,
        dict.fromkeys(
            ("files", "small"),
            "{program} -q --max-concurrent-downloads=256 --max-connection-per-server=16 --file-allocation=none"
            " --input-file={aria2} --dir={out}",
        ),
        _in_folder,
        "aria2c",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--tools", default=",".join(tool.name for tool in TOOLS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows; 0.1 is a look, not a measurement")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "any2ds-peers")
    parser.add_argument("--any2dataset", type=Path, help="a clone of its repository")
    parser.add_argument("--page", type=Path, help="whose tables are replaced")
    given = parser.parse_args()
    wanted = given.tools.split(",")
    tools = [
        tool for one in TOOLS if one.name in wanted and (tool := _ready(one, given.environments, given.any2dataset))
    ]
    facts = (
        f"{os.cpu_count()} cores, nginx on the same ones, {time.strftime('%Y-%m-%d')},"
        f" medians of {given.rounds} rounds of `python benchmarks/peers.py`.\n"
    )
    parts = [facts]
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="any2ds-peers-", dir=root) as folder:
        scratch = Path(folder)
        for name in ("www", "nginx"):
            (scratch / name).mkdir()
        with servers.start(scratch / "www", scratch / "nginx") as server:
            for name in given.tasks.split(","):
                task = replace(TASKS[name], rows=max(1, int(TASKS[name].rows * given.share)))
                size = _write_lists(scratch, name, task, server.http)
                able = [tool for tool in tools if name in tool.commands]
                runs = _measured(scratch, name, task, able, size, given.rounds)
                parts.append(_section(name, task, able, runs))
                print(parts[-1], flush=True)
    if given.page:
        text = given.page.read_text(encoding="utf-8")
        made = "\n".join([_BEGIN, "", *parts, _END])
        text = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: made, text, flags=re.DOTALL)
        given.page.write_text(text, encoding="utf-8")
    return 0


def _ready(tool: Tool, environments: Path, any2dataset: Path | None) -> Tool | None:
    """The tool with the whole path of its program; None where it cannot be had."""
    if tool.name == "any2dataset":
        if any2dataset is None:
            print("any2dataset is left out: it needs --any2dataset", file=sys.stderr)
            return None
        tool = replace(tool, python_path=str(any2dataset.resolve()))
    if not tool.requirements:
        if shutil.which(shlex.split(tool.program)[0]) is None:
            print(f"{tool.name} is left out: {tool.program} is not installed", file=sys.stderr)
            return None
        return tool
    home = environments / tool.name
    if not (home / "installed").exists():
        print(f"installing {tool.name} into {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "-q", *tool.requirements], check=True)
        (home / "installed").touch()
    return replace(tool, program=f"{home / 'bin'}/{tool.program}")


def _write_lists(scratch: Path, name: str, task: Task, server: str) -> int:
    """Write the files and the list in each form; the bytes that all rows have together."""
    folder = scratch / "www" / name
    folder.mkdir()
    files = task.files()
    for file, content in files:
        (folder / file).write_bytes(content)
    rows = [files[row % len(files)] for row in range(task.rows)]
    urls = [f"{server}/{name}/{file}?{row}" for row, (file, _) in enumerate(rows)]
    out = scratch / "out"
    (scratch / f"{name}.txt").write_text("".join(f"{url}\n" for url in urls))
    config = (f'url = "{url}"\noutput = "{out}/{row}"\n' for row, url in enumerate(urls))
    (scratch / f"{name}.curl").write_text("".join(config))
    (scratch / f"{name}.aria2").write_text("".join(f"{url}\n  out={row}\n" for row, url in enumerate(urls)))
    return sum(len(content) for _, content in rows)


def _measured(
    scratch: Path, name: str, task: Task, tools: Sequence[Tool], size: int, rounds: int
) -> dict[str, list[Run | str]]:
    """By tool its run in each round, or why there is none."""
    runs: dict[str, list[Run | str]] = {tool.name: [] for tool in tools}
    for number in range(rounds):
        for tool in tools if number % 2 else reversed(tools):
            with warm_memory(scratch / "warm", min(_MOST_WARM, size + size // 10)):
                found = _run(scratch, name, tool)
            stored = tool.stored(scratch / "out") if isinstance(found, Run) else 0
            if isinstance(found, Run) and stored != task.rows:
                found = f"stored {stored:,} of {task.rows:,}"
            print(f"{name}, round {number + 1} of {rounds}: {tool.name}: {found}", file=sys.stderr)
            runs[tool.name].append(found)
            shutil.rmtree(scratch / "out", ignore_errors=True)
    return runs


def _run(scratch: Path, name: str, tool: Tool) -> Run | str:
    log = scratch / "log"
    environment = {**os.environ, "PYTHONPATH": tool.python_path} if tool.python_path else None
    started = time.monotonic()
    with log.open("wb") as messages:
        process = subprocess.Popen(
            shlex.split(_command(tool, name, scratch / name, scratch / "out", tool.program)),
            cwd=scratch,
            env=environment,
            stdout=messages,
            stderr=messages,
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"exit code {process.returncode}: {''.join(last)[:200]}"
    return Run(wall, usage.ru_utime + usage.ru_stime)


def _command(tool: Tool, name: str, lists: Path, out: Path, program: str) -> str:
    forms = {form: str(lists.with_suffix(f".{form}")) for form in ("curl", "aria2")}
    return tool.commands[name].format(program=program, urls=lists.with_suffix(".txt"), out=out, **forms)


def _section(name: str, task: Task, tools: Sequence[Tool], runs: Mapping[str, Sequence[Run | str]]) -> str:
    """The table of a task, with the commands below it."""
    lines = [
        f"## {task.title}\n",
        "| tool | seconds | files/s | CPU seconds | time against any2ds | what it leaves out |",
        "|---|---|---|---|---|---|",
    ]
    for tool in tools:
        good = [run for run in runs[tool.name] if isinstance(run, Run)]
        if not good:
            lines.append(f"| {_with_version(tool)} | {runs[tool.name][0]} | | | | {tool.leaves_out} |")
            continue
        wall, cpu = statistics.median(run.wall for run in good), statistics.median(run.cpu for run in good)
        pairs = zip(runs[tool.name], runs.get("any2ds", ()), strict=False)
        ratios = [run.wall / ours.wall for run, ours in pairs if isinstance(run, Run) and isinstance(ours, Run)]
        ratio = f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        figures = f"{wall:.1f} | {task.rows / wall:,.0f} | {cpu:.1f} | {ratio}"
        lines.append(f"| {_with_version(tool)} | {figures} | {tool.leaves_out} |")
    shown = [_command(tool, name, Path("urls"), Path("dataset"), _plain(tool)) for tool in tools]
    return "\n".join([*lines, "", "```text", *shown, "```", ""])


def _plain(tool: Tool) -> str:
    """The program as people call it."""
    return tool.name if tool.name in ("any2ds", "any2dataset") else Path(tool.program).name


def _with_version(tool: Tool) -> str:
    pinned = [one.partition("==")[2] for one in tool.requirements if "==" in one]
    if pinned or tool.requirements:
        return f"{tool.name} {''.join(pinned[:1])}".strip()
    found = subprocess.run([*shlex.split(tool.program), "--version"], capture_output=True, text=True, check=True)
    version = _VERSION.search(found.stdout)
    return f"{tool.name} {version[0] if version else ''}".strip()


if __name__ == "__main__":
    sys.exit(main())
