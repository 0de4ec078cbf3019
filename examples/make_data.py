"""Draws, plays and writes the files of examples/data, and urls.csv with their captions.

They are in the repository; this is how they came to be, and how to add some. Needs Pillow and numpy, and the programs
sox, espeak-ng and ffmpeg:  python examples/make_data.py
"""

from __future__ import annotations

import colorsys
import csv
import html
import json
import math
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

DATA = Path(__file__).parent / "data"
LICENCE = "CC0-1.0"
COLOURS = {
    "red": 0.99,
    "orange": 0.07,
    "yellow": 0.14,
    "green": 0.36,
    "teal": 0.48,
    "blue": 0.60,
    "violet": 0.74,
    "pink": 0.90,
}
NAMES = list(COLOURS)
SIZES = [(160, 120), (240, 240), (320, 240), (256, 384), (480, 320), (640, 400)]
File = tuple[str, str, str]
"""Path below the data folder, caption, topic."""


def rgb(name: str, saturation: float = 0.75, value: float = 0.9) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(COLOURS[name], saturation, value)
    return int(red * 255), int(green * 255), int(blue * 255)


def blend(low: tuple[int, ...], high: tuple[int, ...], share: np.ndarray) -> Image.Image:
    """A picture that goes from one colour to another as `share` goes from 0 to 1."""
    share = np.clip(share, 0, 1)[..., None]
    return Image.fromarray(np.uint8(np.array(low) * (1 - share) + np.array(high) * share))


