"""Encodes sound: which format it becomes, resampled and mixed on the way there."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import av.error

from any2ds.config.media import AudioOptions
from any2ds.core.errors import NotDecodable, OptionError
from any2ds.transforms.contract import Rejected
from any2ds.transforms.steps import _av
from any2ds.transforms.steps._av import Facts, Sound
from any2ds.transforms.steps._clips import Clip

# libswresample at its best: 120 dB and more between a tone and what it leaves elsewhere, level up to 0.45 of the lower
# rate, at the cost of its defaults (35 to 110 dB, 0.5 dB down at 0.44). Wheels of PyAV come without soxr.
_RESAMPLER = "filter_size=128:exact_rational=1:cutoff=0.95:filter_type=kaiser:kaiser_beta=12"
# Times of frames may be off by 20 ms, since many containers round them; the first begins exactly.
_BY_TIME = "async=1:min_comp=0.000001:min_hard_comp=0.02"
LONGEST_GAP = 3600  # seconds: a damaged file may say that nothing happens for a century
_LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


class Bounded(io.BytesIO):
    """A file in memory of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def check(self) -> None:
        """Raises Rejected beyond the limit. PyAV swallows what is raised while it writes, so its caller has to ask."""
        with self.getbuffer() as written:
            size = len(written)
        if size > self._limit:
            raise Rejected("unpacks_too_large", f"it becomes larger than {self._limit:,} bytes (--unpack_max_bytes)")


@dataclass(frozen=True, slots=True)
class Format:
    """A format that sound is stored in."""

    name: str
    codec: str
    encoders: tuple[str, ...]
    muxer: str
    ext: str
    mime_type: str
    containers: tuple[str, ...]  # FFmpeg's names of those that it is read from
    bit_rate: int = 0  # at most, for each channel; 0 where nothing is lost
    most_channels: int = 8
    most_rate: int = 768_000


_COPIED_FROM = ("mov,", "matroska", "ogg")  # containers whose packets say all that another one needs
_MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
FORMATS = {
    form.name: form
    for form in (
        Format("flac", "flac", ("flac",), "flac", "flac", "audio/x-flac", ("flac",), most_rate=655_350),
        Format("ogg", "vorbis", ("libvorbis",), "ogg", "ogg", "audio/ogg", ("ogg",), 96_000),
        Format("opus", "opus", ("libopus",), "ogg", "opus", "audio/ogg", ("ogg",), 64_000),
        Format("mp3", "mp3", ("libmp3lame",), "mp3", "mp3", "audio/mpeg", ("mp3",), 96_000, most_channels=2),
        Format("wav", "pcm", ("pcm_s16le",), "wav", "wav", "audio/x-wav", ("wav", "w64")),
        Format("m4a", "aac", ("aac",), "ipod", "m4a", "audio/mp4", (_MP4, "aac"), 96_000),
    )
}


@dataclass(frozen=True, slots=True)
class Target:
    """The form that a stream of sound is encoded in."""

    form: Format
    encoder: str
    rate: int
    channels: int
    bits: int  # of a sample, where nothing is lost

    @property
    def sample_format(self) -> str:
        return {
            "flac": "s16" if self.bits <= 16 else "s32",
            "pcm_s16le": "s16",
            "pcm_s24le": "s32",
            "pcm_f32le": "flt",
            "libopus": "flt",
        }.get(self.encoder, "fltp")

    @property
    def codec(self) -> str:
        return self.encoder if self.form.codec == "pcm" else self.form.codec

    @property
    def fields(self) -> dict[str, Any]:
        """The columns of the metadata."""
        return {"codec": self.codec, "sample_rate": self.rate, "channels": self.channels}

    @property
    def layout(self) -> str:
        return _LAYOUTS.get(self.channels, f"{self.channels}C")


def check(options: AudioOptions) -> None:
    """Raises OptionError for what this build of PyAV cannot encode, and for what nothing can be."""
    if options.max_duration is not None and options.max_duration < options.min_duration:
        raise OptionError(f"max_duration={options.max_duration:g} is less than min_duration={options.min_duration:g}")
    if options.audio_format == "keep":
        return
    form = FORMATS[options.audio_format]
    name = _av.encoder(*form.encoders)
    if name is None:
        other = "; opus is smaller at the same quality, and lies in Ogg as well" if form.name == "ogg" else ""
        raise OptionError(
            f"audio_format={form.name}: this build of PyAV comes without an encoder for it ({form.encoders[0]}){other}"
        )
    rates = _rates(form, name)
    if options.audio_rate and not _takes(form, rates, options.audio_rate):
        known = ", ".join(map(str, sorted(rates))) if rates else f"at most {form.most_rate}"
        raise OptionError(f"audio_rate={options.audio_rate}: {form.name} knows {known}")


