"""Options of `download` have their effect on a build of rows with URLs, or are refused."""

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds.config.declare import declared
from any2ds.config.options import InputOptions, ShareOptions
from any2ds.core.errors import OptionError
from any2ds.testing.server import Server, serve
from tests.support.pictures import encoded, jpeg, photograph
from tests.support.recordings import film, tone

OF_THE_RECIPE: dict[str, Any] = {info.name: 1 for info in declared((InputOptions, ShareOptions))} | {
    "output_folder": "out",
    "preset": "img2dataset",
    "incremental_mode": "extend",
    "data_column": "image",
    "referer_col": "page",
}


class Listed(any2ds.Recipe):
    """Files at URLs, with a number, boxes and clips."""

    rows: ClassVar[list[dict[str, Any]]] = []

    def info(self) -> any2ds.Info:
        boxes = any2ds.Sequence(any2ds.Sequence("float32"))
        return any2ds.Info({"file": any2ds.Bytes(), "n": int, "boxes": boxes, "clips": any2ds.Text()})

    def splits(self, dl: Any) -> Any:
        return any2ds.UrlRows(self.rows)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    picture = photograph(64, 48)
    camera = Image.Exif()
    camera[0x010F] = "Camera"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.bin", bytes(100_000))
        file.writestr("text.txt", "text")
    frames = [Image.new("L", (16, 16), 60 * n) for n in range(3)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:], duration=100)
    contents = {
        "picture.jpg": encoded(picture, "JPEG", quality=90, exif=camera.tobytes()),
        "wide.png": encoded(photograph(80, 16)),
        "broken.jpg": jpeg(picture)[:600],
        "page.html": b"<html><body><h1>Moss</h1>grows slowly, and rests in winter</body></html>",
        "packed.zip": packed.getvalue(),
        "tone.wav": tone(seconds=0.5),
        "film.mp4": film(seconds=0.5),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media) as running:
        yield running


