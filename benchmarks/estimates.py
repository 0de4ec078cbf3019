"""Real runs, each estimated beforehand by `any2ds estimate`: what it said, and what the run then took.

    python benchmarks/estimates.py              # all eleven, about 11 minutes
    python benchmarks/estimates.py sizes down   # some
    python benchmarks/estimates.py large        # 200,000 rows, of which 20,000 are simulated one by one; some minutes

Lists of other hosts, latencies, failures and sizes than those of `scenarios.py`, on loopback. The estimate knows
nothing of the server but its sample of 400 rows, and the line, which `--bandwidth` says.
"""

from __future__ import annotations

import json
import os
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
    "ranks": Scenario(
        files(4000, 160, "0.9/5000/ok"), {"thread_count": 60, "processes_count": 1, "number_sample_per_shard": 500}
    ),
    "many": Scenario(files(1500, 900, "0.7/5000/ok"), {"thread_count": 50, "robots": "respect"}),
}
LARGE: dict[str, Scenario] = {"large": Scenario(files(200_000, 1000, "0.05/500/ok"), {"processes_count": 1})}


RANKS = {"ranks": 2}  # list -> machines that make it


def estimated(name: str, scenario: Scenario, folder: Path) -> dict[str, Any]:
    bandwidth = int(scenario.line * 8) or 10**10
    command = [sys.executable, "-m", "any2ds", "estimate", "urls.txt", "--format=json", "--quiet"]
    command += [f"--machines={RANKS.get(name, 1)}", f"--sample={SAMPLE}", f"--bandwidth={bandwidth}", *_flags(scenario)]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, timeout=600)
    return dict(json.loads(done.stdout))


def run(name: str, scenario: Scenario, folder: Path) -> dict[str, float]:
    """Seconds, rows, stored rows, their bytes, and the memory of the largest process, of all ranks together."""
    ranks = RANKS.get(name, 1)
    command = [sys.executable, "-m", "any2ds", "urls.txt", "out", "--log_format=json", "--noreport", *_flags(scenario)]
    started = []
    for rank in range(ranks):
        own = [f"--rank={rank}", f"--world_size={ranks}"] if ranks > 1 else []
        log = (folder / f"{rank}.log").open("wb")
        started.append((subprocess.Popen([*command, *own], cwd=folder, stderr=log), log))
    found = {"seconds": 0.0, "rows": 0, "stored": 0, "bytes": 0, "memory": 0}
    for process, log in started:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.close()
        if process.returncode:
            raise RuntimeError(Path(log.name).read_text(encoding="utf-8"))
        end = json.loads(Path(log.name).read_bytes().splitlines()[-1])
        for key in ("rows", "stored", "bytes"):
            found[key] += end[key]
        found["seconds"] = max(found["seconds"], end["seconds"])
        found["memory"] = max(found["memory"], 1024 * usage.ru_maxrss)
    return found


def _flags(scenario: Scenario) -> list[str]:
    return ["--output_format=webdataset", *(f"--{name}={value}" for name, value in scenario.options.items())]


def main(wanted: list[str]) -> int:
    print(
        f"{'list':<8} {'estimate':>9} {'from':>7} {'to':>7} {'run':>8} {'estimate/run':>13}   stored         "
        " bytes           memory of a process"
    )
    worst = 0.0
    for name, scenario in {**LISTS, **LARGE}.items():
        if name not in (wanted or LISTS):
            continue
        with world(scenario.line) as port, tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            folder = Path(scratch)
            (folder / "urls.txt").write_text("\n".join(scenario.urls(port, random.Random(11))), encoding="ascii")
            before = estimated(name, scenario, folder)
            after = run(name, scenario, folder)
        predicted = before["predictions"][0]
        time = predicted["seconds"]
        ratio = time["value"] / after["seconds"]
        worst = max(worst, abs(ratio - 1))
        stored = f"{before['sample']['success']['value']:.1%}, {after['stored'] / after['rows']:.1%}"
        size = f"{before['dataset']['stored_bytes'] / 1e6:.1f}, {after['bytes'] / 1e6:.1f} MB"
        memory = f"{predicted['memory_per_worker'] / 1e6:.0f}, {after['memory'] / 1e6:.0f} MB"
        print(
            f"{name:<8} {time['value']:>7.1f} s {time['low']:>5.0f} s {time['high']:>5.0f} s"
            f" {after['seconds']:>6.1f} s {ratio:>13.2f}   {stored:<14} {size:<15} {memory}",
            flush=True,
        )
    print(f"the estimates were off by {worst:.1%} at most of what the runs took; pairs are estimate, run")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
