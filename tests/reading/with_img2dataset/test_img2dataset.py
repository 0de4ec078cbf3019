"""img2dataset itself, beside `--preset=img2dataset`: the same command lines, the same images, the same names."""

import glob
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds import download, verify
from any2ds.testing.server import Server, serve

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the network whether there is a newer one

# Width and height: bigger and smaller than what they become on both sides or on one, odd ones, halves that are rounded.
SHAPES = [
    *[(256, 256), (257, 255), (255, 257), (256, 300), (300, 256), (256, 100), (100, 256), (512, 512), (513, 511)],
    *[(1000, 333), (333, 1000), (640, 480), (479, 641), (100, 50), (50, 99), (1, 1), (2, 3), (10, 400), (401, 9)],
    *[(1023, 767), (129, 515), (385, 257), (1025, 2049), (2047, 1023), (263, 1279)],
]
SIZE = 256
MODES = ("no", "keep_ratio", "keep_ratio_largest", "center_crop", "border")


def encoded(image: Image.Image, form: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def _media() -> dict[str, bytes]:
    """Every shape as JPEG, and one of each other kind."""
    noise = {shape: Image.effect_noise(shape, 40).convert("RGB") for shape in SHAPES}
    found = {f"{width}x{height}.jpg": encoded(image, "JPEG") for (width, height), image in noise.items()}
    wide, small = noise[640, 480], noise[100, 50]
    for name, image in (("wide", wide), ("small", small)):
        found[f"{name}.png"] = encoded(image, "PNG")
        found[f"{name}.webp"] = encoded(image, "WEBP")
        found[f"{name}-grey.jpg"] = encoded(image.convert("L"), "JPEG")
        found[f"{name}-alpha.png"] = encoded(image.convert("RGBA"), "PNG")
        found[f"{name}-palette.png"] = encoded(image.convert("P"), "PNG")
        found[f"{name}-16.png"] = encoded(image.convert("L").convert("I;16"), "PNG")
        found[f"{name}-1.png"] = encoded(image.convert("1"), "PNG")
        found[f"{name}-cmyk.jpg"] = encoded(image.convert("CMYK"), "JPEG")
        found[f"{name}.bmp"] = encoded(image, "BMP")
        found[f"{name}.tif"] = encoded(image, "TIFF")
    found["broken.jpg"] = found["640x480.jpg"][:200]
    found["page.html"] = b"<html><body>no image</body></html>"
    return found


MEDIA = _media()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("images")
    for name, content in MEDIA.items():
        (folder / name).write_bytes(content)
    with serve(folder, {"gone.jpg": ["404"]}) as running:
        yield running


def size_of(content: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(content)).size


def form_of(content: bytes) -> str | None:
    return Image.open(io.BytesIO(content)).format


GRID = [
    pytest.param(mode, only_if_bigger, skip, id=f"{mode}-{only_if_bigger}-{skip}")
    for mode, only_if_bigger, skip in itertools.product(MODES, (False, True), (False, True))
]


@pytest.mark.parametrize(("mode", "only_if_bigger", "skip"), GRID)
def test_images_have_the_sizes_that_they_have_there(
    mode: str, only_if_bigger: bool, skip: bool, images: Server, tmp_path: Path
) -> None:
    from img2dataset.resizer import Resizer

    names = list(MEDIA)
    options: Mapping[str, Any] = {
        "resize_mode": mode,
        "resize_only_if_bigger": only_if_bigger,
        "skip_reencode": skip,
        "image_size": SIZE,
    }
    download(
        [images.url(name) for name in names],
        preset="img2dataset",
        output_format="parquet",
        output_folder=tmp_path / "out",
        distributor="inline",
        quiet=True,
        **options,
    )
    resizer = Resizer(**options)
    theirs, ours = {}, {}
    for name, row in zip(names, pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist(), strict=True):
        image, width, height, original_width, original_height, _ = resizer(io.BytesIO(MEDIA[name]))
        theirs[name] = (width, height, original_width, original_height, image and size_of(image))
        stored = row["jpg"] and size_of(row["jpg"])
        ours[name] = (row["width"], row["height"], row["original_width"], row["original_height"], stored)
        if theirs[name][0] is None:  # failed ones have no sizes there
            ours[name] = (*ours[name][:2], None, None, stored)
        assert row["jpg"] is None or form_of(row["jpg"]) == "JPEG"
    assert {name: ours[name] for name in names if ours[name] != theirs[name]} == {
        name: theirs[name] for name in names if ours[name] != theirs[name]
    }


def test_a_file_that_keeps_its_bytes_there_keeps_them_here(images: Server, tmp_path: Path) -> None:
    from img2dataset.resizer import Resizer

    options = {"resize_mode": "keep_ratio", "resize_only_if_bigger": True, "skip_reencode": True, "image_size": SIZE}
    names = [name for name in MEDIA if name.endswith(".jpg") and "cmyk" not in name]
    out = tmp_path / "out"
    urls = [images.url(name) for name in names]
    download(urls, preset="img2dataset", output_folder=out, output_format="parquet", quiet=True, **options)
    resizer = Resizer(**options)
    kept = set()
    for name, image in zip(names, pq.read_table(out / "00000.parquet")["jpg"].to_pylist(), strict=True):
        if resizer(io.BytesIO(MEDIA[name]))[0] == MEDIA[name]:
            kept.add(name)
            assert image == MEDIA[name]
    assert len(kept) > 5


# --- whole runs ---

ROWS = ("640x480.jpg", "wide-alpha.png", "broken.jpg", "gone.jpg", "small.webp", "page.html", "640x480.jpg")
LINE = [
    *["--url_list", "list.csv", "--input_format", "csv", "--caption_col", "text", "--url_col", "link"],
    *["--save_additional_columns", '["n","score"]', "--number_sample_per_shard", "3", "--oom_shard_count", "4"],
    *["--processes_count", "1", "--thread_count", "4", "--image_size", "64", "--enable_wandb", "False"],
]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Server) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f'{images.url(name)},"größe, {n}",{n},{n / 4}' for n, name in enumerate(ROWS)]
    Path("list.csv").write_text("\n".join(["link,text,n,score", *rows]) + "\n", encoding="utf-8")


