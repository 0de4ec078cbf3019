"""`any2ds.load(…, decode=True)`: shapes, types, and files that cannot be decoded."""

import io
import pickle
import wave
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

import any2ds
from any2ds import download
from any2ds.core.errors import DamagedShard
from any2ds.testing.server import serve


def picture(form: str, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (6, 4), (250, 10, 10, 0) if mode == "CMYK" else (10, 200, 30)).save(stream, form)
    return stream.getvalue()


def sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.tile(np.array([[16384, -16384]], "<i2"), (800, 1)).tobytes())
    return stream.getvalue()


def compressed_sound() -> bytes:
    """A second of noise as MP3."""
    stream, chance = io.BytesIO(), np.random.default_rng(1)
    with av.open(stream, "w", format="mp3") as output:
        track = output.add_stream("libmp3lame", rate=8000)
        track.layout = "mono"
        for _ in range(10):
            noise = chance.uniform(-0.1, 0.1, (1, 800)).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(noise, format="fltp", layout="mono")
            frame.rate = 8000
            output.mux(track.encode(frame))
        output.mux(track.encode(None))
    return stream.getvalue()


def video() -> bytes:
    """Ten frames in a second, from black to white."""
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as output:
        track = output.add_stream("mpeg4", rate=10)
        track.width, track.height, track.pix_fmt = 32, 16, "yuv420p"
        for n in range(10):
            pixels = np.full((16, 32, 3), n * 25, np.uint8)
            output.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(track.encode(None))
    return stream.getvalue()


FILES = {
    "0.jpg": picture("JPEG"),
    "1.png": picture("PNG"),
    "2.jpg": picture("JPEG", "CMYK"),
    "3.wav": sound(),
    "4.txt": "größer\n".encode(),
    "5.mp4": video(),
    "6.jpg": picture("JPEG")[:300],
    "7.bin": b"\x00\x01",
}
CUT = {
    "0.wav": sound()[:2000],
    "1.mp3": compressed_sound()[:700],
    "2.png": picture("PNG")[:50],
    "3.mp4": video()[:500],
    "4.mp4": video()[:300],
}


def made(files: Mapping[str, bytes], folder: Path, output_format: str = "webdataset") -> Path:
    (folder / "media").mkdir()
    for name, content in files.items():
        (folder / "media" / name).write_bytes(content)
    with serve(folder / "media") as server:
        urls, options = [server.url(name) for name in files], {"output_format": output_format}
        download(urls, output_folder=folder / "out", quiet=True, distributor="inline", **options)
    return folder / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(FILES, tmp_path_factory.mktemp("all"))


def test_images_are_arrays_of_bytes(folder: Path) -> None:
    ds = any2ds.load(folder, decode=True)
    for number in (0, 1):
        pixels = ds[number]["data"]
        assert (pixels.shape, pixels.dtype) == ((4, 6, 3), np.uint8)
        assert np.abs(pixels.astype(int) - (10, 200, 30)).max() < 8
    assert ds[2]["data"].shape == (4, 6, 3)
    assert all(ds[number]["data"].flags.writeable for number in range(3))  # PyTorch warns of others


def test_sound_is_an_array_of_floats_with_its_rate(folder: Path) -> None:
    sample = any2ds.load(folder, decode=True, columns=["data"])[3]
    assert sample.keys() == {"data", "rate"}
    assert (sample["data"].shape, sample["data"].dtype, sample["rate"]) == ((800, 2), np.float32, 8000)
    assert np.allclose(sample["data"], [0.5, -0.5])


def test_text_and_what_is_none_of_them(folder: Path) -> None:
    ds = any2ds.load(folder, decode=True, columns=["data", "key"])
    assert ds[4] == {"data": "größer\n", "key": "00000" + "0004"}
    assert ds[7]["data"] == FILES["7.bin"]


