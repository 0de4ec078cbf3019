"""What becomes of images, file by file: sizes, formats, limits, and what is broken."""

import io
import json
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from any2ds.core.errors import OptionError
from any2ds.core.samples import Sample
from any2ds.transforms.image.encode import MIME_TYPES
from tests.support.pictures import encoded, jpeg, photograph, through

LARGE = photograph(480, 300)
SMALL = photograph(120, 80)
KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "AVIF": "avif"}  # Pillow's name -> extension
FORMATS = {**KEPT, **dict.fromkeys(("GIF", "BMP", "TIFF", "JPEG2000"), "jpg")}


def opened(sample: Sample) -> Image.Image:
    assert sample.failure is None, sample.failure
    image = Image.open(io.BytesIO(sample.data))
    image.load()
    return image


def sizes(sample: Sample) -> tuple[Any, ...]:
    return tuple(sample.fields.get(name) for name in ("width", "height", "original_width", "original_height"))


def code(sample: Sample) -> str | None:
    return sample.failure and sample.failure.code


@pytest.mark.parametrize(("format", "ext"), FORMATS.items())
def test_every_kind_is_made_smaller_and_stays_in_its_format_if_that_can_be_written(format: str, ext: str) -> None:
    made = through(encoded(LARGE, format))
    assert sizes(made) == (410, 256, 480, 300)
    assert opened(made).size == (410, 256)
    assert (made.ext, made.mime_type) == (ext, MIME_TYPES[ext])
    assert opened(made).format == {"jpg": "JPEG"}.get(ext, ext.upper())
    want = cv2.resize(LARGE, (410, 256), interpolation=cv2.INTER_AREA)[..., ::-1]
    at_least = 22 if format == "GIF" else 30
    assert cv2.PSNR(np.asarray(opened(made).convert("RGB")), np.ascontiguousarray(want)) > at_least


@pytest.mark.parametrize("wanted", MIME_TYPES)
@pytest.mark.parametrize("format", FORMATS)
def test_every_kind_becomes_every_format(format: str, wanted: str) -> None:
    made = through(encoded(SMALL, format), encode_format=wanted)
    assert (made.ext, opened(made).size) == (wanted, (120, 80))


@pytest.mark.parametrize("format", FORMATS)
def test_an_image_that_needs_no_resizing_keeps_its_bytes(format: str) -> None:
    data = encoded(SMALL, format)
    made = through(data)
    assert made.data is data
    assert sizes(made) == (120, 80, 120, 80)
    assert through(encoded(LARGE, format), file_size=0).size == len(encoded(LARGE, format))


@pytest.mark.parametrize("options", [{"skip_reencode": False}, {"resize_only_if_bigger": False}])
def test_unless_it_is_to_be_written_anew(options: dict[str, Any]) -> None:
    data = jpeg(SMALL)
    assert through(data, **options).data != data


@pytest.mark.parametrize("mode", ["center_crop", "border", "keep_ratio"])
@pytest.mark.parametrize("encode_format", ["keep", "png"])
def test_images_too_small_for_a_square_are_counted_as_not_processed(mode: str, encode_format: str) -> None:
    options = {"file_size": 256, "resize_mode": mode, "encode_format": encode_format}
    small, large = (through(jpeg(image), **options).not_processed for image in (SMALL, LARGE))
    expected = {"": "too small for 256 x 256 pixels; --resize_only_if_bigger=False enlarges images"}
    assert small == (None if mode == "keep_ratio" else expected)
    assert large is through(jpeg(photograph(256, 256)), **options).not_processed is None
    assert through(jpeg(SMALL), **options, resize_only_if_bigger=False).not_processed is None


def test_the_middle_is_cropped_and_borders_are_white() -> None:
    whole = np.asarray(opened(through(encoded(LARGE))))
    crop = np.asarray(opened(through(encoded(LARGE), resize_mode="center_crop")))
    assert (crop == whole[:, 77:333]).all()
    bordered = np.asarray(opened(through(encoded(LARGE), resize_mode="border")))
    assert (bordered[:48] == 255).all()
    assert (bordered[208:] == 255).all()
    assert (bordered[48:208] == np.asarray(opened(through(encoded(LARGE), resize_mode="keep_ratio_largest")))).all()


