"""Colours of images: alpha, grey, palettes, CMYK, 16 bits, profiles; and boxes that are blurred."""

import io
import math
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms

from any2ds.core.samples import Sample
from tests.support.pictures import encoded, jpeg, photograph, through

PICTURE = photograph(450, 300)


def pixels_of(sample: Sample, mode: str = "RGB") -> Any:
    assert sample.failure is None, sample.failure
    return np.asarray(Image.open(io.BytesIO(sample.data)).convert(mode)).astype(int)


def mode_of(sample: Sample) -> str:
    return Image.open(io.BytesIO(sample.data)).mode


def saved(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, format, **options)
    return sink.getvalue()


# --- alpha ---


def half_seen() -> Image.Image:
    """Blue on the left; on the right red that cannot be seen."""
    pixels = np.zeros((600, 600, 4), np.uint8)
    pixels[:, :301] = (0, 0, 255, 255)
    pixels[:, 301:] = (255, 0, 0, 0)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "AVIF", "TIFF"])
def test_alpha_stays_and_what_cannot_be_seen_does_not_bleed(format: str) -> None:
    made = through(saved(half_seen(), format, **({"lossless": True} if format == "WEBP" else {})))
    assert mode_of(made) == "RGBA"
    found = pixels_of(made, "RGBA")
    seen = found[found[..., 3] > 40]
    assert len(seen) > 30_000
    assert seen[:, 0].max() < 64  # as AVIF mixes colours; with red in it, it would be 128
    assert (found[:, 200:, 3] < 8).all()


def test_jpeg_has_white_where_nothing_is_seen() -> None:
    made = through(saved(half_seen()), encode_format="jpg")
    found = pixels_of(made)
    assert (found[:, 140:] > 245).all()
    assert (abs(found[:, :120] - (0, 0, 255)) < 12).all()


def test_a_gif_that_lets_something_through_becomes_png_and_one_that_does_not_jpg() -> None:
    seen_through = Image.fromarray(np.zeros((300, 300), np.uint8), "P")
    seen_through.putpalette([0, 0, 255, 255, 0, 0])
    seen_through.paste(1, (0, 0, 300, 150))
    assert through(saved(seen_through, "GIF")).ext == "jpg"
    made = through(saved(seen_through, "GIF", transparency=1))
    assert (made.ext, mode_of(made)) == ("png", "RGBA")
    assert (pixels_of(made, "RGBA")[200, 100] == (0, 0, 255, 255)).all()
    assert pixels_of(made, "RGBA")[50, 100, 3] == 0


def test_alpha_that_hides_nothing_is_dropped() -> None:
    assert mode_of(through(encoded(PICTURE, "PNG", "RGBA"))) == "RGB"


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (10, 20, 30)), ("L", 77)])
def test_a_png_may_name_one_colour_as_not_there(mode: str, colour: Any) -> None:
    image = Image.new(mode, (300, 300), colour)
    image.paste(Image.new(mode, (300, 100), (200, 0, 0) if mode == "RGB" else 200), (0, 0))
    made = through(saved(image, transparency=colour))
    assert pixels_of(made, "RGBA")[200, 100, 3] == 0
    assert pixels_of(made, "RGBA")[20, 100, 3] == 255


# --- grey, palettes, CMYK, depth ---


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "GIF"])
def test_grey_stays_grey(format: str) -> None:
    made = through(encoded(PICTURE, format, "L"))
    assert mode_of(made) in (("L",) if format != "GIF" else ("L", "RGB"))
    grey = cv2.resize(np.asarray(Image.open(io.BytesIO(encoded(PICTURE, "PNG", "L")))), (384, 256), interpolation=3)
    assert abs(pixels_of(made, "L") - grey).mean() < 3


