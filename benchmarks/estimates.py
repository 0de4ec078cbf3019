"""Ten real runs, each estimated beforehand by `any2ds estimate`: what it said, and what the run then took.

    python benchmarks/estimates.py              # all ten, about 10 minutes
    python benchmarks/estimates.py sizes down   # some
    python benchmarks/estimates.py large        # 200,000 rows, of which 20,000 are simulated one by one; some minutes

Lists of other hosts, latencies, failures and sizes than those of `scenarios.py`, on loopback. The estimate knows
nothing of the server but its sample of 400 rows, and the line, which `--bandwidth` says.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scenarios import Scenario, dead, files, heavy, listed
from world import world

SAMPLE = 400  # rows


def mixture(host: int, rng: random.Random) -> str:
    """A fifth is gone, one in twenty hangs, the others come after 0.3 to 1.5 s."""
    kind = rng.random()
    return "0.3/0/404" if kind < 0.2 else "0.3/0/never" if kind < 0.25 else f"{rng.uniform(0.3, 1.5):.3f}/8000/ok"


def latency_of_host(host: int, rng: random.Random) -> str:
    """Each host has its own: half below 0.4 s, one in ten above 1.2 s."""
    return f"{min(3.0, random.Random(host).lognormvariate(-0.9, 0.8)):.3f}/5000/ok"


def sizes(host: int, rng: random.Random) -> str:
    """From some KB to some MB, 60 KB on average."""
    return f"0.4/{int(min(3e6, rng.lognormvariate(10.5, 1.0)))}/ok"


LISTS: dict[str, Scenario] = {
    "even": Scenario(files(3500, 200, "0.9/6000/ok"), {"thread_count": 100}),
    "line": Scenario(files(3500, 150, "0.5/50000/ok"), {}, 5e6),
    "tail": Scenario(heavy(2000, 300, "0.5/5000/ok"), {"max_per_host": 4}),
    "down": Scenario(dead(2500, 120, 8, "0.4/5000/ok"), {"thread_count": 40, "timeout": 4}),
    "mixture": Scenario(listed(2000, 90, mixture), {"thread_count": 60, "timeout": 5}),
    "slow": Scenario(listed(2500, 80, latency_of_host, [1.0] * 80), {"thread_count": 50}),
    "flaky": Scenario(files(1500, 100, "0.6/5000/flaky15"), {"thread_count": 40, "retries": 2}),
    "sizes": Scenario(listed(3000, 100, sizes), {"thread_count": 64}, 5e6),
    "two": Scenario(
        files(4000, 160, "0.9/5000/ok"), {"thread_count": 60, "processes_count": 2, "number_sample_per_shard": 500}
    ),
    "many": Scenario(files(1500, 900, "0.7/5000/ok"), {"thread_count": 50, "robots": "respect"}),
}
LARGE: dict[str, Scenario] = {"large": Scenario(files(200_000, 1000, "0.05/500/ok"), {"processes_count": 1})}


def estimated(name: str, scenario: Scenario, folder: Path) -> dict[str, Any]:
    bandwidth = int(scenario.line * 8) or 10**10
    command = [sys.executable, "-m", "any2ds", "estimate", "urls.txt", "--format=json", "--machines=1", "--quiet"]
    command += [f"--sample={SAMPLE}", f"--bandwidth={bandwidth}", *_flags(scenario)]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, timeout=600)
    return dict(json.loads(done.stdout))


def run(scenario: Scenario, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "any2ds", "urls.txt", "out", "--log_format=json", "--noreport", *_flags(scenario)]
    done = subprocess.run(command, cwd=folder, check=True, stderr=subprocess.PIPE, timeout=900)
    return dict(json.loads(done.stderr.splitlines()[-1]))


def _flags(scenario: Scenario) -> list[str]:
    return ["--output_format=webdataset", *(f"--{name}={value}" for name, value in scenario.options.items())]


def main(wanted: list[str]) -> int:
    print(f"{'list':<8} {'estimate':>9} {'from':>7} {'to':>7} {'run':>8} {'run/estimate':>13}   stored: estimate, run")
    worst = 0.0
    for name, scenario in {**LISTS, **LARGE}.items():
        if name not in (wanted or LISTS):
            continue
        with world(scenario.line) as port, tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            folder = Path(scratch)
            (folder / "urls.txt").write_text("\n".join(scenario.urls(port, random.Random(11))), encoding="ascii")
            before = estimated(name, scenario, folder)
            after = run(scenario, folder)
        time = before["predictions"][0]["seconds"]
        ratio = after["seconds"] / time["value"]
        worst = max(worst, abs(ratio - 1))
        stored = f"{before['sample']['success']['value']:.1%}, {after['stored'] / after['rows']:.1%}"
        print(
            f"{name:<8} {time['value']:>7.1f} s {time['low']:>5.0f} s {time['high']:>5.0f} s"
            f" {after['seconds']:>6.1f} s {ratio:>13.2f}   {stored}",
            flush=True,
        )
    print(f"the runs were off by {worst:.0%} at most")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
