"""Video: what its header says, and what becomes of it; read back with PyAV and with OpenCV."""

import io
import struct
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from PIL import Image

from any2ds.core.errors import OptionError
from any2ds.core.filetypes import recognize
from any2ds.core.samples import Sample, code_of
from any2ds.transforms.steps._clips import Clip, of_one_length, of_value
from tests.support.pictures import media_steps
from tests.support.recordings import brightness, copied, film, heard, seen, tone

SERVED_AS = "video/mp2t"  # by a server that does not know its files
QUICK = {"deadline": "realtime", "cpu-used": "8"}
# muxer, encoder, sound, the extension and the codecs that are told
KINDS: dict[str, tuple[str, str, str, str, str, str]] = {
    "mp4": ("mp4", "libx264", "aac", "mp4", "h264", "aac"),
    "mov": ("mov", "libx264", "pcm_s16le", "mov", "h264", "pcm_s16le"),
    "webm": ("webm", "libvpx-vp9", "libopus", "webm", "vp9", "opus"),
    "mkv": ("matroska", "libx264", "aac", "mkv", "h264", "aac"),
    "avi": ("avi", "mpeg4", "libmp3lame", "avi", "mpeg4", "mp3"),
    "ts": ("mpegts", "libx264", "aac", "ts", "h264", "aac"),
}


def a_film(kind: str = "mp4", **how: Any) -> bytes:
    muxer, encoder, sound, *_ = KINDS[kind]
    options = QUICK if encoder == "libvpx-vp9" else {}
    return film(muxer, encoder, how.pop("sound", sound), options=options, **how)


def all_made(data: bytes, columns: dict[str, Any] | None = None, **options: Any) -> list[Sample]:
    return media_steps("video", **options)(data, SERVED_AS, columns)


def made(data: bytes, **options: Any) -> Sample:
    (found,) = all_made(data, **options)
    return found


def opencv(found: Sample, folder: Path) -> tuple[int, Any]:
    """How many frames OpenCV reads from it, and the first."""
    path = folder / f"video.{found.ext}"
    path.write_bytes(found.data)
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (read := capture.read())[0]:
        frames.append(read[1])
    capture.release()
    return len(frames), frames[0]


