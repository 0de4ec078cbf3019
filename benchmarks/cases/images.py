"""Images made smaller: on more and more cores against pools of OpenCV, and the step alone against OpenCV's calls."""

from __future__ import annotations

import os
import statistics
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.case import Bench, Side
from benchmarks.cases.peers import photographs, write_files

PIXELS = 256  # of the shorter side
POOLS = {"threads": ThreadPoolExecutor, "processes": ProcessPoolExecutor}
CORES = sorted(os.sched_getaffinity(0))
SIZES = ((480, 360), (680, 510), (800, 600), (1024, 768))
LARGE = ((1600, 1200), (2400, 1800))


def images(bench: Bench) -> list[Side]:
    """any2ds fetches, hashes, describes and publishes; the pools read files from memory and write one tar file."""
    www, count, sides = bench.folder("www"), bench["images"], list[Side]()
    paths = write_files(www / "images", photographs(100_000, SIZES, 4 if bench.quick else 40))
    base = bench.files(www).http
    urls = [f"{base}/{paths[n % len(paths)]}?{n}" for n in range(count)]
    options: dict[str, Any] = {"file_size": PIXELS, "encode_format": "jpg", "encode_quality": 95, "timeout": 120}
    pool = {"folder": www / "images", "count": count, "tar": bench.scratch / "pool.tar"}
    for cores in sorted({1, 2, 4, 8, 16, len(CORES)} & set(range(1, len(CORES) + 1))):
        ours = bench.any2ds("any2ds", urls, number_sample_per_shard=max(1, count // 20), **options)
        pools = [bench.call(f"OpenCV, {kind}", opencv_pool, workers=cores, kind=kind, **pool) for kind in POOLS]
        pinned = ["taskset", "-c", ",".join(map(str, CORES[:cores]))]
        for side in (ours, *pools):
            start = [*pinned, *side.start] if side.start else ()
            group = f"{cores} core{'s' * (cores > 1)}"
            sides.append(replace(side, group=group, command=[*pinned, *side.command], start=start))
    return sides


def opencv_pool(folder: str, count: int, workers: int, kind: str, tar: str) -> dict[str, float]:
    """A pool as one writes it in an afternoon."""
    import cv2

    cv2.setNumThreads(1)
    files = sorted(map(str, Path(folder).iterdir()))
    began = time.monotonic()
    with POOLS[kind](workers) as pool, tarfile.open(tar, "w") as out:
        for number, made in enumerate(pool.map(smaller_file, (files[n % len(files)] for n in range(count)))):
            member = tarfile.TarInfo(f"{number:09d}.jpg")
            member.size = len(made)
            out.addfile(member, BytesIO(made))
    took = time.monotonic() - began
    return {"rows": count, "open": took, "open_rate": count / took}


def smaller_file(path: str) -> bytes:
    return smaller(Path(path).read_bytes())


def smaller(data: bytes) -> bytes:
    import cv2
    import numpy as np

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    height, width = pixels.shape[:2]
    scale = PIXELS / min(width, height)
    area = cv2.resize(pixels, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA)
    return bytes(cv2.imencode(".jpg", area, [cv2.IMWRITE_JPEG_QUALITY, 95])[1])


def image_step(bench: Bench) -> list[Side]:
    sizes = SIZES[:2] if bench.quick else (*SIZES, *LARGE)
    return [bench.call(f"{size[0]} x {size[1]}", step, size=size, images=bench["images"]) for size in sizes]


def step(size: tuple[int, int], images: int) -> dict[str, float]:
    """CPU of the thread for one image after the other, by the step and by OpenCV, in turns."""
    from tests.support.pictures import through

    files, ours, theirs = photographs(100_000, [size], min(images, 8)), list[float](), list[float]()
    for number in range(images):
        data = files[number % len(files)]
        began = time.thread_time()
        through(data, "image/jpeg", file_size=PIXELS, encode_format="jpg")
        between = time.thread_time()
        smaller(data)
        ours.append(between - began)
        theirs.append(time.thread_time() - between)
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return {"ours": statistics.median(ours), "theirs": statistics.median(theirs), "ratio": statistics.median(ratios)}
