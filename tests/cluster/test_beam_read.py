"""`ReadShards` in real pipelines, over datasets that were really made."""

import base64
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import any2ds
from any2ds import download
from any2ds.beam import ReadShards
from any2ds.core.errors import DamagedShard, OptionError
from any2ds.core.reports import IncompleteRun
from any2ds.loading.samples import FinishedShards, Wanted, rows_of
from any2ds.storage.stores import Stores
from any2ds.testing.server import Server, serve

FORMATS = ["webdataset", "files", "parquet", "tfrecord", "arrayrecord"]
OF_FILES = ("webdataset", "files")
IN_MEMORY = ("--runner=DirectRunner", "--direct_running_mode=in_memory")

STEP = '''
import any2ds

@any2ds.transform(columns={"place": int}, members=("note.txt",))
def cut(sample):
    """Three samples of one file."""
    if not sample.data.startswith(b"cut"):
        return sample
    return [
        sample.with_data(b"piece %d" % n, "dat").with_fields(place=n).with_member("note.txt", b"note %d" % n)
        for n in range(3)
    ]
'''
ROWS = 12
CUT, LOST, SAME = 3, 6, 8  # rows: that becomes three samples; that fails; that is the same as the first one
KEYS = ["000000", "000001", "000002", "000003_0000", "000003_0001", "000003_0002", "000004", "000010"]
KEYS += ["000012", "000014", "000020", "000021"]  # rows 6 and 8 are 000011 and 000013


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    for number in range(ROWS):
        (folder / f"{number}.bin").write_bytes(b"cut" if number == CUT else b"\x80\x81file %d" % number)
    (folder / "big.bin").write_bytes(os.urandom(1 << 20))
    with serve(folder, {f"{LOST}.bin": ["404"] * 1000}) as server:
        yield server


def rows(server: Server) -> pa.Table:
    numbers = [0 if number == SAME else number for number in range(ROWS)]
    captions = [f"größe {number}" for number in numbers]
    return pa.table({"url": [server.url(f"{n}.bin") for n in numbers], "text": captions, "number": numbers})


def make(server: Server, folder: str | Path, output_format: str, step: Path, **options: Any) -> None:
    how = {
        "caption_col": "text",
        "save_additional_columns": "number",
        "number_sample_per_shard": 5,
        "dedupe": "run",
        "transform": f"{step}:cut",
        "distributor": "inline",
        "quiet": True,
    }
    download(rows(server), output_folder=str(folder), output_format=output_format, **{**how, **options})


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "step.py"
    path.write_text(STEP)
    return path


