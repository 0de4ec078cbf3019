"""What it costs to decode files in processes of their own: CPU for each file, and for the start of a process.

python benchmarks/isolation.py --files=300
"""

from __future__ import annotations

import argparse
import io
import resource
import statistics
import time
from contextlib import closing, nullcontext

import numpy as np
from PIL import Image

from any2ds.config.media import MediaOptions, TransformLimits, TransformOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.transforms.chain import Pipeline
from any2ds.transforms.isolation import Isolation
from any2ds.transforms.pipeline import PipelineRunner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    files = [picture(number) for number in range(8)]
    size = sum(map(len, files)) / len(files)
    here, isolated, starts = [], [], []
    for _ in range(arguments.rounds):
        here.append(cpu_per_file(files, arguments.files, False))
        few, many = (cpu_of(files, count, True) for count in (1, arguments.files + 1))
        starts.append(few - here[-1])
        isolated.append((many - few) / arguments.files)
    print(f"JPEGs of {size / 1000:.0f} KB to 256 pixels, {arguments.files} of them, {arguments.rounds} rounds, medians")
    print(f"in a thread          {statistics.median(here) * 1e3:.2f} ms of CPU each")
    print(f"in a process         {statistics.median(isolated) * 1e3:.2f} ms of CPU each")
    print(f"start of a process   {statistics.median(starts):.2f} s of CPU")


def picture(number: int) -> bytes:
    """A JPEG of about 100 KB."""
    random = np.random.default_rng(number)
    small = random.integers(0, 255, (60, 80, 3), np.uint8)
    image = Image.fromarray(small).resize((1200, 900), Image.Resampling.BICUBIC)
    noise = random.integers(0, 24, (900, 1200, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(np.asarray(image) // 2 + noise).save(stream, "JPEG", quality=60)
    return stream.getvalue()


def cpu_per_file(files: list[bytes], count: int, is_apart: bool) -> float:
    return cpu_of(files, count, is_apart) / count


def cpu_of(files: list[bytes], count: int, is_apart: bool) -> float:
    """Seconds of CPU, with those of child processes."""
    media = MediaOptions(TransformOptions(file_size=256))
    pipeline = Pipeline(media)
    began = _cpu()
    with (
        closing(Isolation(media, 0.0)) if is_apart else nullcontext() as isolated,
        closing(Buffer(1 << 30, 1)) as buffer,
        closing(PipelineRunner(pipeline, TransformLimits(1, 0.0, 1 << 30), True, isolated=isolated)) as steps,
    ):
        done = 0
        for number in range(count):
            data = files[number % len(files)]
            fields = {"status": "success", "mime_type": "image/jpeg", "ext": "jpg"}
            sample = Sample(Row(0, number, str(number), "u"), buffer.hold(data), "jpg", fields)
            steps.submit(sample, buffer, is_apart)
            done += sum(1 for _ in steps.turn())
        while steps.pending:
            for samples in steps.turn(is_ending=True, seconds=1.0):
                done += 1
                assert samples[0].failure is None
    time.sleep(0.2)  # a child that has ended is counted when it was waited for
    return _cpu() - began


def _cpu() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


if __name__ == "__main__":
    main()
