"""Encodes video: chooses the format, turns, scales and cuts pictures, and encodes the sound.

Streams that need no change are copied packet by packet.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av

from any2ds.config.media import VideoOptions
from any2ds.core.errors import NotDecodable, OptionError
from any2ds.transforms.steps import _av, _sound
from any2ds.transforms.steps._av import Facts, Picture
from any2ds.transforms.steps._clips import Clip
from any2ds.transforms.steps._sound import Bounded, Target

_BASE = Fraction(1, 90_000)  # what times of frames are counted in, where they keep their own
_UNTIMED = 64  # packets at the beginning that may be without a time for their decoder
_SEEK = 5.0  # seconds: what is nearer is decoded on the way, since there may be no key frame between


@dataclass(frozen=True, slots=True)
class Container:
    """A format that video is stored in. The codecs are those that are copied into it as they are."""

    name: str
    muxer: str
    mime_type: str
    encoders: tuple[str, ...]
    sound: str  # the name of an audio format
    usual: frozenset[str]  # what is in it by its name
    possible: frozenset[str]  # and what stays in it if no format is asked for


_H264 = ("libx264", "libopenh264")
_MP4 = frozenset({"h264", "aac"})
_MP4_TOO = frozenset({"hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mp3", "ac3", "eac3", "alac", "flac"})
_WEBM = frozenset({"vp8", "vp9", "av1", "opus", "vorbis"})
_ALL: frozenset[str] = frozenset()
CONTAINERS = {
    container.name: container
    for container in (
        Container("mp4", "mp4", "video/mp4", _H264, "m4a", _MP4, _MP4 | _MP4_TOO),
        Container("webm", "webm", "video/webm", ("libvpx-vp9", "libvpx"), "opus", _WEBM, _WEBM),
        Container("mkv", "matroska", "video/x-matroska", _H264, "m4a", _ALL, _ALL),
    )
}
_OF_EXT = {"webm": "webm", "mkv": "mkv"}  # what stays its own where it is encoded again; all else becomes mp4
_COPIED_FROM = ("mov,", "matroska,")  # containers whose packets say all that another one needs

CODECS = {"libx264": "h264", "libopenh264": "h264", "libvpx-vp9": "vp9", "libvpx": "vp8"}
"""What the encoders make, by FFmpeg's name of the format."""

NAMES = tuple(field.name for field in dataclasses.fields(VideoOptions))