def run(*command: str) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_theirs(*more: str) -> None:
    run(sys.executable, "-c", "from img2dataset.main import main; main()", *LINE, *more)


def run_ours(*more: str) -> None:
    run(sys.executable, "-m", "any2ds", "--preset=img2dataset", *LINE, *more)


def names_in(folder: str) -> set[str]:
    """Of files and members of tar files."""
    found = set()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            found.add(path.relative_to(folder).as_posix())
        if path.suffix == ".tar":
            with tarfile.open(path) as tar:
                found |= {f"{path.name}/{name}" for name in tar.getnames()}
    return found


GLOBS = ("*", "*.json", "*.parquet", "*.tar", "**/*.json", "**/*")


@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet", "dummy"])
@pytest.mark.usefixtures("listed")
def test_a_command_line_makes_the_same_dataset_after_the_programs_name_is_changed(output_format: str) -> None:
    run_theirs("--output_format", output_format, "--output_folder", "theirs")
    run_ours("--output_format", output_format, "--output_folder", "ours")
    for pattern in GLOBS:
        theirs, ours = (glob.glob(pattern, root_dir=folder, recursive=True) for folder in ("theirs", "ours"))
        assert (pattern, sorted(ours)) == (pattern, sorted(theirs))
    for pattern in ("*.json", "*.parquet"):  # `rglob` looks into hidden folders too
        theirs, ours = (sorted(path.name for path in Path(folder).rglob(pattern)) for folder in ("theirs", "ours"))
        assert ours == theirs
    assert {name for name in names_in("ours") if not name.startswith(".")} == names_in("theirs")
    assert verify("ours").ok
    for shard in ("0000", "0001", "0002") if output_format != "dummy" else ():
        theirs, ours = pq.read_table(f"theirs/{shard}.parquet"), pq.read_table(f"ours/{shard}.parquet")
        assert [(field.name, field.type) for field in ours.schema] == [
            (field.name, field.type) for field in theirs.schema
        ]
        of_ours = {row["key"]: row for row in ours.to_pylist()}
        same = ("url", "caption", "n", "score", "width", "height")
        for row in theirs.to_pylist():
            own = of_ours.pop(row["key"])
            assert {name: own[name] for name in same} == {name: row[name] for name in same}
            assert (own["status"] == "success") == (row["status"] == "success")
            assert (own["error_message"] is None) == (row["error_message"] is None)
            if row["status"] == "success":
                assert own["sha256"] == row["sha256"]
                assert (own["original_width"], own["original_height"]) == (
                    row["original_width"],
                    row["original_height"],
                )
        assert not of_ours
        reported = [json.loads(Path(f"{folder}/{shard}_stats.json").read_text()) for folder in ("theirs", "ours")]
        figures = ("count", "successes", "failed_to_download", "failed_to_resize")
        assert [reported[1][name] for name in figures] == [reported[0][name] for name in figures]
        assert set(reported[0]) <= set(reported[1])
        assert reported[0]["status_dict"].get("success") == reported[1]["status_dict"].get("success")
    if output_format != "dummy":
        check_load(output_format)
    ours = sidecars("ours")
    assert {key: list(described) for key, described in sidecars("theirs").items()} == {
        key: list(described) for key, described in ours.items()
    }


