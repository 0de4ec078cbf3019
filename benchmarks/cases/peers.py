"""any2ds beside other tools that download lists of URLs: the same lists, from the same server, on this machine."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.case import Bench, Side, missing, python_of
from tests.support.pictures import jpeg_of, photograph
from tests.support.recordings import film

Sizes = Sequence[tuple[int, int]]


def photographs(size: int, sizes: Sizes, count: int) -> list[bytes]:
    return [jpeg_of(photograph(*sizes[n % len(sizes)], n), size) for n in range(count)]


def stored_in(out: Path) -> int:
    """Samples in tar files (each has a .json), in parquet files, or files in folders."""
    if tars := list(out.glob("*.tar")):
        return sum(name.endswith(".json") for path in tars for name in names_in(path))
    if tables := list(out.glob("**/*.parquet")):
        return sum(len(pq.read_table(path, columns=["data"])["data"].drop_null()) for path in tables)
    return sum(path.is_file() and path.stat().st_size > 0 for path in out.rglob("*"))


def names_in(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def write_files(folder: Path, contents: Sequence[bytes], ext: str = "jpg") -> list[str]:
    """Their paths below the parent of the folder."""
    folder.mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / f"{number}.{ext}").write_bytes(content)
    return [f"{folder.name}/{number}.{ext}" for number in range(len(contents))]


def peers(bench: Bench) -> list[Side]:
    www, out, sides = bench.folder("www"), bench.output, list[Side]()
    server = bench.files(www)
    for name in bench["tasks"].split(","):
        title, count, *kind = bench.data["tasks"][name]
        rows, many = max(4, int(count * bench["share"])), 4 if bench.quick else 40
        contents = photographs(kind[0], kind[1], many) if kind else [film(seconds=10.0, size=(640, 480))] * 4
        paths = write_files(www / name, contents, "jpg" if kind else "mp4")
        urls = [f"{server.http}/{paths[row % len(paths)]}?{row}" for row in range(rows)]
        curl = (f'url = "{url}"\noutput = "{out}/{n}"' for n, url in enumerate(urls))
        aria2 = (f"{url}\n  out={n}" for n, url in enumerate(urls))
        lists: dict[str, Any] = {"urls": bench.urls(name, urls), "out": out}
        lists |= {"curl": bench.urls(f"{name}-curl", curl), "aria2": bench.urls(f"{name}-aria2", aria2)}
        shown = {"urls": "urls.txt", "out": "dataset", "curl": "urls.curl", "aria2": "urls.aria2"}
        for tool, described in bench.data["tools"].items():
            if command := described["commands"].get(name):
                side = Side(
                    name=tool,
                    group=title,
                    command=["sh", "-c", f"exec {whole_command(command.format(**lists), described)}"],
                    rows=rows,
                    output=out,
                    stored=lambda: stored_in(out),
                    missing=missing(described.get("environment", ""), command.split()[0] * (tool != "any2ds")),
                    note=described.get("leaves_out", ""),
                    shown=command.format(**shown),
                )
                sides.append(side)
    return sides


def whole_command(command: str, tool: dict[str, Any]) -> str:
    """With the program of its environment."""
    program, _, rest = command.partition(" ")
    python = python_of(tool.get("environment", ""))
    if program == "any2ds":
        return f"{python} -m any2ds {rest}"
    if "environment" not in tool:
        return command
    run = f"{python} -c '{tool['module']}'" if "module" in tool else f"{Path(python).with_name(program)}"
    return f"{run} {rest}"


def img2dataset(bench: Bench) -> list[Side]:
    """Both have the same command line, by --preset=img2dataset."""
    www, out, images, sides = bench.folder("www"), bench.output, bench["images"], list[Side]()
    server = bench.files(www)
    options = "--output_format=webdataset --image_size=256 --resize_mode=keep_ratio --processes_count=2"
    tools = {
        "any2ds": [sys.executable, "-m", "any2ds", "--preset=img2dataset"],
        "img2dataset": [str(Path(python_of("img2dataset")).with_name("img2dataset"))],
    }
    for number, (group, (sizes, shard, part)) in enumerate(bench.data.items()):
        paths, rows = (
            write_files(www / str(number), photographs(100_000, sizes, 4 if bench.quick else 40)),
            images // part,
        )
        urls = bench.urls(str(number), (f"{server.http}/{paths[n % len(paths)]}?{n}" for n in range(rows)))
        flags = [f"--url_list={urls}", f"--output_folder={out}", f"--number_sample_per_shard={shard}", *options.split()]
        for name, command in tools.items():
            side = Side(name=name, group=group, command=[*command, *flags, "--thread_count=64"], rows=rows, output=out)
            sides.append(replace(side, stored=lambda: stored_in(out), missing=missing(name * (name != "any2ds"))))
    return sides