# x264 as it is, but for half the frames to look ahead: they are most of its memory. VP9 with its settings for files.
_SETTINGS = {
    "libx264": {"preset": "fast", "crf": "20", "rc-lookahead": "20", "threads": "1"},
    "libvpx-vp9": {"crf": "31", "b": "0", "deadline": "good", "cpu-used": "4", "lag-in-frames": "16", "threads": "1"},
    "libvpx": {"crf": "10", "b": "4M", "deadline": "good", "cpu-used": "4", "lag-in-frames": "16", "threads": "1"},
    "libopenh264": {"threads": "1"},
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """The form that the video of a file is stored in."""

    container: Container
    encoder: str | None  # of the pictures; None: they are copied
    width: int  # of what is stored
    height: int
    fps: float | None  # None: each frame keeps its time
    sound: Target | None  # None: it is copied, or there is none
    has_sound: bool


def check(options: VideoOptions) -> None:
    """Raises OptionError for what this build of PyAV cannot encode."""
    asked = changes(options)
    form = options.video_format if options.video_format != "keep" else "mp4"
    if not asked or (set(asked) <= {"frames", "frame_interval", "video_audio"} and form == "mp4"):
        return
    container = CONTAINERS[form]
    for names in (container.encoders, _sound.FORMATS[container.sound].encoders):
        if _av.encoder(*names) is None:
            raise OptionError(f"{asked[0]}: this build of PyAV comes without an encoder for {form} ({names[0]})")


def changes(options: VideoOptions) -> tuple[str, ...]:
    """The options that ask for something else than what came."""
    return tuple(name for name in NAMES if getattr(options, name) not in (None, 0, "keep"))


def size_of(picture: Picture, shorter: int) -> tuple[int, int]:
    """Width and height, upright, of which the shorter becomes `shorter` if it is larger."""
    width, height = picture.shown
    scale = min(1.0, shorter / min(width, height)) if shorter else 1.0
    return max(1, round(width * scale)), max(1, round(height * scale))


def _even(size: int) -> int:
    """Encoders store colours at half the size."""
    return max(2, size // 2 * 2)


def encoding_of(options: VideoOptions, facts: Facts, ext: str, is_clip: bool) -> Encoding | None:
    """None if the file stays as it is."""
    picture, sound, keeps_format = facts.picture, facts.sound, options.video_format == "keep"
    assert picture is not None
    form = _OF_EXT.get(ext, "mp4") if keeps_format else options.video_format
    container = CONTAINERS[form]
    codecs = container.possible if keeps_format else container.usual  # that are copied; empty: all
    can_copy = facts.container.startswith(_COPIED_FROM)
    copies_picture = can_copy and (not codecs or picture.codec in codecs)
    copies_sound = sound is not None and can_copy and (not codecs or sound.codec in codecs)

    size = size_of(picture, options.video_size)
    keeps_fps = not options.video_fps or bool(
        picture.fps and abs(options.video_fps - picture.fps) < 0.005 * options.video_fps
    )
    is_same = not is_clip and size == picture.shown and keeps_fps
    has_sound = sound is not None and options.video_audio == "keep"
    if is_same and has_sound == (sound is not None):
        is_right = copies_picture and (sound is None or copies_sound)
        if keeps_format or (is_right and _is_in(form, facts, ext)):
            return None

    target = None
    if sound is not None and has_sound and (is_clip or not copies_sound):
        target = _sound.nearest(_sound.FORMATS[container.sound], sound)
    if is_same and copies_picture:
        return Encoding(container, None, *picture.shown, None, target, has_sound)
    encoder = _av.encoder(*container.encoders)
    if encoder is None:  # a file that came as webm, where webm cannot be written
        container = CONTAINERS["mp4"]
        encoder = _av.encoder(*container.encoders)
        if sound is not None and target is not None:
            target = _sound.nearest(_sound.FORMATS[container.sound], sound)
    return Encoding(container, encoder, _even(size[0]), _even(size[1]), options.video_fps, target, has_sound)


def _is_in(form: str, facts: Facts, ext: str) -> bool:
    """Whether the file is in that format already. QuickTime (mov) and 3GP are near relatives of mp4."""
    if form == "mp4":
        return bool(facts.brand) and not facts.brand.startswith((b"qt", b"3g"))
    return facts.container.startswith("matroska,") and ext == form


def memory(facts: Facts, encoding: Encoding | None) -> int:
    """Bytes for decoding and encoding, besides the results.

    Decoders keep up to 16 frames to refer to, most often 4, and some on their way; x264 those that it looks ahead at,
    and several of each that it refers to.
    """
    picture = facts.picture
    assert picture is not None
    total = 12 * picture.frame_bytes
    if encoding is not None and encoding.encoder is not None:
        total += 60 * encoding.width * encoding.height * 3 // 2
    return total


class Pictures:
    """Turns frames upright and gives them a size and a pixel format."""

    def __init__(self, picture: Picture, width: int, height: int, pixels: str) -> None:
        self._width, self._height, self._pixels = width, height, pixels
        self._turn = picture.turn
        self._graph: Any = None
        self._shape: tuple[Any, ...] = ()

    def __call__(self, frame: Any) -> Any:
        shape = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range)
        if shape != self._shape:  # some streams change in the middle
            self._graph, self._shape = self._new_graph(frame), shape
        pts, base = frame.pts, frame.time_base
        frame.pts = 0
        self._graph.push(frame)
        found = self._graph.pull()
        found.pts, found.time_base = pts, base
        return found

    def _new_graph(self, frame: Any) -> Any:
        graph = av.filter.Graph()
        if hasattr(graph, "threads"):
            graph.threads = 1
        nodes = [
            graph.add(
                "buffer",
                f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}:time_base={_BASE}"
                f":colorspace={int(frame.colorspace)}:range={int(frame.color_range)}",
            )
        ]
        if self._turn:
            turns = {90: ("clock",), 180: ("clock", "clock"), 270: ("cclock",)}[self._turn]
            nodes += [graph.add("transpose", f"dir={turn}") for turn in turns]
        to_rgb = self._pixels == "bgr24"
        scale = f"w={self._width}:h={self._height}:flags=lanczos+accurate_rnd+full_chroma_int"
        if not to_rgb:
            scale += ":out_range=tv"
            if frame.format.is_rgb:
                scale += ":out_color_matrix=bt709"
        nodes += [graph.add("scale", scale), graph.add("format", f"pix_fmts={self._pixels}"), graph.add("buffersink")]
        graph.link_nodes(*nodes)
        graph.configure()
        return graph


