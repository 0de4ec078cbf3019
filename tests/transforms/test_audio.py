"""Sound: what its header says, and what becomes of it; read back with PyAV, and with the wave module."""

import io
import math
import struct
import wave
from typing import Any

import av
import cv2
import numpy as np
import pytest

from any2ds.core.errors import OptionError
from any2ds.core.samples import Sample, code_of
from tests.support.pictures import media_steps
from tests.support.recordings import film, heard, tone

# muxer, encoder, rate, and what the header says: codec
KINDS: dict[str, tuple[str, str, int, str]] = {
    "wav": ("wav", "pcm_s16le", 44_100, "pcm_s16le"),
    "mp3": ("mp3", "libmp3lame", 44_100, "mp3"),
    "flac": ("flac", "flac", 44_100, "flac"),
    "ogg": ("ogg", "libopus", 48_000, "opus"),
    "m4a": ("ipod", "aac", 44_100, "aac"),
    "aac": ("adts", "aac", 44_100, "aac"),
    "aiff": ("aiff", "pcm_s16be", 44_100, "pcm_s16be"),
}
JPG = cv2.imencode(".jpg", np.full((16, 16, 3), 99, "u1"))[1].tobytes()


def made(data: bytes, media_type: str | None = None, **options: Any) -> Sample:
    (found,) = cut(data, media_type=media_type, **options)
    return found


def cut(
    data: bytes,
    columns: dict[str, Any] | None = None,
    media_type: str | None = None,
    limit: int = 2**30,
    **options: Any,
) -> list[Sample]:
    """What becomes of a file, served as `media_type`, in a row with `columns`; `limit` is in bytes of the result."""
    step = "audio" if {"clip_seconds", "clips_col"}.isdisjoint(options) else "video"
    return media_steps(step, unpack_max_bytes=limit, **options)(data, media_type, columns)