def gray(pixels: Any) -> float:
    """The brightness of the lower right quarter, which tells the time."""
    height, width = pixels.shape[:2]
    return float(pixels[height * 5 // 8 : height * 7 // 8, width * 5 // 8 : width * 7 // 8].mean())


def is_red(pixels: Any, across: float, down: float) -> bool:
    """At a place of an RGB image."""
    red, green, blue = (int(value) for value in pixels[int(pixels.shape[0] * down), int(pixels.shape[1] * across)])
    return red > 150 and green < 60 and blue < 60


def shown(frames: list[tuple[float, Any]], at: float) -> float:
    """The brightness of the one of these that is on screen then."""
    first = frames[0][0]
    return gray([pixels for begin, pixels in frames if begin - first <= at + 0.002][-1])


def packets(data: bytes, kind: str = "video") -> list[bytes]:
    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(**{kind: 0}) if packet.size]


@pytest.mark.parametrize("kind", KINDS)
def test_what_its_header_says_is_told_and_its_bytes_stay(kind: str) -> None:
    data = a_film(kind, seconds=1.0)
    found = made(data)
    assert found.data == data
    reported = {name: found.fields[name] for name in ("fps", "width", "height", "video_codec", "codec", "channels")}
    *_, video_codec, codec = KINDS[kind]
    assert reported.pop("fps") == pytest.approx(25)
    assert reported == {"width": 160, "height": 120, "video_codec": video_codec, "codec": codec, "channels": 1}
    assert found.fields["duration"] == pytest.approx(1.0, abs=0.1)
    assert (found.fields["sample_rate"], found.fields["original_width"]) == (48_000, 160)


def test_video_without_sound() -> None:
    found = made(a_film(sound=None, seconds=0.4))
    assert (found.fields["width"], found.fields["codec"], found.fields["sample_rate"]) == (160, None, None)
    for options in ({"video_size": 64}, {"video_audio": "split"}, {"clip_seconds": 0.2}):
        assert all(code_of(one) == "success" and not one.members for one in all_made(a_film(sound=None), **options))


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_become_smaller_and_time_stays(kind: str, tmp_path: Path) -> None:
    data = a_film(kind, seconds=1.0)
    found, original = made(data, video_size=64), seen(data)
    assert (found.fields["width"], found.fields["height"]) == (84, 64)  # even numbers
    assert (found.fields["original_width"], found.fields["original_height"]) == (160, 120)
    count, first = opencv(found, tmp_path)
    assert (count, first.shape) == (25, (64, 84, 3))
    for at, pixels in seen(found.data):
        assert gray(pixels) == pytest.approx(shown(original, at), abs=3)
    sound, _ = heard(found.data)
    assert sound.shape[1] / 48_000 == pytest.approx(1.0, abs=0.1)


def test_pictures_are_never_made_larger() -> None:
    data = a_film(seconds=0.2)
    assert made(data, video_size=120).data == data
    assert made(data, video_size=500).data == data


@pytest.mark.parametrize(("turned", "corner"), [(90, (0.75, 0.25)), (180, (0.75, 0.75)), (270, (0.25, 0.75))])
@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_a_phone_held_upright(turned: int, corner: tuple[float, float], kind: str) -> None:
    data = a_film(kind, seconds=0.3, turned=turned)
    size = (160, 120) if turned == 180 else (120, 160)
    found = made(data)
    assert (found.fields["width"], found.fields["height"]) == size
    small = made(data, video_size=60)
    assert (small.fields["width"], small.fields["height"]) == (size[0] // 2, size[1] // 2)
    assert is_red(seen(small.data)[0][1], *corner)
    assert made(small.data).fields["width"] == size[0] // 2  # nothing turns it once more
    for other in (made(data, video_audio="drop"), made(data, video_format="mkv")):  # copied, with what the header says
        assert (made(other.data).fields["width"], other.fields["height"]) == size
    image = all_made(data, frames=1)[0]
    assert is_red(cv2.imdecode(np.frombuffer(image.data, "u1"), 1)[..., ::-1], *corner)


def test_frames_per_second(tmp_path: Path) -> None:
    found = made(a_film(seconds=1.0), video_fps=10)
    times = seen(found.data)
    assert [round(at, 3) for at, _ in times] == [number / 10 for number in range(10)]
    assert [gray(pixels) for _, pixels in times] == pytest.approx(
        [brightness(int(number * 2.5 + 1e-9) / 25) for number in range(10)], abs=3
    )
    assert found.fields["fps"] == 10
    assert made(found.data).fields["fps"] == pytest.approx(10)
    assert opencv(made(a_film(seconds=0.4), video_fps=50), tmp_path)[0] == 20
    data = a_film(seconds=0.4)
    assert made(data, video_fps=25).data == data


def test_frames_that_are_not_even_keep_their_times() -> None:
    times = [0.0, 0.04, 0.5, 0.54, 1.2, 1.9, 1.94]
    data = a_film(times=times, sound=None)
    found = made(data, video_size=64)
    assert [at for at, _ in seen(found.data)] == pytest.approx(times, abs=0.002)
    even = seen(made(data, video_fps=4).data)
    assert [gray(pixels) for _, pixels in even[:8]] == pytest.approx(
        [brightness(at) for at in (0, 0.04, 0.5, 0.54, 0.54, 1.2, 1.2, 1.2)], abs=4
    )


@pytest.mark.parametrize("video_format", ["mp4", "webm", "mkv"])
@pytest.mark.parametrize("kind", ["mp4", "mov", "webm", "mkv", "avi"])
def test_every_format_becomes_every_format(kind: str, video_format: str, tmp_path: Path) -> None:
    data = a_film(kind, seconds=0.6)
    found = made(data, video_format=video_format)
    if kind == video_format:
        assert found.data == data
        return
    assert (found.ext, code_of(found)) == (video_format, "success")
    assert recognize(found.data[:8192], None) == (found.fields["mime_type"], video_format)
    again = made(found.data)
    assert (again.fields["video_codec"], again.fields["codec"]) == (found.fields["video_codec"], found.fields["codec"])
    assert opencv(found, tmp_path)[0] == 15
    if video_format == "mp4":
        assert (found.fields["video_codec"], found.fields["codec"]) == ("h264", "aac")
    if video_format == "webm":
        assert (found.fields["video_codec"], found.fields["codec"]) == ("vp9", "opus")
    if video_format == "mkv" and kind in ("mp4", "webm", "mov"):  # which takes what there is
        assert packets(found.data) == packets(data)
        assert packets(found.data, "audio") == packets(data, "audio")


def test_what_fits_is_copied_and_the_rest_is_not() -> None:
    data = a_film("mov", seconds=0.6)  # h264 and pcm
    found = made(data, video_format="mp4")
    assert packets(found.data) == packets(data)
    assert found.fields["codec"] == "aac"


@pytest.mark.parametrize("muxer", ["mov", "3gp", "ipod", "mp4"])
def test_relatives_of_mp4_become_mp4_without_being_encoded_again(muxer: str) -> None:
    data = film(muxer, seconds=0.6)
    found = made(data, video_format="mp4")
    assert (found.ext, found.fields["ext"], found.fields["mime_type"]) == ("mp4", "mp4", "video/mp4")
    assert (found.data == data) == (muxer in ("ipod", "mp4"))
    assert found.data[8:12] not in (b"qt  ", b"3gp4")
    assert (packets(found.data), packets(found.data, "audio")) == (packets(data), packets(data, "audio"))
    assert made(data).data == data


@pytest.mark.parametrize("kind", ["mp4", "webm", "mkv"])
def test_sound_is_dropped_or_split_off(kind: str) -> None:
    data = a_film(kind, seconds=1.0)
    for how in ("drop", "split"):
        found = made(data, video_audio=how)
        assert found.ext == kind
        with av.open(io.BytesIO(found.data)) as container:
            assert not container.streams.audio
        assert len(packets(found.data)) == len(packets(data)) == 25
        assert len(seen(found.data)) == 25
        if how == "drop":
            assert (found.members, found.fields["codec"]) == ({}, None)
        else:
            sound, rate = heard(found.members["wav"])
            assert (sound.shape[1] / rate, found.fields["codec"]) == (pytest.approx(1.0, abs=0.1), "pcm_s16le")
            spectrum = np.abs(np.fft.rfft(sound[0][:rate]))
            assert np.argmax(spectrum) * rate / len(sound[0][:rate]) == pytest.approx(440, abs=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"audio_rate": 8000, "audio_format": "flac"}, "audio_rate, audio_format: no effect on the sound of video"),
        (
            {"audio_rate": 8000, "audio_trim": 0.1, "video_audio": "split"},
            "audio_trim: no effect on the sound of video",
        ),
        ({"audio_rate": 8000, "video_audio": "split"}, ""),
        ({"min_duration": 0.1}, ""),
    ],
)
@pytest.mark.parametrize("step", ["audio", "video"])
def test_options_for_sound_that_have_no_effect_on_video_mark_it(
    step: str, options: dict[str, Any], message: str
) -> None:
    for data, words in ((a_film(seconds=0.4), message), (film("mp4", "libx264", None, seconds=0.4), "")):
        (found,) = media_steps(step, **options)(data, SERVED_AS)
        assert (found.failure, list((found.not_processed or {}).values())) == (None, [words] if words else [])