def test_palettes_and_bits_become_colours_that_can_be_averaged() -> None:
    checks = Image.fromarray((np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)).convert("1")
    for format in ("PNG", "TIFF"):
        found = pixels_of(through(saved(checks, format)))
        assert (abs(found - 127.5) < 3).all()
    assert abs(pixels_of(through(encoded(PICTURE, "PNG", "P"))) - pixels_of(through(encoded(PICTURE)))).mean() < 25


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
@pytest.mark.parametrize("size", [256, 1000])
def test_cmyk_becomes_rgb(format: str, size: int) -> None:
    data = encoded(PICTURE, format, "CMYK")
    made = through(data, file_size=size, encode_format="jpg")
    assert mode_of(made) == "RGB"
    plain = pixels_of(through(encoded(PICTURE), file_size=size, encode_format="png"))
    assert abs(pixels_of(made) - plain).mean() < 4


def deep(channels: int) -> Any:
    """16 bits, of which the lower ones say something."""
    ramp = np.linspace(0, 65535, 512 * 512 * channels, dtype=np.float64).astype(np.uint16)
    return ramp.reshape((512, 512, channels) if channels > 1 else (512, 512))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_16_bits_stay_in_png_and_become_8_elsewhere(channels: int) -> None:
    pixels = deep(channels)
    if channels == 4:
        pixels[..., 3] = 65535
        pixels[:40, :, 3] = 0
    data = cv2.imencode(".png", pixels)[1].tobytes()
    made = cv2.imdecode(np.frombuffer(through(data).data, np.uint8), cv2.IMREAD_UNCHANGED)
    want = cv2.resize(pixels, (256, 256), interpolation=cv2.INTER_AREA)
    assert made.dtype == np.uint16
    assert (abs(made.astype(int) - want)[30:] <= 2).all()
    eight = through(data, encode_format="jpg")
    assert abs(pixels_of(eight)[100:].mean() - want[100:, ..., : min(3, channels)].mean() / 257) < 1.5


def test_what_is_no_colour_is_left_as_it_came() -> None:
    data = saved(Image.fromarray(np.linspace(-5, 5, 640_000, dtype=np.float32).reshape(800, 800)), "TIFF")
    made = through(data)
    assert made.data is data
    assert (made.fields["width"], made.fields["original_width"]) == (800, 800)


# --- profiles ---


def other_profile() -> bytes:
    """sRGB with red and green changed about."""
    data = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = data.replace(b"rXYZ", b"?XYZ").replace(b"gXYZ", b"rXYZ").replace(b"?XYZ", b"gXYZ")
    return swapped.replace("sRGB".encode("utf-16-be"), "tRGB".encode("utf-16-be"))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("side", [100, 600])
def test_other_colour_spaces_become_srgb(format: str, side: int) -> None:
    image = Image.new("RGB", (side, side), (200, 30, 90))
    made = through(saved(image, format, icc_profile=other_profile()))
    assert (abs(pixels_of(made) - (30, 200, 90)) < 6).all()
    assert "icc_profile" not in Image.open(io.BytesIO(made.data)).info


def test_a_profile_of_several_segments_is_put_together() -> None:
    profile = other_profile()
    large = profile + bytes(150_000 - len(profile))
    large = len(large).to_bytes(4, "big") + large[4:]
    made = through(saved(Image.new("RGB", (300, 300), (200, 30, 90)), "JPEG", icc_profile=large))
    assert (abs(pixels_of(made) - (30, 200, 90)) < 6).all()


def test_alpha_is_no_colour() -> None:
    image = Image.new("RGBA", (300, 300), (200, 30, 90, 128))
    made = through(saved(image, icc_profile=other_profile()))
    assert (abs(pixels_of(made, "RGBA") - (30, 200, 90, 128)) < 6).all()


def test_srgb_and_broken_profiles_change_nothing() -> None:
    usual = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    small = photograph(100, 80)
    for profile in (usual, b"broken" * 50, other_profile()[:200]):
        data = encoded(small, "JPEG", icc_profile=profile)
        assert through(data).data is data
        made = through(encoded(PICTURE, "PNG", icc_profile=profile))
        assert (pixels_of(made) == pixels_of(through(encoded(PICTURE)))).all()


def test_a_profile_for_other_channels_changes_nothing() -> None:
    data = encoded(photograph(100, 80), "JPEG", "L", icc_profile=other_profile())
    assert through(data, skip_reencode=False, encode_format="png").failure is None


# --- boxes ---

BOX = [0.25, 0.25, 0.5, 0.5]


def roughness(pixels: Any) -> float:
    return float(np.abs(np.diff(pixels.astype(float), axis=1)).mean())


