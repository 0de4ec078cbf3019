"""How to load a dataset, as it is told: for each format, from odd folders, and out of stores."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from any2ds import UsageError, download, retry
from any2ds.dataset.dataset import Dataset
from any2ds.describe.loaders import Loadable, kind_of, snippets
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


def test_folders_that_are_like_a_url_or_a_drive(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "file:x", "webdataset")
    known = replace(Loadable.of(Dataset(str(tmp_path / "file:x"))), folder="file:x")
    assert run(snippets(known)[-1].code, tmp_path) == 5
    assert '"file:" + path' in snippets(replace(known, folder="C:/x"))[-1].code


@pytest.mark.slow
def test_a_remote_dataset(s3_server: None, made: Callable[..., Any], tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("s3").mkdir("snippets")
    for form in ("webdataset", "parquet", "files", "dummy"):
        made(f"s3://snippets/{form}", form)
        found = {each.loader: each.code for each in snippets(f"s3://snippets/{form}")}
        for loader in found if form == "dummy" else HERE.intersection(found):
            assert run(found[loader], tmp_path) == 5, loader


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


def test_a_line_for_each_library_and_one_way_without_any2ds() -> None:
    for form, without in WITHOUT.items():
        found = snippets(Loadable("out", form, "{00000..00041}", kind="image", has_tfds=True))
        assert [each.loader for each in found] == [*WITH_ANY2DS, without]
        for each in found[:-1]:
            assert each.code.count('ds = any2ds.load("out")') == 1
            assert len(each.code.partition("\n\n")[2].splitlines()) == 2
        assert "any2ds" not in found[-1].code
    assert [each.loader for each in snippets(Loadable("out", "dummy"))] == ["pandas, without any2ds"]
    compressed = snippets(Loadable("out", "tfrecord", is_gzipped=True))  # which has no samples by number
    assert [each.loader for each in compressed] == ["tf.data", "tf.data, without any2ds"]


def test_what_they_need(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "out", "webdataset")
    install = {each.loader: each.install for each in snippets(str(tmp_path / "out"))}
    assert install["PyTorch"] == "'any2ds[image]' torch"  # which decodes
    assert install["Hugging Face datasets"] == "any2ds datasets pillow"
    assert install["webdataset, without any2ds"] == "webdataset"
    remote = {each.loader: each.install for each in snippets(Loadable("s3://b/out", "tfrecord", kind="audio"))}
    assert remote["PyTorch"] == "'any2ds[tfrecord,s3]' torch"
    assert remote["Hugging Face datasets"] == "'any2ds[tfrecord,s3]' datasets torchcodec"
    with pytest.raises(UsageError, match="no such folder"):
        snippets(str(tmp_path / "nothing"))


@pytest.mark.parametrize("is_square", [True, False])
def test_squares_of_one_size_are_batches_of_arrays(is_square: bool, made: Callable[..., Any], tmp_path: Path) -> None:
    options = {"file_size": 16, "resize_mode": "center_crop", "encode_format": "jpg"}
    made(tmp_path / "out", "webdataset", resize_only_if_bigger=not is_square, **options)
    code = {each.loader: each.code for each in snippets(str(tmp_path / "out"))}["PyTorch"]
    assert ('columns=["data", "key"], decode=True' in code) is is_square
    assert ", decode=True)" in code
    assert "where" not in code
    assert ("collate_fn=list" in code) is not is_square


OTHERS = {
    "a.txt": b"no image",
    "b.html": b"<!DOCTYPE html><html><p>page</p></html>",
    "c.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"encode_format": "jpg"}, "ext = 'jpg'"),
        ({}, "ext = 'png'"),
    ],
)
def test_batches_leave_out_files_that_are_no_images(
    options: dict[str, Any], expected: str, server: Server, tmp_path: Path
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for name, content in {**OTHERS, "0.png": PNG, "1.png": PNG}.items():
        (media / name).write_bytes(content)
    square: dict[str, Any] = {"file_size": 16, "resize_mode": "center_crop", "resize_only_if_bigger": False, **options}
    with serve(media) as others:
        urls = [others.url(name) for name in ("0.png", *OTHERS, "1.png")]
        out = tmp_path / "out"
        assert (
            download(urls, str(out), output_format="webdataset", quiet=True, distributor="inline", **square).successes
            == 5
        )
    code = {each.loader: each.code for each in snippets(str(out))}["PyTorch"]
    assert f'where="{expected}"' in code
    names: dict[str, Any] = {}
    exec(code.replace("from torch.utils.data import DataLoader\n", "").partition("batches = ")[0], names)
    assert [sample["data"].shape for sample in names["ds"]] == [(16, 16, 3)] * 2


def test_what_kind_of_files_there_are() -> None:
    assert kind_of({"jpg": 90, "webp": 5, "html": 5}) == "image"
    assert kind_of({"jpg": 50, "mp3": 50}) == ""
    assert kind_of({"data.txt": 3}) == "text"
    assert kind_of({"mkv": 1, "mp4": 2}) == "video"
    assert kind_of({"flac": 1, "opus": 2}) == "audio"
    assert kind_of({}) == ""


def test_an_extension_is_a_word_in_the_code_whatever_it_is() -> None:
    found = Loadable("folder", "webdataset", "{00000..00001}.tar", exts=('x" + str(1 / 0) + "',))
    for snippet in snippets(found):
        compile(snippet.code, snippet.loader, "exec")
        assert '" + str(1 / 0)' not in snippet.code.replace('\\"', "")
