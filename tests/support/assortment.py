"""Files of many kinds, made on the spot, for whatever shows a dataset to people."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from tests.support.pictures import encoded, jpeg, photograph
from tests.support.recordings import film, tone

EVIL = "<script>alert(1)</script>\"'&amp; \u202egnp.\x00\x1b[31m"
"""A caption that is anything but words."""
_PAGE = "<html><head><title>no</title><script>var not_shown</script></head><body><h1>Moss</h1><p>grows & rests</body>"
_DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="120" height="80" onload="alert(1)"><script>alert(2)</script>'
    '<rect width="120" height="80" fill="#e0a458"/><circle cx="60" cy="40" r="28" fill="#26547c"/></svg>'
)
_ENTITIES = '<!DOCTYPE svg [<!ENTITY a "aaaa">]><svg xmlns="http://www.w3.org/2000/svg"><text>&a;</text></svg>'


@functools.cache
def assortment() -> dict[str, bytes]:
    """File name -> content: what can be shown, and what cannot."""
    sizes = [(640, 480), (480, 640), (800, 300), (320, 320), (1024, 576), (240, 720)]
    images = {f"photo{n}.jpg": jpeg(photograph(*size, seed=n)) for n, size in enumerate(sizes)}
    noise = [math.sin(n * n) for n in range(10)]
    return {
        **images,
        "drawn.png": encoded(photograph(200, 150, seed=9), "PNG"),
        "modern.webp": encoded(photograph(300, 200, seed=8), "WEBP"),
        "icon.svg": _DRAWING.encode(),
        "entities.svg": _ENTITIES.encode(),
        "tone.wav": tone(seconds=1.5),
        "tone.mp3": tone("mp3", "libmp3lame", seconds=4),
        "film.mp4": film(seconds=2),
        "film.webm": film("webm", "libvpx", None, seconds=1, size=(120, 160)),
        "turned.mp4": film(seconds=1, turned=90),
        "note.txt": b"Moss grows slowly,\nand rests in winter. \x00\x1b[31m<b>bold</b>",
        "page.html": _PAGE.encode(),
        "facts.json": b'{"name": "moss", "height": [1, 2]}',
        "broken.jpg": images["photo0.jpg"][:3000],
        "numbers.bin": bytes(int(127 + 100 * one) for one in noise),
    }


def write(folder: Path) -> list[str]:
    """Into a folder, which is made; the names."""
    folder.mkdir()
    for name, content in assortment().items():
        (folder / name).write_bytes(content)
    return list(assortment())
