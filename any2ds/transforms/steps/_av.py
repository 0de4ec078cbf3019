"""Opens sound and video with PyAV, reads their headers, and decodes them; errors of FFmpeg become NotDecodable.

PyAV leaves FFmpeg's messages alone by itself. We never turn its logging on: it takes the interpreter's lock from
FFmpeg's threads, which is how programs hang.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import av
import av.error

from any2ds.core.errors import NotDecodable
from any2ds.transforms.contract import Rejected
from any2ds.transforms.steps._container import has_its_length, missing_end, rotation, tells_its_length

# Playlists and lists of files are formats as well to FFmpeg, with URLs and paths in them that it would open: of a
# stranger's file only those that contain what they say.
_FORMATS = (
    "aa,aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,asf_o,au,avi,caf,dts,dv,eac3,f4v,flac,flv,gxf,h261,h263,h264,hevc,ivf,loas,m4v,"
    "matroska,webm,mj2,mov,mp4,m4a,3gp,3g2,mp3,mpc,mpc8,mpeg,mpegts,mpegvideo,mxf,nut,obu,ogg,oma,qcp,rm,sox,tak,tta,voc,"
    "w64,wav,wtv,wv,xwma,vc1,vvc,evc,av1"
)
# Formats whose durations FFmpeg makes up from the size and the bit rate of the beginning.
_GUESSED = frozenset(
    {"aac", "ac3", "amr", "dts", "eac3", "h261", "h263", "h264", "hevc", "loas", "m4v", "mp3", "mpegvideo"}
)
_MOST_RATE, _MOST_CHANNELS = 768_000, 64  # a resampler's memory grows with both
# Formats with the right duration in the header, of which a missing end shows in sizes; others are asked for their last
# packet.
_COMPLETE_BY_SIZE = ("mov,", "matroska", "wav", "avi", "ogg", "mpeg", "mpegts")
LEAST_PART = 0.9  # of the duration in a header: with less a file is cut off, or damaged
_BEFORE_END = 1.0  # seconds, where the end is looked for
LATE = 0.1  # seconds that may be missing besides: codecs leave out as much at both ends
MOST_PADDING = 0.25  # seconds that codecs put there, and only some headers count
_MOST_BAD = 20  # one packet of so many may be broken, besides one: the first of a stream that was cut out of another


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound, by the header of a file."""

    codec: str  # FFmpeg's name of the format, not of one decoder
    rate: int  # samples per second
    channels: int
    bits: int  # of a sample, where nothing was lost; 0 for lossy formats


