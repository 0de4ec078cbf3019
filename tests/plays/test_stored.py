"""Options that change what is stored: names, sizes, hashes, columns, members, images, sound, video, text, archives."""

import bz2
import gzip
import hashlib
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support import stored
from tests.support.play import Play, Row
from tests.support.recordings import film, heard, seen, tone

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")


def picture(width: int = 120, height: int = 80, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """A picture whose left half is red and right half blue."""
    image = Image.new("RGB", (width, height), (250, 10, 10))
    image.paste((10, 10, 250), (width // 2, 0, width, height))
    content = io.BytesIO()
    image.convert(mode).save(content, kind, **options)
    return content.getvalue()


def opened(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


# --- names, shards, metadata ---


# What else than metadata and statistics stands in the folder for a shard, and for the dataset.
BESIDE: dict[str, tuple[set[str], set[str]]] = {
    "files": (set(), set()),
    "webdataset": ({".tar", ".tar.idx"}, set()),
    "parquet": (set(), set()),
    "tfrecord": ({".tfrecord", ".tfrecord.idx"}, {"features.json", "dataset_info.json"}),
    "arrayrecord": ({".arrayrecord"}, {"features.json", "dataset_info.json"}),
}


@pytest.mark.parametrize("output_format", FORMATS)
def test_each_format_has_files_captions_and_columns(output_format: str) -> None:
    rows = {
        "a.jpg": Row(body=picture(kind="JPEG"), columns={"caption": "a ü", "n": 1, "tags": ["x", "y"]}),
        "b.bin": Row("http_404", columns={"caption": "no", "n": 2, "tags": []}),
        "c.txt": Row(body=b"plain", columns={"caption": "c", "n": 3, "tags": ["z"]}),
    }
    options = {"caption_col": "caption", "save_additional_columns": "n,tags", "number_sample_per_shard": 2}
    play = Play(rows, output_format=output_format, **options)
    outcome = play.run(reporters="jsonl")
    assert outcome.codes == {"success": 2, "http_404": 1}
    assert outcome.shards == ["00000", "00001"]
    of_shard, of_dataset = BESIDE[output_format]
    endings = {".parquet", "_stats.json", *of_shard}
    found = {name for name in outcome.names if "/" not in name}
    assert found == of_dataset | {f"{shard}{ending}" for shard in outcome.shards for ending in endings}
    kept = [name for name in outcome.files if name.startswith(".any2ds/")]  # which no glob for data finds
    assert not [name for name in kept if name.endswith((*endings, ".json", ".jsonl", ".csv"))]
    first, second = outcome.samples
    assert (first.key, second.key) == ("000000000"[: len(first.key)], outcome.metadata[2]["key"])
    assert [sample.data if "jpg" in sample.files else None for sample in (first,)] == [picture(kind="JPEG")]
    assert b"plain" in second.files.values()
    described = [json.loads(sample.files["json"]) for sample in (first, second)]
    assert [row["n"] for row in described] == [1, 3]
    assert [row["caption"] for row in described] == ["a ü", "c"]
    assert play.run("verify").exit_code == 0


def test_dummy_has_metadata_and_statistics_and_no_files() -> None:
    outcome = Play({"a.txt": "ok", "b.txt": "http_404"}, output_format="dummy").run()
    assert outcome.names == {"00000.parquet", "00000_stats.json"}
    assert [row["error_code"] for row in outcome.metadata] == [None, "http_404"]
    assert stored.stats(outcome.files)["00000"]["status_dict"] == {"success": 1, "http_404": 1}
    assert "any2ds.load(" not in outcome.screen


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"number_sample_per_shard": 1}, ["00000", "00001", "00002"]),
        ({"number_sample_per_shard": 2}, ["00000", "00001"]),
        ({"number_sample_per_shard": 1, "oom_shard_count": 2}, ["00", "01", "02"]),
    ],
)
def test_names_and_sizes_of_shards(options: Any, names: list[str]) -> None:
    outcome = Play(dict.fromkeys(["a.txt", "b.txt", "c.txt"], "ok"), **options).run()
    assert outcome.shards == names
    assert all(key.startswith(tuple(names)) for key in outcome.data)
    listed = json.loads(outcome.files[".any2ds/shards"])
    assert [Path(shard["url"]).stem for shard in listed["shardlist"]] == names
    assert (listed["shards"], listed["count"], listed["nsamples"]) == (len(names), 3, 3)


