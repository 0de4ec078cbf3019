"""The simulation held against measured runs: the same list and options, in virtual time and on loopback.

    python benchmarks/scenarios.py               # all of them, about 15 minutes
    python benchmarks/scenarios.py robots hosts  # some

Latency dominates in all of them, so that a busy machine does little. The time is that in which shards are open. No
constant is fitted; the first five were run while the model was made (that transfers share a line at random follows from
"line"), the others when it was there.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from world import answers, url, world

from any2ds.config.options import Config
from any2ds.core.rows import Row
from any2ds.forecast.simulation import Answer, Machine, Simulated, simulate

Urls = Callable[[int, random.Random], Iterator[str]]
CPU = 3e-4  # seconds of the processor for a row: next to nothing here


@dataclass(frozen=True, slots=True)
class Scenario:
    """A list, options, and a line in bytes per second."""

    urls: Urls  # of a port
    options: dict[str, Any] = field(default_factory=dict)
    line: float = 0.0


def listed(rows: int, hosts: int, path: Callable[[int, random.Random], str], weights: Sequence[float] = ()) -> Urls:
    """`rows` over `hosts` in turns, or by chance with `weights`; `path` says what a host answers to one of them."""

    def urls(port: int, rng: random.Random) -> Iterator[str]:
        chosen = rng.choices(range(hosts), weights, k=rows) if weights else (number % hosts for number in range(rows))
        for number, host in enumerate(chosen):
            yield url(port, host, path(host, rng), number)

    return urls


def files(rows: int, hosts: int, path: str) -> Urls:
    """All of the same kind."""
    return listed(rows, hosts, lambda host, rng: path)


def mixed(rows: int, hosts: int, some: str, others: str, share: float) -> Urls:
    """A `share` of the rows, at random, are of another kind."""
    return listed(rows, hosts, lambda host, rng: some if rng.random() < share else others)


def heavy(rows: int, hosts: int, path: str) -> Urls:
    """Hosts with rows by Zipf's law."""
    return listed(rows, hosts, lambda host, rng: path, [1 / (host + 1) for host in range(hosts)])


def dead(rows: int, hosts: int, every: int, path: str = "0.5/5000/ok") -> Urls:
    """Each so-many-th host is silent."""
    return listed(rows, hosts, lambda host, rng: "0.5/0/never" if host % every == 3 else path)


def uneven(rows: int, hosts: int) -> Urls:
    """Seconds by a heavy-tailed distribution: half of them below 0.5, one in a hundred above 3."""
    return listed(rows, hosts, lambda host, rng: f"{min(6.0, rng.lognormvariate(-0.7, 0.8)):.3f}/5000/ok")


SCENARIOS: dict[str, Scenario] = {
    # run while the model was made
    "threads": Scenario(files(3000, 100, "1.0/5000/ok"), {"thread_count": 100}),
    "line": Scenario(files(3000, 100, "0.3/50000/ok"), {"thread_count": 64}, 5e6),
    "host": Scenario(files(600, 1, "0.4/5000/ok"), {"max_per_host": 8}),
    "dead": Scenario(dead(2500, 100, 10), {"thread_count": 40, "timeout": 4}),
    "retries": Scenario(files(1500, 50, "0.5/5000/flaky20"), {"thread_count": 32, "retries": 2}),
    # held out
    "auto": Scenario(files(3000, 200, "0.8/50000/ok"), {}, 5e6),
    "hosts": Scenario(heavy(1500, 200, "0.5/5000/ok"), {"max_per_host": 4}),
    "hanging": Scenario(mixed(2000, 60, "0.5/0/never", "0.5/5000/ok", 0.03), {"thread_count": 40, "timeout": 5}),
    "busy": Scenario(files(600, 6, "0.5/5000/busy3"), {"retries": 3, "thread_count": 64}),
    "delay": Scenario(files(3000, 20, "0.1/5000/ok"), {"host_delay": 0.2}),
    "uneven": Scenario(uneven(3000, 100), {"thread_count": 60}),
    "stragglers": Scenario(mixed(2000, 50, "8.0/5000/ok", "0.4/5000/ok", 0.01), {"thread_count": 30}),
    "robots": Scenario(files(1500, 300, "0.6/5000/ok"), {"thread_count": 40, "robots": "respect"}),
}
FIRST = 5
SEEN = 0.005  # seconds from the end of an answer until a busy machine has seen it


def simulated(scenario: Scenario, urls: list[str], seed: int = 1) -> Simulated:
    options = Config.from_options({"url_list": "-", **scenario.options}).fetch
    rows = (Row(0, number, str(number), each) for number, each in enumerate(urls))
    answer = answers(seed)

    def later(host: str, row: Row, at_once: int) -> Answer:
        found = answer(host, row, at_once)
        return replace(found, seconds=found.seconds + SEEN)

    return simulate(options, rows, later, Machine(scenario.line or float("inf"), CPU), seed)


def measured(scenario: Scenario, urls: list[str], folder: Path) -> tuple[float, dict[str, int]]:
    """Seconds with shards open, and the outcomes."""
    (folder / "urls.txt").write_text("\n".join(urls), encoding="ascii")
    command = [sys.executable, "-m", "any2ds", str(folder / "urls.txt"), str(folder / "out"), "--quiet", "--noreport"]
    command += ["--processes_count=1", "--output_format=webdataset", "--number_sample_per_shard=1000000"]
    command += [f"--{name}={value}" for name, value in scenario.options.items()]
    subprocess.run(command, check=True, timeout=600)
    stats = [json.loads(path.read_bytes()) for path in (folder / "out").glob("*_stats.json")]
    seconds = max(each["end_time"] for each in stats) - min(each["start_time"] for each in stats)
    outcomes: dict[str, int] = {}
    for each in stats:
        for code, rows in each["status_dict"].items():
            outcomes[code] = outcomes.get(code, 0) + rows
    return seconds, outcomes


def main(wanted: list[str]) -> int:
    print(
        f"{'scenario':<12} {'model':>8} {'run':>8} {'model/run':>9}   stored, in the model and in the run", flush=True
    )
    worst = 0.0
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        if wanted and name not in wanted:
            continue
        with world(scenario.line) as port, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            urls = list(scenario.urls(port, random.Random(7)))
            model = simulated(scenario, urls)
            seconds, outcomes = measured(scenario, urls, Path(folder))
        ratio = model.seconds / seconds
        worst = max(worst, abs(ratio - 1))
        stored = f"{model.codes['success']:,} and {outcomes.get('success', 0):,} of {len(urls):,}"
        kind = "" if number < FIRST else "  held out"
        print(f"{name:<12} {model.seconds:>6.1f} s {seconds:>6.1f} s {ratio:>9.2f}   {stored}{kind}", flush=True)
    print(f"the model is off by {worst:.0%} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
