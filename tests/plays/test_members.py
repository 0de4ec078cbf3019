"""Rows with several URLs, whose files make one sample: what is stored, told, checked and tried again."""

import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from tests.support.play import ROOT, Outcome, Play, Row

KINDS = {"image": "jpg", "mask": "png"}
FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
Pair = tuple[str | None, str | None]  # names of an image and of its mask
# Mask 2 is missing for ever, mask 3 twice; row 4 has no mask; of row 5 nothing is there.
ANSWERS: dict[str, Any] = {
    **dict.fromkeys(["i0.jpg", "i1.jpg", "i2.jpg", "i3.jpg", "i4.jpg", "m0.png", "m1.png"], "ok"),
    **dict.fromkeys(["m2.png", "i5.jpg", "m5.png"], "404"),
    "m3.png": ["503", "503", "ok"],
}
IN_VAIN = ["success", "success", "http_404", "http_503", "bad_url", "http_404"]  # where a row needs its mask
PAIRS: list[Pair] = [(f"i{n}.jpg", f"m{n}.png" if n != 4 else None) for n in range(6)]


def listed(answers: Any = ANSWERS, pairs: Sequence[Pair] = PAIRS, columns: Any = (), **options: Any) -> Play:
    """A play whose list has these pairs; `columns` are further values of each row."""
    play = Play(answers, **{"url_col": "image:img,mask:seg", "number_sample_per_shard": 4, **options})

    def url(name: str | None) -> str | None:
        return play.web.url(name) if name in play.rows else name

    rows = [{"img": url(image), "seg": url(mask)} for image, mask in pairs]
    extra = columns or [{}] * len(rows)
    text = "".join(f"{json.dumps({**row, **more})}\n" for row, more in zip(rows, extra, strict=True))
    (play.folder / "l.jsonl").write_text(text)
    return play


def made(play: Play, **options: Any) -> Outcome:
    outcome = play.run("download", "l.jsonl", **options)
    assert outcome.exit_code == 0, outcome
    return outcome


def column(outcome: Outcome, name: str) -> list[Any]:
    return [row[name] for row in outcome.metadata]


def contents(play: Play) -> dict[str, dict[str, bytes]]:
    """Key -> member -> file, as `load` gives them."""
    return {
        sample["key"]: {name: bytes(sample[name]) for name in ("image", "mask") if sample[name] is not None}
        for sample in any2ds.load(play.path)
    }


def body(play: Play, name: str) -> bytes:
    return (play.folder / "web" / name).read_bytes()


# --- what is stored ---


@pytest.mark.parametrize(
    ("output_format", "require", "codes"),
    [
        *((output_format, "any", ["success"] * 5 + ["http_404"]) for output_format in FORMATS),
        ("webdataset", "all", IN_VAIN),
        ("webdataset", "mask", IN_VAIN),
        ("files", "image", ["success"] * 5 + ["http_404"]),
    ],
)
def test_a_row_is_a_success_if_what_is_required_is_there(output_format: str, require: str, codes: list[str]) -> None:
    play = listed(output_format=output_format, require=require)
    outcome = made(play)
    assert [row["error_code"] or row["status"] for row in outcome.metadata] == codes
    stored = {
        row["key"]: {
            name: body(play, file)
            for name, file in zip(("image", "mask"), pair, strict=True)
            if file and row[f"{name}_status"] == "success"
        }
        for pair, row in zip(PAIRS, outcome.metadata, strict=True)
        if row["status"] == "success"
    }
    assert contents(play) == stored
    assert stored["000000"].keys() == {"image", "mask"}
    assert all(sample["data"] == stored[sample["key"]]["image"] for sample in any2ds.load(play.path))
    assert play.run("verify").exit_code == 0
    if require == "all":
        assert outcome.requests["i4.jpg"] == 0  # its row cannot become a sample
        assert list(outcome.samples[0].files) == ["image.jpg", "mask.png", "json"]