def test_frames_of_a_video_on_demand(folder: Path) -> None:
    video = any2ds.load(folder, decode=True)[5]["data"]
    frames = list(video)
    assert len(frames) == 10
    assert (frames[0].shape, frames[0].dtype) == ((16, 32, 3), np.uint8)
    assert abs(int(video.at(0.55)[0, 0, 0]) - 125) < 12
    assert (video.at(5) == frames[-1]).all()


def test_a_damaged_file_names_its_key(folder: Path) -> None:
    ds = any2ds.load(folder, decode=True)
    with pytest.raises(DamagedShard, match=r"shard 00000\.tar .*: '000000006': its jpg cannot be decoded: "):
        ds[6]
    assert any2ds.load(folder)[6]["data"] == FILES["6.jpg"]


def noise(form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((200, 200), 60).convert("RGB").save(stream, form, **options)
    return stream.getvalue()


def harmed(content: bytes, harm: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + harm + content[middle + len(harm) :]


HARMED = {
    "0.jpg": harmed(noise("JPEG"), bytes(40)),
    "1.jpg": harmed(noise("JPEG"), b"\xff\xd9"),
    "2.jpg": harmed(noise("JPEG", progressive=True), b"\xff\xd9"),
    "3.png": harmed(noise("PNG"), bytes(40)),
    "4.webp": noise("WEBP")[:3000],
    "5.gif": noise("GIF")[:3000],
    "6.tif": noise("TIFF")[:3000],
    "7.png": b"\x89PNG\r\n\x1a\n" + bytes(40),
}


def test_images_that_are_damaged_inside_are_no_arrays(tmp_path: Path) -> None:
    ds = any2ds.load(made(HARMED, tmp_path), decode=True)
    for number, name in enumerate(HARMED):
        ext = name.rpartition(".")[2]
        with pytest.raises(DamagedShard, match=rf"'00000000{number}': its {ext} cannot be decoded: ") as found:
            ds[number]
        assert "0x" not in str(found.value).partition("decoded: ")[2].replace("marker 0x", "")


def test_a_few_bytes_between_a_picture_and_its_end_are_no_damage(tmp_path: Path) -> None:
    content = noise("JPEG")
    ds = any2ds.load(made({"0.jpg": content[:-2] + bytes(8) + content[-2:], "1.jpg": content}, tmp_path), decode=True)
    assert (ds[0]["data"] == ds[1]["data"]).all()


def test_16_bits_are_kept_and_32_are_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None]
    files = {}
    for name, form, pixels in (
        ("0.png", "PNG", ramp),
        ("1.tif", "TIFF", ramp),
        ("2.tif", "TIFF", (ramp / 65535).astype(np.float32)),
        ("3.tif", "TIFF", ramp.astype(np.int32) << 8),
    ):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, form)
        files[name] = stream.getvalue()
    ds = any2ds.load(made(files, tmp_path), decode=True)
    for number in (0, 1):
        assert (ds[number]["data"] == ramp[:, :, None]).all()
        assert (ds[number]["data"].shape, ds[number]["data"].dtype) == ((1, 256, 3), np.uint16)
    for number in (2, 3):
        with pytest.raises(DamagedShard, match=f"'00000000{number}': its tif cannot be decoded: .* 32 bits"):
            ds[number]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_files_that_are_cut_name_shard_and_key(output_format: str, tmp_path: Path) -> None:
    """No part of them is taken for all of it."""
    folder = made(CUT, tmp_path, output_format)
    ds = any2ds.load(folder, decode=True)
    elsewhere = pickle.loads(pickle.dumps(ds))
    for number, name in enumerate(CUT):
        ext = name.rpartition(".")[2]
        wanted = rf"^shard 00000\.\w+ of .*: '00000000{number}': its {ext} cannot be decoded: "
        if ext != "mp4":
            with pytest.raises(DamagedShard, match=wanted):
                ds[number]
            with pytest.raises(DamagedShard, match=wanted):
                elsewhere[[number]]
            continue
        for found in (ds[number]["data"], pickle.loads(pickle.dumps(elsewhere[[number]]))[0]["data"]):
            with pytest.raises(DamagedShard, match=wanted):  # a video is looked at later, maybe elsewhere
                list(found)
            with pytest.raises(DamagedShard, match=wanted):
                found.at(0.1)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_sound_text_and_video_of_every_format(output_format: str, tmp_path: Path) -> None:
    ds = any2ds.load(
        made({name: FILES[name] for name in ("3.wav", "4.txt", "5.mp4")}, tmp_path, output_format), decode=True
    )
    heard, read, seen = ds
    assert (heard["data"].shape, heard["data"].dtype, heard["rate"]) == ((800, 2), np.float32, 8000)
    assert read["data"] == "größer\n"
    assert [frame.shape for frame in seen["data"]] == [(16, 32, 3)] * 10


