"""Recipes in stores: a build on S3 is seen when it is complete, and goes on after it was killed; a million samples."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.core.errors import MissingExtra, OutputError
from tests.support.flowers import Flowers, build, picture
from tests.support.s3 import Bucket, enter


def test_a_build_on_s3_is_seen_when_it_is_complete(buckets: Callable[[], Bucket], monkeypatch: Any) -> None:
    bucket = buckets()
    enter(bucket, monkeypatch)
    data_dir = f"{bucket.url}/data"

    def broken(*given: Any) -> Any:
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patched:
        patched.setattr("any2ds.recipes.build.rebuild", broken)
        with pytest.raises(RuntimeError):
            build(Flowers(), data_dir, output_format="tfrecord", number_sample_per_shard=10)
    with pytest.raises(OutputError, match="is being built"):
        any2ds.load(f"{data_dir}/flowers/small/1.1.0")
    with pytest.raises(OutputError, match="no dataset in"):
        any2ds.load("flowers", data_dir=data_dir)
    report = build(Flowers(), data_dir, output_format="tfrecord", number_sample_per_shard=10)
    assert (report.shards, report.skipped_shards) == (0, 4)  # they were there
    found = any2ds.load("flowers", data_dir=data_dir, split="test")
    assert len(found) == 6
    assert found[0]["label"] in (0, 1)
    assert any2ds.verify(f"{data_dir}/flowers/small/1.1.0", quiet=True).ok
    build(Flowers(), data_dir, output_format="parquet", overwrite=True)
    assert len(any2ds.load("flowers", data_dir=data_dir)) == 28


def test_a_recipe_reads_files_on_a_store(
    buckets: Callable[[], Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = buckets()
    enter(bucket, monkeypatch)
    for name, content in {"a.png": picture(1), "a.txt": b"a rose"}.items():
        bucket.connect().pipe(f"{bucket.url.removeprefix('s3://')}/in/{name}", content)

    class OnStore(any2ds.Recipe):
        """Images and their captions, in a bucket."""

        def info(self) -> any2ds.Info:
            return any2ds.Info({"image": any2ds.Image(), "caption": any2ds.Text()})

        def splits(self, dl: Any) -> Any:
            assert dl.path(tmp_path) == tmp_path
            for path in dl.path(f"{bucket.url}/in").glob("*.png"):
                yield path.stem, {"image": path, "caption": path.with_suffix(".txt").read_text()}

    build(OnStore, tmp_path)
    (sample,) = any2ds.load("on_store", data_dir=tmp_path)
    assert (sample["recipe_key"], sample["image"], sample["caption"]) == ("a", picture(1), "a rose")
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[recipes\]"):
        build(OnStore, tmp_path, overwrite=True)


MANY = """
import sys
import any2ds

class Many(any2ds.Recipe):
    '''Many samples.'''
    def info(self):
        return any2ds.Info({{"number": "int64"}})
    def splits(self, dl):
        return ((n, {{"number": n}}) for n in range({count}))

if __name__ == "__main__":
    any2ds.build(Many, data_dir={folder!r}, output_format="tfrecord", quiet=True, report=False, processes_count=1,
                 compute_md5=False, distributor="inline")
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_many_samples_take_little_memory(tmp_path: Path) -> None:
    peaks = []
    for count in (50_000, 400_000):
        program = tmp_path / f"many_{count}.py"
        program.write_text(MANY.format(count=count, folder=str(tmp_path / str(count))))
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout) // 1024)
        assert len(any2ds.load("many", data_dir=tmp_path / str(count))) == count
    assert peaks[1] - peaks[0] < 100, peaks  # MiB: 50 bytes of order for a sample, and what sorting them takes
