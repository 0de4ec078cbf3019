"""Options of files that only some members of a sample have: what is stored of an image and of its mask."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds import download, load, retry, verify
from any2ds.core.errors import OptionError
from any2ds.testing.server import Server, serve

FORMATS = ("webdataset", "files", "parquet", "tfrecord", "arrayrecord")
CLASSES = (0, 3, 7, 255)  # of the pixels of a mask


def disc(width: int, height: int) -> np.ndarray[Any, Any]:
    """A mask whose classes are rings around the middle."""
    down, across = np.mgrid[0:height, 0:width]
    ring = np.hypot(across - width * 0.55, down - height * 0.4) / min(width, height) * 8
    return np.array(CLASSES, np.uint8)[np.minimum(ring.astype(int), 3)]


def stored(pixels: np.ndarray[Any, Any], kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


def opened(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Images that show their masks, in several sizes; the last image lies on its side and is turned by its EXIF."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for n, (width, height) in enumerate([(301, 200), (200, 301), (517, 389), (240, 400)]):
        mask = disc(width, height)
        (folder / f"m{n}.png").write_bytes(stored(mask, "PNG"))
        exif, shown = Image.Exif(), mask
        if n == 3:
            exif[0x0112], shown = 6, np.rot90(mask)
        image = np.stack([shown] * 3, axis=2)
        (folder / f"i{n}.jpg").write_bytes(stored(image, "JPEG", quality=98, exif=exif.tobytes()))
    return folder


def rows(server: Server) -> list[dict[str, str]]:
    return [{"img": server.url(f"i{n}.jpg"), "seg": server.url(f"m{n}.png")} for n in range(4)]


def make(server: Server, folder: Path, **options: Any) -> Any:
    fixed = {"url_col": "image:img,mask:seg", "output_format": "webdataset", "distributor": "inline", "quiet": True}
    return download(rows(server), str(folder), **{**fixed, **options})


OF_THE_MASK = "mask:encode_format=png,downscale_interpolation=nearest_exact"
SMALLER = {"file_size": 96, "encode_format": "jpg", "encode_quality": 98, "resize_mode": "center_crop"}


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_mask_keeps_its_classes_while_its_image_becomes_a_jpeg(
    pairs: Path, tmp_path: Path, output_format: str
) -> None:
    with serve(pairs) as server:
        make(server, tmp_path / "out", output_format=output_format, member_options=OF_THE_MASK, **SMALLER)
        samples = load(tmp_path / "out")
        for sample in samples:
            image, mask = opened(sample["image"]), opened(sample["mask"])
            assert (sample["image_ext"], sample["mask_ext"]) == ("jpg", "png")
            assert (image.shape, mask.shape) == ((96, 96, 3), (96, 96))
            assert set(np.unique(mask)) <= set(CLASSES)
            # The image shows the mask: both were cut and turned alike, to the pixel.
            assert np.mean(np.abs(image[:, :, 0].astype(int) - mask) > 40) < 0.04
        assert len(samples) == 4
        assert not verify(str(tmp_path / "out"), quiet=True).findings


@pytest.mark.parametrize("resize_mode", ["keep_ratio", "keep_ratio_largest", "center_crop", "border"])
@pytest.mark.parametrize("resize_only_if_bigger", [True, False])
def test_files_of_one_size_stay_of_one_size(
    pairs: Path, tmp_path: Path, resize_mode: str, resize_only_if_bigger: bool
) -> None:
    with serve(pairs) as server:
        options = {"file_size": 250, "resize_mode": resize_mode, "resize_only_if_bigger": resize_only_if_bigger}
        given = OF_THE_MASK if resize_only_if_bigger else f"{OF_THE_MASK},upscale_interpolation=nearest_exact"
        make(server, tmp_path / "out", output_format="files", member_options=given, **options)
    found = pq.read_table(tmp_path / "out/00000.parquet")
    assert found["image_width"].to_pylist() == found["mask_width"].to_pylist()
    assert found["image_height"].to_pylist() == found["mask_height"].to_pylist()


def test_options_of_a_member_take_the_place_of_those_for_all(pairs: Path, tmp_path: Path) -> None:
    with serve(pairs) as server:
        given = {"mask": {"disable_all_reencoding": True}, "image": {"file_size": 50}}
        make(server, tmp_path / "out", member_options=given, **SMALLER)
    for n, sample in enumerate(load(tmp_path / "out")):
        assert opened(sample["image"]).shape == (50, 50, 3)
        assert bytes(sample["mask"]) == (pairs / f"m{n}.png").read_bytes()
        assert (sample["image_width"], sample["mask_width"], sample["mask_stored_bytes"]) == (50, None, None)


def test_a_step_that_only_one_member_has_leaves_the_others_alone(pairs: Path, tmp_path: Path) -> None:
    (pairs / "m1.png").write_bytes(b"<!doctype html><p>not here")
    (pairs / "i2.jpg").write_bytes(b"<!doctype html><p>not here")
    with serve(pairs) as server:
        make(server, tmp_path / "out", member_options="image:only_images=True", require="any", output_format="files")
    found = pq.read_table(tmp_path / "out/00000.parquet")
    assert found["image_error_code"].to_pylist() == [None, None, "not_decodable", None]
    assert found["mask_status"].to_pylist() == ["success"] * 4


def test_a_retry_treats_each_member_as_the_run_did(pairs: Path, tmp_path: Path) -> None:
    with serve(pairs, {"m1.png": ["503", "ok"], "i2.jpg": ["503", "ok"]}) as server:
        report = make(server, tmp_path / "out", member_options=OF_THE_MASK, **SMALLER)
        assert report.successes == 2
        retry(str(tmp_path / "out"), distributor="inline", quiet=True)
    with serve(pairs) as server:
        make(server, tmp_path / "whole", member_options=OF_THE_MASK, **SMALLER)
    both = [[(bytes(s["image"]), bytes(s["mask"])) for s in load(tmp_path / name)] for name in ("out", "whole")]
    assert sorted(both[0]) == sorted(both[1])


def test_a_second_run_with_other_options_of_a_member_is_refused(pairs: Path, tmp_path: Path) -> None:
    with serve(pairs) as server:
        make(server, tmp_path / "out", member_options=OF_THE_MASK, **SMALLER)
        with pytest.raises(any2ds.UsageError, match="member_options"):
            make(server, tmp_path / "out", member_options="mask:encode_format=webp", **SMALLER)
        make(server, tmp_path / "out", member_options=OF_THE_MASK, **SMALLER)


def test_the_same_url_for_two_members_goes_through_the_steps_of_each(pairs: Path, tmp_path: Path) -> None:
    with serve(pairs) as server:
        given = [{"img": server.url("i0.jpg"), "seg": server.url("i0.jpg")}]
        options = {"url_col": "image:img,mask:seg", "distributor": "inline", "quiet": True}
        download(given, str(tmp_path / "out"), member_options="mask:file_size=20", **options)
    (sample,) = load(tmp_path / "out")
    assert opened(sample["image"]).shape == (200, 301, 3)
    assert opened(sample["mask"]).shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
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
    ],
)
def test_what_cannot_be_is_refused(pairs: Path, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with serve(pairs) as server, pytest.raises(OptionError, match=named):
        make(server, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