class Builds:
    """Builds of rows with URLs in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self.out = folder

    def __call__(self, *urls: str | Mapping[str, Any], **options: Any) -> list[tuple[dict[str, Any], bytes]]:
        """The metadata of each sample, and its file, in the order of the rows."""
        rows = [{"url": url} if isinstance(url, str) else dict(url) for url in urls]
        Listed.rows = [{"n": n, "boxes": [], "clips": "", **row} for n, row in enumerate(rows)]
        self._made += 1
        data_dir = self._folder / f"data{self._made}"
        self.out = data_dir / "listed/1.0.0"
        given = {"data_dir": str(data_dir), "output_format": "files", "distributor": "inline", "quiet": True}
        any2ds.build(Listed, **{**given, "report": False, **options})
        found = [row for path in sorted(self.out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        stored = {path.name.partition(".")[0]: path for path in self.out.glob("*/*.*") if path.suffix != ".json"}
        own = {row["key"]: stored[row["key"]].read_bytes() if row["key"] in stored else b"" for row in found}
        return [(row, own[row["key"]]) for row in sorted(found, key=lambda row: (row["n"], row["key"]))]


@pytest.fixture
def built(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


@pytest.mark.parametrize("name", OF_THE_RECIPE)
def test_what_a_recipe_says_is_no_option(name: str, built: Builds) -> None:
    with pytest.raises(OptionError, match=f"{name}.* (cannot be given|has no effect)|unknown option '{name}'"):
        built("http://127.0.0.1:1/", **{name: OF_THE_RECIPE[name]})
    assert not built.out.exists()


# What an option changes, beside others that it needs.
FILES: list[tuple[str, Any, dict[str, Any], str]] = [
    ("file_size", 16, {}, "picture.jpg"),
    ("decode_check", True, {}, "broken.jpg"),
    ("unpack", True, {}, "packed.zip"),
    ("unpack_max_bytes", 1000, {"unpack": True}, "packed.zip"),
    ("extract_text", True, {}, "page.html"),
    ("resize_mode", "center_crop", {"file_size": 16}, "picture.jpg"),
    ("resize_only_if_bigger", False, {"file_size": 96}, "picture.jpg"),
    ("upscale_interpolation", "nearest", {"file_size": 96, "resize_only_if_bigger": False}, "picture.jpg"),
    ("downscale_interpolation", "nearest", {"file_size": 16}, "picture.jpg"),
    ("encode_format", "png", {}, "picture.jpg"),
    ("encode_quality", 20, {"file_size": 16}, "picture.jpg"),
    ("skip_reencode", False, {}, "picture.jpg"),
    ("only_images", True, {}, "page.html"),
    ("min_image_size", 60, {}, "picture.jpg"),
    ("max_image_area", 100, {"file_size": 16}, "picture.jpg"),
    ("max_aspect_ratio", 3, {}, "wide.png"),
    ("extract_exif", True, {}, "picture.jpg"),
    ("bbox_col", "boxes", {}, "picture.jpg"),
    ("animated", "first", {}, "moving.gif"),
    ("compute_hash", "sha256", {}, "picture.jpg"),
    ("file_ext", "bin", {}, "picture.jpg"),
    ("audio_rate", 4000, {}, "tone.wav"),
    ("audio_channels", 1, {}, "tone.wav"),
    ("audio_format", "flac", {}, "tone.wav"),
    ("min_duration", 3, {}, "tone.wav"),
    ("max_duration", 0.1, {}, "tone.wav"),
    ("audio_trim", 0.2, {}, "tone.wav"),
    ("clip_seconds", 0.25, {}, "tone.wav"),
    ("clips_col", "clips", {}, "tone.wav"),
    ("video_size", 32, {}, "film.mp4"),
    ("video_fps", 5, {}, "film.mp4"),
    ("video_format", "mkv", {}, "film.mp4"),
    ("frames", 2, {}, "film.mp4"),
    ("frame_interval", 0.2, {}, "film.mp4"),
    ("video_audio", "drop", {}, "film.mp4"),
]


def test_what_becomes_of_files(built: Builds, server: Server) -> None:
    without_effect, without = [], dict[str, Any]()
    for name, value, rest, file in FILES:
        row = {"url": server.url(file), "boxes": [[0.1, 0.1, 0.9, 0.9]], "clips": "[[0.1, 0.3]]"}
        if (plain := f"{file} {rest}") not in without:
            without[plain] = built(row, **rest)
        if built(row, **{**rest, name: value}) == without[plain]:
            without_effect.append(name)
    assert not without_effect


def test_how_urls_are_fetched(built: Builds, media: Path) -> None:
    answers = {
        "again.jpg": ["503", "redirect:picture.jpg"],
        "big.jpg": ["big:200000"],
        "excluded.jpg": ["ok:X-Robots-Tag=noai"],
        "late.jpg": ["flow:3"],
    }
    for name in ("excluded.jpg", "late.jpg"):
        (media / name).write_bytes((media / "picture.jpg").read_bytes())
    options: dict[str, Any] = {
        "retries": 0,
        "max_file_bytes": 100_000,
        "disallowed_header_directives": None,
        "total_timeout": 1.5,
        "user_agent": "mine/1",
        "headers": "X-Mine: yes, Cookie: mine=1",
    }
    codes = []
    for more in ({}, options):
        with serve(media, answers) as server:
            found = built(*map(server.url, answers), **{"retries": 1, "timeout": 5, **more})
            codes.append([row["error_code"] or row["status"] for row, _ in found])
            headers = server.requests[-1].headers
    assert codes == [
        ["success", "success", "opted_out", "success"],
        ["http_503", "too_large", "success", "timeout_total"],
    ]
    assert [headers.get(name) for name in ("User-Agent", "X-Mine", "Cookie")] == ["mine/1", "yes", "mine=1"]


def test_processes_share_the_work_and_steps_of_the_user_change_it(
    built: Builds, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text(
        "import os\ndef process(sample):\n    return sample.with_data(str(os.getpid()).encode(), 'txt')\n"
    )
    urls = [f"{server.url('picture.jpg')}?{n}" for n in range(4)]
    options: dict[str, Any] = {"transform": f"{tmp_path}/steps.py:process", "number_sample_per_shard": 1}
    own = str(os.getpid()).encode()
    assert {pid for _, pid in built(*urls, distributor="inline", **options)} == {own}
    others = {pid for _, pid in built(*urls, distributor="multiprocessing", processes_count=2, **options)}
    assert own not in others


def test_what_is_said(
    built: Builds,
    server: Server,
    with_report: None,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = server.url("picture.jpg")
    built(url)
    assert capfd.readouterr().err == ""
    assert not (built.out / "report.html").exists()
    assert "samples" not in caplog.text
    built(url, quiet=False, report=True, reporters="jsonl", log_level="info")
    assert "1 row" in capfd.readouterr().err
    assert (built.out / "report.html").exists()
    assert "listed:1.0.0: train: 1 samples" in caplog.text
    assert list((built.out / ".any2ds/progress").iterdir())