def target_of(options: AudioOptions, facts: Facts, is_cut: bool) -> Target | None:
    """The target of a file of sound alone; None if it keeps its bytes. A file that is cut is always encoded."""
    sound = facts.sound
    assert sound is not None
    now = _format_of(facts.container, sound)
    form = now if options.audio_format == "keep" else FORMATS[options.audio_format]
    if not is_cut:
        if options.audio_format == "keep" and not (options.audio_rate or options.audio_channels):
            return None
        if form == now and _has_right_shape(options, sound):
            return None
    return nearest(form, sound, options.audio_rate, options.audio_channels)


def copied_to(options: AudioOptions, facts: Facts) -> Format | None:
    """The format that its packets can be put into as they are, if it is that but lies in another container."""
    sound, form = facts.sound, FORMATS.get(options.audio_format)
    if form is None or sound is None or form.codec != sound.codec or facts.container in form.containers:
        return None
    return form if _has_right_shape(options, sound) and facts.container.startswith(_COPIED_FROM) else None


def _has_right_shape(options: AudioOptions, sound: Sound) -> bool:
    return options.audio_rate in (None, sound.rate) and options.audio_channels in (None, sound.channels)


def nearest(form: Format | None, sound: Sound, rate: int | None = None, channels: int | None = None) -> Target:
    """A format as it can be written here: flac instead of one that cannot, or not at that `rate`."""
    if form is not None and _av.encoder(*form.encoders) is None and form.name == "ogg":
        form = FORMATS["opus"]
    name = _av.encoder(*form.encoders) if form else None
    if form is None or name is None or (rate and not _takes(form, _rates(form, name), rate)):
        form, name = FORMATS["flac"], "flac"
    rates, wanted = _rates(form, name), rate or sound.rate
    if not _takes(form, rates, wanted):
        wanted = min((one for one in rates if one >= wanted), default=max(rates, default=form.most_rate))
    if form.codec == "pcm" and sound.bits > 16:
        name = "pcm_f32le" if sound.bits == 32 else "pcm_s24le"
    most = 64 if form.codec == "pcm" else form.most_channels
    found = channels or sound.channels
    return Target(form, name, wanted, found if found <= most else 2, sound.bits)


def _format_of(container: str, sound: Sound) -> Format | None:
    codec = "pcm" if sound.codec.startswith(("pcm_s", "pcm_u8", "pcm_f")) else sound.codec
    return next((form for form in FORMATS.values() if form.codec == codec and container in form.containers), None)


def _rates(form: Format, name: str) -> tuple[int, ...]:
    """Sample rates that its encoder knows; none if it knows all."""
    return tuple(av.codec.Codec(name, "w").audio_rates or ())


def _takes(form: Format, rates: tuple[int, ...], rate: int) -> bool:
    return rate in rates if rates else rate <= form.most_rate


class _Converter:
    """FFmpeg's filters for sound: rate, channels and samples as `target` wants them, up to `most` samples.

    The times of frames count: silence comes into gaps, and what lies before 0, or is there twice, is left out.
    """

    def __init__(self, target: Target, most: int | None) -> None:
        self._target, self._most = target, most
        self._graph: Any = None
        self._shape: tuple[Any, ...] = ()
        self._made = 0  # samples

    def all(self, frames: Iterable[tuple[Fraction, Any]]) -> Iterator[Any]:
        """Frames that are numbered from 0, of frames with their times in seconds."""
        for at, frame in frames:
            shape = (frame.format.name, frame.layout.name, frame.sample_rate)
            if shape != self._shape:  # some streams change in the middle
                yield from self._rest()
                self._graph, self._shape = self._new_graph(frame), shape
            frame.pts, frame.time_base = round(at * frame.sample_rate), Fraction(1, frame.sample_rate)
            try:
                self._graph.push(frame)
            except av.error.EOFError:  # there is enough
                break
            yield from self._ready()
        yield from self._rest()

    def _rest(self) -> Iterator[Any]:
        """The frames that are left in the resampler."""
        if self._graph is not None:
            with suppress(av.error.EOFError):
                self._graph.push(None)
            yield from self._ready()
            self._graph = None

    def _ready(self) -> Iterator[Any]:
        while True:
            try:
                frame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            frame.pts, frame.time_base = self._made, Fraction(1, self._target.rate)
            self._made += frame.samples
            yield frame

    def _new_graph(self, frame: Any) -> Any:
        target, count, layout = self._target, frame.layout.nb_channels, frame.layout.name
        if " channels" in layout:
            layout = _LAYOUTS.get(count, layout)
        wanted = layout if target.channels == count else target.layout
        form = f"out_sample_rate={target.rate}:out_sample_fmt={target.sample_format}:out_chlayout={wanted}"
        begins = round(self._made * frame.sample_rate / target.rate)  # in samples that go in
        graph = av.filter.Graph()
        nodes = [
            graph.add(
                "abuffer",
                f"sample_rate={frame.sample_rate}:sample_fmt={frame.format.name}:channel_layout={layout}"
                f":time_base=1/{frame.sample_rate}",
            ),
            graph.add("aresample", f"{form}:{_RESAMPLER}:{_BY_TIME}:first_pts={begins}"),
        ]
        if self._most is not None:
            nodes.append(graph.add("atrim", f"end_pts={self._most}"))
        graph.link_nodes(*nodes, graph.add("abuffersink"))
        graph.configure()
        return graph