Shown = tuple[Fraction, Fraction, Any]
"""From when, until when a frame is on screen, in seconds from the start of a clip; and the frame."""


def shown_frames(container: Any, picture: Picture, clip: Clip, seek: bool = True) -> Iterator[Shown]:
    """Its frames in `clip`. The first is the one that is on screen at its start."""
    seek = seek and clip.start > 0
    origin, begin = Fraction(container.start_time or 0, 1_000_000), Fraction(clip.start)
    usual = 1 / _fraction(picture.fps) if picture.fps else Fraction(1, 25)
    if seek:
        _av.seek(container, begin + origin)
    held: tuple[Fraction, Any] | None = None
    after = Fraction(0)
    for frame in _av.decoded(container, _av.picture_of(container)):
        pts = frame.pts if frame.pts is not None else frame.dts
        at = after if pts is None else pts * frame.time_base - origin
        after = at + usual
        if held is None and at > begin and seek:
            raise _Missed  # the container has led us behind the place, as those without an index may
        if held is not None and at <= held[0]:
            continue  # time does not go back
        if held is not None and at > begin:
            yield max(held[0] - begin, Fraction(0)), at - begin, held[1]
        held = (at, frame)
        if at >= clip.end:
            return
    if held is None and seek:
        raise _Missed  # or behind the last one
    if held is not None:
        yield max(held[0] - begin, Fraction(0)), max(held[0], begin) + usual - begin, held[1]


class _Missed(Exception):
    """A place was not found."""


def between(facts: Facts, clip: Clip) -> Iterator[Shown]:
    """The frames of a file in `clip`; see `shown_frames`."""
    assert facts.picture is not None
    has_begun = False
    try:
        with facts.opened() as container:
            for shown in shown_frames(container, facts.picture, clip):
                has_begun = True
                yield shown
        return
    except (_Missed, NotDecodable):  # FFmpeg cannot seek in every container
        if clip.start <= 0 or has_begun:
            raise
    with facts.opened() as container:
        yield from shown_frames(container, facts.picture, clip, seek=False)


def _fraction(fps: float) -> Fraction:
    """Frames per second, above 0 whatever the header claims."""
    return Fraction(fps).limit_denominator(100_000) or Fraction(1, 100_000)


def paced(frames: Iterable[Shown], fps: float, length: Fraction | None) -> Iterator[Shown]:
    """So many frames a second, each the one on screen then: repeated, or left out."""
    step, count = 1 / _fraction(fps), 0
    for begin, end, frame in frames:
        if end - begin > _sound.LONGEST_GAP:
            raise NotDecodable(f"one frame of it lasts {float(end - begin):,.0f} s")
        while (at := count * step) < end and (length is None or at < length):
            if at >= begin or not count:
                yield at, at + step, frame
            count += 1


def encoded(facts: Facts, encoding: Encoding, limit: int, clip: Clip) -> bytes:
    """The video in `clip`, as `encoding` says. Raises NotDecodable, and Rejected beyond `limit` bytes."""
    result = Bounded(limit)
    with (
        facts.opened() as pictures,
        facts.opened() as sounds,
        av.open(result, "w", format=encoding.container.muxer) as output,
    ):
        source, sound = _av.picture_of(pictures), _av.sound_of(sounds) if encoding.has_sound else None
        streams: list[Iterator[Any]] = []
        if encoding.encoder is None:
            streams.append(_copied(pictures, source, output.add_stream_from_template(source, opaque=True)))
        else:
            streams.append(_encoded_pictures(facts, encoding, clip, _add_stream(output, encoding, facts, source)))
        if sound is not None and encoding.sound is None:
            streams.append(_copied(sounds, sound, output.add_stream_from_template(sound, opaque=True)))
        elif sound is not None and encoding.sound is not None:
            stream = _sound.add_stream(output, encoding.sound, _sound.layout_of(sound, encoding.sound))
            streams.append(_encoded_sound(sounds, encoding.sound, clip, stream))
        output.start_encoding()
        for packet in heapq.merge(*streams, key=_when):
            output.mux(packet)
            result.check()
    result.check()
    return result.getvalue()