def clean(sound: Any, rate: int, hertz: float) -> tuple[float, float]:
    """How loud a tone is, and how far above all else, in dB; the ends are left out, where filters begin."""
    sound = sound[rate // 10 : -rate // 10]
    time = np.arange(len(sound)) / rate
    waves = np.stack([np.sin(2 * np.pi * hertz * time), np.cos(2 * np.pi * hertz * time)], 1)
    found, *_ = np.linalg.lstsq(waves, sound, rcond=None)
    rest = sound - waves @ found
    power = float(np.mean(rest.astype("f8") ** 2)) or 1e-30
    return float(np.hypot(*found)), 10 * math.log10(float(np.hypot(*found)) ** 2 / 2 / power)


@pytest.mark.parametrize(
    ("ext", "muxer", "encoder", "options"),
    [
        ("caf", "caf", "pcm_s16be", {}),
        ("au", "au", "pcm_s16be", {}),
        ("w64", "w64", "pcm_s16le", {}),
        ("wav", "wav", "pcm_s16le", {"rf64": "always"}),
        ("wv", "wv", "wavpack", {}),
        ("tta", "tta", "tta", {}),
        ("ts", "mpegts", "mp2", {}),
        ("m2ts", "mpegts", "mp2", {"mpegts_m2ts_mode": "1"}),
    ],
)
@pytest.mark.parametrize("served_as", [None, "text/vnd.trolltech.linguist"])
def test_it_is_known_by_its_bytes_whatever_the_server_says(
    ext: str, muxer: str, encoder: str, options: dict[str, str], served_as: str | None
) -> None:
    data = tone(muxer, encoder, 1.0, 48_000, options=options)
    assert made(data, served_as).ext == ext
    found = made(data, served_as, audio_format="flac")
    assert (found.ext, found.fields["sample_rate"]) == ("flac", 48_000)
    assert found.fields["duration"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_what_its_header_says_is_told_and_its_bytes_stay(kind: str) -> None:
    muxer, name, rate, codec = KINDS[kind]
    data = tone(muxer, name, 1.0, rate, channels=2)
    found = made(data)
    assert (found.data, found.ext) == (data, kind)
    assert {name: found.fields[name] for name in ("sample_rate", "channels", "codec")} == {
        "sample_rate": rate,
        "channels": 2,
        "codec": codec,
    }
    assert found.fields["duration"] == pytest.approx(1.0, abs=0.08)  # encoders add silence


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("audio_format", ["flac", "opus", "mp3", "wav"])
def test_every_format_becomes_every_format(kind: str, audio_format: str) -> None:
    muxer, name, rate, _ = KINDS[kind]
    found = made(tone(muxer, name, 0.5, rate), audio_format=audio_format)
    assert code_of(found) == "success"
    if kind != audio_format and (kind, audio_format) != ("ogg", "opus"):
        assert found.fields["duration"] == pytest.approx(0.5, abs=0.05)
    assert found.ext == found.fields["ext"] == audio_format
    sound, back = heard(found.data)
    assert back == found.fields["sample_rate"]
    level, above = clean(sound[0], back, 440)
    assert level == pytest.approx(0.5, rel=0.06)  # LAME makes all a little less loud
    assert above > 30


def test_a_file_that_is_so_already_keeps_its_bytes() -> None:
    data = tone("ogg", "libopus", 0.3, 48_000)
    found = made(data, audio_format="opus", audio_rate=48_000, audio_channels=1)
    assert found.data == data
    assert (found.ext, found.fields["ext"]) == ("opus", "opus")  # as those that are made so
    data = tone("flac", "flac", 0.3)
    assert made(data, audio_format="flac", audio_rate=44_100).data == data


def packets(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


@pytest.mark.parametrize(
    ("muxer", "name", "audio_format", "magic"),
    [
        ("webm", "libopus", "opus", b"OggS"),
        ("mp4", "libopus", "opus", b"OggS"),
        ("ogg", "flac", "flac", b"fLaC"),
        ("mp4", "libmp3lame", "mp3", b"ID3"),
        ("matroska", "flac", "flac", b"fLaC"),
    ],
)
def test_the_right_codec_in_another_container_is_not_encoded_again(
    muxer: str, name: str, audio_format: str, magic: bytes
) -> None:
    data = tone(muxer, name, 1.0, 48_000)
    found = made(data, audio_format=audio_format)
    assert (code_of(found), found.ext) == ("success", audio_format)
    assert found.data.startswith(magic)
    assert packets(found.data) == packets(data)
    sound, rate = heard(found.data)
    assert sound.shape[1] / rate == pytest.approx(1.0, abs=0.1)
    assert made(found.data, audio_format=audio_format).data == found.data  # now it is so already


def test_wav_is_what_the_wave_module_reads() -> None:
    found = made(tone("mp3", "libmp3lame", 1.0), audio_format="wav", audio_rate=16_000, audio_channels=1)
    with wave.open(io.BytesIO(found.data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        assert file.getnframes() == round(found.fields["duration"] * 16_000)
    assert found.fields["mime_type"] == "audio/x-wav"


@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100, 48_000])
def test_resampling_keeps_what_fits_and_lets_nothing_else_in(rate: int) -> None:
    source = 48_000 if rate == 44_100 else 44_100
    sound, back = heard(made(tone("wav", seconds=1.0, rate=source, hertz=1000), audio_rate=rate).data)
    level, above = clean(sound[0], back, 1000)
    assert (back, level) == (rate, pytest.approx(0.5, rel=1e-3))
    assert above > 85  # all that 16 bits leave
    if rate < 40_000:
        too_high, _ = heard(made(tone("wav", seconds=1.0, rate=44_100, hertz=0.55 * rate), audio_rate=rate).data)
        assert np.abs(too_high[0][rate // 10 : -rate // 10]).max() <= 2 / 32768


def test_channels_are_mixed_and_doubled() -> None:
    stereo = tone("wav", channels=2, seconds=0.5)  # the left one alone is heard
    mono, rate = heard(made(stereo, audio_channels=1).data)
    assert mono.shape[0] == 1
    assert clean(mono[0], rate, 440)[0] == pytest.approx(0.25, rel=0.01)
    doubled, _ = heard(made(tone("wav", seconds=0.5), audio_channels=2).data)
    assert np.array_equal(doubled[0], doubled[1])
    surround = made(tone("ipod", "aac", 0.5, channels=6), audio_format="mp3")
    assert surround.fields["channels"] == 2  # as many as mp3 has
    assert made(tone("ipod", "aac", 0.5, channels=6), audio_format="flac").fields["channels"] == 6


@pytest.mark.parametrize(("kind", "ext"), [("wav", "wav"), ("flac", "flac"), ("m4a", "m4a"), ("aac", "m4a")])
def test_sound_is_cut_to_the_sample(kind: str, ext: str) -> None:
    muxer, name, rate, _ = KINDS[kind]
    found = made(tone(muxer, name, 1.0, rate), audio_trim=0.3)
    assert (found.ext, found.fields["duration"]) == (ext, pytest.approx(0.3, abs=1e-9))
    sound, _ = heard(found.data)
    assert abs(sound.shape[1] - 0.3 * rate) <= (0 if ext in ("wav", "flac") else 2048)
    short = tone(muxer, name, 0.2, rate)
    assert made(short, audio_trim=0.3).data == short


def test_a_stream_that_changes_its_rate_has_no_gap_there() -> None:
    data = tone("adts", "aac", 2.0, 44_100) + tone("adts", "aac", 3.0, 48_000)
    sound, rate = heard(made(data, audio_rate=16_000, audio_format="wav").data)
    assert sound.shape[1] == pytest.approx(5.1 * rate, abs=0.1 * rate)
    silent = np.abs(sound[0])[: sound.shape[1] // 100 * 100].reshape(-1, 100).max(1) < 0.01
    assert 100 * silent.sum() < 0.2 * rate  # what an encoder puts before the sound, twice


# What an encoder of the clip, and of the file, may leave of a sample: nothing, or little.
CUT_KINDS = {
    **{kind: KINDS[kind][:3] for kind in KINDS},
    "caf": ("caf", "pcm_s16be", 44_100),
    "wv": ("wv", "wavpack", 44_100),
    "ts": ("mpegts", "mp2", 48_000),
    "webm": ("webm", "libopus", 48_000),
    "mka": ("matroska", "aac", 44_100),
}


def told(found: list[Sample]) -> list[tuple[str, str, float | None, float | None]]:
    return [(one.key, code_of(one), one.fields.get("clip_start"), one.fields.get("clip_end")) for one in found]


@pytest.mark.parametrize("options", [{}, {"audio_format": "wav", "audio_channels": 1}, {"audio_format": "flac"}])
@pytest.mark.parametrize("kind", CUT_KINDS)
def test_clips_of_sound_are_those_pieces_of_it(kind: str, options: dict[str, Any]) -> None:
    data = tone(*CUT_KINDS[kind][:2], seconds=4.0, rate=CUT_KINDS[kind][2], rising=True)
    found = cut(data, {"cuts": [[0, 0.5], [0.8, 1.3], [2.71, 3.4]]}, clips_col="cuts", **options)
    whole, rate = heard(made(data, audio_format="wav").data)
    assert [code_of(one) for one in found] == ["success"] * 3
    for one, (start, end) in zip(found, [(0, 0.5), (0.8, 1.3), (2.71, 3.4)], strict=True):
        sound, own_rate = heard(one.data)
        assert (one.fields["clip_start"], one.fields["clip_end"], own_rate) == (start, end, rate)
        assert one.fields["duration"] == pytest.approx(end - start, abs=1 / rate)
        if one.ext in ("wav", "flac"):  # Matroska counts milliseconds
            assert sound.shape[1] == pytest.approx((end - start) * rate, abs=1)
            within = sound[0][2000:-2000]
            first = round(start * rate) + 2000
            away = [np.abs(whole[0][first + by : first + by + len(within)] - within).max() for by in range(-30, 31)]
            assert min(away) < 0.01


def test_sound_is_cut_into_clips_of_one_length() -> None:
    data = tone(seconds=2.3, rate=8000)
    found = cut(data, clip_seconds=1.0)
    assert told(found) == [
        ("000000000_0000", "success", 0.0, 1.0),
        ("000000000_0001", "success", 1.0, 2.0),
        ("000000000_0002", "success", 2.0, 2.3),
    ]
    assert [heard(one.data)[0].shape[1] for one in found] == [8000, 8000, 2400]
    assert {(one.ext, one.fields["codec"], one.fields["sample_rate"]) for one in found} == {("wav", "pcm_s16le", 8000)}
    assert [one.fields["duration"] for one in found] == [1.0, 1.0, 0.3]
    assert len(cut(data, clip_seconds=1.0, min_duration=0.5)) == 2
    assert told(cut(data, clip_seconds=5.0)) == [("000000000_0000", "success", 0.0, 2.3)]
    trimmed = cut(data, clip_seconds=1.0, audio_trim=1.5, audio_format="flac", audio_rate=4000)
    assert [heard(one.data)[0].shape[1] for one in trimmed] == [4000, 2000]
    assert {(one.ext, one.fields["sample_rate"]) for one in trimmed} == {("flac", 4000)}


def test_a_clip_beyond_the_end_of_its_sound_fails_and_the_others_do_not() -> None:
    found = cut(tone(seconds=1.0, rate=8000), {"c": "[[0.5, 7], [1.5, 2]]"}, clips_col="c")
    assert told(found) == [("000000000_0000", "success", 0.5, 1.0), ("000000000_0001", "too_short", 1.5, 2.0)]
    (found_last,) = cut(tone(seconds=1.0, rate=8000), {"c": [[0, 2]]}, clips_col="c", audio_trim=0.25)
    assert (found_last.fields["clip_end"], found_last.fields["duration"]) == (0.25, 0.25)


def test_bad_clips_of_sound_have_the_code_of_those_of_video_and_a_sound_without_any_stays() -> None:
    data = tone(seconds=0.5, rate=8000)
    (bad,) = cut(data, {"c": [[2, 1]]}, clips_col="c")
    assert (code_of(bad), bad.body) == ("bad_clips", None)
    (many,) = cut(data, clip_seconds=1e-6)
    assert code_of(many) == "unpacks_too_large"
    for nothing in (None, "", [], "null"):
        (found,) = cut(data, {"c": nothing}, clips_col="c")
        assert (found.data, found.key, found.fields["duration"]) == (data, "000000000", 0.5)
    large = cut(tone(seconds=3.0, rate=8000), {"c": [[0, 2]] * 3}, clips_col="c", limit=70_000)
    assert [code_of(one) for one in large] == ["unpacks_too_large"]


def test_sound_alone_in_a_container_of_video_is_cut_too() -> None:
    found = cut(tone("mp4", "aac", 2.0, 44_100), clip_seconds=1.0)
    assert [(one.ext, code_of(one)) for one in found][:2] == [("m4a", "success"), ("m4a", "success")]
    video = cut(film(seconds=1.0), clip_seconds=0.5)
    assert [(one.ext, one.key) for one in video] == [("mp4", "000000000_0000"), ("mp4", "000000000_0001")]


def test_what_cannot_be_written_as_it_came_becomes_flac() -> None:
    aiff = made(tone("aiff", "pcm_s16be", 0.3), audio_rate=8000)
    assert (aiff.ext, aiff.fields["codec"], aiff.fields["sample_rate"]) == ("flac", "flac", 8000)
    mp3 = made(tone("mp3", "libmp3lame", 0.3), audio_rate=96_000)  # which mp3 does not know
    assert (mp3.ext, mp3.fields["sample_rate"]) == ("flac", 96_000)
    assert heard(mp3.data)[1] == 96_000


def test_fine_samples_stay_fine() -> None:
    sound = (0.5 * np.sin(np.arange(44_100) / 20)).astype("f4")[None]
    frame = av.AudioFrame.from_ndarray(sound, format="flt", layout="mono")
    frame.sample_rate = 44_100
    result = io.BytesIO()
    with av.open(result, "w", format="wav") as output:
        stream = output.add_stream("pcm_f32le", rate=44_100)
        stream.layout = "mono"
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    flac = made(result.getvalue(), audio_format="flac")
    assert np.abs(heard(flac.data)[0][0] - sound[0]).max() < 2**-22  # 24 bits
    wav = made(result.getvalue(), audio_channels=2)
    assert wav.fields["codec"] == "pcm_f32le"


def test_too_short_and_too_long() -> None:
    data = tone(seconds=1.0)
    assert code_of(made(data, min_duration=1.01)) == "too_short"
    assert code_of(made(data, max_duration=0.99)) == "too_long"
    assert code_of(made(data, min_duration=0.99, max_duration=1.01)) == "success"
    failed = made(data, max_duration=0.5)
    assert (failed.fields["duration"], failed.fields["codec"]) == (1.0, "pcm_s16le")
    assert "--max_duration is 0.5" in failed.fields["error_message"]


def mp3_without_a_header(seconds: float) -> bytes:
    """Frames of two bit rates, and nothing that says how many: what is made up from the first is far too long."""
    parts = []
    for bit_rate in (32_000, 320_000):
        result = io.BytesIO()
        with av.open(result, "w", format="mp3", options={"write_xing": "0", "id3v2_version": "0"}) as output:
            stream = output.add_stream("libmp3lame", rate=44_100)
            stream.bit_rate = bit_rate
            stream.layout = "mono"
            frame = av.AudioFrame.from_ndarray(np.zeros((1, int(44_100 * seconds / 2)), "i2"), "s16", "mono")
            frame.sample_rate = 44_100
            output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        parts.append(result.getvalue())
    return b"".join(parts)


def test_a_duration_that_no_header_tells_is_counted() -> None:
    assert made(mp3_without_a_header(4.0), "audio/mpeg").fields["duration"] == pytest.approx(4.0, abs=0.2)
    streamed = bytearray(tone("flac", "flac", 1.0))
    streamed[21] &= 0xF0  # how many samples there are: 36 bits, from here on
    streamed[22:26] = bytes(4)
    assert made(bytes(streamed)).fields["duration"] == pytest.approx(1.0, abs=0.01)


def test_the_cover_of_an_album_is_no_video() -> None:
    data = tone("mp3", "libmp3lame", 0.5, cover=JPG)
    with av.open(io.BytesIO(data)) as container:
        assert len(container.streams.video) == 1
    found = made(data)
    assert found.fields["codec"] == "mp3"
    assert made(data, audio_format="flac").ext == "flac"


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "ogg", "m4a", "aiff"])
@pytest.mark.parametrize("options", [{}, {"min_duration": 0.1}, {"audio_rate": 16_000}])
def test_a_file_that_lacks_its_end_is_not_decodable(kind: str, options: dict[str, Any]) -> None:
    muxer, name, rate, _ = KINDS[kind]
    data = tone(muxer, name, 3.0, rate)
    for part in (1 / 3, 1 / 2, 4 / 5):
        found = made(data[: round(len(data) * part)], **options)
        assert code_of(found) == "not_decodable"
        assert ("it ends after" if kind in ("wav", "ogg", "m4a") else "3.00 s, and") in found.fields["error_message"]


@pytest.mark.parametrize("kind", ["mp3", "flac", "aac"])
def test_of_a_file_that_lacks_little_the_duration_is_that_of_what_there_is(kind: str) -> None:
    muxer, name, rate, _ = KINDS[kind]
    data = tone(muxer, name, 10.0, rate)
    cut = data[: round(len(data) * 0.95)]
    assert made(cut).fields["duration"] == pytest.approx(9.5, abs=0.2)
    assert (code_of(made(cut, min_duration=9.8)), code_of(made(cut, min_duration=9.2))) == ("too_short", "success")
    assert code_of(made(cut, max_duration=9.8)) == "success"


def test_limits_are_judged_by_what_is_in_the_file_and_not_by_its_header() -> None:
    data = bytearray(tone("ipod", "aac", 2.0))
    at = data.index(b"mvhd") + 4 + 12
    scale, length = struct.unpack_from(">II", data, at)
    assert length == 2 * scale
    spans = [at + 4, data.index(b"tkhd") + 4 + 20, data.index(b"elst") + 4 + 8]
    for said in (1, 60):
        for place in spans:
            struct.pack_into(">I", data, place, said * scale)
        lying = bytes(data).replace(b"edts", b"free")
        assert code_of(made(lying, max_duration=1.5)) in ("too_long", "not_decodable")
        assert code_of(made(lying, min_duration=10)) in ("too_short", "not_decodable")


def test_what_is_whole_is_never_said_to_be_cut_off() -> None:
    for kind, (muxer, name, rate, _) in KINDS.items():
        for seconds in (0.03, 0.2, 1.1, 31.0):
            data = tone(muxer, name, seconds, rate)
            for limit in (0.0, 0.01):
                found = made(data, min_duration=limit)
                assert (kind, code_of(found)) == (kind, "success")
                assert found.fields["duration"] == pytest.approx(seconds, abs=0.08)
        tagged = data + b"TAG" + bytes(125)
        assert made(tagged).fields["duration"] == pytest.approx(31.0, abs=0.08)


@pytest.mark.parametrize("options", [{}, {"audio_format": "flac"}])
def test_what_is_no_sound_is_not_decodable(options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    rubbish = np.random.default_rng(5).bytes(20_000)
    for data in (rubbish, b"<html>not found</html>", b"RIFF" + rubbish, b"fLaC" + rubbish, b"OggS" + rubbish, b"ID3"):
        assert code_of(made(data, "audio/mpeg", **options)) == "not_decodable"
    broken = bytearray(tone("flac", "flac", 1.0))
    broken[200:] = rubbish[: len(broken) - 200]
    assert code_of(made(bytes(broken), audio_rate=8000)) == "not_decodable"
    assert capfd.readouterr() == ("", "")  # FFmpeg keeps its words to itself


def test_a_few_broken_packets_are_forgiven() -> None:
    data = bytearray(tone("mp3", "libmp3lame", 2.0))
    data[6000:6100] = bytes(100)
    found = made(bytes(data) + b"TAG" + bytes(125) + b"rubbish" * 50, audio_format="wav")
    assert found.fields["duration"] == pytest.approx(2.0, abs=0.3)


def test_a_playlist_leads_nowhere(tmp_path: Any) -> None:
    (tmp_path / "secret.mp3").write_bytes(tone("mp3", "libmp3lame", 0.3))
    url = (tmp_path / "secret.mp3").as_uri()
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n".encode()
    concat = f"ffconcat version 1.0\nfile {url}\n".encode()
    for data in (playlist, concat):
        assert code_of(made(data, "audio/mpeg", audio_format="wav")) == "not_decodable"


def test_sound_of_little_entropy_does_not_fill_the_memory() -> None:
    silence = tone("flac", "flac", 60.0, hertz=0)
    assert len(silence) < 50_000
    found = made(silence, audio_format="wav", limit=1_000_000)
    assert code_of(found) == "unpacks_too_large"
    assert media_steps("audio", audio_format="wav").memory(silence) > 60 * 44_100 * 2
    assert media_steps("audio").memory(silence) < 3_000_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"audio_format": "opus", "audio_rate": 22_050}, "opus knows 8000, 12000, 16000, 24000, 48000"),
        ({"audio_format": "mp3", "audio_rate": 96_000}, "audio_rate=96000: mp3 knows"),
        ({"audio_format": "flac", "audio_rate": 700_000}, "at most 655350"),
    ],
)
def test_what_a_format_does_not_know_is_refused_at_the_start(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        media_steps("audio", **options)


def test_vorbis_is_written_where_there_is_an_encoder_and_refused_elsewhere() -> None:
    if "libvorbis" in av.codecs_available:
        assert made(tone(seconds=0.3), audio_format="ogg").fields["codec"] == "vorbis"
    else:
        with pytest.raises(OptionError, match=r"without an encoder for it \(libvorbis\); opus"):
            media_steps("audio", audio_format="ogg")


def test_a_rate_that_would_make_hours_of_a_small_file_is_not_encoded_anew() -> None:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as slow:
        slow.setnchannels(1)
        slow.setsampwidth(2)
        slow.setframerate(1)
        slow.writeframes(bytes(20_000))
    data = stream.getvalue()
    assert code_of(made(data)) == "success"
    assert code_of(made(data, audio_rate=16_000, audio_format="flac")) == "not_decodable"


def test_limits_that_nothing_can_meet_are_refused() -> None:
    with pytest.raises(OptionError, match="less than min_duration=5"):
        media_steps("audio", min_duration=5, max_duration=2)
