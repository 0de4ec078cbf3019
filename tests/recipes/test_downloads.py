"""What a recipe downloads by itself: archives, checksums, the cache; and rows with URLs, which the engine fetches."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.cli import run
from any2ds.core.errors import RunError, UsageError
from any2ds.testing.server import Server, serve
from tests.run.reporters.conftest import terminal
from tests.support.downloads import Downloads
from tests.support.flowers import build, picture

__all__ = ["terminal"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    """Archives of the same two files, and images."""
    folder = tmp_path / "served"
    folder.mkdir()
    files = {"rose/a.png": picture(1), "tulip/b.png": picture(2)}
    with zipfile.ZipFile(folder / "files.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    for ending, mode in (("tar", "w"), ("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tgz", "w:gz")):
        with tarfile.open(folder / f"files.{ending}", mode) as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    (folder / "table.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    for number in range(12):
        (folder / f"{number}.png").write_bytes(picture(number))
    with serve(folder) as server:
        yield server


TABLE = '''
import any2ds


class Table(any2ds.Recipe):
    """A table."""

    def info(self):
        return any2ds.Info({{"a": any2ds.Text()}})

    def splits(self, dl):
        lines = dl.download_and_extract("{url}").read_text().splitlines()
        return {{"train": ((number, {{"a": line}}) for number, line in enumerate(lines))}}
'''


@pytest.fixture
def dl(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path / "cache")


@pytest.mark.parametrize("name", ["files.zip", "files.tar", "files.tar.gz", "files.tar.bz2", "files.tgz"])
def test_archives_are_unpacked_and_read_without_unpacking(name: str, served: Server, dl: Downloads) -> None:
    path = dl.within(lambda dl: dl.download(served.url(name)))
    assert path.name == name
    folder = dl.extract(path)
    assert (folder / "tulip" / "b.png").read_bytes() == picture(2)
    assert dl.iter_archive(path) == [("rose/a.png", picture(1)), ("tulip/b.png", picture(2))]
    assert dl.extract(path) == folder


def test_a_compressed_file_becomes_a_file(served: Server, dl: Downloads) -> None:
    url = served.url("table.csv.gz")
    path = dl.within(lambda dl: dl.download_and_extract(url))
    assert (path.name, path.read_bytes()) == ("table.csv", b"a,b\n1,2\n")
    assert dl.iter_archive(dl.within(lambda dl: dl.download(url))) == [("table.csv", b"a,b\n1,2\n")]


def test_urls_may_be_nested_and_each_is_fetched_once(served: Server, dl: Downloads) -> None:
    urls = {"some": [served.url("1.png"), served.url("2.png")], "one": served.url("1.png")}
    found = dl.within(lambda dl: dl.download(urls))
    assert [path.read_bytes() for path in found["some"]] == [picture(1), picture(2)]
    assert found["one"] == found["some"][0]
    assert dl.within(lambda dl: dl.download(urls)) == found  # from the cache
    assert served.counts["1.png"] == served.counts["2.png"] == 1


def test_what_cannot_be_fetched_or_unpacked_is_named(served: Server, dl: Downloads, tmp_path: Path) -> None:
    for action, error, words in (
        (lambda dl: dl.download([served.url("1.png"), served.url("none.zip")]), RunError, r"none\.zip: http_404"),
        (lambda dl: dl.download_and_extract(served.url("1.png")), UsageError, r"1\.png: is no archive"),
        (lambda dl: dl.download("nowhere.zip"), UsageError, "no such file, and no URL"),
        (lambda dl: dl.manual_dir, UsageError, "manual.*where there are none"),
    ):
        with pytest.raises(error, match=words):
            dl.within(action)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(gzip.compress(b"no tar")[:-9])
    with pytest.raises(RunError, match=r"broken\.tar\.gz: cannot be unpacked"):
        dl.extract(broken)


def test_what_has_no_checksum_is_a_note_on_the_command_line(
    served: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "table.py"
    url = served.url("table.csv.gz")
    recipe.write_text(TABLE.format(url=url))
    options = [f"--data_dir={tmp_path}/data", f"--download_dir={tmp_path}/cache", "--quiet", "--noreport"]
    options.append("--distributor=inline")

    def notes(*more: str, exit_code: int = 0) -> str:
        assert run(["build", str(recipe), *options, *more]) == exit_code
        return capsys.readouterr().err

    text = f"no checksum of {url}: --register_checksums records what is there now"
    assert notes() == f"note: checksums.tsv: {text}\n"
    assert notes("--register_checksums").endswith(": --overwrite makes it anew, and registers the checksums\n")
    assert notes("--register_checksums", "--overwrite") == ""
    assert notes().startswith("note: table:1.0.0 is there already, in ")
    (tmp_path / "checksums.tsv").write_text("something else\n")
    assert "line 1: expected url, size, sha256, file name" in notes("--overwrite", exit_code=2)


# --- rows with URLs ---


LATE = ("0.png", "late-1.png", "late-2.png", "1.png", "late-3.png", "gone.png")


def of_urls(rows: Any) -> any2ds.Recipe:
    class Linked(any2ds.Recipe):
        """Images of a list."""

        def info(self) -> any2ds.Info:
            return any2ds.Info(
                {
                    "image": any2ds.Image(),
                    "caption": any2ds.Text(),
                    "label": any2ds.Optional(any2ds.ClassLabel(["a", "b"])),
                }
            )

        def splits(self, dl: Any) -> Any:
            return rows if isinstance(rows, dict) else {"train": rows}

    return Linked()


@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "jsonl", "table", "dicts", "generator"])
def test_rows_with_urls_may_be_a_list_of_any_kind(kind: str, served: Server, tmp_path: Path) -> None:
    rows = [{"key": f"k{n}", "url": served.url(f"{n}.png"), "caption": f"c{n}", "label": "ab"[n % 2]} for n in range(4)]
    path = tmp_path / f"list.{kind}"
    given: Any = path
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "csv.gz":
        lines = ["key,url,caption,label", *(",".join(row.values()) for row in rows)]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        given = {"table": pa.Table.from_pylist(rows), "dicts": rows, "generator": iter(rows)}[kind]
    report = build(of_urls(given), tmp_path / "data", number_sample_per_shard=3)
    assert (report.successes, report.shards) == (4, 2)
    found = {sample["recipe_key"]: sample for sample in any2ds.load("linked", data_dir=tmp_path / "data")}
    assert len(found) == 4
    assert found["k3"]["image"] == picture(3)
    assert (found["k3"]["caption"], found["k3"]["label"], found["k3"]["url"]) == ("c3", 1, served.url("3.png"))


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_what_a_retry_recovers_comes_into_the_split_of_its_row(
    output_format: str, served: Server, tmp_path: Path
) -> None:
    rows = [{"key": f"k{n}", "url": served.url(name), "caption": "", "label": "a"} for n, name in enumerate(LATE)]
    given = {"train": rows[:3], "test": rows[3:5], "empty": rows[5:]}
    build(of_urls(given), tmp_path / "data", output_format=output_format, number_sample_per_shard=10)
    folder = tmp_path / "data" / "linked" / "1.0.0"
    for name in ("late-1.png", "late-2.png", "late-3.png"):
        (tmp_path / "served" / name).write_bytes(picture(7))
    assert any2ds.retry(folder, codes="all", quiet=True).successes == 3
    keys = {name: sorted(row["recipe_key"] for row in any2ds.load(folder, split=name)) for name in given}
    assert keys == {"train": ["k0", "k1", "k2"], "test": ["k3", "k4"], "empty": []}
    assert len(any2ds.load(folder, split="train[:2]")) == 2
    assert any2ds.verify(folder, quiet=True).ok
    if output_format == "tfrecord":
        info = json.loads((folder / "dataset_info.json").read_text())
        lengths = {split["name"]: split["shardLengths"] for split in info["splits"]}
        shards = {"train": ["1", "0", "0", "2", "0", "0"], "test": ["0", "1", "0", "0", "1", "0"], "empty": ["0"] * 6}
        assert lengths == shards


def test_a_build_may_have_both_kinds_of_splits(served: Server, tmp_path: Path) -> None:
    class Both(any2ds.Recipe):
        """Some are fetched."""

        def info(self) -> any2ds.Info:
            return any2ds.Info({"image": any2ds.Image()})

        def splits(self, dl: Any) -> Any:
            return {"made": [("a", {"image": picture(1)})], "fetched": [{"url": served.url("2.png")}]}

    report = build(Both, tmp_path)
    assert (report.successes, report.shards) == (2, 2)
    found = any2ds.load("both", data_dir=tmp_path)
    assert {sample["split"]: sample["image"] for sample in found} == {"made": picture(1), "fetched": picture(2)}
    assert any2ds.verify(tmp_path / "both" / "1.0.0", quiet=True).ok


def test_a_wrong_value_in_a_list_is_named(served: Server, tmp_path: Path) -> None:
    rows = [{"url": served.url("1.png"), "caption": "c", "label": "c"}]
    with pytest.raises(
        UsageError, match="row 0: sample 'train-0': feature 'label' cannot be 'c': it is none of the classes"
    ):
        build(of_urls(rows), tmp_path)
    with pytest.raises(UsageError, match="feature 'caption'"):
        build(of_urls([{"url": served.url("1.png")}]), tmp_path)
