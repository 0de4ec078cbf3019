"""What making images smaller costs, against the plain loop: OpenCV's full decode, area, encode; and how it scales.

    python benchmarks/images.py [step] [loop] [processes] [threads] [--pairs=3] [--images=5000]

JPEGs of 100 KB become 256 pixels on the shorter side, jpg 95, in webdataset. any2ds runs as a command that fetches them
from nginx on loopback; the loop has them on a RAM disk, hashes nothing, and writes one tar file. Both in one process on
one thread, in turns; CPU is user and system time, without what starting takes. `step` is the step for images alone, in
turns with the loop's body image by image, which tells something on a machine with other programs on it as well.
It needs any2ds[image].
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

import cv2
import numpy as np
import servers
from measure import Bench, Run

from any2ds.config.media import ImageOptions, MediaOptions, TransformOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.transforms.steps.image import ImageTransform
from tests.support.pictures import jpeg_of, photograph

BYTES = 100_000  # of an image, about
DIFFERENT = 40  # images of each shape; more would only measure how they are made
SIZE = 256  # pixels of the shorter side
SHARDS = 50  # of a list, so that the end, when one process is left with work, is short
# Shape -> at least so many times the loop's images per CPU second. By 2 or more they are decoded smaller.
SHAPES: dict[tuple[int, int], float] = {
    (480, 360): 0.95,
    (680, 510): 0.95,
    (800, 600): 1.7,
    (1024, 768): 1.7,
    (1600, 1200): 1.7,
}
SCALING = (1024, 768)
PARTS = ("step", "loop", "processes", "threads")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)  # the loop, in a process of its own
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(loop(arguments.side, arguments.images)))
        return 0
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = arguments.parts or list(PARTS)
    if "step" in parts:
        step(min(arguments.images, 200))
        parts.remove("step")
    if parts:
        with_server(parts, arguments.pairs, arguments.images)
    return 0


def with_server(parts: Sequence[str], pairs: int, images: int) -> None:
    ram = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="any2ds-bench-", dir=ram) as scratch,
        tempfile.TemporaryDirectory(prefix="any2ds-bench-") as disk,
    ):
        www = Path(scratch) / "www"
        for width, height in SHAPES:
            make_images(www / f"{width}x{height}", width, height)
        with servers.start(www, Path(disk)) as server:
            bench = Bench(Path(scratch), False, server.cpu_seconds, server.ca_file)
            runner = Runner(bench, server.http, www, images)
            for part in parts:
                MEASURES[part](runner, pairs)


class Runner:
    """Either side, over a list of as many images as are asked for."""

    def __init__(self, bench: Bench, base: str, www: Path, images: int) -> None:
        self.bench, self.base, self.www, self.images = bench, base, www, images

    def any2ds(self, shape: tuple[int, int], images: int, processes: int = 1, threads: int = 1) -> Run:
        width, height = shape
        urls = self.bench.scratch / f"{width}x{height}-{images}.txt"
        lines = (f"{self.base}/{width}x{height}/{n % DIFFERENT}.jpg?{n}" for n in range(images))
        urls.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.bench.any2ds(
            urls,
            images,
            processes_count=processes,
            transform_threads=threads,
            file_size=SIZE,
            encode_format="jpg",
            encode_quality=95,
            number_sample_per_shard=max(1, images // SHARDS),
            timeout=120,
        )

    def loop(self, shape: tuple[int, int]) -> float:
        """Seconds of CPU for an image."""
        folder = self.www / f"{shape[0]}x{shape[1]}"
        command = [sys.executable, __file__, f"--side={folder}", f"--images={self.images}"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env=self.bench.env).stdout
        return float(json.loads(said))


def against_loop(runner: Runner, pairs: int) -> None:
    for shape, wanted in SHAPES.items():
        ours, theirs = [], []
        for pair in range(pairs):
            if pair % 2:
                theirs.append(runner.loop(shape))
            start_up = runner.any2ds(shape, 1)
            ours.append(runner.any2ds(shape, runner.images).without(start_up).cpu_per_sample)
            if not pair % 2:
                theirs.append(runner.loop(shape))
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        found = statistics.median(ratios)
        print(
            f"{shape[0]} x {shape[1]}, by {min(shape) / SIZE:.2f}: {found:.2f} x the loop's images per CPU second "
            f"({min(ratios):.2f} to {max(ratios):.2f}; {statistics.median(ours) * 1e3:.2f} and "
            f"{statistics.median(theirs) * 1e3:.2f} ms each), wanted {wanted}: {'yes' if found >= wanted else 'no'}",
            flush=True,
        )


def more_of(kind: str, wanted: float | None) -> Callable[[Runner, int], None]:
    """Two of them on two cores against one on one, by the rate from the first row's start to the last file's end.

    One that may have both uses more than one: fetching and writing go on beside its transforms. What the server takes
    of the two cores is told, as it has one for itself beside the one.
    """

    def measure(runner: Runner, pairs: int) -> None:
        ratios, shares, rates = [], list[float](), {1: [], 2: []}
        for pair in range(pairs):
            for count in sorted((1, 2), reverse=bool(pair % 2)):
                given: dict[str, Any] = {kind: count}
                with on_cores(count):
                    run = runner.any2ds(SCALING, runner.images, **given)
                rates[count].append(run.rate)
                if count == 2 and run.server_cpu is not None:
                    shares.append(run.server_cpu / run.window)
            ratios.append(rates[2][-1] / rates[1][-1])
        found = statistics.median(ratios)
        verdict = "" if wanted is None else f", wanted {wanted}: {'yes' if found >= wanted else 'no'}"
        print(
            f"two {kind}: {found:.2f} x one ({min(ratios):.2f} to {max(ratios):.2f}; "
            f"{statistics.median(rates[2]):.0f} and {statistics.median(rates[1]):.0f} images/s){verdict}"
            + (f"; the server took {statistics.median(shares):.2f} cores" if shares else ""),
            flush=True,
        )

    return measure


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """What is started meanwhile has so many of them, where the system can say so; the server has all."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


