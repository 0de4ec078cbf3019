"""What is done to files: each way takes a file and returns another, by a random generator that is handed in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from tests.support.fuzz.seeds import ARCHIVES, File, packed

_HEAD = 256  # bytes, where most headers are
_ODD = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 60_000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged(file: File, others: Sequence[File], random: Random) -> tuple[File, tuple[str, ...]]:
    """`file` after one to three of them, and their names; now and then as it is."""
    if random.random() < 0.02:
        return file, ()
    ways = random.choices(WAYS, k=random.choice((1, 1, 2, 3)))
    for way in ways:
        file = way(file, others, random)
    return file, tuple(way.__name__ for way in ways)


def flip_bytes(file: File, others: Sequence[File], random: Random) -> File:
    data = bytearray(file.data)
    for _ in range(random.choice((1, 4, 16, 64)) if data else 0):
        data[random.randrange(len(data))] = random.randrange(256)
    return replace(file, data=bytes(data))


def flip_bits(file: File, others: Sequence[File], random: Random) -> File:
    data = bytearray(file.data)
    for _ in range(random.choice((1, 2, 8)) if data else 0):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return replace(file, data=bytes(data))


def odd_field(file: File, others: Sequence[File], random: Random) -> File:
    """A field near the beginning gets a value that programmers forget."""
    data = bytearray(file.data)
    for _ in range(random.choice((1, 2, 4))):
        size, letter = random.choice(((2, "H"), (4, "I"), (8, "Q")))
        near = random.random() < 0.8
        at = random.randrange(max(1, (min(_HEAD, len(data)) if near else len(data)) - size))
        value = random.choice(_ODD) & ((1 << 8 * size) - 1)
        data[at : at + size] = struct.pack(random.choice("<>") + letter, value)
    return replace(file, data=bytes(data))


def truncate(file: File, others: Sequence[File], random: Random) -> File:
    return replace(file, data=file.data[: random.randrange(len(file.data) + 1)])


def cut_out(file: File, others: Sequence[File], random: Random) -> File:
    start, end = sorted(random.randrange(len(file.data) + 1) for _ in range(2))
    return replace(file, data=file.data[:start] + file.data[end:])


def repeat(file: File, others: Sequence[File], random: Random) -> File:
    start, end = sorted(random.randrange(len(file.data) + 1) for _ in range(2))
    piece = file.data[start : min(end, start + 2000)]
    return replace(file, data=file.data[:end] + piece * random.choice((1, 3, 20)) + file.data[end:])


def insert(file: File, others: Sequence[File], random: Random) -> File:
    at = random.randrange(len(file.data) + 1)
    size = random.choice((1, 2, 4, 64, 3000))
    what = random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    return replace(file, data=file.data[:at] + what + file.data[at:])


def splice(file: File, others: Sequence[File], random: Random) -> File:
    """The beginning of one and the end of another, of the same kind most often."""
    alike = [other for other in others if other.kind == file.kind] if random.random() < 0.7 else others
    other = random.choice(alike or others)
    at, there = random.randrange(len(file.data) + 1), random.randrange(len(other.data) + 1)
    return replace(file, data=file.data[:at] + other.data[there:])


def swap_type(file: File, others: Sequence[File], random: Random) -> File:
    """It is served as something else."""
    return replace(file, media_type=random.choice(others).media_type)


def pack(file: File, others: Sequence[File], random: Random) -> File:
    """It lies in an archive that is whole."""
    kind = random.choice(list(ARCHIVES))
    name = random.choice(("a", "a.jpg", "../b.mp4", "c/d/e.html"))
    data = packed(kind, {name: file.data, "beside.txt": b"beside"})
    return File(f"archive-of-{file.name}", ARCHIVES[kind], data)


Way = Callable[[File, Sequence[File], Random], File]
WAYS: tuple[Way, ...] = (
    *(flip_bytes, flip_bytes, flip_bits, odd_field, odd_field, truncate, cut_out, repeat, insert, splice),
    *(swap_type, pack),
)
