"""What a benchmark is: sides that take turns, what is measured of each, and how the sides compare (`cases.yaml`).

A side is a command line, or a function that is called in a fresh process. Each run of it has the figures `wall`, `cpu`
(seconds, of all its processes), `memory` (bytes, of its largest process), `rows` (stored), `rate` (rows per second) and
`cpu_each` (CPU seconds of a row, without what starting takes), besides those that the side itself adds.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.servers import ROOT, FileServer, Server, Store, served_files

Figures = Mapping[str, float]
ANY2DS = (sys.executable, "-m", "any2ds")


class BrokenRun(Exception):
    """A side did not do what it had to; a slow run is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the commands that take turns."""

    name: str
    command: Sequence[str | Path]
    group: str = ""  # heading of the table that it is in
    rows: int = 0  # that it must store; 0: any number
    start: Sequence[str | Path] = ()  # the same command over `start_rows` rows, whose CPU is taken off
    start_rows: int = 1
    output: Path | None = None  # removed before and after each run
    stored: Callable[[], int] | None = None  # rows in the output after a run
    figures: Callable[[Figures], Figures] | None = None  # more of a run that has ended, from its other figures
    environment: Mapping[str, str] = field(default_factory=dict)
    is_call: bool = False  # its last line of output has figures
    codes: Sequence[int] = (0,)  # exit codes that are right
    missing: str = ""  # why it cannot run on this machine
    note: str = ""
    shown: str = ""  # its command as people write it

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in a table."""

    title: str
    figure: str
    form: str  # of tables.FORMS


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of a side, divided by that of another one in the same round, or by the largest of several."""

    figure: str
    side: str
    others: Sequence[str]
    goal: str = ""  # ">= 0.8" or "<= 1.2"

    @classmethod
    def of(cls, figure: str, side: str, others: str | list[str], goal: str = "") -> Comparison:
        return cls(figure, side, (others,) if isinstance(others, str) else tuple(others), goal)

    def is_met(self, value: float) -> bool | None:
        sign, _, bound = self.goal.partition(" ")
        return None if not sign else value >= float(bound) if sign == ">=" else value <= float(bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A benchmark, as `cases.yaml` has it."""

    name: str
    about: str
    sides: str | Mapping[str, str]  # module and function; or the commands themselves, by name
    columns: Sequence[Column]
    goals: Sequence[Comparison] = ()
    against: str = ""  # the side by whose `wall` that of the others in its group is divided
    rounds: int = 3
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    shows_commands: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, described: dict[str, Any]) -> Case:
        columns = [Column(title, *figure.split()) for title, figure in described.pop("columns").items()]
        goals = [Comparison.of(*goal) for goal in described.pop("goals", ())]
        return cls(name=name, columns=columns, goals=goals, **described)

    def make_sides(self, bench: Bench) -> Sequence[Side]:
        if not isinstance(self.sides, str):
            return [Side(name=name, command=["sh", "-c", command]) for name, command in self.sides.items()]
        module, _, function = self.sides.partition(".")
        sides: Sequence[Side] = getattr(importlib.import_module(f"benchmarks.cases.{module}"), function)(bench)
        return sides


def read_cases(path: Path = ROOT / "benchmarks" / "cases.yaml") -> dict[str, Case]:
    return {name: Case.of(name, described) for name, described in yaml.safe_load(path.read_text("utf-8")).items()}


class Bench:
    """What sides are made of: folders, lists, servers, and the options of the case. Closed when the case is done."""

    def __init__(self, scratch: Path, case: Case, options: Mapping[str, Any], quick: bool, stack: ExitStack) -> None:
        self.scratch, self.data, self.options, self.quick, self.stack = scratch, case.data, options, quick, stack
        self.output = scratch / "output"

    def __getitem__(self, option: str) -> Any:
        return self.options[option]

    def server(self, **options: Any) -> Server:
        return self.stack.enter_context(Server(**options))

    def store(self, **options: Any) -> Store:
        return self.stack.enter_context(Store(**options))

    def files(self, folder: Path) -> FileServer:
        return self.stack.enter_context(served_files(folder, self.folder("nginx")))

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def urls(self, name: str, urls: Iterable[str]) -> Path:
        path = self.scratch / f"{name}.txt"
        path.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
        return path

    def any2ds(self, name: str, urls: Sequence[str], *, group: str = "", **options: Any) -> Side:
        """A run over these URLs, all of which are stored."""
        label = f"{group}-{name}".replace("/", "-")
        many, one = self.urls(label, urls), self.urls(f"{label}-one", urls[:1])
        options = {"output_folder": self.output, "output_format": "webdataset", "quiet": True, **options}
        flags = [f"--{option}={value}" for option, value in options.items()]
        output = Path(options["output_folder"])
        side = Side(name=name, group=group, command=[*ANY2DS, f"--url_list={many}", *flags], output=output)
        return replace(
            side,
            start=[*ANY2DS, f"--url_list={one}", *flags],
            rows=len(urls),
            stored=lambda: sum(each["successes"] for each in statistics_of(output)),
            figures=lambda _: open_shards(output),
        )

    def call(self, name: str, function: Callable[..., Figures], environment: str = "", **arguments: Any) -> Side:
        """A function of a case, which is called in a process of its own, and returns figures."""
        place, said = f"{function.__module__}:{function.__name__}", json.dumps(arguments, default=str)
        command = [python_of(environment), "-m", "benchmarks.call", place, said]
        return Side(name=name, command=command, is_call=True, missing=missing(environment))


def statistics_of(dataset: Path) -> list[dict[str, Any]]:
    """What `_stats.json` of each finished shard says."""
    return [json.loads(path.read_bytes()) for path in sorted(dataset.rglob("*_stats.json"))]


def open_shards(dataset: Path) -> dict[str, float]:
    """Seconds from the start of the first shard to the end of the last: without starting Python and imports."""
    if not (found := statistics_of(dataset)):
        return {}
    stored = sum(each["successes"] for each in found)
    seconds = max(each["end_time"] for each in found) - min(each["start_time"] for each in found)
    return {"open": seconds, "open_rate": stored / seconds, "lost": sum(each["count"] for each in found) - stored}


def python_of(environment: str) -> str:
    """The Python of an environment that `make` makes; "" is the one of this process."""
    return str(ROOT / f".venv-{environment}" / "bin" / "python") if environment else sys.executable


def missing(environment: str = "", program: str = "") -> str:
    """How to get an environment, or what is to be installed; "" where all is there."""
    if environment:
        is_made = (ROOT / f".venv-{environment}" / ".installed").exists()
        return "" if is_made else f"it needs `make .venv-{environment}/.installed`"
    return f"{program} is not installed" if program and not shutil.which(program) else ""


def clean_environment(scratch: Path) -> dict[str, str]:
    """Without proxies, with the modules of this repository and with temporary files in `scratch`. Python keeps what it
    compiles, as it does for users: without that a run of one row takes twice the CPU."""
    left_out = ("_proxy", "pythondontwritebytecode")
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith(left_out)}
    return {**kept, "no_proxy": "*", "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"}