def grid(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """x and y of every pixel, the shorter side being 2 long with its middle at 0."""
    width, height = size
    scale = 2 / min(size)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return (x - width / 2) * scale, (y - height / 2) * scale


def smooth(draw: Callable[[ImageDraw.ImageDraw, int, int], None], size: tuple[int, int], back: Any) -> Image.Image:
    """What `draw` paints at three times the size, brought down, so that edges are smooth."""
    big = Image.new("RGB", (size[0] * 3, size[1] * 3), back)
    draw(ImageDraw.Draw(big), *big.size)
    return big.resize(size, Image.Resampling.LANCZOS)


# --- pictures: each takes a size and two colours and gives the picture and its caption ---


def sunset(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    x, y = grid(size)
    sky = blend(rgb(one, 0.6, 0.95), rgb(two, 0.8, 0.45), (1 - y) / 2)
    picture = np.array(sky)
    picture[(x**2 + (y - 0.25) ** 2) < 0.12] = rgb("yellow", 0.4, 1.0)
    sea = y > 0.45
    glitter = np.sin(y * 90) * np.cos(x * (4 + 10 * y)) > 0.55
    picture[sea] = (picture[sea] * 0.45).astype(np.uint8)
    picture[sea & glitter & (np.abs(x) < 0.2 + y * 0.5)] = rgb("yellow", 0.5, 0.85)
    return Image.fromarray(picture), f"a sun setting over the sea under a sky from {one} to {two}"


def mountains(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    chance = random.Random(f"{size}{one}{two}")
    x, y = grid(size)
    picture = np.array(blend(rgb(one, 0.25, 1.0), rgb(one, 0.5, 0.8), (1 - y) / 2))
    for layer in range(4):
        waves = [(chance.uniform(1, 4 + layer * 3), chance.uniform(0, 6), chance.uniform(0.03, 0.22)) for _ in range(5)]
        ridge = -0.35 + layer * 0.3 - sum(high * np.abs(np.sin(x * wide + at)) for wide, at, high in waves)
        picture[y > ridge] = rgb(two, 0.25 + 0.15 * layer, 0.85 - 0.19 * layer)
    return Image.fromarray(picture), f"four ranges of {two} mountains fading into a {one} haze"


def mandelbrot(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    x, y = grid(size)
    point = x * 1.3 - 0.6 + 1j * y * 1.3
    value, steps = np.zeros_like(point), np.zeros(point.shape)
    for _ in range(60):
        inside = np.abs(value) < 4
        value[inside] = value[inside] ** 2 + point[inside]
        steps += inside
    picture = np.array(blend(rgb(one, 0.9, 0.2), rgb(two, 0.5, 1.0), np.log1p(steps) / np.log(40)))
    picture[steps >= 60] = (8, 8, 16)
    return Image.fromarray(picture), f"the Mandelbrot set in black, its surroundings from {one} to {two}"


def julia(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    x, y = grid(size)
    turn = (COLOURS[one] + COLOURS[two]) * math.pi
    constant = 0.7885 * complex(math.cos(turn), math.sin(turn))
    value, steps = x * 1.4 + 1j * y * 1.4, np.zeros(x.shape)
    for _ in range(50):
        inside = np.abs(value) < 4
        value[inside] = value[inside] ** 2 + constant
        steps += inside
    return blend(rgb(one, 0.9, 0.15), rgb(two, 0.6, 1.0), np.sqrt(steps / 50)), f"a Julia set, {two} on dark {one}"


def waves(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    x, y = grid(size)
    sources = [(-0.6, -0.3), (0.6, -0.3), (0, 0.7)]
    height = sum(np.cos(22 * np.hypot(x - a, y - b)) for a, b in sources)
    return blend(rgb(one, 0.8, 0.5), rgb(two, 0.4, 1.0), (height + 3) / 6), f"{one} and {two} ripples from three stones"


def dots(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    count = 90 + 10 * NAMES.index(two)

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        for n in range(count):
            turn, away = n * 2.39996, math.sqrt((n + 0.5) / count) * min(width, height) * 0.46
            radius = min(width, height) * 0.012 * (1 + 1.4 * n / count)
            x, y = width / 2 + away * math.cos(turn), height / 2 + away * math.sin(turn)
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), rgb(one if n % 3 else two))

    return smooth(draw, size, (24, 24, 32)), f"{count} {one} and {two} dots like the seeds of a sunflower, on black"


def star(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    points = 5 + NAMES.index(two)

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        long, corners = min(width, height) * 0.44, []
        for n in range(points * 2):
            reach, turn = (long if n % 2 == 0 else long * 0.5), math.pi * (n / points - 0.5)
            corners.append((width / 2 + reach * math.cos(turn), height / 2 + reach * math.sin(turn)))
        pen.polygon(corners, rgb(two))

    return smooth(draw, size, rgb(one, 0.35, 0.95)), f"a {two} star with {points} points on a pale {one} ground"


def chessboard(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    x, y = grid(size)
    depth = 1 / (y - y.min() + 0.25)
    squares = (np.floor(x * depth * 3) + np.floor(depth * 7)) % 2
    return blend(rgb(one, 0.7, 0.35), rgb(two, 0.3, 1.0), squares), f"a floor of {one} and {two} tiles seen at an angle"


def tree(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    chance = random.Random(f"{size}{one}{two}")

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        def branch(x: float, y: float, turn: float, long: float, left: int) -> None:
            to_x, to_y = x + long * math.cos(turn), y - long * math.sin(turn)
            pen.line((x, y, to_x, to_y), rgb(one, 0.5, 0.4), max(1, int(long / 7)))
            if left:
                for side in (-1, 1):
                    lean = turn + side * chance.uniform(0.25, 0.6)
                    branch(to_x, to_y, lean, long * chance.uniform(0.65, 0.82), left - 1)
            else:
                leaf = long * 0.35
                pen.ellipse((to_x - leaf, to_y - leaf, to_x + leaf, to_y + leaf), rgb(two))

        branch(width / 2, height * 0.97, math.pi / 2, height * 0.22, 8)

    return smooth(draw, size, (250, 248, 240)), f"a tree with {two} leaves on {one} branches"


def clock(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    hour, minute = 1 + NAMES.index(one), 5 * NAMES.index(two)

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        x, y, radius = width / 2, height / 2, min(width, height) * 0.45

        def at(share: float, reach: float) -> tuple[float, float]:
            turn = (share - 0.25) * math.tau
            return x + radius * reach * math.cos(turn), y + radius * reach * math.sin(turn)

        pen.ellipse((x - radius, y - radius, x + radius, y + radius), "white", rgb(one), int(radius / 12))
        for mark in range(12):
            pen.line((at(mark / 12, 0.78), at(mark / 12, 0.88)), (60, 60, 60), int(radius / 30))
        pen.line(((x, y), at(hour / 12 + minute / 720, 0.5)), (30, 30, 30), int(radius / 12))
        pen.line(((x, y), at(minute / 60, 0.75)), rgb(two), int(radius / 18))

    return smooth(draw, size, rgb(one, 0.15, 0.95)), f"a {one} clock with a {two} hand showing {hour}:{minute:02d}"


def poster(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    word = ["SHARD", "HELLO", "WAVES", "MOON", "PAPER", "RIVER", "NORTH", "SEVEN"][NAMES.index(one)]

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        font = ImageFont.load_default(size=width // 5)
        for n in range(3):
            box = (width * 0.08 * n, height * (0.1 + 0.3 * n), width, height * (0.3 + 0.3 * n))
            pen.rectangle(box, rgb(two, 0.3 + 0.2 * n, 0.95))
        pen.text((width / 2, height / 2), word, rgb(one, 0.9, 0.3), font, anchor="mm")

    return smooth(draw, size, rgb(one, 0.12, 1.0)), f"a poster that says {word} in {one} letters over {two} bars"


def bars(size: tuple[int, int], one: str, two: str) -> tuple[Image.Image, str]:
    chance = random.Random(f"{one}{two}")
    values = [chance.randint(2, 20) for _ in range(8)]
    top = values.index(max(values))

    def draw(pen: ImageDraw.ImageDraw, width: int, height: int) -> None:
        for n, value in enumerate(values):
            left = width * (0.1 + 0.1 * n)
            box = (left, height * (0.92 - 0.04 * value), left + width * 0.08, height * 0.92)
            pen.rectangle(box, rgb(two if n == top else one))
        pen.line((width * 0.08, height * 0.92, width * 0.92, height * 0.92), (50, 50, 50), 4)

    return smooth(draw, size, "white"), f"a chart of eight {one} bars, the highest, number {top + 1}, in {two}"


PICTURES = [sunset, mountains, mandelbrot, julia, waves, dots, star, chessboard, tree, clock, poster, bars]


def pictures() -> Iterator[File]:
    (DATA / "images").mkdir(parents=True)
    formats = ["jpg", "jpg", "jpg", "png", "jpg", "webp", "jpg", "gif"]
    number = 0
    for paint in PICTURES:
        for turn in range(13):
            one, two = NAMES[number % 8], NAMES[(number * 3 + number // 8 + 1 + turn) % 8]
            if one == two:
                two = NAMES[(number + 4) % 8]
            size = SIZES[number % len(SIZES)]
            kind = formats[(number + number // 8) % len(formats)]
            if kind in ("png", "gif"):  # without loss they are large, so keep them small
                size = (160, 120) if paint in (sunset, mountains, mandelbrot, julia, waves) else (200, 150)
            picture, caption = paint(size, one, two)
            name = f"images/{paint.__name__}-{turn:02d}.{kind}"
            if kind == "gif":
                picture = picture.quantize(64)
            options = {"quality": 80} if kind in ("jpg", "webp") else {"optimize": True}
            picture.save(DATA / name, **options)
            yield name, caption, paint.__name__
            number += 1


def drawings() -> Iterator[File]:
    (DATA / "drawings").mkdir()
    for count, name in enumerate(NAMES, 3):
        rings = "".join(
            f'<circle cx="100" cy="100" r="{95 - n * 90 // count}" fill="{"#ffffff" if n % 2 else "#%02x%02x%02x"}"/>'
            % (rgb(name) if n % 2 == 0 else ())
            for n in range(count)
        )
        path = f"drawings/rings-{count}.svg"
        text = f'<svg xmlns="http://www.w3.org/2000/svg" width="200" height="200" viewBox="0 0 200 200">{rings}</svg>\n'
        (DATA / path).write_text(text, encoding="utf-8")
        yield path, f"a target of {count} rings in {name} and white", "rings"


def sounds() -> Iterator[File]:
    (DATA / "sounds").mkdir()
    chords = {"c-major": ("C4", "E4", "G4"), "a-minor": ("A3", "C4", "E4"), "d-seventh": ("D4", "F#4", "A4", "C5")}
    for (name, notes), kind in zip(chords.items(), ("wav", "flac", "ogg"), strict=True):
        path = f"sounds/{name}.{kind}"
        synth = [part for note in notes for part in ("pluck", note)]
        run("sox", "-n", "-r", "11025", "-c", "1", DATA / path, "synth", "1.5", *synth, "fade", "0", "1.5", "0.4")
        yield path, f"the chord {name.replace('-', ' ')}, plucked", "music"
    for name, shape, caption in (
        ("siren", ("sine", "400-1200"), "a tone that rises like a siren"),
        ("wind", ("brownnoise",), "noise like a strong wind"),
        ("bell", ("sine", "880", "sine", "1320"), "two high tones like a bell"),
    ):
        path = f"sounds/{name}.mp3"
        run(
            "sox",
            "-n",
            "-r",
            "16000",
            "-c",
            "1",
            "-C",
            "32",
            DATA / path,
            "synth",
            "1.5",
            *shape,
            "fade",
            "0",
            "1.5",
            "1",
        )
        yield path, caption, "effects"
    sentences = {
        "shards": "A dataset is a lot of small files in a few large ones.",
        "numbers": "One, two, three, four, five.",
        "weather": "Tomorrow there will be rain in the north and sun in the south.",
        "mountain": "The train climbs slowly into the mountains.",
        "question": "Where do all these pictures come from?",
        "farewell": "Goodbye, and thank you for listening.",
    }
    for (name, sentence), kind in zip(sentences.items(), ("wav", "mp3", "flac", "ogg", "mp3", "mp3"), strict=True):
        path = f"sounds/speech-{name}.{kind}"
        with tempfile.TemporaryDirectory() as folder:
            spoken = Path(folder) / "spoken.wav"
            run("espeak-ng", "-w", spoken, sentence)
            rate = "8000" if kind in ("wav", "flac") else "16000"
            run("sox", spoken, "-r", rate, *(("-C", "24") if kind == "mp3" else ()), DATA / path)
        yield path, f"a voice that says: {sentence}", "speech"


def videos() -> Iterator[File]:
    (DATA / "videos").mkdir()
    for name, source, caption in (
        (
            "life",
            "life=s=80x60:mold=10:r=12:ratio=0.2:seed=3,scale=320:240:flags=neighbor",
            "the game of life, two seconds of it",
        ),
        ("zoom", "mandelbrot=s=320x240:r=12:start_scale=2:end_scale=0.2:end_pts=40", "a dive into the Mandelbrot set"),
        ("gradient", "gradients=s=320x240:r=12:c0=teal:c1=orange:seed=7:speed=0.03", "teal and orange turning slowly"),
    ):
        path = f"videos/{name}.mp4"
        encode = ("-c:v", "libx264", "-crf", "34", "-pix_fmt", "yuv420p", "-movflags", "+faststart")
        run(
            "ffmpeg",
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            source,
            "-t",
            "2",
            *encode,
            "-fflags",
            "+bitexact",
            DATA / path,
        )
        yield path, caption, "video"


TEXTS = {
    "harbour": "The harbour is quiet before six. Then the first boat comes in, low in the water, and the gulls know it "
    "before anybody else does. By seven there is ice on the quay and a price on everything.",
    "bread": "Flour, water, salt and time. The dough asks for the fourth more than for the others: leave it in the "
    "cold overnight, and in the morning it has done half of the work by itself.",
    "library": "On the third floor nobody speaks. The heating ticks, a page turns, and somewhere a pencil rolls from a "
    "table, slowly at first, and is heard by everyone.",
    "winter": "Snow fell from Tuesday to Friday. The road was gone, then the fence, then the lower branches of the "
    "apple tree, until the garden was one white thing with a door in it.",
    "signal": "The tower sends one word each minute. Ships that hear it know where they are; ships that do not hear it "
    "know that, too.",
    "garden": "Beans climb to the left, hops to the right, whoever planted them. Put a stick in the middle and each "
    "finds its own way round it.",
    "mots": "Le café est fermé, mais la lumière reste allumée jusqu'à l'aube. Qui l'a oubliée ? Personne ne le sait.",
    "strasse": "Die Straße führt über drei Brücken und endet am Fluß, wo früher die Fähre übersetzte.",
    "haiku": "古い橋\n雪の下から\n水の音",
    "letter": "Dear neighbour, your cat comes to us every evening at eight, eats, and leaves by the window. We thought "
    "that you should know that he is called Oscar here.",
}


def texts() -> Iterator[File]:
    (DATA / "texts").mkdir()
    for name, text in TEXTS.items():
        (DATA / f"texts/{name}.txt").write_text(text + "\n", encoding="utf-8")
        yield f"texts/{name}.txt", f"a short text about: {' '.join(text.split()[:4])} …", "prose"
    for name in ("harbour", "bread", "mots", "haiku"):
        page = (
            f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{name}</title></head>\n'
            f"<body><h1>{name}</h1><p>{html.escape(TEXTS[name])}</p></body></html>\n"
        )
        (DATA / f"texts/{name}.html").write_text(page, encoding="utf-8")
        yield f"texts/{name}.html", f"a web page with the title {name}", "prose"
    chance = random.Random(5)
    for city in ("north", "south", "east", "west"):
        days = [(f"2026-03-{day:02d}", round(chance.gauss(9, 4), 1), chance.randint(0, 12)) for day in range(1, 32)]
        lines = ["day,degrees,rain_mm", *(f"{day},{degrees},{rain}" for day, degrees, rain in days)]
        (DATA / f"texts/weather-{city}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield f"texts/weather-{city}.csv", f"a table of the weather at station {city} in March", "tables"
        report = {"station": city, "warmest": max(days, key=lambda day: day[1]), "days": len(days)}
        (DATA / f"texts/weather-{city}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        yield f"texts/weather-{city}.json", f"the warmest day at station {city} as JSON", "tables"


def pdfs() -> Iterator[File]:
    (DATA / "documents").mkdir()
    for name in ("harbour", "bread", "library", "winter", "signal", "garden"):
        message, lines = TEXTS[name].split(), [""]
        for word in message:
            if len(lines[-1]) + len(word) > 60:
                lines.append("")
            lines[-1] += f"{word} "
        (DATA / f"documents/{name}.pdf").write_bytes(pdf(name.title(), lines))
        yield f"documents/{name}.pdf", f"a page of PDF with the title {name.title()}", "documents"


def pdf(title: str, lines: list[str]) -> bytes:
    """One page with a title and lines of text, by the book (ISO 32000-1, 7.5)."""
    shown = "".join(f"({line.strip()}) Tj T*\n" for line in lines)
    page = f"BT /F 28 Tf 72 740 Td ({title}) Tj /F 13 Tf 18 TL 0 -48 Td\n{shown}ET".encode("latin-1")
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R"
        b" /Resources << /Font << /F 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(page), page),
        font,
    ]
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n%b" % (len(objects) + 1, table) + end


def run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


# --- the list ---


# URLs that fail on purpose, and what the server is told to do about those that reach it.
DEAD = [
    ("gone/{n}.jpg", "a picture that is not there any more", ["404"], 6),
    ("private/{n}.png", "a picture that nobody may see", ["403"], 3),
    ("busy/{n}.jpg", "a picture on a server that is always busy", ["503"], 2),
    ("silent/{n}.jpg", "a picture on a server that never answers", ["timeout"], 3),
    ("dripping/{n}.mp4", "a film that comes byte by byte and never ends", ["drip"], 2),
    ("cut/{n}.pdf", "a document that ends in the middle", ["truncated"], 2),
    ("torn/{n}.mp3", "a song whose connection breaks off", ["reset"], 2),
    ("turning/{n}.html", "a page that redirects to itself", ["redirect:loop"], 1),
    ("nothing/{n}.txt", "a text without any text", ["empty"], 1),
]
MOVED = [("moved/tree.jpg", "images/tree-01.jpg"), ("moved/bread.html", "texts/bread.html")]
HICCUPS = ["images/star-01.jpg", "sounds/bell.mp3"]  # fail once, and succeed when asked again
ELSEWHERE = [
    ("http://127.0.0.1:1/refused.jpg", "a picture on a machine that refuses the connection"),
    ("http://nowhere.invalid/lost.jpg", "a picture on a host that does not exist"),
    ("not a url", "a row without a URL in it"),
    ("", "a row with nothing in it"),
    ("gopher://127.0.0.1/old.txt", "a text in a protocol of the past"),
]


def main() -> None:
    for folder in ("images", "drawings", "sounds", "videos", "texts", "documents"):
        shutil.rmtree(DATA / folder, ignore_errors=True)
    rows: list[tuple[str, str, str, str]] = []
    script: dict[str, list[str]] = {}
    for make in (pictures, drawings, sounds, videos, texts, pdfs):
        rows += [("{server}" + path, caption, topic, LICENCE) for path, caption, topic in make()]
    existing = {url for url, *_ in rows}
    captions = {url: caption for url, caption, *_ in rows}
    for pattern, caption, entries, count in DEAD:
        for n in range(1, count + 1):
            path = pattern.format(n=n)
            script[path] = entries
            rows.append(("{server}" + path, caption, "dead", ""))
    for path, target in MOVED:
        script[path] = [f"redirect:{target}"]
        rows.append(("{server}" + path, f"{captions['{server}' + target]}, moved elsewhere", "moved", LICENCE))
    for path in HICCUPS:
        if "{server}" + path not in existing:
            raise LookupError(path)
        script[path] = ["503", "ok"]
    rows += [(url, caption, "dead", "") for url, caption in ELSEWHERE]
    random.Random(1).shuffle(rows)
    with open(DATA / "urls.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("url", "caption", "topic", "licence"))
        writer.writerows(rows)
    lines = ",\n".join(f" {json.dumps(path)}: {json.dumps(entries)}" for path, entries in script.items())
    (DATA / "faults.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
