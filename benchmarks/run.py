"""The command: starts the servers, takes the figures, prints them as a table and writes them as JSON.

    python benchmarks/run.py [NAME ...] [--quick] [--json FILE]

NAME is one of the figures in `figures.ALL`. Exit code 0 unless something broke: a slow machine is no failure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import figures
import pycurl
import servers
from figures import FULL, QUICK, Figure, Stage
from measure import Bench, Broken
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from any2ds.core.version import __version__

_RAM_DISK = Path("/dev/shm")
_ROOM = 6_000_000_000  # bytes that a full run may take there; containers often have 64 MB
_RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures any2ds against a bare libcurl loop, on this machine alone.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(figures.ALL)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="short lists and one pair each: a look, not a measurement")
    parser.add_argument("--history", type=Path, help="append a line to this file: date, commit, machine and figures")
    parser.add_argument("--json", type=Path, default=_RESULTS, help="default: benchmarks/results.json")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(figures.ALL):
        parser.error(f"no such figure: {', '.join(sorted(unknown))} (there are {', '.join(figures.ALL)})")
    signal.signal(signal.SIGTERM, _stop)
    console = Console(stderr=True, highlight=False)
    started = time.monotonic()
    found: list[Figure] = []
    facts: dict[str, Any] = {}
    broken: list[str] = []
    try:
        _measure(arguments.names or list(figures.ALL), arguments.quick, console, facts, found, broken)
    except KeyboardInterrupt:
        broken.append("interrupted")
    facts["minutes"] = round((time.monotonic() - started) / 60, 1)
    # A file or a pipe has no width; there the table need not be squeezed into 80 columns.
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(_shown(facts, found))
    for problem in broken:
        console.print(f"broke: {problem}", style="red", markup=False)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    results = {"facts": facts, "figures": [figure.to_json() for figure in found], "broken": broken}
    arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"written as {arguments.json}")
    if arguments.history:
        with arguments.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_entry(facts, found)) + "\n")
    return 1 if broken else 0


def _measure(
    names: list[str], quick: bool, console: Console, facts: dict[str, Any], found: list[Figure], broken: list[str]
) -> None:
    """Fills `facts`, `found` and `broken` as it goes, so that what was measured before a problem is not lost."""
    has_ram_disk = os.access(_RAM_DISK, os.W_OK) and shutil.disk_usage(_RAM_DISK).free >= _ROOM
    with (
        tempfile.TemporaryDirectory(prefix="any2ds-bench-", dir=_RAM_DISK if has_ram_disk else None) as ram,
        tempfile.TemporaryDirectory(prefix="any2ds-bench-") as disk,
    ):
        www = Path(ram) / "www"
        figures.make_files(www)
        with servers.start(www, Path(disk)) as server, servers.slow(www) as slow:
            facts |= _facts(server.name, has_ram_disk)
            bench = Bench(Path(ram), has_ram_disk, server.cpu_seconds, server.ca_file)
            effort = QUICK if quick else FULL
            with console.status("warming up") as status:
                stage = Stage(bench, server, slow, Path(disk), effort, lambda words: status.update(words))
                urls = stage.url_list("warm", server.http, figures.FILES)
                bench.any2ds(urls, figures.FILES)
                bench.bare(urls, figures.FILES, "sha256")
                for name in names:
                    try:
                        before = len(found)
                        for figure in figures.ALL[name](stage):
                            found.append(figure)
                            console.print(_line(figure))
                        if len(found) == before:  # the server cannot do it, or a quick run leaves it out
                            facts["not measured"] = f"{facts.get('not measured', '')} {name}".strip()
                    except Broken as error:
                        broken.append(f"{name}: {error}")


def _entry(facts: dict[str, Any], found: list[Figure]) -> dict[str, Any]:
    """A line of the history: what to compare with the next one, on the same machine."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    machine = {name: facts.get(name) for name in ("cores", "system", "python", "libcurl", "server", "output")}
    load = round(os.getloadavg()[2], 1)  # ratios hold on a busy machine, rates do not
    figures = {figure.name: round(figure.value, 3) for figure in found}
    return {"date": facts.get("date"), "commit": commit, "machine": machine, "load": load, "figures": figures}


def _facts(server: str, has_ram_disk: bool) -> dict[str, Any]:
    return {
        "command": " ".join(["python benchmarks/run.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "any2ds": __version__,
        "libcurl": " ".join(pycurl.version.split()[:3]),
        "server": server,
        "output": "RAM disk" if has_ram_disk else "temporary folder on disk (there is no RAM disk with 6 GB)",
    }


def _shown(facts: dict[str, Any], found: list[Figure]) -> Group:
    """The table, and below it what would not fit into it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("figure", "measured", "", "target", "met", "range", "of"):
        justify: Any = "right" if heading in ("measured", "target") else "left"
        table.add_column(heading, justify=justify, no_wrap=heading != "figure")
    notes = []
    for figure in found:
        spread = f"{min(figure.spread):.2f} to {max(figure.spread):.2f}" if len(figure.spread) > 1 else ""
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[figure.met]
        table.add_row(figure.name, _number(figure.value), figure.unit, figure.target, met, spread, figure.said)
        if figure.note:
            notes.append(Text(f"{figure.name}: {figure.note}"))
    return Group(*(Text(f"{name}: {value}") for name, value in facts.items()), table, *notes)


def _line(figure: Figure) -> str:
    verdict = "" if figure.met is None else f", {'meets' if figure.met else 'MISSES'} {figure.target}"
    return f"{figure.name}: {_number(figure.value)} {figure.unit}".rstrip() + verdict


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _stop(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