def test_further_formats_of_the_metadata_say_the_same() -> None:
    play = Play({"a.txt": "ok", "b.txt": ["http_404"] * 2 + ["ok"]}, metadata_format="parquet,csv,jsonl")
    outcome = play.run()
    lines = [json.loads(line) for line in outcome.files["00000.jsonl"].decode().splitlines()]
    for row, in_csv, in_json in zip(outcome.metadata, stored.csv_metadata(outcome.files), lines, strict=True):
        assert row["key"] == in_csv["key"] == in_json["key"]
        assert row["error_code"] == (in_csv["error_code"] or None) == in_json.get("error_code")
        assert row["http_status"] == int(in_csv["http_status"]) == in_json["http_status"]
    assert {"00001.csv", "00001.jsonl"} <= play.run("retry", codes="all").names
    assert not {"00000.csv", "00001.csv"} & play.run(metadata_format="parquet", incremental_mode="overwrite").names


@pytest.mark.parametrize(
    ("name", "body", "answer", "ext", "mime_type"),
    [
        ("a", picture(), "ok", "png", "image/png"),
        ("a.jpg", b"<html><body>no</body></html>", "wrong-type:image/jpeg", "html", "text/html"),
        ("a.bin", b"\x00\x01\x02", "no-type", "flat", None),
        ("a.json", b'{"a": 1}', "ok", "data.json", "application/json"),
        ("a.mp3", tone("mp3", "libmp3lame", seconds=0.2), "wrong-type", "mp3", "audio/mpeg"),
        ("a.pdf", b"%PDF-1.4 x", "no-type", "pdf", "application/pdf"),
    ],
)
def test_the_extension_tells_the_content(name: str, body: bytes, answer: str, ext: str, mime_type: str | None) -> None:
    outcome = Play({name: Row(answer, body=body)}).run()
    (sample,) = outcome.samples
    assert sample.files[ext] == body
    if mime_type is not None:
        assert outcome.metadata[0]["mime_type"] == mime_type


def test_file_ext_names_all_files() -> None:
    outcome = Play({"a.jpg": "ok", "b.bin": "ok"}, file_ext="dat").run()
    assert [set(sample.files) - {"json"} for sample in outcome.samples] == [{"dat"}, {"dat"}]


@pytest.mark.parametrize("kind", ["md5", "sha256", "sha512"])
def test_hashes_are_those_of_the_files(kind: str) -> None:
    outcome = Play({"a.txt": Row(body=b"x")}, compute_hash=kind).run()
    assert outcome.metadata[0][kind] == hashlib.new(kind, b"x").hexdigest()
    without = Play({"a.txt": Row(body=b"x")}, compute_md5=False).run()
    assert "md5" not in without.metadata[0]


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("fail_row", {"success": 3, "hash_mismatch": 2, "http_404": 1}),
        ("drop", {"success": 3, "dropped": 2, "http_404": 1}),
        ("flag", {"success": 5, "http_404": 1}),
    ],
)
def test_hashes_of_the_list_are_compared(how: str, codes: Any) -> None:
    right = hashlib.sha256(b"x").hexdigest()
    rows = {
        "a.txt": Row(body=b"x", columns={"h": f"sha256:{right.upper()}"}),
        "b.txt": Row(body=b"y", columns={"h": right}),
        "c.txt": Row(body=b"z", columns={"h": None}),
        "d.txt": Row(body=b"z", columns={"h": " "}),
        "e.txt": Row(body=b"z", columns={"h": "http://me:secret@host/" + "x" * 1000}),
        "f.txt": Row("http_404", columns={"h": right}),
    }
    outcome = Play(rows, verify_hash="h:sha256", on_hash_mismatch=how, retries=2, metadata_format="parquet").run()
    assert outcome.codes == codes
    assert [row["hash_matches"] for row in outcome.metadata] == [True, False, None, None, False, None]
    assert outcome.metadata[1]["expected_hash"] == right
    assert outcome.metadata[1]["sha256"] == hashlib.sha256(b"y").hexdigest()
    assert outcome.requests["b.txt"] == 1
    if how != "flag":
        other, garbage = (outcome.metadata[n]["error_message"] for n in (1, 4))
        assert other == f"its sha256 is {hashlib.sha256(b'y').hexdigest()}, expected was {right}"
        assert "is no sha256" in garbage
        assert "secret" not in garbage
        assert len(garbage) < 500


