"""Makes real sound and video on the spot, with PyAV: tones, and pictures whose brightness tells the time."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import Any

import av
import numpy as np

LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}
BASE = Fraction(1, 1000)  # what the times of pictures are counted in


def samples(seconds: float, rate: int = 44_100, channels: int = 1, hertz: float = 440, rising: bool = False) -> Any:
    """A tone, interleaved 16 bit, half as loud as can be; the left channel alone where there are several. One that is
    `rising` goes up by 80 Hz a second, so that it sounds at no moment as at another."""
    time = np.arange(round(seconds * rate)) / rate
    sound = np.zeros((len(time), channels), "i2")
    turns = hertz * time + (40 * time**2 if rising else 0)
    sound[:, 0] = 0.5 * 32767 * np.sin(2 * np.pi * turns)
    return sound


def tone(
    muxer: str = "wav",
    encoder: str = "pcm_s16le",
    seconds: float = 1.0,
    rate: int = 44_100,
    channels: int = 1,
    hertz: float = 440,
    cover: bytes | None = None,
    options: dict[str, str] | None = None,
    rising: bool = False,
) -> bytes:
    """A sound file; `cover` is a JPEG that it carries as the cover of an album, `options` are the muxer's."""
    result = io.BytesIO()
    with av.open(result, "w", format=muxer, options=options or {}) as output:
        stream = _sound_stream(output, encoder, rate, channels)
        if cover is not None:
            picture: Any = output.add_stream("mjpeg")
            picture.width, picture.height, picture.pix_fmt = 16, 16, "yuvj420p"
            picture.disposition = av.stream.Disposition.attached_pic.value
            output.start_encoding()
            packet = av.Packet(cover)
            packet.stream, packet.pts, packet.dts, packet.time_base = picture, 0, 0, BASE
            output.mux(packet)
        for frame in _sound_frames(samples(seconds, rate, channels, hertz, rising), rate):
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return result.getvalue()


def brightness(at: float) -> int:
    """Of the pictures of `film`, 0 to 250, at so many seconds: four each 0.1 s."""
    return round(at * 40) % 250


def film(
    muxer: str = "mp4",
    encoder: str = "libx264",
    sound: str | None = "aac",
    seconds: float = 2.0,
    fps: float = 25,
    size: tuple[int, int] = (160, 120),
    turned: int = 0,
    times: list[float] | None = None,
    pixels: str = "yuv420p",
    rate: int = 48_000,
    options: dict[str, str] | None = None,
) -> bytes:
    """A video of gray pictures with a red quarter at the upper left, and a tone of 440 Hz in mono.

    `turned`: degrees clockwise by which a player is to turn it. `times`: those of the pictures, if they are not even.
    """
    if turned:
        given = film("mp4", encoder, sound, seconds, fps, size, 0, times, pixels, rate, options)
        return given_turn(given, turned) if muxer == "mp4" else copied(given_turn(given, turned), muxer)
    result = io.BytesIO()
    width, height = size
    times = times or [number / fps for number in range(round(seconds * fps))]
    with av.open(result, "w", format=muxer) as output:
        stream: Any = output.add_stream(encoder, rate=Fraction(fps).limit_denominator(1000), options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.gop_size = 12
        stream.codec_context.thread_count = 1
        if encoder not in ("mpeg4", "mjpeg"):
            stream.codec_context.time_base = BASE
        audio: Any = _sound_stream(output, sound, rate, 1) if sound else None
        waiting = list(_sound_frames(samples(times[-1] + 1 / fps, rate), rate)) if audio is not None else []
        for at in times:
            image = np.full((height, width, 3), brightness(at), "u1")
            image[: height // 2, : width // 2] = (200, 0, 0)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = round(at / BASE), BASE
            output.mux(stream.encode(frame))
            while audio is not None and waiting and waiting[0].pts <= at * rate:
                output.mux(audio.encode(waiting.pop(0)))
        output.mux(stream.encode(None))
        if audio is not None:
            for last in (*waiting, None):
                output.mux(audio.encode(last))
    return result.getvalue()


def given_turn(data: bytes, turned: int) -> bytes:
    """An MP4 whose pictures, in its first track, are to be turned by so many degrees clockwise."""
    turns = {90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
    a, b, c, d = (value << 16 for value in turns[turned])
    at = data.index(b"tkhd") + 4 + 40
    return data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]


def copied(data: bytes, muxer: str, options: dict[str, str] | None = None) -> bytes:
    """The same streams in another container."""
    result = io.BytesIO()
    with av.open(io.BytesIO(data), "r") as source, av.open(result, "w", format=muxer, options=options or {}) as output:
        streams = {one.index: output.add_stream_from_template(one, opaque=True) for one in source.streams}
        for packet in source.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                output.mux(packet)
    return result.getvalue()


def _sound_stream(output: Any, encoder: str, rate: int, channels: int) -> Any:
    stream = output.add_stream(encoder, rate=rate)
    stream.codec_context.layout = LAYOUTS[channels]
    return stream


def _sound_frames(sound: Any, rate: int) -> Any:
    for start in range(0, len(sound), 1024):
        part = np.ascontiguousarray(sound[start : start + 1024].reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(part, format="s16", layout=LAYOUTS[sound.shape[1]])
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        yield frame


def heard(data: bytes) -> tuple[Any, int]:
    """The sound of a file, decoded: channels x samples from -1 to 1, and its rate."""
    parts = []
    with av.open(io.BytesIO(data), "r") as container:
        resample = av.AudioResampler("fltp")
        for frame in container.decode(audio=0):
            parts += [one.to_ndarray() for one in resample.resample(frame)]
            rate = frame.sample_rate
        parts += [one.to_ndarray() for one in resample.resample(None)]
    return np.concatenate(parts, axis=1), rate


def seen(data: bytes) -> list[tuple[float, Any]]:
    """The pictures of a file, decoded: their times, and pixels as RGB, as they are stored."""
    with av.open(io.BytesIO(data), "r") as container:
        return [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
