"""Every command in dataset_examples/ is parsed as it stands, and runs over a small list of the same form; so does the
Python of its page."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from any2ds import download
from any2ds.cli import parse
from any2ds.config.commands import COMMANDS
from any2ds.config.options import Config
from any2ds.testing.processes import LONG
from any2ds.testing.server import Server, serve
from tests.support.fuzz.seeds import pdf

EXAMPLES = Path(__file__).parents[2] / "dataset_examples"
PAGES = sorted(path.stem for path in EXAMPLES.glob("*.md") if path.stem != "README")


def commands(page: str) -> list[list[str]]:
    """The arguments of each any2ds on a page."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("any2ds ")]


def blocks(page: str, language: str) -> list[str]:
    text = (EXAMPLES / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for name, content in found if name == language]


def write_configs(page: str, folder: Path) -> None:
    """The files that the page shows, whose first line is their name."""
    for content in blocks(page, "yaml"):
        assert yaml.safe_load(content)
        (folder / content.splitlines()[0].removeprefix("# ")).write_text(content, encoding="utf-8")


ALL = [(page, number) for page in PAGES for number in range(len(commands(page)))]


def test_there_is_a_page_for_each_kind_of_list() -> None:
    kinds = {"freesound", "cc3m-cc12m", "laion400m", "coyo-700m", "datacomp", "webvid", "pdf", "mixed"}
    assert set(PAGES) == kinds == set(LISTS)
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"({page}.md)" in index
        text = (EXAMPLES / f"{page}.md").read_text(encoding="utf-8")
        assert re.match(r"# .+\n\n```bash\nany2ds ", text)
        for section in ("What it needs", "What you get", "Sizes and rates"):
            assert f"\n## {section}\n" in text
        assert commands(page)


@pytest.mark.parametrize(("page", "number"), ALL)
def test_every_command_is_parsed_as_it_stands(
    page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_configs(page, tmp_path)
    config = Config.from_options(parse(commands(page)[number], COMMANDS["download"]))
    assert config.input.url_list
    assert config.output.output_format == "webdataset"


# --- media, as small as they can be ---


def jpeg(width: int = 640, height: int = 480) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((width, height), 60).convert("RGB").save(stream, "JPEG")
    return stream.getvalue()


def wav(seconds: float = 0.2, rate: int = 44100) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.sin(np.arange(int(seconds * rate)) / 20) * 9000).astype("<i2").repeat(2).tobytes())
    return stream.getvalue()


