"""What publishing one shard costs, safely and carelessly: CPU of its thread, whatever else the machine does.

python benchmarks/publishing.py [FOLDER]      # on a disk of your choice; default: /dev/shm
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from careless import CarelessFolder

from any2ds.config.options import OutputOptions
from any2ds.storage.folders import OutputFolder

_SHARDS = 500
_STATS = b"{}" * 300


def publish(output: OutputFolder, staged: Path) -> tuple[float, float]:
    """Median CPU and wall seconds of a shard; its files are there already, under `staged`, but for the stats."""
    cpu, wall = [], []
    for shard in range(_SHARDS):
        files = {f"{shard:05d}.tar": staged / f"{shard:05d}.tar", f"{shard:05d}.parquet": staged / f"{shard:05d}.meta"}
        for file in files.values():
            file.write_bytes(b"x")
        began = time.thread_time(), time.perf_counter()
        if hasattr(output, "publish_all"):
            output.publish_all(files)
        else:
            for name, file in files.items():
                output.publish(file, name)
        output.write(f"{shard:05d}_stats.json", _STATS)
        cpu.append(time.thread_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    return statistics.median(cpu), statistics.median(wall)


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else "/dev/shm") as name:
        for side, kind in (("safe", OutputFolder), ("careless", CarelessFolder)):
            folder = Path(name) / side
            staged = folder if kind is CarelessFolder else folder / "staged"
            staged.mkdir(parents=True)
            options = OutputOptions(output_folder=str(folder))
            output = kind.of(options) if hasattr(kind, "of") else kind(options.output_folder)
            cpu, wall = publish(output, staged)
            print(f"{side}: {cpu * 1e6:.0f} µs of CPU, {wall * 1e6:.0f} µs in all")


if __name__ == "__main__":
    main()