def test_each_member_has_columns_of_its_own() -> None:
    play = listed(pairs=PAIRS[:4], output_format="files")
    outcome = made(play)
    assert column(outcome, "url") == column(outcome, "image_url") == [play.web.url(f"i{n}.jpg") for n in range(4)]
    assert column(outcome, "mask_url") == [play.web.url(f"m{n}.png") for n in range(4)]
    assert column(outcome, "image_status") == ["success"] * 4
    assert column(outcome, "mask_error_code") == column(outcome, "error_code") == [None, None, "http_404", "http_503"]
    assert outcome.metadata[2]["error_message"].startswith("mask: ")
    assert column(outcome, "ext") == ["image.jpg", "image.jpg", None, None]
    assert column(outcome, "mask_ext") == ["png", "png", None, None]
    assert outcome.metadata[0]["mask_md5"] == hashlib.md5(body(play, "m0.png")).hexdigest()
    assert column(outcome, "attempts") == [2, 2, 2, 2]
    stats = json.loads(outcome.files["00000_stats.json"])
    assert stats["examples"]["http_503"] == play.web.url("m3.png")  # the URL that failed, not the first of its row


def test_each_url_fails_for_itself() -> None:
    answers = {"a.bin": "ok", "loop.bin": "redirect:loop.bin", "late.bin": ["timeout", "ok"], "gone.bin": "404"}
    pairs: list[Pair] = [
        ("a.bin", "loop.bin"),
        ("late.bin", "gone.bin"),  # a retry would be in vain: the other one is gone
        (None, " "),
        ("no url", "a.bin"),
        ("a.bin", "a.bin"),
    ]
    outcome = made(listed(answers, pairs, number_sample_per_shard=9, timeout=1))
    codes = ["too_many_redirects", outcome.metadata[1]["image_error_code"], "bad_url", "bad_url", None]
    assert codes[1].startswith("timeout")
    assert column(outcome, "error_code") == codes
    assert column(outcome, "image_error_code") == [None, *codes[1:]]
    assert column(outcome, "mask_error_code") == ["too_many_redirects", "http_404", None, None, None]
    assert outcome.requests["a.bin"] == 1


def test_rows_with_the_same_urls_are_duplicates_in_a_run() -> None:
    outcome = made(listed(pairs=[PAIRS[0], ("i0.jpg", "m1.png"), PAIRS[0]], dedupe="run"))
    assert outcome.codes == {"success": 2, "duplicate": 1}


def test_large_members_wait_on_disk() -> None:
    """The mask of the first row comes last: with little memory all that arrives before it is in the spool."""
    answers: dict[str, Any] = {f"{n}.bin": Row(body=bytes([n]) * (3 << 20)) for n in range(8)}
    pairs: list[Pair] = [("0.bin", "late.bin"), *((f"{n}.bin", f"{7 - n}.bin") for n in range(1, 8))]
    play = listed(answers | {"late.bin": "slow:0.2"}, pairs, output_format="parquet", number_sample_per_shard=8)
    assert column(made(play, max_buffered_bytes="1MiB"), "status") == ["success"] * 8
    assert all(found["mask"] == bytes([7 - n]) * (3 << 20) for n, found in enumerate(contents(play).values()) if n)
    assert play.run("verify").exit_code == 0


