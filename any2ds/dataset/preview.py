"""From the file of a sample to something that a person can look at: a small picture, a waveform, the first words.

Files are strangers': pictures, sound and video are decoded in a child process, which may crash, hang or take all memory
over one without anything else being lost.
"""

from __future__ import annotations

import contextlib
import html.parser
import importlib.util
import itertools
import json
import logging
import re
import struct
import zlib
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Any, Literal

from any2ds.config.media import ImageOptions, MediaOptions, TransformOptions
from any2ds.core import metadata
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import NotDecodable, redacted
from any2ds.core.failures import SUCCESS
from any2ds.core.processes.child_process import ChildEnded
from any2ds.core.processes.pool import Children, NotStarted
from any2ds.core.processes.resources import end_first_when_memory_is_short
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.core.text import duration
from any2ds.transforms.image import head

log = logging.getLogger(__name__)

Kind = Literal["image", "audio", "video", "text", "other"]

SIDE = 256  # pixels of the longer side of a picture
_WAVE = (320, 96)  # pixels of a waveform
_MOST_SECONDS = 60  # of sound that a waveform shows
_MOST_PIXELS = 64_000_000  # of an image, or of a frame
_MOST_WORDS = 400  # characters
_READ_FOR_WORDS = 64 << 10  # bytes
_AS_IT_IS = 48 << 10  # bytes of an image that is shown without having been decoded here
_AS_IT_IS_PIXELS = 4_000_000
_SVG_AS_IT_IS = 32 << 10
_LONGEST_START, _PATIENCE = 60.0, 15.0  # seconds for a child to begin, and for one file
_MOST_FAILURES = 3  # of children, after which no more are started
_TEXTS = re.compile(r"text/|application/(json|jsonl|x-ndjson|xml|xhtml\+xml|ld\+json|javascript|yaml|x-yaml)")
_TEXT_ENDS = re.compile(r"txt|text|md|rst|x?html?|xml|jsonl?|[ct]sv|ya?ml|srt|vtt|tex|py|c|js|css")
_SAFE = {"jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp"}
# Controls but for tab and newline, what changes the direction of what stands around it, and halves of characters.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """Small enough for a web page: of some kilobytes."""

    data: bytes
    mime_type: str  # image/jpeg, image/png, image/gif, image/webp; image/svg+xml, for <img> alone, where nothing acts
    width: int  # pixels; 0 where that is not known
    height: int


@dataclass(frozen=True, slots=True)
class View:
    """What there is to see of a file: nothing of what cannot be shown."""

    kind: Kind
    picture: Picture | None = None
    message: str = ""  # the beginning of a text
    facts: str = ""  # in words: "640 x 480", "3.2 s"


def kind_of(mime_type: str, ext: str) -> Kind:
    """Which kind of media a file is."""
    for kind in ("image", "audio", "video"):
        if mime_type.startswith(f"{kind}/"):
            return kind
    if _TEXTS.match(mime_type) or _TEXT_ENDS.fullmatch(ext.rsplit(".", 1)[-1].lower()):
        return "text"
    return "other"


def shown(message: str, most: int | None = None) -> str:
    """As it may stand in a text for people, of at most so many characters: without controls."""
    message = _UNSHOWN.sub("", message)
    return message if most is None or len(message) <= most else f"{message[: most - 1].rstrip()}…"


def shown_url(url: str) -> str:
    """Without what lets anybody in who has it, and what could be taken for something else."""
    return shown(redacted(metadata.without_credentials(url)), 2000)


class Painter:
    """A context, in which files are looked at one after the other; a child process is started with the first that
    needs one."""

    def __init__(self) -> None:
        self._children: Children[tuple[Kind, bytes, str], View] = Children(_Easel, _LONGEST_START)
        self._failures = 0

    def __enter__(self) -> Painter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.close()

    def view(self, data: bytes, mime_type: str, ext: str) -> View:
        """What there is to see of a file. Whatever is wrong with it, or not installed, there is less."""
        kind = kind_of(mime_type, ext)
        if kind == "text":
            return View(kind, message=words_in(data, mime_type, ext))
        if kind == "other":
            return View(kind)
        view = View(kind)
        if self._failures < _MOST_FAILURES and _can_be_opened(kind):
            try:
                view = self._children.answer((kind, data, mime_type), _PATIENCE)
            except (ChildEnded, NotStarted) as error:
                self._failures += 1
                log.debug("no thumbnail of a file (%s, %d bytes): it %s", mime_type, len(data), error)
                return view
        if kind == "image" and view.picture is None:
            return View(kind, as_it_is(data), facts=view.facts)
        return view