def add_stream(output: Any, target: Target, layout: str) -> Any:
    """A stream of sound as `target` wants it in a container that is being written."""
    stream = output.add_stream(target.encoder, rate=target.rate)
    context = stream.codec_context
    context.format = target.sample_format
    context.layout = layout
    context.thread_count = 1
    if target.form.bit_rate:  # 4 bits for each sample are what encoders do well with at low rates
        context.bit_rate = min(target.form.bit_rate, 4 * target.rate) * target.channels
    context.time_base = Fraction(1, target.rate)
    return stream


def layout_of(stream: Any, target: Target) -> str:
    """The channels of `target` by their names, those of the file if it has as many."""
    layout = stream.codec_context.layout
    is_named = layout.nb_channels == target.channels and " channels" not in layout.name
    return str(layout.name) if is_named else target.layout


def copied(facts: Facts, form: Format, limit: int) -> bytes:
    """The sound of a file, as it is, in the container of `form`. Raises NotDecodable, Rejected."""
    result, count = Bounded(limit), 0
    with facts.opened() as container, av.open(result, "w", format=form.muxer) as output, _av.reading():
        source = _av.sound_of(container)
        stream = output.add_stream_from_template(source, opaque=True)
        for packet in container.demux(source):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
                count += 1
                result.check()
    result.check()
    if not count:
        raise NotDecodable("contains no sound")
    return result.getvalue()


def _frames_in(clip: Clip, container: Any, by_time: bool) -> Iterator[tuple[Fraction, Any]]:
    """The frames that lie in `clip` at least in part, with their times from its start on, in seconds.

    Where times do not count, one follows another. Raises NotDecodable for a gap of hours.
    """
    start = Fraction(clip.start)
    origin = Fraction(container.start_time or 0, 1_000_000)
    after = Fraction(0)
    if start > 1:  # decoders need some sound before they are in tune
        _av.seek(container, start - 1 + origin)
    for frame in _av.decoded(container, _av.sound_of(container)):
        if not frame.samples:
            continue
        at = frame.pts * frame.time_base - origin if by_time and frame.pts is not None else after
        if at >= clip.end:
            return
        begin = max(after, start)
        if at - begin > LONGEST_GAP:
            raise NotDecodable(f"contains a gap of {float(at - begin):,.0f} s")
        while at - begin > 1:  # FFmpeg would have the silence of a long gap in memory at once
            yield begin - start, _second_of_silence(frame)
            begin += 1
        after = at + Fraction(frame.samples, frame.sample_rate)
        if after > start:
            yield at - start, frame


def _second_of_silence(like: Any) -> Any:
    frame = av.AudioFrame(format=like.format.name, layout=like.layout.name, samples=like.sample_rate)
    for plane in frame.planes:
        plane.update(bytes([0x80 if like.format.name.startswith("u8") else 0]) * plane.buffer_size)
    frame.sample_rate = like.sample_rate
    return frame


def made(container: Any, target: Target, clip: Clip, by_time: bool) -> Iterator[Any]:
    """Frames of the sound in `clip`, as `target` wants them.

    With `by_time` the times of frames count, as they do beside pictures; else one follows another.
    """
    most = None if clip.length is None else round(clip.length * target.rate)
    return _Converter(target, most).all(_frames_in(clip, container, by_time))


def encoded(facts: Facts, target: Target, limit: int, clip: Clip) -> tuple[bytes, float]:
    """The sound of a file in `clip`, encoded anew, and how many seconds it lasts.

    Raises NotDecodable, and Rejected if it becomes larger than `limit` bytes.
    """
    result, count = Bounded(limit), 0
    with facts.opened() as container:
        by_time = facts.picture is not None or clip.start > 0
        layout = layout_of(_av.sound_of(container), target)
        with av.open(result, "w", format=target.form.muxer) as output:
            stream = add_stream(output, target, layout)
            for frame in made(container, target, clip, by_time):
                count += frame.samples
                output.mux(stream.encode(frame))
                result.check()
            output.mux(stream.encode(None))
    result.check()
    if not count:
        raise NotDecodable("contains no sound")
    return result.getvalue(), count / target.rate