@pytest.mark.parametrize("size", [(9, 3000), (3000, 9), (70, 2100), (17, 17), (1, 4000)])
@pytest.mark.parametrize("mode", ["RGB", "CMYK", "L"])
def test_narrow_images_get_their_size_too(size: tuple[int, int], mode: str) -> None:
    data = encoded(np.full((size[1], size[0], 3), 90, np.uint8), "JPEG", mode)
    made = through(data, resize_mode="keep_ratio_largest")
    scale = min(1.0, 256 / max(size))
    assert opened(made).size == sizes(made)[:2] == tuple(max(1, round(side * scale)) for side in size)


# --- limits ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"min_image_size": 301}, "too_small"),
        ({"min_image_size": 300}, None),
        ({"max_image_area": 480 * 300 - 1}, "too_many_pixels"),
        ({"max_image_area": 480 * 300}, None),
        ({"max_aspect_ratio": 1.59}, "aspect_ratio"),
        ({"max_aspect_ratio": 1.6}, None),
    ],
)
@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_limits_are_those_of_the_original(format: str, options: dict[str, Any], expected: str | None) -> None:
    made = through(encoded(LARGE, format), **options)
    assert code(made) == expected
    assert made.fields["original_width"] == 480


# --- what is broken ---


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_cut_off_is_not_decodable(format: str) -> None:
    data = encoded(LARGE, format)
    for share in (0.05, 0.3, 0.7, 0.95):
        assert code(through(data[: int(len(data) * share)], f"image/{format.lower()}")) == "not_decodable"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"exif": b"thumbnail"}])