def check_load(output_format: str) -> None:
    """`any2ds.load` opens what img2dataset has written."""
    rows = {row["key"]: row for shard in range(3) for row in pq.read_table(f"theirs/000{shard}.parquet").to_pylist()}
    files = stored_in("theirs")
    assert files.keys() == {key for key, row in rows.items() if row["status"] == "success"} != rows.keys()
    ds = any2ds.load("theirs")
    assert (len(ds), sorted(ds.keys)) == (len(files), sorted(files))
    for sample in [*ds, *ds[::-1], ds[2]]:
        row = rows[sample["key"]]
        assert (sample["data"], sample["ext"]) == (files[row["key"]], "jpg")
        for name in ("url", "caption", "n", "score", "width", "height", "original_width", "sha256"):
            assert sample[name] == row[name]
    few = any2ds.load("theirs", where="n >= 4 and score < 1.5", columns=["n", "data"], decode=True)
    assert sorted(sample["n"] for sample in few) == sorted(
        row["n"] for key, row in rows.items() if key in files and row["n"] >= 4 and row["score"] < 1.5
    )
    assert {sample["data"].shape for sample in few} == {(64, 64, 3)}


def stored_in(folder: str) -> dict[str, bytes]:
    """Key -> image, read without any2ds."""
    found = {path.stem: path.read_bytes() for path in Path(folder).glob("*/*.jpg")}
    for path in Path(folder).glob("*.tar"):
        with tarfile.open(path) as tar:
            members = [member for member in tar if member.name.endswith(".jpg")]
            found |= {member.name[:-4]: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    for path in Path(folder).glob("*.parquet"):
        table = pq.read_table(path)
        if "jpg" in table.column_names:
            found |= {row["key"]: row["jpg"] for row in table.to_pylist() if row["jpg"] is not None}
    return found


@pytest.mark.usefixtures("listed")
def test_each_file_of_a_folder_begins_a_shard_there_and_here() -> None:
    lines = Path("list.csv").read_text(encoding="utf-8").splitlines()
    Path("lists").mkdir()
    for name, rows in {"a.csv": lines[1:3], "b.csv": lines[3:]}.items():
        (Path("lists") / name).write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    more = ("--url_list", "lists", "--output_format", "webdataset", "--output_folder")
    run_theirs(*more, "theirs")
    run_ours(*more, "ours")
    shards = [sorted(Path(folder).glob("*.parquet")) for folder in ("theirs", "ours")]
    keys = [[sorted(pq.read_table(path)["key"].to_pylist()) for path in paths] for paths in shards]
    assert keys[1] == keys[0]
    assert [len(each) for each in keys[0]] == [2, 3, 2]


def sidecars(folder: str) -> dict[str, Any]:
    found = {path.stem: path.read_bytes() for path in Path(folder).rglob("*/*.json")}
    for path in Path(folder).glob("*.tar"):
        with tarfile.open(path) as tar:
            members = [member for member in tar if member.name.endswith(".json")]
            found |= {member.name[:-5]: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    return {key: json.loads(content) for key, content in found.items()}


def contents(folder: str) -> dict[str, bytes]:
    return {path.as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet"])
@pytest.mark.usefixtures("listed")
def test_what_it_has_begun_is_refused_and_completed_beside_it(
    output_format: str, page: Callable[[str, str], list[str]]
) -> None:
    """As docs/resuming.md shows it."""
    run_theirs("--output_format", output_format, "--output_folder", "begun")
    for path in sorted(Path("begun").rglob("0001*"), key=lambda path: -len(path.parts)):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    before = contents("begun")
    ours = [sys.executable, "-m", "any2ds", "--preset=img2dataset", *LINE, "--output_format", output_format]
    done = subprocess.run([*ours, "--output_folder", "begun"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, contents("begun")) == (2, before)
    assert "'begun' holds shards, and no .any2ds/run that says how any2ds made them" in done.stderr

    rows = pa.csv.read_csv("list.csv")
    pq.write_table(rows.rename_columns(["url", *rows.column_names[1:]]), "urls.parquet")
    (block,) = page("Resume", "resuming.md")
    exec(compile(block, "resuming.md", "exec"), {})
    options = {"number_sample_per_shard": 3, "oom_shard_count": 4, "image_size": 64, "quiet": True}
    described = {"caption_col": "text", "save_additional_columns": ["n", "score"]}
    download(
        "rest.parquet", "rest", preset="img2dataset", output_format=output_format, url_col="url", **described, **options
    )
    wanted = ["key", "url", "caption", "status", "width", "height", "original_width", "exif", "sha256"]
    wanted += ["jpg"] if output_format == "parquet" else []
    shards = sorted([*Path("begun").glob("*.parquet"), *Path("rest").glob("*.parquet")])
    table = pa.concat_tables(pq.read_table(path, columns=wanted) for path in shards)
    begun, rest = ["00000", "00001", "00002", "00020"], ["00000", "00001", "00002"]
    assert sorted(table["key"].to_pylist()) == sorted([*begun, *rest])
    assert sorted(table["caption"].to_pylist()) == [f"größe, {n}" for n in range(len(ROWS))]
    assert table["status"].to_pylist().count("success") == 4
    stats = [path for folder in ("begun", "rest") for path in Path(folder).glob("*_stats.json")]
    assert sum(json.loads(path.read_text())["failed_to_resize"] for path in stats) == 2