MEASURES: dict[str, Callable[[Runner, int], None]] = {
    "loop": against_loop,
    "processes": more_of("processes", 1.8),
    "threads": more_of("threads", None),
}


def make_images(folder: Path, width: int, height: int) -> None:
    folder.mkdir(parents=True)
    for seed in range(DIFFERENT):
        (folder / f"{seed}.jpg").write_bytes(jpeg_of(photograph(width, height, seed), BYTES))


def step(images: int) -> None:
    """CPU of the thread for one image after another, by the step and by the loop's body; the median of the ratios."""
    work = ImageTransform(MediaOptions(TransformOptions(file_size=SIZE), ImageOptions(encode_format="jpg")))
    fields = {"mime_type": "image/jpeg", "ext": "jpg"}
    for shape, wanted in SHAPES.items():
        files = [jpeg_of(photograph(*shape, seed), BYTES) for seed in range(min(images, 8))]
        ratios, ours, theirs = [], [], []
        for n in range(images):
            data = files[n % len(files)]
            sample = Sample(Row(0, n, f"{n:09d}", None), StoredBody.of(data), "jpg", fields)
            began = time.thread_time()
            work(sample)
            between = time.thread_time()
            plainly(data)
            ended = time.thread_time()
            ours.append(between - began)
            theirs.append(ended - between)
            ratios.append(theirs[-1] / ours[-1])
        found = statistics.median(ratios)
        print(
            f"{shape[0]} x {shape[1]}, by {min(shape) / SIZE:.2f}: {found:.2f} x the loop's images per CPU second"
            f" ({statistics.median(ours) * 1e3:.2f} and {statistics.median(theirs) * 1e3:.2f} ms each), "
            f"wanted {wanted}: {'yes' if found >= wanted else 'no'}",
            flush=True,
        )


def plainly(data: bytes) -> bytes:
    """What the loop does with an image."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    height, width = pixels.shape[:2]
    scale = SIZE / min(width, height)
    smaller = cv2.resize(pixels, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode(".jpg", smaller, [cv2.IMWRITE_JPEG_QUALITY, 95])[1])


def loop(folder: Path, images: int) -> float:
    """Seconds of CPU for an image, as whoever writes it in an afternoon would have it."""
    cv2.setNumThreads(1)
    with tarfile.open(folder.parent.parent / "loop.tar", "w") as tar:
        began = time.process_time()
        for n in range(images):
            made = plainly((folder / f"{n % DIFFERENT}.jpg").read_bytes())
            member = tarfile.TarInfo(f"{n:09d}.jpg")
            member.size = len(made)
            tar.addfile(member, BytesIO(made))
        return (time.process_time() - began) / images


if __name__ == "__main__":
    sys.exit(main())