def _when(packet: Any) -> Fraction:
    at = packet.dts if packet.dts is not None else packet.pts
    return Fraction(at or 0) * (packet.time_base or 1)


def _copied(container: Any, source: Any, stream: Any) -> Iterator[Any]:
    with _av.reading():
        for packet in _in_order(container.demux(source)):
            packet.stream = stream
            yield packet


def _in_order(packets: Iterable[Any]) -> Iterator[Any]:
    """Each with a time for its decoder: Matroska has none for those before the first that is shown in its turn."""
    waiting: list[Any] = []
    for packet in packets:
        if not packet.size:
            continue
        if packet.dts is None and len(waiting) < _UNTIMED:
            waiting.append(packet)
            continue
        if packet.dts is None:
            raise NotDecodable("its packets have no times")
        for number, early in enumerate(waiting):
            early.dts = packet.dts - (len(waiting) - number) * max(1, early.duration or 1)
            yield early
        waiting.clear()
        yield packet
    first = min((packet.pts or 0 for packet in waiting), default=0)
    for number, packet in enumerate(waiting):  # all of a very short one
        packet.dts = first - len(waiting) + number
        yield packet


def _add_stream(output: Any, encoding: Encoding, facts: Facts, source: Any) -> Any:
    assert encoding.encoder is not None
    assert facts.picture is not None
    rate = _fraction(encoding.fps or facts.picture.fps or 25)
    stream = output.add_stream(encoding.encoder, rate=rate, options=_SETTINGS.get(encoding.encoder, {}))
    context = stream.codec_context
    context.width, context.height, context.pix_fmt = encoding.width, encoding.height, "yuv420p"
    context.time_base = _BASE
    context.thread_count = 1
    context.color_range = 1  # that of television, as the pictures are made
    if source.codec_context.colorspace != 0:  # RGB
        for name in ("colorspace", "color_primaries", "color_trc"):
            setattr(context, name, getattr(source.codec_context, name))
    else:
        context.colorspace = context.color_primaries = context.color_trc = 1
    return stream


def _encoded_pictures(facts: Facts, encoding: Encoding, clip: Clip, stream: Any) -> Iterator[Any]:
    assert facts.picture is not None
    frames, length = between(facts, clip), clip.length
    scaled = Pictures(facts.picture, encoding.width, encoding.height, "yuv420p")
    last = -1
    for begin, until, frame in paced(frames, encoding.fps, length) if encoding.fps else frames:
        if length is not None and begin >= length:
            break
        made = scaled(frame)
        at = round(begin / _BASE)
        if at <= last:
            continue
        made.pts, made.time_base, last = at, _BASE, at
        made.duration = max(1, round(min(until, length or until) / _BASE) - at)
        made.pict_type = 0  # the encoder's choice, not that of the one before
        yield from stream.encode(made)
    if last < 0:
        raise NotDecodable("contains no pictures")
    yield from stream.encode(None)


def _encoded_sound(container: Any, target: Target, clip: Clip, stream: Any) -> Iterator[Any]:
    for frame in _sound.made(container, target, clip, by_time=True):
        yield from stream.encode(frame)
    yield from stream.encode(None)


def stills(
    facts: Facts, times: Iterable[float], end: float, size: tuple[int, int], once: bool
) -> Iterator[tuple[float, Any]]:
    """The times, which ascend up to `end`, and the frames on screen then: arrays, BGR. A file may end before.

    With `once`, a frame that is on screen at several times is given for the first alone.
    """
    assert facts.picture is not None
    scaled = Pictures(facts.picture, *size, "bgr24")
    waiting = iter(times)
    at = next(waiting, None)
    while at is not None:
        first = at
        # Far away from the last one it is quicker to look for the place than to decode all that is between.
        for _, until, frame in between(facts, Clip(first, end + 1e-6)):
            is_given = False
            while at is not None and first + until > at:
                if not (once and is_given):
                    yield at, scaled(frame).to_ndarray()
                is_given, at = True, next(waiting, None)
            if at is None or at - (first + until) > _SEEK:
                break
        else:
            return  # the file ends before
