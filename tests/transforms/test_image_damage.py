"""JPEGs with wrong bytes in their pixels, which decoders make up for, and odd ones with which nothing is wrong."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from any2ds.core.samples import Sample
from tests.support.pictures import encoded, jpeg, photograph, through

LARGE = photograph(480, 300)
SMALL = photograph(120, 80)
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "with restarts": {"restart_marker_rows": 1},
    "grey": {"mode": "L"},
    "cmyk": {"mode": "CMYK"},
}


def code(sample: Sample) -> str | None:
    return sample.failure and sample.failure.code


def scan_of(data: bytes) -> tuple[int, int]:
    """Where the compressed pixels of the first scan begin, and where the file ends."""
    start = data.index(b"\xff\xda")
    return start + 2 + int.from_bytes(data[start + 2 : start + 4], "big"), data.rindex(b"\xff\xd9")


def without_a_part(data: bytes) -> bytes:
    start, end = scan_of(data)
    middle = (start + end) // 2
    return data[:middle] + data[middle + (end - start) // 5 :]


def closed_early(data: bytes) -> bytes:
    start, end = scan_of(data)
    return data[: (start + end) // 2] + data[end:]


@pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("pixels", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("spoil", [without_a_part, closed_early])
def test_a_jpeg_that_is_damaged_in_its_middle_is_not_decodable(
    options: dict[str, Any], pixels: Any, spoil: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    data = encoded(pixels, "JPEG", **{"quality": 95, **options})
    assert code(through(data)) is None
    made = through(spoil(data))
    assert code(made) == "not_decodable", made.failure
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("spoil", [without_a_part, closed_early])
def test_damage_is_found_behind_what_is_only_odd(spoil: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """libjpeg warns of bytes between two segments, which do no harm, and of nothing that it finds after that."""
    data = jpeg(LARGE, quality=95)
    pixels = data.index(b"\xff\xda")
    odd = data[:pixels] + b"\0\0\0" + data[pixels:]
    assert through(odd).data == through(data).data
    assert code(through(spoil(odd))) == "not_decodable"
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_is_told() -> None:
    made = through(without_a_part(jpeg(LARGE)))
    assert made.failure is not None
    assert made.failure.detail == "damaged: Corrupt JPEG data: premature end of data segment"


@pytest.mark.parametrize(
    "padding", [bytes(500), b"\xaa" * 7, b"\x12\x34", b"\xff" * 9], ids=["zeros", "same", "two", "fill"]
)
@pytest.mark.parametrize("behind", [b"", jpeg(photograph(40, 30))], ids=["alone", "with another behind it"])
def test_a_padded_end_is_no_damage(padding: bytes, behind: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    for pixels in (LARGE, SMALL):
        data = jpeg(pixels)
        plain, padded = through(data), through(data[:-2] + padding + data[-2:] + behind)
        assert code(padded) is None
        if pixels is LARGE:
            assert padded.data == plain.data
    assert capfd.readouterr() == ("", "")


def test_data_that_no_pixel_is_left_for_is_damage() -> None:
    data = jpeg(LARGE)
    assert code(through(data[:-2] + bytes(range(40)) + data[-2:])) == "not_decodable"


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(payload) + 2).to_bytes(2, "big") + payload


def odd_ones(data: bytes) -> dict[str, bytes]:
    scan = data.index(b"\xff\xda")
    past = scan_of(data)[0]
    return {
        "jfif of another age": data.replace(b"JFIF\0\x01\x01", b"JFIF\0\x07\x01", 1),
        "adobe's colours of no known kind": data[:2] + segment(0xEE, b"Adobe\0\x64\0\0\0\0\x09") + data[2:],
        "a profile that is none": data[:2] + segment(0xE2, b"ICC_PROFILE\0\x03\x01") + data[2:],
        "a scan that is told not to be whole": data[: past - 3] + b"\x00\x00\x00" + data[past:],
        "bytes between segments": data[:scan] + b"\0\0\0" + data[scan:],
    }


@pytest.mark.parametrize("kind", odd_ones(jpeg(SMALL)))
def test_odd_headers_are_no_damage(kind: str) -> None:
    for pixels in (LARGE, SMALL):
        data = jpeg(pixels)
        odd = odd_ones(data)[kind]
        assert odd != data
        found, plain = through(odd, encode_format="png"), through(data, encode_format="png")
        assert code(found) is None, found.failure
        assert found.data == plain.data


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_colours_are_those_of_pillow(subsampling: str) -> None:
    data = encoded(LARGE, "JPEG", subsampling=subsampling, quality=90)
    made = through(data, encode_format="png", file_size=0, skip_reencode=False)
    theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    ours = np.asarray(Image.open(io.BytesIO(made.data)).convert("RGB")).astype(int)
    assert np.abs(theirs - ours).mean() < 1.5


def test_pixels_may_be_stored_as_rgb() -> None:
    data = encoded(SMALL, "JPEG", keep_rgb=True, quality=95)
    made = through(data, encode_format="png")
    assert np.abs(np.asarray(Image.open(io.BytesIO(made.data))).astype(int) - SMALL[..., ::-1]).mean() < 3
