"""`--preset=img2dataset` writes what readers of its datasets look for: names, columns, figures, images as there.

What img2dataset writes was taken down from runs of its version 1.47; tests/reading/with_img2dataset compares with it
itself.
"""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from any2ds import download, load, retry, verify
from any2ds.cli import parse
from any2ds.config.commands import COMMANDS
from any2ds.testing.server import Server, serve
from tests.support.folder import files_in, names_in
from tests.support.records import examples

# webdataset leaves closing to the garbage collector.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*\.tar:ResourceWarning")

# Of a run with a caption and one additional column of whole numbers.
COLUMNS = {
    "n": pa.int64(),
    "caption": pa.string(),
    "url": pa.string(),
    "key": pa.string(),
    "status": pa.string(),
    "error_message": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "original_width": pa.int32(),
    "original_height": pa.int32(),
    "exif": pa.string(),
    "sha256": pa.string(),
}
FIGURES = {
    "count": int,
    "successes": int,
    "failed_to_download": int,
    "failed_to_resize": int,
    "duration": float,
    "start_time": float,
    "end_time": float,
    "status_dict": dict,
}
ROWS = ("photo.jpg", "alpha.png", "broken.jpg", "gone.jpg", "grey.webp", "page.html", "drawing.svg")
STORED = ("photo.jpg", "alpha.png", "grey.webp")


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def photo() -> bytes:
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif.get_ifd(0x8769).update({0x829A: 1 / 125, 0xA003: 300})
    exif.get_ifd(0x8825).update({1: "N"})
    return encoded(Image.effect_noise((400, 300), 50).convert("RGB"), "JPEG", exif=exif)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("served")
    media = {
        "photo.jpg": photo(),
        "alpha.png": encoded(Image.new("RGBA", (100, 50), (10, 20, 30, 100)), "PNG"),
        "gone.jpg": photo(),
        "broken.jpg": b"\xff\xd8\xff\xe0 and then nothing",
        "grey.webp": encoded(Image.new("L", (300, 300), 77), "WEBP"),
        "page.html": b"<html><body>Not found, but with 200</body></html>",
        "drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><circle r="4"/></svg>',
    }
    for name, content in media.items():
        (found / name).write_bytes(content)
    return found


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serve(folder, {"gone.jpg": ["404", "ok"]}) as running:
        yield running


Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> Run:
    """`run("webdataset", "--image_size=64")` runs a command line over the list in tmp_path."""
    monkeypatch.chdir(tmp_path)
    with open("list.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["url", "text", "n"])
        writer.writerows([server.url(name), f"größe of {name}", n] for n, name in enumerate(ROWS))

    def download_it(output_format: str, *more: str) -> Any:
        line = ["--url_list", "list.csv", "--input_format", "csv", "--caption_col", "text", "--output_folder", "out"]
        columns = ["--save_additional_columns", '["n"]', "--number_sample_per_shard", "1000"]
        given = ["--preset=img2dataset", *line, *columns, "--output_format", output_format, *more]
        options = parse(given, COMMANDS["download"])
        return download(**{**options, "distributor": "inline", "quiet": True})

    return download_it


def size_of(content: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(content)).size


def key(name: str) -> str:
    return f"00000{ROWS.index(name):03d}"


@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet"])
def test_names_columns_and_figures_are_there(output_format: str, run: Run) -> None:
    report = run(output_format)
    assert (report.successes, report.failed_to_download, report.failed_to_subsample) == (3, 1, 3)
    table = pq.read_table("out/00000.parquet")
    assert {name: table.schema.field(name).type for name in COLUMNS} == COLUMNS
    stats = json.loads(Path("out/00000_stats.json").read_text())
    assert {name: type(stats[name]) for name in FIGURES} == FIGURES
    figures = (stats["count"], stats["successes"], stats["failed_to_download"], stats["failed_to_resize"])
    assert figures == (7, 3, 1, 3)
    assert stats["status_dict"]["success"] == 3
    rows = {row["key"]: row for row in table.to_pylist()}
    for name in ROWS:
        row = rows[key(name)]
        assert (row["status"] == "success") == (row["error_message"] is None) == (name in STORED)
        assert (row["width"], row["height"]) == ((256, 256) if name in STORED else (None, None))
    assert (rows[key("photo.jpg")]["original_width"], rows[key("photo.jpg")]["original_height"]) == (400, 300)
    exif = json.loads(rows[key("photo.jpg")]["exif"])
    assert (exif["Make"], exif["ExposureTime"]) == ("Maker", pytest.approx(0.008))
    assert verify("out").ok
    if output_format == "parquet":
        assert table.schema.field("jpg").type == pa.binary()
        assert "data" not in table.schema.names
        images = {row["key"]: row["jpg"] for row in rows.values() if row["jpg"] is not None}
    else:
        images, texts, reported = members(output_format)
        assert texts == {key(name): f"größe of {name}" for name in STORED}
        assert all(set(COLUMNS) <= set(each) for each in reported.values())
    assert set(images) == {key(name) for name in STORED}
    for content in images.values():
        image = Image.open(io.BytesIO(content))
        assert (image.format, image.size) == ("JPEG", (256, 256))


def members(output_format: str) -> tuple[dict[str, bytes], dict[str, str], dict[str, Any]]:
    """By key: images, captions, metadata."""
    if output_format == "files":
        found = {path.name: path.read_bytes() for path in Path("out/00000").iterdir()}
    else:
        with tarfile.open("out/00000.tar") as tar:
            found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    images = {name[:-4]: content for name, content in found.items() if name.endswith(".jpg")}
    texts = {name[:-4]: content.decode() for name, content in found.items() if name.endswith(".txt")}
    reported = {name[:-5]: json.loads(content) for name, content in found.items() if name.endswith(".json")}
    assert len(found) == len(images) + len(texts) + len(reported)
    return images, texts, reported


def test_a_loader_for_clip_reads_it(run: Run) -> None:
    import webdataset

    run("webdataset")
    samples = webdataset.WebDataset(["out/00000.tar"], shardshuffle=False, empty_check=False)
    wanted = samples.select(lambda sample: "txt" in sample and {"png", "jpg", "jpeg", "webp"} & set(sample))
    found = list(wanted.decode("pilrgb").rename(image="jpg;png;jpeg;webp", text="txt").to_tuple("image", "text"))
    assert [(image.size, text) for image, text in found] == [((256, 256), f"größe of {name}") for name in STORED]


def test_a_dataset_without_captions_has_no_txt(run: Run) -> None:
    run("files", "--caption_col=None")
    assert {path.suffix for path in Path("out/00000").iterdir()} == {".jpg", ".json"}


def test_disable_all_reencoding_stores_whatever_comes_under_its_names(run: Run, folder: Path) -> None:
    report = run("webdataset", "--disable_all_reencoding=True", "--image_size=512", "--resize_mode=center_crop")
    assert report.successes == 6
    images, _, reported = members("webdataset")
    assert {name: images[key(name)] for name in ROWS if name != "gone.jpg"} == {
        name: (folder / name).read_bytes() for name in ROWS if name != "gone.jpg"
    }
    table = pq.read_table("out/00000.parquet")
    assert {name: table.schema.field(name).type for name in COLUMNS} == COLUMNS
    assert reported[key("photo.jpg")]["width"] is None
    assert verify("out").ok


def test_skip_reencode_keeps_a_jpeg_that_need_not_be_resized_and_no_png(run: Run, folder: Path) -> None:
    run("files", "--resize_only_if_bigger=True", "--image_size=512", "--skip_reencode=True")
    images, _, reported = members("files")
    assert images[key("photo.jpg")] == (folder / "photo.jpg").read_bytes()
    assert Image.open(io.BytesIO(images[key("alpha.png")])).format == "JPEG"
    assert (reported[key("alpha.png")]["width"], reported[key("alpha.png")]["height"]) == (100, 50)


def test_the_same_command_goes_on_and_retry_keeps_the_column(run: Run) -> None:
    run("parquet")
    before = files_in(Path("out"))
    assert run("parquet").skipped_shards == 1
    assert retry("out", codes=["http_404"], distributor="inline", quiet=True).successes == 1
    after = files_in(Path("out"))
    assert {name: after[name] for name in before if name[0] == "0"} == {
        name: content for name, content in before.items() if name[0] == "0"
    }
    (gone,) = pq.read_table("out/00001.parquet").to_pylist()
    assert (gone["key"], size_of(gone["jpg"])) == (key("gone.jpg"), (256, 256))
    assert pq.read_schema("out/00001.parquet").names == pq.read_schema("out/00000.parquet").names
    stats = json.loads(Path("out/00001_stats.json").read_text())
    assert (stats["successes"], stats["failed_to_resize"], stats["replaces"]) == (1, 0, {"http_404": 1})
    assert verify("out").ok


def test_the_column_of_the_files_may_be_one_that_hugging_face_decodes(run: Run) -> None:
    run("parquet", "--parquet_data=image", "--encode_format=png", "--encode_quality=9")
    schema = pq.read_schema("out/00000.parquet")
    assert schema.field("png").type.field("bytes").type == pa.binary()
    assert json.loads(schema.metadata[b"huggingface"])["info"]["features"] == {"png": {"_type": "Image"}}
    rows = pq.read_table("out/00000.parquet").to_pylist()
    assert {row["png"]["path"] for row in rows if row["png"]} == {f"{key(name)}.png" for name in STORED}
    assert verify("out").ok


def test_each_file_of_a_list_begins_a_new_shard(tmp_path: Path) -> None:
    lists, out = tmp_path / "lists", tmp_path / "out"
    lists.mkdir()
    options: dict[str, Any] = {"preset": "img2dataset", "output_folder": out, "distributor": "inline", "quiet": True}

    def put(name: str, *numbers: int) -> None:
        (lists / name).write_text("".join(f"nope://host/{number}\n" for number in numbers))

    def keys() -> list[str]:
        return [key for path in sorted(out.glob("*.parquet")) for key in pq.read_table(path)["key"].to_pylist()]

    put("a.txt", *range(5))
    put("b.txt", *range(5, 10))
    report = download(str(lists), **options)
    assert (report.shards, report.count) == (2, 10)
    assert keys() == [f"{shard:05d}{position:04d}" for shard in (0, 1) for position in range(5)]
    assert json.loads((out / ".any2ds/segments/0000").read_text())["cut"] == "file"
    put("c.txt", 10)
    (out / "00001_stats.json").unlink()
    assert download(str(lists), **options).count == 6
    assert keys()[-2:] == ["000010004", "000020000"]
    assert verify(out).ok


@pytest.mark.usefixtures("with_report")
def test_records_have_the_features_that_they_have_there(run: Run) -> None:
    """As TFRecordSampleWriter of its writer.py makes them: the image under its format, the caption twice."""
    run("tfrecord")
    records = examples(Path("out/00000.tfrecord"))
    assert [set(record) for record in records] == [{*COLUMNS, "jpg", "txt"}] * len(STORED)
    for name, record in zip(STORED, records, strict=True):
        assert size_of(record["jpg"][0]) == (256, 256)
        assert record["key"] == [key(name).encode()]
        assert record["txt"] == record["caption"] == [f"größe of {name}".encode()]
        assert (record["n"], record["width"], record["error_message"]) == ([ROWS.index(name)], [256], [b""])
    own = {f".any2ds/{name}" for name in ("run", "segments", "shards", "metadata")}
    assert sorted(names_in(Path("out")) - own) == [
        ".any2ds/report.html",
        "00000.parquet",
        "00000.tfrecord",
        "00000_stats.json",
    ]
    assert verify("out").ok


@pytest.mark.usefixtures("with_report")
@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet", "tfrecord", "dummy"])
@pytest.mark.slow
def test_what_lies_out_of_sight_goes_the_way_of_its_shard(output_format: str, run: Run) -> None:
    """It is written for the shards of a retry as well, checked, and removed with its shard."""
    run(output_format)
    own, shown = Path("out/.any2ds/metadata/00000.metadata"), Path("out/00000.parquet")
    first = own.read_bytes()
    assert pq.read_table(own)["http_status"].to_pylist().count(404) == 1
    assert retry("out", codes=["http_404"], distributor="inline", quiet=True).successes == 1
    assert own.read_bytes() == first
    assert pq.read_table("out/.any2ds/metadata/00001.metadata")["http_status"].to_pylist() == [200]
    if output_format != "dummy":
        ds = load("out")
        assert ds.metadata.to_table(columns=["http_status"])["http_status"].to_pylist() == [200] * (len(STORED) + 1)
        assert ds.keys == [key(name) for name in (*STORED, "gone.jpg")]
    assert shown.exists() == (output_format != "dummy")
    if shown.exists():
        assert [name for name in pq.read_schema(shown).names if name != "jpg"] == list(COLUMNS)
    assert verify("out").ok
    if output_format not in ("parquet", "dummy"):
        pq.write_table(pq.read_table(shown).slice(1), shown)
        assert {finding.kind for finding in verify("out").findings} == {"metadata"}
    own.write_bytes(b"none")
    assert verify("out", repair=True).repaired == (0,)
    assert not own.exists()
    assert run(output_format).shards == 1
    assert verify("out").ok
    run(output_format, "--incremental_mode=overwrite", "--report=False")
    assert names_in(Path("out")) & {".any2ds/report.html"} == set()
    assert verify("out").ok


def test_from_python_as_it_is_called_there(tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "urls.txt").write_text(server.url("photo.jpg"))
    report = download(
        preset="img2dataset",
        processes_count=1,
        thread_count=4,
        url_list=str(tmp_path / "urls.txt"),
        image_size=128,
        output_folder=str(tmp_path / "out"),
        output_format="files",
        input_format="txt",
        caption_col="caption",  # of a list that has none: ignored there, too
        save_additional_columns=["id"],
        verify_hash=["digest", "sha256"],
        enable_wandb=False,
        number_sample_per_shard=10,
        disallowed_header_directives=[],
        max_image_area=float("inf"),
        quiet=True,
    )
    assert report.successes == 1
    assert size_of((tmp_path / "out" / "00000" / "000000.jpg").read_bytes()) == (128, 128)
    assert [r.levelname for r in caplog.records if "these columns are ignored: caption, digest, id" in r.message] == [
        "WARNING"
    ]