@pytest.mark.parametrize("kind", KINDS)
def test_clips_begin_exactly_where_they_should(kind: str) -> None:
    data = a_film(kind, seconds=2.4)
    clips = [[0.0, 0.2], [1.33, 1.61], [2.2, 99], [40, 41]]
    found, original = all_made(data, {"cuts": clips}, clips_col="cuts"), seen(data)
    assert [one.key for one in found] == [f"000000000_000{part}" for part in range(4)]
    assert [code_of(one) for one in found] == ["success", "success", "success", "too_short"]
    for one, (start, end) in zip(found[:3], clips, strict=False):
        end = min(end, found[3].fields["duration"])
        assert (one.fields["clip_start"], one.fields["clip_end"]) == (start, pytest.approx(end))
        frames = seen(one.data)
        for at, pixels in frames:  # at each moment the picture that is on screen in the film
            assert gray(pixels) == pytest.approx(shown(original, start + at), abs=4)
        assert frames[0][0] == pytest.approx(0, abs=0.025)
        sound, rate = heard(one.data)
        assert sound.shape[1] / rate == pytest.approx(end - start, abs=0.05)


def test_clips_of_one_length() -> None:
    found = all_made(a_film("webm", seconds=1.3), clip_seconds=0.5)
    assert [one.fields["clip_start"] for one in found] == [0.0, 0.5, 1.0]
    assert sum(len(seen(one.data)) for one in found) == pytest.approx(33, abs=2)
    assert len(all_made(a_film(seconds=1.3), clip_seconds=0.5, min_duration=0.5)) == 2
    assert of_one_length(2.0, 1.0, 0) == [Clip(0, 1), Clip(1, 2)]
    assert of_one_length(0.4, 1.0, 0) == [Clip(0, 0.4)]


