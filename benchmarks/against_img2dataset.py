"""any2ds against img2dataset, from the same server to the same kind of dataset: webdataset, images of 256 pixels.

    python benchmarks/against_img2dataset.py --python=.venv-img2dataset/bin/python [--images=3000] [--pairs=3]
        [--sizes=480x360,680x510,800x600,1024x768] [--shard=500]

`--python` is one with img2dataset (requirements-img2dataset.txt); any2ds runs with `--preset=img2dataset`, so that both
have the same command line: 2 processes, 64 threads each, shards of 500. JPEGs of about 100 KB and of `--sizes` in turns
come from nginx on loopback, and the output is on a RAM disk. A run is the whole command, from its start to its exit;
CPU is of all its processes.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import servers

from tests.support.pictures import jpeg_of, photograph

_SIZES = "480x360,680x510,800x600,1024x768"
_OPTIONS = [
    "--output_format=webdataset",
    "--image_size=256",
    "--resize_mode=keep_ratio",
    "--processes_count=2",
    "--thread_count=64",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with img2dataset")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sizes", default=_SIZES, help="width x height in pixels, several with commas")
    parser.add_argument("--shard", type=int, default=500, help="images of a shard")
    given = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in given.sizes.split(",")]
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=root) as folder:
        scratch = Path(folder)
        www = scratch / "www"
        www.mkdir()
        for number in range(40):
            width, height = sizes[number % len(sizes)]
            (www / f"{number}.jpg").write_bytes(jpeg_of(photograph(width, height, number), 100_000))
        (scratch / "nginx").mkdir()
        with servers.start(www, scratch / "nginx") as server:
            urls = scratch / "urls.txt"
            urls.write_text("".join(f"{server.http}/{n % 40}.jpg?{n}\n" for n in range(given.images)))
            shard = f"--number_sample_per_shard={given.shard}"
            tools = {
                "img2dataset": [str(Path(given.python).with_name("img2dataset")), shard],
                "any2ds": [sys.executable, "-m", "any2ds", "--preset=img2dataset", shard],
            }
            runs: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
            for _ in range(given.pairs):
                for name, command in tools.items():
                    runs[name].append(measured(command, urls, scratch / "out", given.images))
    for name, found in runs.items():
        walls, cpus = zip(*found, strict=True)
        rate = given.images / statistics.median(walls)
        print(f"{name}: {statistics.median(walls):.1f} s, {rate:,.0f} images/s, {statistics.median(cpus):.1f} CPU s")
    for number, what in enumerate(("time", "CPU")):
        ratios = [theirs[number] / ours[number] for theirs, ours in zip(*runs.values(), strict=True)]
        print(
            f"{what}: any2ds takes {statistics.median(ratios):.1f} times less ({min(ratios):.1f} to {max(ratios):.1f})"
        )
    return 0


def measured(command: list[str], urls: Path, out: Path, images: int) -> tuple[float, float]:
    """Wall and CPU seconds of a run. Raises RuntimeError if images are missing."""
    shutil.rmtree(out, ignore_errors=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ran = subprocess.run(
        [*command, f"--url_list={urls}", f"--output_folder={out}", *_OPTIONS],
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode or not out.exists():
        raise RuntimeError(f"{command}: {ran.stderr[-2000:]}")
    listed = subprocess.run(
        "cat *.tar | tar -itf - | grep -c jpg$", shell=True, cwd=out, capture_output=True, text=True
    )
    if int(listed.stdout or 0) != images:
        raise RuntimeError(f"{command[:3]}: {listed.stdout.strip()} of {images} images\n{ran.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
