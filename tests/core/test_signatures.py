"""The types by signature are those of the library `filetype` 1.2, for every input."""

import ast
import inspect
import itertools
import random
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import filetype
import pytest
from filetype.types import TYPES
from hypothesis import given
from hypothesis import strategies as st

from any2ds.core.signatures import type_by_signature

FURTHER = {
    "heic",
    "avif",
    "mp4",
    "ts",
    "m2ts",
    "wav",
    "w64",
    "caf",
    "au",
    "wv",
    "tta",
    "jxl",
    "npy",
}  # that the library does not know


def agree(head: bytes) -> str | None:
    """The extension, in which the library agrees."""
    found = type_by_signature(head)
    if head[257:262] == b"ustar":  # which comes before all others here
        assert found == ("application/x-tar", "tar")
        return "tar"
    theirs = filetype.guess(head)
    if theirs is None:
        assert found is None or found[1] in FURTHER, (found, head[:64])
        return None
    assert found == (theirs.mime, theirs.extension), head[:64]
    return str(theirs.extension)


# --- samples out of the source of the library's matchers ---

Bytes = Mapping[int, int]  # offset -> value


def samples_of(kind: Any) -> list[bytes]:
    """A head for each way to satisfy `kind.match`, as far as it compares bytes at offsets."""
    function = ast.parse(textwrap.dedent(inspect.getsource(type(kind).match))).body[0]
    assert isinstance(function, ast.FunctionDef)
    names = {**vars(sys.modules[type(kind).__module__]), "self": kind}
    found = [each for each in _after(function.body, names) if each]
    return [bytes(each.get(at, 0x77) for at in range(max(each) + 1)) for each in found]


def _after(statements: list[ast.stmt], names: Mapping[str, Any]) -> Iterator[Bytes]:
    for statement in statements:
        if isinstance(statement, ast.Return) and statement.value is not None:
            yield from _ways(statement.value, names)
        if isinstance(statement, ast.If):
            inner = list(_after(statement.body, names)) or [{}]
            yield from _joined(_ways(statement.test, names), inner)
        if isinstance(statement, ast.Assign):
            yield from _ways(statement.value, names)


def _joined(*parts: list[Bytes]) -> list[Bytes]:
    return [{at: byte for part in way for at, byte in part.items()} for way in itertools.product(*parts)]


def _ways(test: ast.expr, names: Mapping[str, Any]) -> list[Bytes]:
    if isinstance(test, ast.BoolOp):
        parts = [_ways(value, names) for value in test.values]
        return _joined(*parts) if isinstance(test.op, ast.And) else [way for part in parts for way in part]
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return [{}]
    place, value = test.left, test.comparators[0]
    if isinstance(test.ops[0], ast.In) and isinstance(value, ast.Subscript):
        place, value = value, place
    if not (isinstance(place, ast.Subscript) and isinstance(value, (ast.Constant, ast.Tuple, ast.Call))):
        return [{}]
    wanted = eval(ast.unparse(value), dict(names))
    if isinstance(place.slice, ast.Slice):
        start = eval(ast.unparse(place.slice.lower or ast.Constant(0)), dict(names))
        stop = eval(ast.unparse(place.slice.upper), dict(names)) if place.slice.upper else start + len(wanted)
        starts = {start, stop - len(wanted)} if isinstance(test.ops[0], ast.In) else {start}
        return [dict(enumerate(wanted, each)) for each in starts]
    at = eval(ast.unparse(place.slice), dict(names))
    return [{at: each} for each in (wanted if isinstance(wanted, tuple) else (wanted,))]


def iso(*brands: bytes, size: int | None = None) -> bytes:
    content = b"ftyp" + brands[0] + b"\0\0\2\0" + b"".join(brands[1:])
    return (4 + len(content) if size is None else size).to_bytes(4, "big") + content


def zipped(*names: bytes, between: int = 40) -> bytes:
    return b"".join(b"PK\3\4" + bytes(26) + name + bytes(between) for name in names)


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(len(b"word").to_bytes(4, "big") + name + b"wordcrc!" for name in chunks)