@pytest.mark.parametrize(("output_format", "dedupe"), [("webdataset", "shard"), ("files", "run"), ("parquet", "none")])
def test_samples_are_in_the_order_of_the_list_each_once_in_whatever_order_files_arrive(
    output_format: str, dedupe: str
) -> None:
    rng = random.Random(output_format)
    answers = {
        f"{n}.bin": Row("404" if n % 10 == 3 else f"slow:{rng.random() / 5:.3f}", b"\1%d" % n) for n in range(13)
    }
    rows = [(rng.choice([*answers]), rng.choice(["none", "right", "wrong"])) for _ in range(60)]
    play = Play(answers, output_format=output_format, number_sample_per_shard=7, dedupe=dedupe, thread_count=20)
    digest = {name: hashlib.md5(row.body or b"").hexdigest() for name, row in answers.items()}
    hashes = [{"none": None, "right": digest[name], "wrong": digest[name][::-1]}[how] for name, how in rows]
    listed = [{"url": play.web.url(name), "h": found} for (name, _), found in zip(rows, hashes, strict=True)]
    (play.folder / "l.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in listed))
    outcome = play.run("download", "l.jsonl", verify_hash="h:md5", on_hash_mismatch="drop", max_buffered_bytes="1MB")
    firsts: dict[Any, int] = {}
    wanted = []
    for n, (name, how) in enumerate(rows):
        first = firsts.setdefault((name, hashes[n], None if dedupe == "run" else n // 7), n)
        own = "http_404" if answers[name].answers == "404" else "dropped" if how == "wrong" else "success"
        wanted.append((name, "duplicate" if dedupe == "run" and first != n else own))
    found = [(row["url"].rpartition("/")[2], row["error_code"] or row["status"]) for row in outcome.metadata]
    assert found == wanted
    assert outcome.requests.total() == (len(rows) if dedupe == "none" else len(firsts))
    assert [sample.data for sample in outcome.samples] == [
        answers[name].body for name, code in wanted if code == "success"
    ]
    assert sum(outcome.codes.values()) == len(rows)


# --- rows with several URLs ---


# --- images ---


@pytest.mark.parametrize(
    ("mode", "size", "bigger", "expected"),
    [
        ("keep_ratio", 40, True, (60, 40)),
        ("keep_ratio_largest", 60, True, (60, 40)),
        ("center_crop", 40, True, (40, 40)),
        ("border", 60, True, (60, 60)),
        ("keep_ratio", 160, True, (120, 80)),
        ("keep_ratio", 160, False, (240, 160)),
        ("center_crop", 160, False, (160, 160)),
        ("border", 160, False, (160, 160)),
    ],
)
def test_images_are_resized(mode: str, size: int, bigger: bool, expected: tuple[int, int]) -> None:
    options = {"file_size": size, "resize_mode": mode, "resize_only_if_bigger": bigger}
    outcome = Play({"a.png": Row(body=picture())}, **options).run()
    (row,), (sample,) = outcome.metadata, outcome.samples
    image = opened(sample.files["png"]).convert("RGB")
    assert image.size == (row["width"], row["height"]) == expected
    assert (row["original_width"], row["original_height"]) == (120, 80)
    assert (sample.files["png"] == picture()) == (expected == (120, 80))
    middle = expected[1] // 2
    assert image.getpixel((expected[0] // 4, middle))[0] > 200
    assert image.getpixel((expected[0] * 3 // 4, middle))[2] > 200
    assert (image.getpixel((1, 1)) == (255, 255, 255)) == (mode == "border")


@pytest.mark.parametrize(("kind", "pillow"), [("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("avif", "AVIF")])
@pytest.mark.parametrize("source", ["PNG", "GIF", "BMP", "TIFF"])
def test_images_are_encoded_as_is_asked_for(kind: str, pillow: str, source: str) -> None:
    outcome = Play({"a.img": Row(body=picture(kind=source))}, encode_format=kind).run()
    (sample,) = outcome.samples
    assert set(sample.files) - {"json"} == {kind}
    assert opened(sample.data).format == pillow
    assert opened(sample.data).size == (120, 80)
    assert (sample.data == picture(kind=source)) == (pillow == source)
    assert outcome.metadata[0]["stored_bytes"] in (None, len(sample.data))


def test_quality_decides_the_size() -> None:
    noise = io.BytesIO()
    Image.effect_noise((200, 200), 90).save(noise, "PNG")
    sizes = [
        len(
            Play({"a.png": Row(body=noise.getvalue())}, encode_format="jpg", encode_quality=quality)
            .run()
            .samples[0]
            .data
        )
        for quality in (20, 95)
    ]
    assert sizes[0] < sizes[1] / 2


def test_exif_is_read_and_images_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "Maker"
    body = picture(kind="JPEG", exif=exif.tobytes())
    outcome = Play({"a.jpg": Row(body=body)}, extract_exif=True, encode_format="png").run()
    (row,), (sample,) = outcome.metadata, outcome.samples
    assert json.loads(row["exif"])["Make"] == "Maker"
    assert opened(sample.files["png"]).size == (80, 120) == (row["width"], row["height"])


@pytest.mark.parametrize("boxes", [[[0.0, 0.0, 1.0, 1.0]], "[[0, 0, 1, 1]]", [], None])
@pytest.mark.parametrize("column", ["b", "status"])  # the second is a name that any2ds has itself
def test_boxes_are_blurred(boxes: Any, column: str) -> None:
    row = Row(body=picture(), columns={column: boxes})
    outcome = Play({"a.png": row}, bbox_col=column, encode_format="png").run()
    image = opened(outcome.samples[0].files["png"]).convert("RGB")
    at_edge = image.getpixel((59, 40))
    assert (at_edge != (250, 10, 10)) == bool(boxes)


@pytest.mark.parametrize("animated", ["first", "keep"])
def test_animated_images(animated: str) -> None:
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    body = io.BytesIO()
    frames[0].save(body, "GIF", save_all=True, append_images=frames[1:])
    outcome = Play({"a.gif": Row(body=body.getvalue())}, animated=animated).run()
    (sample,) = outcome.samples
    assert (sample.data == body.getvalue()) == (animated == "keep")
    assert getattr(opened(sample.data), "n_frames", 1) == (3 if animated == "keep" else 1)


def test_nothing_is_decoded_where_that_is_asked_for() -> None:
    cut = picture(kind="JPEG")[:-30]
    outcome = Play({"a.jpg": Row(body=cut)}, disable_all_reencoding=True).run()
    assert outcome.samples[0].files["jpg"] == cut
    assert "width" not in outcome.metadata[0]


def test_decode_check_describes_and_changes_nothing() -> None:
    rows = {"a.png": Row(body=picture()), "b.wav": Row(body=tone(seconds=0.5)), "c.txt": Row(body=b"text")}
    outcome = Play(rows, decode_check=True).run()
    assert [sample.data for sample in outcome.samples] == [row.body for row in rows.values()]
    image, sound, _ = outcome.metadata
    assert (image["width"], image["height"]) == (120, 80)
    assert sound["duration"] == pytest.approx(0.5)


# --- sound and video ---


@pytest.mark.parametrize("kind", ["flac", "wav", "mp3", "opus"])
def test_sound_is_encoded_at_its_rate_and_channels(kind: str) -> None:
    options = {"audio_format": kind, "audio_channels": 1, "audio_rate": 16_000 if kind != "opus" else 48_000}
    outcome = Play({"a.wav": Row(body=tone(seconds=0.5, channels=2))}, **options).run()
    (row,), (sample,) = outcome.metadata, outcome.samples
    sound, rate = heard(sample.files[kind])
    assert (rate, sound.shape[0]) == (options["audio_rate"], 1)
    assert (row["sample_rate"], row["channels"], row["ext"]) == (options["audio_rate"], 1, kind)
    assert row["duration"] == pytest.approx(0.5, abs=0.1)


def test_sound_is_trimmed() -> None:
    outcome = Play({"a.wav": Row(body=tone(seconds=1))}, audio_trim=0.25).run()
    sound, rate = heard(outcome.samples[0].files["wav"])
    assert sound.shape[1] == rate / 4
    assert outcome.metadata[0]["duration"] == 0.25


def test_sound_is_cut_into_clips() -> None:
    outcome = Play({"a.wav": Row(body=tone(seconds=1))}, clip_seconds=0.4).run()
    lengths = [heard(sample.files["wav"])[0].shape[1] for sample in outcome.samples]
    assert lengths == [17_640, 17_640, 8_820]
    assert [row["clip_start"] for row in outcome.metadata] == pytest.approx([0, 0.4, 0.8])
    assert [sample.key[-5:] for sample in outcome.samples] == ["_0000", "_0001", "_0002"]


def test_clips_are_those_of_a_column() -> None:
    rows = {
        "a.wav": Row(body=tone(seconds=1), columns={"clips": "[[0.5, 0.75], [0, 1]]"}),
        "b.wav": Row(body=tone(seconds=0.5), columns={"clips": None}),
    }
    outcome = Play(rows, clips_col="clips").run()
    assert [heard(sample.files["wav"])[0].shape[1] for sample in outcome.samples] == [11_025, 44_100, 22_050]
    assert [row["clip_end"] for row in outcome.metadata] == [0.75, 1.0, None]


FILM = film(seconds=0.8, fps=10)


@pytest.mark.parametrize(
    ("options", "size", "pictures", "ext"),
    [
        ({"video_size": 60}, (80, 60), 8, "mp4"),
        ({"video_fps": 5}, (160, 120), 4, "mp4"),
        ({"video_format": "mkv"}, (160, 120), 8, "mkv"),
        ({"video_format": "webm", "video_size": 60}, (80, 60), 8, "webm"),
        ({"video_audio": "drop"}, (160, 120), 8, "mp4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_video_is_changed(options: Any, size: tuple[int, int], pictures: int, ext: str) -> None:
    outcome = Play({"a.mp4": Row(body=FILM)}, **options).run()
    (row,), (sample,) = outcome.metadata, outcome.samples
    frames = seen(sample.files[ext])
    assert len(frames) == pictures
    assert frames[0][1].shape[:2] == size[::-1]
    assert (row["width"], row["height"]) == size
    assert (row["channels"] is None) == ("video_audio" in options)


def test_sound_of_video_is_split() -> None:
    outcome = Play({"a.mp4": Row(body=FILM)}, video_audio="split", audio_rate=16_000).run()
    (sample,) = outcome.samples
    assert heard(sample.files["wav"])[1] == 16_000
    assert len(seen(sample.files["mp4"])) == 8


@pytest.mark.parametrize(("options", "count"), [({"frames": 3}, 3), ({"frame_interval": 0.4}, 2)])
def test_frames_are_images(options: Any, count: int) -> None:
    outcome = Play({"a.mp4": Row(body=FILM)}, file_size=60, **options).run()
    assert [opened(sample.files["jpg"]).size for sample in outcome.samples] == [(80, 60)] * count
    times = [row["frame_time"] for row in outcome.metadata]
    assert times == sorted(set(times))


# --- text and archives ---


def test_text_of_pages_is_stored_beside_them() -> None:
    words = "Moss grows slowly on the northern side of old stones, and rests in winter under the snow. " * 4
    page = f"<html><body><nav>menu</nav><article><h1>Moss</h1><p>{words}</p></article></body></html>".encode()
    outcome = Play({"a.html": Row(body=page)}, extract_text=True).run()
    (sample,) = outcome.samples
    assert sample.files["html"] == page
    assert "northern side" in sample.files["txt"].decode()
    assert "<p>" not in sample.files["txt"].decode()


def _zip(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def _tar(files: dict[str, bytes], mode: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


INSIDE = {"x/one.png": picture(), "__MACOSX/._one.png": b"junk", "two.txt": b"two"}
ARCHIVES = {
    "zip": _zip(INSIDE),
    "tar": _tar(INSIDE, "w"),
    "tar.gz": _tar(INSIDE, "w:gz"),
    "tar.bz2": _tar(INSIDE, "w:bz2"),
    "tar.xz": _tar(INSIDE, "w:xz"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_files_of_an_archive_are_samples(kind: str) -> None:
    outcome = Play({f"a.{kind}": Row(body=ARCHIVES[kind]), "b.txt": "ok"}, unpack=True).run()
    first, second, plain = outcome.samples
    assert first.files["png"] == picture()
    assert b"two" in second.files.values()
    assert [row["path"] for row in outcome.metadata] == ["x/one.png", "two.txt", None]
    assert [key[-5:] for key in (first.key, second.key)] == ["_0000", "_0001"]
    assert "_" not in plain.key
    assert outcome.metadata[0]["bytes"] == len(ARCHIVES[kind])
    assert stored.stats(outcome.files)["00000"]["count"] == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress], ids=["gz", "bz2"])
def test_a_compressed_file_is_one_sample(compress: Any) -> None:
    outcome = Play({"a.png.gz": Row(body=compress(picture()))}, unpack=True).run()
    (sample,) = outcome.samples
    assert sample.files["png"] == picture()


def test_without_unpack_an_archive_stays_what_it_is() -> None:
    outcome = Play({"a.zip": Row(body=ARCHIVES["zip"])}).run()
    assert outcome.samples[0].files["zip"] == ARCHIVES["zip"]


# --- the user's own steps, and img2dataset's options ---

STEP = """
import any2ds

@any2ds.transform(columns={"length": int}, members=("up",))
def describes(sample):
    return sample.with_data(sample.data[::-1], ext="rev").with_fields(length=sample.size).with_member("up", b"UP")

def doubles(sample):
    return [sample, sample.with_data(sample.data * 2)]

@any2ds.transform(columns={"place": int}, batch_size=2)
def counts(samples):
    return [sample.with_fields(place=len(samples)) for sample in samples]
"""


def test_a_step_of_the_user_changes_files_and_adds_columns_and_files() -> None:
    play = Play({"a.bin": Row(body=b"abc")})
    (play.folder / "steps_stored.py").write_text(STEP)
    outcome = play.run(transform="steps_stored.py:describes")
    (row,), (sample,) = outcome.metadata, outcome.samples
    assert (sample.files["rev"], sample.files["up"]) == (b"cba", b"UP")
    assert (row["length"], row["stored_bytes"], row["md5"]) == (3, 3, hashlib.md5(b"abc").hexdigest())


def test_a_step_of_the_user_makes_several_samples_and_works_in_batches() -> None:
    play = Play({"a.bin": Row(body=b"\x00a"), "b.bin": Row(body=b"\x00b")})
    (play.folder / "steps_stored.py").write_text(STEP)
    outcome = play.run(transform="steps_stored.py:doubles,steps_stored.py:counts")
    assert [sample.data for sample in outcome.samples] == [b"\x00a", b"\x00a" * 2, b"\x00b", b"\x00b" * 2]
    assert all(row["place"] in (1, 2) for row in outcome.metadata)


@pytest.mark.parametrize("output_format", ["files", "webdataset", "parquet", "tfrecord"])
def test_the_preset_of_img2dataset_makes_its_images_and_columns(output_format: str) -> None:
    rows = {
        "a.png": Row(body=picture(), columns={"caption": "x"}),
        "b.png": Row("http_404", columns={"caption": "y"}),
        "c.txt": Row(body=b"no image", columns={"caption": "z"}),
    }
    play = Play(rows, list_format="csv", preset="img2dataset", image_size=64, caption_col="caption")
    outcome = play.run(input_format="csv", output_format=output_format, processes_count=1)
    assert outcome.exit_code == 0
    assert play.run(input_format="csv", output_format=output_format, processes_count=1).requests.total() == 0
    stats = stored.stats(outcome.files)["00000"]
    assert (stats["successes"], stats["failed_to_download"], stats["failed_to_resize"]) == (1, 1, 1)
    statuses = ["success", "failed_to_download", "failed_to_subsample"]
    assert [row["status"] for row in outcome.metadata] == statuses
    assert [bool(row["error_message"]) for row in outcome.metadata] == [False, True, True]
    assert {"sha256", "width", "original_width", "exif"} <= set(outcome.metadata[0])
    if output_format in ("files", "webdataset"):
        assert opened(outcome.samples[0].files["jpg"]).size == (64, 64)
        assert outcome.samples[0].files["txt"] == b"x"


@pytest.mark.parametrize(
    "options",
    [
        {"output_format": "zip"},
        {"number_sample_per_shard": 0},
        {"file_size": 10, "resize_mode": "stretch"},
        {"encode_format": "bmp"},
        {"encode_quality": 101, "encode_format": "jpg"},
        {"row_group_bytes": "1MB"},
        {"audio_format": "aiff"},
        {"unpack_max_bytes": 3},
        {"on_hash_mismatch": "drop"},
        {"transform": "absent.py:step"},
        {"compute_hash": "crc"},
        {"require": "image"},
        {"metadata_format": "xml"},
        {"disable_all_reencoding": True, "file_size": 10},
    ],
    ids=lambda options: " ".join(options),
)
def test_an_option_that_cannot_be_or_has_no_effect_is_refused(options: Any) -> None:
    outcome = Play({"a.txt": "ok"}, **options).run()
    assert outcome.exit_code == 2
    assert any(name in outcome.screen for name in options)
    assert not outcome.requests
    assert not outcome.names