def turned(orientation: int, form: str) -> bytes:
    """A picture with that orientation in its Exif data."""
    pixels = np.zeros((16, 24, 3), np.uint8)
    pixels[:8, :8], pixels[8:, 16:] = (250, 10, 10), (10, 10, 250)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, exif=exif, **({"quality": 95} if form == "JPEG" else {}))
    return stream.getvalue()


def test_pictures_are_upright(tmp_path: Path) -> None:
    files = {f"{n}.{form.lower()}": turned(n, form) for n in range(1, 9) for form in ("JPEG", "PNG", "TIFF", "WEBP")}
    ds = any2ds.load(made(files, tmp_path), decode=True)
    for sample, content in zip(ds, files.values(), strict=True):
        wanted = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
        assert sample["data"].shape == wanted.shape
        assert np.abs(sample["data"].astype(int) - wanted).mean() < 10  # WebP blurs the colours at edges


def png_with(chunk: bytes, content: bytes) -> bytes:
    """A picture of 6 x 4 pixels with one more chunk before its pixels."""
    png = picture("PNG")
    sum_of = zlib.crc32(chunk + content).to_bytes(4, "big")
    return png[:33] + len(content).to_bytes(4, "big") + chunk + content + sum_of + png[33:]


def test_unusable_exif_data_and_xmp_turn_nothing(tmp_path: Path) -> None:
    """As transforms have it, which read the same files."""
    raw_profile = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n  8\nzzzzzzzz\n")
    webp = io.BytesIO()
    xmp = b'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    Image.new("RGB", (6, 4)).save(webp, "WEBP", xmp=xmp)
    broken = io.BytesIO()
    Image.new("RGB", (6, 4)).save(broken, "WEBP", exif=b"Exif\0\0garbage!")
    files = {
        "0.png": png_with(b"eXIf", b"garbage!"),
        "1.png": png_with(b"eXIf", b"II*\0\x08\0\0\0\x05\0"),
        "2.png": png_with(b"zTXt", raw_profile),
        "3.png": png_with(b"iTXt", b"exif\0\0\0\0\0a text"),
        "4.webp": webp.getvalue(),
        "5.webp": broken.getvalue(),
    }
    ds = any2ds.load(made(files, tmp_path), decode=True)
    assert [sample["data"].shape for sample in ds] == [(4, 6, 3)] * len(files)


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    content = bytearray(picture("JPEG"))
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = (60_000).to_bytes(2, "big") * 2
    ds = any2ds.load(made({"0.jpg": bytes(content)}, tmp_path), decode=True)
    with pytest.raises(DamagedShard, match="60,000 x 60,000 pixels"):
        ds[0]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_damaged_file_ends_nothing_before_its_turn(is_stream: bool, folder: Path) -> None:
    ds = any2ds.load(folder, decode=True, columns=["key", "data"])
    samples = iter(ds.stream() if is_stream else ds)
    assert [next(samples)["key"][-1] for _ in range(6)] == list("012345")
    with pytest.raises(DamagedShard, match="'000000006'"):
        next(samples)