def mp4(frames: int = 25) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        video = container.add_stream("mpeg4", rate=25)
        video.width, video.height, video.pix_fmt = 320, 288, "yuv420p"
        for n in range(frames):
            picture = np.full((288, 320, 3), n * 10 % 256, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
    return stream.getvalue()


def page_of(words: str) -> bytes:
    paragraphs = "".join(f"<p>{words} Sentence number {n} is long enough to count as text.</p>" for n in range(8))
    return f"<html><head><title>T</title></head><body><main>{paragraphs}</main></body></html>".encode()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("inside/one.jpg", jpeg(300, 200))
        file.writestr("two.wav", wav())
    return stream.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    media: Mapping[str, bytes] = {
        "a.jpg": jpeg(),
        "b.jpg": jpeg(700, 900),
        "c.wav": wav(),
        "d.mp4": mp4(),
        "e.pdf": pdf(("Plain words on a page",)),
        "f.html": page_of("Some words of the main text."),
        "g.zip": archive(),
        "h.bin": b"\x00\x01 nobody knows",
    }
    for name, content in media.items():
        (folder / name).write_bytes(content)
    with serve(folder) as running:
        yield running


# --- the lists, as the pages name them ---


def _parquet(folder: Path, server: Server, url: str, text: str, **columns: Any) -> None:
    """A folder of two files, a row in each."""
    folder.mkdir(parents=True)
    for n, name in enumerate(("a.jpg", "b.jpg")):
        table = {url: [server.url(name)], text: [f"text {n}"], **{column: [value] for column, value in columns.items()}}
        pq.write_table(pa.table(table), folder / f"part-{n:05d}.parquet")


def _csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def _cc(folder: Path, server: Server) -> None:
    rows = [(f"a picture, {n}", server.url(n)) for n in ("a.jpg", "b.jpg")]
    (folder / "Train_GCC-training.tsv").write_text("".join(f"{caption}\t{url}\n" for caption, url in rows))
    (folder / "cc12m.tsv").write_text("".join(f"{url}\t{caption}\n" for caption, url in rows))
    for block in blocks("cc3m-cc12m", "bash"):
        if block.startswith("printf"):
            subprocess.run(["bash", "-ec", block], cwd=folder, check=True, timeout=LONG)


def _laion(folder: Path, server: Server) -> None:
    more = {"NSFW": "UNLIKELY", "similarity": 0.31, "LICENSE": "?", "WIDTH": 640}
    _parquet(folder / "laion400m-meta", server, "URL", "TEXT", **more)


def _coyo(folder: Path, server: Server) -> None:
    names = ["clip_similarity_vitb32", "clip_similarity_vitl14", "nsfw_score_opennsfw2", "nsfw_score_gantman"]
    more = dict.fromkeys([*names, "watermark_score", "aesthetic_score_laion_v2"], 0.5)
    _parquet(folder / "coyo-700m", server, "url", "text", width=640, height=480, **more)


def _datacomp(folder: Path, server: Server) -> None:
    boxes = {"face_bboxes": [[0.25, 0.25, 0.5, 0.5]], "uid": "0f3a"}
    _parquet(folder / "metadata" / "small", server, "url", "text", **boxes)


def _freesound(folder: Path, server: Server) -> None:
    row = {"id": 632625, "url": server.url("c.wav"), "text": "a tone", "license": "CC0"}
    _csv(folder / "freesound.csv", [row])


def _webvid(folder: Path, server: Server) -> None:
    row = {"videoid": 21, "contentUrl": server.url("d.mp4"), "duration": "PT00H00M01S", "page_dir": "x", "name": "grey"}
    _csv(folder / "results_10M_train.csv", [row])


def _pdf(folder: Path, server: Server) -> None:
    rows = [{"url": server.url(name), "title": f"of {name}", "licence": "CC BY"} for name in ("e.pdf", "f.html")]
    _csv(folder / "documents.csv", rows)


def _mixed(folder: Path, server: Server) -> None:
    names = sorted(path.name for path in server.folder.iterdir())
    rows = [{"url": server.url(name), "text": name} for name in names]
    (folder / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


LISTS: Mapping[str, Callable[[Path, Server], None]] = {
    "cc3m-cc12m": _cc,
    "laion400m": _laion,
    "coyo-700m": _coyo,
    "datacomp": _datacomp,
    "freesound": _freesound,
    "webvid": _webvid,
    "pdf": _pdf,
    "mixed": _mixed,
}


Ran = Callable[[str, int], list[dict[str, Any]]]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Ran:
    """`ran("pdf", 0)` runs the first command of that page, and gives the rows of its metadata with the `members` of
    each sample."""

    def run(page: str, number: int) -> list[dict[str, Any]]:
        monkeypatch.chdir(tmp_path)
        write_configs(page, tmp_path)
        LISTS[page](tmp_path, server)
        given = parse(commands(page)[number], COMMANDS["download"])
        report = download(**{**given, "distributor": "inline", "quiet": True})
        assert report.successes == report.count > 0, report.status_dict
        members: dict[str, dict[str, bytes]] = {}
        for shard in sorted(Path(given["output_folder"]).glob("*.tar")):
            with tarfile.open(shard) as tar:
                for member in tar:
                    key, _, ext = member.name.partition(".")
                    members.setdefault(key, {})[ext] = tar.extractfile(member).read()  # type: ignore[union-attr]
        rows = pq.read_table(sorted(Path(given["output_folder"]).glob("*.parquet"))).to_pylist()
        return [{**row, "members": members[row["key"]]} for row in rows]

    return run


def _is_image(row: dict[str, Any], shorter: int = 256) -> None:
    image = Image.open(io.BytesIO(row["members"]["jpg"]))
    assert image.size == (row["width"], row["height"])
    assert min(image.size) == shorter
    assert (row["original_width"], row["original_height"]) in ((640, 480), (700, 900))


def _is_cc(row: dict[str, Any]) -> None:
    _is_image(row)
    assert row["caption"].startswith("a picture, ")


def _is_laion(row: dict[str, Any]) -> None:
    _is_image(row)
    assert (row["NSFW"], row["similarity"], row["LICENSE"]) == ("UNLIKELY", 0.31, "?")


def _is_coyo(row: dict[str, Any]) -> None:
    _is_image(row, 384)
    assert row["aesthetic_score_laion_v2"] == row["watermark_score"] == 0.5


def _is_datacomp(row: dict[str, Any]) -> None:
    _is_image(row, 384 if row["original_width"] == 640 else 398)  # the longer one is 512
    assert row["uid"] == "0f3a"
    assert row["face_bboxes"] == [[0.25, 0.25, 0.5, 0.5]]
    assert len(row["key"]) == 12


def _is_freesound(row: dict[str, Any]) -> None:
    assert row["members"]["flac"].startswith(b"fLaC")
    assert (row["sample_rate"], row["channels"], row["codec"]) == (48000, 1, "flac")
    assert (row["id"], row["license"]) == (632625, "CC0")


def _is_webvid(row: dict[str, Any]) -> None:
    assert (row["original_width"], row["original_height"]) == (320, 288)
    assert min(row["width"], row["height"]) == 256
    if row["ext"] == "jpg":
        assert Image.open(io.BytesIO(row["members"]["jpg"])).size == (row["width"], row["height"])
        assert 0 <= row["frame_time"] < 1
    else:
        with av.open(io.BytesIO(row["members"]["mp4"])) as video:
            assert (video.streams.video[0].width, video.streams.video[0].height) == (row["width"], row["height"])


def _is_document(row: dict[str, Any]) -> None:
    assert row["ext"] in ("pdf", "html")
    words = row["members"]["text.txt"].decode()
    assert ("Plain words on a page" if row["ext"] == "pdf" else "Some words of the main text.") in words
    assert row["licence"] == "CC BY"


def _is_of_a_mixture(row: dict[str, Any]) -> None:
    name, ext = row["caption"], row["ext"]
    wanted = {"a.jpg": "jpg", "b.jpg": "jpg", "c.wav": "flac", "d.mp4": "mp4", "e.pdf": "pdf", "f.html": "html"}
    if name == "g.zip":
        assert (row["path"], ext) in (("inside/one.jpg", "jpg"), ("two.wav", "flac"))
    else:
        assert ext == wanted.get(name, "flat")
        assert row["path"] is None
    assert ("text.txt" in row["members"]) == (ext in ("pdf", "html"))
    assert (row["sample_rate"] == 16000) == (ext == "flac")


EXPECTED: Mapping[str, tuple[Callable[[dict[str, Any]], None], int]] = {
    "cc3m-cc12m": (_is_cc, 2),
    "laion400m": (_is_laion, 2),
    "coyo-700m": (_is_coyo, 2),
    "datacomp": (_is_datacomp, 2),
    "freesound": (_is_freesound, 1),
    "webvid": (_is_webvid, 1),
    "pdf": (_is_document, 2),
    "mixed": (_is_of_a_mixture, 9),
}
"""Page -> what a sample of it is like, and how many there are of the small list."""


@pytest.mark.parametrize(("page", "number"), ALL)
def test_every_command_makes_what_its_page_says(page: str, number: int, ran: Ran, tmp_path: Path) -> None:
    check, samples = EXPECTED[page]
    is_of_img2dataset = "--preset=img2dataset" in commands(page)[number]
    rows = ran(page, number)
    assert len(rows) == (8 if "--frames=8" in commands(page)[number] else samples)
    for row in rows:
        if is_of_img2dataset:  # whose metadata do not say it
            assert "ext" not in row
            row["ext"] = "jpg"
        assert row["members"][row["ext"]]
        assert row["caption"] == row["members"]["txt"].decode()
        assert json.loads(row["members"]["json"])["key"] == row["key"]
        if is_of_img2dataset and page in ("cc3m-cc12m", "laion400m"):
            assert (row["width"], row["height"]) == (256, 256)
            assert Image.open(io.BytesIO(row["members"]["jpg"])).size == (256, 256)
        check(row)
    if number == 0:
        for block in blocks(page, "python"):
            found = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, stderr=subprocess.PIPE, timeout=LONG)
            assert found.returncode == 0, found.stderr.decode()


def test_the_index_begins_with_a_trial(tmp_path: Path, server: Server) -> None:
    _cc(tmp_path, server)
    (block,) = blocks("README", "bash")
    for line in block.splitlines():
        words = [sys.executable, "-m", "any2ds", *shlex.split(line)[1:]]
        ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
        assert ran.returncode == 0, ran.stderr
    assert "2 stored (100.0%)" in ran.stdout