@pytest.mark.parametrize(
    ("value", "clips"),
    [
        ([[0, 1.5], [2, 3]], [Clip(0, 1.5), Clip(2, 3)]),
        ("[[0, 1.5]]", [Clip(0, 1.5)]),
        ([{"start": 1, "end": 2}], [Clip(1, 2)]),
        ({"start": 1, "end": 2}, [Clip(1, 2)]),
        ("[1, 2]", [Clip(1, 2)]),
        ('[["0:00:01.5", "1:00:02"]]', [Clip(1.5, 3602)]),
        (None, []),
        ("", []),
        ([], []),
    ],
)
def test_a_column_of_clips(value: Any, clips: list[Clip]) -> None:
    assert of_value(value) == clips


@pytest.mark.parametrize(
    "value",
    [
        "soon",
        "[" * 100_000,
        "[[2, 1]]",
        [[1]],
        [["a", "b"]],
        7,
        float("nan"),
        [None],
        [[0, None]],
        [[None, 1]],
        {"start": None, "end": 1},
        [[False, True]],
        [[-1, 2]],
        [[0, float("inf")]],
        [[float("nan"), 1]],
        "[[0, NaN]]",
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_column_of_clips_says_what_it_should_be(value: Any) -> None:
    found = all_made(a_film(seconds=0.2), {"c": value}, clips_col="c")
    assert [code_of(one) for one in found] == ["bad_clips"]
    assert found[0].fields["error_message"].startswith("c: expected pairs of seconds")


def test_a_row_without_clips_keeps_its_video() -> None:
    data = a_film(seconds=0.2)
    for nothing in (None, "", " ", [], "null"):
        (found,) = all_made(data, {"c": nothing}, clips_col="c")
        assert (found.data, found.key) == (data, "000000000")


@pytest.mark.parametrize("kind", KINDS)
def test_so_many_frames_as_images(kind: str) -> None:
    found = all_made(a_film(kind, seconds=2.0), frames=4, video_size=60)
    assert [(one.ext, one.key) for one in found] == [("jpg", f"000000000_000{part}") for part in range(4)]
    assert [one.fields["frame_time"] for one in found] == pytest.approx([0.25, 0.75, 1.25, 1.75], abs=0.05)
    for one in found:
        pixels = cv2.imdecode(np.frombuffer(one.data, "u1"), 1)
        assert pixels.shape == (60, 80, 3) == (one.fields["height"], one.fields["width"], 3)
        assert gray(pixels) == pytest.approx(brightness(int(one.fields["frame_time"] * 25) / 25), abs=5)


@pytest.mark.parametrize(
    ("options", "ext", "size"),
    [
        ({"file_size": 256}, "jpg", (341, 256)),
        ({}, "jpg", (640, 480)),
        ({"file_size": 0}, "jpg", (640, 480)),
        ({"resize_mode": "no"}, "jpg", (640, 480)),
        ({"file_size": 100, "encode_format": "webp"}, "webp", (133, 100)),
        (
            {"file_size": 256, "resize_mode": "center_crop", "encode_format": "png", "encode_quality": 5},
            "png",
            (256, 256),
        ),
        ({"file_size": 256, "resize_mode": "border", "video_size": 240}, "jpg", (256, 256)),
        ({"file_size": 256, "resize_mode": "keep_ratio_largest", "encode_format": "avif"}, "avif", (256, 192)),
        ({"file_size": 960, "resize_only_if_bigger": False}, "jpg", (1280, 960)),
    ],
)
def test_frames_become_what_other_images_become(options: dict[str, Any], ext: str, size: tuple[int, int]) -> None:
    data = film(size=(640, 480), seconds=0.4, sound=None)
    found = all_made(data, frames=2, **options)
    assert [one.fields["frame_time"] for one in found] == pytest.approx([0.1, 0.3], abs=0.03)
    for one in found:
        assert (one.ext, recognize(one.data[:64], None)) == (ext, (one.fields["mime_type"], ext))
        with Image.open(io.BytesIO(one.data)) as image:
            assert image.size == size == (one.fields["width"], one.fields["height"])
            assert is_red(np.asarray(image.convert("RGB")), 0.3, 0.3)
        assert (one.fields["original_width"], one.fields["original_height"]) == (640, 480)


def test_a_frame_every_so_many_seconds() -> None:
    data = a_film(seconds=20.0, fps=5, size=(64, 48), sound=None)
    found = all_made(data, frame_interval=8)  # far enough for a leap
    assert [one.fields["frame_time"] for one in found] == [0, 8, 16]
    for one in found:
        pixels = cv2.imdecode(np.frombuffer(one.data, "u1"), 1)
        assert gray(pixels) == pytest.approx(brightness(one.fields["frame_time"]), abs=5)
    in_clips = all_made(data, {"c": [[2, 4], [10, 11]]}, frames=2, clips_col="c")
    assert [one.fields["frame_time"] for one in in_clips] == [2.5, 3.5, 10.25, 10.75]
    assert [one.fields["clip_start"] for one in in_clips] == [2, 2, 10, 10]
    assert len(all_made(data, {"c": [[2, 4]]}, frame_interval=0.5, clips_col="c")) == 4


def that_lasts(milliseconds: float) -> bytes:
    """A Matroska file of 2 s whose header says something else."""
    data = a_film("mkv", seconds=2.0, size=(64, 48))
    at = data.index(b"\x44\x89\x88") + 3  # Duration, 8 bytes
    return data[:at] + struct.pack(">d", milliseconds) + data[at + 8 :]


def test_a_header_that_claims_centuries_does_not_make_more_clips_than_there_are() -> None:
    found = all_made(that_lasts(1e16), clip_seconds=1.0)
    assert [(one.fields["clip_start"], one.fields["clip_end"]) for one in found] == [(0, 1), (1, 2)]


def test_more_clips_than_anybody_wants_are_not_made() -> None:
    (found,) = all_made(a_film(seconds=2.0, size=(64, 48)), clip_seconds=1e-6)
    assert found.failure is not None
    assert (found.failure.code, found.body) == ("unpacks_too_large", None)
    assert "--clip_seconds" in found.failure.detail


def test_an_interval_that_makes_too_many_images_is_refused() -> None:
    data = a_film("avi", seconds=1.0, size=(64, 48), sound=None)
    for every in (1e-6, 5e-324):
        assert [code_of(one) for one in all_made(data, frame_interval=every)] == ["unpacks_too_large"]


def test_an_interval_below_the_time_of_a_frame_gives_each_frame_once() -> None:
    data = a_film(seconds=1.0, fps=10, size=(64, 48))
    found = all_made(data, frame_interval=0.03)
    assert [int(one.fields["frame_time"] * 10) for one in found] == list(range(10))


def bomb(header: bool) -> bytes:
    """A video of JPEGs that say they are 65535 pixels wide and high, in an AVI file that says so too, or does not."""
    data = film("avi", "mjpeg", None, seconds=0.2, size=(400, 300), pixels="yuvj420p")
    huge = data.replace(b"\x08\x01\x2c\x01\x90\x03", b"\x08\xff\xff\xff\xff\x03")
    assert huge != data
    size, other = struct.pack("<II", 400, 300), struct.pack("<II", 65535, 65535)
    return huge.replace(size, other) if header else huge


@pytest.mark.parametrize("options", [{}, {"video_size": 64}, {"frames": 2}, {"clip_seconds": 0.1}])
def test_huge_frames_fail_by_their_header(options: dict[str, Any]) -> None:
    found = made(bomb(header=True), **options)
    assert code_of(found) == "not_decodable"
    assert "far more pixels than --max_image_area" in found.fields["error_message"]
    assert media_steps("video", **options).memory(bomb(header=True), SERVED_AS) < 20_000_000
    if options:
        assert code_of(made(bomb(header=False), **options)) == "not_decodable"
    data = a_film(seconds=0.2, size=(400, 300), sound=None)
    assert code_of(made(data, max_image_area=100_000, **options)) == "too_many_pixels"
    assert code_of(all_made(data, max_image_area=120_000, **options)[0]) == "success"


def test_memory_grows_with_the_frames() -> None:
    little, much = (a_film(seconds=0.2, size=size, sound=None) for size in ((160, 120), (1280, 720)))
    for options in ({"video_fps": 10}, {"frames": 1, "resize_mode": "border"}):
        steps = media_steps("video", **options)
        assert steps.memory(much) - steps.memory(little) > 20 * 1280 * 720
    assert media_steps("video").memory(much) < 20_000_000


def test_too_short_and_too_long() -> None:
    data = a_film(seconds=1.0)
    assert code_of(made(data, min_duration=1.5)) == "too_short"
    assert code_of(made(data, max_duration=0.5)) == "too_long"


def test_a_recording_whose_header_tells_no_duration() -> None:
    data = copied(a_film("webm"), "webm", {"live": "1"})  # as browsers record: no sizes, no index
    with av.open(io.BytesIO(data)) as container:
        assert container.duration is None
    assert made(data).fields["duration"] == pytest.approx(2.0, abs=0.05)
    assert code_of(made(data, min_duration=2.5)) == "too_short"
    clip = all_made(data, {"c": [[1.2, 1.6]]}, clips_col="c")[0]
    assert gray(seen(clip.data)[0][1]) == pytest.approx(brightness(1.2), abs=4)
    assert len(all_made(data, frames=3)) == 3


def test_sound_alone_in_a_file_that_looks_like_video() -> None:
    data = tone("mp4", "aac", 0.5)
    assert recognize(data, None)[0] == "video/mp4"
    found = made(data, audio_format="flac", audio_rate=16_000, video_size=64)
    assert (found.ext, found.fields["sample_rate"]) == ("flac", 16_000)
    assert made(data).data == data


def test_video_in_a_file_that_looks_like_sound() -> None:
    data = film("ogg", "libvpx", "libopus", seconds=0.4, options=QUICK)
    assert recognize(data, None)[0] == "audio/ogg"
    assert made(data, audio_format="wav").fields["video_codec"] == "vp8"
    assert made(data, video_size=64).fields["width"] == 84


def test_a_film_in_flash_is_not_longer_than_it_is() -> None:
    data = film("flv", "libx264", "aac", seconds=4.0)
    assert made(data).fields["duration"] == pytest.approx(4.0, abs=0.1)
    assert code_of(made(data[: len(data) // 2])) == "not_decodable"
    assert code_of(made(data, min_duration=4.5)) == "too_short"


def test_a_clip_behind_the_last_picture_has_that_picture() -> None:
    data = film("flv", "libx264", "aac", seconds=2.0)  # whose sound lasts a little longer
    found = all_made(data, {"c": [[0.5, 1.0], [2.01, 2.06]]}, clips_col="c")
    assert [code_of(one) for one in found] == ["success", "success"]
    assert gray(seen(found[1].data)[0][1]) == pytest.approx(brightness(1.96), abs=4)
    assert {code_of(one) for one in all_made(data, clip_seconds=1.0)} == {"success"}


def test_a_film_of_one_picture() -> None:
    for muxer in ("mp4", "matroska", "mpegts"):
        data = film(muxer, seconds=0.04, sound=None)
        for options in ({}, {"max_duration": 1.0}, {"video_size": 64}, {"clip_seconds": 1.0}, {"frames": 1}):
            assert {code_of(one) for one in all_made(data, **options)} == {"success"}


def test_a_picture_that_stays_for_long_is_not_the_end() -> None:
    times = [0.0, 0.04, 0.08, 8.0]
    for muxer in ("mp4", "matroska"):
        data = film(muxer, times=times, sound=None)
        for options in ({}, {"min_duration": 7.0}):
            assert code_of(made(data, **options)) == "success"


def test_a_film_in_fragments_is_whole_only_with_all_of_them() -> None:
    for flags in ("frag_keyframe+empty_moov", "frag_keyframe"):
        data = copied(a_film(seconds=4.0), "mp4", {"movflags": flags})
        assert made(data).fields["duration"] == pytest.approx(4.0, abs=0.1)
        assert code_of(made(data[: len(data) // 2])) == "not_decodable"
        half = data[: data.rfind(b"moof", 0, len(data) // 2) - 4]
        assert made(half).fields["duration"] < 2.5  # nothing says that there was more


@pytest.mark.parametrize("kind", ["mp4", "mkv", "avi", "webm"])
def test_a_file_that_lacks_its_end_is_not_decodable(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    data = a_film(kind, seconds=1.0)
    for options in ({}, {"video_size": 64}, {"frames": 3}):
        assert code_of(made(data[: len(data) * 2 // 3], **options)) == "not_decodable"
    assert capfd.readouterr() == ("", "")


def test_what_is_no_video_is_not_decodable(capfd: pytest.CaptureFixture[str]) -> None:
    rubbish = np.random.default_rng(5).bytes(20_000)
    data = bytearray(a_film(seconds=1.0))
    data[data.index(b"mdat") + 4 : -2000] = rubbish * 10
    for broken in (rubbish, b"<html>", a_film()[:200], b"\x1aE\xdf\xa3" + rubbish):
        assert code_of(made(broken, video_size=64)) == "not_decodable"
    assert capfd.readouterr() == ("", "")


def test_results_are_bounded() -> None:
    data = a_film(seconds=1.0)
    for options in ({"video_size": 64}, {"frames": 20}, {"video_audio": "split"}, {"clip_seconds": 0.2}):
        assert [code_of(one) for one in all_made(data, unpack_max_bytes=3000, **options)] == ["unpacks_too_large"]


@pytest.mark.parametrize(
    "options",
    [
        {"frames": 2, "frame_interval": 1.0},
        {"clip_seconds": 1.0, "clips_col": "c"},
        {"frames": 2, "video_audio": "split"},
        {"frames": 2, "video_fps": 5.0},
        {"frame_interval": 2.0, "video_format": "webm"},
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        media_steps("video", **options)