def noise(width: int, height: int) -> Any:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("value", [[BOX], "[[0.25, 0.25, 0.5, 0.5]]", [tuple(BOX)]])
@pytest.mark.parametrize("side", [200, 600])
def test_boxes_are_blurred_and_nothing_else(side: int, value: Any) -> None:
    plain = pixels_of(through(encoded(noise(side, side))))
    made = through(encoded(noise(side, side)), row={"faces": value}, bbox_col="faces")
    found, size = pixels_of(made), plain.shape[0]
    inside = slice(size // 4, size // 2)
    assert roughness(found[inside, inside]) < roughness(plain[inside, inside]) / 8
    beyond = int(size * 0.5 + size * 0.25 * 0.1) + 2
    assert (found[beyond:] == plain[beyond:]).all()
    assert (found[:, beyond:] == plain[:, beyond:]).all()


def test_boxes_are_those_of_the_whole_image_seen_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(noise(400, 300), "PNG", exif=exif)  # 300 x 400 upright
    found = pixels_of(through(data, row={"faces": [[0, 0, 1, 0.25]]}, bbox_col="faces", resize_mode="center_crop"))
    assert roughness(found[:50]) < 8
    assert roughness(found[100:]) > 15


@pytest.mark.parametrize("value", [None, [], "", "[]", "null"])
def test_without_boxes_nothing_is_blurred(value: Any) -> None:
    data = jpeg(photograph(100, 80))
    assert through(data, row={"faces": value}, bbox_col="faces").data is data


@pytest.mark.parametrize(
    "value",
    [
        [[10, 10, 90, 60]],  # pixels
        [[0, 0, 1]],
        [0, 0, 1, 1],
        "x",
        "{}",
        "[" * 100_000,
        5,
        0,
        False,
        math.nan,
        {"left": 0},
        [None],
        [BOX, None],
        ["0011"],
        [["a", 0, 1, 1]],
        [[None, 0, 1, 1]],
        [[False, 0, 1, True]],
        [[0, 0, math.nan, 1]],
        "[[0, 0, NaN, 1]]",
        [[0.5, 0, 0.1, 1]],  # right of its right side
        [[0, 0.5, 1, 0.1]],
        [[0.5, 0, 0.5, 1]],  # nothing lies within
        [[1.1, 0, 1.2, 1]],  # beside the image
        [[0, -0.4, 1, -0.1]],
    ],
    ids=lambda value: repr(value)[:30],
)
def test_boxes_that_say_nothing_fail_their_row(value: Any) -> None:
    made = through(jpeg(PICTURE), row={"faces": value}, bbox_col="faces")
    assert made.failure is not None
    assert (made.failure.code, made.body) == ("bad_boxes", None)
    assert "faces: expected [[left, top, right, bottom], ...]" in made.failure.detail


def test_a_box_may_reach_a_little_over_the_edge() -> None:
    found = pixels_of(through(encoded(noise(200, 200)), row={"faces": [[-0.2, -0.1, 0.5, 0.5]]}, bbox_col="faces"))
    assert roughness(found[:90, :90]) < 8


def test_what_cannot_be_blurred_is_not_stored() -> None:
    floats = saved(Image.fromarray(np.zeros((300, 300), np.float32)), "TIFF")
    for data, served_as in ((floats, None), (b"<svg/>", "image/png")):
        made = through(data, served_as, row={"faces": [BOX]}, bbox_col="faces")
        assert made.failure is not None
        assert (made.failure.code, made.body) == ("not_blurrable", None)


def test_images_of_kinds_that_are_not_decoded_are_not_stored_either_where_they_have_boxes() -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0" * 100
    made = through(heic, row={"faces": [BOX]}, bbox_col="faces")
    assert made.failure is not None
    assert (made.failure.code, made.body) == ("not_blurrable", None)
    malformed = through(heic, row={"faces": "soon"}, bbox_col="faces")
    assert malformed.failure is not None
    assert (malformed.failure.code, malformed.body) == ("bad_boxes", None)
    assert through(heic, row={"faces": None}, bbox_col="faces").data == heic
    assert through(heic).data == heic
