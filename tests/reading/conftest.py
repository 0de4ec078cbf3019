"""What the tests have in common that read datasets with other people's libraries: datasets, and the page on loading.

A dataset lies in `dataset/` of the working directory, made by `download()` from a server on loopback. How it is read is
taken from docs/loading.md and the pages beside it, so that what stands there is what was tried.
"""

import contextlib
import datetime
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from any2ds import download, retry
from any2ds.describe.loaders import snippets
from any2ds.testing.server import Server, serve

DOCS = Path(__file__).parents[2] / "docs"

IMAGES = 24  # in a list of images, besides the dead one
SHARD = 10  # rows
SIDE = 32  # pixels
DEAD = 7  # the row whose file does not exist


def pytest_configure(config: pytest.Config) -> None:
    # Elsewhere warnings are errors; the libraries that are read with have many of their own.
    config.addinivalue_line("filterwarnings", "ignore")
    # Nor may they ask the network for anything but the server on loopback, or find what was read another day.
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1")
    os.environ["HF_HOME"] = cache = tempfile.mkdtemp(prefix="any2ds-test-")
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))


@dataclass(frozen=True)
class Listed:
    """A url list, and what it should become."""

    rows: pa.Table  # url, caption, label
    files: Mapping[str, bytes]  # key -> content, in order, without the dead one

    @property
    def names(self) -> list[str]:
        """Of the files, in the order of the rows; "dead" is that of the row that failed."""
        return [url.rpartition("/")[2] for url in self.rows["url"].to_pylist()]

    @property
    def captions(self) -> dict[str, str]:
        return dict(zip(self._keys, self.rows["caption"].to_pylist(), strict=True))

    @property
    def labels(self) -> dict[str, int]:
        return dict(zip(self._keys, self.rows["label"].to_pylist(), strict=True))

    @property
    def _keys(self) -> list[str]:
        return [key_of(n) for n in range(self.rows.num_rows)]


def key_of(position: int) -> str:
    return f"{position // SHARD:05d}{position % SHARD}"


def picture(n: int, form: str) -> bytes:
    """`SIDE` pixels each way, another colour for each `n`."""
    stream = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (n * 10 % 256, 255 - n * 10 % 256, n % 7 * 30)).save(stream, form)
    return stream.getvalue()


def sound(n: int) -> bytes:
    """A tenth of a second at 8 kHz."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"".join((n * 250 * (m % 20 - 10)).to_bytes(2, "little", signed=True) for m in range(800)))
    return stream.getvalue()


def _media() -> dict[str, dict[str, bytes]]:
    """Kind of list -> file name -> content, in the order of its rows; the row without a file is "dead"."""
    images = {
        f"{n:02d}.{'png' if n % 5 == 4 else 'jpg'}": picture(n, "PNG" if n % 5 == 4 else "JPEG") for n in range(IMAGES)
    }
    sounds = {f"{n}.wav": sound(n) for n in range(12)}
    texts = {f"{n}.txt": f"Text {n}: größer als {n}.\n".encode() * 20 for n in range(6)}
    mixed = [*list(images.items())[:9], *list(sounds.items())[:6], *texts.items()]
    return {"images": images, "audio": sounds, "mixed": dict(sorted(mixed, key=lambda item: item[0][::-1]))}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    for files in _media().values():
        for name, content in files.items():
            (folder / name).write_bytes(content)
    with serve(folder) as running:
        yield running


@pytest.fixture(scope="session")
def listed(server: Server) -> Callable[[str], Listed]:
    """The list of a kind: `images` (jpg, png), `audio` (wav) or `mixed` (both, and texts). Row `DEAD` fails."""

    def make(kind: str = "images") -> Listed:
        files = list(_media()[kind].items())
        files.insert(DEAD, ("dead", b""))
        rows = {
            "url": [server.url(name) for name, _ in files],
            "caption": [f'file "{name}", größe {n}' for n, (name, _) in enumerate(files)],
            "label": [n % 3 for n in range(len(files))],
        }
        return Listed(pa.table(rows), {key_of(n): content for n, (_, content) in enumerate(files) if n != DEAD})

    return make


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Callable[[str], Listed]) -> Callable[..., Listed]:
    """`dataset("webdataset", "images", dedupe="none")` makes `dataset/` in the working directory, in shards of ten."""
    monkeypatch.chdir(tmp_path)

    def make(output_format: str, kind: str = "images", **options: Any) -> Listed:
        found = listed(kind)
        shutil.rmtree("dataset", ignore_errors=True)
        report = download(
            url_list=found.rows,
            caption_col="caption",
            save_additional_columns=["label"],
            output_folder="dataset",
            output_format=output_format,
            **{"number_sample_per_shard": SHARD, "distributor": "inline", "quiet": True, "robots": "ignore", **options},
        )
        assert report.successes == len(found.files)
        return found

    return make


@pytest.fixture
def of_splits(
    listed: Callable[..., Listed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, list[str]]]:
    """Makes `data/birds/1.0.0`, whose list has a column `split`; the keys of each split."""
    monkeypatch.chdir(tmp_path)
    rows = listed().rows
    split = ["train"] * SHARD + ["validation"] * SHARD + ["test"] * (rows.num_rows - 2 * SHARD)
    options = {"number_sample_per_shard": SHARD, "distributor": "inline", "quiet": True, "robots": "ignore"}

    def make(output_format: str) -> dict[str, list[str]]:
        options.update(output_folder="data/birds/1.0.0", output_format=output_format, save_additional_columns=["split"])
        download(rows.append_column("split", [split]), **options)
        keys = list(listed().files)
        return {
            "train": keys[: SHARD - 1],
            "validation": keys[SHARD - 1 : 2 * SHARD - 1],
            "test": keys[2 * SHARD - 1 :],
        }

    return make


@pytest.fixture
def dead() -> str:
    """The key of the row that failed."""
    return key_of(DEAD)


@pytest.fixture
def readme() -> Callable[..., dict[str, Any]]:
    """`readme("Daft")` runs the first block of that section in the working directory, and gives its variables.

    `block` takes a later one, `replace` puts other texts in the place of some (the number of a last shard).
    """

    def run(
        title: str, block: int = 0, replace: Mapping[str, str] | None = None, name: str = "loading.md"
    ) -> dict[str, Any]:
        code = blocks(title, name)[block]
        for there, here in (replace or {}).items():
            assert there in code, f"{name}, {title}: {there!r} is not in\n{code}"
            code = code.replace(there, here)
        variables: dict[str, Any] = {"__name__": "readme"}
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(code, f"{name}, {title}", "exec"), variables)
        return {**variables, "stdout": shown.getvalue()}

    return run


def blocks(title: str, name: str = "loading.md") -> list[str]:
    """The Python in a section of a page, as it stands there; of a section with subsections, theirs as well."""
    text = (DOCS / name).read_text(encoding="utf-8")
    heading = re.search(rf"^(#+) {re.escape(title)}\n", text, re.MULTILINE)
    assert heading, f"{name} has no section {title!r}"
    deeper = rf"^#{{2,{max(2, len(heading[1]))}}} "
    section = re.split(deeper, text[heading.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


@pytest.fixture
def page() -> Callable[..., list[str]]:
    """`page("Daft")` are the blocks of Python in that section of docs/loading.md, `page("tf.data", "tensorflow.md")` of
    another page."""
    return blocks


@pytest.fixture
def loaded() -> Callable[[str, str], int]:
    """`loaded("webdataset")` runs what any2ds says of how to load `dataset/` with that library, as it stands and in a
    process of its own; the number of samples."""

    def run(loader: str, folder: str = "dataset") -> int:
        (snippet,) = (each for each in snippets(folder) if each.loader == loader)
        script = Path("snippet.py")
        script.write_text(snippet.code + _COUNT, encoding="utf-8")
        done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])

    return run


_COUNT = """
if "batches" in globals():
    samples = [sample for batch in batches for sample in batch]