def _can_be_opened(kind: Kind) -> bool:
    """Whether the libraries for it are there."""
    needed = {"image": ("cv2", "PIL"), "audio": ("av", "numpy"), "video": ("av", "numpy")}[kind]
    return all(importlib.util.find_spec(name) for name in needed)


def as_it_is(data: bytes) -> Picture | None:
    """An image that a browser can show without harm, and that is small, also once it is decoded."""
    if head.is_svg(data):
        # <img> runs no scripts and loads nothing; entities and images inside could still unfold into gigabytes.
        folded = re.search(rb"<!ENTITY|<!DOCTYPE[^>]*\[|<image|<feImage|<use|<pattern|<foreignObject", data, re.I)
        return Picture(data, "image/svg+xml", 0, 0) if len(data) <= _SVG_AS_IT_IS and not folded else None
    kind = head.kind_of(data)
    if kind not in _SAFE or len(data) > _AS_IT_IS:
        return None
    with contextlib.suppress(NotDecodable):
        found = head.read(data, kind)
        if found and found.width * found.height <= _AS_IT_IS_PIXELS and not found.is_animated:
            return Picture(data, _SAFE[kind], found.width, found.height)
    return None


def words_in(data: bytes, mime_type: str, ext: str) -> str:
    """How a text begins; of a web page what a reader sees of it."""
    text = data[:_READ_FOR_WORDS].decode(_encoding_of(data), "replace")
    if "html" in mime_type or ext.rsplit(".", 1)[-1] in ("html", "htm", "xhtml"):
        page = _Page()
        with contextlib.suppress(Exception):  # of a page that is none, which is shown as far as it went
            page.feed(text)
        text = " ".join("".join(page.message).split())
    elif "json" in mime_type and len(data) <= _READ_FOR_WORDS:
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    return shown(text.strip(), _MOST_WORDS)


