"""How to load a dataset, as it is told: for each format, from odd folders, and out of stores."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import UsageError, download, retry
from any2ds.describe.loaders import kind_of, lines_for, snippets
from any2ds.testing.server import Server, serve

ODD = 'it\'s {a,b} "set" [1]* größe'
# Before Python 3.14 a thread of Arrow or DuckDB that lets go of an fsspec file while the interpreter is being torn down
# ends the process with SIGABRT (python/cpython#87135), however it was read; so the end of the process is not in it.
COUNT = """
print("=", len(samples) if hasattr(samples, "__len__") else sum(1 for _ in samples), flush=True)
__import__("os")._exit(0)
"""
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(5):
        (media / f"{n}.png").write_bytes(PNG)
    with serve(media) as running:
        yield running


@pytest.fixture
def made(server: Server, tmp_path: Path) -> Callable[..., Any]:
    """A dataset of five images in three shards, and of a row that failed."""

    def make(folder: Any, form: str, **options: Any) -> None:
        rows = [{"url": server.url(f"{n}.png"), "caption": f"c{n}"} for n in range(6)]
        options = {"number_sample_per_shard": 2, "caption_col": "caption", "distributor": "inline", **options}
        assert download(rows, output_folder=folder, output_format=form, quiet=True, **options).successes == 5

    return make


def run(code: str, folder: Path) -> int:
    """A snippet as it stands, in a process of its own; the number of samples."""
    script = folder / "snippet.py"
    script.write_text(code + COUNT, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", cwd=folder, check=False)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return int(done.stdout.rpartition("=")[2])


HERE = {"webdataset", "DuckDB", "pandas", "webdataset, without any2ds", "plain files, without any2ds"}
# The others in tests/reading and tests/cluster.


@pytest.mark.parametrize("form", ["webdataset", "parquet", "files", "dummy"])
@pytest.mark.slow
def test_snippets_run_as_they_stand(form: str, made: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / ("odd" if sys.platform == "win32" else ODD)
    made(folder, form, **({"data_column": "a file"} if form == "parquet" else {}))
    found = {each.loader: each.code for each in snippets(str(folder))}
    for loader in found if form == "dummy" else HERE.intersection(found):
        assert run(found[loader], tmp_path) == 5, loader
    for loader, code in found.items():
        compile(code, loader, "exec")


@pytest.mark.parametrize("form", ["webdataset", "files"])
def test_what_a_retry_has_recovered_is_loaded_without_any2ds_too(form: str, server: Server, tmp_path: Path) -> None:
    with serve(server.folder, {"1.png": ["503", "ok"]}) as flaky:
        urls = [flaky.url(f"{n}.png") for n in range(5)]
        options = {"output_format": form, "number_sample_per_shard": 2, "distributor": "inline", "quiet": True}
        assert download(urls, str(tmp_path / "out"), **options).successes == 4
        assert retry(str(tmp_path / "out"), distributor="inline", quiet=True).successes == 1
    assert run(snippets(str(tmp_path / "out"))[-1].code, tmp_path) == 5


def test_gaps_in_the_numbers(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "out", "webdataset")
    for lost in (tmp_path / "out").glob("00001*"):
        lost.unlink()
    assert run(snippets(str(tmp_path / "out"))[-1].code, tmp_path) == 3


def test_folders_that_are_like_a_url(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "file:x", "webdataset")
    assert run(lines_for("file:x", "webdataset")[-1].code, tmp_path) == 5


WITH_ANY2DS = [
    "PyTorch",
    "Grain",
    "tf.data",
    "Hugging Face datasets",
    "webdataset",
    "Ray Data",
    "Spark",
    "Daft",
    "DuckDB",
    "Polars",
    "pandas",
]
WITHOUT = {
    "webdataset": "webdataset, without any2ds",
    "parquet": "Hugging Face datasets, without any2ds",
    "tfrecord": "tf.data, without any2ds",
    "arrayrecord": "TensorFlow Datasets, without any2ds",
    "files": "plain files, without any2ds",
}


def test_lines_for_each_library_and_one_way_without_any2ds() -> None:
    for form, without in WITHOUT.items():
        found = lines_for("out", form, has_tfds=True)
        assert [each.loader for each in found] == [*WITH_ANY2DS, without]
        for each in found[:-1]:
            assert each.code.count('ds = any2ds.load("out"') == 1
            assert len(each.code.partition("\n\n")[2].splitlines()) == 2
        assert "any2ds" not in found[-1].code
        assert [each.loader for each in lines_for("s3://b/out", form)] == WITH_ANY2DS
    assert [each.loader for each in lines_for("out", "dummy")] == ["pandas, without any2ds"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        snippets(str(tmp_path / "nothing"))


def test_what_kind_of_files_there_are() -> None:
    assert kind_of({"jpg": 90, "webp": 5, "html": 5}) == "image"
    assert kind_of({"jpg": 50, "mp3": 50}) == ""
    assert kind_of({"data.txt": 3}) == "text"
    assert kind_of({"mkv": 1, "mp4": 2}) == "video"
    assert kind_of({"flac": 1, "opus": 2}) == "audio"
    assert kind_of({}) == ""


def test_a_folder_is_a_word_in_the_code_whatever_it_is() -> None:
    for form in WITHOUT:
        for snippet in lines_for('x" + str(1 / 0) + "FOLDER', form):
            compile(snippet.code, snippet.loader, "exec")
            assert '" + str(1 / 0)' not in snippet.code.replace('\\"', "")
