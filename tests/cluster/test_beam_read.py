"""`ReadShards` in real pipelines, over datasets that were really made."""

import os
import pickle
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import any2ds
from any2ds import download
from any2ds.beam import ReadShards
from any2ds.testing.server import Server, serve

FORMATS = ["webdataset", "files", "parquet", "tfrecord", "arrayrecord"]
IN_MEMORY = ("--runner=DirectRunner", "--direct_running_mode=in_memory")
ROWS = 12
LOST = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    for number in range(ROWS):
        (folder / f"{number}.bin").write_bytes(b"\x80\x81file %d" % number)
    with serve(folder, {f"{LOST}.bin": ["404"] * 1000}) as server:
        yield server


def make(server: Server, folder: str | Path, output_format: str) -> None:
    numbers = list(range(ROWS))
    rows = pa.table({"url": [server.url(f"{n}.bin") for n in numbers], "number": numbers})
    options: dict[str, Any] = {"save_additional_columns": "number", "number_sample_per_shard": 5, "quiet": True}
    download(rows, output_folder=str(folder), output_format=output_format, distributor="inline", **options)


@pytest.fixture(scope="module")
def datasets(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each format, all of the same list."""
    folder = tmp_path_factory.mktemp("datasets")
    for output_format in FORMATS:
        make(server, folder / output_format, output_format)
    return {output_format: folder / output_format for output_format in FORMATS}


def keep(sample: dict[str, Any], folder: str) -> None:
    Path(folder, uuid.uuid4().hex).write_bytes(pickle.dumps(sample))


def read(transform: ReadShards) -> list[dict[str, Any]]:
    """What a pipeline gets, by key."""
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
            _ = pipeline | transform | beam.Map(keep, folder)
        found = [pickle.loads(path.read_bytes()) for path in Path(folder).iterdir()]
    return sorted(found, key=lambda sample: str(sample["key"]))


@pytest.mark.parametrize("output_format", FORMATS)
def test_all_samples_come_as_any2ds_load_gives_them(output_format: str, datasets: dict[str, Path]) -> None:
    folder = datasets[output_format]
    assert read(ReadShards(folder)) == list(any2ds.load(folder))
    chosen: dict[str, Any] = {"columns": ["key", "data"], "where": "number >= 7"}
    assert read(ReadShards(folder, **chosen)) == list(any2ds.load(folder, **chosen))


def test_what_cannot_be_read_is_named(datasets: dict[str, Path], tmp_path: Path) -> None:
    transform = ReadShards(tmp_path / "nowhere")  # nobody looks before the pipeline runs
    with pytest.raises(Exception, match="no such folder"):
        read(transform)
    with pytest.raises(Exception, match=r"no column 'nubmer'; columns that exist: .*number"):
        read(ReadShards(datasets["webdataset"], columns=["nubmer"]))


def test_from_s3(server: Server, s3_server: None) -> None:
    from s3fs import S3FileSystem

    S3FileSystem().mkdir("bucket-of-beam")
    make(server, "s3://bucket-of-beam/data/set", "webdataset")
    found = read(ReadShards("s3://bucket-of-beam/data/set", columns=["key", "data"]))
    assert [sample["data"] for sample in found] == [b"\x80\x81file %d" % n for n in range(ROWS) if n != LOST]


SCRIPT = """
import os, pickle, sys, uuid
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from any2ds import beam as any2ds_beam


def keep(sample, folder):
    Path(folder, uuid.uuid4().hex).write_bytes(pickle.dumps((os.getpid(), sample)))


if __name__ == "__main__":
    options = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        pipeline | any2ds_beam.ReadShards(sys.argv[1]) | beam.Map(keep, sys.argv[2])
    print(os.getpid())
"""


def test_in_processes_of_their_own(datasets: dict[str, Path], tmp_path: Path) -> None:
    """A relative path is one of who launches the pipeline, wherever its workers are."""
    script, found = tmp_path / "pipeline.py", tmp_path / "found"
    script.write_text(SCRIPT)
    found.mkdir()
    folder = datasets["webdataset"]
    command = [sys.executable, str(script), folder.name, str(found)]
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = [pickle.loads(path.read_bytes()) for path in found.iterdir()]
    assert sorted(sample["key"] for _, sample in kept) == any2ds.load(folder).keys
    assert int(done.stdout.splitlines()[-1]) not in {pid for pid, _ in kept}


def test_without_beam_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['apache_beam'] = None\n"
        "import any2ds\n"
        "from any2ds.core.errors import MissingExtra\n"
        "try:\n    any2ds.beam.ReadShards('folder')\n"
        "except MissingExtra as error:\n    print(error, error.extra)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "any2ds.beam.ReadShards needs a library that is not installed: pip install 'any2ds[beam]' beam\n"


def test_any2ds_alone_does_not_import_beam() -> None:
    program = (
        "import sys, any2ds, any2ds.run.download;"
        " print([n for n in sys.modules if 'apache_beam' in n or n == 'any2ds.beam'])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