def test_user_names_and_passwords_are_stored_nowhere() -> None:
    play = listed()
    secret = play.web.url("m0.png").replace("://", "://user:hidden@")
    rows = [{"img": play.web.url("i0.jpg"), "seg": secret}, {"img": secret, "seg": play.web.url("i0.jpg")}]
    (play.folder / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    outcome = made(play)
    assert outcome.metadata[0]["mask_url"] == play.web.url("m0.png")
    assert not [name for name, content in outcome.files.items() if b"hidden" in content]


def test_a_list_in_which_another_url_of_a_row_has_changed_is_refused() -> None:
    play = listed(pairs=PAIRS[:2])
    made(play)
    (play.folder / "l.jsonl").write_text((play.folder / "l.jsonl").read_text().replace("m1.png", "m0.png"))
    outcome = play.run("download", "l.jsonl")
    assert (outcome.exit_code, outcome.requests.total(), "other URLs" in outcome.screen) == (2, 0, True)


# --- a second try ---


@pytest.mark.parametrize("output_format", [*FORMATS, "dummy"])
def test_a_retry_fetches_rows_that_failed_as_a_whole(output_format: str) -> None:
    play = listed(output_format=output_format)
    made(play)
    tried = [play.run("retry") for _ in range(3)]
    assert [outcome.requests for outcome in tried] == [{"i3.jpg": 1, "m3.png": 1}] * 2 + [{}]
    row = tried[-1].metadata[3]
    assert (row["key"], row["mask_status"], row["status"]) == ("000003", "success", "success")
    assert play.run("verify").exit_code == 0
    if output_format != "dummy":
        assert contents(play)["000003"] == {"image": body(play, "i3.jpg"), "mask": body(play, "m3.png")}


def test_a_row_without_a_file_that_is_not_required_is_a_success() -> None:
    play = listed(require="image")
    made(play)
    assert play.run("retry").requests.total() == 0


# --- what people are told ---


def test_each_place_tells_which_member_failed_and_why() -> None:
    play = listed(output_format="files", require="image")
    said = " ".join(made(play).screen.split())
    assert "image: 5 arrived, 1 failed (http_404 1)" in said
    assert "mask: 2 arrived, 3 failed (http_404 2, http_503 1), 1 absent" in said
    summary = any2ds.inspect(play.path)
    assert [(each.name, each.arrived, each.failed) for each in summary.members] == [("image", 5, 1), ("mask", 2, 3)]
    assert {name: each.files for name, each in summary.types.items()} == {"image/jpeg": 5, "image/png": 2}
    page = play.run("report", samples=0).files["report.html"].decode()
    assert re.findall(r'data-member="(\w+)" data-failed="(\d+)"', page) == [("image", "1"), ("mask", "3")]
    card = play.run("card", output="-").stdout
    assert "| mask | 2 | 3 | 1 | http" in card
    assert "| `image_*`, `mask_*` | |" in card


@pytest.mark.parametrize("times", [1, 2])
def test_members_of_rows_that_were_tried_again_count_once(times: int) -> None:
    answers = dict.fromkeys(["i0.jpg", "m0.png", "i1.jpg", "i2.jpg"], "ok")
    play = listed(answers | {"m1.png": [*["503"] * times, "ok"], "m2.png": "404"}, PAIRS[:3])
    made(play)
    for _ in range(times):
        play.run("retry", codes="all")
    summary = any2ds.inspect(play.path)
    assert [(member.arrived, member.failed) for member in summary.members] == [(3, 0), (2, 1)]
    assert summary.outcomes == {"success": 2, "http_404": 1}


# --- hashes of the list ---

# The mask of row 1 is another, the image of row 2 too; row 3 expects nothing of its image, row 4 has no mask.
HASHED = dict.fromkeys([name for pair in PAIRS[:5] for name in pair if name], "ok")
CHECKS = "image:isum:sha256,mask:msum:md5"


def hashed(answers: Any = HASHED, **options: Any) -> Play:
    play = listed(answers, PAIRS[:5])
    sums = [
        {
            "isum": hashlib.sha256(body(play, f"i{n}.jpg")).hexdigest() if n != 3 else None,
            "msum": hashlib.md5(body(play, f"m{n}.png")).hexdigest() if n != 4 else None,
        }
        for n in range(5)
    ]
    sums[1]["msum"], sums[2]["isum"] = "0" * 32, hashlib.sha256(b"other").hexdigest()
    return listed(answers, PAIRS[:5], sums, **{"verify_hash": CHECKS, **options})


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        ({"require": "any"}, ["success"] * 4),
        ({}, ["success", "failed_to_subsample", "failed_to_subsample", "success"]),
        ({"on_hash_mismatch": "drop"}, ["success", "dropped", "dropped", "success"]),
        ({"on_hash_mismatch": "flag"}, ["success"] * 4),
        ({"verify_hash": {"mask": ["msum", "md5"]}}, ["success", "failed_to_subsample", "success", "success"]),
    ],
    ids=["one is enough", "the row fails", "it is dropped", "it is flagged", "masks alone"],
)
def test_each_file_is_compared_with_the_hash_of_its_member(options: dict[str, Any], outcomes: list[str]) -> None:
    play = hashed(**options)
    outcome = made(play)
    assert column(outcome, "status") == [*outcomes, "success" if "require" in options else "failed_to_download"]
    images = [True, True, False, None] if "verify_hash" not in options else [None] * 4
    assert column(outcome, "image_hash_matches")[:4] == images
    assert column(outcome, "mask_hash_matches")[:4] == [True, False, True, True]
    assert not {"isum", "msum", "expected_hash", "hash_matches"} & outcome.metadata[0].keys()
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_retry_compares_what_it_fetches(output_format: str) -> None:
    play = hashed(HASHED | {"m0.png": ["503", "ok"], "i2.jpg": ["503", "ok"]}, output_format=output_format)
    made(play)
    outcome = play.run("retry")
    assert outcome.requests == {"i0.jpg": 1, "m0.png": 1, "i2.jpg": 1, "m2.png": 1}
    assert (outcome.metadata[0]["status"], outcome.metadata[0]["mask_hash_matches"]) == ("success", True)
    other = outcome.metadata[2]
    assert (other["image_error_code"], other["image_hash_matches"]) == ("hash_mismatch", False)
    assert play.run("verify").exit_code == 0


