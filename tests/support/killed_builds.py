"""A recipe that is built by a command of its own, which is killed in the middle and started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.core.errors import OutputError
from any2ds.testing.processes import LONG, wait_until
from any2ds.testing.server import Server

COUNT = 24  # samples, each of two files
HELD = {"10.bin": ["hold"], "41.bin": ["hold"]}  # of samples 5 and 20, one of each split

_HEAD = """
import any2ds

BASE = {base!r}


class Pairs(any2ds.Recipe):
    '''Two files a sample.'''

    def info(self):
        return any2ds.Info({{"first": any2ds.Bytes(), "second": any2ds.Bytes(), "number": int}})
"""
ROWS = """
    def splits(self, dl):
        rows = [
            {"key": n, "number": n, "a": f"{BASE}{2 * n}.bin", "b": f"{BASE}{2 * n + 1}.bin"} for n in range(24)
        ]
        columns = {"first": "a", "second": "b"}
        return {"train": any2ds.UrlRows(rows[:16], columns), "test": any2ds.UrlRows(rows[16:], columns)}
"""


@dataclass(frozen=True)
class KilledBuild:
    """`splits` is the code of them; `data_dir` may be a URL."""

    server: Server  # of 48 files
    folder: Path  # for the recipe
    data_dir: str
    splits: str
    flags: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=lambda: environ)

    def start(self) -> subprocess.Popen[str]:
        (self.folder / "pairs.py").write_text(_HEAD.format(base=self.server.url("")) + self.splits)
        command = [sys.executable, "-m", "any2ds", "build", "pairs.py", f"--data_dir={self.data_dir}", *self.flags]
        command += ["--output_format=parquet", "--number_sample_per_shard=2", "--timeout=0", "--quiet", "--noreport"]
        return subprocess.Popen(command, cwd=self.folder, env=dict(self.environment), stderr=subprocess.PIPE, text=True)

    def kill_in_the_middle(self, shards: int) -> dict[str, Any]:
        """With so many shards published, while a file is still to come. The shards, and what tells each."""
        with self.start() as process:
            wait_until(lambda: (self._is_held() and len(self.published()) >= shards) or process.poll() is not None)
            if process.poll() is not None:
                raise AssertionError(process.communicate()[1])
            process.kill()
        with pytest.raises(OutputError):  # nothing half-made can be opened
            any2ds.load("pairs", data_dir=self.data_dir)
        before = self.published()
        self.server.release()
        return before

    def finish(self, before: Mapping[str, Any]) -> None:
        """The same command again: what was published stays, and each sample is there once."""
        with self.start() as process:
            said = process.communicate(timeout=LONG)[1]
        assert process.returncode == 0, said
        after = self.published("1.0.0")
        assert len(after) == COUNT // 2
        assert before.items() <= after.items()
        folder = f"{self.data_dir}/pairs/1.0.0"
        assert any2ds.verify(folder, quiet=True).ok
        for split, numbers in {"train": range(16), "test": range(16, COUNT)}.items():
            found = sorted(any2ds.load(folder, split=split), key=lambda sample: sample["number"])
            assert [(each["number"], each["first"], each["second"]) for each in found] == [
                (n, b"the content of file %d" % (2 * n), b"the content of file %d" % (2 * n + 1)) for n in numbers
            ]
        fs, path = fsspec.url_to_fs(folder)
        assert not [name for name in fs.find(f"{path}/.any2ds") if "spool" in name or "lock" in name]

    def counts_of(self, shards: Sequence[str]) -> set[int]:
        """How often the files of these shards were asked for."""
        fs, path = fsspec.url_to_fs(f"{self.data_dir}/pairs/1.0.0")
        found: set[int] = set()
        for name in shards:
            with fs.open(f"{path}/{name.removesuffix('_stats.json')}.parquet") as file:
                for n in pq.read_table(file, columns=["number"])["number"].to_pylist():
                    found |= {self.server.counts[f"{2 * n}.bin"], self.server.counts[f"{2 * n + 1}.bin"]}
        return found

    def published(self, version: str = "") -> dict[str, Any]:
        """Name of the stats of each finished shard -> what is another if it was written again."""
        is_store = "://" in self.data_dir
        fs, path = fsspec.url_to_fs(f"{self.data_dir}/pairs/{version or ('1.0.0' if is_store else '.1.0.0.building')}")
        fs.invalidate_cache()
        if not fs.exists(path):
            return {}
        found = {entry["name"].rpartition("/")[2]: entry for entry in fs.ls(path, detail=True)}
        return {
            name: str(entry["LastModified"]) if is_store else entry["ino"]
            for name, entry in found.items()
            if name.endswith("_stats.json")
        }

    def _is_held(self) -> bool:
        return any(self.server.counts[name] for name in HELD)
