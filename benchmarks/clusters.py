"""What clusters cost beside the processes of one machine, and how they scale. All of it on this machine.

    python benchmarks/clusters.py [pyspark] [ray] [beam] [scaling] [--pairs=3] [--rows=50000]

The first three: CPU of all processes of a run, the cluster's own included, against `distributor=multiprocessing`, both
with two worker processes, over the same list from nginx on loopback, in turns. A list of `rows` and one of three times
as many tell what a sample costs (the slope) from what starting takes (the rest). `scaling` is a standalone Spark
cluster with two workers of one core against one, where the server takes 0.1 s for each answer and 32 transfers are in
flight for each.
Needs pyspark and a Java, ray, apache-beam, and the rights that whole.py wants. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import servers

FILES, SIZE = 200, 20_000  # files, and bytes of each
MULTIPROCESSING = ("--distributor=multiprocessing",)
ENGINES: dict[str, tuple[Sequence[str], float]] = {
    "pyspark": (("--distributor=pyspark",), 1.1),
    "ray": (("--distributor=ray",), 1.1),
    "beam": (("--distributor=beam",), 1.2),
}
SCALING, DELAY = 1.8, 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(ENGINES)}, scaling; all by default")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - {*ENGINES, "scaling"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="any2ds-bench-") as folder:
        scratch = Path(folder)
        www = scratch / "www"
        www.mkdir()
        for n in range(FILES):
            (www / f"{n}.jpg").write_bytes(os.urandom(SIZE))
        with servers.start(www, scratch) as server:
            for name, (options, wanted) in ENGINES.items():
                if not arguments.parts or name in arguments.parts:
                    against_processes(name, options, wanted, server.http, scratch, arguments.rows, arguments.pairs)
        if not arguments.parts or "scaling" in arguments.parts:
            scaling(www, scratch, arguments.rows, arguments.pairs)
    return 0


def against_processes(
    name: str, options: Sequence[str], wanted: float, base: str, scratch: Path, rows: int, pairs: int
) -> None:
    found: dict[str, list[tuple[float, float]]] = {"theirs": [], "ours": []}
    ratios = []
    for pair in range(pairs):
        for who in ("theirs", "ours") if pair % 2 else ("ours", "theirs"):
            found[who].append(cost(MULTIPROCESSING if who == "ours" else options, base, scratch, rows))
        ratios.append(found["theirs"][-1][0] / found["ours"][-1][0])
    ratio = statistics.median(ratios)
    (their, their_start), (our, our_start) = (
        [statistics.median(values) for values in zip(*found[who], strict=True)] for who in ("theirs", "ours")
    )
    print(
        f"{name}: {ratio:.2f} x the CPU per sample of processes ({min(ratios):.2f} to {max(ratios):.2f};"
        f" {their * 1e6:.0f} and {our * 1e6:.0f} µs), wanted {wanted}: {'yes' if ratio <= wanted else 'no'};"
        f" starting takes {their_start:.1f} and {our_start:.1f} s of CPU",
        flush=True,
    )


def cost(options: Sequence[str], base: str, scratch: Path, rows: int) -> tuple[float, float]:
    """CPU seconds for a sample, and for starting."""
    few, many = (cpu(options, base, scratch, count) for count in (rows, 3 * rows))
    each = (many - few) / (2 * rows)
    return each, few - rows * each


def cpu(options: Sequence[str], base: str, scratch: Path, rows: int) -> float:
    with listed(base, scratch, rows) as (urls, output):
        command = [sys.executable, str(Path(__file__).with_name("whole.py")), *any2ds(urls, output, options)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **QUIET})
        check(output, rows, done)
        return float(done.stdout)


QUIET = {"no_proxy": "*", "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def listed(base: str, scratch: Path, rows: int) -> Iterator[tuple[Path, Path]]:
    """A list of so many rows, and a folder for what becomes of it."""
    urls, output = scratch / "urls.txt", scratch / "output"
    urls.write_text("".join(f"{base}/{n % FILES}.jpg?{n}\n" for n in range(rows)), encoding="utf-8")
    try:
        yield urls, output
    finally:
        shutil.rmtree(output, ignore_errors=True)


def any2ds(urls: Path, output: Path, options: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "any2ds", f"--url_list={urls}", f"--output_folder={output}", "--fsync=false"]
    own = ["--processes_count=2", "--output_format=webdataset", "--number_sample_per_shard=1000", "--report=false"]
    own += ["--disable_all_reencoding=true"]  # of what is called a JPEG and is none
    return [*command, *own, *options]


def check(output: Path, rows: int, done: subprocess.CompletedProcess[str]) -> list[Mapping[str, float]]:
    """The stats of all shards, which must have all rows."""
    stats = [json.loads(path.read_bytes()) for path in output.glob("*_stats.json")]
    if done.returncode or sum(each["successes"] for each in stats) != rows:
        raise SystemExit(f"broke: {done.stderr[-3000:]}")
    return stats


def scaling(www: Path, scratch: Path, rows: int, pairs: int) -> None:
    from tests.support.sparkcluster import spark_cluster

    slow = [sys.executable, str(Path(__file__).with_name("slow.py")), str(www), str(DELAY)]
    ratios, rates = [], {1: list[float](), 2: list[float]()}
    with subprocess.Popen(slow, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            for pair in range(pairs):
                for workers in sorted((1, 2), reverse=bool(pair % 2)):
                    folder = scratch / f"cluster-{pair}-{workers}"
                    folder.mkdir()
                    with spark_cluster(folder, workers) as cluster:
                        environment = {**os.environ, **QUIET, "SPARK_CONF_DIR": str(cluster.conf_folder)}
                        rates[workers].append(rate(base, scratch, rows, environment, workers))
                ratios.append(rates[2][-1] / rates[1][-1])
        finally:
            server.kill()
    ratio = statistics.median(ratios)
    print(
        f"two workers of one core: {ratio:.2f} x one ({min(ratios):.2f} to {max(ratios):.2f};"
        f" {statistics.median(rates[2]):.0f} and {statistics.median(rates[1]):.0f} files/s), wanted {SCALING}:"
        f" {'yes' if ratio >= SCALING else 'no'}",
        flush=True,
    )


def rate(base: str, scratch: Path, rows: int, environment: Mapping[str, str], workers: int) -> float:
    """Files per second, from the start of the first shard to the end of the last."""
    with listed(base, scratch, rows) as (urls, output):
        options = ["--distributor=pyspark", f"--processes_count={workers}", "--thread_count=32"]
        command = any2ds(urls, output, options)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        stats = check(output, rows, done)
        return rows / (max(each["end_time"] for each in stats) - min(each["start_time"] for each in stats))


if __name__ == "__main__":
    sys.exit(main())
