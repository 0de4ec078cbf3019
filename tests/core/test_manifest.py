"""What `.any2ds/run` keeps, and the fingerprint of rows."""

import hashlib
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from any2ds.core.layout import Layout
from any2ds.core.manifest import Beginning, Ending, ListFile, Manifest, Segment, columns_of, key_format, urls_sha256

URLS = st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=20)


def cut_up(urls: list[str | None], places: list[int]) -> list[pa.Array]:
    """The same strings in pieces of a longer array, as slices of tables are."""
    whole = pa.array(["before", *urls, "behind"], pa.string()).slice(1, len(urls))
    ends = sorted({min(place, len(urls)) for place in places} | {len(urls)})
    return [whole.slice(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]


@settings(max_examples=50)
@given(URLS, st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20)))
def test_a_fingerprint_does_not_depend_on_where_batches_end(
    urls: list[str | None], some: list[int], other: list[int]
) -> None:
    assert urls_sha256(cut_up(urls, some)) == urls_sha256(cut_up(urls, other))


@settings(max_examples=50)
@given(URLS, URLS)
def test_lists_that_differ_have_other_fingerprints(some: list[str | None], other: list[str | None]) -> None:
    same = urls_sha256([pa.array(some, pa.string())]) == urls_sha256([pa.array(other, pa.string())])
    assert same == (some == other)


def test_what_lies_under_a_null_does_not_count() -> None:
    hidden = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"abc")]
    )
    assert hidden.to_pylist() == ["a", None]
    assert urls_sha256([hidden]) == urls_sha256([pa.array(["a", None])])


def test_fingerprints_stay_what_they_are() -> None:
    """They are in datasets."""
    urls = ["http://a/1", None, "", "http://ä/2"]
    hashed = struct.pack("<q4i", 4, 10, -1, 0, 11) + b"http://a/1" + "http://ä/2".encode()
    assert urls_sha256([pa.array(urls)]) == hashlib.sha256(hashed).hexdigest()


SEGMENTS = (
    Segment(0, 0, (ListFile("/a.txt", 9, "1"),), Beginning(3, "x"), ending=Ending(12, 3)),
    Segment(1, 3, (), Beginning(1, "y"), "retry", list_number=1, ending=Ending(2, 1)),
    Segment(2, 4, (ListFile("/a.txt", 19, "2"),), Beginning(3, "x"), start_row=12),
)
MANIFEST = Manifest(
    options={"number_sample_per_shard": 5, "oom_shard_count": 5, "save_additional_columns": ["n"]},
    key_format=key_format(Layout(10_000, 5)),
    columns=columns_of(pa.schema({"url": pa.string(), "n": pa.int64()})),
    segments=SEGMENTS,
)
FILES = {f"{segment.number:04d}": replace(segment, ending=None).to_json() for segment in SEGMENTS} | {
    f"{segment.number:04d}.end": segment.ending.to_json() for segment in SEGMENTS if segment.ending is not None
}


def test_a_manifest_is_its_files() -> None:
    assert Manifest.parse(MANIFEST.to_json(), FILES) == MANIFEST
    whole = {f"{segment.number:04d}": segment.to_json() for segment in SEGMENTS}
    assert Manifest.parse(MANIFEST.to_json(), whole) == MANIFEST
    assert MANIFEST.key_format.format(shard=1, position=5) == Layout(10_000, 5).key(1, 5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'{"any2ds": "0.1.0", "options": {}, "list": {"rows": 1, "sha256": "x"}}',
        MANIFEST.to_json()[:-5],
        MANIFEST.to_json().replace(b'"steps"', b'"lists": [], "steps"'),
        MANIFEST.to_json().replace(b'"number_sample_per_shard": 5', b'"number_sample_per_shard": 0'),
    ],
)
def test_what_is_no_manifest_is_not_taken_for_one(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Manifest.parse(content)


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("0001", b'"first_shard": 3', b'"first_shard": null'),
        ("0001", b'"first_shard": 3', b'"first_shard": 9'),
        ("0001", b'"kind": "retry"', b'"kind": "other"'),
        ("0001", b'"cut": "list"', b'"cut": "row"'),
        ("0001", b'"number": 1', b'"number": 2'),
        ("0000", b'"version"', b'"etag"'),
        ("0000.end", b'"rows": 12', b'"rows": -1'),
        ("0000.end", b"{", b"["),
    ],
)
def test_what_is_no_segment_is_not_taken_for_one(name: str, before: bytes, now: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Manifest.parse(MANIFEST.to_json(), {**FILES, name: FILES[name].replace(before, now)})


def test_the_segment_of_each_shard() -> None:
    numbers = [found and found.number for found in map(MANIFEST.segment_of, range(6))]
    assert numbers == [0, 0, 0, 1, 2, 2]
    assert [part.number for part in MANIFEST.parts_of(0)] == [0, 2]
    assert MANIFEST.end is None
    ended = replace(MANIFEST, segments=SEGMENTS[:2])
    assert (ended.end, ended.segment_of(4)) == (4, None)


def test_files_that_nobody_tells_apart_are_never_surely_the_same() -> None:
    one = ListFile("/a.txt", 9, None)
    assert not Segment(0, 0, (one,), Beginning(1, "x")).is_made_of((one,))
    assert not Segment(0, 0, (), Beginning(1, "x")).is_made_of(())
    assert SEGMENTS[0].is_made_of((*SEGMENTS[0].files, one))
