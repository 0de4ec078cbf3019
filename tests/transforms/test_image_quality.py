"""What making images smaller does to them, against the plain way: decode in full, average, encode."""

from typing import Any

import cv2
import numpy as np
import pytest

from tests.support.pictures import jpeg, photograph, through


def harsh(width: int, height: int) -> Any:
    """Noise, lines and letters in all colours: what averaging in another way shows on the most."""
    random = np.random.default_rng(7)
    pixels = photograph(width, height, 1, noise=12)
    for _ in range(60):
        ends = [tuple(int(part) for part in random.integers(0, (width, height))) for _ in range(2)]
        colour = [int(part) for part in random.integers(0, 255, 3)]
        cv2.line(pixels, ends[0], ends[1], colour, int(random.integers(1, 5)), cv2.LINE_AA)
        cv2.putText(pixels, "any text", ends[0], cv2.FONT_HERSHEY_SIMPLEX, 1, colour, 2, cv2.LINE_AA)
    return pixels


def plainly(data: bytes, width: int, height: int) -> Any:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)


def decoded(data: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


# By 2, 4 and 8; sizes that they divide, and others: rounded up, those would be stretched by up to a pixel.
@pytest.mark.parametrize(
    ("width", "height"),
    [(512, 512), (519, 601), (800, 600), (1025, 769), (1023, 1023), (1100, 1100), (1366, 1030), (2055, 2049)],
)
@pytest.mark.slow
def test_decoding_less_of_a_jpeg_costs_less_quality_than_encoding_it_again(width: int, height: int) -> None:
    for pixels, at_least in ((photograph(width, height), 42.0), (harsh(width, height), 30.0)):
        data = jpeg(pixels)
        made = through(data, encode_format="png")
        plain = plainly(data, made.fields["width"], made.fields["height"])
        found, again = cv2.PSNR(decoded(made.data), plain), cv2.PSNR(decoded(jpeg(plain, 95)), plain)
        assert found > at_least
        assert found > again + 1


@pytest.mark.parametrize(("width", "height"), [(511, 400), (480, 360), (330, 300), (300, 300), (257, 511), (512, 40)])
def test_jpegs_below_twice_the_size_differ_from_the_plain_way_by_a_sixth_of_what_encoding_costs(
    width: int, height: int
) -> None:
    for pixels, at_least in ((photograph(width, height), 45.0), (harsh(width, height), 33.0)):
        data = jpeg(pixels)
        made = through(data, encode_format="png", resize_mode="keep_ratio_largest")
        plain = plainly(data, made.fields["width"], made.fields["height"])
        found, again = cv2.PSNR(decoded(made.data), plain), cv2.PSNR(decoded(jpeg(plain, 95)), plain)
        assert found > at_least
        assert found > again + 8


@pytest.mark.parametrize(("width", "height"), [(511, 400), (300, 300), (257, 511), (800, 600)])
def test_of_other_formats_every_pixel_is_the_plain_one(width: int, height: int) -> None:
    data = bytes(cv2.imencode(".png", harsh(width, height))[1])
    made = through(data)
    assert (decoded(made.data) == plainly(data, made.fields["width"], made.fields["height"])).all()


def test_other_interpolations_see_every_pixel() -> None:
    data = jpeg(harsh(1024, 1024))
    full = decoded(data)
    for name, method in (("nearest", cv2.INTER_NEAREST), ("cubic", cv2.INTER_CUBIC), ("lanczos", cv2.INTER_LANCZOS4)):
        made = decoded(through(data, encode_format="png", downscale_interpolation=name).data)
        assert (made == cv2.resize(full, (256, 256), interpolation=method)).all()


def test_images_are_made_larger_by_the_other_interpolation() -> None:
    data = jpeg(harsh(100, 80))
    made = through(data, encode_format="png", resize_only_if_bigger=False, upscale_interpolation="cubic")
    assert (decoded(made.data) == cv2.resize(decoded(data), (320, 256), interpolation=cv2.INTER_CUBIC)).all()


def test_quality_is_what_is_asked_for() -> None:
    data = jpeg(photograph(600, 500))
    for format in ("jpg", "webp", "avif"):
        sizes = [through(data, encode_format=format, encode_quality=quality).size for quality in (30, 60, 95)]
        assert sizes == sorted(sizes)
        assert sizes[0] * 2 < sizes[2]
    sizes = [through(data, encode_format="png", encode_quality=level).size for level in (0, 9)]
    assert sizes[1] < sizes[0]