def test_a_jpeg_is_cut_off_without_its_last_byte(options: dict[str, Any]) -> None:
    if "exif" in options:  # cameras put a small JPEG, with an end of its own, before the image
        exif = Image.Exif()
        exif[0x9286] = jpeg(SMALL)
        options = {"exif": exif}
    for pixels in (SMALL, LARGE):
        data = encoded(pixels, "JPEG", **options)
        assert code(through(data)) is None
        for end in (*range(4, len(data) - 1, len(data) // 40), len(data) - 2, len(data) - 1):
            assert code(through(data[:end])) == "not_decodable", end


@pytest.mark.parametrize("behind", [b"\0" * 100, b"<!-- served in 3 ms -->", jpeg(SMALL)])
def test_what_follows_a_jpeg_is_no_matter(behind: bytes) -> None:
    assert opened(through(jpeg(LARGE) + behind)).size == (410, 256)


@pytest.mark.parametrize("body", [b"<!DOCTYPE html><html>no</html>", b"\xff\xd8\xff", b"GIF89a", b"x", bytes(1000)])
def test_what_is_served_as_an_image_and_is_none_is_not_decodable(body: bytes) -> None:
    assert code(through(body, "image/jpeg")) == "not_decodable"


@pytest.mark.parametrize(
    ("body", "served_as"),
    [
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
        (b'\n<svg xmlns="http://www.w3.org/2000/svg"/>', "image/png"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "image/heic"),
        (b"<html>", "text/html"),
        (b"anything", None),
    ],
)
def test_what_cannot_be_decoded_anyway_passes_untouched(body: bytes, served_as: str | None) -> None:
    made = through(body, served_as)
    assert made.data is body
    assert "width" not in made.fields


# --- upright, EXIF ---


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("pixels", [LARGE, SMALL], ids=["large", "small"])
def test_images_stand_upright(format: str, orientation: int, pixels: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(pixels, format, exif=exif)
    if format == "TIFF":
        data = encoded(pixels, format, tiffinfo={0x0112: orientation})
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    made = through(data)
    image = opened(made)
    assert sizes(made) == (*image.size, *upright.size)
    assert image.getexif().get(0x0112, 1) == 1
    want = np.asarray(upright.resize(image.size, Image.Resampling.BOX))
    assert cv2.PSNR(np.asarray(image.convert("RGB")), want) > 28


@pytest.mark.parametrize("file_size", [0, 256])
@pytest.mark.parametrize(("format", "ext"), KEPT.items())
def test_an_image_in_the_format_asked_for_stands_upright_whatever_its_size(
    format: str, ext: str, file_size: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(SMALL, format, exif=exif)
    made = through(turned, file_size=file_size, encode_format=ext)
    assert sizes(made) == (80, 120, 80, 120)
    assert opened(made).size == (80, 120)
    assert opened(made).getexif().get(0x0112, 1) == 1
    upright = encoded(SMALL, format)
    assert through(upright, file_size=file_size, encode_format=ext).data is upright
    assert through(turned, file_size=0).data is turned  # neither a size nor a format is asked for


def test_exif_is_json_by_the_names_of_its_standard() -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Maker", "Model\0 "
    exif.get_ifd(0x8769).update({0x829A: 1 / 125, 0x9003: "2026:11:22 05:06:07", 0x927C: b"x" * 5000})
    exif.get_ifd(0x8825).update({1: "N", 2: (51.0, 30.0, 26.4)})
    for format in ("JPEG", "PNG", "WEBP", "AVIF"):
        made = through(encoded(LARGE, format, exif=exif), extract_exif=True)
        found = json.loads(made.fields["exif"])
        assert (found["Make"], found["Model"], found["DateTimeOriginal"]) == ("Maker", "Model", "2026:11:22 05:06:07")
        assert found["ExposureTime"] == pytest.approx(0.008)
        assert found["GPSInfo"] == {"GPSLatitudeRef": "N", "GPSLatitude": [51, 30, 26.4]}
        assert "MakerNote" not in found
    assert "exif" not in through(jpeg(LARGE), extract_exif=True).fields
    assert "exif" not in through(encoded(LARGE, "JPEG", exif=exif)).fields
    broken = encoded(LARGE, "JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 50)
    assert through(broken, extract_exif=True).fields["exif"] is None


@pytest.mark.parametrize(("format", "limit"), [("webp", "16,383"), ("jpg", "65,500"), ("avif", "32,768")])
def test_an_image_with_a_side_too_long_for_its_format_says_so(format: str, limit: str) -> None:
    longest = int(limit.replace(",", ""))
    narrow = np.zeros((2, longest + 1, 3), np.uint8)
    made = through(encoded(narrow, "PNG"), encode_format=format, resize_mode="no")
    assert made.failure is not None
    assert made.failure.code == "not_encodable"
    assert f"{longest + 1} x 2: {format} holds no more than {limit} pixels a side" in made.failure.detail
    if format == "avif":  # which takes seconds for it
        return
    kept = through(encoded(narrow[:, 1:], "PNG"), encode_format=format, resize_mode="no")
    assert sizes(kept)[:2] == opened(kept).size == (longest, 2)


# --- animated ---


def animated(format: str) -> bytes:
    frames = [Image.fromarray(np.full((300, 400, 3), shade, np.uint8)) for shade in (10, 120, 240)]
    sink = io.BytesIO()
    frames[0].save(sink, format, save_all=True, append_images=frames[1:], duration=50)
    return sink.getvalue()


@pytest.mark.parametrize(("format", "ext"), [("GIF", "jpg"), ("WEBP", "webp"), ("PNG", "png"), ("AVIF", "avif")])
def test_of_what_moves_the_first_image_is_taken_or_the_file_kept(format: str, ext: str) -> None:
    data, served_as = animated(format), f"image/{format.lower()}"
    for size in (256, 1000):
        still = through(data, served_as, file_size=size)
        assert still.ext == ext
        assert getattr(opened(still), "n_frames", 1) == 1
        assert abs(int(np.asarray(opened(still).convert("L")).mean()) - 10) <= 3
    kept = through(data, served_as, animated="keep")
    assert kept.data is data
    assert sizes(kept) == (400, 300, 400, 300)
    assert code(through(data, served_as, animated="keep", min_image_size=301)) == "too_small"


# --- options ---


@pytest.mark.parametrize(("format", "quality"), [("png", 10), ("keep", 0), ("webp", 0)])
def test_a_quality_that_the_format_does_not_have_is_refused(format: str, quality: int) -> None:
    with pytest.raises(OptionError, match="encode_quality"):
        through(jpeg(SMALL), encode_format=format, encode_quality=quality)