OFFICE = b"application/vnd.oasis.opendocument."
DOCUMENTS = (b"word/a", b"xl/a", b"ppt/a", b"other")
MADE = [
    *(iso(*brands) for brands in itertools.product((b"heic", b"avif", b"mif1", b"msf1", b"isom", b"qt  ", b"mp42"))),
    *(iso(*brands) for brands in itertools.product((b"mif1", b"msf1", b"none", b"M4A "), (b"heic", b"avif", b"mp41"))),
    *(iso(b"none", b"none", b"isom", size=size) for size in (0, 8, 15, 16, 19, 20, 21, 24, 25, 5000, 2**31)),
    *(iso(b"isom", size=size) + bytes(500) for size in (12, 16, 256, 440)),
    bytes.fromhex("0000000c") + b"ftypqt  " + bytes(4) + b"ftypjp2 " + bytes(40),
    *(zipped(*names) for names in itertools.product(DOCUMENTS, DOCUMENTS)),
    *(zipped(b"[Content_Types].xml", *names) for names in itertools.product(DOCUMENTS, repeat=3)),
    *(zipped(b"_rels/.rels", *[b"other"] * n, b"xl/a") for n in range(6)),
    *(zipped(b"docProps/x", b"other", b"ppt/a", between=n) for n in (3, 5950, 5963, 5964, 5965, 5970, 6100)),
    *(
        zipped(b"mimetype" + OFFICE + name)
        for name in (b"text", b"text-template", b"spreadsheet", b"presentation", b"x")
    ),
    zipped(b"mimetypeapplication/epub+zip"),
    *(png(*names) for names in ([b"IHDR", b"IDAT"], [b"IHDR", b"acTL", b"IDAT"], [b"IEND", b"acTL"], [b"IHDR"], [])),
    b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffacTL",
    b"\x89PNG other",
    *(
        b"\x1aE\xdf\xa3" + bytes(n) + kind
        for n in (0, 9, 8000)
        for kind in (b"\x42\x82\x88matroska", b"\x42\x82\x84webm")
    ),
    b"\x1aE\xdf\xa3\x42\x82\x84webm\x42\x82\x88matroska",
    b"\x1aE\xdf\xa3" + bytes(8188) + b"\x42\x82\x84webm",
    b"\x28\xb5\x2f\xfd",
    b"\x50\x2a\x4d\x18\2\0\0\0ab\x28\xb5\x2f\xfd",
    b"\x5f\x2a\x4d\x18\0\0\0\0" * 3 + b"\x22\xb5\x2f\xfd",
    b"\x5f\x2a\x4d\x18\xff\0\0\0" + b"\x28\xb5\x2f\xfd" * 9,
    b"\x5f\x2a\x4d\x18\xff\xff\xff\xff",
    b"\xef\xbb\xbf%PDF-1.7",
]
SAMPLES = list(dict.fromkeys([*(sample for kind in TYPES for sample in samples_of(kind)), *MADE]))
LONG = random.Random(0).randbytes(9000)


def test_every_type_that_the_library_knows_has_a_sample() -> None:
    known = {agree(sample + tail) for sample in SAMPLES for tail in (b"", bytes(100), LONG, b"\0\0" + LONG)}
    assert known - {None} == {kind.extension for kind in TYPES}


def edges(sample: bytes) -> Iterator[int]:
    """The bytes that are not within a run of equal ones, which is filling."""
    return (at for at in range(len(sample)) if len(set(sample[max(0, at - 1) : at + 2])) > 1 or len(sample) < 3)


def test_samples_that_are_cut_or_changed_at_any_byte() -> None:
    for sample in SAMPLES:
        for end in {at + more for at in edges(sample) for more in range(2)}:
            agree(sample[:end])
        for more in (*range(40), 60, 100):
            agree(sample + bytes(more))
        for at, change in itertools.product(edges(sample), (1, 0x80)):
            agree(sample[:at] + bytes([sample[at] ^ change]) + sample[at + 1 :] + bytes(100))


@pytest.mark.parametrize("first", range(256))
def test_any_beginning(first: int) -> None:
    chance = random.Random(first)
    for _ in range(100):
        agree(bytes([first]) + chance.randbytes(chance.randrange(700)))


EDITS = st.lists(st.tuples(st.integers(0, 2200), st.binary(max_size=6)), max_size=4)


@given(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=3), st.integers(0, 9000), EDITS)
def test_samples_laid_over_each_other_and_changed(
    laid: list[bytes], size: int, changes: list[tuple[int, bytes]]
) -> None:
    head = bytearray(LONG[:size])
    for start, content in [*((0, sample) for sample in laid), *changes]:
        head[start : start + len(content)] = content
    agree(bytes(head))


@given(st.binary(max_size=300), st.sampled_from([0, 4, 128, 257]), st.sampled_from(SAMPLES))
def test_a_sample_anywhere(before: bytes, start: int, sample: bytes) -> None:
    agree(before[:start].ljust(start, b"\0") + sample)


def test_more_is_not_looked_at_than_the_library_does() -> None:
    assert type_by_signature(b"\x1aE\xdf\xa3" + bytes(9000) + b"\x42\x82\x84webm") is None
    assert type_by_signature(b"") is None


def test_a_chain_of_frames_to_skip_has_no_depth() -> None:
    """The library takes a thousand calls of itself, one within the other, for these."""
    assert type_by_signature(b"\x50\x2a\x4d\x18\0\0\0\0" * 1023 + b"\x28\xb5\x2f\xfd") == ("application/zstd", "zst")