def test_rows_with_one_url_share_a_transfer_only_if_they_expect_the_same() -> None:
    right = hashlib.md5(body(listed(), "m1.png")).hexdigest()
    sums = [{"msum": right}, {"msum": "0" * 32}, {"msum": right}]
    outcome = made(listed(pairs=[PAIRS[1]] * 3, columns=sums, verify_hash="mask:msum:md5"))
    assert outcome.codes == {"success": 2, "hash_mismatch": 1}
    assert outcome.requests == {"i1.jpg": 1, "m1.png": 2}


# --- options of one member ---

CLASSES = (0, 3, 7, 255)  # of the pixels of a mask
OF_THE_MASK = "mask:encode_format=png,downscale_interpolation=nearest_exact"
SMALLER = {"file_size": 96, "encode_format": "jpg", "encode_quality": 98, "resize_mode": "center_crop"}


def encoded(pixels: Any, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


def opened(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def pictured(**options: Any) -> Play:
    """Images that show their masks, rings in several sizes; the last image lies on its side, as its EXIF says."""
    rows: dict[str, Row] = {}
    for n, (width, height) in enumerate([(301, 200), (200, 301), (517, 389), (240, 400)]):
        down, across = np.mgrid[0:height, 0:width]
        ring = np.hypot(across - width * 0.55, down - height * 0.4) / min(width, height) * 8
        mask = np.array(CLASSES, np.uint8)[np.minimum(ring.astype(int), 3)]
        exif = Image.Exif()
        exif[0x0112] = 6 if n == 3 else 1
        image = np.stack([np.rot90(mask) if n == 3 else mask] * 3, axis=2)
        rows[f"i{n}.jpg"] = Row(body=encoded(image, "JPEG", quality=98, exif=exif.tobytes()))
        rows[f"m{n}.png"] = Row(body=encoded(mask, "PNG"))
    return listed(rows, PAIRS[:4], **options)


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_a_mask_keeps_its_classes_while_its_image_becomes_a_jpeg(output_format: str) -> None:
    play = pictured(output_format=output_format, member_options=OF_THE_MASK, **SMALLER)
    made(play)
    samples = any2ds.load(play.path)
    for sample in samples:
        image, mask = opened(sample["image"]), opened(sample["mask"])
        assert (sample["image_ext"], sample["mask_ext"]) == ("jpg", "png")
        assert (image.shape, mask.shape) == ((96, 96, 3), (96, 96))
        assert set(np.unique(mask)) <= set(CLASSES)
        # The image shows the mask: both were cut and turned alike, to the pixel.
        assert np.mean(np.abs(image[:, :, 0].astype(int) - mask) > 40) < 0.04
    assert len(samples) == 4
    assert play.run("verify").exit_code == 0
    other = play.run("download", "l.jsonl", member_options="mask:encode_format=webp")
    assert (other.exit_code, other.requests.total(), "member_options" in other.screen) == (2, 0, True)


@pytest.mark.parametrize("resize_mode", ["keep_ratio", "keep_ratio_largest", "center_crop", "border"])
@pytest.mark.parametrize("is_only_if_bigger", [True, False])
def test_files_of_one_size_stay_of_one_size(resize_mode: str, is_only_if_bigger: bool) -> None:
    options = {"file_size": 250, "resize_mode": resize_mode, "resize_only_if_bigger": is_only_if_bigger}
    larger = "" if is_only_if_bigger else ",upscale_interpolation=nearest_exact"
    outcome = made(pictured(member_options=OF_THE_MASK + larger, **options))
    for side in ("width", "height"):
        assert column(outcome, f"image_{side}") == column(outcome, f"mask_{side}")


def test_options_of_a_member_take_the_place_of_those_for_all() -> None:
    play = pictured(member_options={"mask": {"disable_all_reencoding": True}, "image": {"file_size": 50}}, **SMALLER)
    made(play)
    for n, sample in enumerate(any2ds.load(play.path)):
        assert opened(sample["image"]).shape == (50, 50, 3)
        assert bytes(sample["mask"]) == body(play, f"m{n}.png")
        assert (sample["image_width"], sample["mask_width"], sample["mask_stored_bytes"]) == (50, None, None)


def test_a_step_that_only_one_member_has_leaves_the_others_alone() -> None:
    page = Row(body=b"<!doctype html><p>not here")
    play = listed({"i0.jpg": page, "m0.png": "ok", "i1.jpg": "ok", "m1.png": page}, PAIRS[:2], require="any")
    outcome = made(play, member_options="image:only_images=True")
    assert column(outcome, "image_error_code") == ["not_decodable", None]
    assert column(outcome, "mask_status") == ["success"] * 2


def test_the_same_url_for_two_members_goes_through_the_steps_of_each_which_know_the_member() -> None:
    play = listed(pairs=[("i0.jpg", "i0.jpg")], transform="step.py:shout", member_options="mask:file_size=20")
    (play.folder / "step.py").write_text(
        "import any2ds\n@any2ds.transform(columns={'which': str})\n"
        "def shout(sample):\n    return sample.with_fields(which=sample.member.upper())\n"
    )
    assert made(play).codes == {"success": 1}
    (sample,) = any2ds.load(play.path)
    assert (opened(sample["image"]).shape, opened(sample["mask"]).shape) == ((48, 64, 3), (20, 27, 3))
    assert (sample["image_which"], sample["mask_which"], sample["which"]) == ("IMAGE", "MASK", "IMAGE")


def test_a_retry_treats_each_member_as_the_run_did() -> None:
    play = pictured(member_options=OF_THE_MASK, **SMALLER)
    made(play)
    whole = contents(play)
    rows = {
        name: Row(["503", "ok"] if name in ("m1.png", "i2.jpg") else "ok", row.body) for name, row in play.rows.items()
    }
    late = listed(rows, PAIRS[:4], member_options=OF_THE_MASK, **SMALLER)
    assert made(late).codes == {"success": 2, "http_503": 2}
    assert late.run("retry").codes == {"success": 4}
    assert contents(late) == whole


# --- what is read back ---


@pytest.mark.parametrize("output_format", FORMATS)
def test_verify_finds_a_member_that_is_not_the_one_that_arrived(output_format: str) -> None:
    play = listed(pairs=PAIRS[:2], output_format=output_format)
    made(play)
    ending = {"webdataset": ".tar", "files": "/000001.mask.png"}.get(output_format, f".{output_format}")
    file = Path(play.path, f"00000{ending}")
    content = file.read_bytes()
    at = content.rindex(b"IDAT") + 6
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert play.run("verify").exit_code == 1
    if output_format == "files":
        file.unlink()
        assert ["mask" in finding.message for finding in any2ds.verify(play.path, quiet=True).findings] == [True]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_to_webdataset_gives_each_file_by_its_member(output_format: str) -> None:
    play = listed(pairs=PAIRS[:2], columns=[{"text": "a"}, {"text": "b"}], caption_col="text")
    made(play, output_format=output_format)
    sample = next(iter(any2ds.load(play.path).to_webdataset()))
    assert {"image.jpg", "mask.png", "json", "txt"} <= sample.keys()
    assert b"IDAT" in sample["mask.png"]
    assert len(sample["json"]) < 4000  # no file is in it


def test_the_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n([^`]*pairs\.parquet.*?)```", (ROOT / "docs/lists.md").read_text(), re.DOTALL)
    play = listed()
    urls = {f"{name}_url": [play.web.url(f"{name[0]}{n}.{ext}") for n in (0, 1)] for name, ext in KINDS.items()}
    pq.write_table(pa.table(urls), play.folder / "pairs.parquet")
    found: dict[str, Any] = {}
    with play.inside():
        exec(code, found)
    assert found["sample"]["mask_mime_type"] == "image/png"


# --- what cannot be ---

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url_col": "image:img,image:seg"}, "'image' is given twice"),
    ({"url_col": "image:img,ma.sk:seg"}, "'ma.sk' cannot be a member"),
    ({"url_col": "image:img,ma/sk:seg"}, "'ma/sk' cannot be a member"),
    ({"url_col": "image:img,Mask:seg"}, "'Mask' cannot be a member"),
    ({"url_col": "image:img,:seg"}, "'' cannot be a member"),
    ({"url_col": "image:img,mask:missing"}, "missing"),
    ({"url_col": {"image": "img", "mask": "a,b"}}, "no comma"),
    ({"url_col": {"image": "img"}}, "two members"),
    ({"url_col": "image:img,data:seg"}, "data"),
    ({"url_col": "http:img,mask:seg"}, "http_status"),
    ({"require": "sound"}, "sound"),
    ({"url_col": "img", "require": "any"}, "require"),
    ({"unpack": True}, "unpack"),
    ({"preset": "img2dataset"}, "preset"),
    ({"verify_hash": "isum:sha256"}, "for none of image, mask"),
    ({"verify_hash": "sound:isum:sha256"}, "sound:isum:sha256 is for none of"),
    ({"verify_hash": "image:isum:sha256,image:msum:md5"}, "each member once"),
    ({"verify_hash": {"image": "isum:crc"}}, "md5, sha256 or sha512"),
    ({"url_col": "img", "verify_hash": CHECKS}, "needs several URLs"),
    ({"member_options": "sound:audio_rate=16000"}, "'sound' is none of image, mask"),
    ({"member_options": "mask:encode_formt=png"}, "encode_format"),
    ({"member_options": "mask:encode_format=tiff"}, "mask: invalid encode_format='tiff'"),
    ({"member_options": "mask:timeout=3"}, "mask: 'timeout'"),
    ({"member_options": "mask:transform=json:dumps"}, "for all members alike"),
    ({"member_options": "mask:frames=3"}, "one sample"),
    ({"member_options": "mask:encode_quality=80"}, "mask: encode_quality has no effect"),
    ({"member_options": "mask:encode_format=png,encode_quality=80"}, "mask: encode_quality=80: for png"),
    ({"member_options": "mask:encode_format=png,encode_format=jpg"}, "given twice"),
    ({"member_options": "encode_format=png"}, "member:option=value"),
    ({"member_options": "mask:disable_all_reencoding=True,file_size=20"}, "mask: disable_all_reencoding"),
    ({"member_options": "mask:bbox_col=seg"}, "bbox_col: 'seg' is url_col already"),
    ({"member_options": "mask:file_size=20", "url_col": "img"}, "without several URLs"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    play = listed(pairs=PAIRS[:1], columns=[{"isum": "x", "msum": "y"}], way="python")
    outcome = play.run("download", "l.jsonl", **options)
    assert isinstance(outcome.error, any2ds.UsageError)
    assert words in str(outcome.error)
    assert (outcome.requests.total(), outcome.files) == (0, {})