def _encoding_of(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    return "utf-8-sig"


class _Page(html.parser.HTMLParser):
    """Gathers the words of a web page."""

    _SILENT = frozenset({"script", "style", "head", "template", "noscript"})

    def __init__(self) -> None:
        super().__init__()
        self.message: list[str] = []
        self._silent: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT and self._silent is None:
            self._silent = tag
        self.message.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._silent:
            self._silent = None
        self.message.append(" ")

    def handle_data(self, data: str) -> None:
        if self._silent is None:
            self.message.append(data)


# --- in the child ---


class _Easel:
    """Answers with what there is to see of a file."""

    def __init__(self) -> None:
        end_first_when_memory_is_short()
        self._images: Any = None

    def __call__(self, asked: tuple[Kind, bytes, str]) -> View:
        kind, data, mime_type = asked
        try:
            if kind == "image":
                return self._image(data, mime_type)
            return _heard(data) if kind == "audio" else self._seen(data)
        except Exception as error:  # of libraries that are missing, and over broken files of any kind
            log.debug("no thumbnail: %s: %s", type(error).__name__, error)
            return View(kind)

    def _image(self, data: bytes, mime_type: str) -> View:
        if head.is_svg(data):
            return View("image")
        made = self._small(data, mime_type)
        size = made.fields.get("original_width"), made.fields.get("original_height")
        facts = "{} x {}".format(*size) if all(size) else ""
        if made.failure is not None or made.ext != "jpg":
            return View("image", facts=facts)
        return View("image", _as_picture(made), facts=facts)

    def _small(self, data: bytes, mime_type: str) -> Sample:
        """The step for images knows how to turn them, what their colours mean, and what is a bomb."""
        if self._images is None:
            from any2ds.transforms.image.work import ImageWork

            options = ImageOptions(
                resize_mode="keep_ratio_largest",
                encode_format="jpg",
                encode_quality=82,
                skip_reencode=False,
                max_image_area=_MOST_PIXELS,
            )
            self._images = ImageWork(MediaOptions(TransformOptions(file_size=SIDE), options))
        fields = {"mime_type": mime_type, "status": SUCCESS}
        small: Sample = self._images(Sample(Row(0, 0, "", None), StoredBody.of(data), "", fields))
        return small

    def _seen(self, data: bytes) -> View:
        """A frame from the first tenth of a video, since many begin in black."""
        from any2ds.transforms.steps import _av

        facts = _av.facts_of(data, _MOST_PIXELS)
        if facts.picture is None:
            return _heard(data)
        width, height = facts.picture.shown
        message = f"{width} x {height}" + (f", {duration(facts.duration)}" if facts.duration else "")
        scale = min(1.0, SIDE / max(width, height))
        turned = facts.picture.turn in (90, 270)
        size = [max(2, round(side * scale)) for side in ((height, width) if turned else (width, height))]
        with _av.opened(data, _MOST_PIXELS) as container, _av.reading():
            stream = _av.picture_of(container)
            _av.seek(container, Fraction(facts.duration or 0) / 10)
            frame = next(_av.decoded(container, stream), None)
            if frame is None:
                return View("video", facts=message)
            pixels = frame.to_ndarray(format="rgb24", width=size[0], height=size[1])
        pixels = _turned(pixels, facts.picture.turn)
        png = _png(pixels.tobytes(), pixels.shape[1], pixels.shape[0], 2)
        with contextlib.suppress(ImportError):  # a tenth of the size, where the image libraries are installed
            return View("video", _as_picture(self._small(png, "image/png")), facts=message)
        return View("video", Picture(png, "image/png", pixels.shape[1], pixels.shape[0]), facts=message)


def _as_picture(made: Sample) -> Picture:
    return Picture(made.data, "image/jpeg", made.fields["width"], made.fields["height"])


def _turned(pixels: Any, turn: int) -> Any:
    import numpy as np

    return np.ascontiguousarray(np.rot90(pixels, -turn // 90))


def _heard(data: bytes) -> View:
    """The waveform of the first minute."""
    import av
    import numpy as np

    from any2ds.transforms.steps import _av

    facts = _av.facts_of(data, _MOST_PIXELS)
    if facts.sound is None:
        return View("audio")
    rate, peaks = 8000, []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
    with _av.opened(data, _MOST_PIXELS) as container, _av.reading():
        left = _MOST_SECONDS * rate
        for frame in _av.decoded(container, _av.sound_of(container)):
            frame.pts = None
            for piece in resampler.resample(frame):
                values = np.abs(piece.to_ndarray().reshape(-1).astype(np.int32))
                peaks.append(values)
                left -= len(values)
            if left <= 0:
                break
    values = np.concatenate(peaks) if peaks else np.zeros(1, np.int32)
    message = f"{facts.sound.rate:,} Hz, {facts.sound.channels} ch"
    if facts.duration:
        message = f"{duration(facts.duration)}, {message}"
    width, height = _WAVE
    columns = width // 4
    edges = np.linspace(0, len(values), columns + 1).astype(int)
    tops = [int(values[start : max(start + 1, stop)].max(initial=0)) for start, stop in itertools.pairwise(edges)]
    loudest = max(max(tops), 328)  # near silence is to look like it
    grid = np.zeros((height, width), np.uint8)
    for number, top in enumerate(tops):
        half = max(1, round(top / loudest * (height / 2 - 2)))
        grid[height // 2 - half : height // 2 + half, 4 * number : 4 * number + 3] = 1
    return View("audio", Picture(_png(grid.tobytes(), width, height, 3), "image/png", width, height), facts=message)


def _png(pixels: bytes, width: int, height: int, colours: Literal[2, 3]) -> bytes:
    """A PNG (3rd edition, 5): of RGB bytes (2), or of numbers in a palette (3) of nothing and a blue that is seen on
    white as on black."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = len(pixels) // height
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, len(pixels), row))
    palette = chunk(b"PLTE", bytes((0, 0, 0, 91, 141, 239))) + chunk(b"tRNS", b"\0") if colours == 3 else b""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + palette + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
