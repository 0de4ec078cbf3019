"""From the file of a sample to something that a person can look at: a small picture, a waveform, the first words.

Files are strangers': pictures, sound and video are decoded in a child process, which may crash, hang or take all memory
over one without anything else being lost.
"""

from __future__ import annotations

import contextlib
import html
import importlib.util
import json
import logging
import math
import re
from collections.abc import Iterable
from types import TracebackType

from any2ds.core.errors import NotDecodable
from any2ds.core.kinds import kind_of_ext
from any2ds.core.processes.child_process import ChildEnded
from any2ds.core.processes.pool import Children, NotStarted
from any2ds.describe.pictures import Kind, Picture, PreviewMaker, View
from any2ds.describe.shown import shown
from any2ds.transforms.image import head

log = logging.getLogger(__name__)

_MOST_WORDS = 400  # characters
_READ_FOR_WORDS = 64 << 10  # bytes
_MOST_BYTES_AS_IS = 48 << 10  # of an image that is shown as it is where it cannot be decoded here
_THUMBNAIL_BYTES = 24 << 10  # of an image that need not be decoded: a thumbnail of a photograph has as many
_MOST_PIXELS_AS_IS = 1_000_000
_MOST_SVG_BYTES = 32 << 10
_LONGEST_START, _PATIENCE = 60.0, 15.0  # seconds for a child to begin, and for one file
_MOST_FAILURES = 3  # of children, after which no more are started
_TEXTS = re.compile(r"text/|application/(json|jsonl|x-ndjson|xml|xhtml\+xml|ld\+json|javascript|yaml|x-yaml)")
_UNFOLDS = re.compile(rb"<!ENTITY|<!DOCTYPE[^<>\[]*\[|<image|<feImage|<use|<pattern|<foreignObject", re.IGNORECASE)
_TEXT_ENDS = re.compile(r"txt|text|md|rst|x?html?|xml|jsonl?|[ct]sv|ya?ml|srt|vtt|tex|py|c|js|css")
# What a reader does not see of a web page: markup, and what stands in elements that are not shown, also without an end.
_TAGS = re.compile(
    r"<(script|style|head|template|noscript)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]*>", re.I | re.S
)
_SAFE = {"jpeg": "image/jpeg", "png": "image/png"}  # image types that need no library for their size
_LIBRARIES = {"image": ("cv2", "PIL"), "audio": ("av", "numpy"), "video": ("av", "numpy")}


def kind_of(mime_type: str, ext: str) -> Kind:
    """Kind of media of a file."""
    for kind in ("image", "audio", "video"):
        if mime_type.startswith(f"{kind}/"):
            return kind
    if _TEXTS.match(mime_type) or _TEXT_ENDS.fullmatch(ext.rsplit(".", 1)[-1].lower()):
        return "text"
    return "other"


class PreviewPool:
    """A context, in which files are looked at one after the other; a child process is started by `start`, or with the
    first file that needs one."""

    def __init__(self) -> None:
        self._children: Children[tuple[Kind, bytes, str], View] = Children(PreviewMaker, _LONGEST_START)
        self._failures = 0

    def __enter__(self) -> PreviewPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.close()

    def start(self, exts: Iterable[str], size: float) -> None:
        """Have the child ready if it is needed for files with these extensions, of so many bytes on average."""
        kinds = {kind_of_ext(ext) for ext in exts} - ({"image"} if size <= _THUMBNAIL_BYTES else set())
        if any(map(_can_be_decoded, kinds)):
            try:
                self._children.start()
            except (ChildEnded, NotStarted) as error:
                self._failures = _MOST_FAILURES
                log.debug("no thumbnails: it %s", error)

    def view(self, data: bytes, mime_type: str, ext: str, patience: float = math.inf) -> View:
        """The view of a file. Whatever is wrong with it, not installed, or takes longer than `patience`
        seconds, there is less."""
        kind = kind_of(mime_type, ext)
        if kind == "text":
            return View(kind, text=beginning_of(data, mime_type, ext))
        if kind == "image" and len(data) <= _THUMBNAIL_BYTES and (picture := as_it_is(data)) is not None:
            return View(kind, picture, facts=f"{picture.width} x {picture.height}" if picture.width else "")
        view = View(kind)
        if self._failures < _MOST_FAILURES and _can_be_decoded(kind):
            try:
                view = self._children.answer((kind, data, mime_type), min(_PATIENCE, patience))
            except (ChildEnded, NotStarted) as error:
                self._failures += 1
                log.debug("no thumbnail of a file (%s, %d bytes): it %s", mime_type, len(data), error)
                return view
        if kind == "image" and view.picture is None:
            return View(kind, as_it_is(data), facts=view.facts)
        return view


def _can_be_decoded(kind: str) -> bool:
    """Whether the libraries for it are there."""
    with contextlib.suppress(ImportError):
        return kind in _LIBRARIES and all(importlib.util.find_spec(name) for name in _LIBRARIES[kind])
    return False


def as_it_is(data: bytes) -> Picture | None:
    """An image that a browser can show without harm, and that is small, also once it is decoded."""
    if head.is_svg(data):
        # <img> runs no scripts and loads nothing; entities and images inside could still unfold into gigabytes.
        if len(data) > _MOST_SVG_BYTES or _UNFOLDS.search(data):
            return None
        return Picture(data, "image/svg+xml", 0, 0)
    kind = head.kind_of(data)
    if kind not in _SAFE or len(data) > _MOST_BYTES_AS_IS:
        return None
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")  # of a PNG
    if kind == "jpeg":
        try:
            found = head.of_jpeg(data)
        except NotDecodable:
            return None
        width, height = found.width, found.height
    is_animated = kind == "png" and b"acTL" in data
    is_small = 0 < width * height <= _MOST_PIXELS_AS_IS
    return Picture(data, _SAFE[kind], width, height) if is_small and not is_animated else None


def beginning_of(data: bytes, mime_type: str, ext: str) -> str:
    """How a text begins; of a web page what a reader sees of it."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = data[:_READ_FOR_WORDS].decode(encoding, "replace")
    if "html" in mime_type or ext.rsplit(".", 1)[-1] in ("html", "htm", "xhtml"):
        text = " ".join(html.unescape(_TAGS.sub(" ", text)).split())
    elif "json" in mime_type and len(data) <= _READ_FOR_WORDS:
        with contextlib.suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    return shown(text.strip(), _MOST_WORDS)