@pytest.fixture(scope="module")
def datasets(server: Server, step: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each format, all of the same list."""
    folder = tmp_path_factory.mktemp("datasets")
    for output_format in FORMATS:
        make(server, folder / output_format, output_format, step)
    return {output_format: folder / output_format for output_format in FORMATS}


@pytest.fixture
def copied(datasets: dict[str, Path], tmp_path: Path) -> Any:
    """A dataset to be spoilt."""

    def copy(output_format: str) -> Path:
        return Path(shutil.copytree(datasets[output_format], tmp_path / output_format))

    return copy


def keep(sample: dict[str, Any], folder: str) -> None:
    Path(folder, uuid.uuid4().hex).write_bytes(pickle.dumps(sample))


def read(transform: ReadShards) -> list[dict[str, Any]]:
    """What a pipeline gets, by key."""
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(options=PipelineOptions(IN_MEMORY)) as pipeline:
            _ = pipeline | transform | beam.Map(keep, folder)
        found = [pickle.loads(path.read_bytes()) for path in Path(folder).iterdir()]
    return sorted(found, key=lambda sample: sample["key"])


@pytest.mark.parametrize("output_format", FORMATS)
def test_all_samples_come_with_their_files_and_metadata(output_format: str, datasets: dict[str, Path]) -> None:
    folder = datasets[output_format]
    found = read(ReadShards(folder))
    assert [sample["key"] for sample in found] == KEYS
    tables = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("0*.parquet"))])
    reported = {row["key"]: row for row in tables.to_pylist()}
    for sample in found:
        expected = {name: value for name, value in reported[sample["key"]].items() if name != "data"}
        assert {name: value for name, value in sample.items() if name not in ("data", "members")} == expected
        piece = sample["place"]
        data = b"\x80\x81file %d" % sample["number"] if piece is None else b"piece %d" % piece
        assert sample["data"] == data
        assert (sample["ext"] == "dat") == (piece is not None)
        note = None if piece is None else f"note {piece}"
        if output_format in OF_FILES:
            assert sample["members"] == ({} if note is None else {"note.txt": note.encode()})
        else:
            assert (sample["members"], sample["note_txt"]) == ({}, note)
    assert sum(sample["place"] is not None for sample in found) == 3
    assert {sample["caption"] for sample in found} >= {"größe 0", "größe 11"}


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_columns_are_chosen(output_format: str, datasets: dict[str, Path]) -> None:
    some = read(ReadShards(datasets[output_format], columns=["number", "url"]))
    assert {tuple(sorted(sample)) for sample in some} == {
        ("data", "ext", "key", "members", "number", "status", "url"),
    }
    assert [sample["number"] for sample in some] == [0, 1, 2, 3, 3, 3, 4, 5, 7, 9, 10, 11]
    none = read(ReadShards(datasets[output_format], columns=[]))
    assert {tuple(sorted(sample)) for sample in none} == {("data", "ext", "key", "members", "status")}
    assert [sample["data"] for sample in none] == [sample["data"] for sample in some]


def test_a_column_that_is_not_there_is_named(datasets: dict[str, Path]) -> None:
    with pytest.raises(Exception, match=r"no column 'nubmer'; columns that exist: .*number"):
        read(ReadShards(datasets["webdataset"], columns="nubmer"))


@pytest.mark.parametrize("output_format", FORMATS)
def test_metadata_alone_need_no_data(output_format: str, copied: Any) -> None:
    folder = copied(output_format)
    if output_format != "parquet":
        for path in folder.glob("0000?" if output_format == "files" else f"0*.{suffix(output_format)}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = read(ReadShards(folder, with_data=False))
    assert [sample["key"] for sample in found] == KEYS
    assert all("data" not in sample and "members" not in sample for sample in found)
    assert found[0]["caption"] == "größe 0"


@pytest.mark.parametrize("output_format", FORMATS)
def test_what_failed_comes_when_it_is_asked_for(output_format: str, datasets: dict[str, Path]) -> None:
    found = read(ReadShards(datasets[output_format], status=None))
    assert [sample["key"] for sample in found] == sorted([*KEYS, "000011", "000013"])
    lost, same = found[8], found[10]
    assert (lost["key"], lost["status"], lost["error_code"]) == ("000011", "failed_to_download", "http_404")
    assert (lost["ext"], lost["data"], lost["members"], lost["number"]) == (None, None, {}, LOST)
    assert (same["key"], same["status"], same["duplicate_of"], same["data"]) == ("000013", "duplicate", "000000", None)
    assert all(sample["data"] for sample in found if sample["status"] == "success")
    only = read(ReadShards(datasets[output_format], status=["failed_to_download"], columns=["error_code"]))
    assert [sample["key"] for sample in only] == ["000011"]


def suffix(output_format: str) -> str:
    return {"webdataset": "tar"}.get(output_format, output_format)


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_broken_shard_is_named(output_format: str, copied: Any) -> None:
    folder = copied(output_format)
    if output_format == "files":
        for path in (folder / "00001").glob("000012.*"):
            path.unlink()
        name = "00001"
    else:
        name = f"00001.{suffix(output_format)}"
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(Exception, match=rf"shard {name} of '{folder}'"):
        read(ReadShards(folder))


def test_a_shard_without_its_files_is_named(copied: Any) -> None:
    folder = copied("webdataset")
    (folder / "00002.parquet").unlink()
    with pytest.raises(Exception, match=r"metadata of shard 00002.tar of .*00002\.parquet"):
        read(ReadShards(folder))
    folder = copied("tfrecord")
    (folder / "00000.tfrecord").unlink()
    with pytest.raises(Exception, match=r"shard 00000\.tfrecord of .* is missing"):
        read(ReadShards(folder))


@pytest.mark.parametrize("output_format", [*FORMATS, "dummy"])
def test_a_dataset_without_samples(output_format: str, server: Server, step: Path, tmp_path: Path) -> None:
    lost = pa.table({"url": [server.url(f"{LOST}.bin")] * 3})
    options = {"number_sample_per_shard": 2, "distributor": "inline", "quiet": True}
    download(lost, output_folder=str(tmp_path / "out"), output_format=output_format, **options)
    assert read(ReadShards(tmp_path / "out")) == []
    assert [sample["data"] for sample in read(ReadShards(tmp_path / "out", status=None))] == [None] * 3


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_row_that_was_tried_again_comes_with_its_last_outcome(
    output_format: str, media: Path, tmp_path: Path
) -> None:
    script = {"1.bin": ["503", "ok"], "2.bin": ["503", "503", "ok"], "4.bin": ["404"], "5.bin": ["503", "404"]}
    out = str(tmp_path / "out")
    with serve(media, script) as server:
        urls = [server.url(f"{number}.bin") for number in range(6)]
        options = {"output_format": output_format, "number_sample_per_shard": 2, "distributor": "inline", "quiet": True}
        download(urls, out, **options)
        for _ in range(2):
            any2ds.retry(out, distributor="inline", quiet=True)
    found = read(ReadShards(out, status=None))
    content = [b"the content of file %d" % number for number in range(6)]
    stored = {"000000": content[0], "000001": content[1], "000010": content[2], "000011": content[3]}
    assert [(row["key"], row["status"], row["data"]) for row in found] == [
        *((key, "success", data) for key, data in stored.items()),
        ("000020", "failed_to_download", None),
        ("000021", "failed_to_download", None),
    ]
    failed = read(ReadShards(out, status="failed_to_download"))
    assert [(row["key"], row["error_code"]) for row in failed] == [("000020", "http_404"), ("000021", "http_404")]
    assert [row["key"] for row in read(ReadShards(out))] == list(stored)
    for path in (*Path(out).glob("00005*"), Path(out, ".any2ds/shards")):  # as a second retry leaves it that was killed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    failed = read(ReadShards(out, status="failed_to_download", partial=True))
    assert [(row["key"], row["error_code"]) for row in failed] == [
        ("000010", "http_503"),
        ("000020", "http_404"),
        ("000021", "http_404"),
    ]


def test_a_folder_that_holds_none(tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "holds no dataset"), (tmp_path / "nowhere", "no such folder")):
        transform = ReadShards(folder)  # nobody looks before the pipeline runs
        with pytest.raises(Exception, match=words):
            read(transform)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_one_that_is_not_finished_is_refused_unless_it_may_be(output_format: str, copied: Any) -> None:
    folder = copied(output_format)
    (folder / ".any2ds/shards").unlink()  # as a run leaves it that was killed before shard 1 was finished
    (folder / "00001_stats.json").unlink()
    with pytest.raises(Exception, match=r"is not finished: shards are missing \(1\); partial=True reads what is there"):
        read(ReadShards(folder))
    found = read(ReadShards(folder, partial=True))
    assert [sample["key"] for sample in found] == [key for key in KEYS if key[4] != "1"]


def test_one_whose_list_broke_off_is_not_finished(server: Server, tmp_path: Path) -> None:
    broken = tmp_path / "list.jsonl"
    lines = [json.dumps({"url": server.url(f"{number}.bin")}) for number in range(4)]
    broken.write_text("\n".join([*lines, '{"url": ']))
    with pytest.raises(IncompleteRun):
        download(
            str(broken),
            output_folder=str(tmp_path / "out"),
            output_format="webdataset",
            number_sample_per_shard=2,
            distributor="inline",
            on_bad_row="stop",
            quiet=True,
        )
    with pytest.raises(Exception, match="is not finished: no run has come to the end of its list"):
        read(ReadShards(tmp_path / "out"))
    assert len(read(ReadShards(tmp_path / "out", partial=True))) == 4


@pytest.mark.parametrize("output_format", FORMATS)
def test_from_s3(output_format: str, server: Server, step: Path, s3_server: None, tmp_path: Path) -> None:
    from s3fs import S3FileSystem

    bucket = f"bucket-{output_format}"
    S3FileSystem().mkdir(bucket)
    make(server, f"s3://{bucket}/data/set", output_format, step)
    before = set(os.listdir(tempfile.gettempdir()))
    found = read(ReadShards(f"s3://{bucket}/data/set", columns=["number"]))
    assert [sample["key"] for sample in found] == KEYS
    assert found[-1]["data"] == b"\x80\x81file 11"
    assert {name for name in set(os.listdir(tempfile.gettempdir())) - before if "any2ds" in name} == set()


def test_storage_options_reach_whoever_reads(
    server: Server, step: Path, s3_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    S3FileSystem().mkdir("private")
    make(server, "s3://private/set", "webdataset", step)
    given = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    S3FileSystem.clear_instance_cache()
    found = read(ReadShards("s3://private/set", with_data=False, status=None, storage_options={"s3": given}))
    assert len(found) == len(KEYS) + 2


def test_shards_of_img2dataset_in_whatever_order(tmp_path: Path) -> None:
    keys = [f"00000{number}" for number in range(4)]
    table = pa.table({"url": [f"http://x/{key}" for key in keys], "caption": keys, "key": keys, "width": [1] * 4})
    table = table.append_column("status", pa.array(["success", "success", "failed_to_download", "success"]))
    pq.write_table(table, tmp_path / "00000.parquet")
    with tarfile.open(tmp_path / "00000.tar", "w") as tar:
        for key in (keys[3], keys[0], keys[1]):
            for ext, content in (("jpg", b"picture " + key.encode()), ("txt", key.encode()), ("json", b"{}")):
                member = tarfile.TarInfo(f"{key}.{ext}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    stats = {"count": 4, "successes": 3, "failed_to_download": 1, "failed_to_resize": 0, "status_dict": {}}
    (tmp_path / "00000_stats.json").write_text(json.dumps({**stats, "start_time": 1.0, "end_time": 2.0}))
    found = read(ReadShards(tmp_path))
    assert [(s["key"], s["data"], s["ext"], s["members"], s["width"]) for s in found] == [
        (key, b"picture " + key.encode(), "jpg", {}, 1) for key in (keys[0], keys[1], keys[3])
    ]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_compressed_records_are_read_in_their_order(
    place: str, server: Server, step: Path, s3_server: None, tmp_path: Path
) -> None:
    """They have none by number, so that `any2ds.load` refuses them."""
    out = str(tmp_path / "out")
    if place == "s3":
        from s3fs import S3FileSystem

        S3FileSystem().mkdir("compressed")
        out = "s3://compressed/set"
    make(server, out, "tfrecord", step, tfrecord_compression="gzip")
    found = [row for shard in FinishedShards(out, Stores()) for row in rows_of(shard, Wanted(statuses=None))]
    assert sorted(row["key"] for row in found) == sorted([*KEYS, "000011", "000013"])
    assert [row["data"] for row in found if row["place"] is not None] == [b"piece %d" % n for n in range(3)]


@pytest.mark.parametrize("output_format", FORMATS)
def test_bytes_that_changed_are_never_another_sample(output_format: str, copied: Any) -> None:
    """Metadata that tell of other samples than the data: as after a shard was replaced by hand."""
    folder = copied(output_format)
    path = folder / "00001.parquet"
    if output_format == "parquet":
        (folder / "00001.parquet").write_bytes((folder / "00002.parquet").read_bytes())
    else:
        table = pq.read_table(path)
        keys = pa.array([key.replace("000010", "000017") for key in table["key"].to_pylist()])
        pq.write_table(table.set_column(table.schema.get_field_index("key"), "key", keys), path)
    with pytest.raises(DamagedShard, match=r"shard 00001(\.\w+)? of "):
        [list(rows_of(shard, Wanted())) for shard in FinishedShards(str(folder), Stores())]


def test_tar_files_of_other_tools(tmp_path: Path) -> None:
    for shard in range(2):
        with tarfile.open(tmp_path / f"train-{shard}.tar", "w") as tar:
            for number in range(3):
                for ext, content in (("png", b"picture %d" % number), ("cls", b"%d" % number), ("seg.png", b"mask")):
                    member = tarfile.TarInfo(f"{shard}{number}.{ext}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    found = read(ReadShards(tmp_path))
    assert [sample["key"] for sample in found] == ["00", "01", "02", "10", "11", "12"]
    first = {"key": "00", "status": "success", "ext": "png", "data": b"picture 0"}
    assert found[0] == {**first, "members": {"cls": b"0", "seg.png": b"mask"}}
    with pytest.raises(Exception, match="no column 'caption'"):
        read(ReadShards(tmp_path, columns=["caption"]))


class Numbers(any2ds.Recipe):
    """Numbers and their texts."""

    VERSION = "1.0.0"

    def info(self) -> any2ds.Info:
        return any2ds.Info(features={"image": any2ds.Image(), "text": any2ds.Text()})

    def splits(self, dl: Any) -> Any:
        return {"train": ((n, {"image": PNG, "text": f"number {n}"}) for n in range(5))}


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_the_dataset_of_a_recipe_by_its_name(
    output_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any2ds.build(Numbers(), data_dir=tmp_path, output_format=output_format, quiet=True, report=False)
    monkeypatch.setenv("ANY2DS_DATA_DIR", str(tmp_path))
    for transform in (ReadShards("numbers"), ReadShards("numbers:1.0.0", data_dir=tmp_path)):
        found = read(transform)
        assert sorted(sample["text"] for sample in found) == [f"number {n}" for n in range(5)]
        assert {sample["data"] for sample in found} == {PNG}


SCRIPT = """
import pickle, sys, uuid
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from any2ds import beam as any2ds_beam


def keep(sample, folder):
    Path(folder, uuid.uuid4().hex).write_bytes(pickle.dumps((os.getpid(), sample)))


if __name__ == "__main__":
    import os

    options = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with beam.Pipeline(options=PipelineOptions(options)) as pipeline:
        pipeline | any2ds_beam.ReadShards(sys.argv[1]) | beam.Map(keep, sys.argv[2])
    counters = pipeline.result.metrics().query()["counters"]
    print({each.key.metric.name: each.committed for each in counters if each.key.metric.namespace == "any2ds"})
    print(os.getpid())
"""


def test_in_processes_of_their_own(datasets: dict[str, Path], tmp_path: Path) -> None:
    script, found = tmp_path / "pipeline.py", tmp_path / "found"
    script.write_text(SCRIPT)
    found.mkdir()
    # A relative path is one of who launches the pipeline, wherever its workers are.
    folder = datasets["webdataset"]
    command = [sys.executable, str(script), folder.name, str(found)]
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kept = [pickle.loads(path.read_bytes()) for path in found.iterdir()]
    assert sorted(sample["key"] for _, sample in kept) == KEYS
    counters, launcher = done.stdout.splitlines()[-2:]
    assert int(launcher) not in {pid for pid, _ in kept}
    size = sum(len(sample["data"]) for _, sample in kept)
    assert eval(counters) == {"shards": 3, "samples": len(KEYS), "bytes": size}


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_shard_is_read_as_a_stream(output_format: str, server: Server, tmp_path: Path) -> None:
    """Of 40 files of a megabyte in one shard, memory holds a few."""
    urls = pa.table({"url": [f"{server.url('big.bin')}?{number}" for number in range(40)]})
    options = {"output_format": output_format, "distributor": "inline", "quiet": True}
    download(urls, output_folder=str(tmp_path / "out"), **options)
    (shard,) = FinishedShards(str(tmp_path / "out"), Stores())
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        count, most = 0, 0
        for sample in rows_of(shard, Wanted()):
            assert len(sample["data"]) == 1 << 20
            count += 1
            most = max(most, pa.total_allocated_bytes() - allocated)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40
    assert peak + most < 20 << 20


def test_options_that_make_no_sense_are_refused_at_once() -> None:
    with pytest.raises(OptionError, match="storage_options"):
        ReadShards("s3://bucket/dataset", storage_options={"s3": 3})  # type: ignore[dict-item]


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


@pytest.mark.parametrize("statement", ["import any2ds", "import any2ds.beam", "from any2ds.beam import ReadShards"])
def test_it_is_imported_in_any_way(statement: str) -> None:
    program = f"{statement}\nimport any2ds\nfrom any2ds import beam\nprint(beam.ReadShards is any2ds.beam.ReadShards)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "True\n"
    )


def test_any2ds_alone_does_not_import_beam() -> None:
    program = (
        "import sys, any2ds, any2ds.run.download;"
        " print([n for n in sys.modules if 'apache_beam' in n or n == 'any2ds.beam'])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
