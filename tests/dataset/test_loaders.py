"""How to load a dataset, as it is told: for each format, from odd folders, and out of stores."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from any2ds import UsageError, download
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.loaders import Loadable, kind_of, snippets
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


@pytest.mark.parametrize("form", ["webdataset", "parquet", "files"])
def test_snippets_run_as_they_stand(form: str, made: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / ("odd" if sys.platform == "win32" else ODD)
    made(folder, form, **({"data_column": "a file"} if form == "parquet" else {}))
    here = {"webdataset", "plain files", "pandas", "pyarrow", "DuckDB"}  # the others in tests/reading
    found = {each.loader: each.code for each in snippets(str(folder))}
    for loader in here.intersection(found):
        assert run(found[loader], tmp_path) == 5, loader
    for loader, code in found.items():
        compile(code, loader, "exec")


def test_gaps_in_the_numbers(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "out", "webdataset")
    for lost in (tmp_path / "out").glob("00001*"):
        lost.unlink()
    (code,) = (each.code for each in snippets(str(tmp_path / "out")) if each.loader == "webdataset")
    assert "{00000,00002}.tar" in code
    assert run(code, tmp_path) == 3


def test_a_pattern_that_is_too_long_gives_way_to_a_list_of_files(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "out", "webdataset")
    known = Loadable.of(Dataset(str(tmp_path / "out")))
    (code,) = (each.code for each in snippets(replace(known, pattern="x" * 200)) if each.loader == "webdataset")
    assert run(code, tmp_path) == 5


@pytest.mark.slow
def test_a_remote_dataset(s3_server: None, made: Callable[..., Any], tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("s3").mkdir("snippets")
    for form in ("webdataset", "parquet", "files"):
        made(f"s3://snippets/{form}", form)
        found = {each.loader: each.code for each in snippets(f"s3://snippets/{form}")}
        assert ("webdataset, through a pipe" in found) == (form == "webdataset")
        for loader in {"webdataset", "plain files", "pandas", "pyarrow", "DuckDB"}.intersection(found):
            assert run(found[loader], tmp_path) == 5, loader


def test_the_names_of_loaders_and_what_they_need(made: Callable[..., Any], tmp_path: Path) -> None:
    made(tmp_path / "out", "webdataset")
    found = snippets(str(tmp_path / "out"))
    assert [each.loader for each in found][:4] == [
        "any2ds and PyTorch",
        "webdataset",
        "PyTorch",
        "Hugging Face datasets",
    ]
    assert found[0].install == "any2ds torch"
    assert found[1].install == "webdataset pillow"
    with pytest.raises(UsageError, match="no such folder"):
        snippets(str(tmp_path / "nothing"))


def test_the_documentation_shows_what_is_reported() -> None:
    text = (Path(__file__).parents[2] / "docs" / "loading.md").read_text(encoding="utf-8")
    section = text.partition("\n## Without any2ds\n")[2].partition("\n## ")[0]
    exts = ("jpg", "png", "webp")
    ends = {"webdataset": ".tar", "parquet": ".parquet", "files": "", "tfrecord": ".tfrecord"}
    reported = {
        form: snippets(
            Loadable(
                "dataset",
                form,
                f"{{00000..00041}}{ends.get(form, '.arrayrecord')}",
                kind="image",
                exts=exts,
                columns=("key", "url", "caption", "status", "ext", "bytes"),
                has_tfds=True,
                is_only_kind=True,
            )
        )
        for form in (*ends, "arrayrecord")
    }
    shown = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    wanted = {"webdataset": "webdataset", "parquet": "Hugging Face datasets"}
    assert shown == [each.code for form, name in wanted.items() for each in reported[form] if each.loader == name]
    tables = ["pandas", "pyarrow", "DuckDB", "Polars", "Daft"]
    for form, found in reported.items():
        names = [each.loader for each in found if "any2ds" not in each.loader]  # those are above that section
        assert names[-len(tables) :] == tables
        assert f"| `{form}` | {', '.join(names[: -len(tables)])} |" in section
    assert f"| the metadata of each | {', '.join(tables)} |" in section


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
