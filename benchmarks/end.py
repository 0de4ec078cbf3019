"""What the end of a run takes: from the last answer of the server to its exit, and what the report adds.

    python benchmarks/end.py                          # default options: files in folders, one shard, with the report
    python benchmarks/end.py --kind=html --options="--output_format=webdataset --number_sample_per_shard=1000"

Runs with the report and without it take turns. The moment of the last answer is in the log of the server, so nginx has
to be installed.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Bench
from servers import start

_DIFFERENT = 64  # files, which the list names over and over


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the end of a run takes.")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=("jpeg", "html"), default="jpeg")
    parser.add_argument("--options", default="", help="of any2ds")
    asked = parser.parse_args(arguments)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="any2ds-bench-") as name:
        scratch = Path(name)
        www = scratch / "www"
        www.mkdir()
        ext = _write(www, asked.kind)
        with start(www, scratch) as server:
            log = scratch / "requests.log"
            if not log.exists():
                raise SystemExit("nginx is not installed")
            urls = scratch / "urls.txt"
            lines = (f"{server.logged}/{row % _DIFFERENT}.{ext}?{row}\n" for row in range(asked.rows))
            urls.write_text("".join(lines), encoding="utf-8")
            bench = Bench(scratch, True, server.cpu_seconds, None)
            runs = [
                [_run(bench, urls, log, asked.options, report) for report in (True, False)] for _ in range(asked.rounds)
            ]
    for title, column in (("with the report", 0), ("without", 1)):
        walls, ends, cpu = (_median([run[column][part] for run in runs]) for part in range(3))
        print(f"{title}: {walls:.2f} s, of which {ends:.2f} s after the last answer; {cpu:.2f} s of CPU")
    added = _median([report[1] - plain[1] for report, plain in runs])
    share = _median([report[2] / plain[2] - 1 for report, plain in runs])
    print(f"the report adds {added:.2f} s to the end and {100 * share:.1f} % of CPU")
    return 0


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _write(www: Path, kind: str) -> str:
    """Files of about 10 KB; returns their extension."""
    chance = random.Random(0)
    for number in range(_DIFFERENT):
        if kind == "html":
            words = " ".join(f"word{chance.randrange(1000)}" for _ in range(1300))
            (www / f"{number}.html").write_text(f"<!doctype html><p>{words}", encoding="utf-8")
        else:
            from PIL import Image

            noise = Image.frombytes("RGB", (32, 24), chance.randbytes(32 * 24 * 3))
            noise.resize((320, 240)).save(www / f"{number}.jpg", quality=85)
    return "html" if kind == "html" else "jpg"


def _run(bench: Bench, urls: Path, log: Path, options: str, report: bool) -> tuple[float, float, float]:
    """Seconds of the whole run, from its last answer to its exit, and of CPU."""
    shutil.rmtree(bench.output, ignore_errors=True)
    log.write_bytes(b"")
    command = [sys.executable, "-m", "any2ds", f"--url_list={urls}", f"--output_folder={bench.output}"]
    run = bench._run([*command, f"--report={report}", *shlex.split(options)], 0)
    ended = time.time()
    last = float(log.read_text(encoding="ascii").split()[-1])
    return run.wall, ended - last, run.cpu


if __name__ == "__main__":
    sys.exit(main())