@dataclass(frozen=True, slots=True)
class Picture:
    """Moving pictures, by the header of a file."""

    codec: str
    fps: float | None
    width: int  # pixels, as they are stored
    height: int
    aspect: Fraction  # of a pixel: width / height
    turn: int  # degrees clockwise until it is upright
    frame_bytes: int  # of one decoded frame
    seconds: float | None  # that it lasts, which may be less than the sound

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height as a player shows them: upright, of square pixels."""
        width = max(1, round(self.width * self.aspect))
        return (self.height, width) if self.turn in (90, 270) else (width, self.height)


@dataclass(frozen=True, slots=True)
class Facts:
    """A sound or video file, and the values of its headers."""

    data: bytes = field(repr=False)
    max_pixels: float  # of a frame that a decoder may begin
    container: str  # FFmpeg's name: "mov,mp4,m4a,3gp,3g2,mj2"
    duration: float | None  # seconds
    sound: Sound | None
    picture: Picture | None  # cover art is none

    @property
    def brand(self) -> bytes:
        """The brand, which tells MP4 from its relatives; empty for other containers."""
        return self.data[8:12] if self.data[4:8] == b"ftyp" else b""

    def opened(self) -> AbstractContextManager[Any]:
        """The file as a container to read from."""
        return opened(self.data, self.max_pixels)


def facts_of(data: bytes, max_pixels: float, exact: bool = False) -> Facts:
    """Decodes nothing. Raises NotDecodable, also for a file that is cut off, and Rejected for frames too large.

    The duration in the header counts if the file has an end to it. `exact`: it is measured by all packets.
    """
    check_end(data)
    with opened(data, max_pixels) as container, reading():
        sound, picture = sound_of(container), picture_of(container)
        if sound is None and picture is None:
            raise NotDecodable("contains neither sound nor video")
        if picture is not None and picture.width * picture.height > max_pixels:
            raise Rejected("too_many_pixels", f"{picture.width} x {picture.height}")
        found = Facts(
            data,
            max_pixels,
            container.format.name,
            container.duration / 1_000_000 if container.duration and container.duration > 0 else None,
            sound and _sound(sound),
            picture and _picture(picture, rotation(data)),
        )
        _refuse_missing_packets(container, len(data))
        if found.duration is None or (found.container in _GUESSED and not tells_its_length(data)):
            streams = [stream for stream in (sound, picture) if stream is not None]
            return replace(found, duration=_measured(container, streams) or found.duration)
        is_mp3 = found.container == "mp3"
        is_complete = has_its_length(data) if is_mp3 else found.container.startswith(_COMPLETE_BY_SIZE)
        if not exact and (is_complete or _reaches(container, found.duration)):
            return found
    with opened(data, max_pixels) as container, reading():
        return _judged(found, _measured(container, list(container.streams)))


def sound_columns(facts: Facts) -> dict[str, Any]:
    """The columns of the metadata for the length and the sound of a file."""
    sound = facts.sound
    return {
        "duration": facts.duration,
        "sample_rate": sound and sound.rate,
        "channels": sound and sound.channels,
        "codec": sound and sound.codec,
    }


def check_end(data: bytes) -> None:
    """Raises NotDecodable for a file that is shorter than its header claims, in the formats whose headers tell."""
    if message := missing_end(data):
        raise NotDecodable(message)


def check_duration(container: Any, stream: Any, data: bytes, seconds: float) -> None:
    """Raises NotDecodable if so much was decoded of a stream, and much more is in its header."""
    is_guessed = container.format.name in _GUESSED and not tells_its_length(data)
    claimed = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    if not is_guessed and seconds < LEAST_PART * claimed - LATE:
        raise NotDecodable(_too_short(claimed, seconds))


def _too_short(claimed: float, seconds: float) -> str:
    return f"its header claims {claimed:.2f} s, and {seconds:.2f} s of it are there"


def _refuse_missing_packets(container: Any, size: int) -> None:
    """Raises NotDecodable if the last packet in an index that came with the header lies behind the end."""
    for stream in container.streams:
        entries: Any = getattr(stream, "index_entries", ())  # not there in PyAV 16
        if len(entries) and (end := entries[-1].pos + entries[-1].size) > size:
            raise NotDecodable(f"it ends after {size:,} of {end:,} bytes")


def _reaches(container: Any, duration: float) -> bool:
    """Whether there is a packet near the end of that duration; without one, FFmpeg may only be unable to seek there.

    Where the container stands afterwards is not known.
    """
    start, enough = container.start_time or 0, duration - MOST_PADDING
    try:
        container.seek(start + int(max(0.0, duration - _BEFORE_END) * 1_000_000))
        for packet in container.demux():
            at = packet.pts if packet.pts is not None else packet.dts
            if not packet.size or at is None or not packet.time_base:
                continue
            if (at + (packet.duration or 0)) * packet.time_base - Fraction(start, 1_000_000) >= enough:
                return True
    except (av.error.FFmpegError, OverflowError):
        pass
    return False


def _judged(facts: Facts, seconds: float | None) -> Facts:
    """With the duration of its packets. Raises NotDecodable if that is much less than its header claims."""
    claimed = facts.duration or 0.0
    if seconds is None:
        raise NotDecodable("nothing follows its header")
    # Matroska does not tell how long the last picture stays, and whether its end is missing is known already.
    if seconds < LEAST_PART * claimed - LATE and facts.container[:8] != "matroska":
        raise NotDecodable(_too_short(claimed, seconds))
    is_right = -LATE <= seconds - claimed <= MOST_PADDING
    return facts if is_right else replace(facts, duration=seconds or claimed)


def _measured(container: Any, streams: list[Any]) -> float | None:
    """Seconds from the first packet to the end of the last; 0 if packets have neither times nor lengths, None if there
    are none."""
    start, end, length = dict[int, int](), dict[int, int](), Counter[int]()
    for packet in container.demux(streams):  # in whole numbers, since there may be very many
        if not packet.size or packet.is_discard:  # cut away by an edit list
            continue
        number, at, duration = packet.stream.index, packet.pts, packet.duration or 0
        if at is None:
            at = packet.dts
        length[number] += duration
        if at is not None:
            start[number] = min(start.get(number, at), at)
            end[number] = max(end.get(number, at), at + duration)
    if not length:
        return None
    spans = {number: end[number] - start[number] if number in end else length[number] for number in length}
    return float(max((spans.get(one.index, 0) * one.time_base for one in streams if one.time_base), default=0))


@contextmanager
def reading() -> Iterator[None]:
    """Errors of FFmpeg in here become NotDecodable."""
    try:
        yield
    except NotDecodable:
        raise
    except MemoryError as error:
        if not isinstance(error, av.error.FFmpegError):
            raise
        raise NotDecodable("needs more memory than FFmpeg allocates at once") from error
    except (av.error.FFmpegError, ValueError, OSError, EOFError, LookupError, TypeError, OverflowError) as error:
        message = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NotDecodable(message) from error


# Tags that are not UTF-8 fail no file; PyAV 19 escapes such bytes itself, and has the argument no more.
_TAGS: Any = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


@contextmanager
def opened(data: bytes, max_pixels: float) -> Iterator[Any]:
    """A container to read from, whose decoders have one thread each. Raises NotDecodable.

    No decoder begins a frame of many more pixels, whatever the header claims.
    """
    most = str(int(min(max_pixels * 1.25 + 2**20, 2**31 - 1)))  # they round sizes up to those of their blocks
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none", "max_pixels": most}
    if data[8:12] == b"WAVE":  # else it goes through megabytes to see whether they are DTS in disguise, for 50 ms
        options["max_probe_packets"] = "2"
    with reading():
        container = av.open(io.BytesIO(data), "r", options=options, **_TAGS)
    try:
        with reading():
            for stream in container.streams:
                if stream.type in ("audio", "video") and stream.codec_context is not None:
                    stream.codec_context.thread_count = 1
                    stream.codec_context.options = {"max_pixels": most}
        yield container
    finally:
        container.close()


def sound_of(container: Any) -> Any:
    """Its best stream of sound, or None."""
    return _best(stream for stream in container.streams.audio if stream.codec_context is not None)


def picture_of(container: Any) -> Any:
    """Its best stream of moving pictures, or None: the cover of an album is not one."""
    return _best(
        stream
        for stream in container.streams.video
        if stream.codec_context is not None and not stream.disposition & av.stream.Disposition.attached_pic
    )


def _best(streams: Iterator[Any]) -> Any:
    """The stream that is marked as the default, else the first."""
    found = list(streams)
    marked = (stream for stream in found if stream.disposition & av.stream.Disposition.default)
    return next(marked, found[0] if found else None)


def _sound(stream: Any) -> Sound:
    context = stream.codec_context
    name = stream.codec.canonical_name
    channels = int(context.layout.nb_channels)
    if not context.sample_rate or not channels:
        raise NotDecodable("its header has no sample rate or no channels")
    if context.sample_rate > _MOST_RATE or channels > _MOST_CHANNELS:
        raise NotDecodable(f"no sound has {context.sample_rate:,} samples a second in {channels} channels")
    is_exact = name.startswith("pcm_") or name in ("flac", "alac", "wavpack", "tta", "ape", "tak")
    return Sound(name, int(context.sample_rate), channels, _bits(name, context) if is_exact else 0)


def _bits(name: str, context: Any) -> int:
    form = context.format.name if context.format else "s16"
    if form.startswith(("flt", "dbl")):
        return 32
    return 16 if form.startswith(("u8", "s16")) else 24


def _picture(stream: Any, turn: int) -> Picture:
    context = stream.codec_context
    width, height = int(context.width), int(context.height)
    if width < 1 or height < 1:
        raise NotDecodable("its header has no width or height, or far more pixels than --max_image_area")
    rate, aspect = stream.average_rate or stream.guessed_rate, stream.sample_aspect_ratio
    form = context.format
    bits = 12 if form is None else max(12, sum(part.bits for part in form.components))
    return Picture(
        stream.codec.canonical_name,
        float(rate) if rate else None,
        width,
        height,
        aspect if aspect and Fraction(1, 16) <= aspect <= 16 else Fraction(1),
        turn,
        width * height * bits // 8,
        float(stream.duration * stream.time_base) if stream.duration and stream.duration > 0 else None,
    )


def decoded(container: Any, stream: Any) -> Iterator[Any]:
    """Its frames from where the container stands. Raises NotDecodable if it is too broken."""
    packets = bad = frames = 0
    with reading():
        for packet in container.demux(stream):
            packets += 1
            try:
                found = packet.decode()
            except MemoryError:
                raise
            except av.error.FFmpegError:
                bad += 1
                if bad > 1 + packets // _MOST_BAD and packets > 2 * _MOST_BAD:
                    break
                continue
            frames += len(found)
            yield from found
    if bad and (not frames or bad > 1 + packets // _MOST_BAD):
        raise NotDecodable(f"{bad} of {packets} packets cannot be decoded")


def decode_all(facts: Facts) -> None:
    """Decode its pictures and its sound to the end. Raises NotDecodable if one of them is too broken."""
    for stream_of in (picture_of, sound_of):
        with facts.opened() as container:
            stream = stream_of(container)
            if stream is not None and not sum(1 for _ in decoded(container, stream)):
                raise NotDecodable(f"no frame of its {stream.type} can be decoded")


def seek(container: Any, at: Fraction) -> None:
    """To the last key frame at or before so many seconds, where the format knows it; else it stays where it is."""
    try:
        with reading():
            container.seek(int(at * 1_000_000))
    except NotDecodable:
        return


def encoder(*names: str) -> str | None:
    """The first of these encoders that this build of PyAV has."""
    for name in names:
        with suppress(ValueError):
            av.codec.Codec(name, "w")
            return name
    return None
