"""Random samples of datasets of every format, made small enough to be looked at."""

import dataclasses
import io
import pickle
import subprocess
import sys
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from any2ds import download
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.pictures import View
from any2ds.describe.preview import PreviewPool, as_it_is, beginning_of
from any2ds.describe.thumbnails import Thumbnail, thumbnails
from any2ds.testing.server import Server, serve
from tests.support.assortment import EVIL, assortment, write
from tests.support.pictures import encoded, photograph


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("web") / "media"
    write(folder)
    with serve(folder) as running:
        yield running


TEXTS = ["note.txt", "page.html", "facts.json", "numbers.bin"] * 5


def made(server: Server, folder: Any, names: Iterable[str] = tuple(assortment()), **options: Any) -> Any:
    rows = [{"url": server.url(name), "caption": f"{name} {EVIL}"} for name in names]
    defaults = {"output_format": "webdataset", "distributor": "inline", "decode_check": True, "caption_col": "caption"}
    download(rows, output_folder=folder, quiet=True, report=False, **{**defaults, **options})
    return folder


def by_name(found: list[Thumbnail]) -> dict[str, Thumbnail]:
    return {one.caption.split()[0]: one for one in found}


@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet", "tfrecord", "arrayrecord"])
def test_samples_of_every_format_are_shown(server: Server, tmp_path: Path, output_format: str) -> None:
    out = made(server, tmp_path / "out", output_format=output_format, number_sample_per_shard=7)
    found = by_name(thumbnails(ShardSample.of(str(out))))
    assert found.keys() == assortment().keys() - {"broken.jpg"}
    for name, size in {"photo0.jpg": (256, 192), "turned.mp4": (120, 160), "film.mp4": (160, 120)}.items():
        picture = found[name].view.picture
        assert picture is not None
        assert (picture.mime_type, picture.width, picture.height) == ("image/jpeg", *size)
        assert Image.open(io.BytesIO(picture.data)).size == size
    assert found["photo0.jpg"].view.facts == "640 x 480"
    assert found["film.mp4"].view.facts == "160 x 120, 2.0 s"
    assert found["tone.wav"].view.facts == "1.5 s, 44,100 Hz, 1 ch"
    picture = found["tone.wav"].view.picture
    assert picture is not None
    assert picture.mime_type == "image/svg+xml"
    with wave.open(io.BytesIO(found["tone.wav"].view.sound)) as heard:
        assert heard.getnframes() / heard.getframerate() == pytest.approx(1.5, abs=0.01)
    assert found["page.html"].view.text == "Moss grows & rests"
    assert found["note.txt"].view.text == "Moss grows slowly,\nand rests in winter. [31m<b>bold</b>"
    drawing = found["icon.svg"].view.picture
    assert drawing is not None
    assert (drawing.mime_type, drawing.data) == ("image/svg+xml", assortment()["icon.svg"])
    assert found["entities.svg"].view.picture is None  # it could unfold into gigabytes
    assert found["numbers.bin"].view == View("other")
    assert found["numbers.bin"].size == 10
    assert {one.caption.partition(" ")[2] for one in found.values()} == {
        "<script>alert(1)</script>\"'&amp; gnp.[31m"  # text, but for what a terminal or a reader's eye would obey
    }


def test_the_same_samples_for_the_same_seed(server: Server, tmp_path: Path) -> None:
    sample = ShardSample.of(str(made(server, tmp_path / "out", TEXTS, number_sample_per_shard=3)))
    keys = [[one.key for one in thumbnails(sample, 5, seed)] for seed in (1, 1, 2, 3)]
    assert all(len(some) == 5 and some == sorted(some) for some in keys)
    assert keys[0] == keys[1]
    assert keys[1] != keys[2] or keys[1] != keys[3]


def test_shards_of_others_and_damaged_ones(server: Server, tmp_path: Path) -> None:
    out = made(server, tmp_path / "out", number_sample_per_shard=7)
    for index in out.glob("*.idx"):  # as other tools leave theirs
        index.unlink()
    (out / "00001.tar").write_bytes(b"nothing")
    found = by_name(thumbnails(ShardSample.of(str(out))))
    assert found.keys() == set(list(assortment())[:7]) | set(list(assortment())[14:]) - {"broken.jpg"}
    assert found["photo0.jpg"].view.picture is not None


def test_an_end_to_time(server: Server, tmp_path: Path) -> None:
    assert thumbnails(ShardSample.of(str(made(server, tmp_path / "out", TEXTS))), seconds=0) == []


def test_the_process_that_decodes_starts_without_the_libraries_for_tables() -> None:
    program = (
        "import sys, any2ds.describe.pictures, any2ds.transforms.image.work\n"
        "print(*{'pyarrow', 'fsspec', 'jinja2'} & sys.modules.keys())"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.split() == []


def test_a_bomb_is_not_decoded() -> None:
    bomb = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(bomb, "PNG")
    with PreviewPool() as previews:
        assert previews.view(bomb.getvalue(), "image/png", "png") == View("image", facts="9000 x 9000")
        assert as_it_is(bomb.getvalue()) is None


def test_without_the_libraries_small_safe_images_are_shown_as_they_are() -> None:
    program = (
        "import sys, pickle\n"
        "sys.modules.update(dict.fromkeys(('cv2', 'PIL', 'av', 'numpy')))\n"
        "from any2ds.describe.preview import PreviewPool\n"
        "names, files = pickle.load(sys.stdin.buffer)\n"
        "with PreviewPool() as previews:\n"
        "    views = [previews.view(file, *name) for name, file in zip(names, files)]\n"
        "sys.stdout.buffer.write(pickle.dumps(views))\n"
    )
    files = [encoded(photograph(60, 40)), encoded(photograph(600, 400)), assortment()["tone.wav"], b"words"]
    names = [("image/png", "png"), ("image/png", "png"), ("audio/x-wav", "wav"), ("text/plain", "data.txt")]
    child = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps((names, files)), capture_output=True, check=True
    )
    small, large, sound, text = pickle.loads(child.stdout)
    assert small.picture.data == files[0]
    assert (small.picture.width, small.picture.mime_type) == (60, "image/png")
    assert large.picture is None
    assert sound == View("audio")
    assert text.text == "words"


def test_words_of_any_encoding() -> None:
    assert beginning_of("\ufeffgr\u00fcn".encode("utf-16"), "text/plain", "txt") == "gr\u00fcn"
    assert beginning_of(b"\xff\x00 a", "text/plain", "txt") == "\ufffd a"
    assert len(beginning_of(b"word " * 100_000, "text/plain", "txt")) == 400


def test_of_many_shards_some_are_sampled(server: Server, tmp_path: Path) -> None:
    out = made(server, tmp_path / "out", TEXTS, number_sample_per_shard=2)
    some = ShardSample.of(str(out), most=4)
    assert (some.shards, len(some.dataset.finished)) == (10, 4)
    assert some.totals is not None
    assert (some.totals.rows, some.totals.samples) == (20, 20)
    assert some == dataclasses.replace(ShardSample.of(str(out), most=4), dataset=some.dataset)
    (out / ".any2ds/shards").unlink()
    listed = ShardSample.of(str(out), most=4)
    assert (listed.shards, len(listed.dataset.finished), listed.totals) == (10, 4, None)
    assert len({one.key[:5] for one in thumbnails(listed)}) == 4
