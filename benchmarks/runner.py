"""Runs the sides of a case in turns, and makes a result of what was measured: medians, spreads and ratios, as JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from any2ds.core.version import __version__
from benchmarks.case import Bench, BrokenRun, Case, Comparison, Figures, Side, clean_environment
from benchmarks.servers import ROOT

LIMIT = 7200.0  # seconds of one run
_RAM_DISK = Path("/dev/shm")
_ROOM = 8_000_000_000  # bytes that a case may take there
Result = dict[str, Any]


def run_case(case: Case, options: Mapping[str, Any], quick: bool, say: Callable[[str], None]) -> Result:
    """Measure all sides of a case; a side that breaks is left out of the rounds that follow."""
    has_ram = os.access(_RAM_DISK, os.W_OK) and shutil.disk_usage(_RAM_DISK).free >= _ROOM
    runs: dict[str, list[Figures]] = {}
    broken: dict[str, str] = {}
    with (
        tempfile.TemporaryDirectory(prefix="any2ds-benchmark-", dir=_RAM_DISK if has_ram else None) as folder,
        ExitStack() as stack,
    ):
        bench = Bench(Path(folder), case, options, quick, stack)
        sides = case.make_sides(bench)
        for side in sides:
            runs[side.key] = []
            if side.missing:
                say(f"{case.name}: {side.key} is left out: {side.missing}")
        for number in range(options["rounds"]):
            for side in sides[:: -1 if number % 2 else 1]:
                if side.missing or side.key in broken:
                    continue
                try:
                    figures = run_side(side, bench.scratch)
                except BrokenRun as error:
                    broken[side.key] = str(error)
                    say(f"{case.name}: {side.key} broke: {error}")
                else:
                    runs[side.key].append(figures)
                    say(f"{case.name}: round {number + 1}: {side.key}: {figures['wall']:.2f} s")
    described = [describe(side, runs[side.key], broken.get(side.key, "")) for side in sides]
    return {
        "case": case.name,
        "command": " ".join(["python -m benchmarks", case.name, *option_flags(case, options, quick)]),
        "quick": quick,
        **machine("RAM disk" if has_ram else "disk"),
        "rounds": options["rounds"],
        "options": dict(options),
        "sides": described,
        "comparisons": [found for each in case.goals if (found := compare(each, runs))],
        "against": case.against,
    }


def run_side(side: Side, scratch: Path) -> Figures:
    """One run. Raises BrokenRun."""
    start = run_command(side, side.start, scratch)["cpu"] if side.start else 0.0
    figures = {**run_command(side, side.command, scratch), "start_cpu": start}
    try:
        if side.stored is not None:
            figures["rows"] = side.stored()
            if side.rows and figures["rows"] != side.rows:
                raise BrokenRun(f"it stored {figures['rows']:,.0f} of {side.rows:,} rows")
        if figures.get("rows"):
            figures.setdefault("rate", figures["rows"] / figures["wall"])
            started = side.start_rows if side.start else 0
            figures.setdefault("cpu_each", (figures["cpu"] - start) / max(1, figures["rows"] - started))
        if side.figures is not None:
            figures.update(side.figures(figures))
    finally:
        remove(side.output)
    return figures


def run_command(side: Side, command: Sequence[str | Path], scratch: Path) -> Figures:
    """Its figures. The command runs in a session of its own, all of which is killed when it takes too long."""
    remove(side.output)
    result, messages, said = scratch / "process.json", scratch / "messages", scratch / "said"
    result.unlink(missing_ok=True)
    whole = [sys.executable, str(ROOT / "benchmarks" / "process.py"), str(result), *map(str, command)]
    environment = {**clean_environment(scratch), **side.environment}
    with messages.open("wb") as errors, said.open("wb") as out:
        process = subprocess.Popen(
            whole, stdout=out, stderr=errors, cwd=scratch, env=environment, start_new_session=True
        )
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise BrokenRun(f"it still ran after {LIMIT:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    words = (messages.read_text(errors="replace") + said.read_text(errors="replace")).strip()[-1500:]
    if not result.exists():
        raise BrokenRun(f"it could not be started: {words}")
    figures = json.loads(result.read_text())
    if (code := figures.pop("code")) not in side.codes:
        raise BrokenRun(f"exit code {code}: {words}")
    figures.pop("cpu_by")
    if side.is_call:
        figures.update(json.loads(said.read_text().splitlines()[-1]))
    return dict(figures)


def remove(output: Path | None) -> None:
    if output is not None and output.exists():
        shutil.rmtree(output)


def describe(side: Side, runs: Sequence[Figures], broken: str) -> Result:
    names = [name for name in (runs[0] if runs else ()) if name != "ended"]
    figures = {name: spread([run[name] for run in runs if name in run]) for name in names}
    plain = {name: value for name in ("group", "missing", "note", "shown") if (value := getattr(side, name))}
    return {"name": side.name, **plain, **({"broken": broken} if broken else {}), "figures": figures}


def spread(values: Sequence[float]) -> Result:
    """The median of some rounds, the extremes, and the value of each round."""
    shown = [float(f"{value:.5g}") for value in values]
    return {"median": float(f"{statistics.median(shown):.5g}"), "low": min(shown), "high": max(shown), "rounds": shown}


def compare(comparison: Comparison, runs: Mapping[str, Sequence[Figures]]) -> Result | None:
    """The ratio within each round that has both; None where no round has."""
    figure, _, theirs = comparison.figure.partition(" : ")
    ratios = []
    for number, own in enumerate(runs.get(comparison.side, ())):
        known = [runs[other][number] for other in comparison.others if number < len(runs.get(other, ()))]
        values = [figures[theirs or figure] for figures in known if figures.get(theirs or figure)]
        if figure in own and values:
            ratios.append(own[figure] / max(values))
    if not ratios:
        return None
    found = spread(ratios)
    return {**asdict(comparison), **found, "met": comparison.is_met(found["median"])}


def option_flags(case: Case, options: Mapping[str, Any], quick: bool) -> list[str]:
    """The options that are not those of a plain run."""
    usual = {"rounds": 1 if quick else case.rounds, **{name: pair[quick] for name, pair in case.options.items()}}
    return ["--quick"] * quick + [f"--{name}={value}" for name, value in options.items() if value != usual[name]]


def machine(output: str) -> Result:
    """Where and with what it was measured."""
    import pycurl

    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
            "load": round(os.getloadavg()[0], 1),
            "output": output,
        },
        "versions": {
            "any2ds": __version__,
            "python": platform.python_version(),
            "libcurl": pycurl.version.split()[1].partition("/")[2],
        },
    }