if hasattr(samples, "count_rows"):  # of Daft
    samples = samples.collect()
try:
    print(len(samples) if not hasattr(samples, "rdd") else samples.count())
except TypeError:  # of a stream
    print(sum(1 for _ in samples))
"""


@pytest.fixture
def rich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Callable[[str], None]:
    """`rich("tfrecord")` makes `dataset/` of three images with lists, nulls and nested values in additional columns."""
    monkeypatch.chdir(tmp_path)
    rows = pa.table(
        {
            "url": [server.url(f"{n:02d}.jpg") for n in range(3)],
            "tags": pa.array([["grün", "tree"], None, []], pa.list_(pa.string())),
            "box": pa.array([[0.5, 1.5], [1.0], []], pa.list_(pa.float32())),
            "score": pa.array([0.25, None, 2.0]),
            "safe": pa.array([True, False, None]),
            "place": pa.array([{"lat": 1.5, "of": ["x"]}, None, {"lat": None, "of": []}]),
            "raw": pa.array([b"\x00\xff", None, b""]),
            "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5), None, None]),
        }
    )

    def make(output_format: str) -> None:
        names = [name for name in rows.schema.names if name != "url"]
        options = {"save_additional_columns": names, "output_folder": "dataset", "output_format": output_format}
        assert download(url_list=rows, distributor="inline", quiet=True, **options).successes == 3

    return make


@pytest.fixture
def eventful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, bytes]]:
    """`eventful("tfrecord")` makes `dataset/` in four runs: one with a failure and without a single success in its last
    shard, a retry, one that makes a lost shard again, and one that extends it. Gives key -> content, in the order of
    the shards."""
    monkeypatch.chdir(tmp_path)

    def make(output_format: str) -> dict[str, bytes]:
        media = tmp_path / "media"
        media.mkdir()
        for n in range(8):
            (media / f"{n}.png").write_bytes(picture(n, "PNG"))
        with serve(media, {"1.png": ["503", "ok"], "4.png": ["404"]}) as server:
            urls = [server.url(f"{n}.png") for n in range(8)]
            options = {"number_sample_per_shard": 2, "distributor": "inline", "quiet": True}
            wanted = {"output_folder": "dataset", "output_format": output_format, **options}
            download(urls[:5], **wanted)
            retry("dataset", quiet=True, distributor="inline")
            for lost in Path("dataset").glob("00001*"):
                shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
            download(urls[:5], **wanted)
            download(urls[5:], incremental_mode="extend", **wanted)
        kept = {"000000": 0, "000010": 2, "000011": 3, "000001": 1, "000040": 5, "000041": 6, "000050": 7}
        return {key: picture(n, "PNG") for key, n in kept.items()}

    return make


@pytest.fixture
def pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> Callable[[str], list[tuple[bytes, bytes]]]:
    """`pairs("tfrecord")` makes `dataset/` of four samples with an image and a mask, and gives the files of each."""
    monkeypatch.chdir(tmp_path)
    images = _media()["images"]
    names = [(f"{n:02d}.jpg", f"{n + 4:02d}.png") for n in (0, 5, 10, 15)]

    def make(output_format: str) -> list[tuple[bytes, bytes]]:
        rows = [{"image_url": server.url(image), "mask_url": server.url(mask)} for image, mask in names]
        options = {"url_col": "image:image_url,mask:mask_url", "output_format": output_format, "quiet": True}
        assert download(rows, "dataset", distributor="inline", **options).successes == 4
        return [(images[image], images[mask]) for image, mask in names]

    return make
