"""A run of a week is thousands of shards in one process: what it holds open, remembers and writes does not grow."""

import contextlib
import gc
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from any2ds.config.options import Config
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Facts, Reporter

SHARDS, ROWS, HOSTS = 400, 5, 20
TRANSFERS, POINTS = 8, 20


@dataclass(frozen=True, slots=True)
class Sample:
    shards: int
    files: int  # open
    memory: int  # bytes of Python's objects
    objects: int  # that the garbage collector knows
    log: int  # bytes of the events of the reporter jsonl
    state: int  # bytes of what else is in .any2ds, without the list of shards


class Sampler(Reporter):
    def __init__(self, output: Path) -> None:
        self.output, self.shards = output, 0
        self.samples: list[Sample] = []

    def report(self, event: str, facts: Facts) -> None:
        self.shards += event == "shard_finished"
        if event == "shard_finished" and self.shards % (SHARDS // POINTS) == 0:
            gc.collect()
            memory, _ = tracemalloc.get_traced_memory()
            files, objects = len(os.listdir("/proc/self/fd")), len(gc.get_objects())
            sizes = {"log": 0, "state": 0}
            for name, size in self.sizes():
                sizes["log" if name.endswith(".log") else "state"] += size
            self.samples.append(Sample(self.shards, files, memory, objects, **sizes))

    def sizes(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.output / ".any2ds"):
            for name in names:
                if name != "shards" and not folder.rpartition(".any2ds")[2].startswith("/tmp"):
                    with contextlib.suppress(OSError):  # some are there for a moment only
                        yield name, os.stat(os.path.join(folder, name)).st_size


@contextlib.contextmanager
def server_elsewhere(media: Path) -> Iterator[int]:
    """The port of a server that is no part of this process: it remembers each request."""
    (script := media.parent / "script.json").write_text('{"7.bin": ["reset", "ok"], "11.bin": ["reset", "ok"]}')
    command = [sys.executable, "-m", "any2ds.testing.server", str(media), "--host=0.0.0.0", f"--script={script}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        finally:
            process.terminate()


@pytest.mark.slow
def test_a_run_of_many_shards_keeps_no_more_open_and_in_memory(tmp_path: Path) -> None:
    (media := tmp_path / "media").mkdir()
    for number in range(50):
        if number % 10:  # the others are not there
            (media / f"{number}.bin").write_bytes(b"a file of some bytes %d" % number)
    sampler = Sampler(tmp_path / "out")
    with server_elsewhere(media) as port:
        urls = [f"http://127.0.0.{1 + n % HOSTS}:{port}/{n % 50}.bin?{n}" for n in range(SHARDS * ROWS)]
        given = {"url_list": urls, "output_folder": sampler.output, "output_format": "webdataset", "fsync": False}
        how = {"number_sample_per_shard": ROWS, "thread_count": TRANSFERS, "retries": 1, "distributor": "inline"}
        config = Config.from_options({**given, **how, "quiet": True, "report": False, "reporters": "jsonl"})
        tracemalloc.start(1)
        try:
            report = make_dataset(config, more=[sampler])
        finally:
            tracemalloc.stop()
    assert report.status_dict == {"success": SHARDS * ROWS * 9 // 10, "http_404": SHARDS * ROWS // 10}
    early, late = sampler.samples[1 : POINTS // 2], sampler.samples[POINTS // 2 : -1]  # at the end things are closed
    first, last = early[0], late[-1]
    more = last.shards - first.shards
    # What is in flight and being written takes up to a megabyte more: the least of some samples is what is kept.
    least, least_late = (min(sample.memory for sample in samples) for samples in (early, late))
    assert last.files - first.files <= TRANSFERS + 8, sampler.samples  # connections, open shards
    assert (last.objects - first.objects) / more < 3, sampler.samples
    assert (least_late - least) / (more / 2) < 1500, sampler.samples  # 400 of them for the list of shards
    assert 0 < (last.log - first.log) / more < 1500, sampler.samples  # an event for each shard
    assert abs(last.state - first.state) < 2000, sampler.samples
